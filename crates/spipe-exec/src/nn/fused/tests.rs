//! Layers on a GPU beside the same layers on cores: outputs, gradients, and launches.
//!
//! `make software-gpu-check` runs these on Mesa's llvmpipe, or whatever Vulkan finds first.

use crate::{
    data::{Data, Draw, Tokens},
    device::{DeviceContext, cores, launches, tuned},
    nn::{
        Matrix, Tensors, cast,
        layers::{PassContext, Reading, Signal, Unit, lone_units},
        passes::{self, Layers, Outputs, Seed},
    },
};
use burn::tensor::{Device, FloatDType, Tensor, TensorData, f16};
use spipe_model::{Batch, Model};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

/// Largest difference of two numbers, as a share of the largest number of their tensor. Sums of
/// f32 have another order; in f16, every product is rounded to 11 bits.
const TOLERANCE: f32 = 2e-4;
const NARROW_TOLERANCE: f32 = 2e-2;
/// The least that counts as largest number, as gradients are of the order of one: that of a bias of
/// keys is zero but for rounding.
const SMALLEST: f32 = 0.5;
/// Launches of a block for a microbatch: forward, backward, and sums of gradients.
const MOST_LAUNCHES: u64 = 80;

const GPT: &str = r#"
    format-version = 1
    kind = "transformer"
    name = "small-gpt"
    vocabulary = 97
    seq-len = 24
    hidden = 48
    layers = 1
    heads = 3
    intermediate = 100
    norm = "layer-norm"
    mlp = "gelu"
    positions = "learned"
    places = 24
    qkv-bias = true
    output-bias = true
    mlp-bias = true
"#;

const LLAMA: &str = r#"
    format-version = 1
    kind = "transformer"
    name = "small-llama"
    vocabulary = 97
    seq-len = 24
    hidden = 48
    layers = 1
    heads = 4
    kv-heads = 2
    intermediate = 75
"#;

fn gpu() -> &'static DeviceContext {
    static GPU: OnceLock<DeviceContext> = OnceLock::new();
    let open = || DeviceContext::open(&"wgpu:0".parse().unwrap());
    GPU.get_or_init(|| open().unwrap_or_else(|error| panic!("{error} (Debian: mesa-vulkan-drivers)")))
}

/// One test at a time: launches are counted for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers that are neither equal nor small, and that f16 has.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let number = |index: usize| ((index * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5;
    (0..count).map(|index| f16::from_f32(number(index)).to_f32()).collect()
}

fn matrix(shape: [usize; 2], seed: usize, (device, width): (&Device, FloatDType)) -> Matrix {
    cast(Tensor::from_data(TensorData::new(numbers(shape[0] * shape[1], seed), shape), device), width)
}

/// A layer of a model, with what it computes on.
struct Bench {
    unit: Unit,
    parameters: Tensors,
    input: Signal,
    seed: Option<Matrix>,
    pass: PassContext,
}

const SEQUENCES: usize = 2;

impl Bench {
    fn new(model: &str, layer: usize, at: (&Device, FloatDType)) -> Self {
        let model = Model::from_toml("model.toml", model).unwrap_or_else(|faults| panic!("{faults}"));
        let batch = Batch { microbatch: SEQUENCES as u64, seq_len: 24 };
        let unit = lone_units(&model).unwrap().swap_remove(layer).copy(&model, 0);
        let rows = SEQUENCES * batch.seq_len as usize;
        let text: Vec<u8> = (0..200u32).map(|index| (index * 37 % 97) as u8).collect();
        let data = Data::from(Tokens::bytes(&text, batch.seq_len).unwrap());
        let microbatch = data.microbatch(Draw { seed: 0, step: 0, microbatch: 0 }, SEQUENCES);
        let parameter = |(seed, parameter): (usize, &crate::nn::layers::Parameter)| matrix(parameter.shape, seed, at);
        Self {
            parameters: vec![unit.parameters().iter().enumerate().map(parameter).collect()],
            input: Signal::Hidden(matrix([rows, 48], 77, at)),
            seed: (!unit.yields_loss()).then(|| matrix([rows, 48], 78, at)),
            pass: PassContext::new(&microbatch, &Reading::of(&model), at.0),
            unit,
        }
    }

    fn seed(&self) -> Seed {
        match &self.seed {
            Some(gradient) => Seed::Gradient(Box::new(gradient.clone())),
            None => Seed::Loss(1.0),
        }
    }

    /// The output, the gradient of the input, and those of the parameters, twice added up.
    fn run(&self) -> Vec<Matrix> {
        let layers = Layers::new(0, std::slice::from_ref(&self.unit), &self.parameters);
        let backward = || {
            let outputs = &mut Outputs::default();
            let (output, graph) = passes::forward(layers, (0, false), self.input.clone(), &self.pass, outputs);
            (output, passes::backward(graph.into_iter().collect(), self.seed()))
        };
        let ((output, first), (_, second)) = (backward(), backward());
        let output = match output {
            Signal::Hidden(output) => output,
            Signal::Loss(loss) => loss.reshape([1, 1]),
            _ => panic!("a layer that trains"),
        };
        let sums = passes::accumulate(first.parameters, second.parameters);
        [output, first.input.unwrap()].into_iter().chain(sums.into_iter().flatten()).collect()
    }
}

