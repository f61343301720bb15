//! The problem that a planner gets and the solution or error that it returns.
//!
//! - here: [`Problem`] with its [`Options`], [`Solution`], [`PlanError`], [`Planner`]
//! - [`evaluator`]: the interface to the simulator
//! - [`effort`]: searches that count steps
//! - [`deadline`]: the time limit and the stop signal
//! - [`pins`]: constraints that the user sets on the plan

pub(crate) mod bound;
pub(crate) mod budget;
mod deadline;
mod effort;
mod evaluator;
pub(crate) mod pins;
pub(crate) mod tolerances;

use self::pins::Pins;
pub(crate) use deadline::Deadline;
pub use effort::Effort;
pub use evaluator::Evaluator;
use spipe_base::{Bytes, SimTime};
use spipe_plan::{Context, OutcomeStatus, Placement, System};
use std::{sync::atomic::AtomicBool, time::Duration};

/// The systems whose stages branch and bound and the dynamic program search; all others have
/// candidate generators.
pub const SYSTEMS: [System; 3] = [System::Gpipe, System::OneForwardOneBackward, System::Hybrid];

/// The largest head start that planners try for the hybrid system, in microbatches.
pub const LARGEST_HEAD_START: u64 = 2;

/// The most offload slots per direction that planners try.
pub const MOST_OFFLOAD_SLOTS: u64 = 4;

/// A planning problem.
pub struct Problem<'a> {
    /// The model, the machine and the costs.
    pub context: Context<'a>,
    /// The systems that may be used; several leave the choice to the planner.
    pub systems: Vec<System>,
    /// The limits of the search and the constraints on the plan.
    pub options: Options,
    /// The judge of candidates.
    pub evaluator: &'a dyn Evaluator,
    /// The stop signal: set by the caller to end the search early, and polled between steps.
    pub stop: &'a AtomicBool,
}

/// The limits of the search and the constraints on the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The time limit. Heuristic plans are made even at zero, and then reported as stopped.
    pub time_limit: Duration,
    /// The steps of the search, where it is to end before it has nothing left to try.
    pub effort: Option<Effort>,
    /// The search ends when no other placement can be faster by more than this fraction of the
    /// iteration time.
    pub gap: f64,
    /// The number of threads. It does not change the plan.
    pub threads: usize,
    /// The most placements that exhaustive search takes on.
    pub exhaustive_limit: u64,
    /// The most placements of a system that are all tried, where its bound leaves a gap.
    pub every_limit: usize,
    /// Whether the optimizer state or the activations of a GPU's stage may be offloaded to the
    /// host.
    pub host_help: bool,
    /// The constraints that the plan must satisfy.
    pub pins: Pins,
    /// A plan to start from.
    pub start: Option<Placement>,
    /// The most neighbours of a system's best placements that local search simulates.
    pub refinements: usize,
    /// The iteration time of a known plan: only faster ones are wanted.
    pub incumbent: Option<SimTime>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            time_limit: Duration::from_secs(60),
            effort: None,
            gap: 0.005,
            threads: 1,
            exhaustive_limit: 1_000_000,
            every_limit: 20_000,
            host_help: true,
            pins: Pins::default(),
            start: None,
            refinements: 3000,
            incumbent: None,
        }
    }
}

/// The time limit of searches that have none: longer than any of them takes, and short enough to be
/// divided and multiplied.
const NO_LIMIT: Duration = Duration::from_secs(1_000_000);

impl Options {
    /// Returns the time limit.
    pub(crate) fn limit(&self) -> Duration {
        self.time_limit.min(NO_LIMIT)
    }

    /// Whether the search has a time limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.time_limit < NO_LIMIT
    }

    /// Whether integer programs yield candidates.
    pub(crate) fn has_programs(&self) -> bool {
        self.effort != Some(Effort::Low)
    }
}

/// The claim that a planner makes about its plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// No placement in the space is simulated to be faster.
    OptimalSimulated,
    /// No placement in the space can be faster by more than the stated gap, which is proven; the
    /// search ends where it is small enough, or nothing is left to try.
    OptimalWithinGap,
    /// No claim.
    Heuristic,
}

/// A plan, its bound, and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The plan.
    pub placement: Placement,
    /// How the search ended.
    pub status: OutcomeStatus,
    /// A proven lower bound on the iteration time of every placement in the space. Heuristics
    /// report that of the linear relaxation.
    pub bound: SimTime,
    /// The simulated iteration time of the plan.
    pub simulated: SimTime,
    /// (simulated − bound) ÷ simulated.
    pub gap: f64,
    /// The number of placements that were simulated.
    pub examined: usize,
    /// The number of subproblems (device order and schedule) that were distinguished.
    pub cases: usize,
    /// The iteration time of the fastest plan of the heuristics, where they were part of the search.
    pub baseline: Option<SimTime>,
    /// The results by system, where several were considered.
    pub considered: Vec<Considered>,
}

