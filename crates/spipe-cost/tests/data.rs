//! Padding, packing, lengths that vary and recomputed operations, compared with closed forms.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{DeviceId, LayerId};
use spipe_cost::{CostTable, DataShape, Lengths, Mode, Parallelism, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Op, Operations, Precision, Recompute};

const SEQ_LEN: u64 = 1024;
const BLOCK: LayerId = LayerId::new(1);
const GPU: DeviceId = DeviceId::new(0);

const PLAIN: Workload = Workload {
    mode: Mode::Train,
    seq_len: SEQ_LEN,
    microbatch: 2,
    microbatches: 3,
    precision: Precision::Bf16,
    ..Workload::PLAIN
};

fn model(name: &str) -> Model {
    let text = spipe_model::shipped().iter().find(|(shipped, _)| *shipped == name).unwrap().1;
    Model::from_toml(name, text).unwrap()
}

/// A GPU whose operations take time in proportion to their FLOPs and bytes.
fn machine() -> Hardware {
    let text = "format-version = 1\nname = \"test\"\n\
        [[socket]]\nname = \"cpu0\"\ncores = 8\npeak = { f32 = \"1 TFLOP/s\" }\noptimizer-rate = \"2 Gparam/s\"\n\
        dram = { name = \"dram0\", capacity = \"64 GiB\", bandwidth = \"80 GB/s\" }\nsource = \"made up\"\n\
        [[gpu]]\nname = \"gpu0\"\nmemory = \"80 GiB\"\nmemory-bandwidth = \"1 TB/s\"\nlaunch-floor = \"0 us\"\n\
        peak = { bf16 = \"100 TFLOP/s\", f32 = \"50 TFLOP/s\" }\nsource = \"made up\"\n\
        matmul = { bf16 = [[\"1 FLOP\", \"50 TFLOP/s\"]] }\nelementwise = [[\"1 B\", \"500 GB/s\"]]\n\
        [[link]]\nname = \"pcie0\"\nbetween = [\"gpu0\", \"dram0\"]\nbandwidth = \"25 GB/s\"\n";
    Hardware::from_toml("test.toml", text).unwrap()
}

fn shaped(data: DataShape) -> Workload {
    assert_eq!(data.check(SEQ_LEN), Ok(()));
    Workload { data, ..PLAIN }
}

fn lengths(text: &str) -> Option<Lengths> {
    Some(text.parse().unwrap())
}

/// The attention's FLOPs and those of products of one forward of a block.
fn flops(workload: &Workload) -> (f64, f64) {
    let model = model("llama2-7b");
    let work = workload.work(&model.layers()[BLOCK]);
    let sum = |attention: bool| {
        let ops = work.forward.iter().filter(|op| matches!(op, Op::Attention { .. }) == attention);
        ops.map(|op| op.flops().get()).sum()
    };
    (sum(true), sum(false))
}

fn close(left: f64, right: f64) {
    assert!((left / right - 1.0).abs() < 1e-9, "{left} is not {right}");
}

#[test]
fn padding_is_computed_and_does_not_count() {
    let padded = shaped(DataShape { padding: 0.25.try_into().unwrap(), ..DataShape::PLAIN });
    assert_eq!(padded.tokens(), 6 * 768);
    assert_eq!(flops(&padded), flops(&PLAIN));
    let (model, machine) = (model("gpt2"), machine());
    let [plain, padded] = [PLAIN, padded].map(|workload| CostTable::new(&model, &machine, &workload).unwrap());
    assert_eq!(plain.time(BLOCK, GPU), padded.time(BLOCK, GPU));
    assert_eq!(plain.memory(BLOCK, GPU), padded.memory(BLOCK, GPU));
}

