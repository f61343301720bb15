//! Optimizer state and activations on drives: losses of plain training, checkpoints, and files that fail.

use crate::{
    machine::{LLAMA, text},
    setup::{BACKWARD, FORWARD, Setup},
    shared::tied,
    systems::{all_devices, equal},
};
use spipe_base::Bytes;
use spipe_cost::Optimizer;
use spipe_exec::{Backend, Checkpoint, Checkpoints, Options, Report, RunError, reference, run};
use spipe_model::Precision;
use spipe_plan::{Knob, System};
use std::{ops::ControlFlow, path::Path};

const SOCKET: [&str; 2] = ["gpu0 0..1 socket drive recompute:1", "gpu0 2..4 socket drive"];
const PAIR: [&str; 2] = ["gpu0 0..1 socket drive", "gpu1 2..4 socket"];
const SHARDS: [&str; 5] = [
    "gpu0 0..0 streamed socket drive recompute",
    "gpu0 1..1 streamed socket drive",
    "gpu0 2..2 streamed socket drive",
    "gpu0 3..3 streamed socket drive",
    "gpu0 4..4 streamed socket drive",
];
const UNITS: [&str; 4] =
    ["gpu0 0..0 streamed drive", "gpu0 1..1 streamed drive", "gpu0 2..2 streamed drive", "gpu0 3..4 streamed drive"];

/// One plan of each way in which data moves.
fn setups<'a>() -> [Setup<'a>; 6] {
    let plain = Setup::default();
    [
        Setup { system: System::ZeroOffload, stages: &SOCKET, ..plain.clone() },
        Setup { system: System::ZeroOffloadDelayed, stages: &SOCKET, ..plain.clone() },
        Setup { stages: &PAIR, ..plain.clone() },
        Setup { system: System::ZeroInfinity, stages: &SHARDS, ..plain.clone() },
        Setup { system: System::Superpipeline, stages: &UNITS, ..plain.clone() },
        Setup { system: System::Mobius, stages: &UNITS, ..plain },
    ]
}

fn options(setup: &Setup<'_>, steps: u32, folder: &Path) -> Options {
    let drives = [("nvme0".to_owned(), folder.to_owned())].into();
    Options { drives, ..all_devices(setup, Backend::Ndarray, steps) }
}

fn train(setup: &Setup<'_>, options: &Options) -> Result<Report, RunError> {
    let (plan, program) = setup.build();
    run(&plan, &program, &text(), options, &mut |_| ControlFlow::Continue(()))
}

fn bits(report: &Report) -> Vec<u64> {
    report.losses.iter().map(|loss| loss.to_bits()).collect()
}

#[test]
fn losses_are_those_of_plain_training() {
    let folder = tempfile::tempdir().expect("a folder");
    // Two GPUs add up their gradients in another order than plain training.
    let is_exact = |setup: &Setup<'_>| !setup.system.is_stale() && setup.system != System::ZeroInfinity;
    for setup in setups().into_iter().filter(is_exact) {
        let (plan, program) = setup.build();
        let options = options(&setup, 6, folder.path());
        let plain = reference(&plan, &program, &text(), &options).unwrap_or_else(|error| panic!("{error}"));
        let report = train(&setup, &options).unwrap_or_else(|error| panic!("{setup:?}: {error}"));
        let drive = report.memories.iter().find(|memory| memory.name == "nvme0").expect("a drive");
        assert!(Bytes::ZERO < drive.held && drive.held <= drive.planned, "{setup:?}: {drive:?}");
        for lane in ["nvme0.read", "nvme0.write"] {
            assert!(report.trace.lanes.iter().any(|known| known.name == lane), "{setup:?}: {lane}");
        }
        equal(&setup, &(plain, report));
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "the file is removed");
    }
}

/// The same plan without its drive, in each precision and with clipped gradients: all bits agree.
#[test]
fn a_drive_changes_no_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    for setup in setups() {
        let in_memory: Vec<String> = setup.stages.iter().map(|stage| stage.replace(" drive", "")).collect();
        let in_memory: Vec<&str> = in_memory.iter().map(String::as_str).collect();
        for (precision, clip_norm, optimizer) in [
            (Precision::Bf16, None, Optimizer::Adamw),
            (Precision::Fp16, Some(0.1), Optimizer::Adamw),
            (Precision::Fp32, None, Optimizer::Adamw8bit),
        ] {
            if optimizer == Optimizer::Adamw8bit && setup.system == System::ZeroInfinity {
                continue;
            }
            let of = |stages| Setup { stages, precision, clip_norm, optimizer, ..setup.clone() };
            let go = |setup: &Setup<'_>| {
                let report = train(setup, &options(setup, 4, folder.path()));
                bits(&report.unwrap_or_else(|error| panic!("{setup:?}: {error}")))
            };
            assert_eq!(go(&of(setup.stages)), go(&of(&in_memory)), "{setup:?} {precision} {optimizer}");
        }
    }
}

