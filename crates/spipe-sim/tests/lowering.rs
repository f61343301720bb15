//! Programs of random placements under every system: they are well-formed, run, stay within the
//! footprint, and account for every idle nanosecond.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/chains.rs"]
mod chains;

use chains::{chain_of, frozen_in_front, machine, model, perhaps_clipped, perhaps_tied, workload};
use proptest::prelude::*;
use spipe_base::{ActionKind, Bytes, Collective, LaneRole, LayerRange, Payload, SimTime};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Precision};
use spipe_plan::{
    Context, Dealing, Footprint, Knob, Placement, Stage, StageFootprint, System, Weights, check, footprint_with,
};
use spipe_schedule::{Content, Program, in_flight, lower, order_of};
use spipe_sim::{Iterations, Options, Simulation, is_ok, simulate};

/// The options of every stage.
#[derive(Clone, Copy, Debug)]
struct StageOptions {
    recomputed: usize,
    offload: bool,
    optimizer_on_socket: bool,
}

/// Stages of one layer each, the last one of all remaining layers, on `devices` GPUs as the system
/// assigns them.
fn place(
    hardware: &Hardware,
    layers: usize,
    (system, devices): (System, usize),
    options: StageOptions,
) -> Option<Placement> {
    let gpu = |index: usize| hardware.device(&format!("gpu{index}")).unwrap();
    let socket = hardware.device("cpu0").unwrap();
    let stages = match system.dealing() {
        Dealing::Single => layers,
        Dealing::RoundRobin => layers / devices * devices,
        Dealing::Vee => 2 * devices,
    };
    if stages == 0 || stages > layers || (system.dealing() == Dealing::Single && layers < devices) {
        return None;
    }
    let stage = |index: usize| {
        let last = if index + 1 == stages { layers - 1 } else { index };
        let device = match system.dealing() {
            // The first devices have a layer each; the last one has the others, as separate stages.
            Dealing::Single => index.min(devices - 1),
            Dealing::RoundRobin => index % devices,
            Dealing::Vee => index.min(stages - 1 - index),
        };
        let range = LayerRange::new(index.into(), last.into()).unwrap();
        let mut stage = Stage::new(gpu(device), range).with_recomputed(options.recomputed.min(range.count()));
        if options.offload {
            stage = stage.with_activations_in(hardware.memory("dram0").unwrap());
        }
        if options.optimizer_on_socket {
            stage = stage.with_optimizer_on(socket);
        }
        stage
    };
    let knobs = &[(Knob::HeadStart, u64::from(system == System::Hybrid))];
    Some(Placement::new(system, (0..stages).map(stage)).with_options(knobs))
}

fn pipelines() -> impl Strategy<Value = System> {
    let lowered = |system: &System| system.is_pipeline();
    prop::sample::select(System::ALL.into_iter().filter(lowered).collect::<Vec<_>>())
}

