//! The memory ledger: bytes as the plan counts them, and as they are held.

use crate::{actions::store::Instance, runtime::program_index::ProgramIndex};
use spipe_base::{BufferId, Bytes, IdVec, MemoryId, SimTime};
use spipe_schedule::Lifetime;
use spipe_trace::{Holder, MemoryTrack, Sample};
use std::collections::{BTreeMap, VecDeque};

/// Tolerance of the capacity check: the bytes that graphs hold are an estimate, which may be off by
/// this share of the capacity.
const OFF: f64 = 0.02;

/// Bytes by memory and buffer.
#[derive(Debug)]
pub(crate) struct MemoryLedger {
    /// By the program's own figures, which actions wait for.
    planned: IdVec<MemoryId, Bytes>,
    planned_peak: IdVec<MemoryId, Bytes>,
    /// Really held.
    held: IdVec<MemoryId, Bytes>,
    held_peak: IdVec<MemoryId, Bytes>,
    /// The peak since the last call of [`Self::take_recent_peaks`].
    recent_peak: IdVec<MemoryId, Bytes>,
    instances: BTreeMap<Instance, Bytes>,
    open: BTreeMap<Instance, u32>,
    /// Sizes before the first event, and the events since.
    base: BTreeMap<Instance, Bytes>,
    events: VecDeque<Event>,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: SimTime,
    instance: Instance,
    bytes: Bytes,
}