/// Activations, alone and beside states, of one GPU and of two.
#[test]
fn activations_come_back_from_a_drive() {
    let folder = tempfile::tempdir().expect("a folder");
    let (alone, both) = ("gpu0 0..4 offload-to-drive", "gpu0 0..4 offload-to-drive recompute:2 socket drive");
    let pair = ["gpu0 0..1 offload-to-drive", "gpu1 2..4 offload-to-drive"];
    let layers = ["gpu0 0..0 offload-to-drive", "gpu1 1..1 offload", "gpu0 2..2 offload-to-drive", "gpu1 3..4"];
    for (system, stages) in [
        (System::PoH, &[alone][..]),
        (System::OneForwardOneBackward, &[both]),
        (System::OneForwardOneBackward, &pair),
        (System::Interleaved, &layers),
    ] {
        let setup = Setup { system, stages, microbatches: 6, ..Setup::default() };
        let (plan, program) = setup.build();
        let options = options(&setup, 5, folder.path());
        let plain = reference(&plan, &program, &text(), &options).unwrap_or_else(|error| panic!("{error}"));
        let report = train(&setup, &options).unwrap_or_else(|error| panic!("{setup:?}: {error}"));
        let drive = report.memories.iter().find(|memory| memory.name == "nvme0").expect("a drive");
        assert!(Bytes::ZERO < drive.held && drive.held <= drive.planned, "{setup:?}: {drive:?}");
        equal(&setup, &(plain, report));
    }
}

/// Parameters alone and with states, in each streamed system and in shards of two GPUs, with tied tables,
/// clipped gradients and in 16 bits: all bits agree with those of the same plan in memory.
#[test]
fn parameters_come_from_a_drive() {
    let folder = tempfile::tempdir().expect("a folder");
    let units = UNITS.map(|stage| stage.replace(" streamed", " streamed-from-drive"));
    let alone = units.clone().map(|stage| stage.replace(" drive", ""));
    let [forward, backward] = [&FORWARD[..], &BACKWARD]
        .map(|all| all.iter().map(|stage| stage.replace("streamed", "streamed-from-drive")).collect::<Vec<_>>());
    let tied = tied();
    let shards = SHARDS.map(|stage| stage.replace(" streamed", " streamed-from-drive"));
    let shards_alone = shards.clone().map(|stage| stage.replace(" drive", ""));
    let some = [0, 1].map(|index| shards[index].clone());
    let some = some.into_iter().chain(SHARDS[2..].iter().map(|stage| (*stage).to_owned())).collect::<Vec<_>>();
    let tied_shards = ["gpu0 0..0 streamed-from-drive socket", "gpu0 1..2 streamed socket drive recompute:1"];
    let tied_shards = tied_shards.into_iter().chain(["gpu0 3..3 streamed-from-drive socket drive"]);
    let tied_shards = tied_shards.map(str::to_owned).collect::<Vec<_>>();
    let four = (0..4).map(|layer| format!("gpu0 {layer}..{layer} streamed-from-drive drive")).collect::<Vec<_>>();
    let cases: [(System, &[String], &[String], &str); 9] = [
        (System::Superpipeline, &units, &[], LLAMA),
        (System::Superpipeline, &alone, &[], LLAMA),
        (System::Superpipeline, &four, &[], &tied),
        (System::Mobius, &units, &[], LLAMA),
        (System::Spipe, &forward, &backward, LLAMA),
        (System::ZeroInfinity, &shards, &[], LLAMA),
        (System::ZeroInfinity, &shards_alone, &[], LLAMA),
        (System::ZeroInfinity, &some, &[], LLAMA),
        (System::ZeroInfinity, &tied_shards, &[], &tied),
    ];
    for (system, stages, backward, model) in cases {
        let [stages, backward] = [stages, backward].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        let clip_norm = Some(0.1).filter(|_| system != System::Spipe);
        for (precision, clip_norm) in [(Precision::Fp32, clip_norm), (Precision::Bf16, None)] {
            let setup = Setup { system, model, precision, clip_norm, ..Setup::default() };
            agrees_with_memory(&Setup { stages: &stages, backward: &backward, ..setup }, folder.path());
        }
    }
}

