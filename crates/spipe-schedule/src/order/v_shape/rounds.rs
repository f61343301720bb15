//! A list schedule of a V in rounds of one backward-input and one forward per device.

use super::{chain::Chain, list::Listed};
use crate::order::{Order, Pass, StageTimes, Token};
use spipe_base::{Bytes, SimTime};
use std::collections::VecDeque;

// The four passes of a microbatch on a device, in chain order.
const FIRST_FORWARD: usize = 0;
const SECOND_FORWARD: usize = 1;
const SECOND_BACKWARD: usize = 2;
const FIRST_BACKWARD: usize = 3;

/// The passes that a backward-weight may delay when it exceeds the gap before them. It does so only
/// where the gap would make its device the one that idles most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub forward: bool,
    pub backward: bool,
}

/// The greedy schedule of ZB-V (Qi et al., arXiv 2401.10241, section 6), if it finds one within
/// `limit`.
///
/// 1. In the warm-up, devices run first forwards until the second forwards arrive.
/// 2. Then every device runs one backward-input and one forward per round. It prefers passes of the
///    way up, once they have arrived.
/// 3. Backward-weights fill gaps of at least their length, and shorter gaps that would make the
///    device the one that idles most. They run early where a forward needs their memory.
///
/// A device may idle as long as the one that idles most in the end. Therefore the schedule is
/// repeated with the idle times of the last attempt until it no longer improves.
pub(super) fn rounds(chain: &Chain, times: &[StageTimes], limit: Bytes, fill: Fill) -> Option<Listed> {
    let attempt = |expected: &[SimTime]| Rounds::new(chain, times, limit, fill).run(expected);
    let mut best = attempt(&[])?;
    while let Some(next) = attempt(&best.idle()).filter(|next| next.most_idle() < best.most_idle()) {
        best = next;
    }
    Some(best.listed())
}

#[derive(Clone, Default)]
struct Device {
    /// The number of each of the four passes that have run.
    done: [usize; 4],
    first: Option<SimTime>,
    free: SimTime,
    /// The idle time since the first pass.
    idle: SimTime,
    held: Bytes,
    /// The positions and microbatches of pending backward-weights.
    pending: VecDeque<(usize, usize)>,
    tokens: Vec<Token>,
}

struct Rounds<'a> {
    chain: &'a Chain,
    /// By stage.
    times: &'a [StageTimes],
    limit: Bytes,
    fill: Fill,
    devices: Vec<Device>,
    /// By position, then microbatch.
    ends: Vec<Vec<SimTime>>,
    /// The expected idle time of each device, as a difference to that of the device that idles
    /// most.
    spare: Vec<SimTime>,
}

impl<'a> Rounds<'a> {
    fn new(chain: &'a Chain, times: &'a [StageTimes], limit: Bytes, fill: Fill) -> Self {
        let devices = vec![Device::default(); chain.devices()];
        let spare = vec![SimTime::ZERO; chain.devices()];
        Self { chain, times, limit, fill, devices, ends: vec![Vec::new(); chain.len()], spare }
    }

    /// The complete schedule; `None` if a pass lacks memory or its input.
    fn run(mut self, expected: &[SimTime]) -> Option<Self> {
        let most = expected.iter().copied().max().unwrap_or_default();
        for (spare, idle) in self.spare.iter_mut().zip(expected) {
            *spare = most - *idle;
        }
        self.send_ahead()?;
        self.level()?;
        for _ in 0..2 * self.chain.microbatches {
            self.backwards()?;
            for device in 0..self.devices.len() {
                if let Some(pass) = self.next_forward(device) {
                    self.forward(device, pass)?;
                }
            }
        }
        for device in 0..self.devices.len() {
            while !self.devices[device].pending.is_empty() {
                self.weight(device)?;
            }
        }
        Some(self)
    }

