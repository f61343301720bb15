//! What a planner is given and what it returns.

mod deadline;
pub(crate) mod pins;

use self::pins::Pins;
pub(crate) use deadline::Deadline;
use spipe_base::{Bytes, SimTime, StageId};
use spipe_plan::{Context, OutcomeStatus, Placement, System};
use std::{collections::BTreeMap, sync::atomic::AtomicBool, time::Duration};

/// The simulated iteration of a placement; none if it does not run.
pub type Score<'a> = dyn Fn(&Placement) -> Option<SimTime> + Sync + 'a;

/// For how long the iteration of a placement waits for what its stages do beside their passes.
pub type Waits<'a> = dyn Fn(&Placement) -> BTreeMap<StageId, SimTime> + Sync + 'a;

/// The same as [`Score`], but perhaps none for a placement that takes longer than so long.
pub type Within<'a> = dyn Fn(&Placement, SimTime) -> Option<SimTime> + Sync + 'a;

/// What a simulator knows beside times: with it the search looks where it helps, and leaves early what does not.
#[derive(Clone, Copy)]
pub struct Insight<'a> {
    /// What is worth changing.
    pub waits: &'a Waits<'a>,
    /// Times up to a limit.
    pub within: &'a Within<'a>,
}

/// The systems whose stages the planners search.
pub const SYSTEMS: [System; 3] = [System::Gpipe, System::OneForwardOneBackward, System::Hybrid];

/// The largest head start that planners try for the hybrid system.
pub const LARGEST_HEAD_START: u64 = 2;

/// The most slots for what is offloaded that planners try.
pub const MOST_OFFLOAD_SLOTS: u64 = 4;

/// What to plan.
pub struct Problem<'a> {
    /// The model, the machine and the costs.
    pub context: Context<'a>,
    /// The systems that may be used; several leave the choice to the planner.
    pub systems: Vec<System>,
    /// How long and how exactly to search.
    pub options: Options,
    /// Judges candidates.
    pub score: &'a Score<'a>,
    /// Says more of them, if it can.
    pub insight: Option<Insight<'a>>,
    /// Set by someone else to end the search early; looked at between solves.
    pub stop: &'a AtomicBool,
}

impl Problem<'_> {
    /// The simulated iteration of a placement; perhaps none for one that takes longer than `limit`.
    pub(crate) fn score_within(&self, placement: &Placement, limit: SimTime) -> Option<SimTime> {
        self.insight.map_or_else(|| (self.score)(placement), |insight| (insight.within)(placement, limit))
    }
}

/// How long and how exactly to search.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// When to stop. Heuristic plans are made even at zero; they then come back as stopped.
    pub time_limit: Duration,
    /// The search ends when no other placement can be faster by more than this fraction.
    pub gap: f64,
    /// How many threads search. Does not change the plan.
    pub threads: usize,
    /// How many candidates of one device sequence and system are simulated before the search goes on to the next.
    pub candidates_per_case: usize,
    /// Beyond this many different device sequences only the natural ones are searched, without a claim of optimality.
    pub sequence_limit: usize,
    /// Exhaustive search refuses larger spaces.
    pub exhaustive_limit: u64,
    /// Of systems with no more placements all of them are tried, if their bounds leave anything open.
    pub every_limit: usize,
    /// Whether the host may keep the optimizer state or the activations of a GPU's stage.
    pub host_help: bool,
    /// How many choices of help for whole device sequences are told apart, at most.
    pub help_limit: usize,
    /// What the plan must hold.
    pub pins: Pins,
    /// A plan to begin with.
    pub start: Option<Placement>,
    /// How many changes of the best placements of a system are simulated.
    pub refinements: usize,
    /// The iteration of a plan that is there already: only faster ones matter.
    pub incumbent: Option<SimTime>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            time_limit: Duration::from_secs(60),
            gap: 0.005,
            threads: 1,
            candidates_per_case: 16,
            sequence_limit: 4000,
            exhaustive_limit: 1_000_000,
            every_limit: 20_000,
            host_help: true,
            help_limit: 4000,
            pins: Pins::default(),
            start: None,
            refinements: 3000,
            incumbent: None,
        }
    }
}

