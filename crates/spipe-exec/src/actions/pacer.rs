//! Emulates links of limited bandwidth.
//!
//! Flows share channels max-min fairly, as in the simulator. The fluid model is advanced whenever a
//! flow starts or a thread asks for its flow's end. A flow that has ended in the model frees its
//! bandwidth at that moment, even if its own thread wakes up later.

use spipe_base::{BytesPerSecond, LinkId};
use spipe_schedule::{Channel, Demand, FairShare, Flow, Share};
use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The channels of a program, and the flows on them.
#[derive(Debug)]
pub(crate) struct Pacer {
    rates: Vec<f64>,
    fluid: Mutex<Fluid>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Fluid {
    now: Option<Instant>,
    next: u64,
    active: BTreeMap<u64, Active>,
    /// Ends of flows whose threads have not noticed yet.
    ended: BTreeMap<u64, Instant>,
}

#[derive(Clone, Debug)]
struct Active {
    route: Arc<[LinkId]>,
    /// See [`Demand::peak`].
    peak: f64,
    share: Share,
    opens: Instant,
    left: f64,
    rate: f64,
}

impl Active {
    /// A flow that opens at `opens` on channels with the given rates.
    fn new(flow: &Flow, opens: Instant, rates: &[f64]) -> Self {
        let cap = flow.rate_cap.map_or(f64::INFINITY, BytesPerSecond::get);
        Self {
            route: Arc::clone(&flow.route),
            peak: flow.route.iter().map(|channel| rates[channel.index()]).fold(cap, f64::min),
            share: flow.share,
            opens,
            left: flow.bytes.as_f64(),
            rate: 0.0,
        }
    }

    /// Whether less than one byte, or less than one tick of the clock, is left.
    fn is_through(&self) -> bool {
        self.left <= 0.5_f64.max(self.rate * NOTHING)
    }
}

/// A flow under way.
#[derive(Debug)]
pub(crate) struct Ticket(u64);

/// How long before a flow's end its thread stops sleeping: a sleep ends up to this much late.
const SPIN: Duration = Duration::from_micros(80);
/// How often a sleeping thread checks whether the run has failed.
const GLANCE: Duration = Duration::from_millis(20);
/// Time before a flow's end that counts as zero, in seconds: times are whole nanoseconds.
const NOTHING: f64 = 2e-9;

impl Pacer {
    /// A pacer for `channels`.
    pub fn new<'a>(channels: impl IntoIterator<Item = &'a Channel>) -> Self {
        let rates = channels.into_iter().map(|channel| channel.bandwidth.get()).collect();
        Self { rates, fluid: Mutex::default(), changed: Condvar::new() }
    }

    /// Starts a flow now; its first byte moves after its latency.
    pub fn start(&self, flow: &Flow) -> Ticket {
        let now = Instant::now();
        let latency = Duration::from_nanos(flow.latency.as_ns());
        let mut fluid = self.lock();
        fluid.advance(now, &self.rates);
        let id = fluid.next;
        fluid.next += 1;
        fluid.active.insert(id, Active::new(flow, now + latency, &self.rates));
        fluid.share(&self.rates);
        drop(fluid);
        self.changed.notify_all();
        Ticket(id)
    }

