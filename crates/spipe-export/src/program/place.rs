//! Fixed places of parameters, gradients and optimizer state in their memories.
//!
//! ```text
//! address ▲  ┌─────────────── parameters of s0 ───────────────┐   resident
//!         │  ├─ s1 ─┬─ s3 ─┬─ s5 ─┬─ s4 ─┬─ s2 ─┬─ … ─────────┤   one slot,
//!         │  ├──────┴ s2 ──┴ s4 ──┴ s5 ──┴ …                  │   and the other
//!         └──┴────────────────────────────────────────────────┴─► time
//! ```
//!
//! The interpreter allocates each memory once. A buffer that comes and goes has the same place in
//! every iteration. It is found in the order of the earliest starts, which respects every precedence,
//! so that the additional edges (a place is free before it is written again) close no circle.

use spipe_base::{ActionId, BufferId, Bytes, IdVec, LaneId, LaneRole, MemoryId, SimTime};
use spipe_schedule::{Anchor, Content, Lifetime, Program};
use std::collections::{BTreeMap, BTreeSet};

/// The places of the buffers of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The first byte of each buffer in its memory; none for values that the framework allocates.
    pub offsets: IdVec<BufferId, Option<Bytes>>,
    /// The bytes of each memory that have places.
    pub sizes: IdVec<MemoryId, Bytes>,
    /// The last user of a place, its next writer, and whether that is in the next iteration.
    pub edges: Vec<(ActionId, ActionId, u8)>,
}

/// The multiple of all places in drives and in the DRAM beside them: that of direct transfers, for any drive
/// in use.
const BLOCK: u64 = 4096;

/// Whether a buffer has a place: parameters, gradients, state and logs. The framework allocates
/// activations, but for those that pass to and from a drive.
const fn has_place(content: &Content) -> bool {
    matches!(
        content,
        Content::Parameters(_)
            | Content::Updated(_)
            | Content::Gradients(_)
            | Content::OptimizerState(_)
            | Content::Shared(_)
            | Content::SharedGradients(_)
            | Content::UndoLog(_)
    )
}

/// The time for which a buffer is held, without contention.
#[derive(Clone, Debug)]
struct Held {
    buffer: BufferId,
    /// The bytes of its place.
    room: u64,
    from: SimTime,
    to: SimTime,
    writer: ActionId,
    /// The last user on each lane.
    users: Vec<ActionId>,
}

/// A range of addresses and the last buffer that had it.
#[derive(Clone, Copy, Debug)]
struct Strip {
    from: u64,
    to: u64,
    held: usize,
}

/// The places of all buffers of `program` that have one.
pub fn places(program: &Program) -> Places {
    let mut places = Places {
        offsets: program.buffers().iter().map(|_| None).collect(),
        sizes: program.memories().iter().map(|_| Bytes::ZERO).collect(),
        edges: Vec::new(),
    };
    let drives = Drives::of(program);
    let placed = || {
        let all = program.buffers().enumerate();
        all.filter(|(id, buffer)| has_place(&buffer.content) || drives.moved.contains(id))
    };
    for (id, buffer) in placed().filter(|(_, buffer)| buffer.lifetime != Lifetime::Transient) {
        let size = &mut places.sizes[buffer.memory];
        places.offsets[id] = Some(*size);
        *size += Bytes::new(drives.room(program, id));
    }
    let starts = earliest_starts(program);
    for memory in program.memories().ids() {
        let transient = |id: &BufferId| {
            let buffer = &program.buffers()[*id];
            buffer.memory == memory && buffer.lifetime == Lifetime::Transient
        };
        let ids: Vec<BufferId> = placed().map(|(id, _)| id).filter(transient).collect();
        let mut all = held(program, (&starts, &drives), &ids);
        all.sort_by_key(|held| (held.from, held.buffer));
        place((memory, &all), &mut places);
    }
    places
}

/// The earliest start of every action: after what it waits for, and after the action before it on its
/// lane, without contention.
fn earliest_starts(program: &Program) -> IdVec<ActionId, SimTime> {
    let actions = program.actions();
    let mut waits: IdVec<ActionId, usize> = actions.iter().map(|_| 0).collect();
    let mut next: IdVec<ActionId, Option<ActionId>> = actions.iter().map(|_| None).collect();
    for lane in program.lanes() {
        for pair in lane.queue.windows(2) {
            next[pair[0]] = Some(pair[1]);
            waits[pair[1]] += 1;
        }
    }
    for precedence in program.precedences().iter().filter(|one| one.distance == 0) {
        waits[precedence.to] += 1;
    }
    let mut starts: IdVec<ActionId, SimTime> = actions.iter().map(|_| SimTime::ZERO).collect();
    let mut ready: Vec<ActionId> = actions.ids().filter(|id| waits[*id] == 0).collect();
    while let Some(action) = ready.pop() {
        let (start, end) = (starts[action], starts[action] + program.alone(action));
        let mut release = |to: ActionId, at: SimTime| {
            starts[to] = starts[to].max(at);
            waits[to] -= 1;
            if waits[to] == 0 {
                ready.push(to);
            }
        };
        for precedence in &program.precedences()[program.leaving(action)] {
            if precedence.distance == 0 {
                let from = if precedence.anchor == Anchor::EndToStart { end } else { start };
                release(precedence.to, from + precedence.lag);
            }
        }
        if let Some(to) = next[action] {
            release(to, end);
        }
    }
    starts
}

