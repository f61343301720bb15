//! From a model and a machine to a simulated iteration: the invariants between the crates.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use spipe_base::{Bytes, DataType, LaneRole, LayerId, LayerRange, Seconds, SimTime, Text};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::{Hardware, LayerTimeFile};
use spipe_model::{Model, Precision};
use spipe_plan::{Context, Knob, Placement, Plan, Stage, StageFootprint, System, check, footprint};
use spipe_schedule::{lower, order_of};
use spipe_sim::{Options, simulate};
use spipe_tests::{simulated, with_problem};
use std::fmt::Write;

fn workload(microbatches: u64, mode: Mode) -> Workload {
    Workload { mode, seq_len: 1024, microbatch: 1, microbatches, precision: Precision::Bf16, ..Workload::PLAIN }
}

/// A chain of layers with invented times: forward in tenths of a millisecond on a GPU (a CPU takes
/// ten times as long), boundary in MiB, saved activations in MiB.
fn model(layers: &[(u64, u64, u64)]) -> Model {
    let mut text =
        "format-version = 1\nkind = \"profiled\"\nname = \"chain\"\nmicrobatch = 1\nseq-len = 1024\n".to_owned();
    for (index, (time, boundary, saved)) in layers.iter().enumerate() {
        let saved = saved.max(boundary);
        let cell = |scale: u64| {
            let ms = |tenths: u64| format!("\"{} ms\"", (tenths * scale) as f64 / 10.0);
            let (once, half) = (ms(*time), ms(time.div_ceil(2)));
            format!("{{ forward = {once}, backward-input = {once}, backward-weight = {half} }}")
        };
        let _ = write!(
            text,
            "[[layer]]\nname = \"layer{index}\"\nparameters = 1000000\nboundary-activation = \"{boundary} MiB\"\n\
             saved-activation = \"{saved} MiB\"\ntime = {{ gpu = {}, cpu = {} }}\n",
            cell(1),
            cell(10)
        );
    }
    Model::from_toml("chain.toml", &text).unwrap()
}

