//! Tests of runs that fail, and of a run's report.

use crate::{
    device::Backend,
    error::RunError,
    options::Options,
    persist::checkpoint::{Checkpoint, Checkpoints},
    runtime::{Hooks, run, run_with},
    task_error::TaskError,
    testing::{
        machine::{self, Case, text},
        setup::Setup,
    },
};
use spipe_base::{ActionId, Bytes, LaneRole, SimTime};
use spipe_model::Precision;
use spipe_plan::System;
use spipe_schedule::{Program, lower};
use spipe_trace::Metrics;
use std::{ops::ControlFlow, time::Instant};

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

#[test]
fn a_panic_in_any_lane_ends_the_run() {
    quiet_panics();
    let case = Case::default();
    let (plan, program) = case.build();
    for victim in program.actions().ids() {
        let started = Instant::now();
        let fail = |iteration, action| assert!(iteration < 1 || action != victim, "injected");
        let hooks = Hooks { before: &fail, ..Hooks::NONE };
        let options = case.options(Backend::Ndarray, 3);
        let result = run_with((&plan, &program), &text(), &options, &mut |_| GO_ON, &hooks);
        let lane = &program.lanes()[program.actions()[victim].lane].name;
        match result {
            Err(RunError::Lane { lane: failed, action, error }) => {
                assert_eq!((&failed, error), (lane, TaskError::Panicked("injected".into())));
                assert!(action.ends_with("of step 1"), "{action}");
            }
            other => panic!("{other:?}"),
        }
        assert!(started.elapsed().as_secs() < 20, "it hangs");
    }
}

/// More host memory than there is: refused with the bytes by part, before anything is allocated.
#[test]
fn a_run_without_room_does_not_begin() {
    let setup = Setup { system: System::ZeroOffload, stages: &["gpu0 0..4 socket"], ..Setup::default() };
    let (plan, program) = setup.build();
    let hooks = Hooks { available_memory: || Some(Bytes::kib(100)), ..Hooks::NONE };
    let options = Setup::options(Backend::Ndarray, 1);
    let result = run_with((&plan, &program), &text(), &options, &mut |_| GO_ON, &hooks);
    let Err(RunError::Unsupported(faults)) = result else { panic!("{result:?}") };
    let message = faults.to_string();
    assert!(message.contains("in host memory, of which 100.0 KiB are free: `dram0` "), "{message}");
    assert!(message.contains("optimizer-state ") && message.contains("hint: "), "{message}");
    let room = Hooks { available_memory: || None, ..Hooks::NONE };
    run_with((&plan, &program), &text(), &options, &mut |_| GO_ON, &room).unwrap();
}

#[test]
fn a_panic_spares_the_checkpoint_before() {
    quiet_panics();
    let case = Case::default();
    let (plan, program) = case.build();
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Some(Checkpoints { folder: folder.path().into(), every: 1 });
    let options = Options { checkpoints, ..case.options(Backend::Ndarray, 4) };
    let whole = run(&plan, &program, &text(), &case.options(Backend::Ndarray, 4), &mut |_| GO_ON).unwrap().losses;
    let fail = |iteration, action: ActionId| assert!(iteration < 2 || action.index() != 0, "injected");
    let hooks = Hooks { before: &fail, ..Hooks::NONE };
    let failed = run_with((&plan, &program), &text(), &options, &mut |_| GO_ON, &hooks);
    assert!(matches!(failed, Err(RunError::Lane { .. })), "{failed:?}");
    let resume = Checkpoint::newest(folder.path()).unwrap().checkpoint;
    assert_eq!(resume.as_ref().map(Checkpoint::step), Some(2));
    let resumed = run(&plan, &program, &text(), &Options { resume, ..options }, &mut |_| GO_ON).unwrap();
    assert_eq!(resumed.losses, whole[2..]);
}

#[test]
fn a_panic_of_the_caller_ends_the_run() {
    quiet_panics();
    let case = Case::default();
    let (plan, program) = case.build();
    let result = std::panic::catch_unwind(|| {
        run(&plan, &program, &text(), &case.options(Backend::Ndarray, 1000), &mut |_| panic!("the caller"))
    });
    assert!(result.is_err());
}

#[test]
fn the_caller_can_stop() {
    let case = Case::default();
    let (plan, program) = case.build();
    let mut steps = 0;
    let report = run(&plan, &program, &text(), &case.options(Backend::Ndarray, 1000), &mut |_| {
        steps += 1;
        if steps == 2 { ControlFlow::Break(()) } else { GO_ON }
    });
    let losses = report.unwrap().losses.len();
    assert!(steps == losses && (2..10).contains(&losses), "{steps} {losses}");
}

