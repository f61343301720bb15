//! Every system trains low-rank adapters as plain training does, bit for bit.

use crate::{
    machine::{GPT, LLAMA, VIT, data},
    setup::{BACKWARD, FORWARD, Setup, losses_are_near},
    systems::{KEPT, UNITS, all_devices, both, equal, within_rounding},
};
use spipe_base::Bytes;
use spipe_exec::{Backend, Options, StepSettings, run};
use spipe_model::{Lora, Model, Precision};
use spipe_plan::{Knob, System};
use std::ops::ControlFlow;

/// Steps until both matrices of adapters have had several gradients: the first one of A is zero.
const STEPS: u32 = 4;

/// Adapters on all matrices, and on some.
const ALL: &str = "rank=3,alpha=12";
const SOME: &str = "rank=2,rslora,targets=q,v,down";

fn exactly(setup: &Setup<'_>) {
    exactly_with(ALL, setup);
}

fn exactly_with(lora: &str, setup: &Setup<'_>) {
    for backend in Backend::ALL {
        let setup = Setup { lora: Some(lora), ..setup.clone() };
        let results = both(&setup, backend, STEPS);
        equal(&setup, &results);
        // Nothing but A, B and copies has a gradient, and after a step B does not vanish.
        let named = |end: &str| results.1.gradients.iter().filter(|one| one.tensor.ends_with(end)).count();
        let copies = named(".copy");
        assert_eq!(named(".lora-a") + named(".lora-b") + copies, results.1.gradients.len(), "{setup:?}");
        assert_eq!(copies > 0, lora.contains("embeddings"), "{setup:?}");
        assert!(named(".lora-a") > 0 && named(".lora-a") == named(".lora-b"), "{setup:?}");
        let changed = results.1.losses.iter().any(|loss| loss.to_bits() != results.1.losses[0].to_bits());
        assert!(changed, "{setup:?}: {:?}", results.1.losses);
    }
}

/// Matrices without adapters, in pipelines, split backwards and streamed chunks.
#[test]
fn some_matrices() {
    exactly_with(SOME, &Setup { stages: &["gpu0 0..2 recompute:2", "cpu0 3..4"], ..Setup::default() });
    exactly_with(SOME, &Setup { system: System::ZbH1, stages: &["gpu0 0..1", "gpu1 2..4"], ..Setup::default() });
    let stages = &["gpu0 0..1 offload", "gpu1 2..4 offload"];
    exactly_with(SOME, &Setup { system: System::PoF, stages, ..Setup::default() });
    exactly_with(SOME, &Setup { system: System::Superpipeline, stages: &UNITS, ..Setup::default() });
    exactly_with(SOME, &Setup { system: System::Fsdp, stages: &["gpu0 0..1", "gpu0 2..4"], ..Setup::default() });
}

#[test]
fn pipelines() {
    let stages = &["gpu0 0..1", "gpu1 2..4"];
    for system in [System::Gpipe, System::OneForwardOneBackward, System::ZbH1, System::ZbH2, System::Zb1p, System::Zb2p]
    {
        exactly(&Setup { system, stages, ..Setup::default() });
    }
    exactly(&Setup { stages: &["gpu0 0..2 recompute:2", "cpu0 3..4 recompute"], ..Setup::default() });
    let knobs = &[(Knob::HeadStart, 1)];
    let stages = &["cpu0 0..1", "gpu0 2..3 recompute:1", "gpu1 4..4"];
    exactly(&Setup { system: System::Hybrid, stages, knobs, ..Setup::default() });
    exactly(&Setup { system: System::ZbV, stages: &KEPT_VEE, ..Setup::default() });
    for system in [System::VHalf, System::VMin] {
        exactly(&Setup { system, stages: &KEPT_VEE, ..Setup::default() });
    }
    let dealt = &["gpu0 0..1", "gpu1 2..2", "gpu0 3..3 recompute", "gpu1 4..4"];
    for system in [System::Interleaved, System::Gis, System::GisH] {
        exactly(&Setup { system, stages: dealt, ..Setup::default() });
    }
}

const KEPT_VEE: [&str; 4] = ["gpu0 0..1", "gpu1 2..2 recompute", "gpu1 3..3", "gpu0 4..4"];

#[test]
fn one_kind_of_device_and_sockets() {
    let stages = &["gpu0 0..2 recompute", "gpu1 3..4 recompute"];
    exactly(&Setup { system: System::Checkpointing, stages, ..Setup::default() });
    exactly(&Setup { system: System::GpuOnly, stages: &["gpu0 0..4"], ..Setup::default() });
    exactly(&Setup { system: System::CpuOnly, stages: &["cpu0 0..4"], ..Setup::default() });
    for system in [System::ZeroOffload, System::ZeroOffloadDelayed] {
        for gradients_leave in [false, true] {
            let knobs = &[(Knob::GradientsLeave, u64::from(gradients_leave))];
            let stages = &["gpu0 0..1 socket", "gpu0 2..4 socket"];
            exactly(&Setup { system, stages, knobs, ..Setup::default() });
        }
    }
    let stages = &["gpu0 0..1 offload", "gpu1 2..2 offload", "gpu0 3..3 offload recompute", "gpu1 4..4 offload"];
    for system in [System::PoH, System::PoF] {
        exactly(&Setup { system, stages, ..Setup::default() });
    }
}

