//! Max–min fair rates of flows on shared channels.
//!
//! The rates come from progressive filling (Bertsekas, Gallager: Data Networks, section 6.5.2). All
//! rates rise together until a channel is full or a flow has reached its own peak; the rates of the
//! flows concerned are final, and the others go on rising. Rates rise in proportion to the weights
//! of the flows, and those of a lower priority only once all of a higher one are final.

use crate::Share;
use spipe_base::LinkId;

/// A flow that demands a share of the channels of its route.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The channels of the route. A channel that is passed twice carries every byte twice.
    pub route: &'a [LinkId],
    /// The highest rate, in bytes per second: the least of the flow's own limit and of the
    /// capacities of its channels.
    pub peak: f64,
    /// The priority and weight.
    pub share: Share,
}

/// The progressive filling, with work space that is reused between calls.
#[derive(Debug, Default)]
pub struct FairShare {
    /// By channel, whether it limits flows in this call.
    limits: Vec<bool>,
    /// By channel, the rate that is left, in bytes per second.
    left: Vec<f64>,
    /// By channel, the weights of the flows whose rates still rise.
    open: Vec<f64>,
    /// The priorities to be served, lowest first.
    priorities: Vec<u8>,
    /// By flow, whether its rate is final.
    settled: Vec<bool>,
}

impl FairShare {
    /// Work space for `channels` channels.
    pub fn new(channels: usize) -> Self {
        Self { limits: vec![false; channels], left: vec![0.0; channels], open: vec![0.0; channels], ..Self::default() }
    }

    /// Calls `settle` with the index and the rate of each of `flows`, in bytes per second.
    ///
    /// `limits` are the channels that may limit flows, each with its capacity; other channels are
    /// taken as wide enough. A flow without peak whose channels limit nothing has an infinite rate,
    /// and a flow whose channels are full has rate zero.
    pub fn rates(&mut self, limits: &[(usize, f64)], flows: &[Demand<'_>], mut settle: impl FnMut(usize, f64)) {
        for (channel, capacity) in limits {
            self.limits[*channel] = true;
            self.left[*channel] = *capacity;
        }
        self.settled.clear();
        self.settled.resize(flows.len(), false);
        self.priorities.clear();
        self.priorities.extend(flows.iter().map(|flow| flow.share.priority));
        self.priorities.sort_unstable();
        self.priorities.dedup();
        while let Some(priority) = self.priorities.pop() {
            self.fill(priority, limits, flows, &mut settle);
        }
        for (channel, _) in limits {
            self.limits[*channel] = false;
        }
    }

    /// Raises the rates of one priority until all are final.
    fn fill(
        &mut self,
        priority: u8,
        limits: &[(usize, f64)],
        flows: &[Demand<'_>],
        settle: &mut impl FnMut(usize, f64),
    ) {
        for (channel, _) in limits {
            self.open[*channel] = 0.0;
        }
        let mut unsettled = 0;
        for flow in flows.iter().filter(|flow| flow.share.priority == priority) {
            unsettled += 1;
            for channel in flow.route {
                self.open[channel.index()] += flow.weight();
            }
        }
        while unsettled > 0 {
            let level = self.next_level(priority, limits, flows);
            for (index, flow) in flows.iter().enumerate() {
                if self.settled[index] || flow.share.priority != priority {
                    continue;
                }
                let weight = flow.weight();
                let limiting = flow.route.iter().map(|channel| channel.index()).filter(|channel| self.limits[*channel]);
                let bound = limiting.map(|channel| self.left[channel] / self.open[channel]);
                // Flows are settled together if they differ by rounding only.
                if bound.fold(flow.peak / weight, f64::min) > level * (1.0 + 1e-12) {
                    continue;
                }
                self.settled[index] = true;
                unsettled -= 1;
                for channel in flow.route.iter().map(|channel| channel.index()) {
                    self.left[channel] = (self.left[channel] - level * weight).max(0.0);
                    self.open[channel] -= weight;
                }
                settle(index, level * weight);
            }
        }
    }

    /// The lowest rate of a flow of weight 1 at which a channel or a flow's own peak stops a rate
    /// that still rises.
    fn next_level(&self, priority: u8, limits: &[(usize, f64)], flows: &[Demand<'_>]) -> f64 {
        let mut level = f64::INFINITY;
        for channel in limits.iter().map(|(channel, _)| *channel).filter(|channel| self.open[*channel] > 0.0) {
            level = level.min(self.left[channel] / self.open[channel]);
        }
        for (flow, settled) in flows.iter().zip(&self.settled) {
            if !settled && flow.share.priority == priority {
                level = level.min(flow.peak / flow.weight());
            }
        }
        level
    }
}

impl Demand<'_> {
    fn weight(&self) -> f64 {
        f64::from(self.share.weight.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn rates(capacities: &[f64], flows: &[(&[usize], f64, Share)]) -> Vec<f64> {
        let routes: Vec<Vec<LinkId>> =
            flows.iter().map(|(route, ..)| route.iter().map(|channel| LinkId::from(*channel)).collect()).collect();
        let demands: Vec<Demand<'_>> = flows
            .iter()
            .zip(&routes)
            .map(|((_, peak, share), route)| Demand { route, peak: *peak, share: *share })
            .collect();
        let mut rates = vec![f64::NAN; flows.len()];
        let limits: Vec<(usize, f64)> = capacities.iter().copied().enumerate().collect();
        FairShare::new(capacities.len()).rates(&limits, &demands, |flow, rate| rates[flow] = rate);
        rates
    }

    #[test]
    fn flows_share_channels_by_priority_and_weight() {
        let one = Share::default();
        let weight = |weight| Share { weight: NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN), ..one };
        let first = Share { priority: 1, ..one };
        assert_eq!(rates(&[100.0], &[(&[0], 100.0, one), (&[0], 100.0, one)]), [50.0, 50.0]);
        // The flow over both channels is limited by the narrow one; the others share the rest.
        let shared = [(&[0, 1][..], 30.0, one), (&[1], 100.0, one), (&[1], 20.0, one)];
        assert_eq!(rates(&[30.0, 100.0], &shared), [30.0, 50.0, 20.0]);
        assert_eq!(rates(&[100.0], &[(&[0], 100.0, weight(3)), (&[0], 100.0, one)]), [75.0, 25.0]);
        assert_eq!(rates(&[100.0], &[(&[0], 100.0, one), (&[0], 60.0, first)]), [40.0, 60.0]);
        assert_eq!(rates(&[100.0], &[(&[0], 100.0, one), (&[0], 100.0, first)]), [0.0, 100.0]);
        // A channel that is passed twice carries every byte twice.
        assert_eq!(rates(&[100.0], &[(&[0, 0], 100.0, one)]), [50.0]);
        assert_eq!(rates(&[], &[(&[], f64::INFINITY, one)]), [f64::INFINITY]);
    }
}