/// One stage per layer, sharded over `devices` GPUs.
fn shard(hardware: &Hardware, layers: usize, (devices, streamed): (usize, bool), options: StageOptions) -> Placement {
    let (gpu, socket) = (hardware.device("gpu0").unwrap(), hardware.device("cpu0").unwrap());
    let stage = |index: usize| {
        let range = LayerRange::new(index.into(), index.into()).unwrap();
        let mut stage = Stage::new(gpu, range).with_recomputed(options.recomputed);
        if options.optimizer_on_socket {
            stage = stage.with_optimizer_on(socket);
        }
        if streamed { stage.with_weights_in(hardware.memory("dram0").unwrap()) } else { stage }
    };
    let system = if streamed { System::ZeroInfinity } else { System::Fsdp };
    Placement::new(system, (0..layers).map(stage)).over_gpus(hardware, Some(devices as u64))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn sharded_placements_run_within_their_footprint(
        layers in prop::collection::vec((1u64..20, 1u64..64, 1u64..256), 1..9),
        devices in 1usize..5,
        options in (0usize..2, any::<bool>(), any::<bool>()),
        (rounds, resident) in (1u64..5, prop::option::of(2u64..6)),
        (train, tied) in any::<(bool, bool)>(),
        frozen in 0usize..6,
    ) {
        let (model, hardware) = (perhaps_tied(&layers, frozen, tied), machine());
        let workload = workload(rounds * devices as u64, if train { Mode::Train } else { Mode::Infer });
        let workload = perhaps_clipped(train && layers[0].0 % 2 == 0, workload);
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let streamed = options.1;
        let options = StageOptions { recomputed: options.0, offload: false, optimizer_on_socket: options.2 };
        let placement = shard(&hardware, layers.len(), (devices, streamed), options);
        let (urgent_steps, synchronous_optimizer) = (layers[0].1 % 2 == 0, layers[0].2 % 2 == 0);
        let knobs = &[
            (Knob::UrgentSteps, Some(u64::from(urgent_steps))),
            (Knob::SynchronousOptimizer, Some(u64::from(synchronous_optimizer))),
            (Knob::Resident, resident),
        ];
        let placement = placement.with_options(knobs);
        prop_assert_eq!(check(&context, &placement), Ok(()));
        let program = lower(&context, &placement).map_err(|faults| TestCaseError::fail(faults.to_string()))?;
        let simulation = simulate(&program, &Options::default());
        prop_assert!(is_ok(&simulation));
        keeps_its_pace(&program, &simulation)?;
        let needs = footprint_with(&context, &placement, &|_| unreachable!("the system does not ask"));
        holds_no_more(&simulation.trace, &hardware, &needs)?;
        if tied {
            return Ok(());
        }
        // Every device receives the shards of the others: (n − 1) / n of the parameters per pass.
        let gathers = |trace: &spipe_trace::Trace| {
            let gathered = |span: &&spipe_trace::Span| span.kind == ActionKind::Collective(Collective::AllGather);
            trace.spans.iter().filter(gathered).filter_map(|span| span.bytes).sum::<Bytes>().get()
        };
        let first = train.then_some(frozen.min(layers.len() - 1));
        let resident = placement.resident_stages();
        let uses = devices as u64 * spipe_plan::gathers(layers.len(), first, (rounds, resident)).into_iter().sum::<u64>();
        prop_assert_eq!(gathers(&simulation.trace), uses * (2_000_000 / devices as u64 * (devices as u64 - 1)));
    }
}

/// A program that does not become steady soon, because devices run ahead or are nearly as slow as
/// the slowest, continues at the reported period.
fn keeps_its_pace(program: &Program, simulation: &Simulation) -> Result<(), TestCaseError> {
    if !simulation.steady {
        let longer = simulate(program, &Options { iterations: Iterations::UntilSteady(4096), ..Options::default() });
        let (reported, settled) = (simulation.trace.iteration.as_ns(), longer.trace.iteration.as_ns());
        prop_assert!(reported.abs_diff(settled) * 50 <= settled, "{reported} ns, then {settled} ns");
    }
    Ok(())
}

/// No memory holds more than the footprint.
fn holds_no_more(trace: &spipe_trace::Trace, hardware: &Hardware, needs: &Footprint) -> Result<(), TestCaseError> {
    for memory in &trace.memories {
        let stages = needs.get(&hardware.memory(&memory.name).unwrap());
        let needed: Bytes = stages.map(|stages| stages.values().map(StageFootprint::total).sum()).unwrap_or_default();
        prop_assert!(memory.peak <= needed, "{} holds {}, counted {}", memory.name, memory.peak, needed);
    }
    Ok(())
}

