//! Frozen layers, skip connections and generation with a cache, compared with values computed by
//! hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{Bytes, DeviceId, LayerId, LayerRange, Seconds};
use spipe_cost::{CostTable, Mode, Source, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Batch, Model, Precision};

const GPU: DeviceId = DeviceId::new(0);

fn model(name: &str) -> Model {
    let text = spipe_model::shipped().iter().find(|(shipped, _)| *shipped == name).unwrap().1;
    Model::from_toml(name, text).unwrap()
}

fn workload(mode: Mode, seq_len: u64, microbatch: u64) -> Workload {
    Workload { mode, seq_len, microbatch, microbatches: 3, precision: Precision::Bf16, ..Workload::PLAIN }
}

/// One GPU with 100 TFLOP/s, 1 TB/s and no launch time.
fn machine() -> Hardware {
    machine_with("")
}

/// The same machine with more measurements.
fn machine_with(measured: &str) -> Hardware {
    let text = "format-version = 1\nname = \"test\"\n\
        [[socket]]\nname = \"cpu0\"\ncores = 8\npeak = { f32 = \"1 TFLOP/s\" }\noptimizer-rate = \"2 Gparam/s\"\n\
        dram = { name = \"dram0\", capacity = \"64 GiB\", bandwidth = \"80 GB/s\" }\nsource = \"made up\"\n\
        [[gpu]]\nname = \"gpu0\"\nmemory = \"24 GiB\"\nmemory-bandwidth = \"1 TB/s\"\nlaunch-floor = \"0 us\"\n\
        peak = { bf16 = \"100 TFLOP/s\" }\nsource = \"made up\"\n\
        matmul = { bf16 = [[\"1 FLOP\", \"100 TFLOP/s\"]] }\nelementwise = [[\"1 B\", \"1 TB/s\"]]\n\
        [[link]]\nname = \"pcie0\"\nbetween = [\"gpu0\", \"dram0\"]\nbandwidth = \"25 GB/s\"\n";
    Hardware::from_toml("test.toml", &text.replace("[[link]]", &format!("{measured}[[link]]"))).unwrap()
}

fn table(model: &Model, workload: &Workload) -> CostTable {
    CostTable::new(model, &machine(), workload).unwrap()
}

#[test]
fn a_token_that_was_measured_takes_as_long() {
    let model = model("llama2-7b");
    let generating = workload(Mode::Generate, 2048, 4);
    let block = LayerId::new(1);
    let signature = model.layers()[block].generate_signature(generating.batch());
    assert!(signature.ends_with(" b4 s2048 token"), "{signature}");
    let measured = format!(
        "[[gpu.layer-time]]\nlayer = \"{signature}\"\ndata-type = \"bf16\"\nforward = \"7 ms\"\n\
         backward-input = \"0 ms\"\nbackward-weight = \"0 ms\"\n"
    );
    let hardware = machine_with(&measured);
    let time = |workload| {
        let time = *CostTable::new(&model, &hardware, &workload).unwrap().time(block, GPU).unwrap();
        (time.source, time.forward)
    };
    assert_eq!(time(generating), (Source::Measured, Seconds::ms(7.0)));
    for other in [workload(Mode::Generate, 2048, 2), workload(Mode::Generate, 1024, 4), workload(Mode::Infer, 2048, 4)]
    {
        assert_eq!(time(other).0, Source::Roofline);
    }
}

/// Matrices are read from memory at their measured rate; norms and sums run at the rate of vectors.
#[test]
fn a_token_reads_its_weights_as_fast_as_was_measured() {
    let model = model("llama2-7b");
    let generating = workload(Mode::Generate, 2048, 1);
    let block = LayerId::new(1);
    let time =
        |hardware: &Hardware| CostTable::new(&model, hardware, &generating).unwrap().time(block, GPU).unwrap().forward;
    let (plain, slow) = (time(&machine()), time(&machine_with("matvec = [[\"1 MiB\", \"500 GB/s\"]]\n")));
    // Four matrices of 4096 × 4096 and three of 4096 × 11008, at half the rate; vectors add little.
    let weights = 2.0 * (4.0 * 4096.0 + 3.0 * 11_008.0) * 4096.0;
    let more = weights / 500e9 - weights / 1e12;
    assert!(((slow.get() - plain.get()) / more - 1.0).abs() < 2e-3, "{plain} {slow} {more}");
}

/// A token of Llama-2-7B reads every matrix and its cache once. The bandwidth is a lower bound; the
/// vectors of one token add little.
#[test]
fn a_token_takes_as_long_as_its_weights_and_cache_take_to_read() {
    let model = model("llama2-7b");
    let generating = workload(Mode::Generate, 2048, 1);
    let cost = table(&model, &generating);
    let time: Seconds = cost.layers().map(|layer| cost.time(layer, GPU).unwrap().forward).sum();
    let read_once = 2 * (model.parameters() - 32_000 * 4096 - 65 * 4096);
    // 32 layers of keys and values for 2048 tokens of width 4096, two bytes each.
    let cached = 32 * 2 * 2048 * 4096 * 2;
    let bound = (read_once + cached) as f64 / 1e12;
    assert!(time.get() >= bound, "{time} {bound}");
    assert!(time.get() < 1.001 * bound, "{time} {bound}");
    assert_eq!(generating.tokens(), 3, "one token for each of three sequences");
}

