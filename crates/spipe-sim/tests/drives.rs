//! Parameters, optimizer state and activations on drives: closed forms of iterations that a drive
//! bounds, and the bytes of random placements.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/chains.rs"]
mod chains;

use chains::{frozen_in_front, machine, model, perhaps_clipped, perhaps_tied, workload};
use proptest::prelude::*;
use spipe_base::{ActionKind, Bytes, LayerRange, MemoryId, Payload, SimTime, TeamId};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Context, Knob, Placement, Stage, System, check, footprint, needed, with_states_on_drives};
use spipe_schedule::lower;
use spipe_sim::{Options, Simulation, is_ok, simulate};
use spipe_trace::Span;

/// Two GPUs, a socket that steps at once, and a drive without latency.
fn with_drive(dram: &str, [read, write]: [&str; 2]) -> Hardware {
    let gpu = |index: u32| {
        format!(
            "[[gpu]]\nname = \"gpu{index}\"\nmemory = \"24 GiB\"\nmemory-bandwidth = \"1 TB/s\"\n\
             peak = {{ bf16 = \"100 TFLOP/s\", f32 = \"50 TFLOP/s\" }}\nsource = \"estimate: a test\"\n\
             [[link]]\nname = \"pcie{index}\"\nbetween = [\"gpu{index}\", \"root0\"]\nbandwidth = \"100 GB/s\"\n"
        )
    };
    let text = format!(
        "format-version = 1\nname = \"with-drive\"\n[[socket]]\nname = \"cpu0\"\ncores = 8\npeak = {{ f32 = \"1 TFLOP/s\" }}\n\
         optimizer-rate = \"1000 Gparam/s\"\nsource = \"estimate: a test\"\n\
         dram = {{ name = \"dram0\", capacity = \"{dram}\", bandwidth = \"10 TB/s\" }}\n{}{}\
         [[link]]\nname = \"root\"\nbetween = [\"root0\", \"dram0\"]\nbandwidth = \"1 TB/s\"\n\
         [[nvme]]\nname = \"nvme0\"\ncapacity = \"1 TB\"\nread = \"{read}\"\nwrite = \"{write}\"\nsource = \"estimate: a test\"\n\
         [[link]]\nname = \"m2\"\nbetween = [\"nvme0\", \"root0\"]\nbandwidth = \"1 TB/s\"\n",
        gpu(0),
        gpu(1)
    );
    Hardware::from_toml("machine.toml", &text).unwrap_or_else(|faults| panic!("{faults}"))
}

const SYSTEMS: [System; 6] = [
    System::ZeroOffload,
    System::OneForwardOneBackward,
    System::ZeroInfinity,
    System::Fsdp,
    System::Superpipeline,
    System::Mobius,
];

/// Systems of which activations or parameters pass through DRAM.
const PASSING: [System; 4] =
    [System::OneForwardOneBackward, System::ZeroOffload, System::Superpipeline, System::Mobius];

/// One stage per layer, stepped on the socket.
fn stages(hardware: &Hardware, layers: usize, system: System) -> Vec<Stage> {
    let (gpu, socket) = (hardware.device("gpu0").unwrap(), hardware.device("cpu0").unwrap());
    let dram = hardware.memory("dram0").unwrap();
    let stage = |index: usize| {
        let stage = Stage::new(gpu, LayerRange::new(index.into(), index.into()).unwrap()).with_optimizer_on(socket);
        match system {
            System::ZeroInfinity | System::Superpipeline | System::Mobius => stage.with_weights_in(dram),
            _ => stage,
        }
    };
    (0..layers).map(stage).collect()
}

/// The same with all state on the drive.
fn place(hardware: &Hardware, layers: usize, system: System, recomputed: bool) -> Placement {
    let drive = hardware.memory("nvme0").unwrap();
    let on_drive =
        |stage: Stage| if recomputed { stage.with_everything_recomputed() } else { stage }.with_state_on(drive);
    Placement::new(system, stages(hardware, layers, system).into_iter().map(on_drive))
}