#[test]
fn streamed_bases() {
    for (write_back, sequential) in [(false, false), (true, true)] {
        let knobs = &[
            (Knob::Resident, 2),
            (Knob::Swap, 1),
            (Knob::WriteBack, u64::from(write_back)),
            (Knob::Sequential, u64::from(sequential)),
        ];
        exactly(&Setup { system: System::Superpipeline, stages: &UNITS, knobs, ..Setup::default() });
    }
    exactly(&Setup { system: System::NaiveSwap, stages: &UNITS, ..Setup::default() });
    for stages in &KEPT {
        for system in [System::Superpipeline, System::Mobius] {
            exactly(&Setup { system, stages, ..Setup::default() });
        }
    }
    let setup = Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() };
    exactly(&setup);
    let clipped = Setup { lora: Some(ALL), clip_norm: Some(0.01), ..setup };
    let results = both(&clipped, Backend::Ndarray, STEPS);
    losses_are_near(&clipped, &results.1.losses, &results.0.losses, 1e-6);
}

#[test]
fn bases_shared_by_two() {
    for stages in [&["gpu0 0..1 recompute", "gpu0 2..4"], &["gpu0 0..1 socket", "gpu0 2..4 socket recompute:1"]] {
        exactly(&Setup { system: System::Fsdp, stages, ..Setup::default() });
    }
    let stages = &["gpu0 0..1 streamed recompute", "gpu0 2..3 streamed", "gpu0 4..4 streamed"];
    let setup = Setup { system: System::ZeroInfinity, stages, microbatches: 2, ..Setup::default() };
    exactly(&setup);
    let setup = Setup { microbatches: 6, lora: Some(ALL), ..setup };
    within_rounding(&setup, &both(&setup, Backend::Ndarray, STEPS));
}

/// A matrix that holds several, biases, a tied head, heads with adapters, images.
#[test]
fn other_models() {
    let tied = &GPT.replace("places = 16", "places = 16\ntied = true");
    let some =
        |model, stages, lora| Setup { system: System::ZbH1, model, stages, lora: Some(lora), ..Setup::default() };
    for setup in [
        some(GPT, &["gpu0 0..1", "cpu0 2..3"], "rank=2,targets=c_attn,c_proj"),
        some(tied, &["gpu0 0..3"], "rank=2,targets=c_attn,lm_head"),
        some(LLAMA, &["gpu0 0..2", "gpu1 3..4"], "rank=2,targets=gate_up_proj,lm_head"),
        some(VIT, &["gpu0 0..1", "cpu0 2..3"], "rank=2"),
    ] {
        for system in [System::ZbH1, System::OneForwardOneBackward] {
            let setup = Setup { system, ..setup.clone() };
            equal(&setup, &both(&setup, Backend::Ndarray, STEPS));
        }
    }
    let streamed = ["gpu0 0..0 streamed", "gpu0 1..2 streamed recompute", "gpu0 3..3 streamed"];
    let setup = some(GPT, &streamed, "rank=2,targets=c_attn,c_fc");
    let setup = Setup { system: System::Superpipeline, ..setup };
    equal(&setup, &both(&setup, Backend::Ndarray, STEPS));
}

/// Layers below the lowest trained one have no backward.
#[test]
fn frozen_below() {
    let frozen = &["0..1"];
    exactly(&Setup { stages: &["gpu0 0..1", "gpu1 2..4"], frozen, ..Setup::default() });
    exactly(&Setup { stages: &["gpu0 0..2 recompute:2", "cpu0 3..4"], frozen, ..Setup::default() });
    exactly(&Setup { system: System::Superpipeline, stages: &UNITS, frozen, ..Setup::default() });
}

/// The base is held in 16 bits, adapters and their gradients in 32.
#[test]
fn bases_in_sixteen_bits() {
    let setups = [
        Setup { stages: &["gpu0 0..2 recompute:2", "cpu0 3..4"], ..Setup::default() },
        Setup { system: System::ZbH1, stages: &["gpu0 0..1 socket", "gpu1 2..4"], ..Setup::default() },
        Setup { system: System::ZeroOffload, stages: &["gpu0 0..4 socket"], ..Setup::default() },
        Setup { system: System::Superpipeline, stages: &UNITS, ..Setup::default() },
        Setup { system: System::Fsdp, stages: &["gpu0 0..1 socket", "gpu0 2..4 socket"], ..Setup::default() },
        Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() },
    ];
    for (setup, precision) in setups.iter().flat_map(|setup| [(setup, Precision::Bf16), (setup, Precision::Fp16)]) {
        let setup = Setup { precision, lora: Some(ALL), ..setup.clone() };
        let (plain, report) = both(&setup, Backend::Ndarray, STEPS);
        losses_are_near(&setup, &report.losses, &plain.losses, 0.01);
        assert!(report.losses != plain.losses, "{setup:?}: nothing was rounded");
    }
}