#[test]
fn more_sequences_read_the_weights_no_more_often() {
    let model = model("llama2-7b");
    let time = |microbatch| {
        let cost = table(&model, &workload(Mode::Generate, 256, microbatch));
        cost.layers().map(|layer| cost.time(layer, GPU).unwrap().forward).sum::<Seconds>().get()
    };
    assert!(time(8) < 1.2 * time(1), "{} {}", time(8), time(1));
}

/// Llama-2-70B has 8 key and value heads for 64 query heads, each of width 128: 2·8·128 numbers per
/// token and layer.
#[test]
fn grouped_queries_share_a_cache() {
    let model = model("llama2-70b");
    let cost = table(&model, &workload(Mode::Generate, 4096, 2));
    let block = cost.memory(LayerId::new(1), GPU);
    assert_eq!(block.cache, Bytes::new(3 * 2 * 4096 * 2 * 8 * 128 * 2));
    assert_eq!(block.state(), block.parameters + block.cache);
    assert_eq!(block.boundary, Bytes::new(2 * 8192 * 2), "one token of each sequence crosses the cut");
    assert_eq!((block.gradients, block.saved), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(cost.memory(LayerId::new(0), GPU).cache, Bytes::ZERO, "an embedding remembers nothing");
    let prefill = table(&model, &workload(Mode::Infer, 4096, 2));
    assert_eq!(prefill.memory(LayerId::new(1), GPU).cache, block.cache, "a prefill fills it");
    let training = table(&model, &workload(Mode::Train, 4096, 2));
    assert_eq!(training.memory(LayerId::new(1), GPU).cache, Bytes::ZERO);
}

#[test]
fn images_are_generated_as_they_are_inferred() {
    for name in ["vit-b-16", "stable-diffusion-unet"] {
        let model = model(name);
        let [generate, infer] =
            [Mode::Generate, Mode::Infer].map(|mode| table(&model, &workload(mode, model.seq_len(), 2)));
        for layer in infer.layers() {
            let forward = |cost: &CostTable| cost.time(layer, GPU).unwrap().forward;
            assert_eq!(forward(&generate), forward(&infer), "{name} {layer}");
            assert_eq!(generate.memory(layer, GPU), infer.memory(layer, GPU), "{name} {layer}");
        }
    }
}

#[test]
fn frozen_layers_cost_no_gradients() {
    let whole = model("gpt2");
    let range = |text: &str| whole.layer_range(text).unwrap();
    let tuned = whole.clone().with_frozen(&[range("embedding..block.3"), range("block.6")]).unwrap();
    let (all, some) = (table(&whole, &workload(Mode::Train, 512, 1)), table(&tuned, &workload(Mode::Train, 512, 1)));
    let of = |name: &str| whole.layer(name).unwrap();
    let (below, first, between) = (of("block.3"), of("block.4"), of("block.6"));
    for layer in [of("embedding"), below] {
        let (time, memory) = (some.time(layer, GPU).unwrap(), some.memory(layer, GPU));
        assert_eq!((time.backward(), time.backward_traffic), (Seconds::ZERO, Bytes::ZERO));
        assert_eq!(memory.state(), memory.parameters);
        assert_eq!((memory.saved, memory.saved_selective, memory.input), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
        assert!(!some.needs_backward(layer));
    }
    let (free, bound) = (all.time(first, GPU).unwrap(), some.time(first, GPU).unwrap());
    assert_eq!((bound.backward_input, bound.backward_weight), (Seconds::ZERO, free.backward_weight));
    assert_eq!(some.memory(first, GPU), all.memory(first, GPU));
    let bound = some.time(between, GPU).unwrap();
    assert_eq!((bound.backward_input, bound.backward_weight), (free.backward_input, Seconds::ZERO));
    assert_eq!(some.memory(between, GPU).saved, all.memory(between, GPU).saved, "the gradient passes through it");
    assert_eq!(
        (some.trained_parameters(between), all.trained_parameters(between)),
        (0, whole.layers()[between].parameters)
    );
    let trained: u64 = some.layers().map(|layer| some.trained_parameters(layer)).sum();
    assert_eq!(trained, tuned.trained_parameters());
    assert_ne!(some.kind(first), some.kind(of("block.5")));
}

#[test]
fn freezing_what_does_not_exist_is_refused() {
    let gpt2 = model("gpt2");
    let faults = gpt2.with_frozen(&[LayerRange::new(LayerId::new(12), LayerId::new(14)).unwrap()]).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "error: layers `12..14` are to be frozen, but the model has 14 layers\nhint: layers are counted from 0 to 13"
    );
}

#[test]
fn skip_connections_cross_every_cut_between_their_ends() {
    let model = model("stable-diffusion-unet");
    let workload = workload(Mode::Train, 4096, 2);
    let cost = table(&model, &workload);
    for layer in cost.layers() {
        let crossing = model.cut_bytes(layer, workload.batch(), Precision::Bf16);
        assert_eq!(cost.memory(layer, GPU).boundary, crossing);
    }
    // In the middle, the outputs of the whole downsampling path are live: per image and pixel 3 ×
    // 320 and a smaller one of level 0, and so on.
    let middle = model.layer("middle.1").unwrap();
    let (l0, l1, l2, l3) = (4096, 1024, 256, 64);
    let skips = l0 * 3 * 320 + l1 * (320 + 2 * 640) + l2 * (640 + 2 * 1280) + l3 * (1280 + 2 * 1280);
    let elements = skips + l3 * 1280 + 1280 + 77 * 768;
    let batch = Batch { microbatch: 1, seq_len: 4096 };
    assert_eq!(model.cut_bytes(middle, batch, Precision::Bf16), Bytes::new(2 * elements));
}
