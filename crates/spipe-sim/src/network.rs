//! Flows under way, which share channels max–min fairly.

use spipe_base::{IdVec, LinkId, SimTime};
use spipe_schedule::{Channel, Demand, FairShare, Flow};

/// The relative tolerance of a sum of peaks that is compared with a capacity. The sum is updated by
/// additions and subtractions of `f64`, whose errors of about 1e-16 each add up to far less.
const ROUNDING: f64 = 1.0 - 1e-9;

/// The index of a flow among those under way.
pub(crate) type Slot = usize;

/// A flow under way.
struct Moving<'a> {
    demand: Demand<'a>,
    /// The bytes left at `since`.
    left: f64,
    since: SimTime,
    /// The rate in bytes per second; zero before the first share.
    rate: f64,
    owner: u64,
}

/// The flows under way and the channels that they share.
///
/// A change affects only the component of flows that share a limiting channel with it, directly or
/// through others. A channel that is wide enough for the peaks of all its flows limits none and
/// connects none. The flows of the component get new rates by [`FairShare::rates`].
pub(crate) struct Network<'a> {
    capacity: Vec<f64>,
    /// The flows on each channel.
    users: Vec<Vec<Slot>>,
    /// The sum of the peaks of these flows.
    demand: Vec<f64>,
    flows: Vec<Option<Moving<'a>>>,
    /// By slot, a counter that tells stale finish events from current ones: slots are reused, and
    /// rates change.
    versions: Vec<u32>,
    free: Vec<Slot>,
    component: Component<'a>,
    fair_share: FairShare,
}

/// The flows that a change affects, and their limiting channels; kept to avoid allocation.
#[derive(Default)]
struct Component<'a> {
    slots: Vec<Slot>,
    /// The limiting channels with their capacities.
    limits: Vec<(usize, f64)>,
    demands: Vec<Demand<'a>>,
    /// By slot, whether it is in `slots`.
    has_slot: Vec<bool>,
    /// By channel, whether it is in `limits`.
    has_channel: Vec<bool>,
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
        Self {
            capacity: channels.iter().map(|channel| channel.bandwidth.get()).collect(),
            users: vec![Vec::new(); channels.len()],
            demand: vec![0.0; channels.len()],
            flows: Vec::new(),
            versions: Vec::new(),
            free: Vec::new(),
            component: Component { has_channel: vec![false; channels.len()], ..Component::default() },
            fair_share: FairShare::new(channels.len()),
        }
    }

    /// Starts a flow of `owner`. Finish times that change are appended to `finishes`.
    pub fn add(&mut self, now: SimTime, flow: &'a Flow, owner: u64, finishes: &mut Vec<Finish>) {
        let cap = flow.rate_cap.map_or(f64::INFINITY, |cap| cap.get());
        let peak = flow.route.iter().map(|channel| self.capacity[channel.index()]).fold(cap, f64::min);
        let route: &[LinkId] = &flow.route;
        let moving = Moving {
            demand: Demand { route, peak, share: flow.share },
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
                self.component.has_slot.push(false);
                self.flows.len() - 1
            }
        };
        for channel in route.iter().map(|channel| channel.index()) {
            self.users[channel].push(slot);
            self.demand[channel] += peak;
        }
        let free = route.iter().all(|channel| !self.limits(channel.index()));
        self.flows[slot] = Some(moving);
        if free {
            self.set_rate(slot, peak, now, finishes);
        } else {
            self.collect(route);
            self.share(now, finishes);
        }
    }

    /// The owner of the flow in `slot`, if `version` is not stale.
    pub fn finished(&self, slot: Slot, version: u32) -> Option<u64> {
        self.flows[slot].as_ref().filter(|_| self.versions[slot] == version).map(|flow| flow.owner)
    }

    /// Removes a finished flow. The others share its rate.
    pub fn remove(&mut self, slot: Slot, now: SimTime, finishes: &mut Vec<Finish>) {
        // The component is that of the channels that limit flows before the removal.
        let Some(flow) = self.flows[slot].as_ref() else { return };
        self.collect(flow.demand.route);
        let Some(flow) = self.flows[slot].take() else { return };
        self.versions[slot] = self.versions[slot].wrapping_add(1);
        self.free.push(slot);
        for channel in flow.demand.route.iter().map(|channel| channel.index()) {
            let users = &mut self.users[channel];
            users.retain(|user| *user != slot);
            self.demand[channel] = if users.is_empty() { 0.0 } else { self.demand[channel] - flow.demand.peak };
        }
        self.component.has_slot[slot] = false;
        self.component.slots.retain(|other| *other != slot);
        self.share(now, finishes);
    }

    /// Whether a channel may limit its flows.
    fn limits(&self, channel: usize) -> bool {
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
            // Flows of higher priority have all of the channel; it goes on when they have ended.
            return;
        }
        let takes = if rate.is_finite() { (flow.left / rate * 1e9).ceil() } else { 0.0 };
        finishes.push(Finish { slot, version: self.versions[slot], at: now + SimTime::ns(takes as u64) });
    }

    /// Sets new rates for the flows of the component, which is then empty.
    fn share(&mut self, now: SimTime, finishes: &mut Vec<Finish>) {
        let mut component = std::mem::take(&mut self.component);
        let mut fair_share = std::mem::take(&mut self.fair_share);
        let flows = component.slots.iter().filter_map(|slot| self.flows[*slot].as_ref());
        component.demands.extend(flows.map(|flow| flow.demand));
        fair_share.rates(&component.limits, &component.demands, |index, rate| {
            self.set_rate(component.slots[index], rate, now, finishes);
        });
        component.demands.clear();
        for slot in component.slots.drain(..) {
            component.has_slot[slot] = false;
        }
        for (channel, _) in component.limits.drain(..) {
            component.has_channel[channel] = false;
        }
        (self.component, self.fair_share) = (component, fair_share);
    }

    /// Collects the component of a flow over `route`, with flows in the order of their slots.
    fn collect(&mut self, route: &[LinkId]) {
        let mut component = std::mem::take(&mut self.component);
        self.collect_channels(route, &mut component);
        let mut next = 0;
        while let Some((channel, _)) = component.limits.get(next).copied() {
            next += 1;
            for slot in &self.users[channel] {
                if !std::mem::replace(&mut component.has_slot[*slot], true) {
                    component.slots.push(*slot);
                    let route = self.flows[*slot].as_ref().map_or(&[][..], |flow| flow.demand.route);
                    self.collect_channels(route, &mut component);
                }
            }
        }
        component.slots.sort_unstable();
        self.component = component;
    }

    fn collect_channels(&self, route: &[LinkId], component: &mut Component<'a>) {
        for channel in route.iter().map(|channel| channel.index()) {
            if self.limits(channel) && !std::mem::replace(&mut component.has_channel[channel], true) {
                component.limits.push((channel, self.capacity[channel]));
            }
        }
    }
}