    /// Runs first forwards until the second forward of the first microbatch arrives, and that
    /// forward.
    fn send_ahead(&mut self) -> Option<()> {
        let last = self.devices.len() - 1;
        for device in 0..=last {
            self.put(device, FIRST_FORWARD)?;
        }
        self.put(last, SECOND_FORWARD)?;
        for device in (0..last).rev() {
            let arrival = self.arrival(device, SECOND_FORWARD)?;
            // Reserve two activations for this device and two for each device before it: their
            // later forwards need them.
            let reserve = StageTimes::UNIT * (2 + 2 * device) as u64;
            let forward = self.times[device].forward;
            let fits = |this: &Device| this.held + reserve <= self.limit && this.free + forward <= arrival;
            let mut more = 0;
            let mut trial = self.devices[device].clone();
            while fits(&trial) && trial.done[FIRST_FORWARD] < self.chain.microbatches {
                trial.held += StageTimes::UNIT;
                trial.free += forward;
                trial.done[FIRST_FORWARD] += 1;
                more += 1;
            }
            for _ in 0..more {
                for before in 0..=device {
                    self.put(before, FIRST_FORWARD)?;
                }
            }
            self.put(device, SECOND_FORWARD)?;
        }
        Some(())
    }

    /// Runs forwards, of the two kinds in turn, until every device has run as many as the one
    /// before it.
    fn level(&mut self) -> Option<()> {
        let microbatches = self.chain.microbatches;
        let mut pass = FIRST_FORWARD;
        for device in 1..self.devices.len() {
            let behind = |this: &Self| {
                let (done, before) = (this.devices[device].done, this.devices[device - 1].done);
                let fewer = done[FIRST_FORWARD] + done[SECOND_FORWARD] < before[FIRST_FORWARD] + before[SECOND_FORWARD];
                let late = done[SECOND_FORWARD] <= before[SECOND_FORWARD] && before[SECOND_FORWARD] < microbatches;
                fewer || late
            };
            while behind(self) {
                for other in (device..self.devices.len()).rev() {
                    if self.devices[other].done[pass] < microbatches {
                        self.put(other, pass)?;
                    }
                }
                pass = FIRST_FORWARD + SECOND_FORWARD - pass;
            }
        }
        Some(())
    }

    /// Runs one backward-input on every device: first those of the first chunk, which go up, from
    /// the last device on, then the others.
    fn backwards(&mut self) -> Option<()> {
        let up: Vec<bool> = (0..self.devices.len()).map(|device| self.goes_up(device)).collect();
        let upwards = (0..up.len()).rev().filter(|device| up[*device]).map(|device| (device, FIRST_BACKWARD));
        let downwards = (0..up.len()).filter(|device| !up[*device]).map(|device| (device, SECOND_BACKWARD));
        for (device, pass) in upwards.chain(downwards).collect::<Vec<_>>() {
            self.fill_gap(device, pass, pass == FIRST_BACKWARD || self.fill.backward)?;
            self.put(device, pass)?;
        }
        Some(())
    }

    fn goes_up(&self, device: usize) -> bool {
        let done = self.devices[device].done;
        if done[FIRST_BACKWARD] >= done[SECOND_BACKWARD] {
            return false;
        }
        done[SECOND_BACKWARD] == self.chain.microbatches || self.has_arrived(device, FIRST_BACKWARD)
    }

    /// The next forward of the device, if one can run.
    fn next_forward(&self, device: usize) -> Option<usize> {
        let (done, microbatches) = (self.devices[device].done, self.chain.microbatches);
        if done[SECOND_FORWARD] == microbatches {
            None
        } else if done[SECOND_FORWARD] < done[FIRST_FORWARD] && self.has_arrived(device, SECOND_FORWARD) {
            Some(SECOND_FORWARD)
        } else if done[SECOND_FORWARD] >= done[FIRST_FORWARD] {
            Some(FIRST_FORWARD)
        } else {
            (done[FIRST_FORWARD] < microbatches && self.has_arrived(device, FIRST_FORWARD)).then_some(FIRST_FORWARD)
        }
    }

    fn forward(&mut self, device: usize, pass: usize) -> Option<()> {
        while self.devices[device].held + StageTimes::UNIT > self.limit {
            self.weight(device)?;
        }
        self.fill_gap(device, pass, self.fill.forward)?;
        self.put(device, pass)
    }

