//! How long machines of a sweep take: bounds alone, and plans of all systems and microbatches at low effort.

#![expect(clippy::unwrap_used, reason = "a bench that cannot run must say so")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use spipe_cost::{Mode, Workload};
use spipe_hardware::Hardware;
use spipe_market::Catalogue;
use spipe_model::{Model, Precision};
use spipe_whatif::{Bounder, JobFile, sweep};
use std::{fs, hint::black_box, process::Command, time::Duration};

/// The shapes of GPT-2 XL with 34 layers.
const MODEL: &str = include_str!("../../../reports/whatif/layers-34.toml");

/// The job, with the parts that vary to follow.
const JOB: &str = "format-version = 1\n[[train]]\nmodel = \"layers-34.toml\"\ntokens = \"1 G\"\nseq-len = 1024\nglobal-batch = 64\n[vary]\n";

/// Machines with equal GPUs and unlike hosts.
const HOSTS: &str = "gpu = [\"rtx4090\"]\ngpus = [1, 2, 4]\nplatform = [\"ryzen-9950x\", \"epyc-7763\", \"epyc-9354p\"]\ndram = [\"128 GiB\"]\ncondition = [\"new\"]\n";

fn machines() -> Vec<Hardware> {
    let job = JobFile::from_toml("job.toml", &format!("{JOB}{HOSTS}")).unwrap().check().unwrap();
    let found = sweep(&Catalogue::shipped().unwrap(), &job, "2026-11-27".parse().unwrap()).unwrap();
    let read = |one: &spipe_whatif::Candidate| Hardware::from_file("machine", one.machine.hardware.clone()).unwrap();
    found.candidates.iter().map(read).collect()
}

fn bounds(criterion: &mut Criterion) {
    let machines = machines();
    let workload = |microbatch: u64| Workload {
        mode: Mode::Train,
        seq_len: 1024,
        microbatch,
        microbatches: 64 / microbatch,
        precision: Precision::Bf16,
        ..Workload::PLAIN
    };
    let workloads = [1, 2, 4, 8, 16, 32, 64].map(workload).to_vec();
    let bounder = Bounder::new(Model::from_toml("layers-34.toml", MODEL).unwrap(), workloads);
    let mut group = criterion.benchmark_group("bounds");
    group.throughput(Throughput::Elements(machines.len() as u64));
    group.bench_function("34 layers, 7 sizes of microbatches", |bencher| {
        bencher.iter(|| machines.iter().map(|machine| black_box(bounder.most_tokens_per_second(machine))).sum::<f64>());
    });
    group.finish();
}

fn plans(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("layers-34.toml"), MODEL).unwrap();
    let mut group = criterion.benchmark_group("plans");
    group.sample_size(10).measurement_time(Duration::from_secs(30));
    for gpus in [1, 2, 4] {
        let job = format!("{JOB}{}", HOSTS.replace("[1, 2, 4]", &format!("[{gpus}]")));
        fs::write(folder.path().join("job.toml"), job).unwrap();
        let sweep = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_spipe"));
            let flags =
                ["whatif", "job.toml", "--as-of", "2026-11-27", "--threads", "1", "--shard", "1/1", "-o", "plans.json"];
            let done = command.current_dir(&folder).args(flags).args(["--top", "1000"]).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        };
        sweep();
        let state: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(folder.path().join("plans.json")).unwrap()).unwrap();
        group.throughput(Throughput::Elements(state["counts"]["solved"].as_u64().unwrap()));
        group.bench_function(format!("34 layers, {gpus} GPUs, one thread"), |bencher| bencher.iter(sweep));
    }
    group.finish();
}

criterion_group!(benches, bounds, plans);
criterion_main!(benches);
