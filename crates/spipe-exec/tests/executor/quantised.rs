//! Adapters on a quantised base: every system trains them as plain training on the converted base does,
//! and holds no byte of the base more than the plan counts.

use crate::{
    inference,
    machine::{GPT, VIT, data},
    setup::{BACKWARD, FORWARD, Setup, losses_are_near},
    systems::{UNITS, all_devices, both, equal},
};
use spipe_base::Bytes;
use spipe_cost::Mode;
use spipe_exec::{Backend, run};
use spipe_model::Precision;
use spipe_plan::{Knob, System};
use spipe_schedule::{Buffer, Content};
use std::ops::ControlFlow;

const STEPS: u32 = 3;
const LORA: &str = "rank=3,alpha=12";

/// The same losses and gradients as plain training, bit for bit, with each of the bases.
fn exactly(bases: &[&'static str], setup: &Setup<'_>) {
    for base in bases {
        let setup = Setup { base: Some(base), lora: Some(LORA), ..setup.clone() };
        let results = both(&setup, Backend::Ndarray, STEPS);
        equal(&setup, &results);
        let trained = results.1.gradients.iter().all(|one| one.tensor.contains(".lora-"));
        assert!(trained && !results.1.gradients.is_empty(), "{setup:?}");
    }
}

#[test]
fn pipelines() {
    let stages = &["gpu0 0..1", "gpu1 2..4"];
    exactly(&["nf4", "nf4:single", "int8", "bf16"], &Setup { stages, ..Setup::default() });
    for system in [System::Gpipe, System::ZbH1] {
        exactly(&["nf4"], &Setup { system, stages, ..Setup::default() });
    }
    exactly(&["int8"], &Setup { stages: &["gpu0 0..2 recompute:2", "cpu0 3..4 recompute"], ..Setup::default() });
    exactly(&["nf4"], &Setup { system: System::CpuOnly, stages: &["cpu0 0..4"], ..Setup::default() });
    let stages = &["gpu0 0..2 recompute", "gpu1 3..4 recompute"];
    exactly(&["nf4", "int8"], &Setup { system: System::Checkpointing, stages, ..Setup::default() });
    let stages = &["gpu0 0..1 offload", "gpu1 2..4 offload"];
    exactly(&["nf4"], &Setup { system: System::PoF, stages, ..Setup::default() });
}

#[test]
fn streamed_bases() {
    let knobs = &[(Knob::Resident, 2), (Knob::Swap, 1), (Knob::WriteBack, 1), (Knob::Sequential, 1)];
    for knobs in [&[][..], knobs] {
        exactly(&["nf4", "int8"], &Setup { system: System::Superpipeline, stages: &UNITS, knobs, ..Setup::default() });
    }
    exactly(&["nf4"], &Setup { system: System::NaiveSwap, stages: &UNITS, ..Setup::default() });
    let setup = Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() };
    exactly(&["nf4", "int8"], &setup);
    for gradients_leave in [false, true] {
        let knobs = &[(Knob::GradientsLeave, u64::from(gradients_leave))];
        let stages = &["gpu0 0..1 socket", "gpu0 2..4 socket"];
        exactly(&["nf4"], &Setup { system: System::ZeroOffload, stages, knobs, ..Setup::default() });
    }
}

#[test]
fn bases_shared_by_two() {
    for stages in [&["gpu0 0..1 recompute", "gpu0 2..4"], &["gpu0 0..1 socket", "gpu0 2..4 socket recompute:1"]] {
        exactly(&["nf4", "int8"], &Setup { system: System::Fsdp, stages, ..Setup::default() });
    }
    let stages = &["gpu0 0..1 streamed recompute", "gpu0 2..3 streamed", "gpu0 4..4 streamed"];
    let setup = Setup { system: System::ZeroInfinity, stages, microbatches: 2, ..Setup::default() };
    exactly(&["nf4", "int8"], &setup);
}

