//! List scheduling along a plan: a free device starts the best pass that can start.

use super::chain::{Chain, Plan};
use crate::order::{Order, Pass, StageTimes, Token};
use spipe_base::{Bytes, SimTime};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// The rules by which a device chooses its next pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// The ranks of a device's positions, in chain order. Without them passes rank by their slots
    /// in the plan.
    pub ranks: Option<[usize; 4]>,
    /// When a pass may overtake others in the plan.
    pub overtaking: Overtaking,
    /// Whether a backward-weight skips a gap that is too short for it.
    pub wait: bool,
}

/// When a pass may overtake others in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overtaking {
    /// Never.
    Never,
    /// Until the device has run the last pass of its first microbatch.
    WarmUp,
    /// Always, if memory permits.
    Always,
}

/// The result of a list schedule.
pub(super) struct Listed {
    /// The longest time of a device from its first start to its last end, then the last end of all
    /// devices.
    pub cost: (SimTime, SimTime),
    pub order: Order,
}

/// A list schedule along `plan` with the given times, holding at most `limit` on each device.
///
/// A forward may overtake only if, with all pending backward-weights done, everything before it in
/// the plan still fits. The device can then always fall back to the plan's order, so that it never
/// deadlocks for memory.
pub(super) fn list(chain: &Chain, plan: &Plan, times: &[StageTimes], limit: Bytes, choice: Choice) -> Listed {
    let mut list = List {
        chain,
        plan,
        times,
        limit,
        choice,
        ends: vec![Vec::new(); chain.len()],
        devices: vec![Device::default(); chain.devices()],
        wakes: (0..chain.devices()).map(|device| Reverse((SimTime::ZERO, device))).collect(),
    };
    while let Some(Reverse((now, device))) = list.wakes.pop() {
        if list.devices[device].free <= now {
            list.start(device, now);
        }
    }
    list.result()
}

#[derive(Clone, Default)]
struct Device {
    free: SimTime,
    first: Option<SimTime>,
    held: Bytes,
    /// The positions and microbatches of pending backward-weights.
    pending: VecDeque<(usize, usize)>,
    tokens: Vec<Token>,
}

struct List<'a> {
    chain: &'a Chain,
    plan: &'a Plan,
    /// By stage.
    times: &'a [StageTimes],
    limit: Bytes,
    choice: Choice,
    /// By position, then microbatch.
    ends: Vec<Vec<SimTime>>,
    devices: Vec<Device>,
    wakes: BinaryHeap<Reverse<(SimTime, usize)>>,
}

/// The passes that a device can start.
#[derive(Default)]
struct Startable {
    best: Option<((usize, usize), usize)>,
    /// The start of the next one that has yet to arrive.
    next: Option<SimTime>,
    lacks_memory: bool,
}

