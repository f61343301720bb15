//! One case in one round: the devices measured, the program simulated, the same program run.

use super::cases::Case;
use crate::{
    Failure, args,
    measuring::{self, Request},
    training,
};
use spipe_base::{Bytes, BytesPerSecond, Diagnostic, Text};
use spipe_cost::Mode;
use spipe_exec::{AdamW, Backend, Data, Executor, Options, Report};
use spipe_hardware::{Hardware, HardwareFile};
use spipe_model::Model;
use spipe_plan::Plan;
use spipe_schedule::Program;
use spipe_sim::Iterations;
use spipe_trace::Trace;
use std::{ops::ControlFlow, time::Duration};

const LEARNING_RATE: f64 = 1e-3;
/// Steps that are not counted: caches and the allocator's pools fill.
pub(super) const WARM_UP: usize = 3;
/// What links carry on a machine where copies take no time beside any computation.
const AT_ONCE: f64 = 1e15;

/// What all cases have in common.
pub(super) struct Study<'a> {
    pub what: &'a args::PredictionError,
    pub model: &'a Model,
    pub data: &'a Data,
    pub backend: Backend,
}

/// What a case came to in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    pub predicted_ms: f64,
    pub measured_ms: f64,
    /// The prediction for a machine whose copies take no time: what order and computation alone come to.
    pub without_copies_ms: f64,
    /// Half the distance of the 10th and the 90th percentile of the measured iterations over their median.
    pub spread: f64,
    /// Of the time that compute lanes are busy.
    pub compute_error: f64,
    /// The share of the measured iteration for which its busiest lane is busy.
    pub busiest_lane: f64,
    pub tokens_per_second: f64,
}

impl Measurement {
    pub fn iteration_error(&self) -> f64 {
        self.predicted_ms / self.measured_ms - 1.0
    }
}

impl Study<'_> {
    /// Predicts and measures one case on devices that are measured first.
    pub fn measure(&self, case: &Case, executors: &[Executor]) -> Result<Measurement, Failure> {
        let file = self.machine(case, executors)?;
        let plan = case.plan(self.model, &measuring::machine(&file)?)?;
        let program = lower(&plan)?;
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

    /// A layer that was not measured would be predicted from rates, which is not what the table is about.
    fn machine(&self, case: &Case, executors: &[Executor]) -> Result<HardwareFile, Failure> {
        let (file, calibration) = measuring::measure(&Request {
            name: "this-machine",
            executors: executors.to_vec(),
            layers: Some((self.model, case.workload(self.model).batch())),
            tokens: if case.mode == Mode::Generate { &[1] } else { &[] },
            budget: crate::input::limit(self.what.time_limit)?,
            // More than the model needs: caps are for planners, and no planner is asked here.
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

    /// The iteration in milliseconds where links carry everything at once.
    fn without_copies(&self, case: &Case, mut file: HardwareFile) -> Result<f64, Failure> {
        for link in &mut file.link {
            link.bandwidth = Some(Text(BytesPerSecond::bytes(AT_ONCE)));
            link.latency = None;
        }
        let program = lower(&case.plan(self.model, &measuring::machine(&file)?)?)?;
        Ok(simulated(case, &program).iteration.to_ms())
    }

    /// The durations of the steps that count, and the last report. Prompts are read once in a run, at its beginning.
    fn run(&self, plan: &Plan, program: &Program, executors: &[Executor]) -> Result<(Vec<Duration>, Report), Failure> {
        let all = self.what.steps as usize + WARM_UP;
        let (runs, steps) = if plan.context().workload().mode == Mode::Infer { (all, 1) } else { (1, all) };
        let options = Options {
            steps: steps as u32,
            seed: self.what.seed,
            optimizer: AdamW { lr: LEARNING_RATE, ..AdamW::default() },
            ..Options::new(self.bindings(plan, executors)?)
        };
        let mut times = Vec::new();
        let mut last = None;
        for _ in 0..runs {
            let report = spipe_exec::run(plan, program, self.data, &options, &mut |step| {
                times.push(step.duration);
                ControlFlow::Continue(())
            });
            last = Some(report.map_err(training::refuse)?);
        }
        let report = last.ok_or_else(|| Failure::Bug("nothing was run".into()))?;
        Ok((times.split_off(WARM_UP), report))
    }

    /// The executors of a plan's devices: accelerators by their number, the socket last.
    fn bindings(&self, plan: &Plan, executors: &[Executor]) -> Result<Vec<spipe_exec::Binding>, Failure> {
        let hardware: &Hardware = plan.context().hardware;
        let accelerators = hardware.devices().iter().filter(|device| device.emulated).count();
        let mut bindings = training::bindings(plan, &[], self.backend)?;
        for binding in &mut bindings {
            let number = binding.device.strip_prefix("gpu").and_then(|number| number.parse().ok());
            if let Some(executor) = executors.get(number.unwrap_or(accelerators)) {
                binding.executor = executor.clone();
            }
        }
        Ok(bindings)
    }
}

fn lower(plan: &Plan) -> Result<Program, Failure> {
    spipe_schedule::lower(&plan.context(), plan.placement()).map_err(Failure::Input)
}

/// A steady iteration; of prompts, which a run reads once, one that begins and ends with devices at rest.
fn simulated(case: &Case, program: &Program) -> Trace {
    let default = spipe_sim::Options::default();
    let iterations = if case.mode == Mode::Infer { Iterations::One } else { default.iterations };
    spipe_sim::simulate(program, &spipe_sim::Options { iterations, ..default }).trace
}

fn busiest(comparison: &spipe_trace::Comparison) -> f64 {
    let busy = comparison.by_lane.values().map(|lane| lane.measured.to_ms());
    busy.fold(0.0, f64::max) / comparison.iteration.measured.to_ms()
}
