//! The cost of layers under runtimes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use spipe_base::{DeviceId, LayerId, Seconds};
use spipe_cost::{CostTable, LayerTime, Mode, Parallelism, Workload};
use spipe_hardware::{Constant, Hardware, Runtime};
use spipe_model::{Attention, Model, Precision, Recompute};

fn shipped(list: &[(&str, &'static str)], name: &str) -> &'static str {
    list.iter().find(|(shipped, _)| *shipped == name).unwrap().1
}

fn model(name: &str) -> Model {
    Model::from_toml(name, shipped(spipe_model::shipped(), name)).unwrap()
}

fn machine(name: &str) -> Hardware {
    Hardware::from_toml(name, shipped(spipe_hardware::shipped(), name)).unwrap()
}

fn runtime(text: &str) -> Runtime {
    Runtime::from_toml("runtime.toml", &format!("format-version = 1\nname = \"own\"\n{text}")).unwrap()
}

const WORKLOAD: Workload = Workload {
    mode: Mode::Train,
    seq_len: 1024,
    microbatch: 2,
    microbatches: 4,
    precision: Precision::Bf16,
    ..Workload::PLAIN
};

const GPU: DeviceId = DeviceId::new(0);
const BLOCK: LayerId = LayerId::new(1);
const HEAD: LayerId = LayerId::new(13);

fn table(runtime: &Runtime) -> CostTable {
    CostTable::new(&model("gpt2"), &machine("a100-80g").under(runtime.clone()), &WORKLOAD).unwrap()
}

fn block(runtime: &Runtime) -> LayerTime {
    *table(runtime).time(BLOCK, GPU).unwrap()
}

const KERNELS: &str = "[kernels]\nblock = { forward = 30, backward = 60 }\nsource = \"test\"\n";

#[test]
fn a_device_never_runs_ahead_of_its_host() {
    let slow = block(&runtime(&format!("[host]\nlaunch = \"1 ms\"\nsource = \"test\"\n{KERNELS}")));
    assert!((slow.forward.get() - 0.030).abs() < 1e-12 && (slow.backward().get() - 0.060).abs() < 1e-12);
    // Where the queue runs empty, the device's time comes on top.
    let fast = block(&runtime(&format!("[host]\nlaunch = \"1 ns\"\nsource = \"test\"\n{KERNELS}")));
    assert!(slow.queueing[0] > Seconds::ZERO && slow.queueing[0] <= fast.forward);
    assert_eq!(block(&Runtime::default()).queueing, [Seconds::ZERO; 3]);
}

#[test]
fn launches_and_the_launch_floor_are_not_counted_twice() {
    // With launches shorter than the profile's floor of 5 us, the floor of each kernel counts.
    let tiny = Workload { seq_len: 1, microbatch: 1, ..WORKLOAD };
    let time = |runtime: &Runtime| {
        let table = CostTable::new(&model("gpt2"), &machine("a100-80g").under(runtime.clone()), &tiny).unwrap();
        table.time(BLOCK, GPU).unwrap().forward
    };
    let short = time(&runtime("[host]\nlaunch = \"1 us\"\nsource = \"test\"\n"));
    let own = time(&Runtime::default());
    assert!(short <= own && short.get() > 0.5 * own.get(), "{short} {own}");
}

#[test]
fn efficiencies_are_factors() {
    let kernels = "[kernels]\nproducts = \"smallest-dimension\"\nattention = \"flash-2\"\nsource = \"test\"\n";
    let plain = runtime(kernels);
    let half = plain.with_constant(Constant::Products, 0.5).unwrap();
    assert!(block(&half).forward.get() > 1.3 * block(&plain).forward.get());
    let slow = plain.with_constant(Constant::Attention, 0.1).unwrap();
    assert!(block(&slow).forward > block(&plain).forward);
    let optimizer = plain.with_constant(Constant::Optimizer, 0.5).unwrap();
    let step = |runtime: &Runtime| table(runtime).optimizer_time(1 << 30, GPU).get();
    assert!((step(&optimizer) / step(&plain) - 2.0).abs() < 1e-9);
}

#[test]
fn memory_has_the_copies_and_scores_of_the_runtime() {
    let bytes = |runtime: &Runtime, layer: LayerId| *table(runtime).memory(layer, GPU);
    let (plain, own) = (Runtime::default(), |text: &str| runtime(text));
    let copies = own("[memory]\ngradient-copy-bytes = 4\nsource = \"test\"\n");
    let parameters = table(&plain).parameters(BLOCK);
    assert_eq!(bytes(&copies, BLOCK).state().get(), bytes(&plain, BLOCK).state().get() + 4 * parameters);
    let scores = own("[kernels]\nattention = \"materialised\"\nsource = \"test\"\n");
    let asked = Workload { attention: Attention::Materialised, ..WORKLOAD };
    let asked = CostTable::new(&model("gpt2"), &machine("a100-80g"), &asked).unwrap();
    assert_eq!(bytes(&scores, BLOCK), *asked.memory(BLOCK, GPU));
    let loss = |kind: &str| bytes(&own(&format!("[kernels]\nloss = \"{kind}\"\nsource = \"test\"\n")), HEAD);
    let held = |kind: &str| loss(kind).saved + loss(kind).workspace;
    assert!(held("chunked") < held("fused") && held("fused") < held("unfused"));
    assert!(held("fused-in-place") < held("fused"));
    // The gradient takes the place of the probabilities, beside logits and their gradient in 16 bits.
    assert_eq!(held("in-place"), held("fused"));
    assert_eq!(loss("fused"), bytes(&plain, HEAD));
    let norms = |kind: &str| bytes(&own(&format!("[kernels]\nnorms = \"{kind}\"\nsource = \"test\"\n")), BLOCK);
    assert_eq!(norms("fused"), bytes(&plain, BLOCK));
    // The gradient of the one input of GELU, four times as wide as the hidden size, is not held.
    let inner = 2 * 4 * 768 * WORKLOAD.microbatch * WORKLOAD.seq_len;
    assert_eq!(norms("fused").workspace.get() - norms("in-place").workspace.get(), inner);
}

#[test]
fn measured_collectives_count_instead_of_rings() {
    let cost = |runtime: &Runtime| {
        let machine = machine("a100-80g-x8-nvlink").under(runtime.clone());
        let spread = Parallelism { tensor: 1, data: 8, recompute: Recompute::None };
        spread.cost(&model("gpt2"), &machine, &Workload { microbatches: 8, ..WORKLOAD }).unwrap().data_reduction
    };
    let measured = runtime("[kernels]\ncollectives = \"measured\"\nsource = \"test\"\n");
    // 2 bytes for each of the parameters at a bus bandwidth between those of 128 and 512 MiB.
    let bytes = 2.0 * model("gpt2").parameters() as f64;
    let bus = 2.0 * 7.0 / 8.0 * bytes / cost(&measured).get();
    assert!((201e9..222e9).contains(&bus), "{bus}");
    let halved = measured.with_constant(Constant::Links, 0.5).unwrap();
    assert!((cost(&halved) / cost(&measured) - 2.0).abs() < 1e-9);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// More time per launch, or a lower efficiency, makes no layer faster.
    #[test]
    fn costs_are_monotone(launch in 0.0..1e-4f64, more in 0.0..1e-4f64, factor in 0.2..1.0f64) {
        let plain = Runtime::shipped("pytorch").unwrap().with_constant(Constant::Launch, launch).unwrap();
        let slower = plain.with_constant(Constant::Launch, launch + more).unwrap();
        let weaker = plain.with_constant(Constant::Products, factor * plain.constant(Constant::Products)).unwrap();
        let before = table(&plain);
        for other in [table(&slower), table(&weaker)] {
            for layer in before.layers() {
                let (one, two) = (before.time(layer, GPU).unwrap(), other.time(layer, GPU).unwrap());
                // The launch floor of the profile ends where launches begin.
                if launch > 5e-6 {
                    prop_assert!(two.forward >= one.forward && two.backward() >= one.backward());
                }
            }
        }
    }
}
