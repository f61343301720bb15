//! One case in one round: its devices are measured, its program is simulated, and the same program
//! is run.

use super::cases::Case;
use crate::{
    Failure, args,
    calibration::{self, Request},
    executors, input,
};
use spipe_base::{Bytes, BytesPerSecond, Diagnostic, Text};
use spipe_cost::Mode;
use spipe_exec::{Backend, Data, Executor, Options, Report, StepSettings};
use spipe_hardware::{Hardware, HardwareFile};
use spipe_model::Model;
use spipe_plan::Plan;
use spipe_schedule::Program;
use spipe_sim::Iterations;
use spipe_trace::Trace;
use std::{ops::ControlFlow, time::Duration};

const LEARNING_RATE: f64 = 1e-3;
/// The steps that are not counted, while caches and the allocator's pools fill.
pub(super) const WARM_UP: usize = 3;
/// The bandwidth of links in bytes per second at which copies take no time beside computation.
const AT_ONCE: f64 = 1e15;

/// The settings of all cases.
pub(super) struct Study<'a> {
    pub what: &'a args::PredictionError,
    pub model: &'a Model,
    pub data: &'a Data,
    pub backend: Backend,
}

/// The result of a case in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    pub predicted_ms: f64,
    pub measured_ms: f64,
    /// The predicted iteration if copies took no time.
    pub without_copies_ms: f64,
    /// Half the distance between the 10th and the 90th percentile of the measured iterations, over
    /// their median.
    pub spread: f64,
    /// The error of the busy time of all compute lanes.
    pub compute_error: f64,
    /// The busy share of the busiest lane in the measured iteration.
    pub busiest_lane: f64,
    pub tokens_per_second: f64,
}

impl Measurement {
    pub fn iteration_error(&self) -> f64 {
        self.predicted_ms / self.measured_ms - 1.0
    }
}

impl Study<'_> {
    /// Measures the devices of a case, then predicts and measures its iteration.
    pub fn measure(&self, case: &Case, executors: &[Executor]) -> Result<Measurement, Failure> {
        let file = self.machine(case, executors)?;
        let plan = case.plan(self.model, &calibration::machine(&file)?)?;
        let program = spipe_search::program(&plan)?;
        let predicted = simulated(case, &program);
        let (mut times, report) = self.run(&plan, &program, executors)?;
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize].as_secs_f64() * 1e3;
        let comparison = spipe_trace::compare(&predicted, &report.trace);
        let compute = comparison.by_lane.iter().filter(|(lane, _)| lane.ends_with(".compute"));
        let busy = compute.fold((0.0, 0.0), |(predicted, measured), (_, lane)| {
            (predicted + lane.predicted.to_ms(), measured + lane.measured.to_ms())
        });
        let measured_ms = at(0.5);
        Ok(Measurement {
            predicted_ms: predicted.iteration.to_ms(),
            measured_ms,
            without_copies_ms: self.without_copies(case, file)?,
            spread: (at(0.9) - at(0.1)) / 2.0 / measured_ms,
            compute_error: busy.0 / busy.1 - 1.0,
            busiest_lane: busiest(&comparison),
            tokens_per_second: case.workload(self.model).tokens() as f64 / (measured_ms * 1e-3),
        })
    }

    /// The measured machine. All layers must be measured: the table is not about predictions from
    /// rates.
    fn machine(&self, case: &Case, executors: &[Executor]) -> Result<HardwareFile, Failure> {
        let (file, calibration) = calibration::measure(&Request {
            name: "this-machine",
            executors: executors.to_vec(),
            layers: Some((self.model, case.workload(self.model).batch())),
            tokens: if case.mode == Mode::Generate { &[1] } else { &[] },
            budget: input::limit(self.what.time_limit)?,
            // More than the model needs: the placements are fixed.
            memory: Bytes::new(self.model.parameters() * 64),
            link: self.what.emulated_link,
            command: "spipe prediction-error",
        })?;
        match calibration.devices.iter().flat_map(|device| &device.skipped).next() {
            Some(skipped) => Err(Failure::Stopped(
                Diagnostic::error(format!("not measured: {skipped}")).hint("give a longer `--time-limit`"),
            )),
            None => Ok(file),
        }
    }

    /// The predicted iteration in milliseconds if copies took no time.
    fn without_copies(&self, case: &Case, mut file: HardwareFile) -> Result<f64, Failure> {
        for link in &mut file.link {
            link.bandwidth = Some(Text(BytesPerSecond::bytes(AT_ONCE)));
            link.latency = None;
        }
        let program = spipe_search::program(&case.plan(self.model, &calibration::machine(&file)?)?)?;
        Ok(simulated(case, &program).iteration.to_ms())
    }

    /// The durations of the counted steps, and the last report. A run reads prompts once, so there
    /// is a run for each step.
    fn run(&self, plan: &Plan, program: &Program, executors: &[Executor]) -> Result<(Vec<Duration>, Report), Failure> {
        let all = self.what.steps as usize + WARM_UP;
        let (runs, steps) = if plan.context().workload().mode == Mode::Infer { (all, 1) } else { (1, all) };
        let options = Options {
            steps: steps as u32,
            seed: self.what.seed,
            optimizer: StepSettings { lr: LEARNING_RATE, ..StepSettings::default() },
            ..Options::new(self.bindings(plan, executors)?)
        };
        let mut times = Vec::new();
        let mut last = None;
        for _ in 0..runs {
            let report = spipe_exec::run(plan, program, self.data, &options, &mut |step| {
                times.push(step.duration);
                ControlFlow::Continue(())
            });
            last = Some(report?);
        }
        let report = last.ok_or_else(|| Failure::Bug("nothing was run".into()))?;
        Ok((times.split_off(WARM_UP), report))
    }

    /// The executors of the plan's devices: accelerators by number, the socket last.
    fn bindings(&self, plan: &Plan, executors: &[Executor]) -> Result<Vec<spipe_exec::Binding>, Failure> {
        let hardware: &Hardware = plan.context().hardware;
        let accelerators = hardware.devices().iter().filter(|device| device.emulated).count();
        let mut bindings = executors::bindings(plan, &[], self.backend)?;
        for binding in &mut bindings {
            let number = binding.device.strip_prefix("gpu").and_then(|number| number.parse().ok());
            if let Some(executor) = executors.get(number.unwrap_or(accelerators)) {
                binding.executor = executor.clone();
            }
        }
        Ok(bindings)
    }
}

/// The predicted trace: a steady iteration, or for prompts, which a run reads once, a single
/// iteration.
fn simulated(case: &Case, program: &Program) -> Trace {
    let default = spipe_sim::Options::default();
    let iterations = if case.mode == Mode::Infer { Iterations::One } else { default.iterations };
    spipe_sim::simulate(program, &spipe_sim::Options { iterations, ..default }).trace
}

fn busiest(comparison: &spipe_trace::Comparison) -> f64 {
    let busy = comparison.by_lane.values().map(|lane| lane.measured.to_ms());
    busy.fold(0.0, f64::max) / comparison.iteration.measured.to_ms()
}