    /// Runs backward-weights until the input of the next `pass` arrives, and possibly one more that
    /// delays it, if `overrun`.
    fn fill_gap(&mut self, device: usize, pass: usize, overrun: bool) -> Option<()> {
        let Some(arrival) = self.arrival(device, pass) else { return Some(()) };
        let pending = |this: &Self| this.devices[device].pending.front().map(|(position, _)| *position);
        while let Some(position) = pending(self) {
            if self.devices[device].free + self.times[self.chain.stage(position)].backward_weight > arrival {
                break;
            }
            self.weight(device)?;
        }
        let wait = arrival.saturating_sub(self.devices[device].free);
        let most = self.devices.iter().map(|other| other.idle).max().unwrap_or_default().max(self.spare[device]);
        if overrun && pending(self).is_some() && wait > most - self.devices[device].idle {
            self.weight(device)?;
        }
        Some(())
    }

    /// The position before that of `pass`, if it is on another device.
    fn feeder(&self, device: usize, pass: usize) -> Option<usize> {
        let before = self.chain.positions(device)[pass].checked_sub(1)?;
        (self.chain.device(before) != device).then_some(before)
    }

    /// The arrival of the input of the next `pass` from another device; `None` if it comes from
    /// this one, or is not known yet.
    fn arrival(&self, device: usize, pass: usize) -> Option<SimTime> {
        let feeder = self.feeder(device, pass)?;
        let boundary = self.chain.stage(feeder).min(self.chain.stage(feeder + 1));
        Some(*self.ends[feeder].get(self.devices[device].done[pass])? + self.times[boundary].latency)
    }

    fn has_arrived(&self, device: usize, pass: usize) -> bool {
        self.feeder(device, pass).is_none() || self.arrival(device, pass).is_some()
    }

    fn put(&mut self, device: usize, pass: usize) -> Option<()> {
        let (position, microbatch) = (self.chain.positions(device)[pass], self.devices[device].done[pass]);
        let known = position.checked_sub(1).is_none_or(|before| self.ends[before].len() > microbatch);
        let need = if pass <= SECOND_FORWARD { StageTimes::UNIT } else { Bytes::ZERO };
        if microbatch == self.chain.microbatches || !known || self.devices[device].held + need > self.limit {
            return None;
        }
        let arrival = self.arrival(device, pass).unwrap_or_default();
        let end = self.occupy(device, self.chain.token(position, microbatch), arrival);
        self.ends[position].push(end);
        let this = &mut self.devices[device];
        this.done[pass] += 1;
        this.held += need;
        if pass > SECOND_FORWARD {
            this.held -= StageTimes::UNIT - Bytes::new(self.times[self.chain.stage(position)].weight_gradient_memory);
            this.pending.push_back((position, microbatch));
        }
        Some(())
    }

    fn weight(&mut self, device: usize) -> Option<()> {
        let (position, microbatch) = self.devices[device].pending.pop_front()?;
        let token = Token { pass: Pass::BackwardWeight, ..self.chain.token(position, microbatch) };
        self.occupy(device, token, SimTime::ZERO);
        self.devices[device].held -= Bytes::new(self.times[self.chain.stage(position)].weight_gradient_memory);
        Some(())
    }

    fn occupy(&mut self, device: usize, token: Token, arrival: SimTime) -> SimTime {
        let this = &mut self.devices[device];
        let start = this.free.max(arrival);
        if this.first.is_some() {
            this.idle += start - this.free;
        }
        this.first.get_or_insert(start);
        this.free = start + self.times[token.stage.index()].of(token.pass);
        this.tokens.push(token);
        this.free
    }

    fn idle(&self) -> Vec<SimTime> {
        self.devices.iter().map(|device| device.idle).collect()
    }

    fn most_idle(&self) -> SimTime {
        self.devices.iter().map(|device| device.idle).max().unwrap_or_default()
    }

    fn listed(self) -> Listed {
        let reach = |device: &Device| device.free - device.first.unwrap_or_default();
        let longest = self.devices.iter().map(reach).max().unwrap_or_default();
        let last = self.devices.iter().map(|device| device.free).max().unwrap_or_default();
        let order = Order::new(self.devices.into_iter().map(|device| device.tokens).collect());
        Listed { cost: (longest, last), order }
    }
}