impl MemoryLedger {
    /// Resident buffers count in full as planned, and as held once they are filled.
    pub fn new(program_index: &ProgramIndex<'_>) -> Self {
        let zero = || program_index.program.memories().iter().map(|_| Bytes::ZERO).collect::<IdVec<MemoryId, Bytes>>();
        Self {
            planned: program_index.resident.clone(),
            planned_peak: program_index.resident.clone(),
            held: zero(),
            held_peak: zero(),
            recent_peak: zero(),
            instances: BTreeMap::new(),
            open: program_index.arriving_first().map(|(buffer, users)| ((buffer, 0), users)).collect(),
            base: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }

    /// Bytes free in a memory by the program's figures.
    pub fn free(&self, program_index: &ProgramIndex<'_>, memory: MemoryId) -> Bytes {
        program_index.capacity(memory).saturating_sub(self.planned[memory])
    }

    /// Opens a buffer. It counts as planned until [`Self::hold`] reports its real size.
    pub fn acquire(&mut self, program_index: &ProgramIndex<'_>, at: SimTime, instance: Instance) {
        let buffer = &program_index.program.buffers()[instance.0];
        self.planned[buffer.memory] += buffer.bytes;
        self.planned_peak[buffer.memory] = self.planned_peak[buffer.memory].max(self.planned[buffer.memory]);
        self.open.insert(instance, program_index.users[instance.0]);
        self.hold(program_index, at, instance, buffer.bytes);
    }

    /// Records that one user of a buffer is done; true if it was the last, and the buffer is free.
    pub fn release(&mut self, program_index: &ProgramIndex<'_>, at: SimTime, instance: Instance) -> bool {
        let Some(left) = self.open.get_mut(&instance) else { return false };
        *left -= 1;
        if *left > 0 {
            return false;
        }
        self.open.remove(&instance);
        let buffer = &program_index.program.buffers()[instance.0];
        self.planned[buffer.memory] -= buffer.bytes;
        self.hold(program_index, at, instance, Bytes::ZERO);
        true
    }

    /// Records that a buffer has `bytes` from now on.
    pub fn hold(&mut self, program_index: &ProgramIndex<'_>, at: SimTime, instance: Instance, bytes: Bytes) {
        let memory = program_index.program.buffers()[instance.0].memory;
        let before = set(&mut self.instances, instance, bytes);
        if before == bytes {
            return;
        }
        self.held[memory] = self.held[memory] + bytes - before;
        self.held_peak[memory] = self.held_peak[memory].max(self.held[memory]);
        self.recent_peak[memory] = self.recent_peak[memory].max(self.held[memory]);
        // A thread may have read the clock before another one that took the lock first; events are
        // kept in the order of the lock.
        let at = self.events.back().map_or(at, |last| last.at.max(at));
        self.events.push_back(Event { at, instance, bytes });
    }

    /// The first memory that holds more than its capacity, and the bytes it holds. Exceeding by a
    /// share of at most [`OFF`] is tolerated.
    pub fn exceeded(&self, program_index: &ProgramIndex<'_>) -> Option<(MemoryId, Bytes)> {
        self.held
            .enumerate()
            .map(|(memory, held)| (memory, *held))
            .find(|(memory, held)| held.as_f64() > program_index.capacity(*memory).as_f64() * (1.0 + OFF))
    }

    /// The peaks since the last call, by name of memory.
    pub fn take_recent_peaks(&mut self, program_index: &ProgramIndex<'_>) -> BTreeMap<String, Bytes> {
        let peaks =
            program_index.program.memories().enumerate().map(|(id, space)| (space.name.clone(), self.recent_peak[id]));
        let peaks = peaks.filter(|(_, peak)| *peak > Bytes::ZERO).collect();
        self.recent_peak = self.held.clone();
        peaks
    }

    /// The planned and the held peak of a memory over the whole run.
    pub fn peaks(&self, memory: MemoryId) -> (Bytes, Bytes) {
        (self.planned_peak[memory], self.held_peak[memory])
    }

    /// The contents that hold `memory` by the program's figures, largest first.
    pub fn holders(&self, program_index: &ProgramIndex<'_>, memory: MemoryId) -> Vec<Holder> {
        let buffers = program_index.program.buffers();
        let resident =
            buffers.enumerate().filter(|(_, buffer)| buffer.lifetime == Lifetime::Resident).map(|(id, _)| id);
        let open = self.open.keys().map(|(buffer, _)| *buffer);
        let here = resident.chain(open).filter(|id| buffers[*id].memory == memory);
        holders(program_index, here.map(|id| (id, buffers[id].bytes)))
    }

    /// Forgets the events before `at`; sizes at that time are kept.
    pub fn forget_before(&mut self, at: SimTime) {
        while let Some(event) = self.events.front().filter(|event| event.at < at).copied() {
            set(&mut self.base, event.instance, event.bytes);
            self.events.pop_front();
        }
    }

    /// Tracks of all memories from `start` to `end`, with times relative to `start`.
    pub fn tracks(&self, program_index: &ProgramIndex<'_>, start: SimTime, end: SimTime) -> Vec<MemoryTrack> {
        program_index
            .program
            .memories()
            .ids()
            .filter_map(|memory| self.track(program_index, memory, (start, end)))
            .collect()
    }

    /// The track of one memory; none if it never held anything.
    fn track(
        &self,
        program_index: &ProgramIndex<'_>,
        memory: MemoryId,
        (start, end): (SimTime, SimTime),
    ) -> Option<MemoryTrack> {
        let here = |instance: &Instance| program_index.program.buffers()[instance.0].memory == memory;
        let mut now: BTreeMap<Instance, Bytes> = self
            .base
            .iter()
            .filter(|(instance, _)| here(instance))
            .map(|(instance, bytes)| (*instance, *bytes))
            .collect();
        let mut events = self.events.iter().filter(|event| here(&event.instance) && event.at <= end).peekable();
        while let Some(event) = events.next_if(|event| event.at < start) {
            set(&mut now, event.instance, event.bytes);
        }
        let mut total: Bytes = now.values().copied().sum();
        let mut samples = vec![Sample { at: SimTime::ZERO, bytes: total }];
        let (mut peak, mut at_peak) = (total, now.clone());
        for event in events {
            total = total + event.bytes - set(&mut now, event.instance, event.bytes);
            let at = event.at - start;
            match samples.last_mut().filter(|last| last.at == at) {
                Some(last) => last.bytes = total,
                None => samples.push(Sample { at, bytes: total }),
            }
            if total > peak {
                (peak, at_peak) = (total, now.clone());
            }
        }
        if peak == Bytes::ZERO {
            return None;
        }
        let space = &program_index.program.memories()[memory];
        Some(MemoryTrack {
            name: space.name.clone(),
            capacity: space.capacity,
            peak,
            holders: holders(program_index, at_peak.into_iter().map(|((buffer, _), bytes)| (buffer, bytes))),
            samples,
        })
    }
}

/// Sets the size of an instance and returns the one before. Zero is stored as no entry.
fn set(instances: &mut BTreeMap<Instance, Bytes>, instance: Instance, bytes: Bytes) -> Bytes {
    let before = if bytes == Bytes::ZERO { instances.remove(&instance) } else { instances.insert(instance, bytes) };
    before.unwrap_or(Bytes::ZERO)
}

/// Buffers grouped by content, largest group first.
fn holders(program_index: &ProgramIndex<'_>, buffers: impl Iterator<Item = (BufferId, Bytes)>) -> Vec<Holder> {
    let mut groups: BTreeMap<String, (Bytes, usize)> = BTreeMap::new();
    for (id, bytes) in buffers {
        let content = program_index.program.buffers()[id].content;
        let group = groups.entry(content.group()).or_default();
        group.0 += bytes;
        group.1 += usize::from(content.microbatch().is_some());
    }
    let mut holders: Vec<Holder> = groups
        .into_iter()
        .filter(|(_, (bytes, _))| *bytes > Bytes::ZERO)
        .map(|(what, (bytes, microbatches))| Holder {
            what: if microbatches > 1 { format!("{what} ({microbatches} microbatches)") } else { what },
            bytes,
        })
        .collect();
    holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.what.cmp(&b.what)));
    holders
}
