//! Devices that are equally busy, each with as little recomputed as then fits.

use crate::{
    candidates::repair::{fit, left},
    costs::{CostSums, HostOffload},
    problem::Deadline,
    space::stage_edits::{equal_parts, stepped_on_socket},
};
use spipe_base::{DeviceId, IdVec, LayerRange, StageId};
use spipe_plan::{Placement, Stage, footprint};

/// Into how many parts the layers of a device are cut, so that what is recomputed takes room part by part.
const PARTS: [usize; 3] = [1, 4, 16];

/// How often the longest that a device may be busy is halved.
const HALVINGS: usize = 12;

/// Placements on the GPUs of `plain`, whose stages are each on a device of its own, in its order: with more and more parts, and with and
/// without what hosts can step while GPUs wait for those before them.
pub(crate) fn placements(costs: &CostSums<'_>, plain: &Placement, deadline: &Deadline<'_>) -> Vec<Placement> {
    let context = &costs.context;
    let gpus: Vec<DeviceId> = plain.devices().into_iter().filter(|device| !context.is_cpu(*device)).collect();
    if gpus.len() < 2 || gpus.len() > costs.layers {
        return Vec::new();
    }
    let mut list: Vec<Placement> = Vec::new();
    for parts in PARTS {
        for hosted in [false, true].into_iter().filter(|hosted| !hosted || costs.host_help) {
            let levelled = Levelled { costs, plain, gpus: &gpus, parts, hosted }.best(deadline);
            list.extend(levelled.filter(|placement| !list.contains(placement)));
        }
    }
    list
}

struct Levelled<'s, 'a> {
    costs: &'s CostSums<'a>,
    plain: &'s Placement,
    gpus: &'s [DeviceId],
    parts: usize,
    hosted: bool,
}

/// What a GPU has.
struct Share {
    stages: Vec<Stage>,
    /// For how long a microbatch keeps it busy, and a host steps for it, in ms.
    busy: f64,
    stepped: f64,
}

impl Levelled<'_, '_> {
    /// The one whose busiest device is least busy, of those found in time.
    fn best(&self, deadline: &Deadline<'_>) -> Option<Placement> {
        let (layers, recomputes) = ((0, self.costs.layers), 4.0 / 3.0);
        let all = self.gpus.iter().map(|gpu| self.costs.devices[gpu.index()].pass(layers, true));
        let (mut low, mut high) = (0.0, recomputes * all.fold(0.0, f64::max));
        let mut best = None;
        for _ in (0..HALVINGS).take_while(|_| !deadline.over()) {
            let middle = 0.5 * (low + high);
            match self.within(middle) {
                Some(placement) => (best, high) = (Some(placement), middle),
                None => low = middle,
            }
        }
        best
    }

    /// Each GPU in turn with as many layers as keep it busy for `most` ms per microbatch, if that is all of them.
    fn within(&self, most: f64) -> Option<Placement> {
        let (count, layers) = (self.gpus.len(), self.costs.layers);
        let (mut from, mut stages) = (0, Vec::new());
        // What hosts have stepped, in ms, of what they could while the last of these GPUs waited.
        let mut stepped = 0.0;
        for turn in 0..count {
            let last = turn + 1 == count;
            let (mut end, mut largest) = (if last { layers } else { from + 1 }, layers + turn + 1 - count);
            let free = if self.hosted { turn as f64 * most - stepped } else { 0.0 };
            let with = |end: usize| self.share(turn, (from, end), free).filter(|share| share.busy <= most);
            let mut share = with(end)?;
            while end < largest {
                let middle = (end + largest).div_ceil(2);
                match with(middle) {
                    Some(more) => (share, end) = (more, middle),
                    None => largest = middle - 1,
                }
            }
            from = end;
            stepped += share.stepped;
            stages.extend(share.stages);
        }
        Some(Placement { stages: stages.into_iter().collect(), ..self.plain.clone() })
    }

    /// Layers `from..end` on a GPU, the last ones stepped by a host as far as that takes no more than `free` ms, if they fit.
    fn share(&self, turn: usize, (from, end): (usize, usize), free: f64) -> Option<Share> {
        let (context, gpu) = (&self.costs.context, self.gpus[turn]);
        let device = &self.costs.devices[gpu.index()];
        let layers = |from: usize, end: usize| LayerRange::new(from.into(), end.checked_sub(1)?.into());
        let step = |from: usize| device.stage_times((from, end), 0, HostOffload::STEP).step;
        let split = if free > 0.0 { (from..end).find(|from| step(*from) <= free).unwrap_or(end) } else { end };
        let mut own: Vec<Stage> = Vec::new();
        if split > from {
            own.extend(equal_parts(&Stage::new(gpu, layers(from, split)?), self.parts));
        }
        if split < end {
            let parts = (self.parts * (end - split)).div_ceil(end - from);
            own.extend(equal_parts(&stepped_on_socket(context, &Stage::new(gpu, layers(split, end)?))?, parts));
        }
        let mut placement = Placement { stages: self.among(turn, (from, end), &own)?, ..self.plain.clone() };
        fit(self.costs, &mut placement, gpu);
        left(context, &footprint(context, &placement), gpu).filter(|_| device.able(from, end))?;
        let stages: Vec<Stage> = placement.stages.iter().filter(|stage| stage.device == gpu).copied().collect();
        let busy = |stage: &Stage| {
            let layers = (stage.layers.first().index(), stage.layers.last().index() + 1);
            device.stage_times(layers, stage.recomputed, HostOffload::NONE).busy()
        };
        let busy = stages.iter().map(busy).sum();
        Some(Share { stages, busy, stepped: if split < end { step(split) } else { 0.0 } })
    }

