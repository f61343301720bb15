//! The planner of a sweep: each machine takes the path of a single plan.

use super::{
    clock::Clock,
    figures::{Engines, planned},
};
use crate::{
    compare::equal_stages::{self, data_parallel},
    error::SearchError,
    request::{
        Request,
        machine::Machine,
        meshes::{Meshes, suits},
        spelling::Spelling,
        systems::current,
        workloads::{seq_len, workloads},
    },
    search::{
        found::Found,
        on_mesh::{OnMesh, leading},
        search,
    },
    setting::Setting,
};
use spipe_base::SimTime;
use spipe_cost::{CostError, Mode, Workload};
use spipe_hardware::{Hardware, Runtime};
use spipe_model::{Model, Precision};
use spipe_plan::{Mesh, System};
use spipe_planner::{Effort, Options};
use spipe_trace::Trace;
use spipe_whatif::{Answer, Bounder, Counts, GLOBAL_BATCH, Judge, Planned, TrainFile};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// A training with its model.
pub struct Training {
    model: Arc<Model>,
    workloads: Vec<Workload>,
    runtime: Option<Runtime>,
    bounder: Bounder,
}

impl Training {
    /// A training of a job, with the model and the runtime that it names.
    ///
    /// # Errors
    /// The model has no such sequences, or the batch cannot be split.
    pub fn new(
        train: &TrainFile,
        model: Model,
        runtime: Option<Runtime>,
        spelling: Spelling,
    ) -> Result<Self, SearchError> {
        let precision = train.precision.unwrap_or(Precision::Bf16);
        let seq_len = seq_len(&model, train.seq_len, spelling)?;
        train.data.check(seq_len).map_err(|(fault, hint)| SearchError::request(fault, hint))?;
        let template = Workload {
            seq_len,
            precision,
            data: train.data,
            recompute_ops: train.recompute_ops,
            loss: train.loss,
            ..Workload::PLAIN
        };
        let workloads = workloads(template, train.global_batch.unwrap_or(GLOBAL_BATCH), "auto")?;
        let bounder = Bounder::new(model.clone(), workloads.clone());
        Ok(Self { model: Arc::new(model), workloads, runtime, bounder })
    }

    /// A rate that no simulated plan exceeds, or any rate from `enough` on that the bounds do not exclude; `None` if
    /// no plan fits.
    fn most_simulated(&self, hardware: &Hardware, systems: &[System], enough: f64) -> Option<f64> {
        let options = Options { effort: Some(Effort::Low), time_limit: Duration::MAX, ..Options::default() };
        // A machine or a model that cannot be planned is refused by the search, which says why.
        let Ok(machine) = self.machine(hardware) else { return Some(f64::INFINITY) };
        let meshes = self.meshes(&machine, systems).all;
        // Teams are few virtual devices, whose bounds are soon known.
        let (devices, teams): (Vec<&Mesh>, Vec<&Mesh>) = meshes.iter().partition(|mesh| mesh.is_single());
        let mut most = None;
        for mesh in teams.into_iter().chain(devices) {
            let suited: Vec<System> = systems.iter().copied().filter(|system| suits(*system, mesh)).collect();
            let parts = machine.among(&suited);
            let divided = self.workloads.iter().filter(|one| one.microbatches.is_multiple_of(mesh.data()));
            for (workload, (hardware, systems)) in divided.flat_map(|one| parts.iter().map(move |part| (one, part))) {
                let Ok(setting) = self.setting(hardware, workload, mesh) else { return Some(f64::INFINITY) };
                let tokens = workload.tokens() as f64;
                let wanted = SimTime::ns((tokens / enough * 1e9).min(u64::MAX as f64) as u64);
                let least = spipe_planner::least_iteration((setting.context(), systems), &options, wanted);
                if least < SimTime::MAX {
                    let rate = tokens / least.to_seconds().get();
                    most = Some(most.map_or(rate, |most: f64| most.max(rate)));
                }
                if most.is_some_and(|most| most >= enough) {
                    return most;
                }
            }
        }
        most
    }

    /// The setting in which a mesh is bounded: that of the leads of its teams, or of the devices as they are.
    fn setting(&self, hardware: &Arc<Hardware>, workload: &Workload, mesh: &Mesh) -> Result<Setting, CostError> {
        let leads = if mesh.is_single() { None } else { leading(hardware, mesh) };
        match leads {
            Some(leads) => Ok(OnMesh::new((&self.model, hardware, &Arc::new(leads)), workload, (mesh, true))?.leads),
            None => Setting::new(&self.model, hardware, workload),
        }
    }

