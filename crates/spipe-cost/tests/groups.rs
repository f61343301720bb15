//! Rows of the one language: bytes of each training, and what is refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{Bytes, LayerId};
use spipe_cost::{
    Base, CostTable, Formats, GradientFormat, LayerMemory, Master, Mode, Optimizer, StateFormat, Workload,
    check_training,
};
use spipe_hardware::Hardware;
use spipe_model::{Lora, Model, Precision, shipped};

const PLAIN: Workload = Workload {
    mode: Mode::Train,
    seq_len: 512,
    microbatch: 1,
    microbatches: 4,
    precision: Precision::Bf16,
    ..Workload::PLAIN
};

fn llama() -> Model {
    let text = shipped().iter().find(|(name, _)| *name == "llama2-7b").unwrap().1;
    Model::from_toml("llama2-7b", text).unwrap()
}

fn machine() -> Hardware {
    let text = spipe_hardware::shipped().iter().find(|(name, _)| *name == "a100-80g").unwrap().1;
    Hardware::from_toml("a100-80g", text).unwrap()
}

fn table(model: &Model, workload: &Workload) -> CostTable {
    CostTable::new(model, &machine(), workload).unwrap()
}

/// The memory of `block.5` on the GPU.
fn block(model: &Model, workload: &Workload) -> LayerMemory {
    let gpu = machine().devices().enumerate().find(|(_, device)| device.is_gpu()).unwrap().0;
    *table(model, workload).memory(model.layer("block.5").unwrap(), gpu)
}

/// Parameters of a block of Llama-2 7B: 4h² + 3hf + 2h.
const BLOCK: u64 = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096;

/// Parameters of the adapters of rank 16 on all seven matrices of a block.
const ADAPTERS: u64 = 16 * (8 * 4096 + 3 * (4096 + 11008));

#[test]
fn each_training_is_a_row() {
    let lora = llama().with_lora(&Lora::parse("rank=16", None).unwrap()).unwrap();
    let with = |formats: Formats| Workload { formats, ..PLAIN };
    let pure = Formats { state: Some(StateFormat::Bf16), master: Some(Master::None), ..Formats::PLAIN };
    let full = llama();
    // A magnitude for each output of the seven matrices.
    let dora = llama().with_lora(&Lora::parse("rank=16,dora", None).unwrap()).unwrap();
    let magnitudes = ADAPTERS + 5 * 4096 + 2 * 11008;
    for (name, model, workload, [parameters, updated, gradients, optimizer]) in [
        ("full", &full, PLAIN, [2 * BLOCK, 2 * BLOCK, 2 * BLOCK, 12 * BLOCK]),
        ("pure bf16", &full, with(pure), [2 * BLOCK, 2 * BLOCK, 2 * BLOCK, 4 * BLOCK]),
        (
            "32-bit gradients",
            &full,
            with(Formats { gradients: Some(GradientFormat::F32), ..Formats::PLAIN }),
            [2 * BLOCK, 2 * BLOCK, 4 * BLOCK, 12 * BLOCK],
        ),
        ("lion", &full, Workload { optimizer: Optimizer::Lion, ..PLAIN }, [2 * BLOCK, 2 * BLOCK, 2 * BLOCK, 8 * BLOCK]),
        ("sgd", &full, Workload { optimizer: Optimizer::Sgd, ..PLAIN }, [2 * BLOCK, 2 * BLOCK, 2 * BLOCK, 4 * BLOCK]),
        ("adapters", &lora, PLAIN, [2 * BLOCK + 4 * ADAPTERS, 4 * ADAPTERS, 4 * ADAPTERS, 8 * ADAPTERS + 2 * ADAPTERS]),
        (
            "magnitudes",
            &dora,
            PLAIN,
            [2 * BLOCK + 4 * magnitudes, 4 * magnitudes, 4 * magnitudes, 8 * magnitudes + 2 * magnitudes],
        ),
        (
            "adapters in 16 bits",
            &lora,
            with(Formats { master: Some(Master::None), ..Formats::PLAIN }),
            [2 * BLOCK + 2 * ADAPTERS, 2 * ADAPTERS, 2 * ADAPTERS, 8 * ADAPTERS],
        ),
    ] {
        let memory = block(model, &workload);
        let found = [memory.parameters, memory.updated, memory.gradients, memory.optimizer].map(Bytes::get);
        assert_eq!(found, [parameters, updated, gradients, optimizer], "{name}");
    }
    let lora = table(&lora, &PLAIN);
    let layers: Vec<LayerId> = lora.layers().collect();
    assert_eq!(lora.trained_parameters(layers[5]), ADAPTERS);
    assert_eq!(lora.without_backward(), 1);
}

