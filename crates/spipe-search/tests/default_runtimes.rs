//! The runtime under which each system is planned where none is named.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_cost::{Mode, Workload};
use spipe_hardware::{Hardware, HardwareFile, MeasuredFile, Runtime, shipped, shipped_runtimes};
use spipe_model::Model;
use spipe_plan::System;
use spipe_planner::Effort;
use spipe_search::{Machine, Request, default_runtime, search, systems, workloads};
use std::sync::Arc;

fn machine(name: &str) -> Hardware {
    let (file, text) = shipped().iter().find(|(known, _)| *known == name).unwrap();
    Hardware::from_toml(file, text).unwrap()
}

/// A shipped machine with a change of its file.
fn changed(name: &str, change: impl Fn(&mut HardwareFile)) -> Hardware {
    let mut file = machine(name).file().clone();
    change(&mut file);
    Hardware::from_file(name, file).unwrap()
}

/// A machine of the kind, beside the runtimes of its systems in the order of [`SYSTEMS`].
fn kinds() -> [(&'static str, Hardware, [&'static str; 6]); 6] {
    let measured = || MeasuredFile {
        date: "2026-11-29".into(),
        command: "spipe calibrate --devices cuda:0,cpu:0".into(),
        ..MeasuredFile::default()
    };
    let own = ["spipe"; 6];
    [
        (
            "one GPU",
            machine("rtx4090-pcie4-128gb"),
            ["pytorch", "pytorch", "pytorch", "deepspeed", "deepspeed", "pytorch"],
        ),
        (
            "four GPUs",
            machine("rtx3090-x4-two-sockets"),
            ["pytorch", "pytorch", "pytorch", "pytorch", "deepspeed", "pytorch"],
        ),
        (
            "one of four GPUs",
            machine("rtx3090-x4-two-sockets").restricted_to(&["gpu0".into(), "cpu0".into()]).unwrap(),
            ["pytorch", "pytorch", "pytorch", "deepspeed", "deepspeed", "pytorch"],
        ),
        ("cores", machine("rtx4090-pcie4-128gb").restricted_to(&["cpu0".into()]).unwrap(), own),
        (
            "an emulated GPU",
            changed("rtx4090-pcie4-128gb", |file| {
                file.gpu.iter_mut().for_each(|gpu| (gpu.emulated, gpu.cores) = (true, Some(1)));
            }),
            own,
        ),
        (
            "a measured GPU",
            changed("rtx4090-pcie4-128gb", |file| {
                file.gpu.iter_mut().for_each(|gpu| (gpu.source, gpu.measured) = (None, Some(measured())));
            }),
            own,
        ),
    ]
}

const SYSTEMS: [System; 6] = [
    System::Superpipeline,
    System::OneForwardOneBackward,
    System::PoH,
    System::ZeroOffload,
    System::ZeroInfinity,
    System::Fsdp,
];

#[test]
fn each_system_is_planned_under_the_runtime_that_trains_it() {
    for (kind, hardware, expected) in kinds() {
        let parts = Machine::new(&hardware, None, Mode::Train).unwrap();
        for (system, expected) in SYSTEMS.into_iter().zip(expected) {
            assert_eq!(default_runtime(system, &hardware, Mode::Train), expected, "{kind}, {system}");
            let found = parts.of(system);
            assert_eq!(found.runtime().name(), expected, "{kind}, {system}");
            assert_eq!(**found, hardware.clone().under(Runtime::shipped(expected).unwrap()), "{kind}, {system}");
            assert_eq!(default_runtime(system, &hardware, Mode::Infer), "spipe", "{kind}, {system}");
        }
        let among = parts.among(&System::ALL);
        assert_eq!(among.iter().map(|(_, systems)| systems.len()).sum::<usize>(), System::ALL.len(), "{kind}");
        for name in ["spipe", "megatron"] {
            let named = Machine::new(&hardware, Runtime::shipped(name).as_ref(), Mode::Train).unwrap();
            assert!(System::ALL.iter().all(|system| named.of(*system).runtime().name() == name), "{kind}, {name}");
        }
    }
}