/// A frozen base has neither gradients nor moments, 12 bytes of each parameter's 16.
#[test]
fn a_frozen_base_is_held_once() {
    let held = |lora| {
        let setup = Setup { system: System::GpuOnly, stages: &["gpu0 0..4"], lora, ..Setup::default() };
        let memories = both(&setup, Backend::Ndarray, 1).1.memories;
        memories.iter().find(|memory| memory.name == "gpu0").map_or(Bytes::ZERO, |memory| memory.held)
    };
    let base = Model::from_toml("model.toml", LLAMA).unwrap();
    let lora = Lora::parse(ALL, None).unwrap();
    let (parameters, trained) = (base.parameters(), base.with_lora(&lora).unwrap().trained_parameters());
    // Of a microbatch, the products of A are saved besides: 32 tokens, 3 numbers of each, 7 matrices in 3 blocks.
    let inner = 4 * 32 * 3 * 7 * 3;
    let saved = held(None) - held(Some(ALL));
    assert!(saved.get() + 16 * trained + inner >= 12 * parameters, "{saved} of {parameters}, {trained} trained");
}

#[test]
fn adapters_learn() {
    let setup = Setup { lora: Some("rank=8"), stages: &["gpu0 0..2", "gpu1 3..4"], ..Setup::default() };
    let (plan, program) = setup.build();
    let options = all_devices(&setup, Backend::Ndarray, 40);
    let options = Options { optimizer: StepSettings { lr: 1e-2, ..options.optimizer }, ..options };
    let report = run(&plan, &program, &data(&plan), &options, &mut |_| ControlFlow::Continue(())).unwrap();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let [first, last] = [mean(&report.losses[..5]), mean(&report.losses[35..])];
    assert!(last < 0.96 * first, "{first} {last}");
}

/// Copies of embedding and head are trained in full beside adapters, on every way in which data moves.
#[test]
fn copies_of_embedding_and_head() {
    let with_copies = |setup: Setup<'_>| exactly_with("rank=2,embeddings,targets=q,down", &setup);
    with_copies(Setup { stages: &["gpu0 0..2 recompute:2", "cpu0 3..4 recompute"], ..Setup::default() });
    with_copies(Setup { system: System::ZbH1, stages: &["gpu0 0..1", "gpu1 2..4"], ..Setup::default() });
    with_copies(Setup { system: System::ZeroOffload, stages: &["gpu0 0..4 socket"], ..Setup::default() });
    with_copies(Setup { system: System::Superpipeline, stages: &UNITS, ..Setup::default() });
    with_copies(Setup { system: System::Fsdp, stages: &["gpu0 0..1", "gpu0 2..4"], ..Setup::default() });
    with_copies(Setup { system: System::Spipe, stages: &FORWARD, backward: &BACKWARD, ..Setup::default() });
    // Both layers of a tied table use its copy.
    let tied = &GPT.replace("places = 16", "places = 16\ntied = true");
    with_copies(Setup { model: tied, stages: &["gpu0 0..3 recompute:1"], ..Setup::default() });
    with_copies(Setup { system: System::ZeroOffload, model: tied, stages: &["gpu0 0..3 socket"], ..Setup::default() });
    let apart = Setup { model: tied, stages: &["gpu0 0..1", "gpu1 2..3"], ..Setup::default() };
    let apart = Setup { lora: Some("rank=2,embeddings"), ..apart };
    within_rounding(&apart, &both(&apart, Backend::Ndarray, STEPS));
}

#[test]
fn copies_in_sixteen_bits_are_planned_only() {
    let setup = Setup { lora: Some("rank=2,embeddings"), precision: Precision::Bf16, ..Setup::default() };
    let (plan, program) = setup.build();
    let options = all_devices(&setup, Backend::Ndarray, 1);
    let refused = run(&plan, &program, &data(&plan), &options, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(refused.to_string().contains("trained copies of embedding and head in 16 bits"), "{refused}");
}

#[test]
fn planned_only() {
    for (lora, said) in [
        ("rank=2,dora", "magnitudes of adapters (DoRA)"),
        ("rank=2,dropout=0.1", "dropout of 0.1 in adapters"),
        ("rank=2,embeddings,targets=q,lm_head", "it is trained in full as well"),
        ("rank=2,targets=q,embed_tokens", "those of tables are not computed"),
    ] {
        let setup = Setup { lora: Some(lora), ..Setup::default() };
        let (plan, program) = setup.build();
        let options = all_devices(&setup, Backend::Ndarray, 1);
        let refused = run(&plan, &program, &data(&plan), &options, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(refused.to_string().contains(said), "{refused}");
    }
}
