//! Replicas of a pipeline: plain training of the whole batch, and the same every time.

use crate::{
    machine::{GPT, LLAMA, data},
    setup::{Setup, losses_are_near},
    shared::tied,
    systems::{all_devices, both},
};
use spipe_exec::{Backend, reference, run};
use spipe_model::Precision;
use spipe_plan::{Sharding, System};
use std::ops::ControlFlow;

const STEPS: u32 = 12;

/// Two stages on each of two replicas.
fn two<'a>() -> Setup<'a> {
    Setup {
        gpus: 4,
        stages: &["gpu0 0..1", "gpu2 2..4"],
        replicas: &["gpu0 gpu2", "gpu1 gpu3"],
        microbatches: 8,
        ..Setup::default()
    }
}

#[test]
fn replicas_train_what_one_device_trains() {
    let shared = tied();
    let pipelines = [
        Setup { model: LLAMA, ..two() },
        Setup { model: GPT, stages: &["gpu0 0..1", "gpu2 2..3"], ..two() },
        Setup { model: &shared, stages: &["gpu0 0..1", "gpu2 2..3"], ..two() },
        Setup { system: System::ZbH1, ..two() },
        Setup { system: System::Gpipe, stages: &["gpu0 0..1 recompute", "gpu2 2..4 recompute"], ..two() },
        Setup { system: System::Interleaved, stages: &["gpu0 0..0", "gpu2 1..1", "gpu0 2..2", "gpu2 3..4"], ..two() },
        // Two microbatches of one pipeline are one of each of two replicas on one stage.
        Setup { gpus: 2, stages: &["gpu0 0..4"], replicas: &["gpu0", "gpu1"], microbatches: 2, ..two() },
        Setup {
            gpus: 4,
            stages: &["gpu0 0..4"],
            replicas: &["gpu0", "gpu1", "gpu2", "gpu3"],
            clip_norm: Some(0.1),
            ..two()
        },
    ];
    let sockets: &[&str] = &["gpu0 0..1 socket", "gpu2 2..4 socket"];
    let divided = pipelines.clone().into_iter().map(|setup| Setup { sharding: Sharding::Optimizer, ..setup });
    let hosted = Setup { sharding: Sharding::Optimizer, stages: sockets, ..two() };
    for setup in pipelines.clone().into_iter().chain(divided).chain([hosted]) {
        let (plain, report) = both(&setup, Backend::Ndarray, STEPS);
        losses_are_near(&setup, &report.losses, &plain.losses, 1e-6);
        assert!(report.losses[STEPS as usize - 1] < report.losses[0], "{setup:?}: {:?}", report.losses);
        let (_, again) = both(&setup, Backend::Ndarray, STEPS);
        assert_eq!(report.losses, again.losses, "{setup:?}");
    }
}

/// Replicas that stream from copies of their own on the host.
#[test]
fn streamed_replicas_train_what_one_device_trains() {
    let shared = tied();
    let rounds: &[&str] =
        &["gpu0 0..1 streamed recompute", "gpu2 2..2 streamed recompute", "gpu0 3..4 streamed recompute"];
    let tied_rounds: &[&str] = &["gpu0 0..1 streamed recompute", "gpu2 2..3 streamed recompute"];
    let backward: &[&str] = &["gpu2 0..2 streamed recompute", "gpu0 3..4 streamed recompute"];
    let streamed = [
        Setup { system: System::Mobius, stages: rounds, ..two() },
        Setup { system: System::Superpipeline, stages: rounds, clip_norm: Some(0.1), ..two() },
        Setup { system: System::Mobius, model: &shared, stages: tied_rounds, ..two() },
        Setup { system: System::Spipe, stages: rounds, backward, ..two() },
        Setup { system: System::Spipe, stages: rounds, backward, clip_norm: Some(0.1), ..two() },
    ];
    for setup in streamed {
        let (plain, report) = both(&setup, Backend::Ndarray, STEPS);
        losses_are_near(&setup, &report.losses, &plain.losses, 1e-6);
        assert!(report.losses[STEPS as usize - 1] < report.losses[0], "{setup:?}: {:?}", report.losses);
        let (_, again) = both(&setup, Backend::Ndarray, STEPS);
        assert_eq!(report.losses, again.losses, "{setup:?}");
    }
}

/// Scaled losses are checked over all stages of one replica: all replicas have the same gradients.
#[test]
fn replicas_in_16_bits_follow_plain_training() {
    for (precision, clip_norm) in [(Precision::Bf16, None), (Precision::Fp16, Some(0.5))] {
        for sharding in [Sharding::None, Sharding::Optimizer] {
            let setup = Setup { precision, clip_norm, sharding, ..two() };
            let (plan, program) = setup.build();
            let (data, options) = (data(&plan), all_devices(&setup, Backend::Ndarray, STEPS));
            let plain = reference(&plan, &program, &data, &options).unwrap_or_else(|error| panic!("{error}"));
            let report = run(&plan, &program, &data, &options, &mut |_| ControlFlow::Continue(()))
                .unwrap_or_else(|error| panic!("{setup:?}: {error}"));
            losses_are_near(&setup, &report.losses, &plain.losses, 0.02);
        }
    }
}
