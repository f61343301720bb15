//! Runs that can be predicted: a plan, or degrees of parallelism, on a machine.

use crate::{Command, ConstantError, Field, Quantity, Runs, Stated, with_constants};
use spipe_base::{Bytes, Diagnostic, Faults, Seconds};
use spipe_cost::{CostTable, Parallelism, Workload};
use spipe_hardware::{Hardware, MemoryKind};
use spipe_model::Model;
use spipe_plan::{Context, Plan};
use spipe_schedule::lower;
use spipe_sim::iteration_time;
use std::{collections::BTreeMap, fmt};

/// The work of a run, in full.
#[derive(Clone, Debug)]
pub enum Work {
    /// A plan.
    Planned(Box<Plan>),
    /// Tensor and data parallelism, in closed form: a fit finds constants from the parts of its sum.
    TensorData(Box<TensorData>),
}

/// A model that is shared by GPUs without a pipeline.
#[derive(Clone, Debug)]
pub struct TensorData {
    /// The model.
    pub model: Model,
    /// The machine.
    pub hardware: Hardware,
    /// The workload.
    pub workload: Workload,
    /// The degrees of parallelism.
    pub spread: Parallelism,
}

/// A kind of runs whose errors are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A dense model on one GPU.
    OneGpu,
    /// Every GPU computes all layers.
    DataParallel,
    /// GPUs share the matrices of each layer.
    TensorParallel,
    /// GPUs compute different layers.
    Pipeline,
    /// The host holds or computes a part.
    Offload,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 5] = [Self::OneGpu, Self::DataParallel, Self::TensorParallel, Self::Pipeline, Self::Offload];

    /// Returns the name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneGpu => "one-gpu",
            Self::DataParallel => "data-parallel",
            Self::TensorParallel => "tensor-parallel",
            Self::Pipeline => "pipeline",
            Self::Offload => "offload",
        }
    }

    /// Returns the class of a plan.
    pub fn of_plan(plan: &Plan) -> Self {
        let hardware = plan.context().hardware;
        let on_host = |memory| hardware.memories()[memory].kind != MemoryKind::Gpu;
        let peaks = plan.peaks();
        if peaks.iter().any(|(memory, bytes)| on_host(*memory) && *bytes > Bytes::ZERO) {
            return Self::Offload;
        }
        match plan.devices().len() {
            0 | 1 => Self::OneGpu,
            _ if plan.placement().shards_parameters() => Self::DataParallel,
            _ if plan.context().mesh().tensor() > 1 => Self::TensorParallel,
            _ if plan.context().mesh().data() > 1 => Self::DataParallel,
            _ => Self::Pipeline,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error of a run that cannot be predicted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// The constants cannot be used.
    #[error(transparent)]
    Constant(#[from] ConstantError),
    /// The machine does not hold the run, or does not compute it.
    #[error("{0}")]
    Impossible(String),
}

impl Work {
    /// Returns the class of the run.
    pub fn class(&self) -> Class {
        match self {
            Self::Planned(plan) => Class::of_plan(plan),
            Self::TensorData(work) if work.spread.tensor > 1 => Class::TensorParallel,
            Self::TensorData(work) if work.spread.data > 1 => Class::DataParallel,
            Self::TensorData(_) => Class::OneGpu,
        }
    }

    /// Returns the machine, under its runtime.
    pub fn hardware(&self) -> &Hardware {
        match self {
            Self::Planned(plan) => plan.context().hardware,
            Self::TensorData(work) => &work.hardware,
        }
    }

    /// Returns the tokens of an iteration.
    pub fn tokens(&self) -> u64 {
        match self {
            Self::Planned(plan) => plan.context().cost.whole_workload().tokens(),
            Self::TensorData(work) => work.workload.tokens(),
        }
    }

    /// Returns the time of an iteration with these constants. The placement stays as it is.
    ///
    /// # Errors
    /// Constants that cannot be used, and a run that the machine cannot hold.
    pub fn iteration(&self, constants: &BTreeMap<String, f64>) -> Result<Seconds, PredictError> {
        let hardware = with_constants(self.hardware(), constants)?;
        let impossible = |message: String| PredictError::Impossible(message);
        match self {
            Self::Planned(plan) => {
                let planned = plan.context();
                let (model, workload, mesh) = (planned.model, planned.cost.whole_workload(), planned.mesh());
                let cost = CostTable::on(model, &hardware, &workload, mesh);
                let cost = cost.map_err(|error| impossible(error.to_string()))?;
                let context = Context { model, hardware: &hardware, cost: &cost };
                let program = lower(&context, plan.placement()).map_err(|faults| impossible(faults.to_string()))?;
                let time = iteration_time(&program).ok_or_else(|| impossible("it runs out of memory".into()))?;
                Ok(Seconds::ms(time.to_ms()))
            }
            Self::TensorData(work) => {
                let cost = work.spread.cost(&work.model, &hardware, &work.workload);
                Ok(cost.map_err(|error| impossible(error.to_string()))?.iteration)
            }
        }
    }

    /// Returns the peak of each memory, by name, and that of the fullest GPU as [`FULLEST`]. Those of GPUs have what
    /// `quantity` counts.
    pub fn peaks(&self, quantity: Quantity) -> BTreeMap<String, Bytes> {
        let hardware = self.hardware();
        let mut peaks = BTreeMap::new();
        for (memory, bytes) in self.counted_peaks() {
            let Some(kind) = hardware.memory(&memory).map(|id| hardware.memories()[id].kind) else { continue };
            let peak = shown_peak(hardware, (kind, quantity), bytes);
            if kind == MemoryKind::Gpu {
                let fullest = peaks.entry(FULLEST.to_owned()).or_insert(peak);
                *fullest = peak.max(*fullest);
            }
            peaks.insert(memory, peak);
        }
        peaks
    }

    fn counted_peaks(&self) -> BTreeMap<String, Bytes> {
        match self {
            Self::Planned(plan) => {
                let memories = plan.context().hardware.memories();
                plan.peaks().into_iter().map(|(memory, bytes)| (memories[memory].name.clone(), bytes)).collect()
            }
            Self::TensorData(work) => {
                let Ok(cost) = work.spread.cost(&work.model, &work.hardware, &work.workload) else {
                    return BTreeMap::new();
                };
                let gpus = work.hardware.devices().iter().filter(|device| device.is_gpu());
                let used = gpus.take((work.spread.tensor * work.spread.data) as usize);
                used.map(|gpu| (gpu.name.clone(), cost.memory)).collect()
            }
        }
    }
}

/// The name of the fullest GPU among peaks.
pub const FULLEST: &str = "gpus";

/// Returns what a tool shows for a memory of this kind if `counted` bytes of it are used: tensors with their buckets, the
/// blocks that the allocator loses some of, or these with context and communicators.
fn shown_peak(hardware: &Hardware, (kind, quantity): (MemoryKind, Quantity), counted: Bytes) -> Bytes {
    let runtime = hardware.runtime();
    let gpus = hardware.gpus().count();
    let (beside, lost) = match (kind, quantity) {
        (MemoryKind::Gpu, Quantity::Allocated) => (runtime.buffers(gpus), 0.0),
        (MemoryKind::Gpu, Quantity::Reserved) => (runtime.buffers(gpus), runtime.allocator_share()),
        (MemoryKind::Gpu, Quantity::Device) => {
            (runtime.context(gpus) + runtime.buffers(gpus), runtime.allocator_share())
        }
        (MemoryKind::Dram, _) => (Bytes::ZERO, runtime.host_share()),
        (MemoryKind::Nvme, _) => (Bytes::ZERO, 0.0),
    };
    if lost > 0.0 { Bytes::from_f64(counted.as_f64() / (1.0 - lost)) + beside } else { counted + beside }
}

/// A measured run that can be predicted.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its figures, as the file states them.
    pub stated: Stated,
    /// Its work.
    pub work: Work,
}

impl Run {
    /// Returns the measured time of an iteration, if one is stated.
    pub fn measured(&self) -> Option<Seconds> {
        self.stated.measured.map(|measured| measured.iteration(self.work.tokens()))
    }
}

/// Why a run has no work.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// A field of the run is wrong.
    Fault(Field, Faults),
    /// The machine cannot hold the run: the reason.
    CannotHold(String),
}