/// The result of a search over systems for one system.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered {
    /// The system.
    pub system: System,
    /// A lower bound on the iteration time of its placements; `None` if none fits.
    pub bound: Option<SimTime>,
    /// The iteration time of its best placement.
    pub simulated: Option<SimTime>,
    /// Whether the system was skipped because its bound is too high.
    pub skipped: bool,
    /// The number of its placements that were simulated.
    pub examined: usize,
}

impl Solution {
    /// A plan with its simulated time and a bound, of which nothing has been counted.
    pub(crate) fn new((simulated, placement): (SimTime, Placement), bound: SimTime, status: OutcomeStatus) -> Self {
        let bound = bound.min(simulated);
        let gap = simulated.saturating_sub(bound).to_ms() / simulated.max(SimTime::ns(1)).to_ms();
        let (examined, cases, considered) = (0, 0, Vec::new());
        Self { placement, status, bound, simulated, gap, examined, cases, baseline: None, considered }
    }
}

/// The reason why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No placement fits.
    #[error("{reason}")]
    Infeasible {
        /// The part that does not fit, and by how much.
        reason: String,
        /// A remedy.
        hint: String,
        /// The bytes that the closest placement lacks, if known.
        missing: Option<Bytes>,
        /// Whether the reason holds for every placement, not only for the closest one found.
        certain: bool,
    },
    /// Placements fit, but none is faster than the known plan.
    #[error("none of {examined} placements is faster than the plan that is there already")]
    NothingBetter {
        /// A lower bound on the iteration time of every placement.
        bound: SimTime,
        /// The number of placements that were simulated.
        examined: usize,
        /// Whether the time limit or the stop signal ended the search.
        stopped: bool,
        /// The results by system, where several were considered.
        considered: Vec<Considered>,
    },
    /// The time limit or the stop signal ended the search before there was a plan.
    #[error("the search stopped before it had found a plan; {examined} placements were simulated")]
    StoppedWithoutPlan {
        /// The number of placements that were simulated.
        examined: usize,
    },
    /// There are more placements than exhaustive search takes on.
    #[error("there are {placements} placements, and exhaustive search takes at most {limit}")]
    TooLarge {
        /// The number of placements.
        placements: u64,
        /// The most that exhaustive search takes on.
        limit: u64,
    },
    /// No system is allowed, or none of the allowed ones suits the machine.
    #[error(
        "none of the allowed systems suits the machine and the mode (`hybrid` needs a CPU socket, and many only train)"
    )]
    NoSystem,
    /// Placements fit, but none of those tried ran in simulation.
    #[error("{examined} placements fit in memory, and none of them ran in simulation")]
    NothingRuns {
        /// The number of placements that were tried.
        examined: usize,
    },
    /// The threads could not be started.
    #[error("{threads} threads could not be started: {what}")]
    Threads {
        /// The number of threads requested.
        threads: usize,
        /// The operating system's message.
        what: String,
    },
}

/// An algorithm that finds plans.
#[derive(Debug)]
pub struct Planner {
    /// Its name on the command line.
    pub name: &'static str,
    /// The claim that it makes about its plans.
    pub claim: Claim,
    pub(crate) search: fn(&Problem<'_>) -> Result<Solution, PlanError>,
}

impl Planner {
    /// Finds a plan that [`spipe_plan::check`] accepts.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub fn plan(&self, problem: &Problem<'_>) -> Result<Solution, PlanError> {
        (self.search)(problem)
    }
}

/// Returns how a search ended.
pub(crate) const fn status(proven: bool, stopped: bool) -> OutcomeStatus {
    match (proven, stopped) {
        (true, _) => OutcomeStatus::Optimal,
        (false, true) => OutcomeStatus::Stopped,
        (false, false) => OutcomeStatus::Feasible,
    }
}

/// Runs `work` in a `rayon` pool with the problem's number of threads.
pub(crate) fn in_pool<T: Send>(
    problem: &Problem<'_>,
    work: impl FnOnce() -> Result<T, PlanError> + Send,
) -> Result<T, PlanError> {
    let threads = problem.options.threads.max(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|error| PlanError::Threads { threads, what: error.to_string() })?.install(work)
}
