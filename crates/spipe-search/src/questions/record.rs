//! A plan with the course of its search.

use super::least::Least;
use crate::{request::watch::Watch, search::found::Found};
use spipe_base::SimTime;
use spipe_plan::{EngineCommand, Outcome, Plan, SearchRecord};

/// The plan that was found, with the course of its search, the least memory for some plan, and the engines that run it.
pub fn recorded(found: &Found, watch: &Watch, (least, engines): (&[Least], Vec<EngineCommand>)) -> Plan {
    let plan = &found.plan;
    let name = |least: &Least| plan.context().hardware.memories()[least.memory].name.clone();
    let search = SearchRecord {
        ended: Some(found.ended.name().into()),
        fastest_iteration_ms: found.fastest.map(SimTime::to_ms),
        incumbents: watch.incumbents(),
        engines: Some(engines),
        least_bytes: least.iter().map(|least| (name(least), least.capacity)).collect(),
        least_bytes_found: least.iter().map(|least| (name(least), least.found)).collect(),
        least_iteration_ms: least.iter().map(|least| (name(least), Some(least.iteration.to_ms()))).collect(),
    };
    let outcome = plan.outcome().cloned().map(|outcome| Outcome { search, ..outcome });
    outcome.into_iter().fold(plan.clone(), Plan::with_outcome)
}
