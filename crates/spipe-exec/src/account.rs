//! Memory as the plan counts it and as it is held.

use crate::rules::Rules;
use spipe_base::{BufferId, Bytes, IdVec, MemoryId, SimTime};
use spipe_schedule::Lifetime;
use spipe_trace::{Holder, MemoryTrack, Sample};
use std::collections::{BTreeMap, VecDeque};

/// A buffer in one iteration; see [`instance`](crate::rules::instance).
pub(crate) type Instance = (BufferId, u32);

/// By which part of a capacity more may seem to be held than there is room for.
const OFF: f64 = 0.02;

/// What is held where.
#[derive(Debug)]
pub(crate) struct Account {
    /// The program's own figures: what actions wait for.
    planned: IdVec<MemoryId, Bytes>,
    planned_peak: IdVec<MemoryId, Bytes>,
    /// What is really held.
    held: IdVec<MemoryId, Bytes>,
    held_peak: IdVec<MemoryId, Bytes>,
    /// The same since somebody last asked.
    recent_peak: IdVec<MemoryId, Bytes>,
    instances: BTreeMap<Instance, Bytes>,
    open: BTreeMap<Instance, u32>,
    /// Before the first event, and the events since.
    base: BTreeMap<Instance, Bytes>,
    events: VecDeque<Event>,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: SimTime,
    instance: Instance,
    bytes: Bytes,
}

