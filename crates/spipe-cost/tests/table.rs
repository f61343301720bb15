//! Times and bytes of layers on devices, compared with values computed by hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{Bytes, DeviceId, LayerId, Seconds};
use spipe_cost::{CostTable, Mode, Source, Workload, compute_type, product_type};
use spipe_hardware::{DataType, Hardware};
use spipe_model::{Attention, Model, Op, Precision, Recompute};

fn shipped(list: &[(&str, &'static str)], name: &str) -> &'static str {
    list.iter().find(|(shipped, _)| *shipped == name).unwrap().1
}

fn model(name: &str) -> Model {
    Model::from_toml(name, shipped(spipe_model::shipped(), name)).unwrap()
}

fn workload(precision: Precision) -> Workload {
    Workload { mode: Mode::Train, seq_len: 1024, microbatch: 2, microbatches: 4, precision, ..Workload::PLAIN }
}

/// One GPU with 100 TFLOP/s, of which every product reaches half, 1 TB/s, and 10 µs per kernel; one
/// socket with AMX, one without.
fn machine(extra: &str) -> Hardware {
    let socket = |name: &str, extensions: &str| {
        format!(
            "[[socket]]\nname = \"{name}\"\ncores = 8\npeak = {{ f32 = \"1 TFLOP/s\", bf16 = \"4 TFLOP/s\" }}\n\
             optimizer-rate = \"2 Gparam/s\"\nvector-extensions = [{extensions}]\nsource = \"made up\"\n\
             dram = {{ name = \"{}\", capacity = \"64 GiB\", bandwidth = \"80 GB/s\" }}\n",
            name.replace("cpu", "dram")
        )
    };
    let text = format!(
        "format-version = 1\nname = \"test\"\n{}{}\
         [[gpu]]\nname = \"gpu0\"\nmemory = \"24 GiB\"\nmemory-bandwidth = \"1 TB/s\"\nlaunch-floor = \"10 us\"\n\
         peak = {{ bf16 = \"100 TFLOP/s\", f16 = \"100 TFLOP/s\", f32 = \"50 TFLOP/s\", fp8 = \"200 TFLOP/s\" }}\nsource = \"made up\"\n\
         matmul = {{ bf16 = [[\"1 FLOP\", \"50 TFLOP/s\"]], fp8 = [[\"1 FLOP\", \"100 TFLOP/s\"]] }}\nelementwise = [[\"1 B\", \"500 GB/s\"]]\n{extra}\
         [[link]]\nname = \"pcie0\"\nbetween = [\"gpu0\", \"dram0\"]\nbandwidth = \"25 GB/s\"\n\
         [[link]]\nname = \"upi\"\nbetween = [\"dram0\", \"dram1\"]\nbandwidth = \"40 GB/s\"\n",
        socket("cpu0", "\"avx512\", \"amx-bf16\""),
        socket("cpu1", "\"avx2\"")
    );
    Hardware::from_toml("test.toml", &text).unwrap()
}

const GPU: DeviceId = DeviceId::new(0);
const AMX: DeviceId = DeviceId::new(1);
const PLAIN: DeviceId = DeviceId::new(2);

#[test]
fn a_layer_takes_the_sum_of_its_operations() {
    let (model, hardware, workload) = (model("gpt2"), machine(""), workload(Precision::Bf16));
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let block = LayerId::new(1);
    let by_hand = |ops: &[Op]| -> f64 {
        ops.iter()
            .map(|op| {
                let moving = (op.elements_moved(Attention::Fused) * 2) as f64 / 500e9;
                let computing = if matches!(op, Op::Elementwise { .. }) { 0.0 } else { op.flops().get() / 50e12 };
                10e-6 * f64::from(op.kernels(Attention::Fused)) + moving.max(computing)
            })
            .sum()
    };
    let work = model.layers()[block].work(workload.batch());
    let time = cost.time(block, GPU).unwrap();
    assert!((time.forward.get() - by_hand(&work.forward)).abs() < 1e-12);
    let backward = by_hand(&work.backward_input) + by_hand(&work.backward_weight);
    assert!((time.backward().get() - backward).abs() < 1e-12);
    assert_eq!(time.source, Source::Roofline);
    assert!(cost.time(block, PLAIN).unwrap().forward > time.forward, "a socket is slower");
}

/// Products in 8 bits have their own rate, and read half the bytes of their operands, after the rows are cast.
#[test]
fn narrow_products_have_their_own_rate() {
    let (model, hardware, workload) = (model("gpt2"), machine(""), workload(Precision::Fp8));
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let by_hand = |op: &Op| {
        let elements = op.elements_moved(Attention::Fused) as f64;
        let (moved, rate, cast) = match *op {
            Op::MatMul { m, n, k, .. } => (elements + (m * n) as f64, 100e12, 3.0 * (m * k) as f64),
            _ => (elements * 2.0, 50e12, 0.0),
        };
        let busy = (moved / 500e9).max(op.flops().get() / rate) + cast / 500e9;
        10e-6 * f64::from(op.kernels(Attention::Fused)) + busy
    };
    let (block, head) = (LayerId::new(1), LayerId::new(13));
    let forward: f64 = model.layers()[block].work(workload.batch()).forward.iter().map(by_hand).sum();
    assert!((cost.time(block, GPU).unwrap().forward.get() - forward).abs() < 1e-12);
    let wide = CostTable::new(&model, &hardware, &Workload { precision: Precision::Bf16, ..workload }).unwrap();
    assert_eq!(cost.time(head, GPU), wide.time(head, GPU), "heads stay in 16 bits");
    assert_eq!(cost.time(block, AMX), wide.time(block, AMX), "sockets have no such products");
    assert_eq!(cost.memory(block, GPU), wide.memory(block, GPU));
    assert_eq!(product_type(&hardware.devices()[GPU], Precision::Fp8), DataType::Fp8);
}

#[test]
fn devices_compute_in_what_they_have() {
    let hardware = machine("");
    let types = |precision| [GPU, AMX, PLAIN].map(|device| compute_type(&hardware.devices()[device], precision));
    assert_eq!(types(Precision::Bf16), [DataType::Bf16, DataType::Bf16, DataType::F32]);
    assert_eq!(types(Precision::Fp16), [DataType::F16, DataType::F32, DataType::F32], "a CPU never computes in f16");
    assert_eq!(types(Precision::Fp32), [DataType::F32; 3]);
}

#[test]
fn state_is_sixteen_bytes_per_parameter_everywhere() {
    for precision in Precision::ALL {
        let model = model("llama2-7b");
        let cost = CostTable::new(&model, &machine(""), &workload(precision)).unwrap();
        for device in cost.devices() {
            let state: Bytes = cost.layers().map(|layer| cost.memory(layer, device).state()).sum();
            assert_eq!(state, Bytes::new(model.parameters() * 16));
        }
    }
}

#[test]
fn inference_keeps_nothing_and_has_no_backward() {
    let inference = Workload { mode: Mode::Infer, ..workload(Precision::Bf16) };
    let cost = CostTable::new(&model("gpt2"), &machine(""), &inference).unwrap();
    for layer in cost.layers() {
        let memory = cost.memory(layer, GPU);
        assert_eq!((memory.gradients, memory.optimizer, memory.saved), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
        assert_eq!(cost.time(layer, GPU).unwrap().backward(), Seconds::ZERO);
    }
}

#[test]
fn recompute_costs_between_nothing_and_a_forward() {
    let cost = CostTable::new(&model("gpt2"), &machine(""), &workload(Precision::Bf16)).unwrap();
    let block = LayerId::new(1);
    let time = |recompute| cost.recompute_time(block, GPU, recompute).unwrap();
    assert_eq!(time(Recompute::None), Seconds::ZERO);
    assert_eq!(time(Recompute::Full), cost.time(block, GPU).unwrap().forward);
    assert!(time(Recompute::Selective) > Seconds::ZERO && time(Recompute::Selective) < time(Recompute::Full));
}

#[test]
fn a_measurement_wins_over_the_roofline() {
    let (model, workload) = (model("gpt2"), workload(Precision::Bf16));
    let signature = model.layers()[LayerId::new(1)].signature(workload.batch());
    let measured = format!(
        "[[gpu.layer-time]]\nlayer = \"{signature}\"\ndata-type = \"bf16\"\nforward = \"7 ms\"\n\
         backward-input = \"8 ms\"\nbackward-weight = \"9 ms\"\n"
    );
    let cost = CostTable::new(&model, &machine(&measured), &workload).unwrap();
    let time = cost.time(LayerId::new(12), GPU).unwrap();
    assert_eq!((time.source, time.forward, time.backward()), (Source::Measured, Seconds::ms(7.0), Seconds::ms(17.0)));
    assert_eq!(cost.time(LayerId::new(0), GPU).unwrap().source, Source::Roofline, "other layers are not touched");
}

#[test]
fn optimizers_run_at_their_rate() {
    let cost = CostTable::new(&model("gpt2"), &machine(""), &workload(Precision::Bf16)).unwrap();
    assert_eq!(cost.optimizer_time(1_000_000_000, AMX), Seconds::s(0.5));
    // 28 bytes per parameter at 1 TB/s.
    assert!((cost.optimizer_time(1_000_000_000, GPU).to_ms() - 28.0).abs() < 1e-9);
    assert_eq!(cost.optimizer_traffic(1_000, GPU), Bytes::new(28_000));
}

#[test]
fn a_batch_of_nothing_has_no_costs() {
    let nothing = Workload { microbatches: 0, ..workload(Precision::Bf16) };
    let error = CostTable::new(&model("gpt2"), &machine(""), &nothing).unwrap_err();
    assert_eq!(error.to_string(), "the number of microbatches is zero");
}
