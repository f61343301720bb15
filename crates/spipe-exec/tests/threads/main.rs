//! A run leaves no thread behind, however it ends.
//!
//! The only test of its process, so that all threads are its own.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../executor/machine.rs"]
#[expect(dead_code, reason = "models and data that this test does not need")]
mod machine;

use machine::{Case, text};
use spipe_exec::{Backend, Checkpoints, Options, Report, RunError, run};
use spipe_schedule::lower;
use std::{
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Threads of a pool end shortly after the pool is dropped.
fn settles_at(wanted: usize, after: &str) {
    let began = Instant::now();
    while threads() > wanted {
        assert!(began.elapsed() < Duration::from_secs(20), "{} threads instead of {wanted} after {after}", threads());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn train(options: &Options) -> Result<Report, RunError> {
    let (plan, program) = Case::default().build();
    run(&plan, &program, &text(), options, &mut |_| GO_ON)
}

/// A machine that is too small for the plan.
fn out_of_memory(options: &Options) -> Result<Report, RunError> {
    let (plan, _) = Case::default().build();
    let hardware = spipe_hardware::Hardware::from_toml("machine.toml", &machine::machine("400 KiB", "4 GB/s")).unwrap();
    let context = spipe_plan::Context { hardware: &hardware, ..plan.context() };
    let program = lower(&context, plan.placement()).unwrap();
    run(&plan, &program, &text(), options, &mut |_| GO_ON)
}

#[test]
fn no_thread_outlives_a_run() {
    std::panic::set_hook(Box::new(|_| {}));
    let options = Case::default().options(Backend::Ndarray, 50);
    train(&Options { steps: 1, ..options.clone() }).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let before = threads();
    train(&Options { steps: 2, ..options.clone() }).unwrap();
    settles_at(before, "a good run");

    let mut wild = options.clone();
    wild.optimizer.lr = 1e30;
    assert!(matches!(train(&wild), Err(RunError::NotFinite { .. })));
    settles_at(before, "numbers that are not finite");

    assert!(matches!(out_of_memory(&options), Err(RunError::OutOfMemory(_))));
    settles_at(before, "too little memory");

    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("kept");
    let kept = Options { checkpoints: Some(Checkpoints { folder: place.clone(), every: 5 }), ..options.clone() };
    let (plan, program) = Case::default().build();
    let gone = run(&plan, &program, &text(), &kept, &mut |step| {
        if step.index == 2 {
            std::fs::remove_dir(&place).unwrap();
        }
        GO_ON
    });
    assert!(matches!(gone, Err(RunError::Checkpoint(_))), "{gone:?}");
    settles_at(before, "a folder that has gone");

    let panicked =
        catch_unwind(AssertUnwindSafe(|| run(&plan, &program, &text(), &options, &mut |_| panic!("the caller"))));
    assert!(panicked.is_err());
    settles_at(before, "a panic of the caller");
}
