//! Tensor and data parallelism in closed form, by which measured runs are fitted. Baselines and plans are simulated.
//!
//! T GPUs share the matrices of each layer, and D such groups share the sequences. An iteration
//! takes
//!
//! ```text
//! m/D · Σ over layers (forward + recompute + backward of one T-th, and its reductions)
//!   + reduction of the gradients over D + optimizer
//! ```
//!
//! A block reduces its output of b·s·h numbers twice in the forward and twice in the backward
//! (Shoeybi et al. 2019, arXiv 1909.08053, section 3 and figure 4). An embedding reduces once in
//! the forward, a head once in the backward; a full recompute repeats the reductions of the
//! forward. Each group runs its microbatches one after the other and reduces the sum of its
//! gradients once, after the last backward (Narayanan et al. 2021, arXiv 2104.04473, section
//! 3.3.2). Nothing overlaps.

use crate::{
    CostError, LayerMemory, Mode, Rings, Workload,
    memory::output,
    table,
    times::{attending, layer_time},
    workload::storage,
};
use spipe_base::{Bytes, DeviceId, ParamsPerSecond, Seconds};
use spipe_hardware::{CollectiveKind, Hardware, Runtime};
use spipe_model::{Layer, LayerKind, Model, Precision, Recompute};

/// The distribution of a model over GPUs without a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallelism {
    /// The number of GPUs that share each layer; they are neighbours in the machine's order.
    pub tensor: u64,
    /// The number of such groups, which share the sequences.
    pub data: u64,
    /// The recompute in the backward.
    pub recompute: Recompute,
}

/// The cost of an iteration; the times add up to `iteration`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParallelCost {
    /// The whole iteration.
    pub iteration: Seconds,
    /// Forwards, recomputes and backwards on the slowest GPU, and the runtime's constant per
    /// iteration.
    pub compute: Seconds,
    /// Reductions within the groups that share layers.
    pub tensor_reductions: Seconds,
    /// The reduction of gradients between groups.
    pub data_reduction: Seconds,
    /// The optimizer's step.
    pub optimizer: Seconds,
    /// The bytes that each GPU must hold.
    pub memory: Bytes,
    /// The available memory of the smallest GPU.
    pub usable: Bytes,
}

impl ParallelCost {
    /// Whether each GPU's part fits in its memory.
    pub fn fits(&self) -> bool {
        self.memory <= self.usable
    }
}

/// The error of a distribution that is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParallelError {
    /// A degree of parallelism is zero.
    #[error("a degree of parallelism is zero")]
    Zero,
    /// There are fewer GPUs than needed.
    #[error("{wanted} GPUs are needed, but there are {present}")]
    Gpus {
        /// The number of GPUs needed.
        wanted: u64,
        /// The number of GPUs of the machine.
        present: u64,
    },
    /// Groups would have different numbers of microbatches.
    #[error("{microbatches} microbatches cannot be distributed evenly over {data} groups")]
    Microbatches {
        /// The number of microbatches.
        microbatches: u64,
        /// The number of groups.
        data: u64,
    },
    /// A layer's sizes are not divisible, or its kind cannot be split.
    #[error("layer `{layer}` cannot be split over {tensor} GPUs")]
    Layer {
        /// The layer.
        layer: String,
        /// The number of parts.
        tensor: u64,
    },
    /// A GPU cannot compute a layer.
    #[error("layer `{layer}` has no time on `{device}`")]
    Nowhere {
        /// The layer.
        layer: String,
        /// The GPU.
        device: String,
    },
    /// Two GPUs have no route between them.
    #[error(transparent)]
    Rings(#[from] CostError),
}

/// Returns the time of concurrent ring all-reduces of `bytes`, one in each of `groups`, with the rings in the given
/// order ([`Rings`]).
///
/// # Errors
/// If two neighbours of a ring are not connected.
pub fn all_reduce(hardware: &Hardware, groups: &[Vec<DeviceId>], bytes: Bytes) -> Result<Seconds, ParallelError> {
    if bytes == Bytes::ZERO {
        return Ok(Seconds::ZERO);
    }
    let rings = Rings::of(hardware, groups.iter().map(Vec::as_slice))?;
    Ok(rings.time(CollectiveKind::AllReduce, bytes))
}

impl Parallelism {
    /// Returns the cost of an iteration of `model` on the first T·D GPUs of `hardware`.
    ///
    /// # Errors
    /// If there are too few GPUs, if microbatches or layers are not divisible, or if GPUs are not
    /// connected.
    pub fn cost(&self, model: &Model, hardware: &Hardware, workload: &Workload) -> Result<ParallelCost, ParallelError> {
        let gpus = self.gpus(hardware)?;
        if !workload.microbatches.is_multiple_of(self.data) {
            return Err(ParallelError::Microbatches { microbatches: workload.microbatches, data: self.data });
        }
        let runtime = hardware.runtime();
        let workload = attending(workload, runtime);
        let workload = Workload { microbatches: workload.microbatches / self.data, ..workload };
        let shards = self.shards(model)?;
        let rounds = workload.microbatches as f64;
        let (mut compute, mut optimizer) = (Seconds::ZERO, Seconds::ZERO);
        let trained: u64 = shards.iter().map(Layer::trained_parameters).sum();
        for gpu in &gpus {
            compute = compute.max(self.compute(&shards, hardware, *gpu, &workload)? * rounds);
            let rate: ParamsPerSecond =
                table::optimizer_rate(&hardware.devices()[*gpu], (shards.iter(), &workload), hardware.runtime());
            if workload.mode == Mode::Train {
                optimizer = optimizer.max(Seconds::s(trained as f64 / rate.get()));
            }
        }
        compute = compute + runtime.iteration();
        let tensor = self.groups(&gpus);
        let width =
            gpus.first().map_or(workload.precision, |gpu| storage(&hardware.devices()[*gpu], workload.precision));
        let mut tensor_reductions = Seconds::ZERO;
        for layer in &shards {
            let once = all_reduce(hardware, &tensor, output_of(layer, &workload, width))?;
            tensor_reductions = tensor_reductions + once * (self.reductions(layer, workload.mode) as f64 * rounds);
        }
        let gradients: Bytes =
            shards.iter().map(|layer| LayerMemory::alone(layer, (&workload, runtime), width).gradients).sum();
        let data_reduction = all_reduce(hardware, &self.replicas(&gpus), gradients)?;
        let usable = gpus.iter().map(|gpu| hardware.memories()[hardware.devices()[*gpu].memory].usable()).min();
        Ok(ParallelCost {
            iteration: compute + tensor_reductions + data_reduction + optimizer,
            compute,
            tensor_reductions,
            data_reduction,
            optimizer,
            memory: self.memory(&shards, (&workload, runtime), width),
            usable: usable.unwrap_or(Bytes::ZERO),
        })
    }