/// A run that is left out of fit and prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The run's name.
    pub name: String,
    /// The reason.
    pub reason: String,
    /// Why it would not count, if it would not.
    pub not_counted: Option<String>,
    /// Whether memory was short in the run itself.
    pub as_measured: bool,
}

impl LeftOut {
    /// Returns its name and why it is left out, in words.
    pub fn remark(&self) -> String {
        let Self { name, reason, not_counted, as_measured } = self;
        match as_measured {
            true => format!("`{name}` is refused, and was out of memory ({reason})"),
            false if not_counted.as_ref() == Some(reason) => format!("`{name}` is listed alone ({reason})"),
            false => format!("`{name}` is left out: its machine cannot hold it ({reason})"),
        }
    }
}

/// Finds the work of every run. `prepare` reads model, machine and options of a run, and plans it.
///
/// # Errors
/// Every run whose model, machine or options are wrong, with the field.
pub fn prepared(
    runs: &Runs,
    prepare: &dyn Fn(&Stated) -> Result<Work, Refusal>,
) -> Result<(Vec<Run>, Vec<LeftOut>), Faults> {
    let (mut ready, mut left_out, mut faults) = (Vec::new(), Vec::new(), Faults::new());
    for stated in &runs.runs {
        let leave = |reason: String| LeftOut {
            name: stated.name.clone(),
            reason,
            not_counted: stated.not_counted.clone(),
            as_measured: stated.out_of_memory,
        };
        if stated.command == Command::Unplanned {
            left_out.push(leave(stated.not_counted.clone().unwrap_or_default()));
            continue;
        }
        match prepare(stated) {
            Ok(work) => {
                let peaks = work.peaks(stated.quantity);
                for memory in stated.peaks.keys().filter(|memory| !peaks.contains_key(*memory)) {
                    let known: Vec<&str> = peaks.keys().map(String::as_str).collect();
                    let fault = Diagnostic::error(format!("a peak of `{memory}`, of which the run uses nothing"));
                    let fault = fault.hint(format!("it uses {}", known.join(", ")));
                    faults.push(runs.fault(stated, Field::Measured, &fault));
                }
                ready.push(Run { stated: stated.clone(), work });
            }
            Err(Refusal::CannotHold(reason)) => left_out.push(leave(reason)),
            Err(Refusal::Fault(field, found)) => {
                found.iter().for_each(|fault| faults.push(runs.fault(stated, field, fault)));
            }
        }
    }
    faults.or((ready, left_out))
}
