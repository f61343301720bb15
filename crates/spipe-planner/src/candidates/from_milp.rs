//! Candidates from the assignment program with whole layers: how many layers of each run are
//! streamed or kept; saved, recomputed or offloaded; and updated on the device or the host, with
//! several stages per device.
//!
//! The program counts the memory of layers, and not the further memory of stages. A placement's
//! shortage is left free in the next solve.

use crate::{
    candidates::{residency, streamed},
    costs::CostSums,
    formulation::assignment::{
        IntegralOutcome, LayerCounts, Share, SolveLimits, integral::counts, one_class_per_position,
    },
    hosts::{gpus, shared_out},
    problem::{Deadline, MOST_OFFLOAD_SLOTS, bound::Bound, budget},
    space::{
        enumerate::slots,
        rules::{Streaming, SystemRules, SystemSpec, Warmup},
    },
};
use rayon::prelude::*;
use spipe_base::{DeviceId, LayerRange, StageId};
use spipe_plan::{
    Activations, Context, Dealing, FEWEST_OFFLOAD_SLOTS, Knob, Placement, Stage, System, footprint, needed,
};
use std::time::Duration;

/// Limit on solves per placement: each leaves free what the last one lacked.
const TRIES: usize = 4;

/// Limits on the layers of a stage, with the number of slots for offloaded activations.
const SHORT: [(usize, u64); 3] = [(1, FEWEST_OFFLOAD_SLOTS), (1, MOST_OFFLOAD_SLOTS), (4, FEWEST_OFFLOAD_SLOTS)];

/// Solves the program with the given bytes left free on each device.
type Solve<'s> = dyn Fn(&[u64]) -> Option<LayerCounts> + Sync + 's;

/// Builds a placement from an assignment.
type Build<'b> = Box<dyn Fn(&LayerCounts) -> Option<Placement> + Sync + 'b>;

/// Results of a system's programs.
pub(crate) struct Counted {
    /// Placements that fit.
    pub placements: Vec<Placement>,
    /// Lower bound of all placements of the system.
    pub least: Bound,
    /// Whether some program stopped before its bound was final.
    pub open: bool,
}

/// Returns the placements that the programs of `system` yield, if any may take less than `most` ms.
/// The programs share the time that `deadline` leaves, each limited to a part of it. Empty for
/// systems without such choices.
pub(crate) fn placements(costs: &CostSums<'_>, system: System, (most, deadline): (f64, &Deadline<'_>)) -> Counted {
    let rules_of_each = SystemRules::in_problem(costs, system).into_iter();
    let built: Vec<_> = rules_of_each.map(|rules| (rules, builds(costs, (system, rules)))).collect();
    if built.iter().all(|(_, builds)| builds.is_empty()) {
        return Counted { placements: Vec::new(), least: Bound::NONE, open: true };
    }
    let solve = |rules: &SystemRules, free: &[u64]| {
        let until = deadline.at_most(budget::share(deadline.limit(), budget::COUNTED_PROGRAM));
        let counts = counts(costs, rules, SolveLimits { free, most, time: until.left() });
        // A solution found by the time limit depends on the machine, so the result counts as
        // truncated.
        until.poll();
        counts
    };
    let mut all = Counted { placements: Vec::new(), least: Bound::Infeasible, open: false };
    // All bounds come first, then the placements.
    let first: Vec<IntegralOutcome> =
        built.iter().map(|(rules, _)| solve(rules, &vec![0; costs.devices.len()])).collect();
    for ((rules, builds), first) in built.iter().zip(first) {
        match first {
            IntegralOutcome::Found { counts, least, closed } => {
                all.open |= !closed;
                let again = |free: &[u64]| if deadline.over() { None } else { solve(rules, free).counts() };
                let fitted = |build: &Build<'_>| fitted(costs, &counts, &again, build);
                all.placements.extend(builds.par_iter().filter_map(fitted).collect::<Vec<_>>());
                all.least = all.least.min(least);
            }
            IntegralOutcome::Never => all.least = all.least.min(Bound::of_limit(most)),
            IntegralOutcome::Open { least } => (all.least, all.open) = (all.least.min(least), true),
        }
    }
    all
}

/// Returns a lower bound of all placements of `system`, found within `time` by the
/// relaxation [`one_class_per_position`].
pub(crate) fn least(costs: &CostSums<'_>, system: System, (most, time): (f64, Duration)) -> Bound {
    let limits = SolveLimits { free: &[], most, time };
    let rules_of_each = SystemRules::in_problem(costs, system).into_iter();
    rules_of_each.map(|rules| one_class_per_position(costs, &rules, limits)).reduce(Bound::min).unwrap_or(Bound::NONE)
}