/// The simulation of a placement that the checker accepts.
fn run((model, hardware, workload): (&Model, &Hardware, &Workload), placement: &Placement) -> (Simulation, [Bytes; 2]) {
    let cost = CostTable::new(model, hardware, workload).unwrap();
    let context = Context { model, hardware, cost: &cost };
    check(&context, placement).unwrap_or_else(|faults| panic!("{faults}"));
    let needs = footprint(&context, placement);
    let memory = |name: &str| -> MemoryId { hardware.memory(name).unwrap() };
    let counted = ["dram0", "nvme0"].map(|name| needed(&needs, memory(name)));
    (simulate(&lower(&context, placement).unwrap(), &Options::default()), counted)
}

fn peak(simulation: &Simulation, name: &str) -> Bytes {
    simulation.trace.memories.iter().find(|memory| memory.name == name).map_or(Bytes::ZERO, |memory| memory.peak)
}

/// A state of 12 bytes per parameter. The slower direction of the drive never rests: 8 × 12 MB at
/// 1 GB/s. Steps begin with three states in DRAM, so that the other direction is hidden.
#[test]
fn a_drive_bounds_the_iteration_by_its_slower_direction() {
    for system in [System::ZeroOffload, System::ZeroInfinity] {
        for rates in [["2 GB/s", "1 GB/s"], ["1 GB/s", "2 GB/s"]] {
            let (hardware, model) = (with_drive("64 GiB", rates), model(&[(1, 1, 1); 8], 0));
            let placement = place(&hardware, 8, system, false);
            let placement =
                if placement.shards_parameters() { placement.over_gpus(&hardware, Some(1)) } else { placement };
            let (simulation, counted) = run((&model, &hardware, &workload(2, Mode::Train)), &placement);
            assert!(is_ok(&simulation) && simulation.steady, "{system}");
            let (iteration, least) = (simulation.trace.iteration, SimTime::ms(96));
            let near = least <= iteration && iteration <= least + SimTime::ns(100_000);
            assert!(near, "{system} {rates:?}: {iteration}");
            assert_eq!(counted[1], Bytes::new(8 * 12_000_000));
            let lanes: Vec<&str> = simulation.trace.lanes.iter().map(|lane| lane.name.as_str()).collect();
            assert!(lanes.contains(&"nvme0.read") && lanes.contains(&"nvme0.write"), "{lanes:?}");
            let read = simulation.trace.spans.iter().filter(|span| span.kind == ActionKind::Copy(Payload::StateIn));
            assert!(read.count() >= 8);
        }
    }
}

/// Eight layers of 2 MB of parameters, of which the GPU has two, and a state of 12 MB. Parameters are
/// read for the forward, for the backward but for the last two layers, and for the step. Less than 60 ms
/// of computation and latency aside, an iteration takes no longer than reads and writes one after the
/// other, and no less than either.
#[test]
fn parameters_from_a_drive_bound_the_iteration() {
    let (hardware, model) = (with_drive("64 GiB", ["100 MB/s", "200 MB/s"]), model(&[(1, 1, 1); 8], 0));
    let drive = hardware.memory("nvme0").unwrap();
    for (state, read, written) in [(false, 8 + 6 + 8, 8), (true, 8 + 6 + 8 + 6 * 8, 8 + 6 * 8)] {
        let stage = |stage: Stage| if state { stage.with_state_on(drive) } else { stage }.with_weights_in(drive);
        let stages = stages(&hardware, 8, System::Superpipeline).into_iter().map(stage);
        let (simulation, counted) =
            run((&model, &hardware, &workload(2, Mode::Train)), &Placement::new(System::Superpipeline, stages));
        assert!(is_ok(&simulation) && simulation.steady);
        let least = SimTime::ms(20 * read).max(SimTime::ms(10 * written));
        let (iteration, most) = (simulation.trace.iteration, SimTime::ms(20 * read + 10 * written + 60));
        assert!(least <= iteration && iteration <= most, "{least} {iteration} {most}");
        assert_eq!(counted[1], Bytes::new(8 * if state { 14_000_000 } else { 2_000_000 }));
        let on = |lane: &str| simulation.trace.lanes.iter().any(|known| known.name == lane);
        assert!(on("nvme0.read") && on("nvme0.write"));
    }
}