    /// Waits until the flow has ended and returns when it did; none if `stopped` became true first.
    pub fn finish(&self, ticket: Ticket, stopped: &dyn Fn() -> bool) -> Option<Instant> {
        let mut fluid = self.lock();
        loop {
            fluid.advance(Instant::now(), &self.rates);
            let Some(due) = fluid.due(ticket.0) else {
                let end = fluid.ended.remove(&ticket.0);
                self.changed.notify_all();
                return Some(end.unwrap_or_else(Instant::now));
            };
            if stopped() {
                fluid.active.remove(&ticket.0);
                fluid.share(&self.rates);
                self.changed.notify_all();
                return None;
            }
            let left = due.saturating_duration_since(Instant::now());
            if left > SPIN {
                let nap = (left - SPIN).min(GLANCE);
                fluid = self.changed.wait_timeout(fluid, nap).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                drop(fluid);
                // Yielding would cost a time slice of the thread that computes on this core.
                while Instant::now() < due {
                    std::hint::spin_loop();
                }
                fluid = self.lock();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Fluid> {
        self.fluid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fluid {
    /// When the flow ends if nothing changes; none if it has ended.
    fn due(&self, id: u64) -> Option<Instant> {
        let flow = self.active.get(&id)?;
        let from = self.now.map_or(flow.opens, |now| now.max(flow.opens));
        if flow.is_through() {
            return Some(from);
        }
        // A flow that has not opened has no rate yet; it is looked at again when it opens.
        Some(if flow.rate > 0.0 { from + seconds(flow.left / flow.rate) } else { from })
    }

    /// Advances the model to `to`, from one opening or end of a flow to the next.
    fn advance(&mut self, to: Instant, rates: &[f64]) {
        loop {
            let now = *self.now.get_or_insert(to);
            let openings = self.active.values().map(|flow| flow.opens).filter(|opens| *opens > now);
            let ends = self.active.keys().filter_map(|id| self.due(*id));
            let next = openings.chain(ends).min().map_or(to, |event| event.min(to)).max(now);
            let passed = (next - now).as_secs_f64();
            for flow in self.active.values_mut().filter(|flow| flow.opens <= now) {
                flow.left -= flow.rate * passed;
            }
            self.now = Some(next);
            let over = |flow: &Active| flow.opens <= next && flow.is_through();
            let ended: Vec<u64> = self.active.iter().filter(|(_, flow)| over(flow)).map(|(id, _)| *id).collect();
            for id in &ended {
                self.active.remove(id);
                self.ended.insert(*id, next);
            }
            let opened = self.active.values().any(|flow| flow.opens <= next && flow.rate <= 0.0);
            if !ended.is_empty() || opened {
                self.share(rates);
            }
            if next >= to && ended.is_empty() {
                return;
            }
        }
    }

    /// Sets the max–min fair rates of the open flows.
    fn share(&mut self, rates: &[f64]) {
        let now = self.now;
        let is_open = |flow: &Active| now.is_some_and(|now| flow.opens <= now);
        let open = self.active.values().filter(|flow| is_open(flow));
        let demands: Vec<Demand<'_>> =
            open.map(|flow| Demand { route: &flow.route, peak: flow.peak, share: flow.share }).collect();
        let limits: Vec<(usize, f64)> = rates.iter().copied().enumerate().collect();
        let mut fair = vec![0.0; demands.len()];
        FairShare::new(rates.len()).rates(&limits, &demands, |index, rate| fair[index] = rate);
        for (flow, rate) in self.active.values_mut().filter(|flow| is_open(flow)).zip(fair) {
            // Every open flow moves, so that it ends: one that gets nothing at a byte per second,
            // one without limits at a rate that ends it at once.
            flow.rate = if rate.is_finite() { rate.max(1.0) } else { 1e15 };
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_base::{Bytes, SimTime};

    fn pacer() -> Pacer {
        let channel = |name: &str, mb: f64| Channel { name: name.into(), bandwidth: BytesPerSecond::bytes(mb * 1e6) };
        Pacer::new(&[channel("a", 100.0), channel("b", 1000.0)])
    }

    fn flow(route: &[usize], kb: u64, latency_us: u64) -> Flow {
        Flow {
            route: route.iter().map(|link| LinkId::from(*link)).collect::<Vec<_>>().into(),
            latency: SimTime::ns(latency_us * 1000),
            bytes: Bytes::new(kb * 1000),
            rate_cap: None,
            share: Share::default(),
        }
    }

    /// Milliseconds that each flow takes in the model when all start at once.
    fn times(flows: &[Flow]) -> Vec<f64> {
        let pacer = pacer();
        let mut fluid = Fluid::default();
        let start = Instant::now();
        fluid.advance(start, &pacer.rates);
        for (id, flow) in flows.iter().enumerate() {
            let opens = start + Duration::from_nanos(flow.latency.as_ns());
            fluid.active.insert(id as u64, Active::new(flow, opens, &pacer.rates));
        }
        fluid.share(&pacer.rates);
        fluid.advance(start + Duration::from_secs(100), &pacer.rates);
        fluid.ended.values().map(|end| (*end - start).as_secs_f64() * 1e3).collect()
    }

    #[test]
    fn flows_share_channels_fairly() {
        let near = |times: Vec<f64>, wanted: &[f64]| {
            assert!(
                times.len() == wanted.len() && times.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 0.01),
                "{times:?}"
            );
        };
        near(times(&[flow(&[0], 1000, 0)]), &[10.0]);
        near(times(&[flow(&[0, 1], 1000, 500)]), &[10.5]);
        near(times(&[flow(&[0], 1000, 0), flow(&[0], 1000, 0)]), &[20.0, 20.0]);
        // They share the channel until the first ends; then the second has it to itself.
        near(times(&[flow(&[0], 500, 0), flow(&[0], 1000, 0)]), &[10.0, 15.0]);
        near(times(&[flow(&[0], 1000, 0), flow(&[1], 1000, 0)]), &[10.0, 1.0]);
        // A channel that is crossed twice carries each byte twice.
        near(times(&[flow(&[0, 0], 1000, 0)]), &[20.0]);
        near(times(&[flow(&[0], 0, 300)]), &[0.3]);
        // By weight, 80 and 20 MB/s; by priority, one after the other.
        let with = |share| Flow { share, ..flow(&[0], 1000, 0) };
        let four = std::num::NonZeroU32::MIN.saturating_add(3);
        near(times(&[with(Share { weight: four, priority: 0 }), flow(&[0], 1000, 0)]), &[12.5, 20.0]);
        near(times(&[flow(&[0], 1000, 0), with(Share { priority: 1, ..Share::default() })]), &[20.0, 10.0]);
    }

    #[test]
    fn waiting_takes_as_long_as_the_model_says() {
        let pacer = pacer();
        let start = Instant::now();
        let ticket = pacer.start(&flow(&[0], 500, 200));
        let end = pacer.finish(ticket, &|| false).unwrap();
        let took = (end - start).as_secs_f64() * 1e3;
        assert!((5.19..500.0).contains(&took) && end <= Instant::now(), "{took} ms");
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let pacer = pacer();
        let ticket = pacer.start(&flow(&[0], 100_000_000, 0));
        assert!(pacer.finish(ticket, &|| true).is_none());
        assert!(pacer.lock().active.is_empty());
    }
}
