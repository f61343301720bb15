//! Planning: one search over the sizes of microbatches, and the questions that are answered by
//! searching again.
//!
//! ```text
//! Request ─► search ─► microbatch_search ─► a planner, with the Evaluator ─► Found
//!                        └─ nothing fits ─► remedies                          │
//!                                  sensitivity (10 % more of each resource) ◄─┤
//!                                                      pareto (less memory) ◄─┘
//! by_layer   checkpointing layer by layer
//! drives     plans whose optimizer state or activations are on drives
//! layout     the stages of `--layout`, and all conditions of the command line
//! measured   the plans of measured runs, for `spipe fit`
//! task       model, machine and workload, from the options of `spipe plan`
//! tensor_data  the configurations that the options of `spipe baseline` describe
//! training   what is trained and in which formats, from the same options
//! watch      incumbents, fast plans that are easy to read, the bar
//! offload    what a plan keeps in DRAM, and whether it must
//! pins       the words of `--pin`
//! solve_for  the largest value for which a plan fits
//! ```

mod by_layer;
mod data;
mod drives;
mod evaluator;
mod fits;
pub mod layout;
mod least;
pub mod measured;
mod microbatch_search;
pub mod offload;
pub mod pareto;
pub mod pins;
mod readable;
mod refusal;
mod remedies;
pub mod sensitivity;
mod sizes;
pub mod solve_for;
pub mod task;
pub mod tensor_data;
pub mod training;
mod watch;
mod workloads;

pub use drives::{DriveFor, OnDrives};
pub use evaluator::{Evaluator, program};
pub use least::{Least, least};
pub use microbatch_search::search;
pub use watch::Watch;
pub use workloads::workloads;

use crate::Failure;
use spipe_base::SimTime;
use spipe_cost::Workload;
use spipe_fit::Class;
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{ExpectedError, Outcome, Placement, Plan, SearchRecord, System};
use spipe_planner::{Effort, Pins, Solution};
use std::{collections::BTreeSet, sync::atomic::AtomicBool, time::Duration};

/// A search for a plan.
#[derive(Clone)]
pub struct Request<'a> {
    pub model: &'a Model,
    pub hardware: &'a Hardware,
    /// The microbatch sizes to try, with the workload of each.
    pub workloads: Vec<Workload>,
    pub systems: Vec<System>,
    /// The name of the planner.
    pub planner: &'a str,
    pub time_limit: Duration,
    /// Steps that are counted instead of the time.
    pub effort: Option<Effort>,
    /// A record of the search.
    pub watch: Option<&'a Watch>,
    /// Ends the search early when it is raised.
    pub stop: &'a AtomicBool,
    /// The search ends when no other plan can be faster by more than this fraction.
    pub gap: f64,
    pub threads: usize,
    /// The pins that the plan must satisfy.
    pub pins: Pins,
    /// A plan to start from.
    pub start: Option<Placement>,
    /// Whether the host may hold the optimizer state or the activations of a GPU's stage.
    pub host_help: bool,
    /// Whether a refusal looks for remedies.
    pub hint: bool,
    /// The drives that are named.
    pub drive_for: DriveFor,
    /// Whether drives may hold what DRAM does not.
    pub drives: bool,
    /// The machine as it is, where `hardware` has the room of the drives in its DRAMs.
    pub on_drives: Option<OnDrives<'a>>,
}

/// A plan with the result of its search.
pub struct Found {
    pub plan: Plan,
    pub solution: Solution,
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

impl Found {
    /// The plan with the course of its search.
    pub fn recorded(&self, watch: &Watch, least: &[Least]) -> Plan {
        let name = |least: &Least| self.plan.context().hardware.memories()[least.memory].name.clone();
        let search = SearchRecord {
            ended: Some(self.ended.name().into()),
            fastest_iteration_ms: self.fastest.map(SimTime::to_ms),
            incumbents: watch.incumbents(),
            least_bytes: least.iter().map(|least| (name(least), least.capacity)).collect(),
            least_iteration_ms: least.iter().map(|least| (name(least), least.iteration.map(SimTime::to_ms))).collect(),
        };
        let outcome = self.plan.outcome().cloned().map(|outcome| Outcome { search, ..outcome });
        outcome.into_iter().fold(self.plan.clone(), Plan::with_outcome)
    }

    /// A solution of `request` with its plan.
    fn new(
        request: &Request<'_>,
        workload: Workload,
        (solution, ended, fastest): (Solution, Ended, Option<SimTime>),
    ) -> Result<Self, Failure> {
        let hardware = request.on_drives.map_or(request.hardware, |on| on.machine);
        let plan = Plan::new(request.model.clone(), hardware.clone(), workload, solution.placement.clone())?;
        let own = spipe_planner::SYSTEMS.contains(&solution.placement.system)
            || (request.planner == "mobius-mip" && solution.placement.system == System::Mobius);
        let planner = match request.pins.given_stages() {
            Some(_) => "layout",
            None if own => request.planner,
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

/// The systems that `--system` allows.
pub fn systems(given: &str) -> Result<Vec<System>, Failure> {
    if given == "auto" {
        return Ok(System::ALL.into_iter().filter(|system| !system.is_stale()).collect());
    }
    if given.split(',').any(|name| name.trim() == "auto") {
        return Err(Failure::argument(
            format!("`{given}` names systems besides `auto`"),
            "`auto` is all of them; leave out the others",
        ));
    }
    let system = |name: &str| name.trim().parse::<System>();
    let systems: Result<BTreeSet<System>, String> = given.split(',').map(system).collect();
    let systems = systems.map_err(|message| Failure::argument(message, "or use auto"))?;
    Ok(systems.into_iter().collect())
}

/// The number of threads that this machine runs at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// (simulated − bound) ÷ simulated, and 0 for an empty iteration.
fn gap(simulated: SimTime, bound: SimTime) -> f64 {
    if simulated == SimTime::ZERO { 0.0 } else { simulated.saturating_sub(bound).to_ms() / simulated.to_ms() }
}
