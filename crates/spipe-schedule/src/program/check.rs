//! The checker of programs. It reports every fault with its lane, position and action.

use super::{Access, Action, Edge, Flow, Lifetime, Program};
use spipe_base::{ActionId, ActionKind, BufferId, Diagnostic, Faults, IdVec, LayerId, MicrobatchId, SimTime};
use std::collections::{BTreeMap, BTreeSet};

/// Checks that all ids exist and that every version is written once.
pub(super) fn references(program: &Program, edges: &[Edge]) -> Faults {
    let Program { actions, buffers, .. } = program;
    let mut faults = Faults::new();
    let missing = |id: ActionId| id.index() >= actions.len();
    for edge in edges.iter().filter(|edge| missing(edge.from) || missing(edge.to)) {
        faults.push(Diagnostic::error(format!(
            "an edge joins {} and {}, but one of them does not exist",
            edge.from, edge.to
        )));
    }
    let mut written: Vec<Access> = Vec::with_capacity(actions.len());
    for (id, action) in actions.enumerate() {
        for access in program.accesses(action).iter().filter(|access| buffers.get(access.buffer).is_none()) {
            faults.push(Diagnostic::error(format!("{id} uses {}, which does not exist", access.buffer)));
        }
        for write in program.writes(action) {
            if write.version == 0 {
                faults.push(Diagnostic::error(format!(
                    "{id} writes version 0 of {}, which exists from the start",
                    write.buffer
                )));
            } else if buffers.get(write.buffer).is_some() {
                written.push(*write);
            }
        }
        if action.guard.is_some_and(|guard| missing(guard.check)) {
            faults.push(Diagnostic::error(format!("{id} is guarded by a check that does not exist")));
        }
    }
    for twice in repeated(&written, buffers.len()) {
        faults.push(Diagnostic::error(format!("version {} of {} is written twice", twice.version, twice.buffer)));
    }
    faults
}

/// The duplicates among `written`, whose versions are at least 1.
fn repeated(written: &[Access], buffers: usize) -> Vec<Access> {
    let mut from = vec![0usize; buffers + 1];
    for write in written {
        from[write.buffer.index() + 1] += 1;
    }
    for index in 0..buffers {
        from[index + 1] += from[index];
    }
    // If no version is skipped, the largest version equals the number of writes.
    let mut seen = vec![false; written.len()];
    let (mut twice, mut beyond) = (Vec::new(), Vec::new());
    for write in written {
        let start = from[write.buffer.index()];
        let place = start + write.version as usize - 1;
        if place >= from[write.buffer.index() + 1] {
            beyond.push(*write);
        } else if std::mem::replace(&mut seen[place], true) {
            twice.push(*write);
        }
    }
    beyond.sort_unstable();
    twice.extend(beyond.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]));
    twice.sort_unstable();
    twice
}

/// Checks everything else: data is written before it is read, iterations repeat, the arithmetic is
/// complete, and the iteration ends before the clock does.
pub(super) fn program(program: &Program) -> Faults {
    let mut faults = Faults::new();
    reads_are_written(program, &mut faults);
    carries_match(program, &mut faults);
    arithmetic_is_complete(program, &mut faults);
    ends_in_time(program, &mut faults);
    faults
}

/// The longest allowed sum of all actions of an iteration: 100 days. The simulator's clock of 64
/// bits in nanoseconds lasts 584 years, enough for 1,024 iterations of that length, the most that
/// are simulated by default.
const LONGEST: SimTime = SimTime::ns(100 * 24 * 3600 * 1_000_000_000);

/// Checks that the iteration is not longer than [`LONGEST`].
fn ends_in_time(program: &Program, faults: &mut Faults) {
    let slowest = program.channels().iter().map(|channel| channel.bandwidth).min();
    let upper_bound = |action: &Action| {
        let moving = |flow: &Flow| {
            let rate = slowest.into_iter().chain(flow.rate_cap).min();
            flow.bytes.as_f64() * flow.route.len() as f64 / rate.map_or(f64::INFINITY, |rate| rate.get())
        };
        let copies = program.flows(action).iter().map(|flow| flow.latency.to_ms() + moving(flow) * 1e3);
        action.work.to_ms() + copies.sum::<f64>()
    };
    // A cheap upper bound, with all flows over the slowest channel, accepts nearly all programs.
    if program.actions().iter().map(upper_bound).sum::<f64>() < LONGEST.to_ms() {
        return;
    }
    let slow = program.actions().ids().map(|id| (program.alone(id), id)).max();
    let all: SimTime = program.actions().ids().map(|id| program.alone(id)).sum();
    if let Some((longest, id)) = slow.filter(|_| all > LONGEST) {
        let message = format!("{}: takes {longest}, but an iteration may take 100 days at most", at(program, id));
        let hint = "look for a rate that is far too small or a latency that is far too large";
        faults.push(Diagnostic::error(message).hint(hint));
    }
}

/// The lane, position and name of an action.
fn at(program: &Program, id: ActionId) -> String {
    let action = &program.actions()[id];
    let lane = &program.lanes()[action.lane];
    let position = lane.queue.iter().position(|queued| *queued == id).unwrap_or(0);
    format!("`{}` position {position}, {} {}", lane.name, action.kind, action.subject)
}