/// The same of ZeRO-Infinity on one GPU and on two, which read half of each layer each.
#[test]
fn shards_of_parameters_from_a_drive_bound_the_iteration() {
    let (hardware, model) = (with_drive("64 GiB", ["100 MB/s", "200 MB/s"]), model(&[(1, 1, 1); 8], 0));
    let drive = hardware.memory("nvme0").unwrap();
    for (state, read, written) in [(false, 8 + 6 + 8, 8), (true, 8 + 6 + 8 + 6 * 8, 8 + 6 * 8)] {
        for shards in [1, 2] {
            let stage = |stage: Stage| if state { stage.with_state_on(drive) } else { stage }.with_weights_in(drive);
            let stages = stages(&hardware, 8, System::ZeroInfinity).into_iter().map(stage);
            let placement = Placement::new(System::ZeroInfinity, stages).over_gpus(&hardware, Some(shards));
            let (simulation, counted) = run((&model, &hardware, &workload(shards, Mode::Train)), &placement);
            assert!(is_ok(&simulation) && simulation.steady);
            let least = SimTime::ms(20 * read).max(SimTime::ms(10 * written));
            let (iteration, most) = (simulation.trace.iteration, SimTime::ms(20 * read + 10 * written + 60));
            assert!(least <= iteration && iteration <= most, "{shards}: {least} {iteration} {most}");
            assert_eq!(counted[1], Bytes::new(8 * if state { 14_000_000 } else { 2_000_000 }));
            let reads = |span: &&Span| span.kind == ActionKind::Copy(Payload::WeightsIn) && on_drive(&simulation, span);
            let reads = simulation.trace.spans.iter().filter(reads).count();
            assert!(reads >= 22 * shards as usize, "{reads}");
        }
    }
}

fn on_drive(simulation: &Simulation, span: &Span) -> bool {
    simulation.trace.lanes[span.lane.index()].name.starts_with("nvme0.")
}

/// The checker refuses parameters on a drive where a system does not read them from there.
#[test]
fn parameters_on_a_drive_that_does_not_suit_are_refused() {
    let (model, workload) = (model(&[(1, 1, 1); 4], 0), workload(2, Mode::Train));
    let hardware = with_drive("64 GiB", ["2 GB/s", "1 GB/s"]);
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let drive = hardware.memory("nvme0").unwrap();
    for system in [System::OneForwardOneBackward, System::Fsdp] {
        let stages = stages(&hardware, 4, system).into_iter().map(|stage| stage.with_weights_in(drive));
        let over = hardware.device("gpu0").filter(|_| system == System::Fsdp);
        let said = check(&context, &Placement::new(system, stages).over(over)).unwrap_err().to_string();
        let wanted = format!("streams its parameters from `nvme0`, but system `{system}` does not stream from drives");
        assert!(said.contains(&wanted), "{said}");
    }
}

/// A drive that is fast enough costs nothing.
#[test]
fn a_fast_drive_is_hidden() {
    let (hardware, model) = (with_drive("64 GiB", ["900 GB/s"; 2]), model(&[(50, 1, 1); 6], 0));
    let on_drive = place(&hardware, 6, System::ZeroOffload, false);
    let in_dram = Placement::new(on_drive.system, stages(&hardware, 6, on_drive.system));
    let time = |placement| run((&model, &hardware, &workload(2, Mode::Train)), placement).0.trace.iteration.to_ms();
    assert!(time(&on_drive) <= 1.01 * time(&in_dram));
}

