//! The planner of a sweep: each machine takes the path of `spipe plan`, with plain data parallelism beside it.

use super::clock::Clock;
use crate::{
    Failure,
    args::Format,
    input,
    planning::{self, DriveFor, Found, Request, program},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spipe_base::{Bytes, LaneRole, SimTime};
use spipe_cost::{CostTable, Parallelism, Workload};
use spipe_hardware::{Hardware, Runtime};
use spipe_model::{Model, Precision, Recompute};
use spipe_plan::{Context, System};
use spipe_planner::Pins;
use spipe_sim::{Options, simulate};
use spipe_trace::{Metrics, Trace};
use spipe_whatif::{Answer, Bounder, Counts, Effort, GLOBAL_BATCH, Job, Judge, Planned, TrainFile};
use std::{borrow::Cow, collections::BTreeMap, sync::atomic::Ordering, time::Duration};

/// The name of plain data parallelism.
pub const DATA_PARALLEL: &str = "data-parallel";

/// The effort of `spipe plan`: steps are counted, not seconds, so that results do not depend on the load.
const fn counted(effort: Effort) -> spipe_planner::Effort {
    match effort {
        Effort::Low => spipe_planner::Effort::Low,
        Effort::High => spipe_planner::Effort::High,
    }
}

/// The gap at which a search ends, as in `spipe plan`.
const GAP: f64 = 0.005;

/// A training with its model.
struct Training {
    model: Model,
    workloads: Vec<Workload>,
    runtime: Option<Runtime>,
    bounder: Bounder,
}

impl Training {
    fn new(train: &TrainFile) -> Result<Self, Failure> {
        let model = input::model(&train.model)?;
        let precision = train.precision.unwrap_or(Precision::Bf16);
        let seq_len = input::seq_len(&model, train.seq_len)?;
        train.data.check(seq_len).map_err(|(fault, hint)| Failure::argument(fault, hint))?;
        let template = Workload {
            seq_len,
            precision,
            data: train.data,
            recompute_ops: train.recompute_ops,
            loss: train.loss,
            ..Workload::PLAIN
        };
        let workloads = planning::workloads(template, train.global_batch.unwrap_or(GLOBAL_BATCH), "auto")?;
        let bounder = Bounder::new(model.clone(), workloads.clone());
        let runtime = train.runtime.as_deref().map(input::runtime).transpose()?;
        Ok(Self { model, workloads, runtime, bounder })
    }

    /// A rate that no simulated plan exceeds, or any rate from `enough` on that the bounds do not exclude; `None` if
    /// no plan fits.
    fn most_simulated(&self, hardware: &Hardware, systems: &[System], enough: f64) -> Option<f64> {
        let options = spipe_planner::Options {
            effort: Some(counted(Effort::Low)),
            time_limit: Duration::MAX,
            ..spipe_planner::Options::default()
        };
        let mut most = None;
        for workload in &self.workloads {
            // A model without times is refused by the search, which says why.
            let Ok(cost) = CostTable::new(&self.model, hardware, workload) else { return Some(f64::INFINITY) };
            let context = Context { model: &self.model, hardware, cost: &cost };
            let tokens = workload.tokens() as f64;
            let wanted = SimTime::ns((tokens / enough * 1e9).min(u64::MAX as f64) as u64);
            let least = spipe_planner::least_iteration((context, systems), &options, wanted);
            if least < SimTime::MAX {
                let rate = tokens / least.to_seconds().get();
                most = Some(most.map_or(rate, |most: f64| most.max(rate)));
            }
            if most.is_some_and(|most| most >= enough) {
                break;
            }
        }
        most
    }

    /// The machine as the training's runtime finds it.
    fn machine<'a>(&self, hardware: &'a Hardware) -> Cow<'a, Hardware> {
        match &self.runtime {
            Some(runtime) => Cow::Owned(hardware.clone().under(runtime.clone())),
            None => Cow::Borrowed(hardware),
        }
    }
}