/// Returns the functions that build placements of `system` from an assignment.
fn builds<'b>(costs: &'b CostSums<'_>, (system, rules): (System, SystemRules)) -> Vec<Build<'b>> {
    let chain = system.is_pipeline() && system.dealing() == Dealing::Single;
    if let Some(turn) = rules.turn.filter(|_| chain) {
        let head_start = if let Warmup::OneFOneB(ahead) = turn { ahead } else { 0 };
        let short = |(most, wanted): (usize, u64)| -> Build<'b> {
            let offload_slots = Some(wanted).filter(|wanted| *wanted > FEWEST_OFFLOAD_SLOTS);
            Box::new(move |counts| {
                let placement = chained(costs, (system, most), counts)?.with(Knob::HeadStart, head_start);
                let placement = placement.with_option(Knob::OffloadSlots, offload_slots);
                slots(&costs.context, &placement).contains(&offload_slots).then_some(placement)
            })
        };
        SHORT.into_iter().map(short).collect()
    } else if SystemSpec::of(system).streaming == Some(Streaming::Mixed) {
        let shapes = streamed::shapes(&costs.context, &gpus(&costs.context)).into_iter();
        shapes
            .map(|(gpus, pieces)| -> Build<'b> { Box::new(move |counts| dealt(costs, (&gpus, &pieces), counts)) })
            .collect()
    } else {
        Vec::new()
    }
}

/// Builds a placement from `first`, and solves again with the shortage left free until it fits.
fn fitted(costs: &CostSums<'_>, first: &LayerCounts, solve: &Solve<'_>, build: &Build<'_>) -> Option<Placement> {
    let mut free = vec![0; costs.devices.len()];
    // The program treats all hosts as one.
    let build = |counts: &LayerCounts| {
        let near = build(counts)?;
        Some(shared_out(&costs.context, &near).unwrap_or(near))
    };
    let mut placement = build(first)?;
    for tried in 1..=TRIES {
        let lacking = lacking(&costs.context, &placement);
        if lacking.iter().all(|bytes| *bytes == 0) {
            return Some(placement);
        }
        if tried < TRIES {
            free.iter_mut().zip(lacking).for_each(|(free, lacking)| *free += lacking);
            placement = build(&solve(&free)?)?;
        }
    }
    None
}

/// Returns the shortage of each device's memory, in bytes.
fn lacking(context: &Context<'_>, placement: &Placement) -> Vec<u64> {
    let needs = footprint(context, placement);
    let lacks = |device: DeviceId| {
        let id = context.hardware.devices()[device].memory;
        needed(&needs, id).saturating_sub(context.hardware.memories()[id].usable()).get()
    };
    context.cost.devices().map(lacks).collect()
}

/// Returns the choice of each layer, in order. Within a run, layers are kept before streamed, updated
/// on the device before the host, and recomputed first, since the first layers wait longest for their
/// backward.
///
/// The backward ends with the first layers, whose steps on a socket nothing hides.
fn of_layers(counts: &LayerCounts) -> Vec<&Share> {
    let mut shares: Vec<&Share> = counts.shares.iter().collect();
    let leaving = |kept: Activations| match kept {
        Activations::Recomputed => 0,
        Activations::Offloaded => 1,
        Activations::Saved => 2,
    };
    shares.sort_by_key(|share| (share.run, share.place, share.streams, share.steps_on_host, leaving(share.kept)));
    shares.into_iter().flat_map(|share| std::iter::repeat_n(share, share.layers)).collect()
}

/// Returns the stages of `pieces` on `gpus`, round robin; a stage is kept if at least half of its
/// layers are.
fn dealt(
    costs: &CostSums<'_>,
    (gpus, pieces): (&[DeviceId], &[LayerRange]),
    counts: &LayerCounts,
) -> Option<Placement> {
    let mut placement = streamed::superpipeline(&costs.context, (gpus, pieces), false)?;
    let choices = of_layers(counts);
    let chosen = |stage: &Stage, choice: &dyn Fn(&Share) -> bool| {
        stage.layers.iter().filter_map(|layer| choices.get(layer.index())).filter(|share| choice(share)).count()
    };
    let most_stay = |stage: &Stage| 2 * chosen(stage, &|share| !share.streams) >= stage.layers.count();
    let ends = residency::ends(&costs.context, &placement);
    let ends_stay = ends.iter().all(|end| most_stay(&placement.stages[*end]));
    let stay = |(id, stage): &(StageId, &Stage)| most_stay(stage) && (ends_stay || !ends.contains(id));
    let staying: Vec<StageId> = placement.stages.enumerate().filter(stay).map(|(id, _)| id).collect();
    for stage in placement.stages.iter_mut() {
        let recomputed = chosen(stage, &|share| share.kept == Activations::Recomputed && costs.training);
        *stage = stage.with_recomputed(recomputed);
    }
    residency::keep(&mut placement, &staying);
    Some(placement)
}