fn shipped(list: &[(&str, &'static str)], name: &str) -> &'static str {
    list.iter().find(|(shipped, _)| *shipped == name).unwrap().1
}

fn machine(name: &str) -> Hardware {
    Hardware::from_toml(name, shipped(spipe_hardware::shipped(), name)).unwrap()
}

/// The devices of the random placements, in this order: two GPUs around a socket.
const DEVICES: [&str; 3] = ["gpu0", "cpu0", "gpu1"];

fn place(hardware: &Hardware, layers: usize, cuts: &[usize], recomputed: &[usize], system: System) -> Placement {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| 1 + cut % layers.max(2).saturating_sub(1)).collect();
    ends.retain(|end| *end < layers);
    ends.sort_unstable();
    ends.dedup();
    ends.truncate(DEVICES.len() - 1);
    ends.push(layers);
    let mut first = 0;
    let stages = ends.iter().enumerate().map(|(index, end)| {
        let range = LayerRange::new(first.into(), (end - 1).into()).unwrap();
        first = *end;
        let device = hardware.device(DEVICES[index]).unwrap();
        Stage::new(device, range).with_recomputed(recomputed[index] % (range.count() + 1))
    });
    let head_start = if system == System::Hybrid { 1 } else { 0 };
    Placement::new(system, stages).with_options(&[(Knob::HeadStart, head_start)])
}

fn system() -> impl Strategy<Value = System> {
    prop::sample::select(spipe_planner::SYSTEMS.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// For any placement the program is well-formed, it runs, it never holds more than the footprint
    /// says, its idle time adds up, and its iteration is at least the work of its busiest lane.
    #[test]
    fn a_placement_that_fits_runs_within_its_footprint(
        layers in prop::collection::vec((1u64..20, 1u64..64, 1u64..256), 1..7),
        cuts in prop::collection::vec(0usize..6, 0..3),
        recomputed in prop::collection::vec(0usize..4, 3),
        microbatches in 1u64..9,
        system in system(),
        train in any::<bool>(),
    ) {
        let (model, hardware) = (model(&layers), machine("rtx3090-x4-two-sockets"));
        let workload = workload(microbatches, if train { Mode::Train } else { Mode::Infer });
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let placement = place(&hardware, layers.len(), &cuts, &recomputed, system);
        prop_assert_eq!(check(&context, &placement), Ok(()));
        let program = match lower(&context, &placement) {
            Ok(program) => program,
            Err(faults) => return Err(TestCaseError::fail(faults.to_string())),
        };
        let simulation = simulate(&program, &Options::default());
        prop_assert!(spipe_sim::is_ok(&simulation));
        // In inference a fast stage may take many iterations to run into the one it feeds.
        prop_assert!(simulation.steady || !train);
        let trace = &simulation.trace;
        let needs = footprint(&context, &placement);
        for memory in &trace.memories {
            let stages = &needs[&hardware.memory(&memory.name).unwrap()];
            let needed: Bytes = stages.values().map(StageFootprint::total).sum();
            prop_assert!(memory.peak <= needed, "{} holds {}, counted {}", memory.name, memory.peak, needed);
        }
        for (lane, _) in trace.lanes.iter().enumerate().filter(|(_, lane)| lane.role == LaneRole::Compute) {
            let on = |id: spipe_base::LaneId| id.index() == lane;
            let work: SimTime = trace.spans.iter().filter(|span| on(span.lane)).map(|span| span.duration()).sum();
            let idle: SimTime = trace.idle.iter().filter(|idle| on(idle.lane)).map(|idle| idle.end - idle.start).sum();
            if simulation.steady && work > SimTime::ZERO {
                prop_assert_eq!(work + idle, trace.iteration);
            }
        }
        // In inference there are forwards alone.
        if train {
            prop_assert_eq!(order_of(&context, &placement).unwrap().validate(), Ok(()));
        }
        let again = simulate(&lower(&context, &placement).unwrap(), &Options::default());
        prop_assert_eq!(spipe_trace::to_json(trace), spipe_trace::to_json(&again.trace));
    }

    /// A plan file that is read again has the same content.
    #[test]
    fn plans_round_trip(
        layers in prop::collection::vec((1u64..20, 1u64..64, 1u64..256), 1..7),
        cuts in prop::collection::vec(0usize..6, 0..3),
        recomputed in prop::collection::vec(0usize..4, 3),
        system in system(),
    ) {
        let (model, hardware) = (model(&layers), machine("rtx3090-x4-two-sockets"));
        let placement = place(&hardware, layers.len(), &cuts, &recomputed, system);
        let plan = Plan::new(model, hardware, workload(4, Mode::Train), placement).unwrap();
        let again = Plan::from_json("plan.json", &plan.to_json()).unwrap();
        prop_assert_eq!(again.placement(), plan.placement());
        prop_assert_eq!(again.to_json(), plan.to_json());
    }
}

#[test]
fn a_dram_and_its_pageable_view_are_one_memory() {
    let (model, hardware) = (model(&[(1, 1, 1024), (1, 1, 1088)]), machine("one-gpu"));
    let workload = workload(64, Mode::Train);
    let cost = CostTable::new(&model, &hardware, &workload).unwrap();
    let context = Context { model: &model, hardware: &hardware, cost: &cost };
    let memory = |name: &str| hardware.memories().enumerate().find(|(_, memory)| memory.name == name).unwrap().0;
    let gpu = hardware.devices().enumerate().find(|(_, device)| device.is_gpu()).unwrap().0;
    let stage = |layer: usize, home: Option<&str>| {
        let stage = Stage::new(gpu, LayerRange::new(layer.into(), layer.into()).unwrap());
        home.map_or(stage.with_everything_recomputed(), |home| stage.with_activations_in(memory(home)))
    };
    let fits = |homes: [Option<&str>; 2]| {
        let stages = homes.into_iter().enumerate().map(|(layer, home)| stage(layer, home));
        check(&context, &Placement::new(System::Gpipe, stages))
    };
    // 64 GiB and 68 GiB of 128 GiB.
    for home in ["dram0", "dram0-pageable"] {
        assert_eq!([fits([Some(home), None]), fits([None, Some(home)])], [Ok(()), Ok(())]);
        for other in ["dram0", "dram0-pageable"] {
            let refused = fits([Some(home), Some(other)]).unwrap_err().to_string();
            assert!(refused.contains("on `dram0`, which has 128.0 GiB"), "{refused}");
        }
    }
}

/// A measured backward takes more in two parts, and only there: one microbatch through two GPUs, whose passes wait for
/// each other.
#[test]
fn backwards_in_two_parts_take_what_was_measured_for_them() {
    let (model, plain) =
        (Model::from_toml("gpt2", shipped(spipe_model::shipped(), "gpt2")).unwrap(), machine("rtx3090-x4-two-sockets"));
    let workload = workload(1, Mode::Train);
    let block = model.layers()[1.into()].signature(workload.batch());
    let iteration = |system: System, split: Option<f64>| {
        let mut file = plain.file().clone();
        for gpu in &mut file.gpu {
            gpu.layer_time = vec![LayerTimeFile {
                layer: block.clone(),
                data_type: DataType::Bf16,
                forward: Text(Seconds::ms(1.0)),
                backward_input: Text(Seconds::ms(1.0)),
                backward_weight: Text(Seconds::ms(1.0)),
                replay: None,
                split: split.map(|ms| Text(Seconds::ms(ms))),
            }];
        }
        let hardware = Hardware::from_file("measured", file).unwrap();
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let gpus = hardware.gpus();
        let stages = gpus.take(2).zip([(0, 6), (7, 13)]);
        let stages = stages.map(|(gpu, (first, last))| {
            Stage::new(gpu, LayerRange::new(LayerId::new(first), LayerId::new(last)).unwrap())
        });
        simulated(&context, &Placement::new(system, stages)).unwrap().to_seconds().to_ms()
    };
    for (system, blocks) in [(System::OneForwardOneBackward, 0.0), (System::ZbH1, 6.0)] {
        let [without, with] = [None, Some(2.0)].map(|split| iteration(system, split));
        // The second parts of both stages run at the same time, the last one's later by what the first needs for its own.
        assert!((with - without - 2.0 * blocks).abs() < 0.01, "{system}: {without} and {with} ms");
    }
}

/// Shipped models on machines that can hold them are planned, lowered and simulated. The simulated
/// time is at least the bound.
#[test]
fn shipped_models_on_shipped_machines() {
    let mut ran = 0;
    for (model_name, machine_name) in [
        ("gpt2", "rtx4090-pcie4-128gb"),
        ("gpt2-xl", "rtx3090-pcie3"),
        ("llama2-7b", "rtx4090-pcie4-256gb"),
        ("llama2-7b", "a100-80g-x8-nvlink"),
        ("llama3-8b", "rtx3090-x4-two-sockets"),
        ("vit-bigG", "quadro-rtx8000"),
    ] {
        let model = Model::from_toml(model_name, shipped(spipe_model::shipped(), model_name)).unwrap();
        let hardware = machine(machine_name);
        let workload = Workload { seq_len: model.seq_len(), ..workload(8, Mode::Train) };
        let cost = CostTable::new(&model, &hardware, &workload).unwrap();
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        let (systems, options) = (&spipe_planner::SYSTEMS, spipe_planner::Options::default());
        for planner in ["dp", "greedy"] {
            let solution = with_problem(context, systems, options.clone(), |problem| {
                spipe_planner::planner(planner).unwrap().plan(problem)
            });
            let solution =
                solution.unwrap_or_else(|error| panic!("{planner}: {model_name} on {machine_name}: {error}"));
            assert_eq!(check(&context, &solution.placement), Ok(()));
            assert_eq!(simulated(&context, &solution.placement), Some(solution.simulated));
            assert!(solution.bound <= solution.simulated, "{planner}: {model_name} on {machine_name}");
            ran += 1;
        }
    }
    assert_eq!(ran, 12);
}