/// Streamed chunks of one or more layers: forward chunk i on device i mod N. SPipe has other chunks
/// in the backward, each on the opposite device of the ring.
fn stream(hardware: &Hardware, layers: usize, (system, devices): (System, usize), recomputed: bool) -> Placement {
    let dram = hardware.memory("dram0").unwrap();
    let cut = |chunks: usize, device: &dyn Fn(usize) -> usize, recomputed: bool| -> Vec<Stage> {
        let end = |chunk: usize| (chunk + 1) * layers / chunks;
        let chunk = |chunk: usize| {
            let first = if chunk == 0 { 0 } else { end(chunk - 1) };
            let range = LayerRange::new(first.into(), (end(chunk) - 1).into()).unwrap();
            let gpu = hardware.device(&format!("gpu{}", device(chunk))).unwrap();
            let stage = Stage::new(gpu, range).with_weights_in(dram);
            if recomputed { stage.with_everything_recomputed() } else { stage }
        };
        (0..chunks).map(chunk).collect()
    };
    let round = |chunk: usize| chunk % devices;
    match system {
        System::Spipe => Placement::new(system, cut(layers.div_ceil(2), &round, true)).with_backward(cut(
            layers,
            &|chunk| devices - 1 - chunk % devices,
            true,
        )),
        _ => Placement::new(system, cut(layers, &round, recomputed)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn streamed_placements_run_within_their_footprint(
        layers in prop::collection::vec((1u64..20, 1u64..64, 1u64..256), 1..9),
        devices in 1usize..5,
        system in prop::sample::select(vec![
            System::Spipe,
            System::Mobius,
            System::Superpipeline,
            System::NaiveSwap,
        ]),
        (resident, swap) in (1u64..5).prop_flat_map(|resident| (Just(resident), 1..=resident)),
        (recomputed, write_back, half, arithmetic_undo) in any::<(bool, bool, bool, bool)>(),
        more in 0u64..4,
        (train, tied, kept) in any::<(bool, bool, u8)>(),
        frozen in 0usize..6,
        parameters in prop::collection::vec(1u64..200, 9..10),
    ) {
        let unequal = || frozen_in_front(Model::from_toml("chain.toml", &chain_of(&layers, &parameters)).unwrap(), frozen);
        let (model, hardware) = (if tied { perhaps_tied(&layers, frozen, tied) } else { unequal() }, machine());
        let unit = matches!(system, System::Superpipeline | System::NaiveSwap);
        let devices = if system == System::NaiveSwap { 1 } else { devices };
        let mode = if train { Mode::Train } else { Mode::Infer };
        let precision = if half { Precision::Fp16 } else { Precision::Bf16 };
        let clips = train && layers[0].0 % 2 == 0;
        let workload = perhaps_clipped(clips, Workload { precision, ..workload(devices as u64 + more, mode) });
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let mut placement = stream(&hardware, layers.len(), (system, devices), recomputed);
        if unit {
            let swap = Some(swap).filter(|_| system == System::Superpipeline);
            placement = placement.with_options(&[
                (Knob::Resident, Some(resident)),
                (Knob::Swap, swap),
                (Knob::WriteBack, Some(u64::from(write_back))),
            ]);
        }
        if system == System::Spipe {
            placement = placement.with_options(&[(Knob::ArithmeticUndo, u64::from(arithmetic_undo))]);
        }
        if !train && !system.infers() {
            return Ok(());
        }
        let ranges: Vec<LayerRange> = placement.stages.iter().map(|stage| stage.layers).collect();
        for (index, stage) in placement.stages.iter_mut().enumerate().filter(|_| system.may_keep()) {
            // Chunks with tied layers both stay.
            let owner = model.borrows(stage.layers).map(|tie| tie.owner);
            let owner = owner.and_then(|owner| ranges.iter().position(|layers| layers.contains(owner)));
            if kept >> owner.unwrap_or(index) & 1 == 1 {
                stage.weights = Weights::Resident;
            }
        }
        prop_assert_eq!(check(&context, &placement), Ok(()));
        let program = lower(&context, &placement).map_err(|faults| TestCaseError::fail(faults.to_string()))?;
        let simulation = simulate(&program, &Options::default());
        prop_assert!(is_ok(&simulation));
        keeps_its_pace(&program, &simulation)?;
        let needs = footprint_with(&context, &placement, &|_| unreachable!("the system does not ask"));
        holds_no_more(&simulation.trace, &hardware, &needs)?;
        // A check can fail if gradients are scaled or clipped; speculative steps can then be
        // undone.
        let logged = program.buffers().iter().any(|buffer| matches!(buffer.content, Content::UndoLog(_)));
        let undone = program.actions().iter().filter(|action| action.kind == ActionKind::Rollback);
        let speculates = system == System::Spipe && (half || clips) && train;
        prop_assert_eq!(logged, speculates && !arithmetic_undo);
        prop_assert_eq!(undone.count() > 0, speculates);
    }
}

/// A large layer counts once and not once per resident chunk: the footprint is close to the
/// simulated peak.
#[test]
fn streamed_parameters_are_counted_once() {
    let hardware = machine();
    let text = chain_of(&[(10, 1, 1); 8], &[200, 10, 10, 10, 10, 10, 10, 100]);
    let model = Model::from_toml("chain.toml", &text).unwrap();
    let cost = CostTable::new(&model, &hardware, &workload(4, Mode::Train)).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    for (system, resident) in [
        (System::NaiveSwap, Some(4)),
        (System::Superpipeline, Some(2)),
        (System::Superpipeline, Some(4)),
        (System::Mobius, None),
        (System::Spipe, None),
    ] {
        let placement = stream(&hardware, 8, (system, 1), true);
        let swap = Some(1).filter(|_| system == System::Superpipeline);
        let placement = placement.with_options(&[(Knob::Resident, resident), (Knob::Swap, swap)]);
        let simulation = simulate(&lower(&context, &placement).unwrap(), &Options::default());
        let gpu = simulation.trace.memories.iter().find(|track| track.name == "gpu0").unwrap();
        let needs = footprint_with(&context, &placement, &|_| unreachable!("the system does not ask"));
        let need: Bytes = needs[&hardware.memory("gpu0").unwrap()].values().map(StageFootprint::total).sum();
        assert!(gpu.peak <= need && need * 10 <= gpu.peak * 12, "{system} {resident:?}: {} of {need}", gpu.peak);
    }
}

/// Boundaries dominate the memory here. Counted for every stage they would be several times as
/// large.
#[test]
fn boundaries_between_devices_are_not_counted_for_every_stage() {
    let hardware = machine();
    let cases =
        [System::Mobius, System::Superpipeline].into_iter().flat_map(|system| (1..=4).map(move |n| (system, n)));
    for ((system, devices), mode) in cases.flat_map(|case| [(case, Mode::Train), (case, Mode::Infer)]) {
        let model = model(&[(10, 16, 16); 12], 0);
        let cost = CostTable::new(&model, &hardware, &workload(8, mode)).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let placement = stream(&hardware, 12, (system, devices), mode == Mode::Train);
        let simulation = simulate(&lower(&context, &placement).unwrap(), &Options::default());
        let needs = footprint_with(&context, &placement, &|_| unreachable!("the system does not ask"));
        for track in simulation.trace.memories.iter().filter(|track| track.name.starts_with("gpu")) {
            let stages = needs.get(&hardware.memory(&track.name).unwrap()).into_iter().flatten();
            let need: Bytes = stages.map(|(_, stage)| stage.total()).sum();
            // In inference: one boundary of all microbatches in each of three iterations, one in
            // computation, and parameters.
            let most = if mode == Mode::Train { track.peak * 7 } else { Bytes::mib(26 * 16 * 5) };
            assert!(need * 5 <= most, "{system} on {devices}: {} of {need}", track.peak);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_pipeline_runs_within_its_footprint(
        layers in prop::collection::vec((1u64..20, 1u64..64, 1u64..256), 1..9),
        devices in 1usize..5,
        options in (0usize..2, any::<bool>(), any::<bool>()),
        microbatches in 1u64..9,
        (system, slots, urgent) in (pipelines(), 2u64..7, any::<bool>()),
        (train, tied) in any::<(bool, bool)>(),
        frozen in 0usize..6,
    ) {
        let (model, hardware) = (perhaps_tied(&layers, frozen, tied), machine());
        let workload = workload(microbatches, if train { Mode::Train } else { Mode::Infer });
        let workload = perhaps_clipped(train && layers[0].0 % 2 == 0, workload);
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let optimizer_on_socket = options.2 || system.steps_on_host();
        let options = StageOptions { recomputed: options.0, offload: options.1, optimizer_on_socket };
        let placement = place(&hardware, layers.len(), (system, devices), options);
        // Too few layers for the system, or a system that only trains.
        let Some(placement) = placement.filter(|_| train || system.infers()) else { return Ok(()) };
        let urgent_steps = urgent && Knob::UrgentSteps.is_of(system);
        let gradients_leave = urgent && Knob::GradientsLeave.is_of(system);
        let synchronous_optimizer = layers[0].2 % 2 == 0 && Knob::SynchronousOptimizer.is_of(system);
        let knobs = &[
            (Knob::UrgentSteps, u64::from(urgent_steps)),
            (Knob::GradientsLeave, u64::from(gradients_leave)),
            (Knob::SynchronousOptimizer, u64::from(synchronous_optimizer)),
        ];
        let placement = placement.with_options(knobs).with(Knob::OffloadSlots, slots);
        prop_assert_eq!(check(&context, &placement), Ok(()));
        let Ok(order) = order_of(&context, &placement) else {
            // The system needs more microbatches.
            return Ok(());
        };
        if train && frozen.min(layers.len() - 1) == 0 {
            prop_assert_eq!(order.validate(), Ok(()));
        }
        let program = match lower(&context, &placement) {
            Ok(program) => program,
            Err(faults) => return Err(TestCaseError::fail(faults.to_string())),
        };
        let simulation = simulate(&program, &Options::default());
        prop_assert!(is_ok(&simulation));
        keeps_its_pace(&program, &simulation)?;
        let trace = &simulation.trace;
        let held = in_flight(&context, &placement, &order);
        let needs = footprint_with(&context, &placement, &|stage| held[stage]);
        holds_no_more(trace, &hardware, &needs)?;
        for (lane, _) in trace.lanes.iter().enumerate().filter(|(_, lane)| lane.role == LaneRole::Compute) {
            let on = |id: spipe_base::LaneId| id.index() == lane;
            let work: SimTime = trace.spans.iter().filter(|span| on(span.lane)).map(|span| span.duration()).sum();
            let idle: SimTime = trace.idle.iter().filter(|idle| on(idle.lane)).map(|idle| idle.end - idle.start).sum();
            if simulation.steady && work > SimTime::ZERO {
                prop_assert_eq!(work + idle, trace.iteration);
            }
        }
    }
}

/// gpu0 and gpu1 share an uplink that each of them can fill.
#[test]
fn offloads_have_one_lane_per_device_and_take_turns_on_a_switch() {
    let layers = vec![(10, 8, 400); 8];
    let (model, hardware) = (model(&layers, 0), machine());
    let cost = CostTable::new(&model, &hardware, &workload(8, Mode::Train)).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let options = StageOptions { recomputed: 0, offload: true, optimizer_on_socket: false };
    let placement = place(&hardware, layers.len(), (System::PoF, 2), options).unwrap();
    let program = lower(&context, &placement).unwrap();
    let trace = simulate(&program, &Options::default()).trace;
    let copies = |payloads: &[Payload], lanes: &[&str]| {
        let named = |span: &&spipe_trace::Span| lanes.contains(&trace.lanes[span.lane.index()].name.as_str());
        let wanted = |span: &&spipe_trace::Span| payloads.iter().any(|it| span.kind == ActionKind::Copy(*it));
        let mut spans: Vec<_> = trace.spans.iter().filter(wanted).filter(named).collect();
        spans.sort_by_key(|span| span.start);
        assert!(spans.len() >= 32, "{}", spans.len());
        spans.windows(2).all(|pair| pair[0].end <= pair[1].start)
    };
    assert!(copies(&[Payload::Offload], &["gpu0.offload", "gpu1.offload"]));
    assert!(copies(&[Payload::Reload], &["gpu0.offload", "gpu1.offload"]));
    assert!(copies(&[Payload::Offload, Payload::Reload], &["gpu0.offload"]));
}

/// During the optimizer step of the last stage, whose backward ends first, the gradients of all
/// others arrive.
#[test]
fn urgent_steps_run_in_the_order_in_which_the_next_iteration_needs_them() {
    let (model, hardware) = (model(&[(1, 1, 1); 6], 0), machine());
    let cost = CostTable::new(&model, &hardware, &workload(4, Mode::Train)).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let options = StageOptions { recomputed: 0, offload: false, optimizer_on_socket: true };
    for system in [System::OneForwardOneBackward, System::Gpipe, System::ZbH1] {
        let steps = |urgent_steps: bool| {
            let placement = place(&hardware, 6, (system, 2), options).unwrap();
            let program =
                lower(&context, &placement.with_options(&[(Knob::UrgentSteps, u64::from(urgent_steps))])).unwrap();
            let lane = program.lanes().iter().find(|lane| lane.name == "cpu0.optimizer").unwrap();
            let stage = |action: &spipe_base::ActionId| program.actions()[*action].subject.stage.unwrap().index();
            let order: Vec<usize> = lane.queue.iter().map(stage).collect();
            (order, simulate(&program, &Options::default()).trace.iteration)
        };
        let ((as_they_come, slower), (as_needed, faster)) = (steps(false), steps(true));
        assert_eq!(as_they_come, [5, 4, 3, 2, 1, 0], "{system}");
        // The second one is the first of its device. Where weights have their gradients last, all
        // arrive before the first step.
        let others: Vec<usize> = as_needed.iter().copied().filter(|stage| ![1, 5].contains(stage)).collect();
        assert_eq!(others, [0, 2, 3, 4], "{system}: {as_needed:?}");
        assert!(faster < slower, "{system}: {faster} {slower}");
    }
}

/// Each socket runs the optimizer steps of two devices.
#[test]
fn urgent_steps_of_sharded_stages_let_the_next_iteration_begin() {
    let (model, hardware) = (model(&[(1, 1, 1); 6], 0), machine());
    let cost = CostTable::new(&model, &hardware, &workload(4, Mode::Train)).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let options = StageOptions { recomputed: 0, offload: false, optimizer_on_socket: true };
    for streamed in [false, true] {
        let steps = |urgent_steps: bool| {
            let placement = shard(&hardware, 6, (4, streamed), options);
            let knobs = &[(Knob::UrgentSteps, u64::from(urgent_steps))];
            let program = lower(&context, &placement.with_options(knobs)).unwrap();
            let lane = program.lanes().iter().find(|lane| lane.name == "cpu0.optimizer").unwrap();
            let layer =
                |action: &spipe_base::ActionId| program.actions()[*action].subject.layers.unwrap().first().index();
            let order: Vec<usize> = lane.queue.iter().map(layer).collect();
            (order, simulate(&program, &Options::default()).trace.iteration)
        };
        let ((as_they_come, slower), (as_needed, faster)) = (steps(false), steps(true));
        assert_eq!(as_they_come.last(), Some(&0));
        assert!(as_needed.last() >= Some(&4), "{as_needed:?}");
        assert!(faster < slower, "{faster} {slower}");
    }
}

/// Two slow transients: an optimizer lane that is hardly slower than the devices, and two copies on
/// one link that drift from taking turns to sharing it.
#[test]
fn slow_transients_continue_at_the_reported_period() {
    let hardware = machine();
    let cases = [
        (perhaps_tied(&[(1, 1, 1); 4], 0, true), workload(4, Mode::Train), System::ZeroOffloadDelayed),
        (model(&[(9, 39, 1), (2, 56, 1), (1, 1, 1)], 0), workload(1, Mode::Infer), System::Gpipe),
        (model(&[(19, 34, 1), (14, 46, 1), (1, 1, 1)], 0), workload(1, Mode::Infer), System::Gpipe),
    ];
    for (model, workload, system) in cases {
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let options = StageOptions { recomputed: 0, offload: false, optimizer_on_socket: workload.mode == Mode::Train };
        let placement = place(&hardware, model.layers().len(), (system, 3), options).unwrap();
        let program = lower(&context, &placement).unwrap();
        let of =
            |most| simulate(&program, &Options { iterations: Iterations::UntilSteady(most), ..Options::default() });
        assert!(!of(64).steady && of(4096).steady, "{system}");
        keeps_its_pace(&program, &simulate(&program, &Options::default())).unwrap();
    }
}

/// In inference, only the ring synchronises the devices.
#[test]
fn collectives_start_on_all_devices_at_once() {
    let (model, hardware) = (model(&[(8, 1, 1)], 0), machine());
    let cost = CostTable::new(&model, &hardware, &workload(3, Mode::Infer)).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let options = StageOptions { recomputed: 0, offload: false, optimizer_on_socket: false };
    let program = lower(&context, &shard(&hardware, 1, (3, false), options)).unwrap();
    let simulation = simulate(&program, &Options::default());
    let gathers = simulation.trace.spans.iter().filter(|it| it.kind == ActionKind::Collective(Collective::AllGather));
    let starts: Vec<SimTime> = gathers.map(|gather| gather.start).collect();
    assert!(simulation.steady);
    assert_eq!(starts, [SimTime::ZERO; 3]);
}
