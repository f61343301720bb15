//! Tensor and data parallelism compared with values computed by hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{Bytes, DeviceId, Flops, Seconds};
use spipe_cost::{CostTable, Mode, ParallelError, Parallelism, Workload, all_reduce};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Batch, Layer, Model, Op, Precision, Recompute};
use std::fmt::Write;

/// Four GPUs on one switch with 25 GB/s per direction and 1 µs per link, or on one uplink of that
/// rate to host memory.
fn machine(switched: bool) -> Hardware {
    let mut text = "format-version = 1\nname = \"test\"\n\
        [[socket]]\nname = \"cpu0\"\ncores = 8\npeak = { f32 = \"1 TFLOP/s\" }\noptimizer-rate = \"2 Gparam/s\"\n\
        dram = { name = \"dram0\", capacity = \"64 GiB\", bandwidth = \"800 GB/s\" }\nsource = \"made up\"\n\
        [[switch]]\nname = \"switch\"\nsource = \"made up\"\n\
        [[link]]\nname = \"uplink\"\nbetween = [\"switch\", \"dram0\"]\nbandwidth = \"25 GB/s\"\n"
        .to_owned();
    for gpu in 0..4 {
        let to = if switched { "switch" } else { "dram0" };
        write!(
            text,
            "[[gpu]]\nname = \"gpu{gpu}\"\nmemory = \"24 GiB\"\nmemory-bandwidth = \"1 TB/s\"\nlaunch-floor = \"0 us\"\n\
             peak = {{ bf16 = \"100 TFLOP/s\" }}\nsource = \"made up\"\n\
             matmul = {{ bf16 = [[\"1 FLOP\", \"100 TFLOP/s\"]] }}\nelementwise = [[\"1 B\", \"1 TB/s\"]]\n\
             [[link]]\nname = \"link{gpu}\"\nbetween = [\"gpu{gpu}\", \"{to}\"]\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n"
        )
        .unwrap();
    }
    Hardware::from_toml("test.toml", &text).unwrap()
}

fn model(name: &str) -> Model {
    let text = spipe_model::shipped().iter().find(|(shipped, _)| *shipped == name).unwrap().1;
    Model::from_toml(name, text).unwrap()
}

fn workload() -> Workload {
    Workload {
        mode: Mode::Train,
        seq_len: 512,
        microbatch: 1,
        microbatches: 4,
        precision: Precision::Bf16,
        ..Workload::PLAIN
    }
}

fn spread(tensor: u64, data: u64) -> Parallelism {
    Parallelism { tensor, data, recompute: Recompute::None }
}

fn groups(of: &[&[u32]]) -> Vec<Vec<DeviceId>> {
    of.iter().map(|group| group.iter().map(|gpu| DeviceId::new(*gpu)).collect()).collect()
}

fn close(time: Seconds, by_hand: f64) {
    assert!((time.get() / by_hand - 1.0).abs() < 1e-9, "{} s, by hand {by_hand} s", time.get());
}

/// Each GPU's link carries 2(n−1)/n of the bytes, with the latency of two links in each of 2(n−1)
/// steps.
#[test]
fn a_ring_moves_its_share_over_the_slowest_hop() {
    let hardware = machine(true);
    let reduce = |of: &[&[u32]]| all_reduce(&hardware, &groups(of), Bytes::new(1_000_000_000)).unwrap();
    close(reduce(&[&[0, 1, 2, 3]]), 6.0 * (2e-6 + 0.25 / 25.0));
    close(reduce(&[&[0, 1], &[2, 3]]), 2.0 * (2e-6 + 0.5 / 25.0));
    // Two rings at once over the same links.
    close(reduce(&[&[0, 1], &[1, 0]]), 2.0 * (2e-6 + 0.5 / 12.5));
    assert_eq!(reduce(&[&[2]]), Seconds::ZERO);
}

/// Korthikanti et al. 2022 (arXiv 2205.05198), equation 2: sbh(10 + 24/t + 5as/(ht)) bytes per
/// layer and GPU, for GPT with dropout.
#[test]
fn a_shard_keeps_what_is_published() {
    let (h, a, s, b) = (768, 12, 1024, 3);
    let text = spipe_model::shipped().iter().find(|(name, _)| *name == "gpt2").unwrap().1;
    let text = if text.contains("dropout") { text.to_owned() } else { format!("{text}\ndropout = true\n") };
    let model = Model::from_toml("gpt2.toml", &text).unwrap();
    let block = &model.layers()[model.layer("block.0").unwrap()];
    for t in [1, 2, 4] {
        let shard = block.shard(t).unwrap();
        let batch = Batch { microbatch: b, seq_len: s };
        let kept = shard.saved(batch, Precision::Fp16, Recompute::None, Attention::Materialised);
        assert_eq!(kept, Bytes::new(s * b * (10 * h + 24 * h / t + 5 * a * s / t)));
    }
    assert!(block.shard(5).is_none(), "12 heads");
    assert!(block.shard(0).is_none());
}

