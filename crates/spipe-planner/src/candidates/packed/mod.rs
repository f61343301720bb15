//! What each layer of a GPU does so that all of them fit and the GPU has least to do beside its passes: a linear program for each GPU of
//! single stages of which a bound says which layers they have and how much hosts step for them, whose few layers that are cut into parts do
//! what takes least room.
//!
//! ```text
//! minimise   Σ m F of what is recomputed + Σ steps on the GPU
//! with       Σ bytes ≤ room        Σ m ways of what is offloaded ≤ part of T        Σ steps on hosts ≤ what is theirs
//! ```
//!
//! What stages need beside their layers (slots, what is in passing) is found out from the placement that comes of it, and left free the next
//! time.

mod climb;
mod program;

#[cfg(test)]
mod tests;

pub(crate) use crate::candidates::packed::climb::best;

use crate::candidates::packed::program::{Program, Share};
use crate::{
    bounds::one_stage_relaxation::Hint,
    candidates::topology_order::apart,
    hosts::{dealt_out, shared_out},
};
use crate::{
    candidates::repair::left,
    costs::CostSums,
    problem::MOST_OFFLOAD_SLOTS,
    space::enumerate::{orders, slots},
};
use spipe_base::StageId;
use spipe_plan::{FEWEST_OFFLOAD_SLOTS, Footprint, InFlight, Knobs, Placement, Stage, footprint, needed};

/// How often it is found out what stages need beside their layers.
const TRIES: usize = 4;

/// Which parts of what a bound lets hosts step they step.
const HOSTED: [f64; 3] = [1.0, 0.75, 0.5];

/// In how many slots activations are on their way.
const SLOTS: [u64; 2] = [FEWEST_OFFLOAD_SLOTS, MOST_OFFLOAD_SLOTS];

/// From what the programs of all GPUs follow.
#[derive(Clone)]
struct Point {
    /// One stage for each device, and the slots.
    plain: Placement,
    /// By stage, for how long hosts step in an iteration, and activations are on their way, in ms.
    hosted: Vec<f64>,
    ways: Vec<f64>,
    /// How many neighbouring layers that are recomputed are one stage at most, which keeps one input.
    length: usize,
}

impl Point {
    /// Those near a hint.
    fn near(costs: &CostSums<'_>, hint: &Hint) -> Vec<Self> {
        let plain = apart(costs, &hint.placement);
        let parts: &[f64] = if costs.host_help { &HOSTED } else { &HOSTED[..1] };
        let with = |part: f64, slots: u64| {
            let offload_slots = Some(slots).filter(|slots| *slots > FEWEST_OFFLOAD_SLOTS);
            Self {
                plain: plain.clone().with_knobs(Knobs { offload_slots, ..plain.knobs }),
                hosted: hint.hosted.iter().map(|hosted| part * hosted).collect(),
                ways: vec![hint.ways * hint.iteration; hint.hosted.len()],
                length: 1,
            }
        };
        parts.iter().flat_map(|part| SLOTS.map(|slots| with(*part, slots))).collect()
    }

    /// The placements that follow and are found to fit, with what is on hosts dealt out or shared out.
    fn placements(&self, costs: &CostSums<'_>) -> Vec<Placement> {
        let mut list: Vec<Placement> = Vec::new();
        for near in self.fitting(costs) {
            // Where less is offloaded than there are slots for, there are fewer of them.
            let most = slots(&costs.context, &near).into_iter().max().flatten();
            let urgent_steps = orders(&near).contains(&true);
            let knobs = Knobs { offload_slots: near.knobs.offload_slots.min(most), urgent_steps, ..near.knobs };
            let near = near.with_knobs(knobs);
            let dealt = dealt_out(&costs.context, &near);
            let shared = shared_out(&costs.context, &near).unwrap_or(near);
            list.extend(dealt.into_iter().chain([shared]));
        }
        list
    }

    fn fitting(&self, costs: &CostSums<'_>) -> Vec<Placement> {
        let context = &costs.context;
        let mut beside = vec![0; self.plain.stages.len()];
        let mut found: Vec<Placement> = Vec::new();
        for _ in 0..TRIES {
            let share = |(id, stage): (StageId, &Stage)| self.share(costs, (id, stage), beside[id.index()]);
            let Some(shares) = self.plain.stages.enumerate().map(share).collect::<Option<Vec<Share>>>() else { break };
            let stages = shares.iter().flat_map(|share| share.stages.iter().copied()).collect();
            let placement = Placement { stages, ..self.plain.clone() };
            let needs = footprint(context, &placement);
            let (mut fits, mut known) = (true, true);
            for ((beside, stage), share) in beside.iter_mut().zip(self.plain.stages.iter()).zip(&shares) {
                let memory = context.hardware.devices()[stage.device].memory;
                let needed = needed(&needs, memory).get();
                fits &= needed <= context.hardware.memories()[memory].usable().get();
                let more = needed as i64 - share.bytes as i64;
                known &= more == *beside;
                *beside = more;
            }
            if fits {
                let filled = filled(costs, placement, &needs);
                if !found.contains(&filled) {
                    found.push(filled);
                }
            }
            if known {
                break;
            }
        }
        found
    }

    /// What a device does; a socket has no choice.
    fn share(&self, costs: &CostSums<'_>, (id, stage): (StageId, &Stage), beside: i64) -> Option<Share> {
        if costs.context.is_cpu(stage.device) {
            return Some(Share { stages: vec![*stage], bytes: 0 });
        }
        let program = Program { costs, plain: &self.plain, id, length: self.length };
        program.share((self.hosted[id.index()], self.ways[id.index()]), beside)
    }
}

/// What is left of the memory of each GPU used to keep what would be computed again, those layers first that take longest.
fn filled(costs: &CostSums<'_>, mut placement: Placement, needs: &Footprint) -> Placement {
    let context = &costs.context;
    let in_flight = |id: StageId, placement: &Placement| {
        InFlight::of(placement, id, costs.microbatches, |device| context.is_cpu(device)).0
    };
    for device in placement.devices().into_iter().filter(|device| !context.is_cpu(*device)) {
        let of_device = &costs.devices[device.index()];
        let Some(mut left) = left(context, needs, device) else { continue };
        let layers = |stage: &Stage| (stage.layers.first().index(), stage.layers.last().index() + 1);
        let may =
            |(from, to): (usize, usize)| of_device.recomputes(true, from, to).is_some_and(|(least, _)| least == 0);
        let again = |(_, stage): &(StageId, &Stage)| {
            stage.device == device && stage.recomputed == 1 && stage.layers.count() == 1 && may(layers(stage))
        };
        let mut again: Vec<StageId> = placement.stages.enumerate().filter(again).map(|(id, _)| id).collect();
        let time = |id: &StageId| of_device.pass(layers(&placement.stages[*id]), false);
        again.sort_by(|one, other| time(other).total_cmp(&time(one)));
        for id in again {
            let more = of_device.leaving(layers(&placement.stages[id]), 0) * in_flight(id, &placement);
            if let Some(less) = left.checked_sub(more) {
                left = less;
                placement.stages[id].recomputed = 0;
            }
        }
    }
    placement
}