impl Account {
    /// Resident buffers are held in full by the program's figures, and not yet really.
    pub fn new(rules: &Rules<'_>) -> Self {
        let zero = || rules.program.memories().iter().map(|_| Bytes::ZERO).collect::<IdVec<MemoryId, Bytes>>();
        Self {
            planned: rules.resident.clone(),
            planned_peak: rules.resident.clone(),
            held: zero(),
            held_peak: zero(),
            recent_peak: zero(),
            instances: BTreeMap::new(),
            open: rules.arriving_first().map(|(buffer, users)| ((buffer, 0), users)).collect(),
            base: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }

    /// What is free in a memory by the program's figures.
    pub fn free(&self, rules: &Rules<'_>, memory: MemoryId) -> Bytes {
        rules.capacity(memory).saturating_sub(self.planned[memory])
    }

    /// Opens a buffer: from now on it is counted as planned, until [`Self::hold`] says what it really came to.
    pub fn acquire(&mut self, rules: &Rules<'_>, at: SimTime, instance: Instance) {
        let buffer = &rules.program.buffers()[instance.0];
        self.planned[buffer.memory] += buffer.bytes;
        self.planned_peak[buffer.memory] = self.planned_peak[buffer.memory].max(self.planned[buffer.memory]);
        self.open.insert(instance, rules.users[instance.0]);
        self.hold(rules, at, instance, buffer.bytes);
    }

    /// One user of a buffer is done; true if it was the last, and the buffer is free.
    pub fn release(&mut self, rules: &Rules<'_>, at: SimTime, instance: Instance) -> bool {
        let Some(left) = self.open.get_mut(&instance) else { return false };
        *left -= 1;
        if *left > 0 {
            return false;
        }
        self.open.remove(&instance);
        let buffer = &rules.program.buffers()[instance.0];
        self.planned[buffer.memory] -= buffer.bytes;
        self.hold(rules, at, instance, Bytes::ZERO);
        true
    }

    /// A buffer really comes to `bytes` from now on.
    pub fn hold(&mut self, rules: &Rules<'_>, at: SimTime, instance: Instance, bytes: Bytes) {
        let memory = rules.program.buffers()[instance.0].memory;
        let before = set(&mut self.instances, instance, bytes);
        if before == bytes {
            return;
        }
        self.held[memory] = self.held[memory] + bytes - before;
        self.held_peak[memory] = self.held_peak[memory].max(self.held[memory]);
        self.recent_peak[memory] = self.recent_peak[memory].max(self.held[memory]);
        // A thread may have read the clock before another one that came here first; things happen in the order in which they come.
        let at = self.events.back().map_or(at, |last| last.at.max(at));
        self.events.push_back(Event { at, instance, bytes });
    }

    /// The first memory in which more is really held than it has room for, with how much that is. What graphs keep is an estimate, which
    /// may be off by [`OFF`] of the capacity.
    pub fn exceeded(&self, rules: &Rules<'_>) -> Option<(MemoryId, Bytes)> {
        self.held
            .enumerate()
            .map(|(memory, held)| (memory, *held))
            .find(|(memory, held)| held.as_f64() > rules.capacity(*memory).as_f64() * (1.0 + OFF))
    }

    /// The peaks since the last call, by name.
    pub fn take_recent_peaks(&mut self, rules: &Rules<'_>) -> BTreeMap<String, Bytes> {
        let peaks = rules.program.memories().enumerate().map(|(id, space)| (space.name.clone(), self.recent_peak[id]));
        let peaks = peaks.filter(|(_, peak)| *peak > Bytes::ZERO).collect();
        self.recent_peak = self.held.clone();
        peaks
    }

    /// The peaks of the whole run by memory: planned and held.
    pub fn peaks(&self, memory: MemoryId) -> (Bytes, Bytes) {
        (self.planned_peak[memory], self.held_peak[memory])
    }

    /// Who holds what in `memory` by the program's figures, largest first.
    pub fn holders(&self, rules: &Rules<'_>, memory: MemoryId) -> Vec<Holder> {
        let buffers = rules.program.buffers();
        let resident =
            buffers.enumerate().filter(|(_, buffer)| buffer.lifetime == Lifetime::Resident).map(|(id, _)| id);
        let open = self.open.keys().map(|(buffer, _)| *buffer);
        let here = resident.chain(open).filter(|id| buffers[*id].memory == memory);
        holders(rules, here.map(|id| (id, buffers[id].bytes)))
    }

    /// Forgets how things came to be before `at`.
    pub fn forget_before(&mut self, at: SimTime) {
        while let Some(event) = self.events.front().filter(|event| event.at < at).copied() {
            set(&mut self.base, event.instance, event.bytes);
            self.events.pop_front();
        }
    }

    /// Every memory from `start` to `end`, with times from `start` on.
    pub fn tracks(&self, rules: &Rules<'_>, start: SimTime, end: SimTime) -> Vec<MemoryTrack> {
        rules.program.memories().ids().filter_map(|memory| self.track(rules, memory, (start, end))).collect()
    }

    /// One memory; none if nothing was ever held there.
    fn track(&self, rules: &Rules<'_>, memory: MemoryId, (start, end): (SimTime, SimTime)) -> Option<MemoryTrack> {
        let here = |instance: &Instance| rules.program.buffers()[instance.0].memory == memory;
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
        let space = &rules.program.memories()[memory];
        Some(MemoryTrack {
            name: space.name.clone(),
            capacity: space.capacity,
            peak,
            holders: holders(rules, at_peak.into_iter().map(|((buffer, _), bytes)| (buffer, bytes))),
            samples,
        })
    }
}

/// Puts `bytes` in place of what was there; nothing is the same as no entry.
fn set(instances: &mut BTreeMap<Instance, Bytes>, instance: Instance, bytes: Bytes) -> Bytes {
    let before = if bytes == Bytes::ZERO { instances.remove(&instance) } else { instances.insert(instance, bytes) };
    before.unwrap_or(Bytes::ZERO)
}

/// Buffers by what they are, largest first.
fn holders(rules: &Rules<'_>, buffers: impl Iterator<Item = (BufferId, Bytes)>) -> Vec<Holder> {
    let mut groups: BTreeMap<String, (Bytes, usize)> = BTreeMap::new();
    for (id, bytes) in buffers {
        let content = rules.program.buffers()[id].content;
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
