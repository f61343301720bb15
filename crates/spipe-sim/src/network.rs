//! Flows that share channels max-min fairly.

use spipe_base::{IdVec, LinkId, SimTime};
use spipe_schedule::{Channel, Flow, Share};

/// What rounding may take from the sum of peaks.
const ROUNDING: f64 = 1.0 - 1e-9;

/// The place of a flow among those under way.
pub(crate) type Slot = usize;

/// A flow under way.
struct Moving<'a> {
    route: &'a [LinkId],
    /// Its rate if it had all channels to itself.
    peak: f64,
    share: Share,
    /// Bytes left at `since`.
    left: f64,
    since: SimTime,
    /// Bytes per second; zero before it has been given a share.
    rate: f64,
    owner: u64,
}

/// Flows under way and the channels they share.
///
/// A change affects only the flows that share a channel with it, directly or through others; channels that are wide enough for all that
/// their flows could move hold nobody back, and connect none. The others get new rates by progressive filling: all rates rise together
/// until a channel is full or a flow has reached its own peak; those flows are settled, and the others go on rising (Bertsekas, Gallager:
/// Data Networks, section 6.5.2). Rates rise in proportion to the flows' weights, and those of a lower priority rise only once all of a
/// higher one are settled.
pub(crate) struct Network<'a> {
    capacity: Vec<f64>,
    /// The flows on each channel.
    users: Vec<Vec<Slot>>,
    /// What these would move at their peaks.
    demand: Vec<f64>,
    flows: Vec<Option<Moving<'a>>>,
    /// One count per slot that only ever rises: slots are used again, and finish events of an earlier flow may still name them.
    versions: Vec<u32>,
    free: Vec<Slot>,
    scratch: Scratch,
}

/// Work space of the progressive filling, kept to avoid allocation.
#[derive(Default)]
struct Scratch {
    component: Vec<Slot>,
    channels: Vec<usize>,
    in_component: Vec<bool>,
    seen_channel: Vec<bool>,
    left: Vec<f64>,
    /// By channel, the weights of the flows whose rates still rise.
    open: Vec<f64>,
    priorities: Vec<u8>,
    settled: Vec<bool>,
}

/// A new finish time of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub slot: Slot,
    pub version: u32,
    pub at: SimTime,
}

impl<'a> Network<'a> {
    pub fn new(channels: &IdVec<LinkId, Channel>) -> Self {
        let scratch = Scratch {
            seen_channel: vec![false; channels.len()],
            left: vec![0.0; channels.len()],
            open: vec![0.0; channels.len()],
            ..Scratch::default()
        };
        Self {
            capacity: channels.iter().map(|channel| channel.bandwidth.get()).collect(),
            users: vec![Vec::new(); channels.len()],
            demand: vec![0.0; channels.len()],
            flows: Vec::new(),
            versions: Vec::new(),
            free: Vec::new(),
            scratch,
        }
    }