impl List<'_> {
    fn start(&mut self, device: usize, now: SimTime) {
        let startable = self.startable(device, now);
        if let Some((_, position)) = startable.best {
            self.begin(device, position, now);
        } else if !self.devices[device].pending.is_empty() {
            let weight = self.devices[device].pending.front().map(|(position, _)| self.of(*position).backward_weight);
            let too_long = startable.next.is_some_and(|next| next < now + weight.unwrap_or_default());
            if startable.lacks_memory || !self.choice.wait || !too_long {
                self.begin_weight(device, now);
            }
        }
    }

    fn startable(&self, device: usize, now: SimTime) -> Startable {
        let mut startable = Startable::default();
        let planned = self.planned_next(device);
        for (index, position) in self.chain.positions(device).iter().enumerate() {
            let Some(arrival) = self.arrival(*position) else { continue };
            if planned != Some(*position) && !self.may_overtake(device, *position) {
                continue;
            }
            if self.chain.is_forward(*position) && self.devices[device].held + StageTimes::UNIT > self.limit {
                startable.lacks_memory |= arrival <= now;
            } else if arrival <= now {
                let slot = self.plan.slots[*position][self.ends[*position].len()];
                let key = (self.choice.ranks.map_or(0, |ranks| ranks[index]), slot);
                if startable.best.is_none_or(|(best, _)| key < best) {
                    startable.best = Some((key, *position));
                }
            } else {
                startable.next = Some(startable.next.map_or(arrival, |next| next.min(arrival)));
            }
        }
        startable
    }

    /// The arrival of the input of the next pass at `position`, if it is known.
    fn arrival(&self, position: usize) -> Option<SimTime> {
        let microbatch = self.ends[position].len();
        if microbatch == self.chain.microbatches {
            return None;
        }
        let Some(before) = position.checked_sub(1) else { return Some(SimTime::ZERO) };
        Some(*self.ends[before].get(microbatch)? + self.latency(before))
    }

    /// The latency from `position` to the next one.
    fn latency(&self, position: usize) -> SimTime {
        let same = self.chain.device(position) == self.chain.device(position + 1);
        let (here, next) = (self.chain.stage(position), self.chain.stage(position + 1));
        if same { SimTime::ZERO } else { self.times[here.min(next)].latency }
    }

    /// The times of the stage at `position`.
    fn of(&self, position: usize) -> &StageTimes {
        &self.times[self.chain.stage(position)]
    }

    /// The position whose next pass is the device's next one in the plan.
    fn planned_next(&self, device: usize) -> Option<usize> {
        let left = self.chain.positions(device).iter().filter(|at| self.ends[**at].len() < self.chain.microbatches);
        left.copied().min_by_key(|position| self.plan.slots[*position][self.ends[*position].len()])
    }

    fn may_overtake(&self, device: usize, position: usize) -> bool {
        let positions = self.chain.positions(device);
        let warm = positions.last().is_some_and(|last| self.ends[*last].is_empty());
        match self.choice.overtaking {
            Overtaking::Never => return false,
            Overtaking::WarmUp if !warm => return false,
            Overtaking::WarmUp | Overtaking::Always => {}
        }
        !self.chain.is_forward(position) || self.leaves_room(device, position)
    }

    /// Whether everything before the next forward at `position` in the plan still fits after it.
    fn leaves_room(&self, device: usize, position: usize) -> bool {
        let positions = self.chain.positions(device);
        let most = (self.limit.get() / StageTimes::UNIT.get()) as usize;
        let until = self.plan.slots[position][self.ends[position].len()];
        let mut next: Vec<usize> = positions.iter().map(|at| self.ends[*at].len()).collect();
        let done = |forward| -> usize {
            let of_kind = positions.iter().filter(|at| self.chain.is_forward(**at) == forward);
            of_kind.map(|at| self.ends[*at].len()).sum()
        };
        let mut held = done(true) - done(false) + 1;
        loop {
            if held > most {
                return false;
            }
            let slot = |(index, at): (usize, &usize)| self.plan.slots[*at].get(next[index]).map(|slot| (*slot, index));
            match positions.iter().enumerate().filter_map(slot).min() {
                Some((slot, index)) if slot < until => {
                    next[index] += 1;
                    held = if self.chain.is_forward(positions[index]) { held + 1 } else { held - 1 };
                }
                _ => return true,
            }
        }
    }

    fn begin(&mut self, device: usize, position: usize, now: SimTime) {
        let microbatch = self.ends[position].len();
        let token = self.chain.token(position, microbatch);
        let weight = Bytes::new(self.of(position).weight_gradient_memory);
        let this = &mut self.devices[device];
        if self.chain.is_forward(position) {
            this.held += StageTimes::UNIT;
        } else {
            this.held -= StageTimes::UNIT - weight;
            this.pending.push_back((position, microbatch));
        }
        this.first.get_or_insert(now);
        let end = self.occupy(device, token, now);
        self.ends[position].push(end);
        if position + 1 < self.chain.len() {
            self.wakes.push(Reverse((end + self.latency(position), self.chain.device(position + 1))));
        }
    }

    fn begin_weight(&mut self, device: usize, now: SimTime) {
        let Some((position, microbatch)) = self.devices[device].pending.pop_front() else { return };
        let token = Token { pass: Pass::BackwardWeight, ..self.chain.token(position, microbatch) };
        self.occupy(device, token, now);
        let weight = Bytes::new(self.of(position).weight_gradient_memory);
        self.devices[device].held -= weight;
    }

    fn occupy(&mut self, device: usize, token: Token, now: SimTime) -> SimTime {
        let end = now + self.times[token.stage.index()].of(token.pass);
        let this = &mut self.devices[device];
        this.tokens.push(token);
        this.free = end;
        self.wakes.push(Reverse((end, device)));
        end
    }

    fn result(self) -> Listed {
        let reach = |device: &Device| device.free - device.first.unwrap_or_default();
        let longest = self.devices.iter().map(reach).max().unwrap_or_default();
        let last = self.devices.iter().map(|device| device.free).max().unwrap_or_default();
        let order = Order::new(self.devices.into_iter().map(|device| device.tokens).collect());
        Listed { cost: (longest, last), order }
    }
}
