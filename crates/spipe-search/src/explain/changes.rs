//! Changes that are tried on a plan or its machine.

use super::{
    machines::{self, LinkKind, MORE_MEMORY},
    trial::{Again, Explained},
};
use crate::{
    request::{pins, spelling::Spelling},
    search::found::Found,
};
use spipe_base::{LayerRange, SimTime, StageId, readable::percent};
use spipe_cost::Workload;
use spipe_hardware::MemoryKind;
use spipe_plan::{Placement, Plan, Stage};
use spipe_trace::TriedChange;
use std::sync::Arc;

/// The least gain of a change that is worth a word.
const LEAST: f64 = 0.01;

/// The most changes that are reported.
const MOST: usize = 3;

/// The most memories that are enlarged one by one.
const MOST_MEMORIES: usize = 6;

/// A change with the plan that it leads to.
pub struct Tried {
    /// The change, with its gain.
    pub change: TriedChange,
    /// The plan.
    pub plan: Plan,
}

/// The changes that help most, the best first; none that gain less than one percent over planning
/// the same again.
pub fn changes(explained: &Explained<'_>) -> Vec<Tried> {
    let again = explained.again(explained.same());
    let base = again.as_ref().map_or(explained.iteration, |found| found.solution.simulated.min(explained.iteration));
    let mut all = Vec::new();
    // Its own gain counts against the plan, that of all others against the better of the two.
    push(&mut all, explained, explained.iteration, ("the same, planned again".into(), again));
    for (words, found) in machines_tried(explained).into_iter().chain(workloads_tried(explained)) {
        push(&mut all, explained, base, (words, found));
    }
    push(&mut all, explained, base, optimizer_moved(explained));
    all.extend(boundaries_moved(explained, base));
    all.sort_by(|one, other| one.change.iteration_ms.total_cmp(&other.change.iteration_ms));
    all.truncate(MOST);
    all
}

fn push(all: &mut Vec<Tried>, explained: &Explained<'_>, base: SimTime, (words, found): (String, Option<Found>)) {
    if let Some(found) = found {
        all.extend(tried(explained, base, (words, found.solution.simulated, found.plan)));
    }
}

/// A change, if it gains enough over `base`.
fn tried(explained: &Explained<'_>, base: SimTime, (change, time, plan): (String, SimTime, Plan)) -> Option<Tried> {
    let helps = time.to_ms() <= (1.0 - LEAST) * base.to_ms();
    let gain = 1.0 - time.to_ms() / explained.iteration.to_ms().max(f64::MIN_POSITIVE);
    helps.then(|| Tried { change: TriedChange { change, iteration_ms: time.to_ms(), gain, replay: None }, plan })
}

/// The next generation of links, and more of each memory.
fn machines_tried(explained: &Explained<'_>) -> Vec<(String, Option<Found>)> {
    let hardware = explained.hardware();
    let links = [
        (LinkKind::Host, "the next generation of the links between GPUs and host: twice the bandwidth"),
        (LinkKind::Peer, "the next generation of the links between GPUs: twice the bandwidth"),
    ];
    let mut machines: Vec<(String, _)> =
        links.into_iter().map(|(kind, words)| (words.to_owned(), machines::next_generation(hardware, kind))).collect();
    let memories: Vec<_> =
        hardware.memories().enumerate().filter(|(_, memory)| memory.pageable_view_of.is_none()).collect();
    if memories.len() <= MOST_MEMORIES {
        machines.extend(memories.iter().map(|(id, memory)| {
            (format!("{} more of `{}`", percent(MORE_MEMORY), memory.name), machines::larger(hardware, *id))
        }));
    } else {
        for (kind, words) in [(MemoryKind::Gpu, "the memory of every GPU"), (MemoryKind::Dram, "every DRAM")] {
            let mut of = memories.iter().filter(|(_, memory)| memory.kind == kind);
            let larger = of.try_fold(hardware.as_ref().clone(), |machine, (id, _)| machines::larger(&machine, *id));
            machines.push((format!("{} more of {words}", percent(MORE_MEMORY)), larger));
        }
    }
    let search = |(words, machine): (String, Option<_>)| {
        let again = |hardware| explained.again(Again { hardware: Arc::new(hardware), ..explained.same() });
        let found = machine.and_then(again);
        (words, found)
    };
    machines.into_iter().map(search).collect()
}