/// A tied table, frozen blocks below a trained head, 16-bit runs, images.
#[test]
fn other_models() {
    let tied = &GPT.replace("places = 16", "places = 16\ntied = true");
    let stages = &["gpu0 0..1", "gpu1 2..3"];
    exactly(&["nf4"], &Setup { model: tied, stages, ..Setup::default() });
    exactly(&["nf4"], &Setup { model: VIT, stages: &["gpu0 0..1", "cpu0 2..3"], ..Setup::default() });
    let frozen = &["0..3"];
    let setup = Setup { stages: &["gpu0 0..1", "gpu1 2..4"], frozen, base: Some("nf4"), ..Setup::default() };
    let results = both(&setup, Backend::Ndarray, STEPS);
    equal(&setup, &results);
    for precision in [Precision::Bf16, Precision::Fp16] {
        let stages = &["gpu0 0..2 recompute:2", "gpu1 3..4"];
        let setup = Setup { precision, stages, base: Some("nf4"), lora: Some(LORA), ..Setup::default() };
        let (plain, report) = both(&setup, Backend::Ndarray, STEPS);
        losses_are_near(&setup, &report.losses, &plain.losses, 0.01);
    }
}

/// Bytes that buffers of parameters hold, and those of the program, by memory.
fn weights(setup: &Setup<'_>) -> Vec<(String, Bytes, Bytes)> {
    let (plan, program) = setup.build();
    let options = all_devices(setup, Backend::Ndarray, 1);
    let report = run(&plan, &program, &data(&plan), &options, &mut |_| ControlFlow::Continue(()))
        .unwrap_or_else(|error| panic!("{setup:?}: {error}"));
    let memories = report.trace.memories.iter().map(|track| {
        let holders = track.holders.iter().filter(|holder| holder.what.starts_with("parameters of"));
        let held = holders.map(|holder| holder.bytes).sum();
        let in_memory = |buffer: &&Buffer| program.memories()[buffer.memory].name == track.name;
        let buffers = program.buffers().iter().filter(in_memory);
        let parameters = buffers.filter(|buffer| matches!(buffer.content, Content::Parameters(_)));
        (track.name.clone(), held, parameters.map(|buffer| buffer.bytes).sum())
    });
    memories.collect()
}

#[test]
fn every_byte_is_counted() {
    for base in ["nf4", "nf4:single", "nf4:block=128", "int8", "bf16"] {
        let setup = Setup { base: Some(base), lora: Some(LORA), ..Setup::default() };
        let resident = Setup { system: System::GpuOnly, stages: &["gpu0 0..4"], ..setup.clone() };
        let streamed = Setup { system: System::Superpipeline, stages: &UNITS, ..setup };
        let (resident, streamed) = (weights(&resident), weights(&streamed));
        for (all, memory) in [(&resident, "gpu0"), (&streamed, "dram0")] {
            let (_, held, planned) = all.iter().find(|(name, ..)| name == memory).expect("the memory");
            assert!(held == planned && *held > Bytes::ZERO, "{base}: {all:?}");
        }
    }
}

#[test]
fn inference_reads_a_quantised_base() {
    let setup = |base| Setup { mode: Mode::Infer, stages: &["gpu0 0..1", "gpu1 2..4"], base, ..Setup::default() };
    let losses = |base| {
        let setup = setup(base);
        let (report, plain) = inference::both(&setup, Backend::Ndarray, 1);
        losses_are_near(&setup, &report.losses, &plain.losses, 1e-5);
        report.losses
    };
    assert!(losses(Some("nf4")) != losses(None), "nothing was rounded");
}

/// Formats that are planned only.
#[test]
fn other_formats_are_refused() {
    for base in ["fp4", "fp8", "gptq-int4"] {
        let setup = Setup { base: Some(base), lora: Some(LORA), ..Setup::default() };
        let (plan, program) = setup.build();
        let options = all_devices(&setup, Backend::Ndarray, 1);
        let refused = run(&plan, &program, &data(&plan), &options, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(refused.to_string().contains(&format!("a base stored as {base}")), "{refused}");
    }
}
