//! A plan with the result of its search.

use crate::{
    error::SearchError,
    evaluator::Evaluator,
    request::{Request, machine::Machine},
};
use spipe_base::SimTime;
use spipe_cost::Workload;
use spipe_fit::Class;
use spipe_hardware::Hardware;
use spipe_plan::{ExpectedError, Outcome, Plan, SearchRecord, System};
use spipe_planner::{Effort, Solution};
use std::time::Duration;

/// A plan with the result of its search.
pub struct Found {
    /// The plan, on the machine as it is.
    pub plan: Plan,
    /// The planner's solution, with the bound over all sizes of microbatches.
    pub solution: Solution,
    /// Why the search has ended.
    pub ended: Ended,
    /// The iteration of the fastest plan, where one that is easier to read was preferred.
    pub fastest: Option<SimTime>,
}

/// Why a search has ended; its name in JSON is [`Ended::name`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ended {
    /// The steps of this effort were done.
    Effort(Effort),
    /// The time limit was reached.
    Limit(Duration),
    /// No other plan can be faster by more than this fraction.
    Gap(f64),
    /// Everything that the search tries was tried.
    Exhausted,
    /// The user has interrupted the search.
    Interrupted,
}

impl Ended {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Effort(_) => "effort",
            Self::Limit(_) => "limit",
            Self::Gap(_) => "gap",
            Self::Exhausted => "exhausted",
            Self::Interrupted => "interrupted",
        }
    }
}

/// The end of a search.
pub struct End {
    pub solution: Solution,
    pub ended: Ended,
    /// The iteration of the fastest plan, if it is not the one of the solution.
    pub fastest: Option<SimTime>,
}

impl Found {
    /// A solution of `request` with its plan on `machine`, which has the room of drives apart.
    pub fn new(request: &Request, machine: &Machine, workload: Workload, end: End) -> Result<Self, SearchError> {
        let End { solution, ended, fastest } = end;
        let hardware = Hardware::clone(machine.of(solution.placement.system));
        let plan = Plan::new((*request.model).clone(), hardware, workload, solution.placement.clone())?;
        let own = spipe_planner::SYSTEMS.contains(&solution.placement.system)
            || (request.planner == "mobius-mip" && solution.placement.system == System::Mobius);
        let planner = match request.pins.given_stages() {
            Some(_) => "layout",
            None if own => &request.planner,
            None => "generated",
        };
        let outcome = Outcome {
            planner: planner.into(),
            status: solution.status,
            objective_ms: Some(solution.bound.to_ms()),
            gap: Some(solution.gap),
            simulated_iteration_ms: Some(solution.simulated.to_ms()),
            sensitivity: Vec::new(),
            expected_error: expected_error(&plan),
            search: SearchRecord::default(),
        };
        let peaks = Evaluator::new(plan.context()).peaks(plan.placement())?;
        Ok(Self { plan: plan.with_outcome(outcome).with_simulated_peaks(peaks), solution, ended, fastest })
    }
}

/// The error that runs of the plan's class had, if the machine's constants are fitted.
fn expected_error(plan: &Plan) -> Option<ExpectedError> {
    let hardware = plan.context().hardware;
    let error = spipe_fit::error_of_class(hardware, hardware.runtime().name(), Class::of_plan(plan))?;
    let (runs, mean, largest) = error.known.unwrap_or_default();
    Some(ExpectedError { class: error.class.name().into(), runs, mean, largest })
}

/// (simulated − bound) ÷ simulated, and 0 for an empty iteration.
pub fn gap(simulated: SimTime, bound: SimTime) -> f64 {
    if simulated == SimTime::ZERO { 0.0 } else { simulated.saturating_sub(bound).to_ms() / simulated.to_ms() }
}