/// The planner of a job.
pub struct Planner {
    trainings: Vec<Training>,
    systems: Vec<System>,
    clock: Clock,
    bar: ProgressBar,
}

impl Planner {
    /// A planner of the trainings of a job, for a sweep of `machines`.
    pub fn new(job: &Job, machines: usize, limit: Option<Duration>, format: Format) -> Result<Self, Failure> {
        let bar = match format {
            Format::Human => ProgressBar::new(machines as u64),
            Format::Json => ProgressBar::with_draw_target(Some(machines as u64), ProgressDrawTarget::hidden()),
        };
        if let Ok(style) = ProgressStyle::with_template("{human_pos} of {human_len} machines · {msg} · {eta} left") {
            bar.set_style(style);
        }
        Ok(Self {
            trainings: job.file.train.iter().map(Training::new).collect::<Result<_, _>>()?,
            systems: planning::systems("auto")?,
            clock: Clock::new(limit),
            bar,
        })
    }

    /// Gives the work that follows a share of the time that is left, and lets it begin.
    pub fn begin(&self, share: f64) {
        self.clock.begin(share);
    }

    /// The plan of one training.
    pub fn found(&self, hardware: &Hardware, train: usize, effort: Effort) -> Result<Found, Failure> {
        let training = &self.trainings[train];
        planning::search(&Request {
            model: &training.model,
            hardware: &training.machine(hardware),
            workloads: training.workloads.clone(),
            systems: self.systems.clone(),
            planner: "ilp",
            // Steps are counted; the clock raises the stop signal.
            time_limit: Duration::MAX,
            effort: Some(counted(effort)),
            watch: None,
            stop: &self.clock.stop,
            gap: GAP,
            threads: 1,
            pins: Pins::default(),
            start: None,
            host_help: true,
            drive_for: DriveFor::default(),
            drives: false,
            on_drives: None,
            hint: false,
        })
    }