#[test]
fn lengths_pad_to_the_longest_of_a_microbatch_unless_packed_or_bucketed() {
    let lengths = lengths("512:1,1024:1");
    let (attention, products) = flops(&PLAIN);
    // Three of four pairs have a long document: E[M] = 896, E[M²] = (512² + 3 · 1024²) / 4.
    let padded = shaped(DataShape { lengths, ..DataShape::PLAIN });
    assert_eq!((padded.tokens(), padded.mean_batch().seq_len, padded.longest_batch().seq_len), (6 * 768, 896, 1024));
    close(padded.counted_share(), 768.0 / 896.0);
    close(flops(&padded).1, products * 896.0 / 1024.0);
    // Keys per token are rounded: 950.9 to 951.
    close(flops(&padded).0, attention * 896.0 * 951.0 / (1024.0 * 1024.0));

    // E[L] = 768, E[L²] ÷ E[L] = (512² + 1024²) / 2 / 768 = 853.3.
    let bucketed = shaped(DataShape { lengths, bucketing: true, ..DataShape::PLAIN });
    assert_eq!((bucketed.tokens(), bucketed.mean_batch().seq_len), (6 * 768, 768));
    close(bucketed.counted_share(), 1.0);
    close(flops(&bucketed).0, attention * 768.0 * 853.0 / (1024.0 * 1024.0));

    let packed = shaped(DataShape { lengths, packing: true, ..DataShape::PLAIN });
    assert_eq!((packed.tokens(), packed.longest_batch().seq_len), (6 * 1024, 1024));
    close(flops(&packed).1, products);
    close(flops(&packed).0, attention * 853.0 / 1024.0);

    // Scores of packed documents are computed and masked where they are materialised.
    let masked = Workload { attention: Attention::Materialised, ..packed };
    assert_eq!(flops(&masked), (attention, products));
    // Without lengths, packed sequences are the usual ones.
    assert_eq!(flops(&shaped(DataShape { packing: true, ..DataShape::PLAIN })), (attention, products));
}

#[test]
fn the_longest_microbatch_is_held() {
    let (model, machine) = (model("gpt2"), machine());
    let short = shaped(DataShape { lengths: lengths("128:9,256:1"), ..DataShape::PLAIN });
    let quarter = Workload { seq_len: 256, ..PLAIN };
    let [short, quarter] = [short, quarter].map(|workload| CostTable::new(&model, &machine, &workload).unwrap());
    assert_eq!(short.memory(BLOCK, GPU), quarter.memory(BLOCK, GPU));
    assert!(short.time(BLOCK, GPU).unwrap().forward < quarter.time(BLOCK, GPU).unwrap().forward);
}

#[test]
fn a_sliding_window_bounds_the_keys_of_long_documents_only() {
    let text = spipe_model::shipped().iter().find(|(shipped, _)| *shipped == "llama2-7b").unwrap().1;
    let model = Model::from_toml("windowed", &format!("{text}sliding-window = 4096\n")).unwrap();
    let data = DataShape { packing: true, lengths: lengths("2048:1,8192:1"), ..DataShape::PLAIN };
    let workload = Workload { seq_len: 8192, data, ..PLAIN };
    let work = workload.work(&model.layers()[BLOCK]);
    let keys: Vec<u64> = work
        .forward
        .iter()
        .filter_map(|op| match op {
            Op::Attention { seq_k, .. } => Some(*seq_k),
            _ => None,
        })
        .collect();
    let expected: f64 = (2048.0 * 2048.0 + 8192.0 * 4096.0) / (2048.0 + 8192.0);
    assert_eq!(keys, [expected.round() as u64]);
}

#[test]
fn shapes_that_contradict_each_other_are_refused() {
    let (padding, long) = (0.5.try_into().unwrap(), lengths("2048:1"));
    let lengths = lengths("512:1");
    for (data, expected) in [
        (DataShape { lengths: long, ..DataShape::PLAIN }, "a length of 2048 is above the sequence length of 1024"),
        (DataShape { packing: true, padding, ..DataShape::PLAIN }, "packed sequences have no padding"),
        (DataShape { packing: true, bucketing: true, lengths, ..DataShape::PLAIN }, "packed sequences are all full"),
        (DataShape { padding, lengths, ..DataShape::PLAIN }, "the padding follows from the lengths"),
        (DataShape { bucketing: true, ..DataShape::PLAIN }, "nothing is known to sort into buckets"),
    ] {
        assert_eq!(data.check(SEQ_LEN).unwrap_err().0, expected);
    }
    for share in [-0.1, 1.0, f64::NAN] {
        assert!(spipe_cost::PaddingShare::try_from(share).is_err());
    }
}