/// Checks that every version that is read exists.
fn reads_are_written(program: &Program, faults: &mut Faults) {
    // Every version is written once: if the largest equals the count, none is skipped.
    let mut counts: IdVec<BufferId, (u32, u32)> = program.buffers().iter().map(|_| (0, 0)).collect();
    for write in program.actions().iter().flat_map(|action| program.writes(action)) {
        let (count, largest) = &mut counts[write.buffer];
        *count += 1;
        *largest = write.version.max(*largest);
    }
    let is_written = |access: Access| match counts[access.buffer] {
        (count, largest) if count == largest => access.version <= largest,
        _ => program.actions().iter().any(|action| program.writes(action).contains(&access)),
    };
    for (id, action) in program.actions().enumerate() {
        for read in program.reads(action) {
            let buffer = &program.buffers()[read.buffer];
            let exists = if read.version == 0 {
                matches!(buffer.lifetime, Lifetime::Resident | Lifetime::Arrives)
            } else {
                is_written(*read)
            };
            if !exists {
                faults.push(Diagnostic::error(format!(
                    "{}: reads version {} of {} in `{}`, which nothing writes",
                    at(program, id),
                    read.version,
                    buffer.content,
                    program.memories()[buffer.memory].name
                )));
            }
        }
    }
    for (buffer, (_, largest)) in counts.enumerate().filter(|(_, (count, largest))| count != largest) {
        let gap = (1..*largest).find(|version| !is_written(Access::new(buffer, *version)));
        if let Some(gap) = gap {
            let content = program.buffers()[buffer].content;
            faults.push(Diagnostic::error(format!("version {gap} of {content} is skipped: later ones are written")));
        }
    }
}

/// Checks that every [`Lifetime::Arrives`] buffer is the successor of one [`Lifetime::Leaves`]
/// buffer.
fn carries_match(program: &Program, faults: &mut Faults) {
    let mut filled: BTreeMap<BufferId, BufferId> = BTreeMap::new();
    for (id, buffer) in program.buffers().enumerate() {
        let Lifetime::Leaves { into } = buffer.lifetime else { continue };
        let fits = program.buffers().get(into).is_some_and(|next| {
            next.lifetime == Lifetime::Arrives && next.memory == buffer.memory && next.bytes == buffer.bytes
        });
        if !fits {
            faults.push(Diagnostic::error(format!(
                "{} leaves into {into}, which is no arriving buffer of the same memory and size",
                buffer.content
            )));
        } else if let Some(other) = filled.insert(into, id) {
            faults.push(Diagnostic::error(format!("{other} and {id} both leave into {into}")));
        }
    }
    for (id, buffer) in program.buffers().enumerate() {
        if buffer.lifetime == Lifetime::Arrives && !filled.contains_key(&id) {
            faults.push(Diagnostic::error(format!(
                "{} arrives at the start of an iteration, but nothing leaves into it",
                buffer.content
            )));
        }
    }
}

/// Checks that each layer and microbatch has one forward, and one backward if it needs one: fused,
/// or one part each for input and weights.
fn arithmetic_is_complete(program: &Program, faults: &mut Faults) {
    let shape = program.shape();
    let microbatches = shape.microbatches as usize;
    let mut counts = vec![Counts::default(); shape.layers * microbatches];
    let mut strangers: BTreeSet<(LayerId, MicrobatchId)> = BTreeSet::new();
    for (id, action) in program.actions().enumerate().filter(|(_, action)| action.kind.is_compute()) {
        let (Some(stage), Some(microbatch)) = (action.subject.stage, action.subject.microbatch) else {
            faults.push(Diagnostic::error(format!("{}: has no stage or no microbatch", at(program, id))));
            continue;
        };
        let Some(stage) = program.stages().get(stage) else {
            faults.push(Diagnostic::error(format!("{}: its stage does not exist", at(program, id))));
            continue;
        };
        let layers = action.subject.layers.unwrap_or(stage.layers);
        for layer in layers.iter() {
            if layer.index() < shape.layers && microbatch.index() < microbatches {
                counts[layer.index() * microbatches + microbatch.index()].add(action.kind);
            } else {
                strangers.insert((layer, microbatch));
            }
        }
    }
    for (index, count) in counts.iter().enumerate() {
        let (layer, microbatch) = (LayerId::from(index / microbatches), MicrobatchId::from(index % microbatches));
        if let Some(fault) = count.fault(shape.training && layer.index() >= shape.without_backward) {
            faults.push(Diagnostic::error(format!("layer {layer}, microbatch {microbatch}: {fault}")));
        }
    }
    for (layer, microbatch) in strangers {
        faults.push(Diagnostic::error(format!(
            "layer {layer}, microbatch {microbatch}: does not belong to the iteration"
        )));
    }
}

#[derive(Clone, Copy, Default)]
struct Counts {
    forward: u32,
    backward: u32,
    input: u32,
    weight: u32,
}

impl Counts {
    fn add(&mut self, kind: ActionKind) {
        match kind {
            ActionKind::Forward => self.forward += 1,
            ActionKind::Backward => self.backward += 1,
            ActionKind::BackwardInput => self.input += 1,
            ActionKind::BackwardWeight => self.weight += 1,
            _ => {}
        }
    }

    fn fault(&self, training: bool) -> Option<String> {
        let backwards = (self.backward, self.input, self.weight);
        let wanted = if training { matches!(backwards, (1, 0, 0) | (0, 1, 1)) } else { backwards == (0, 0, 0) };
        if self.forward != 1 {
            Some(format!("has {} forwards", self.forward))
        } else if !wanted {
            let (fused, input, weight) = backwards;
            Some(format!("has {fused} backwards, {input} backward-inputs and {weight} backward-weights"))
        } else {
            None
        }
    }
}