    /// Ends the progress bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Judge for Planner {
    fn plan(&self, hardware: &Hardware, train: usize, effort: Effort) -> Option<Answer> {
        let parallel = data_parallel(&self.trainings[train], hardware);
        let found = self.found(hardware, train, effort).and_then(|found| planned(&found));
        if self.is_stopped() {
            return None;
        }
        let answer = match (found, parallel) {
            (Ok((plan, _)), Some(parallel)) if parallel.tokens_per_second > plan.tokens_per_second => {
                Answer::Planned(parallel)
            }
            (Ok((plan, _)), _) => Answer::Planned(plan),
            (Err(_), Some(parallel)) => Answer::Planned(parallel),
            (Err(Failure::Infeasible(diagnostic)), None) => Answer::Infeasible(diagnostic.message),
            (Err(failure), None) => {
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
        let training = &self.trainings[train];
        training.bounder.most_tokens_per_second(&training.machine(hardware)).min(f64::MAX)
    }

    fn closest_tokens_per_second(&self, hardware: &Hardware, train: usize, enough: f64) -> f64 {
        let training = &self.trainings[train];
        let parallel = data_parallel(training, hardware).map_or(0.0, |plan| plan.tokens_per_second);
        if parallel >= enough {
            return parallel;
        }
        match training.most_simulated(&training.machine(hardware), &self.systems, enough) {
            Some(rate) => rate.max(parallel),
            None if parallel > 0.0 => parallel,
            None => f64::INFINITY,
        }
    }

    fn is_stopped(&self) -> bool {
        self.clock.stop.load(Ordering::Relaxed)
    }

    fn progress(&self, decided: usize, counts: Counts) {
        self.bar.set_position(decided as u64);
        let Counts { solved, shared, bounded, .. } = counts;
        self.bar.set_message(format!("{solved} planned, {shared} shared, {bounded} bounded"));
    }
}

/// The figures of a plan, from its simulation, with the trace.
pub fn planned(found: &Found) -> Result<(Planned, Trace), Failure> {
    let trace = simulate(&program(&found.plan)?, &Options::default()).trace;
    let metrics = Metrics::of(&trace);
    let context = found.plan.context();
    let seconds = metrics.iteration.to_seconds().get();
    let share =
        |time: SimTime| if metrics.iteration == SimTime::ZERO { 0.0 } else { time.to_ms() / metrics.iteration.to_ms() };
    let mut shares = BTreeMap::new();
    let (mut gpus, mut cores) = (0.0, 0.0);
    for (lane, busy) in &metrics.busy {
        let own = &trace.lanes[lane.index()];
        let share = share(*busy).min(1.0);
        shares.insert(own.name.clone(), share);
        let device = context.hardware.devices().iter().find(|device| device.name == own.device);
        match device {
            Some(device) if device.is_gpu() && own.role == LaneRole::Compute => gpus += share,
            Some(device) if device.is_socket() => cores += share,
            _ => {}
        }
    }
    let count = |is: fn(&spipe_hardware::Device) -> bool| {
        context.hardware.devices().iter().filter(|device| is(device)).count().max(1) as f64
    };
    let usable = |name: &str| context.hardware.memory(name).map(|id| context.hardware.memories()[id].usable());
    let peaks: BTreeMap<String, u64> = metrics.peaks.iter().map(|(name, peak)| (name.clone(), peak.get())).collect();
    let room =
        metrics.peaks.iter().filter_map(|(name, peak)| Some((name.clone(), usable(name)?.saturating_sub(*peak).get())));
    let planned = Planned {
        tokens_per_second: context.workload().tokens() as f64 / seconds,
        iteration_ms: metrics.iteration.to_ms(),
        system: found.solution.placement.system.to_string(),
        closed_form: false,
        gap: Some(found.solution.gap),
        gpu_share: (gpus / count(spipe_hardware::Device::is_gpu)).min(1.0),
        core_share: (cores / count(spipe_hardware::Device::is_socket)).min(1.0),
        head_room_bytes: room.collect(),
        peak_bytes: peaks,
        shares,
    };
    Ok((planned, trace))
}

/// Plain data parallelism over all GPUs, by the closed form of `spipe baseline tensor-data`, if it fits.
fn data_parallel(training: &Training, hardware: &Hardware) -> Option<Planned> {
    let hardware = &*training.machine(hardware);
    let gpus = hardware.devices().iter().filter(|device| device.is_gpu()).count() as u64;
    if gpus == 0 {
        return None;
    }
    let spreads = Recompute::ALL.into_iter().map(|recompute| Parallelism { tensor: 1, data: gpus, recompute });
    let costs = spreads.flat_map(|spread| {
        let cost = move |workload: &Workload| Some((*workload, spread.cost(&training.model, hardware, workload).ok()?));
        training.workloads.iter().filter_map(cost)
    });
    let fitting = costs.filter(|(_, cost)| cost.fits() && cost.iteration.get() > 0.0);
    let (workload, cost) = fitting.min_by(|left, right| left.1.iteration.cmp(&right.1.iteration))?;
    let share = |part: spipe_base::Seconds| part.get() / cost.iteration.get();
    let busy = share(cost.compute) + share(cost.optimizer);
    let memories = || {
        hardware
            .devices()
            .iter()
            .filter(|device| device.is_gpu())
            .map(|device| hardware.memories()[device.memory].name.clone())
    };
    let free: Bytes = cost.usable.saturating_sub(cost.memory);
    Some(Planned {
        tokens_per_second: workload.tokens() as f64 / cost.iteration.get(),
        iteration_ms: cost.iteration.to_ms(),
        system: DATA_PARALLEL.into(),
        closed_form: true,
        gap: None,
        shares: BTreeMap::from([("GPU compute".into(), busy), ("gradients".into(), share(cost.data_reduction))]),
        gpu_share: busy.min(1.0),
        core_share: 0.0,
        head_room_bytes: memories().map(|name| (name, free.get())).collect(),
        peak_bytes: memories().map(|name| (name, cost.memory.get())).collect(),
    })
}