/// Bytes per token that a block of Llama-2 7B does not save, with the FLOPs per token that its backward
/// repeats. h = q = c = 4096, f = 11008, 32 heads.
#[test]
fn operations_are_repeated_in_place_of_saved() {
    let (model, machine) = (model("llama2-7b"), machine());
    let table = |names: &str, attention| {
        let recompute_ops = if names.is_empty() { Operations::NONE } else { names.parse().unwrap() };
        CostTable::new(&model, &machine, &Workload { recompute_ops, attention, ..PLAIN }).unwrap()
    };
    let (plain, tokens) = (table("", Attention::Fused), 2 * SEQ_LEN);
    let time = |table: &CostTable| *table.time(BLOCK, GPU).unwrap();
    for (names, bytes, flops) in [
        ("attention", 2 * 4096 + 4 * 32, 4 * 4096 * SEQ_LEN),
        ("norms", 2 * 2 * 4096, 0),
        ("activation", 2 * 11008, 0),
        ("gate", 2 * 11008, 2 * 4096 * 11008),
        ("mlp", 3 * 2 * 11008, 2 * 2 * 4096 * 11008),
        ("mlp,up", 3 * 2 * 11008, 2 * 2 * 4096 * 11008),
        ("qkv", 3 * 2 * 4096, 3 * 2 * 4096 * 4096),
        ("output", 2 * 4096, 2 * 4096 * 4096),
        ("norms,activation", 2 * 2 * 4096 + 2 * 11008, 0),
    ] {
        let repeating = table(names, Attention::Fused);
        let (before, after) = (plain.memory(BLOCK, GPU), repeating.memory(BLOCK, GPU));
        assert_eq!((before.saved - after.saved).get(), tokens * bytes, "{names}");
        assert_eq!((after.workspace - before.workspace).get(), tokens * bytes, "{names}");
        assert_eq!((before.input, before.boundary), (after.input, after.boundary), "{names}");
        let more = time(&repeating).backward().get() - time(&plain).backward().get();
        let computing = (tokens * flops) as f64 / 50e12;
        assert!(more >= computing * 0.999, "{names}: {more} s, products alone take {computing} s");
        assert!(flops == 0 || more <= computing * 1.1, "{names}: {more} s, products alone take {computing} s");
        assert_eq!(time(&repeating).forward, time(&plain).forward, "{names}");
    }
    // A selective recompute repeats norms and activation itself.
    let both = table("norms,activation", Attention::Fused);
    assert_eq!(both.memory(BLOCK, GPU).saved_selective, plain.memory(BLOCK, GPU).saved_selective);
    assert_eq!(both.memory(BLOCK, GPU).saved, plain.memory(BLOCK, GPU).saved_selective);
    assert!(both.recompute_time(BLOCK, GPU, Recompute::Selective).unwrap().get() < 1e-12);
    // A block that is repeated as a whole saves its input.
    let (whole, repeating) = (plain.memory(BLOCK, GPU), table("block", Attention::Fused));
    let after = repeating.memory(BLOCK, GPU);
    assert_eq!((after.saved, after.saved_selective), (whole.input, whole.input));
    assert_eq!(after.workspace - whole.workspace, whole.saved - whole.input);
    let more = time(&repeating).backward().get() - time(&plain).backward().get();
    assert!((more / time(&plain).forward.get() - 1.0).abs() < 1e-9, "{more} s");
    // Materialised scores are most of what attention saves.
    let [saving, repeating] = ["", "attention"].map(|names| table(names, Attention::Materialised));
    let less = saving.memory(BLOCK, GPU).saved - repeating.memory(BLOCK, GPU).saved;
    assert_eq!(less.get(), tokens * (2 * 4096 + 2 * 32 * SEQ_LEN));
}

#[test]
fn the_baseline_repeats_operations_too() {
    let (model, machine) = (model("gpt2"), machine());
    let cost = |names: &str| {
        let recompute_ops = if names.is_empty() { Operations::NONE } else { names.parse().unwrap() };
        let spread = Parallelism { tensor: 1, data: 1, recompute: Recompute::None };
        spread.cost(&model, &machine, &Workload { recompute_ops, ..PLAIN }).unwrap()
    };
    let (plain, repeating) = (cost(""), cost("mlp,attention"));
    assert!(repeating.memory < plain.memory && repeating.iteration > plain.iteration);
}