#[test]
fn a_quantised_base_has_its_bytes_and_takes_time() {
    let lora = llama().with_lora(&Lora::parse("rank=16,targets=q,v", None).unwrap()).unwrap();
    let matrices = 4 * 4096 * 4096 + 3 * 4096 * 11008;
    let added = 4 * 16 * 4 * 4096;
    let gpu = machine().devices().enumerate().find(|(_, device)| device.is_gpu()).unwrap().0;
    let plain = *table(&lora, &PLAIN).time(5.into(), gpu).unwrap();
    for (base, bits) in [("bf16", 16.0), ("nf4", 4.126_953_125), ("nf4:single", 4.5), ("fp8", 8.0), ("int8", 8.005)] {
        let formats = Formats { base: Some(base.parse::<Base>().unwrap()), ..Formats::PLAIN };
        let workload = Workload { formats, ..PLAIN };
        let bytes = block(&lora, &workload).parameters.get() - added - 2 * 2 * 4096;
        let expected = f64::from(matrices) * bits / 8.0;
        assert!((bytes as f64 / expected - 1.0).abs() < 3e-4, "{base}: {bytes} for {expected}");
        let time = *table(&lora, &workload).time(5.into(), gpu).unwrap();
        assert_eq!(
            time.forward > plain.forward && time.backward_input > plain.backward_input,
            base != "bf16",
            "{base}"
        );
        assert_eq!(time.backward_weight, plain.backward_weight, "{base}");
    }
}

#[test]
fn an_optimizer_in_the_backward_holds_the_gradients_of_a_layer() {
    let formats = Formats { optimizer_in_backward: true, ..Formats::PLAIN };
    let (plain, within) = (block(&llama(), &PLAIN), block(&llama(), &Workload { formats, microbatches: 1, ..PLAIN }));
    assert_eq!((within.gradients, within.workspace), (Bytes::ZERO, plain.workspace + plain.gradients));
}

#[test]
fn steps_move_their_bytes() {
    let gpu = machine().devices().enumerate().find(|(_, device)| device.is_gpu()).unwrap().0;
    let rate = |optimizer| {
        let table = table(&llama(), &Workload { optimizer, ..PLAIN });
        (table.optimizer_traffic(1_000_000, gpu).get(), table.optimizer_time(1_000_000_000, gpu).get())
    };
    let (adamw, time) = rate(Optimizer::Adamw);
    assert_eq!(adamw, 28_000_000);
    assert_eq!(rate(Optimizer::Lion).0, 20_000_000);
    assert_eq!(rate(Optimizer::Sgd).0, 12_000_000);
    let (eight, faster) = rate(Optimizer::Adamw8bit);
    assert!((16_000_000..16_100_000).contains(&eight) && faster < time, "{eight} {faster} {time}");
    // The products of Muon take longer than its bytes.
    assert!(rate(Optimizer::Muon).1 > 5.0 * time);
}

#[test]
fn impossible_trainings_are_refused() {
    let check = |model: &Model, workload: Workload| check_training(model, &workload).unwrap_err().to_string();
    let with = |formats: Formats| Workload { formats, ..PLAIN };
    let state =
        |optimizer, state| Workload { optimizer, formats: Formats { state: Some(state), ..Formats::PLAIN }, ..PLAIN };
    let all = llama().layer_range("embedding..head").unwrap();
    let frozen = llama().with_frozen(&[all]).unwrap();
    let base = Formats { base: "nf4".parse().ok(), ..Formats::PLAIN };
    for (found, expected) in [
        (check(&frozen, PLAIN), "all layers of `llama2-7b` are frozen: there is nothing to train"),
        (check(&llama(), with(base)), "layer `block.0` is to be trained, but its matrices are stored as nf4"),
        (
            check(&llama(), state(Optimizer::Sgd, StateFormat::Bf16)),
            "`sgd` has no state of format `bf16`\nhint: it keeps none",
        ),
        (check(&llama(), state(Optimizer::Adamw8bit, StateFormat::F32)), "`adamw-8bit` has no state of format `f32`"),
        (
            check(&llama(), state(Optimizer::PagedAdamw, StateFormat::EightBit)),
            "no state of format `8bit`\nhint: use `option optimizer paged-adamw-8bit`",
        ),
        (
            check(&llama(), with(Formats { optimizer_in_backward: true, ..Formats::PLAIN })),
            "sees the gradients of one microbatch, but an iteration has 4",
        ),
    ] {
        assert!(found.contains(expected), "{found}");
    }
    assert!(check_training(&frozen, &Workload { mode: Mode::Infer, ..PLAIN }).is_ok());
}