/// A plan to go on from keeps a runtime that was named.
#[test]
fn the_machine_of_a_plan_is_under_the_defaults_or_under_its_runtime() {
    for (kind, hardware, expected) in kinds() {
        for (system, expected) in SYSTEMS.into_iter().zip(expected) {
            let of = |name: &str| {
                let found = hardware.clone().under(Runtime::shipped(name).unwrap());
                let parts = Machine::of_plan(&found, system, Mode::Train).unwrap();
                SYSTEMS.map(|other| parts.of(other).runtime().name().to_owned())
            };
            let by_default = SYSTEMS.map(|other| default_runtime(other, &hardware, Mode::Train));
            assert_eq!(of(expected), by_default, "{kind}, {system}");
            assert_eq!(of("megatron"), ["megatron"; 6], "{kind}, {system}");
        }
    }
}

/// Whether a plan of the system is marked as an estimate.
#[test]
fn runtimes_name_the_systems_that_they_were_measured_for() {
    let measured = |runtime: &str, system: System| Runtime::shipped(runtime).unwrap().is_measured_for(system.name());
    for (runtime, system, expected) in [
        ("spipe", System::Superpipeline, true),
        ("spipe", System::Fsdp, true),
        ("pytorch", System::Fsdp, true),
        ("pytorch", System::Superpipeline, false),
        ("pytorch", System::Mobius, false),
        ("deepspeed", System::ZeroInfinity, true),
        ("deepspeed", System::ZeroOffload, false),
        ("megatron", System::OneForwardOneBackward, true),
        ("pytorch-compiled", System::Fsdp, false),
    ] {
        assert_eq!(measured(runtime, system), expected, "{system} under {runtime}");
    }
    for (name, _) in shipped_runtimes() {
        for system in &Runtime::shipped(name).unwrap().file().measured_systems {
            assert!(system.parse::<System>().is_ok(), "`{name}` was measured for `{system}`");
        }
    }
}

/// The search over systems of several runtimes finds the fastest plan of the searches under each.
#[test]
fn a_search_over_several_runtimes_finds_the_fastest_plan_of_each() {
    let (_, text) = spipe_model::shipped().iter().find(|(name, _)| *name == "gpt2-xl").unwrap();
    let model = Arc::new(Model::from_toml("gpt2-xl", text).unwrap());
    let parts = Machine::new(&machine("rtx4090-pcie4-128gb"), None, Mode::Train).unwrap();
    let sizes = workloads(Workload { seq_len: 1024, ..Workload::PLAIN }, 8, "auto").unwrap();
    let found = |machine: Machine, names: &str| {
        let (systems, effort) = (systems(names).unwrap(), Some(Effort::Low));
        search(&Request { systems, effort, ..Request::new(Arc::clone(&model), machine, sizes.clone()) }).unwrap()
    };
    let all = found(parts.clone(), "superpipeline,zero-offload,zero-infinity,fsdp");
    let alone = |names: &str| found(parts.clone(), names).solution;
    let (pytorch, deepspeed) = (alone("superpipeline,fsdp"), alone("zero-offload,zero-infinity"));
    let fastest = pytorch.simulated.min(deepspeed.simulated);
    // Local search starts from the fastest plan of all cases alone.
    assert!(all.solution.simulated <= fastest, "{} and {fastest}", all.solution.simulated);
    assert!(all.solution.bound <= pytorch.simulated.min(deepspeed.simulated));
    let context = all.plan.context();
    let expected = parts.of(all.solution.placement.system);
    assert_eq!(context.hardware.runtime(), expected.runtime(), "the plan is of the machine that it was simulated on");
    let told: Vec<System> = all.solution.considered.iter().map(|one| one.system).collect();
    assert!(told.contains(&System::ZeroOffload) && told.contains(&System::Superpipeline), "{told:?}");
}