/// Returns stages of at most `most` layers with equal choices, along the chain of devices.
fn chained(costs: &CostSums<'_>, (system, most): (System, usize), counts: &LayerCounts) -> Option<Placement> {
    let choices = of_layers(counts);
    let mut unused: Vec<std::slice::Iter<'_, usize>> = counts.classes.iter().map(|class| class.iter()).collect();
    let mut stages: Vec<Stage> = Vec::new();
    let mut last: Option<&Share> = None;
    for (layer, share) in choices.into_iter().enumerate() {
        let same_device = last.is_some_and(|last| (last.class, last.place) == (share.class, share.place));
        let device = match stages.last().filter(|_| same_device) {
            Some(stage) => stage.lead(),
            None => (*unused[share.class].next()?).into(),
        };
        let alike = last.is_some_and(|last| last.steps_on_host == share.steps_on_host && last.kept == share.kept);
        let grows = stages.last().filter(|stage| same_device && alike && stage.layers.count() < most);
        let first = grows.map_or(layer.into(), |stage| stage.layers.first());
        let stage = Stage::new(device, LayerRange::new(first, layer.into())?);
        let host = costs.devices[device.index()].hosts().next();
        let chosen = Stage {
            optimizer: host.filter(|_| share.steps_on_host).map(|host| host.socket),
            offload: host.filter(|_| share.kept == Activations::Offloaded).map(|host| host.memory),
            ..stage
        };
        let again = share.kept == Activations::Recomputed && costs.training;
        let chosen = if again { chosen.with_everything_recomputed() } else { chosen };
        if grows.is_some() {
            stages.pop();
        }
        stages.push(chosen);
        last = Some(share);
    }
    Some(Placement::new(system, stages))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
        problem::{Options, Problem},
    };
    use spipe_base::SimTime;
    use spipe_cost::Mode;
    use spipe_plan::{Weights, check};
    use std::{collections::BTreeSet, sync::atomic::AtomicBool};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn of_machine(gpus: Vec<(u64, u32)>, system: System) -> Vec<Placement> {
        // 128 MiB of state and 32 MiB of activations per layer.
        let equal = LayerText {
            count: 8,
            times: [1, 2, 0],
            slowdown: 9,
            parameters: 8 << 20,
            boundary: 1,
            saved: 32,
            workspace: 0,
        };
        let machine = MachineText { gpus, root: 20, sockets: vec![8000] };
        let instance = Instance::new(&model_text(&[equal]), &machine_text(&machine), &workload(4, Mode::Train));
        let context = instance.context();
        let score = |_: &Placement| Some(SimTime::ms(1));
        let problem =
            Problem { context, systems: vec![system], options: Options::default(), evaluator: &score, stop: &NEVER };
        let costs = CostSums::new(context, &problem.options);
        let Counted { placements: list, least, .. } =
            placements(&costs, system, (f64::INFINITY, &Deadline::new(&problem)));
        assert!(least > 0.0 && list.iter().all(|placement| check(&context, placement).is_ok()), "{least:?} {list:?}");
        list
    }

    /// Streamed layers are updated on the host, which takes longer than recompute.
    #[test]
    fn as_much_is_kept_as_fits_beside_the_rest() {
        let kept = |memory: u64| {
            let list = of_machine(vec![(memory, 20)], System::Superpipeline);
            let resident = |stage: &&Stage| matches!(stage.weights, Weights::Resident);
            list.iter().map(|placement| placement.stages.iter().filter(resident).count()).max()
        };
        let all: Vec<Option<usize>> = [400, 800, 1200, 2400].into_iter().map(kept).collect();
        assert!(all.is_sorted() && all[0] < all[3] && all[3] > Some(4), "{all:?}");
    }

    #[test]
    fn each_device_has_its_place_in_a_chain() {
        for memory in [500, 700, 900] {
            for system in [System::OneForwardOneBackward, System::Gpipe] {
                let list = of_machine(vec![(memory, 20), (memory, 20)], system);
                assert!(!list.is_empty(), "{memory} {system}");
                for placement in list {
                    let devices: Vec<DeviceId> = placement.stages.iter().map(|stage| stage.lead()).collect();
                    let changes = devices.windows(2).filter(|pair| pair[0] != pair[1]).count();
                    let different: BTreeSet<DeviceId> = devices.iter().copied().collect();
                    assert_eq!(changes + 1, different.len(), "{placement:?}");
                }
            }
        }
    }
}
