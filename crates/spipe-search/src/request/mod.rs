//! The request for a plan.
//!
//! ```text
//! workloads   a batch in equal microbatches      systems    the systems by name
//! pins        conditions in words                layout     conditions in Megatron's notation, and both together
//! drives      the drives that are named          watch      the record of a running search
//! meshes      degrees of parallelism
//! machine     the machine under the runtimes     runtimes   what executes a plan by default
//! spelling    the words for settings in messages
//! ```

pub mod drives;
pub mod layout;
pub mod machine;
pub mod meshes;
pub mod pins;
pub mod runtimes;
pub mod spelling;
pub mod systems;
pub mod watch;
pub mod workloads;

use drives::DriveFor;
use machine::Machine;
use spelling::Spelling;
use spipe_cost::Workload;
use spipe_model::Model;
use spipe_plan::{Mesh, Placement, System};
use spipe_planner::{Effort, Pins};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use watch::Watch;

/// The name of the planner that proves a bound.
pub const PLANNER: &str = "ilp";

/// The gap at which a search ends: predictions are not truer than that.
const GAP: f64 = 0.005;

/// The time limit of a search.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A search for a plan.
#[derive(Clone)]
pub struct Request {
    /// The model to train or to run.
    pub model: Arc<Model>,
    /// The machine.
    pub machine: Machine,
    /// The sizes of microbatches to try, with the workload of each.
    pub workloads: Vec<Workload>,
    /// The systems that are allowed.
    pub systems: Vec<System>,
    /// The meshes to try; one without replicas and teams of several devices for the machine as it is.
    pub meshes: Vec<Mesh>,
    /// Whether plans use all teams of a mesh.
    pub all_teams: bool,
    /// The name of the planner, one of [`spipe_planner::PLANNERS`].
    pub planner: String,
    /// The time limit.
    pub time_limit: Duration,
    /// Steps that are counted instead of the time.
    pub effort: Option<Effort>,
    /// A record of the search.
    pub watch: Option<Arc<Watch>>,
    /// Ends the search early when it is raised.
    pub stop: Arc<AtomicBool>,
    /// The search ends when no other plan can be faster by more than this fraction.
    pub gap: f64,
    /// The number of threads; it does not change the plan.
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
    /// The words for settings in messages.
    pub spelling: Spelling,
}

impl Request {
    /// A search over the systems that train with the same losses as a single device, on one thread, without pins,
    /// remedies and drives.
    pub fn new(model: impl Into<Arc<Model>>, machine: impl Into<Machine>, workloads: Vec<Workload>) -> Self {
        Self {
            model: model.into(),
            machine: machine.into(),
            workloads,
            systems: systems::current(),
            meshes: vec![Mesh::default()],
            all_teams: false,
            planner: PLANNER.into(),
            time_limit: TIME_LIMIT,
            effort: None,
            watch: None,
            stop: Arc::default(),
            gap: GAP,
            threads: 1,
            pins: Pins::default(),
            start: None,
            host_help: true,
            hint: false,
            drive_for: DriveFor::default(),
            drives: false,
            spelling: Spelling::default(),
        }
    }
}

/// The number of threads that this machine runs at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
