//! The bytes of a copy of a layer with experts: those that its tokens are expected to reach.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_cost::{Base, CostTable, Formats, LayerMemory, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Lora, Model, Precision};

/// The sizes of the blocks: hidden, width of an expert, experts, experts of a token.
const HIDDEN: u64 = 256;
const WIDTH: u64 = 512;
const EXPERTS: u64 = 8;

/// The parameters of all experts of a block.
const ALL: u64 = EXPERTS * 3 * HIDDEN * WIDTH;

fn model() -> Model {
    let text = format!(
        "format-version = 1\nkind = \"transformer\"\nname = \"experts\"\nvocabulary = 1000\nseq-len = 4096\n\
         hidden = {HIDDEN}\nlayers = 4\nheads = 4\nintermediate = {WIDTH}\nexperts = {EXPERTS}\nexperts-per-token = 2\n\
         norm = \"rms-norm\"\nmlp = \"swiglu\"\npositions = \"rotary\"\n"
    );
    Model::from_toml("experts.toml", &text).unwrap()
}

fn workload(mode: Mode, (microbatch, microbatches): (u64, u64)) -> Workload {
    Workload { mode, seq_len: 512, microbatch, microbatches, precision: Precision::Bf16, ..Workload::PLAIN }
}

/// The memory of `block.1` on the GPU.
fn block(model: &Model, workload: &Workload) -> LayerMemory {
    let text = spipe_hardware::shipped().iter().find(|(name, _)| *name == "a100-80g").unwrap().1;
    let machine = Hardware::from_toml("a100-80g", text).unwrap();
    let gpu = machine.devices().enumerate().find(|(_, device)| device.is_gpu()).unwrap().0;
    *CostTable::new(model, &machine, workload).unwrap().memory(model.layer("block.1").unwrap(), gpu)
}

/// Experts out of eight by tokens of a copy: one of each sequence when generating, all of all
/// microbatches otherwise.
#[test]
fn a_copy_brings_the_experts_that_tokens_reach() {
    for (mode, microbatch, microbatches, reached) in [
        (Mode::Generate, 1, 1, 2.0),
        (Mode::Generate, 2, 1, 3.5),
        (Mode::Generate, 1, 2, 3.5),
        (Mode::Generate, 2, 2, 5.468_75),
        (Mode::Infer, 1, 1, 8.0),
        (Mode::Train, 1, 1, 8.0),
    ] {
        let memory = block(&model(), &workload(mode, (microbatch, microbatches)));
        let idle = (2 * ALL) as f64 * (1.0 - reached / EXPERTS as f64);
        let (held, moved) = (memory.parameters.get(), memory.streamed.get());
        assert_eq!(moved, held - idle.round() as u64, "{mode:?}, {microbatches} of {microbatch}");
    }
}

/// A quantised base and adapters of experts are copied with their experts.
#[test]
fn experts_bring_their_own_formats_and_adapters() {
    let lora = Lora::parse("rank=4,targets=w1,q", None).unwrap();
    let (plain, adapted) = (model(), model().with_lora(&lora).unwrap());
    // One token of one sequence reaches two of eight experts.
    let one = Workload { seq_len: 1, ..workload(Mode::Train, (1, 1)) };
    let nf4 = Formats { base: Some("nf4:single".parse::<Base>().unwrap()), ..Formats::PLAIN };
    // A and B of `w1` of each expert, in 32 bits.
    let adapters = 4 * EXPERTS * 4 * (HIDDEN + WIDTH);
    for (name, model, workload, experts) in [
        ("16 bits", &plain, one, 2 * ALL),
        ("adapters", &adapted, one, 2 * ALL + adapters),
        ("nf4", &adapted, Workload { formats: nf4, ..one }, ALL * 9 / 16 + adapters),
    ] {
        let memory = block(model, &workload);
        assert_eq!(
            memory.streamed,
            memory.parameters.saturating_sub(spipe_base::Bytes::new(experts / 4 * 3)),
            "{name}"
        );
    }
}