/// Layers of 1,000,000 parameters hold 4 MB of parameters and gradients, and 12 MB of state, in DRAM.
/// The last stages give up theirs first, and as few as possible.
#[test]
fn drives_take_what_dram_does_not_hold() {
    let model = model(&[(1, 1, 1); 8], 0);
    let on_drives = |dram: &str, on: bool| {
        let hardware = with_drive(dram, ["2 GB/s", "1 GB/s"]);
        let workload = workload(2, Mode::Train);
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let plain = Placement::new(System::Superpipeline, stages(&hardware, 8, System::Superpipeline));
        let on = on.then(|| hardware.memory("nvme0").unwrap());
        let moved = with_states_on_drives(&context, &plain, on)?;
        check(&context, &moved).unwrap_or_else(|faults| panic!("{faults}"));
        Some(moved.stages.iter().map(|stage| u8::from(stage.state.is_some())).collect::<Vec<_>>())
    };
    assert_eq!(on_drives("128 MB", false), Some(vec![0; 8]));
    assert_eq!(on_drives("128 MB", true), Some(vec![1; 8]));
    // 8 × 4 + 4 × 12 and three slots of 12 are 116 MB.
    assert_eq!(on_drives("117 MB", false), Some(vec![0, 0, 0, 0, 1, 1, 1, 1]));
    assert_eq!(on_drives("67 MB", false), None);
}