fn compare(model: &str, layer: usize, (width, tolerance): (FloatDType, f32)) {
    let gpu = gpu();
    let theirs = Bench::new(model, layer, (&cores(), FloatDType::F32)).run();
    let found = Bench::new(model, layer, (&gpu.device, width));
    let ours = gpu.compute(|| found.run()).unwrap();
    assert_eq!(ours.len(), theirs.len());
    for (index, (ours, theirs)) in ours.into_iter().zip(theirs).enumerate() {
        let [ours, theirs] = [ours, theirs].map(|matrix| matrix.into_data().iter::<f32>().collect::<Vec<f32>>());
        let largest = theirs.iter().fold(SMALLEST, |most, number| most.max(number.abs()));
        let off = ours.iter().zip(&theirs).fold(0.0f32, |most, (ours, theirs)| most.max((ours - theirs).abs()));
        let finite = ours.iter().all(|number| number.is_finite());
        assert_eq!(ours.len(), theirs.len());
        assert!(finite && off <= tolerance * largest, "{index} of {model} in {width:?}: off by {off} of {largest}");
    }
}

fn compare_in_both(model: &str, layer: usize) {
    let _alone = alone();
    compare(model, layer, (FloatDType::F32, TOLERANCE));
    if gpu().device.supports_dtype(FloatDType::F16) {
        compare(model, layer, (FloatDType::F16, NARROW_TOLERANCE));
    }
}

#[test]
fn blocks_with_biases_and_layer_norms_are_those_of_cores() {
    compare_in_both(GPT, 1);
    compare_in_both(&GPT.replace("\"gelu\"", "\"gelu-tanh\""), 1);
}

#[test]
fn blocks_with_gates_and_rotation_are_those_of_cores() {
    compare_in_both(LLAMA, 1);
    compare_in_both(&format!("{LLAMA}sliding-window = 5\nscore-cap = 0.7\n"), 1);
}

#[test]
fn losses_are_those_of_cores() {
    compare_in_both(GPT, 2);
    compare_in_both(LLAMA, 2);
}

/// A sum of 32 bits stays one, whatever is added, and loses nothing of it.
#[test]
fn sums_of_32_bits_take_gradients_of_16() {
    let _alone = alone();
    if !gpu().device.supports_dtype(FloatDType::F16) {
        return;
    }
    let (shape, device) = ([37, 50], &gpu().device);
    let numbers = |seed, at| matrix(shape, seed, at);
    let sums = gpu().compute(|| {
        let sum = vec![vec![numbers(1, (device, FloatDType::F32)).mul_scalar(1.0 + 2.0f32.powi(-20))]];
        passes::accumulate(sum, vec![vec![numbers(2, (device, FloatDType::F16))]])
    });
    let found = sums.unwrap().remove(0).remove(0);
    assert_eq!(found.dtype(), burn::tensor::DType::F32);
    let wide = (&cores(), FloatDType::F32);
    let expected = numbers(1, wide).mul_scalar(1.0 + 2.0f32.powi(-20)) + numbers(2, wide);
    assert_eq!(found.into_data(), expected.into_data());
}

/// Launches of a forward, a backward, and of adding up the gradients, once everything is compiled
/// and tuned.
fn launched(model: &str, width: FloatDType) -> BTreeMap<&'static str, u64> {
    let gpu = gpu();
    let bench = Bench::new(model, 1, (&gpu.device, width));
    let twice = || gpu.compute(|| bench.run()).unwrap();
    // The first runs compile and tune.
    drop([twice(), twice()]);
    launches::of(|| drop(twice()))
}

#[test]
fn a_block_takes_few_launches() {
    let _alone = alone();
    let width = if gpu().device.supports_dtype(FloatDType::F16) { FloatDType::F16 } else { FloatDType::F32 };
    for model in [GPT, LLAMA] {
        let found = launched(model, width);
        let name = |name: &str| name.rsplit("::").next().unwrap_or_default().to_owned();
        for (kernel, count) in &found {
            println!("{count:4} {} {kernel}", name(kernel));
        }
        let all: u64 = found.values().sum();
        // Two microbatches, and one sum of their gradients for each parameter.
        let sums = Bench::new(model, 1, (&gpu().device, width)).parameters[0].len() as u64;
        let each = (all + sums) / 2;
        println!("{each} launches for a block and microbatch");
        assert!(each <= MOST_LAUNCHES, "{each} launches for a block and microbatch of {model}");
    }
    assert!(!tuned().is_empty(), "products are tuned, and the choices known");
}