    /// The stages of a GPU, with one before them and one on each GPU behind them, so that they hold as much as among all others.
    fn among(&self, turn: usize, (from, end): (usize, usize), own: &[Stage]) -> Option<IdVec<StageId, Stage>> {
        let layers = |from: usize, end: usize| LayerRange::new(from.into(), end.checked_sub(1)?.into());
        let mut stages: Vec<Stage> = Vec::new();
        if let Some(before) = turn.checked_sub(1) {
            stages.push(Stage::new(self.gpus[before], layers(0, from)?));
        }
        stages.extend_from_slice(own);
        let behind = &self.gpus[turn + 1..];
        for (index, gpu) in behind.iter().enumerate() {
            let to = if index + 1 == behind.len() { self.costs.layers } else { end + index + 1 };
            stages.push(Stage::new(*gpu, layers(end + index, to)?));
        }
        Some(stages.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
        problem::{Options, Problem},
    };
    use spipe_cost::Mode;
    use spipe_plan::{System, check};
    use std::sync::atomic::AtomicBool;

    const GPUS: usize = 3;

    static NEVER: AtomicBool = AtomicBool::new(false);

    /// How many layers each GPU has, and how many of all are recomputed and stepped on the host, in each placement found.
    fn found(memory: u64, host_help: bool) -> Vec<(Vec<usize>, usize, usize)> {
        let layer = LayerText {
            count: 12,
            times: [10, 10, 10],
            slowdown: 9,
            parameters: 8 << 20,
            boundary: 1,
            saved: 32,
            workspace: 0,
        };
        let machine = MachineText { gpus: vec![(memory, 20); GPUS], root: 20, sockets: vec![8000] };
        let instance = Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(6, Mode::Train));
        let context = instance.context();
        let costs = CostSums::new(context, &Options { host_help, ..Options::default() });
        let gpus: Vec<DeviceId> = context.cost.devices().filter(|device| !context.is_cpu(*device)).collect();
        let layers = |from: usize, to: usize| LayerRange::new(from.into(), to.into());
        let stages = [(0, 0), (1, 1), (2, 11)].into_iter().zip(&gpus);
        let stages = stages.filter_map(|((from, to), gpu)| Some(Stage::new(*gpu, layers(from, to)?)));
        let plain = Placement::new(System::OneForwardOneBackward, stages);
        let counts = |placement: Placement| {
            assert!(check(&context, &placement).is_ok(), "{placement:?}");
            let of = |gpu: &DeviceId| {
                let own = placement.stages.iter().filter(|stage| stage.device == *gpu);
                own.map(|stage| stage.layers.count()).sum()
            };
            let hosted = placement.stages.iter().filter(|stage| stage.optimizer.is_some());
            let recomputed = placement.stages.iter().map(|stage| stage.recomputed).sum();
            (gpus.iter().map(of).collect(), recomputed, hosted.map(|stage| stage.layers.count()).sum())
        };
        let score = |_: &Placement| None;
        let (systems, options) = (vec![plain.system], Options::default());
        let problem = Problem { context, systems, options, score: &score, insight: None, stop: &NEVER };
        let deadline = Deadline::new(&problem);
        placements(&costs, &plain, &deadline).into_iter().map(counts).collect()
    }

    /// 128 MiB of state and 33 MiB of activations per layer, of which the first GPU has three microbatches.
    #[test]
    fn equal_gpus_have_as_much_to_do_with_what_fits() {
        let roomy = found(2000, false);
        assert!(!roomy.is_empty() && roomy.iter().all(|one| *one == (vec![4; GPUS], 0, 0)), "{roomy:?}");
        let tight = found(700, false);
        assert!(!tight.is_empty() && tight.iter().all(|(_, recomputed, hosted)| *recomputed > 0 && *hosted == 0));
        let helped = found(700, true);
        assert!(helped.iter().any(|(_, _, hosted)| *hosted > 0), "{helped:?}");
        assert_eq!(found(300, false), []);
    }
}
