//! Why nothing fits: the candidate that lacks least, and what would help it.

use crate::{PlanError, Problem};
use spipe_base::{Bytes, MemoryId, StageId};
use spipe_plan::{Context, Family, Placement, StageFootprint, check, check_shape, footprint};
use std::collections::BTreeMap;

/// What a placement lacks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shortage {
    placement: Placement,
    memory: MemoryId,
    /// What the memory that lacks most lacks.
    pub missing: Bytes,
    /// Parameters, gradients and optimizer state there.
    state: Bytes,
    activations: Bytes,
}

/// The shortage of the placement of `candidates` that lacks least, of those that are wrong in nothing else.
pub(crate) fn closest(context: &Context<'_>, candidates: &[Placement]) -> Option<Shortage> {
    let sound = candidates.iter().filter(|placement| check_shape(context, placement).is_ok());
    sound.filter_map(|placement| shortage(context, placement)).min_by_key(|shortage| shortage.missing)
}

fn shortage(context: &Context<'_>, placement: &Placement) -> Option<Shortage> {
    let of_memory = |(id, stages): (MemoryId, BTreeMap<StageId, StageFootprint>)| {
        let memory = &context.hardware.memories()[id];
        let usable = memory.capacity.saturating_sub(memory.reserved);
        let sum = |part: fn(&StageFootprint) -> Bytes| stages.values().map(part).sum::<Bytes>();
        let missing = sum(StageFootprint::total).saturating_sub(usable);
        (missing > Bytes::ZERO).then(|| Shortage {
            placement: placement.clone(),
            memory: id,
            missing,
            state: sum(|need| need.state),
            activations: sum(|need| need.per_microbatch * need.in_flight),
        })
    };
    footprint(context, placement).into_iter().filter_map(of_memory).max_by_key(|shortage| shortage.missing)
}

impl Shortage {
    /// The refusal that quotes it.
    pub fn error(&self, context: &Context<'_>) -> PlanError {
        let memory = &context.hardware.memories()[self.memory].name;
        let devices = self.placement.devices().into_iter();
        let devices: Vec<&str> = devices.map(|device| context.hardware.devices()[device].name.as_str()).collect();
        PlanError::Infeasible {
            reason: format!(
                "no placement fits: the closest one, system `{}` on `{}`, needs at least {} more in `{memory}`",
                self.placement.system,
                devices.join("`, `"),
                self.missing
            ),
            hint: self.hint(context, memory),
            missing: Some(self.missing),
        }
    }

    /// More memory; elsewhere as many layers as the missing bytes come to; or smaller microbatches.
    fn hint(&self, context: &Context<'_>, memory: &str) -> String {
        let mut ways = vec![format!("give `{memory}` {} more", self.missing)];
        let here = |device| context.hardware.devices()[device].memory == self.memory;
        let layers: usize =
            self.placement.stages.iter().filter(|stage| here(stage.device)).map(|stage| stage.layers.count()).sum();
        if self.placement.system.family() == Family::Pipeline && layers > 0 && self.state > Bytes::ZERO {
            let each = (self.state.get() / layers as u64).max(1);
            let fewer = self.missing.get().div_ceil(each);
            if fewer < layers as u64 {
                ways.push(format!("move {fewer} more {} away from it", if fewer == 1 { "layer" } else { "layers" }));
            }
        }
        if self.activations >= self.missing {
            ways.push("use a smaller microbatch or a shorter sequence".into());
        }
        ways.join(", or ")
    }
}

/// Why none of `candidates` will do although none lacks memory: what the checker says, or that none runs.
pub(crate) fn without_shortage(problem: &Problem<'_>, candidates: &[Placement], examined: usize) -> PlanError {
    let faults = candidates.iter().map(|placement| check(&problem.context, placement).err());
    let Some(faults) = faults.collect::<Option<Vec<_>>>() else { return PlanError::NothingRuns { examined } };
    let least = faults.iter().min_by_key(|faults| faults.iter().count());
    let first = least.and_then(|faults| faults.iter().next());
    match first {
        None => PlanError::NoSystem,
        Some(fault) => PlanError::Infeasible {
            reason: fault.message.clone(),
            hint: fault.hint.clone().unwrap_or_default(),
            missing: None,
        },
    }
}