    /// Starts a flow of `bytes` for `owner`; finish times that change are appended to `finishes`.
    pub fn add(&mut self, now: SimTime, flow: &'a Flow, owner: u64, finishes: &mut Vec<Finish>) {
        let cap = flow.rate_cap.map_or(f64::INFINITY, |cap| cap.get());
        let peak = flow.route.iter().map(|channel| self.capacity[channel.index()]).fold(cap, f64::min);
        let moving = Moving {
            route: &flow.route,
            peak,
            share: flow.share,
            left: flow.bytes.as_f64(),
            since: now,
            rate: 0.0,
            owner,
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.flows.push(None);
                self.versions.push(0);
                self.scratch.in_component.push(false);
                self.scratch.settled.push(false);
                self.flows.len() - 1
            }
        };
        for channel in moving.route.iter().map(|channel| channel.index()) {
            self.users[channel].push(slot);
            self.demand[channel] += peak;
        }
        let free = moving.route.iter().all(|channel| !self.binds(channel.index()));
        let route = moving.route;
        self.flows[slot] = Some(moving);
        if free {
            self.set_rate(slot, peak, now, finishes);
        } else {
            self.collect(route);
            self.share(now, finishes);
        }
    }

    /// The owner of the flow, if `finish` is not stale.
    pub fn finished(&self, slot: Slot, version: u32) -> Option<u64> {
        self.flows[slot].as_ref().filter(|_| self.versions[slot] == version).map(|flow| flow.owner)
    }

    /// Takes a finished flow away; the others share what it leaves.
    pub fn remove(&mut self, slot: Slot, now: SimTime, finishes: &mut Vec<Finish>) {
        // Channels that hold their flows back until now count as well.
        let Some(flow) = self.flows[slot].as_ref() else { return };
        self.collect(flow.route);
        let Some(flow) = self.flows[slot].take() else { return };
        self.versions[slot] = self.versions[slot].wrapping_add(1);
        self.free.push(slot);
        for channel in flow.route.iter().map(|channel| channel.index()) {
            let users = &mut self.users[channel];
            users.retain(|user| *user != slot);
            self.demand[channel] = if users.is_empty() { 0.0 } else { self.demand[channel] - flow.peak };
        }
        self.scratch.in_component[slot] = false;
        self.scratch.component.retain(|other| *other != slot);
        self.share(now, finishes);
    }

    /// Whether a channel could hold a flow back.
    fn binds(&self, channel: usize) -> bool {
        self.users[channel].len() > 1 && self.demand[channel] > self.capacity[channel] * ROUNDING
    }

    fn set_rate(&mut self, slot: Slot, rate: f64, now: SimTime, finishes: &mut Vec<Finish>) {
        let Some(flow) = self.flows[slot].as_mut() else { return };
        let before = flow.rate;
        if (before - rate).abs() <= f64::EPSILON * rate && before > 0.0 {
            return;
        }
        let passed = (now - flow.since).to_seconds().get();
        flow.left = (flow.left - before * passed).max(0.0);
        flow.since = now;
        flow.rate = rate;
        self.versions[slot] = self.versions[slot].wrapping_add(1);
        if rate <= 0.0 {
            // Others have everything; it goes on when they have gone.
            return;
        }
        let takes = if rate.is_finite() { (flow.left / rate * 1e9).ceil() } else { 0.0 };
        finishes.push(Finish { slot, version: self.versions[slot], at: now + SimTime::ns(takes as u64) });
    }

    /// Gives new rates to all flows that were collected.
    fn share(&mut self, now: SimTime, finishes: &mut Vec<Finish>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for channel in &scratch.channels {
            scratch.left[*channel] = self.capacity[*channel];
        }
        let priority = |slot: &Slot| self.flows[*slot].as_ref().map_or(0, |flow| flow.share.priority);
        scratch.priorities.extend(scratch.component.iter().map(priority));
        scratch.priorities.sort_unstable();
        scratch.priorities.dedup();
        while let Some(priority) = scratch.priorities.pop() {
            self.fill(priority, &mut scratch, (now, finishes));
        }
        for slot in scratch.component.drain(..) {
            scratch.in_component[slot] = false;
            scratch.settled[slot] = false;
        }
        for channel in scratch.channels.drain(..) {
            scratch.seen_channel[channel] = false;
        }
        self.scratch = scratch;
    }

    /// Lets the rates of one priority rise until all are settled.
    fn fill(&mut self, priority: u8, scratch: &mut Scratch, (now, finishes): (SimTime, &mut Vec<Finish>)) {
        for channel in &scratch.channels {
            scratch.open[*channel] = 0.0;
        }
        let mut unsettled = 0;
        for slot in &scratch.component {
            let Some(flow) = self.flows[*slot].as_ref().filter(|flow| flow.share.priority == priority) else {
                continue;
            };
            unsettled += 1;
            for channel in flow.route {
                scratch.open[channel.index()] += f64::from(flow.share.weight.get());
            }
        }
        while unsettled > 0 {
            let level = self.next_level(priority, scratch);
            for index in 0..scratch.component.len() {
                let slot = scratch.component[index];
                let Some(flow) = self.flows[slot].as_ref().filter(|_| !scratch.settled[slot]) else { continue };
                if flow.share.priority != priority {
                    continue;
                }
                let weight = f64::from(flow.share.weight.get());
                let mut bound = flow.peak / weight;
                for channel in flow.route.iter().map(|channel| channel.index()) {
                    if scratch.seen_channel[channel] {
                        bound = bound.min(scratch.left[channel] / scratch.open[channel]);
                    }
                }
                if bound <= level * (1.0 + 1e-12) {
                    scratch.settled[slot] = true;
                    unsettled -= 1;
                    for channel in flow.route.iter().map(|channel| channel.index()) {
                        scratch.left[channel] = (scratch.left[channel] - level * weight).max(0.0);
                        scratch.open[channel] -= weight;
                    }
                    self.set_rate(slot, level * weight, now, finishes);
                }
            }
        }
    }

    /// The lowest rate of weight 1 at which an unsettled flow is held back, by a channel or by its own peak.
    fn next_level(&self, priority: u8, scratch: &Scratch) -> f64 {
        let mut level = f64::INFINITY;
        for channel in &scratch.channels {
            if scratch.open[*channel] > 0.0 {
                level = level.min(scratch.left[*channel] / scratch.open[*channel]);
            }
        }
        for slot in scratch.component.iter().filter(|slot| !scratch.settled[**slot]) {
            if let Some(flow) = self.flows[*slot].as_ref().filter(|flow| flow.share.priority == priority) {
                level = level.min(flow.peak / f64::from(flow.share.weight.get()));
            }
        }
        level
    }

    /// Collects the flows that channels connect to one over `route`, in the order of their slots, and these channels.
    fn collect(&mut self, route: &[LinkId]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        self.collect_channels(route, &mut scratch);
        let mut next = 0;
        while let Some(channel) = scratch.channels.get(next).copied() {
            next += 1;
            for slot in &self.users[channel] {
                if !std::mem::replace(&mut scratch.in_component[*slot], true) {
                    scratch.component.push(*slot);
                    self.collect_channels(self.flows[*slot].as_ref().map_or(&[], |flow| flow.route), &mut scratch);
                }
            }
        }
        scratch.component.sort_unstable();
        self.scratch = scratch;
    }

    fn collect_channels(&self, route: &[LinkId], scratch: &mut Scratch) {
        for channel in route.iter().map(|channel| channel.index()) {
            if self.binds(channel) && !std::mem::replace(&mut scratch.seen_channel[channel], true) {
                scratch.channels.push(channel);
            }
        }
    }
}