    fn gpus(&self, hardware: &Hardware) -> Result<Vec<DeviceId>, ParallelError> {
        let wanted = self.tensor.saturating_mul(self.data);
        if wanted == 0 {
            return Err(ParallelError::Zero);
        }
        let all = hardware.gpus();
        let all: Vec<DeviceId> = all.collect();
        let present = all.len() as u64;
        let enough = (wanted <= present).then(|| all.into_iter().take(wanted as usize).collect());
        enough.ok_or(ParallelError::Gpus { wanted, present })
    }

    /// Returns the groups of GPUs that share layers: neighbours.
    fn groups(&self, gpus: &[DeviceId]) -> Vec<Vec<DeviceId>> {
        gpus.chunks(self.tensor as usize).map(<[DeviceId]>::to_vec).collect()
    }

    /// Returns the sets of GPUs that hold the same part in different groups.
    fn replicas(&self, gpus: &[DeviceId]) -> Vec<Vec<DeviceId>> {
        let tensor = self.tensor as usize;
        (0..tensor).map(|part| gpus.iter().skip(part).step_by(tensor).copied().collect()).collect()
    }

    fn shards(&self, model: &Model) -> Result<Vec<Layer>, ParallelError> {
        let shard = |layer: &Layer| {
            let refused = || ParallelError::Layer { layer: layer.name.clone(), tensor: self.tensor };
            layer.shard(self.tensor).ok_or_else(refused)
        };
        model.layers().iter().map(shard).collect()
    }

    /// Returns the compute time of one microbatch on a GPU.
    fn compute(
        &self,
        shards: &[Layer],
        hardware: &Hardware,
        gpu: DeviceId,
        workload: &Workload,
    ) -> Result<Seconds, ParallelError> {
        let device = &hardware.devices()[gpu];
        let mut total = Seconds::ZERO;
        for layer in shards {
            let nowhere = || ParallelError::Nowhere { layer: layer.name.clone(), device: device.name.clone() };
            let time = layer_time(layer, device, (workload, hardware.runtime())).ok_or_else(nowhere)?;
            let again = match self.recompute {
                _ if workload.mode != Mode::Train || !layer.needs_backward => Seconds::ZERO,
                Recompute::None => Seconds::ZERO,
                Recompute::Selective => time.forward * time.selective_share,
                Recompute::Full => time.forward,
            };
            total = total + time.forward + again + time.backward();
        }
        Ok(total)
    }

    /// Returns the number of reductions within a group for one microbatch of `layer`.
    fn reductions(&self, layer: &Layer, mode: Mode) -> u64 {
        let [forward, backward] = reductions(layer, mode);
        let training = mode == Mode::Train;
        let again = if training && layer.needs_backward && self.recompute == Recompute::Full { forward } else { 0 };
        forward + again + backward
    }

    /// Returns the sum of the state, the saved activations of one microbatch, the largest
    /// recomputed activations, and the largest workspace with its output.
    fn memory(&self, shards: &[Layer], (workload, runtime): (&Workload, &Runtime), precision: Precision) -> Bytes {
        let all: Vec<LayerMemory> =
            shards.iter().map(|layer| LayerMemory::alone(layer, (workload, runtime), precision)).collect();
        let kept = |memory: &LayerMemory| match self.recompute {
            Recompute::None => memory.saved,
            Recompute::Selective => memory.saved_selective,
            Recompute::Full => memory.input,
        };
        let held: Bytes = all.iter().map(|memory| memory.state() + kept(memory)).sum();
        let again = all.iter().map(|memory| memory.saved.saturating_sub(kept(memory))).max();
        let working = all.iter().map(|memory| memory.workspace + memory.boundary).max();
        held + again.unwrap_or_default() + working.unwrap_or_default()
    }
}

/// Returns the reductions within a team in the forward and in the backward of one microbatch of `layer`.
pub(crate) fn reductions(layer: &Layer, mode: Mode) -> [u64; 2] {
    let [forward, backward] = match layer.kind {
        LayerKind::Block(_) => [2, 2],
        LayerKind::Embedding(_) => [1, 0],
        LayerKind::Head(_) => [0, 1],
        _ => [0, 0],
    };
    [forward, if mode == Mode::Train && layer.passes_gradient { backward } else { 0 }]
}

/// Returns the bytes that a layer reduces: its output, or for a head the gradient of its input.
pub(crate) fn output_of(layer: &Layer, workload: &Workload, precision: Precision) -> Bytes {
    match layer.kind {
        LayerKind::Head(head) => {
            Bytes::new(layer.batch(workload.longest_batch()).tokens() * head.hidden * precision.bytes())
        }
        _ => output(layer, workload, precision),
    }
}