/// On one GPU, ZeRO-Infinity has the losses of plain training.
#[test]
fn whole_shards_from_a_drive_have_the_losses_of_plain_training() {
    let folder = tempfile::tempdir().expect("a folder");
    let shards = SHARDS.map(|stage| stage.replace(" streamed", " streamed-from-drive"));
    let stages = shards.each_ref().map(String::as_str);
    let knobs = &[(Knob::Shards, 1)];
    let setup = Setup { system: System::ZeroInfinity, stages: &stages, knobs, ..Setup::default() };
    let (plan, program) = setup.build();
    let options = options(&setup, 5, folder.path());
    let plain = reference(&plan, &program, &text(), &options).unwrap_or_else(|error| panic!("{error}"));
    let report = train(&setup, &options).unwrap_or_else(|error| panic!("{setup:?}: {error}"));
    let losses = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(losses(&report.losses), losses(&plain.losses));
    assert!(report.losses[4] < report.losses[0], "it learns: {:?}", report.losses);
}

/// A run with parameters on a drive, and the same without.
fn agrees_with_memory(setup: &Setup<'_>, folder: &Path) {
    let in_memory = |all: &[&str]| -> Vec<String> {
        all.iter().map(|stage| stage.replace("-from-drive", "").replace(" drive", "")).collect()
    };
    let plain = [setup.stages, setup.backward].map(in_memory);
    let [stages, backward] = plain.each_ref().map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
    let go = |setup: &Setup<'_>| {
        let report = train(setup, &options(setup, 4, folder));
        report.unwrap_or_else(|error| panic!("{setup:?}: {error}"))
    };
    let ours = go(setup);
    let theirs = go(&Setup { stages: &stages, backward: &backward, ..setup.clone() });
    assert_eq!(bits(&ours), bits(&theirs), "{setup:?}");
    let drive = ours.memories.iter().find(|memory| memory.name == "nvme0").expect("a drive");
    assert!(Bytes::ZERO < drive.held && drive.held <= drive.planned, "{setup:?}: {drive:?}");
}

#[test]
fn runs_go_on_from_checkpoints() {
    let drive = tempfile::tempdir().expect("a folder");
    let units = UNITS.map(|stage| stage.replace(" streamed", " streamed-from-drive"));
    let units = units.each_ref().map(String::as_str);
    let parameters = Setup { system: System::Superpipeline, stages: &units, ..Setup::default() };
    let shards = SHARDS.map(|stage| stage.replace(" streamed", " streamed-from-drive"));
    let shards = shards.each_ref().map(String::as_str);
    let sharded = Setup { system: System::ZeroInfinity, stages: &shards, ..Setup::default() };
    let precisions = [Precision::Fp32, Precision::Bf16].into_iter().cycle();
    for (setup, precision) in setups().into_iter().chain([parameters, sharded]).zip(precisions) {
        let setup = Setup { precision, ..setup };
        let go = |options: &Options| train(&setup, options).unwrap_or_else(|error| panic!("{setup:?}: {error}"));
        let plain = |steps| options(&setup, steps, drive.path());
        let whole = bits(&go(&plain(5)));
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoints = Some(Checkpoints { folder: folder.path().into(), every: 2 });
        let saving = |steps| Options { checkpoints: checkpoints.clone(), ..plain(steps) };
        // A run that was killed leaves its file behind.
        std::fs::write(drive.path().join("nvme0.state"), "left by a run that was killed").expect("a file");
        assert_eq!(bits(&go(&saving(3))), whole[..3], "{setup:?}");
        let resume = Checkpoint::newest(folder.path()).expect("checkpoints").checkpoint;
        assert_eq!(bits(&go(&Options { resume, ..saving(5) })), whole[3..], "{setup:?}");
    }
}

#[test]
fn a_drive_without_a_folder_is_refused_before_anything_runs() {
    let setup = Setup { system: System::ZeroOffload, stages: &SOCKET, knobs: &[], ..Setup::default() };
    let error = train(&setup, &all_devices(&setup, Backend::Ndarray, 1)).expect_err("no folder").to_string();
    assert!(error.contains("the plan uses the drive `nvme0`, which has no folder"), "{error}");
    assert!(error.contains("`option drive nvme0=FOLDER"), "{error}");
    let error = train(&setup, &options(&setup, 1, Path::new("/nowhere/at/all"))).expect_err("no folder");
    assert!(matches!(error, RunError::Drive(_)), "{error}");
    assert!(error.to_string().starts_with("`/nowhere/at/all/nvme0.state` cannot be written: "), "{error}");
}