#[test]
fn a_machine_without_drives_has_no_place_for_states() {
    let (hardware, model, workload) = (machine(), model(&[(1, 1, 1); 4], 0), workload(2, Mode::Train));
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let stages = stages(&hardware, 4, System::ZeroOffload);
    let mut plain = Placement::new(System::ZeroOffload, stages);
    assert_eq!(with_states_on_drives(&context, &plain, None), Some(plain.clone()));
    let dram = hardware.memory("dram0").unwrap();
    assert_eq!(with_states_on_drives(&context, &plain, Some(dram)), None);
    plain.stages[1.into()].state = Some(dram);
    let faults = check(&context, &plain).unwrap_err().to_string();
    assert!(faults.contains("stage `s1` keeps its optimizer state on `dram0`, which is no drive"), "{faults}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The same of activations of two GPUs, and of streamed parameters.
    #[test]
    fn drives_hold_activations_and_parameters(
        layers in prop::collection::vec((1u64..20, 1u64..64, 1u64..256), 2..9),
        (system, slots, rounds) in (0..PASSING.len(), 2u64..5, 1u64..7),
        (state, sequential, tied) in any::<(bool, bool, bool)>(),
        (resident, swap) in (2u64..5, 1u64..4),
        (recomputed, pair, speed) in (0usize..4, any::<bool>(), 0..2usize),
    ) {
        let system = PASSING[system];
        let hardware = with_drive("256 GiB", [["7 GB/s", "5 GB/s"], ["40 MB/s", "90 MB/s"]][speed]);
        let model = perhaps_tied(&layers, 0, tied);
        let streamed = matches!(system, System::Superpipeline | System::Mobius);
        let knobs = &[
            (Knob::OffloadSlots, (!streamed).then_some(slots)),
            (Knob::Resident, (system == System::Superpipeline).then_some(resident)),
            (Knob::Swap, (system == System::Superpipeline).then_some(swap.min(resident))),
            (Knob::Sequential, Some(u64::from(sequential && system == System::Superpipeline))),
        ];
        let count = model.layers().len();
        let drive = hardware.memory("nvme0").unwrap();
        let devices = ["gpu0", "gpu1"].map(|name| hardware.device(name).unwrap());
        let mut stages = stages(&hardware, count, if streamed { system } else { System::ZeroOffload });
        for (index, stage) in stages.iter_mut().enumerate() {
            stage.team = TeamId::led_by(devices[usize::from(pair && 2 * index >= count)]);
            stage.state = state.then_some(drive);
            stage.recomputed = usize::from(index < recomputed);
            *stage = if streamed { stage.with_weights_in(drive) } else { stage.with_activations_in(drive) };
        }
        let workload = workload(1 + rounds, Mode::Train);
        let placement = Placement::new(system, stages).with_options(knobs);
        let (simulation, [dram, there]) = run((&model, &hardware, &workload), &placement);
        prop_assert!(is_ok(&simulation));
        let peaks = ["dram0", "nvme0"].map(|name| peak(&simulation, name));
        prop_assert!(peaks[0] <= dram && peaks[1] <= there, "{:?} {} {}", peaks, dram, there);
        prop_assert!(!streamed || peaks[1] == there, "{:?} {}", peaks, there);
    }

    /// The same of shards of parameters of one GPU or two, which may be on the drive or in DRAM; GPUs hold
    /// no more than the plan counts.
    #[test]
    fn drives_hold_shards_of_parameters(
        layers in prop::collection::vec((1u64..20, 1u64..64, 1u64..256), 1..9),
        (shards, resident, rounds) in (1u64..3, 2u64..5, 1u64..4),
        (state, tied, clips) in any::<(bool, bool, bool)>(),
        (urgent, synchronous, some) in any::<(bool, bool, bool)>(),
        (recomputed, frozen, speed) in (0usize..4, 0usize..4, 0..2usize),
    ) {
        let hardware = with_drive("256 GiB", [["7 GB/s", "5 GB/s"], ["40 MB/s", "90 MB/s"]][speed]);
        let model = frozen_in_front(perhaps_tied(&layers, frozen, tied), 0);
        let drive = hardware.memory("nvme0").unwrap();
        let mut stages = stages(&hardware, model.layers().len(), System::ZeroInfinity);
        for (index, stage) in stages.iter_mut().enumerate() {
            stage.state = state.then_some(drive);
            stage.recomputed = usize::from(index < recomputed);
            *stage = if some && index % 3 == 1 { *stage } else { stage.with_weights_in(drive) };
        }
        let workload = perhaps_clipped(clips, workload(rounds * shards, Mode::Train));
        let knobs = &[
            (Knob::Resident, resident),
            (Knob::UrgentSteps, u64::from(urgent)),
            (Knob::SynchronousOptimizer, u64::from(synchronous)),
        ];
        let placement = Placement::new(System::ZeroInfinity, stages).with_options(knobs).over_gpus(&hardware, Some(shards));
        let (simulation, [dram, there]) = run((&model, &hardware, &workload), &placement);
        prop_assert!(is_ok(&simulation));
        prop_assert_eq!(peak(&simulation, "nvme0"), there);
        prop_assert!(peak(&simulation, "dram0") <= dram, "{} {}", peak(&simulation, "dram0"), dram);
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let needs = footprint(&Context { model: &model, hardware: &hardware, cost: &cost }, &placement);
        for gpu in ["gpu0", "gpu1"] {
            let counted = needed(&needs, hardware.memory(gpu).unwrap());
            prop_assert!(peak(&simulation, gpu) <= counted, "{} {} {}", gpu, peak(&simulation, gpu), counted);
        }
    }

    /// The drive holds what the plan counts, to the byte; DRAM no more than that.
    #[test]
    fn drives_hold_what_plans_count(
        layers in prop::collection::vec((1u64..20, 1u64..64, 1u64..256), 1..9),
        (system, shards) in (0..SYSTEMS.len(), 1u64..3),
        (recomputed, clips, tied) in any::<(bool, bool, bool)>(),
        (frozen, rounds) in (0usize..4, 1u64..4),
        (urgent, synchronous) in any::<(bool, bool)>(),
        speed in 0..2usize,
    ) {
        let system = SYSTEMS[system];
        let hardware = with_drive("256 GiB", [["7 GB/s", "5 GB/s"], ["40 MB/s", "90 MB/s"]][speed]);
        let model = frozen_in_front(perhaps_tied(&layers, frozen, tied), 0);
        let sharded = matches!(system, System::ZeroInfinity | System::Fsdp);
        let workload = perhaps_clipped(clips, workload(rounds * shards, Mode::Train));
        let of_pipelines = !matches!(system, System::Superpipeline | System::Mobius);
        let knobs = &[
            (Knob::UrgentSteps, Some(u64::from(urgent && of_pipelines))),
            (Knob::SynchronousOptimizer, Some(u64::from(synchronous && (sharded || system == System::ZeroOffload)))),
        ];
        let placement = place(&hardware, model.layers().len(), system, recomputed).with_options(knobs);
        let placement = if sharded { placement.over_gpus(&hardware, Some(shards)) } else { placement };
        let (simulation, [dram, drive]) = run((&model, &hardware, &workload), &placement);
        prop_assert!(is_ok(&simulation));
        prop_assert_eq!(peak(&simulation, "nvme0"), drive);
        prop_assert!(peak(&simulation, "dram0") <= dram, "{} {}", peak(&simulation, "dram0"), dram);
    }
}