/// The buffers that are copied to and from drives, and the memories of these.
#[derive(Clone, Debug, Default)]
struct Drives {
    moved: BTreeSet<BufferId>,
    memories: BTreeSet<MemoryId>,
}

impl Drives {
    fn of(program: &Program) -> Self {
        let mut drives = Self::default();
        let lanes = program.lanes().iter().filter(|lane| matches!(lane.role, LaneRole::NvmeIn | LaneRole::NvmeOut));
        for action in lanes.flat_map(|lane| &lane.queue) {
            for access in program.accesses(&program.actions()[*action]) {
                drives.moved.insert(access.buffer);
                drives.memories.insert(program.buffers()[access.buffer].memory);
            }
        }
        drives
    }

    /// The bytes of a buffer's place.
    fn room(&self, program: &Program, buffer: BufferId) -> u64 {
        let buffer = &program.buffers()[buffer];
        let bytes = buffer.bytes.get();
        if self.memories.contains(&buffer.memory) { bytes.next_multiple_of(BLOCK) } else { bytes }
    }
}

/// The times for which buffers are held.
fn held(program: &Program, (starts, drives): (&IdVec<ActionId, SimTime>, &Drives), ids: &[BufferId]) -> Vec<Held> {
    let mut users: BTreeMap<BufferId, BTreeMap<LaneId, ActionId>> =
        ids.iter().map(|id| (*id, BTreeMap::new())).collect();
    let mut writers: BTreeMap<BufferId, ActionId> = BTreeMap::new();
    for (lane, queue) in program.lanes().enumerate() {
        for action in &queue.queue {
            let this = &program.actions()[*action];
            for access in program.accesses(this) {
                if let Some(users) = users.get_mut(&access.buffer) {
                    users.insert(lane, *action);
                }
            }
            for write in program.writes(this).iter().filter(|write| write.version == 1) {
                writers.insert(write.buffer, *action);
            }
        }
    }
    let mut all = Vec::new();
    for (buffer, users) in users {
        let Some(writer) = writers.get(&buffer).copied() else { continue };
        let users: Vec<ActionId> = users.into_values().collect();
        let end = |action: &ActionId| starts[*action] + program.alone(*action);
        let to = users.iter().map(end).max().unwrap_or_default();
        let room = drives.room(program, buffer);
        all.push(Held { buffer, room, from: starts[writer], to, writer, users });
    }
    all
}

/// Places the transient buffers of a memory behind its resident ones, and adds the edges.
fn place((memory, all): (MemoryId, &[Held]), places: &mut Places) {
    let base = places.sizes[memory].get();
    let mut strips: Vec<Strip> = Vec::new();
    let mut top = base;
    for (index, held) in all.iter().enumerate() {
        let size = held.room;
        let from = best(&strips, all, (held, size), (base, top));
        places.offsets[held.buffer] = Some(Bytes::new(from));
        top = top.max(from + size);
        let before = paint(&mut strips, Strip { from, to: from + size, held: index });
        let edges = before.iter().flat_map(|old| &all[*old].users).map(|user| (*user, held.writer, 0));
        places.edges.extend(edges);
    }
    places.sizes[memory] = Bytes::new(top);
    // In the next iteration the first buffers find those that were last in this one.
    let first = all.len();
    for (index, held) in all.iter().enumerate() {
        let from = places.offsets[held.buffer].unwrap_or_default().get();
        let to = from + held.room;
        let before = paint(&mut strips, Strip { from, to, held: first + index });
        let old = before.iter().filter(|old| **old < first);
        places.edges.extend(old.flat_map(|old| &all[*old].users).map(|user| (*user, held.writer, 1)));
    }
}

/// The best place for a buffer: the one that grows the memory least and has been free for longest, so
/// that its writer waits for nobody.
fn best(strips: &[Strip], all: &[Held], (held, size): (&Held, u64), (base, top): (u64, u64)) -> u64 {
    let candidates = std::iter::once(base).chain(strips.iter().flat_map(|strip| [strip.from, strip.to]));
    let cost = |from: u64| {
        let over = strips.iter().filter(|strip| strip.from < from + size && from < strip.to);
        let freed = over.map(|strip| all[strip.held].to).max().unwrap_or_default();
        ((from + size).saturating_sub(top), freed, from)
    };
    let free = |(_, freed, _): &(u64, SimTime, u64)| *freed <= held.from;
    candidates.map(cost).filter(free).min().map_or(top, |(_, _, from)| from)
}

/// Gives a range to a buffer; returns those that had parts of it.
fn paint(strips: &mut Vec<Strip>, new: Strip) -> Vec<usize> {
    let mut before = Vec::new();
    let mut left = Vec::new();
    for strip in strips.drain(..) {
        if strip.to <= new.from || new.to <= strip.from {
            left.push(strip);
            continue;
        }
        before.push(strip.held);
        left.extend((strip.from < new.from).then_some(Strip { to: new.from, ..strip }));
        left.extend((new.to < strip.to).then_some(Strip { from: new.to, ..strip }));
    }
    left.push(new);
    *strips = left;
    before.sort_unstable();
    before.dedup();
    before
}