    /// The meshes on which plans are sought.
    fn meshes(&self, machine: &Machine, systems: &[System]) -> Meshes {
        Meshes::open((&self.model, machine.hardware()), &self.workloads, systems.to_vec())
    }

    /// The machine as the training's runtime finds it, or the runtimes by default.
    fn machine(&self, hardware: &Hardware) -> Result<Machine, SearchError> {
        Machine::new(hardware, self.runtime.as_ref(), Mode::Train)
    }

    /// A rate that no plan exceeds, by sums alone.
    fn most(&self, hardware: &Hardware, systems: &[System]) -> f64 {
        let Ok(machine) = self.machine(hardware) else { return f64::INFINITY };
        let parts = machine.among(systems).into_iter();
        parts.map(|(hardware, _)| self.bounder.most_tokens_per_second(&hardware)).fold(0.0, f64::max)
    }
}

/// A front end that shows the course of a sweep: the machines that are decided, and how.
pub type Tell = Box<dyn Fn(usize, Counts) + Send + Sync>;

/// The planner of a job.
pub struct JobPlanner {
    trainings: Vec<Training>,
    systems: Vec<System>,
    clock: Clock,
    tell: Tell,
    engines: Engines,
}

impl JobPlanner {
    /// A planner of all trainings of a job, which `clock` ends and `tell` is told about; `engines` names those that
    /// run a plan.
    pub fn new(trainings: Vec<Training>, clock: Clock, (tell, engines): (Tell, Engines)) -> Self {
        Self { trainings, systems: current(), clock, tell, engines }
    }

    /// The figures of a plan, with its trace.
    pub(super) fn figures(&self, found: &Found) -> Result<(Planned, Trace), SearchError> {
        planned(found, &self.engines)
    }

    /// Gives the work that follows a share of the time that is left, and lets it begin.
    pub fn begin(&self, share: f64) {
        self.clock.begin(share);
    }

    /// The baseline of one training, plain data parallelism, if it fits.
    pub(super) fn baseline(&self, hardware: &Hardware, train: usize) -> Option<equal_stages::Baseline> {
        let training = &self.trainings[train];
        let machine = training.machine(hardware).ok()?;
        let hardware = machine.of(System::GpuOnly);
        let found = data_parallel((&training.model, hardware), &training.workloads).ok();
        found.filter(equal_stages::Baseline::fits)
    }

    /// The plan of one training. Steps are counted, not seconds, so that results do not depend on the load.
    pub(super) fn found(&self, hardware: &Hardware, train: usize, effort: Effort) -> Result<Found, SearchError> {
        let training = &self.trainings[train];
        let machine = training.machine(hardware)?;
        let Meshes { all: meshes, systems, all_teams } = training.meshes(&machine, &self.systems);
        search(&Request {
            systems,
            meshes,
            all_teams,
            // The clock raises the stop signal.
            time_limit: Duration::MAX,
            effort: Some(effort),
            stop: Arc::clone(&self.clock.stop),
            ..Request::new(Arc::clone(&training.model), machine, training.workloads.clone())
        })
    }
}

impl Judge for JobPlanner {
    fn plan(&self, hardware: &Hardware, train: usize) -> Option<Answer> {
        let found = self.found(hardware, train, Effort::Low).and_then(|found| self.figures(&found));
        if self.is_stopped() {
            return None;
        }
        let answer = match found {
            Ok((plan, _)) => Answer::Planned(plan),
            Err(SearchError::Infeasible(diagnostic)) => Answer::Infeasible(diagnostic.message),
            Err(failure) => {
                Answer::Failed(failure.to_string().lines().next().unwrap_or_default().replace("error: ", ""))
            }
        };
        // Trainings are planned in order: with the last one, the machine has a plan.
        if train + 1 == self.trainings.len() && matches!(answer, Answer::Planned(_)) {
            self.clock.planned();
        }
        Some(answer)
    }

    fn most_tokens_per_second(&self, hardware: &Hardware, train: usize) -> f64 {
        self.trainings[train].most(hardware, &self.systems).min(f64::MAX)
    }

    fn closest_tokens_per_second(&self, hardware: &Hardware, train: usize, enough: f64) -> f64 {
        self.trainings[train].most_simulated(hardware, &self.systems, enough).unwrap_or(f64::INFINITY)
    }

    fn is_stopped(&self) -> bool {
        self.clock.stop.load(Ordering::Relaxed)
    }

    fn progress(&self, decided: usize, counts: Counts) {
        (self.tell)(decided, counts);
    }
}