/// The program of the default case with other capacities than its plan was checked for.
fn with_memory(memory: &str) -> Program {
    let (roomy, _) = Case::default().build();
    let machine = machine::machine(memory, "4 GB/s");
    let hardware = spipe_hardware::Hardware::from_toml("machine.toml", &machine).unwrap();
    let context = spipe_plan::Context { hardware: &hardware, ..roomy.context() };
    lower(&context, roomy.placement()).unwrap()
}

#[test]
fn too_little_memory_is_an_error_with_holders() {
    let case = Case::default();
    let (plan, _) = case.build();
    let program = with_memory("400 KiB");
    let result = run(&plan, &program, &text(), &case.options(Backend::Ndarray, 1), &mut |_| GO_ON);
    let Err(RunError::OutOfMemory(shortage)) = result else { panic!("{result:?}") };
    assert_eq!(shortage.memory, "gpu0");
    assert!(shortage.needed > shortage.free && !shortage.holders.is_empty(), "{shortage:?}");
    assert!(shortage.holders.iter().any(|holder| holder.what.starts_with("parameters of layers 0..2")), "{shortage:?}");
}

/// In 16 bits graphs hold more than the plan counts: they are in f32.
#[test]
fn more_than_a_memory_has_is_an_error() {
    let setup = Setup { precision: Precision::Bf16, ..Setup::default() };
    let (plan, program) = setup.build();
    let options = Setup::options(Backend::Ndarray, 1);
    let report = run(&plan, &program, &text(), &options, &mut |_| GO_ON).unwrap();
    let gpu = report.memories.iter().find(|memory| memory.name == "gpu0").unwrap();
    let machine = machine::machine(&format!("{} B", gpu.planned.get()), "4 GB/s");
    let hardware = spipe_hardware::Hardware::from_toml("machine.toml", &machine).unwrap();
    let context = spipe_plan::Context { hardware: &hardware, ..plan.context() };
    let program = lower(&context, plan.placement()).unwrap();
    match run(&plan, &program, &text(), &options, &mut |_| GO_ON) {
        Err(RunError::Exceeded { memory, capacity, held, .. }) => {
            assert_eq!((memory.as_str(), capacity), ("gpu0", gpu.planned));
            assert!(held > capacity && held <= gpu.held, "{held} of {}", gpu.held);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_waits_for_memory_that_will_be_free() {
    let case = Case { system: spipe_plan::System::Gpipe, microbatches: 6, ..Case::default() };
    let (plan, program) = case.build();
    let peak = |name: &str, report: &crate::report::Report| {
        report.memories.iter().find(|memory| memory.name == name).map(|memory| memory.planned).unwrap()
    };
    let report = run(&plan, &program, &text(), &case.options(Backend::Ndarray, 1), &mut |_| GO_ON).unwrap();
    let held = peak("gpu0", &report);
    // One byte less than the peak of the roomy run is too little for GPipe, which frees nothing
    // before its backwards.
    let tight = case.build().0;
    let machine = machine::machine(&format!("{} B", held.get() - 1), "4 GB/s");
    let hardware = spipe_hardware::Hardware::from_toml("machine.toml", &machine).unwrap();
    let context = spipe_plan::Context { hardware: &hardware, ..tight.context() };
    let program = lower(&context, tight.placement()).unwrap();
    match run(&plan, &program, &text(), &case.options(Backend::Ndarray, 2), &mut |_| GO_ON) {
        Ok(report) => assert!(peak("gpu0", &report) < held),
        Err(RunError::OutOfMemory(shortage)) => assert_eq!(shortage.memory, "gpu0"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn the_trace_accounts_for_every_nanosecond_of_compute_lanes() {
    let case = Case { microbatches: 6, ..Case::default() };
    let (plan, program) = case.build();
    let report = run(&plan, &program, &text(), &case.options(Backend::Ndarray, 6), &mut |_| GO_ON).unwrap();
    let trace = &report.trace;
    assert_eq!((trace.iterations.len(), report.losses.len()), (6, 6));
    assert_eq!(trace.spans.len(), program.actions().len());
    spipe_trace::from_json(&spipe_trace::to_json(trace)).unwrap();
    let metrics = Metrics::of(trace);
    for (index, lane) in trace.lanes.iter().enumerate().filter(|(_, lane)| lane.role == LaneRole::Compute) {
        let id = spipe_base::LaneId::from(index);
        let busy = metrics.busy.get(&id).copied().unwrap_or_default();
        let idle: SimTime = metrics.idle.get(&id).into_iter().flat_map(|causes| causes.values()).copied().sum();
        if busy > SimTime::ZERO {
            assert_eq!(busy + idle, trace.iteration, "{}", lane.name);
        }
    }
    for arrow in &trace.arrows {
        let (from, to) = (&trace.spans[arrow.from as usize], &trace.spans[arrow.to as usize]);
        assert!(from.start <= to.start, "{from:?} {to:?}");
    }
    assert!((0.0..1.0).contains(&report.lane_overhead), "{}", report.lane_overhead);
    assert!(trace.notes.iter().any(|note| note.contains("emulated")), "{:?}", trace.notes);
}

#[test]
fn memory_stays_within_what_is_planned() {
    let case = Case { stages: &[("gpu0", "0..2", 2), ("cpu0", "3..4", 0)], ..Case::default() };
    let (plan, program) = case.build();
    let report = run(&plan, &program, &text(), &case.options(Backend::Ndarray, 3), &mut |_| GO_ON).unwrap();
    for memory in &report.memories {
        assert!(memory.planned <= memory.capacity.unwrap(), "{memory:?}");
        assert!(memory.held > Bytes::ZERO, "{memory:?}");
        let track = report.trace.memories.iter().find(|track| track.name == memory.name).unwrap();
        assert!(track.peak <= memory.held, "{memory:?}");
        assert!(track.samples.windows(2).all(|pair| pair[0].at < pair[1].at));
        assert_eq!(track.holders.iter().map(|holder| holder.bytes).sum::<Bytes>(), track.peak);
    }
}

#[test]
fn emulated_links_are_as_slow_as_they_say() {
    let slow = Case { link: "2 MB/s", microbatches: 2, ..Case::default() };
    let (plan, program) = slow.build();
    let report = run(&plan, &program, &text(), &slow.options(Backend::Ndarray, 2), &mut |_| GO_ON).unwrap();
    let copies = report.trace.spans.iter().filter(|span| span.kind.is_transfer());
    for span in copies {
        // 2 sequences × 16 tokens × 32 channels × 4 bytes at 2 MB/s, and 10 µs.
        let alone = 4096.0 / 2e6 * 1e3 + 0.01;
        assert_eq!(span.bytes, Some(Bytes::new(4096)));
        // How much later a thread wakes up depends on other processes.
        assert!(span.duration().to_ms() > alone - 0.001, "{span:?}");
    }
}

#[test]
fn what_cannot_run_is_refused_before_anything_runs() {
    let case = Case::default();
    let (plan, program) = case.build();
    let refuse = |options: &Options| {
        let result = run(&plan, &program, &text(), options, &mut |_| GO_ON);
        result.map(|_| ()).unwrap_err()
    };
    let unbound = refuse(&Options::new(Vec::new())).to_string();
    assert!(unbound.contains("nothing executes `gpu0`\nhint: bind it, for example gpu0=cpu:0"), "{unbound}");
    assert!(unbound.contains("nothing executes `cpu0`"), "{unbound}");
    let stranger = refuse(&Options::new(vec!["tpu0=cpu:0".parse().unwrap()])).to_string();
    assert!(stranger.contains("`tpu0=cpu:0:ndarray` binds a device that the plan does not have"), "{stranger}");
    let long = crate::data::Tokens::bytes(&[0; 100], 32).unwrap().into();
    let wrong = run(&plan, &program, &long, &case.options(Backend::Ndarray, 1), &mut |_| GO_ON);
    assert_eq!(wrong.map(|_| ()).unwrap_err().to_string(), "the data has sequences of 32 tokens, the plan has 16");
    let none = refuse(&case.options(Backend::Ndarray, 0)).to_string();
    assert!(none.contains("there is nothing to run"), "{none}");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn cuda_is_missing_unless_it_is_compiled_in() {
    let case = Case::default();
    let (plan, program) = case.build();
    let options = Options::new(vec!["gpu0=cuda:0".parse().unwrap(), "cpu0=cpu:0".parse().unwrap()]);
    let error = run(&plan, &program, &text(), &options, &mut |_| GO_ON).map(|_| ()).unwrap_err();
    assert!(error.is_missing_device() && error.hint().is_some_and(|hint| hint.contains("--features cuda")), "{error}");
}

#[test]
fn models_that_cannot_run_say_why() {
    let tied = machine::GPT.replace("places = 16", "places = 16\ntied = true\ndropout = true");
    let case = Case { model: &tied, stages: &[("cpu0", "0..3", 0)], ..Case::default() };
    let (plan, program) = case.build();
    let error =
        run(&plan, &program, &text(), &case.options(Backend::Ndarray, 1), &mut |_| GO_ON).map(|_| ()).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("layer `embedding` cannot be executed yet: dropout is not computed"), "{message}");
    assert!(message.contains("layer `block.0` cannot be executed yet: dropout is not computed"), "{message}");
    assert!(!message.contains("block.1") && !message.contains("head"), "{message}");
}
