//! The generated candidate that lacks the fewest bytes, as the reason why nothing fits.

use crate::problem::{PlanError, Problem};
use spipe_base::{Bytes, Diagnostic, MemoryId, StageId, readable::listed};
use spipe_plan::{Context, Placement, StageFootprint, check, check_shape, footprint};
use std::collections::BTreeMap;

/// The bytes that a placement lacks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shortage {
    placement: Placement,
    /// The bytes that the worst memory lacks.
    pub missing: Bytes,
    /// The bytes that each memory lacks, of those that are too small.
    memories: Vec<(MemoryId, Bytes)>,
    /// The bytes of activations in the worst memory.
    activations: Bytes,
}

/// Returns the least shortage of `candidates` that are sound in everything but memory.
pub(crate) fn closest(context: &Context<'_>, candidates: &[Placement]) -> Option<Shortage> {
    let sound = candidates.iter().filter(|placement| check_shape(context, placement).is_ok());
    sound
        .filter_map(|placement| shortage(context, placement))
        .min_by_key(|shortage| (shortage.missing, shortage.memories.len()))
}

fn shortage(context: &Context<'_>, placement: &Placement) -> Option<Shortage> {
    let lacking = |(id, stages): (MemoryId, BTreeMap<StageId, StageFootprint>)| {
        let memory = &context.hardware.memories()[id];
        let usable = memory.usable();
        let sum = |part: fn(&StageFootprint) -> Bytes| stages.values().map(part).sum::<Bytes>();
        let missing = sum(StageFootprint::total).saturating_sub(usable);
        (missing > Bytes::ZERO).then(|| (id, missing, sum(|need| need.per_microbatch * need.in_flight)))
    };
    let lacking: Vec<(MemoryId, Bytes, Bytes)> =
        footprint(context, placement).into_iter().filter_map(lacking).collect();
    let (_, missing, activations) = *lacking.iter().max_by_key(|(_, missing, _)| *missing)?;
    let memories = lacking.into_iter().map(|(id, missing, _)| (id, missing)).collect();
    Some(Shortage { placement: placement.clone(), missing, memories, activations })
}

impl Shortage {
    /// Returns `error` or the error for this shortage, whichever has fewer missing bytes.
    pub(crate) fn or_closer(&self, error: PlanError, context: &Context<'_>) -> PlanError {
        match error {
            PlanError::Infeasible { missing: Some(missing), .. } if missing <= self.missing => error,
            _ => self.error(context),
        }
    }

    /// The error for this shortage.
    pub fn error(&self, context: &Context<'_>) -> PlanError {
        let devices = self.placement.devices().into_iter();
        let devices: Vec<&str> = devices.map(|device| context.hardware.devices()[device].name.as_str()).collect();
        let name = |memory: &MemoryId| context.hardware.memories()[*memory].name.as_str();
        let most = self.memories.iter().max_by_key(|(_, missing)| *missing);
        PlanError::Infeasible {
            reason: format!(
                "no placement fits: the closest one, system `{}` on {}, needs {} more in `{}`",
                self.placement.system,
                listed(&devices),
                self.missing,
                most.map_or("", |(memory, _)| name(memory)),
            ),
            hint: self.hint(context, &name),
            missing: Some(self.missing),
            certain: false,
        }
    }

    /// Two remedies: more of every memory that is too small, and smaller activations where these
    /// would do.
    fn hint<'n>(&self, context: &Context<'_>, name: &dyn Fn(&MemoryId) -> &'n str) -> String {
        let mut alike: BTreeMap<Bytes, Vec<&str>> = BTreeMap::new();
        for (memory, missing) in &self.memories {
            alike.entry(missing.up_to_printed()).or_default().push(name(memory));
        }
        let each = |(more, names): (&Bytes, &Vec<&str>)| {
            format!("{}{} {more} more", if names.len() > 1 { "each of " } else { "" }, listed(names))
        };
        let each: Vec<String> = alike.iter().map(each).collect();
        let mut ways = vec![format!("give {}", each.join(" and "))];
        if self.activations >= self.missing {
            let microbatch = if context.workload().microbatch > 1 { "a smaller microbatch or " } else { "" };
            ways.push(format!("use {microbatch}a shorter sequence"));
        }
        ways.join(", or ")
    }
}

/// Returns why the checker refuses a placement: its shortage of memory, where that is all, or else its
/// first fault. `None` if the checker accepts it.
pub fn refusal_of(context: &Context<'_>, placement: &Placement) -> Option<PlanError> {
    let short = || closest(context, std::slice::from_ref(placement)).map(|shortage| shortage.error(context));
    let faults = check(context, placement).err()?;
    short().or_else(|| faults.iter().next().map(of_fault))
}

fn of_fault(fault: &Diagnostic) -> PlanError {
    PlanError::Infeasible {
        reason: fault.message.clone(),
        hint: fault.hint.clone().unwrap_or_default(),
        missing: None,
        certain: false,
    }
}

/// Returns the reason why none of `candidates` is a plan although none lacks memory: a fault that
/// the checker found, or that none runs.
pub(crate) fn without_shortage(problem: &Problem<'_>, candidates: &[Placement], examined: usize) -> PlanError {
    let faults = candidates.iter().map(|placement| check(&problem.context, placement).err());
    let Some(faults) = faults.collect::<Option<Vec<_>>>() else { return PlanError::NothingRuns { examined } };
    let least = faults.iter().min_by_key(|faults| faults.iter().count());
    let first = least.and_then(|faults| faults.iter().next());
    match first {
        None => PlanError::NoSystem,
        Some(fault) => of_fault(fault),
    }
}
