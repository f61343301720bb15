//! Memory that stages need on their hosts, and work that hosts do for them.

use crate::formulation::stage_milp::{GIB, StageMilp, Unknowns};
use good_lp::{Constraint, Expression, constraint};
use spipe_base::{Bytes, DeviceId};
use std::collections::BTreeMap;

impl StageMilp<'_, '_> {
    /// Returns the GiB that stage i needs on its host:
    /// `Σ_k (optimizer + gradients + parameters)_k x_ik − s_i` for the optimizer, and
    /// `K_i (M_i + a°_i − a_i)` for the activations.
    pub(crate) fn need_of_host(&self, unknowns: &Unknowns, stage: usize) -> Expression {
        let (device, host_offload) = (self.device(stage), self.case.host_offload(stage));
        let mut need = Expression::from(0.0);
        if host_offload.optimizer {
            need += self.sum(unknowns, stage, |layer| {
                let bytes = &device.bytes[layer];
                (bytes.optimizer + bytes.gradients + bytes.parameters).as_f64() / GIB
            });
            need -= self.stays(unknowns, stage);
        }
        if host_offload.activations {
            need += self.leaving(unknowns, stage) * self.case.stage_slots[stage].in_flight as f64;
        }
        need
    }

    /// Load of every socket: `T ≥ Σ parameters ÷ rate` over the stages that it updates.
    pub(crate) fn socket_loads(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let mut loads: BTreeMap<DeviceId, Expression> = BTreeMap::new();
        for stage in (0..self.stages()).filter(|stage| self.case.host_offload(*stage).optimizer) {
            let Some(host) = self.device(stage).host(self.case.host_offload(stage)) else { continue };
            let cost = self.costs.context.cost;
            let step = |layer: usize| {
                cost.optimizer_time(cost.trained_parameters(layer.into()), host.socket).to_ms() / self.unit
            };
            *loads.entry(host.socket).or_insert_with(|| 0.0.into()) += self.sum(unknowns, stage, step);
        }
        loads.into_values().map(|load| constraint!(load <= unknowns.iteration)).collect()
    }

    /// Load of the one stream on which a stage's activations leave and return:
    /// `T ≥ m (M_i + a°_i − a_i) (out + back)`.
    pub(crate) fn streams(&self, unknowns: &Unknowns) -> Vec<Constraint> {
        let stream = |stage: usize| {
            let host_offload = self.case.host_offload(stage);
            let host = self.device(stage).host(host_offload).filter(|_| host_offload.activations)?;
            let per_gib = self.costs.microbatches as f64 * (host.out + host.back) * GIB / self.unit;
            Some(constraint!(self.leaving(unknowns, stage) * per_gib <= unknowns.iteration))
        };
        (0..self.stages()).filter_map(stream).collect()
    }

    /// Returns the GiB that stage i moves per iteration: to its host (`outwards`), or back.
    pub(crate) fn moved(&self, unknowns: &Unknowns, stage: usize, outwards: bool) -> Expression {
        let (device, host_offload) = (self.device(stage), self.case.host_offload(stage));
        let mut moved = Expression::from(0.0);
        if host_offload.optimizer {
            moved += self.sum(unknowns, stage, |layer| {
                let bytes = &device.bytes[layer];
                let back = if bytes.gradients > Bytes::ZERO { bytes.parameters } else { Bytes::ZERO };
                if outwards { bytes.gradients } else { back }.as_f64() / GIB
            });
        }
        if host_offload.activations {
            moved += self.leaving(unknowns, stage) * self.costs.microbatches as f64;
        }
        moved
    }
}
