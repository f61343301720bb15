//! Tests of pinned host memory: a driver that is played pins it, or refuses to.

use crate::{
    Backend,
    device::pinning::{Lock, Pin},
    options::Options,
    report::{Report, Step},
    runtime::{Hooks, run_with},
    testing::{machine::text, setup::Setup},
};
use spipe_base::Bytes;
use spipe_model::Precision;
use spipe_plan::System;
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

/// Every layer is a chunk of its own with streamed parameters.
const UNITS: [&str; 5] =
    ["gpu0 0..0 streamed", "gpu0 1..1 streamed", "gpu0 2..2 streamed", "gpu0 3..3 streamed", "gpu0 4..4 streamed"];

fn setups() -> Vec<Setup<'static>> {
    let of = |system, stages| Setup { system, stages, precision: Precision::Bf16, ..Setup::default() };
    vec![
        of(System::ZeroOffload, &["gpu0 0..2 socket", "gpu0 3..4 socket"]),
        of(System::Superpipeline, &UNITS),
        of(System::Mobius, &UNITS),
        Setup {
            backward: &["gpu0 0..1 streamed recompute", "gpu0 2..4 streamed recompute"],
            ..of(System::Spipe, &["gpu0 0..2 streamed", "gpu0 3..4 streamed"])
        },
        of(System::PoF, &["gpu0 0..2 offload", "gpu0 3..4 offload"]),
        of(System::ZeroInfinity, &["gpu0 0..2 streamed socket", "gpu0 3..4 streamed socket"]),
        of(System::ZeroInfinity, &["gpu0 0..2 streamed socket drive", "gpu0 3..4 streamed socket drive"]),
        of(System::Fsdp, &["gpu0 0..2 socket", "gpu0 3..4 socket"]),
    ]
}

/// A run of four steps whose memory is pinned by `pin`, with its steps.
fn train(setup: &Setup<'_>, pin: Option<&Pin<'_>>) -> (Report, Vec<Step>) {
    let (plan, program) = setup.build();
    let folder = tempfile::tempdir().unwrap();
    let drives = BTreeMap::from([("nvme0".to_owned(), folder.path().to_path_buf())]);
    let options = Options { drives, keep_gradients: false, ..Setup::options(Backend::Ndarray, 4) };
    let mut steps = Vec::new();
    let mut on_step = |step: &Step| {
        steps.push(step.clone());
        ControlFlow::Continue(())
    };
    let report = run_with((&plan, &program), &text(), &options, &mut on_step, &Hooks { pin, ..Hooks::NONE });
    let report = report.unwrap_or_else(|error| panic!("{setup:?}: {error}"));
    (report, steps)
}

fn unpinned(steps: &[Step]) -> Bytes {
    steps.iter().flat_map(|step| &step.work).map(|thread| thread.work.unpinned).sum()
}

/// Pinned once before the first step and no longer than the run; from then on every copy to a device reads from there.
#[test]
fn copies_to_devices_read_pinned_memory() {
    struct Held<'a>(&'a AtomicUsize);
    impl Drop for Held<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    static HELD: AtomicUsize = AtomicUsize::new(0);
    for setup in setups() {
        let ranges = Mutex::new(Vec::new());
        let pin = |start: std::ptr::NonNull<u8>, bytes: usize| {
            ranges.lock().unwrap().push((start.as_ptr() as usize, bytes));
            HELD.fetch_add(1, SeqCst);
            Ok(Box::new(Held(&HELD)) as Lock)
        };
        let (report, steps) = train(&setup, Some(&pin));
        assert_eq!(report.losses, train(&setup, None).0.losses, "{setup:?}");
        assert_eq!(HELD.load(SeqCst), 0, "{setup:?}");
        let ranges = ranges.into_inner().unwrap();
        assert!(
            !ranges.is_empty() && ranges.iter().all(|(start, bytes)| start % 4096 == 0 && *bytes > 0),
            "{ranges:?}"
        );
        assert_eq!(unpinned(&steps[1..]), Bytes::ZERO, "{setup:?}");
        assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    }
}

#[test]
fn a_driver_that_refuses_is_said_once() {
    for setup in setups() {
        let (report, steps) = train(&setup, Some(&|_, _| Err("out of pages".into())));
        let told: Vec<_> = report.warnings.iter().filter(|warning| warning.contains("out of pages")).collect();
        assert_eq!(
            told,
            ["host memory is not pinned, copies to the devices are slower: out of pages"],
            "{:?}",
            report.warnings
        );
        assert!(unpinned(&steps) > Bytes::ZERO, "{setup:?}");
    }
}