/// What a planner claims of its plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// No placement in the space is simulated to be faster.
    OptimalSimulated,
    /// No placement in the space can be faster by more than the stated gap, which is proven.
    OptimalWithinGap,
    /// Nothing.
    Heuristic,
}

/// A plan and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The plan.
    pub placement: Placement,
    /// How the search ended.
    pub status: OutcomeStatus,
    /// A proven lower bound of the iteration time of every placement in the space. Heuristics state that of the
    /// fractional relaxation.
    pub bound: SimTime,
    /// The simulated iteration time of the plan.
    pub simulated: SimTime,
    /// (simulated − bound) ÷ simulated.
    pub gap: f64,
    /// How many placements were simulated.
    pub examined: usize,
    /// How many integer programs were solved.
    pub solves: usize,
    /// How many pairs of a device sequence and a system were told apart.
    pub cases: usize,
    /// What is known of each system, where several were considered.
    pub considered: Vec<Considered>,
}

/// What a search over systems found out about one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered {
    /// The system.
    pub system: System,
    /// No placement of it takes less; none if none fits.
    pub bound: Option<SimTime>,
    /// Its best simulated iteration.
    pub simulated: Option<SimTime>,
    /// Whether its bound was too high to try it.
    pub skipped: bool,
    /// How many of its placements were simulated.
    pub examined: usize,
}

impl Solution {
    /// (simulated − bound) ÷ simulated, and nothing for an empty iteration.
    pub(crate) fn gap_of(simulated: SimTime, bound: SimTime) -> f64 {
        if simulated == SimTime::ZERO { 0.0 } else { simulated.saturating_sub(bound).to_ms() / simulated.to_ms() }
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No placement fits.
    #[error("{reason}")]
    Infeasible {
        /// What does not fit, and by how much.
        reason: String,
        /// What would help.
        hint: String,
        /// What the closest placement lacks, where that is known.
        missing: Option<Bytes>,
        /// Whether the reason holds for every placement, not only for the closest one that was looked at.
        certain: bool,
    },
    /// Placements fit, but none is faster than the plan that is there already.
    #[error("none of {examined} placements is faster than the plan that is there already")]
    NothingBetter {
        /// No placement takes less.
        bound: SimTime,
        /// How many were simulated.
        examined: usize,
        /// Whether the limit or the stop signal struck before the search had come to its end.
        stopped: bool,
    },
    /// The limit or the stop signal struck before there was a plan.
    #[error("the search stopped before it had found a plan; {examined} placements were simulated")]
    StoppedWithoutPlan {
        /// How many placements were simulated.
        examined: usize,
    },
    /// The solver failed, also with other settings.
    #[error("the solver failed on devices `{devices}`: {what}")]
    Numerical {
        /// The device sequence, in stage order.
        devices: String,
        /// What it said.
        what: String,
    },
    /// More placements than exhaustive search takes on.
    #[error("there are {placements} placements, and exhaustive search takes at most {limit}")]
    TooLarge {
        /// How many there are.
        placements: u64,
        /// How many are taken.
        limit: u64,
    },
    /// No system may be used, or none of the allowed ones suits the machine.
    #[error(
        "none of the allowed systems suits the machine and the mode (`hybrid` needs a CPU socket, and many only train)"
    )]
    NoSystem,
    /// Placements fit, but none of those tried ran in simulation.
    #[error("{examined} placements fit in memory, and none of them ran in simulation")]
    NothingRuns {
        /// How many were tried.
        examined: usize,
    },
    /// The threads could not be started.
    #[error("{threads} threads could not be started: {what}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        what: String,
    },
}

/// Something that finds plans.
pub trait Planner: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What it claims of its plans.
    fn claim(&self) -> Claim;

    /// A plan that [`spipe_plan::check`] accepts, or why there is none.
    fn plan(&self, problem: &Problem<'_>) -> Result<Solution, PlanError>;
}

/// Runs `work` where `rayon` uses as many threads as the problem allows.
pub(crate) fn in_pool<T: Send>(
    problem: &Problem<'_>,
    work: impl FnOnce() -> Result<T, PlanError> + Send,
) -> Result<T, PlanError> {
    let threads = problem.options.threads.max(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|error| PlanError::Threads { threads, what: error.to_string() })?.install(work)
}
