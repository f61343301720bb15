//! Rows for optimizer steps on the host, which run between the backwards of one iteration and the
//! forwards of the next.

use crate::formulation::assignment::{
    DeviceClass,
    columns::{AssignmentProgram, ResourceLoad},
};
use crate::space::rules::{Permission, SystemRules};
use good_lp::{Expression, constraint};
use spipe_base::{Bytes, DeviceId};
use spipe_cost::LayerMemory;

impl AssignmentProgram<'_, '_> {
    /// Bounds the iteration of a single device whose optimizer steps run on the host: between the
    /// last microbatch's backward and the first one's forward of the next iteration.
    ///
    /// All other passes of the device come on top. The last layer's gradients come first, and its
    /// parameters are needed last. With a and b for the transfers of these two,
    /// `T ≥ (m − 1) (F + B) + B_last + a + steps + F_last`, and b of the smallest layer. Where
    /// gradients are checked, no step starts before the whole backward has ended: B replaces
    /// B_last, and a and F_last are of the smallest layer as well.
    pub(crate) fn step_at_the_end(&mut self, classes: &[DeviceClass], host: &ResourceLoad) {
        let SystemRules { synchronous, steps_on_host, streams, splits, .. } = *self.rules;
        let [class] = classes else { return };
        let (costs, device) = (self.costs, &self.costs.devices[class.members[0]]);
        let steps = steps_on_host == Permission::Required && streams == Permission::Forbidden && synchronous && !splits;
        let trains = costs.training && costs.frozen == 0;
        let (rate, m) = (self.step_rate(), costs.microbatches as f64);
        if class.count > 1 || device.is_cpu || !steps || !trains || rate <= 0.0 {
            return;
        }
        let last = costs.layers - 1;
        let (times, bytes) = (device.times[last].unwrap_or_default(), &device.bytes[last]);
        let [inward, outward] = class.rates;
        let way = |bytes: Bytes, rate: f64| if rate.is_finite() { bytes.as_f64() / 1e6 / rate } else { 0.0 };
        let trained = || device.bytes.iter().zip(&device.times).filter(|(bytes, _)| bytes.gradients > Bytes::ZERO);
        let least = |of: &dyn Fn(&LayerMemory, f64) -> f64| {
            let all = trained().map(|(bytes, times)| of(bytes, times.unwrap_or_default().forward));
            all.reduce(f64::min).unwrap_or(0.0)
        };
        let (mut ends, mut others) = (0.0, self.computed.clone() * ((m - 1.0) / m));
        if self.costs.phased || self.checks() {
            // In a phase of their own, all steps come before all forwards. Most have their
            // gradients when the last backward ends.
            let (phased, checks) = (self.costs.phased, self.checks());
            others += if phased { self.computed.clone() } else { self.returned.clone() } / m;
            ends += least(&|bytes, _| if checks { way(bytes.gradients, outward) } else { 0.0 });
            ends += least(&|bytes, forward| way(bytes.updated, inward) + if phased { 0.0 } else { forward });
        } else {
            ends += times.backward + least(&|bytes, _| way(bytes.updated, inward));
            if bytes.gradients > Bytes::ZERO {
                ends += way(bytes.gradients, outward) + times.forward;
            }
        }
        let stepped = host.busy.clone() / (rate * self.unit);
        self.rows.push(constraint!(stepped + others + ends / self.unit <= self.busiest));
    }

    /// Returns whether steps wait for the norm of all gradients.
    fn checks(&self) -> bool {
        self.costs.context.workload().checks_gradients()
    }

    /// Bounds the iteration where every optimizer step waits for the norm of all gradients.
    ///
    /// Every step comes after all backwards of its iteration and before all backwards of the next
    /// one, since each microbatch has passed all layers by then:
    /// `T ≥ steps of a socket + work of a device from its first backward on`. Both are at least the
    /// mean, over all sockets and over the devices of a class. The first recompute of a device may
    /// precede the steps of later layers, unless the device is alone. Where steps are a phase, they
    /// also precede all forwards.
    pub(crate) fn step_after_norm(
        &mut self,
        (classes, burdens): (&[DeviceClass], &[ResourceLoad]),
        host: &ResourceLoad,
    ) {
        let SystemRules { synchronous, apart, .. } = *self.rules;
        let rate = self.step_rate();
        let waits = self.checks() || self.costs.phased;
        if !self.costs.training || !waits || !synchronous || apart || rate <= 0.0 {
            return;
        }
        let stepped = host.busy.clone() / (rate * self.unit);
        let devices: usize = classes.iter().map(|class| class.count).sum();
        let first_again = if devices == 1 { self.again.clone() } else { Expression::default() };
        for (class, burden) in classes.iter().zip(burdens) {
            let passes = burden.returned.clone() / class.count as f64 + first_again.clone();
            self.rows.push(constraint!(stepped.clone() + passes <= self.busiest));
        }
        if self.costs.phased {
            self.rows.push(constraint!(stepped + self.computed.clone() / devices as f64 <= self.busiest));
        }
    }

    /// Returns the billions of parameters that all sockets together update per ms.
    pub fn step_rate(&self) -> f64 {
        let sockets = self.costs.devices.iter().enumerate().filter(|(_, device)| device.is_cpu);
        let billion = |socket: usize| self.costs.context.cost.optimizer_time(1_000_000_000, DeviceId::from(socket));
        sockets.map(|(socket, _)| 1.0 / billion(socket).to_ms()).sum()
    }
}