/// The next smaller and the next larger size of microbatches that divides the batch.
fn workloads_tried(explained: &Explained<'_>) -> Vec<(String, Option<Found>)> {
    let workload = explained.workload();
    let batch = workload.global_batch();
    let divides = |size: &u64| batch.is_multiple_of(*size);
    let smaller = (1..workload.microbatch).rev().find(divides);
    let larger = (workload.microbatch + 1..=batch).find(divides);
    let search = |size: u64| {
        let workload = Workload { microbatch: size, microbatches: batch / size, ..workload };
        let words = format!("microbatches of {size} instead of {}", explained.workload().microbatch);
        (words, explained.again(Again { workload, ..explained.same() }))
    };
    smaller.into_iter().chain(larger).map(search).collect()
}

/// The optimizer on the other device: on sockets if any stage steps on its own device, otherwise on
/// the devices of the stages.
fn optimizer_moved(explained: &Explained<'_>) -> (String, Option<Found>) {
    let (context, placement) = (explained.plan.context(), explained.placement());
    let own = placement.all_stages().any(|stage| !context.is_cpu(stage.lead()) && context.steps(stage) == stage.lead());
    let (word, what) = if own { ("cpu", "the optimizer on the CPU") } else { ("gpu", "the optimizer on the GPU") };
    let last = context.model.layers().len().saturating_sub(1);
    let pin = vec![format!("optimizer=0..{last}:{word}")];
    let whose = (context.model, context.hardware, context.workload().mode);
    let system = placement.system.name();
    let words = pins::Words { pins: &pin, system, microbatch: "auto" };
    let pinned = pins::read(None, words, whose, Spelling::default()).ok().map(|pinned| pinned.pins);
    let again = |pins| explained.again(Again { pins, start: None, ..explained.same() });
    (what.into(), pinned.and_then(again))
}

/// Each boundary between stages one layer earlier and one later; of other devices' choices only the
/// recompute follows the layers.
fn boundaries_moved(explained: &Explained<'_>, base: SimTime) -> Vec<Tried> {
    let placement = explained.placement();
    if placement.shards_parameters() || !placement.backward.is_empty() {
        return Vec::new();
    }
    let mut all = Vec::new();
    for behind in placement.stages.ids().skip(1) {
        for (later, words) in [(false, "earlier"), (true, "later")] {
            let Some(moved) = moved(placement, behind, later) else { continue };
            let Some(time) = explained.time(&moved) else { continue };
            let before = StageId::from(behind.index() - 1);
            let change = format!("the boundary between {before} and {behind} one layer {words}");
            let context = explained.plan.context();
            let plan = Plan::new(context.model.clone(), context.hardware.clone(), context.cost.whole_workload(), moved);
            all.extend(plan.ok().and_then(|plan| tried(explained, base, (change, time, plan))));
        }
    }
    all
}

/// The placement with the boundary in front of `behind` moved by one layer; `None` where a stage
/// would lose its last one.
fn moved(placement: &Placement, behind: StageId, later: bool) -> Option<Placement> {
    let before = StageId::from(behind.index() - 1);
    let shift = |index: usize| if later { Some(index + 1) } else { index.checked_sub(1) };
    let (one, other) = (placement.stages[before], placement.stages[behind]);
    let first = LayerRange::new(one.layers.first(), shift(one.layers.last().index())?.into())?;
    let second = LayerRange::new(shift(other.layers.first().index())?.into(), other.layers.last())?;
    let resized = |stage: Stage, layers: LayerRange| {
        let all = stage.recomputed == stage.layers.count();
        let recomputed = if all { layers.count() } else { stage.recomputed.min(layers.count()) };
        Stage { layers, recomputed, ..stage }
    };
    let mut moved = placement.clone();
    moved.stages[before] = resized(one, first);
    moved.stages[behind] = resized(other, second);
    Some(moved)
}