#[test]
fn shards_add_up_to_the_layer() {
    let model = model("llama2-70b");
    let batch = Batch { microbatch: 2, seq_len: 256 };
    for layer in model.layers() {
        for tensor in [2, 4, 8] {
            let shard = layer.shard(tensor).unwrap();
            let flops = |layer: &Layer| layer.work(batch).forward.iter().map(Op::flops).sum::<Flops>().get();
            let (whole, part) = (flops(layer), flops(&shard));
            assert!((part * tensor as f64 - whole).abs() <= 1e-12 * whole, "{}", layer.name);
            // Norms are on every GPU.
            let norms = if layer.as_block().is_some() { 2 * 8192 } else { 8192 };
            let more = shard.parameters * tensor - layer.parameters;
            assert!(more == 0 || more == norms * (tensor - 1), "{}: {more}", layer.name);
        }
    }
}

/// On one GPU, the time is the sum over the table, and nothing is reduced.
#[test]
fn one_gpu_is_the_sum_of_its_layers() {
    let (model, hardware, workload) = (model("gpt2"), machine(true), workload());
    let cost = spread(1, 1).cost(&model, &hardware, &workload).unwrap();
    let table = CostTable::new(&model, &hardware, &workload).unwrap();
    let gpu = DeviceId::new(0);
    let layers = table.layers().map(|layer| table.time(layer, gpu).unwrap());
    let once: f64 = layers.map(|time| (time.forward + time.backward()).get()).sum();
    close(cost.compute, 4.0 * once);
    assert_eq!((cost.tensor_reductions, cost.data_reduction), (Seconds::ZERO, Seconds::ZERO));
    close(cost.optimizer, 28.0 * model.parameters() as f64 / 1e12);
    close(cost.iteration, (cost.compute + cost.optimizer).get());
    let state: Bytes =
        table.layers().map(|layer| table.memory(layer, gpu).state() + table.memory(layer, gpu).saved).sum();
    assert!(cost.memory > state && cost.fits());
}

/// GPT-2 with T = 2 and D = 2. Per microbatch, each of twelve blocks reduces four times, embedding
/// and head once. Two rings reduce the gradients.
#[test]
fn reductions_are_counted_by_hand() {
    let (model, hardware, workload) = (model("gpt2"), machine(true), workload());
    let cost = spread(2, 2).cost(&model, &hardware, &workload).unwrap();
    let once = 2.0 * (2e-6 + (512.0 * 768.0 * 2.0 / 2.0) / 25e9);
    close(cost.tensor_reductions, 2.0 * (12.0 * 4.0 + 2.0) * once);
    let part: u64 = model.layers().iter().map(|layer| layer.shard(2).unwrap().parameters).sum();
    close(cost.data_reduction, 2.0 * (2e-6 + part as f64 / 25e9));
    let again = Parallelism { recompute: Recompute::Full, ..spread(2, 2) };
    let again = again.cost(&model, &hardware, &workload).unwrap();
    close(again.tensor_reductions, 2.0 * (12.0 * 6.0 + 3.0) * once);
    assert!(again.compute > cost.compute && again.memory < cost.memory);
    let inference = Workload { mode: Mode::Infer, ..workload };
    let forward = spread(2, 2).cost(&model, &hardware, &inference).unwrap();
    close(forward.tensor_reductions, 2.0 * (12.0 * 2.0 + 1.0) * once);
    assert_eq!((forward.data_reduction, forward.optimizer), (Seconds::ZERO, Seconds::ZERO));
}

#[test]
fn links_that_rings_share_are_slower() {
    let (model, workload) = (model("gpt2"), workload());
    let [switched, hosted] =
        [true, false].map(|switched| spread(4, 1).cost(&model, &machine(switched), &workload).unwrap());
    assert!(hosted.tensor_reductions >= switched.tensor_reductions);
    assert_eq!(hosted.compute, switched.compute);
}

#[test]
fn splitting_shrinks_what_each_gpu_holds() {
    let (model, hardware, workload) = (model("llama2-7b"), machine(true), workload());
    let cost = |tensor, data| spread(tensor, data).cost(&model, &hardware, &workload).unwrap();
    assert!(!cost(1, 4).fits(), "16 bytes a parameter are 100 GiB");
    assert!(cost(4, 1).memory < cost(2, 2).memory && cost(2, 2).memory < cost(1, 4).memory);
}

#[test]
fn what_does_not_divide_is_refused() {
    let (hardware, workload) = (machine(true), workload());
    let refused = |tensor, data, name: &str| spread(tensor, data).cost(&model(name), &hardware, &workload).unwrap_err();
    assert_eq!(refused(4, 2, "gpt2"), ParallelError::Gpus { wanted: 8, present: 4 });
    assert_eq!(refused(1, 3, "gpt2").to_string(), "4 microbatches cannot be distributed evenly over 3 groups");
    assert_eq!(refused(2, 1, "vit-b-16").to_string(), "layer `embedding` cannot be split over 2 GPUs");
    assert_eq!(refused(0, 1, "gpt2"), ParallelError::Zero);
}
