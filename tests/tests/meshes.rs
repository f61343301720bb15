//! Meshes: one replica stands for all, and the closed form of tensor and data parallelism.

#[path = "meshes/divided.rs"]
mod divided;
#[path = "meshes/groups.rs"]
mod groups;
#[path = "meshes/streamed.rs"]
mod streamed;

use spipe_base::{ActionKind, Collective, DeviceId, LaneId, LayerRange, SimTime};
use spipe_cost::{Mode, Parallelism, Workload};
use spipe_hardware::{Hardware, NetworkFile, Runtime};
use spipe_model::{Model, Precision, Recompute};
use spipe_plan::{Mesh, Placement, Plan, Sharding, Stage, System, Team, footprint};
use spipe_schedule::{Program, lower, lower_all_replicas};
use spipe_search::{Degrees, Setting, Spelling};
use spipe_sim::{Options, iteration_time, simulate};
use spipe_trace::Trace;
use std::sync::Arc;

fn shipped<T>(all: &[(&str, &'static str)], name: &str, read: impl Fn(&str, &str) -> T) -> T {
    let (_, text) = all.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name} is not shipped"));
    read(name, text)
}

fn model(name: &str) -> Arc<Model> {
    Arc::new(shipped(spipe_model::shipped(), name, |name, text| Model::from_toml(name, text).expect("it is shipped")))
}

fn machine(name: &str) -> Arc<Hardware> {
    Arc::new(shipped(spipe_hardware::shipped(), name, |name, text| {
        Hardware::from_toml(name, text).expect("it is shipped")
    }))
}

fn workload(microbatches: u64) -> Workload {
    Workload {
        mode: Mode::Train,
        seq_len: 1024,
        microbatch: 1,
        microbatches,
        precision: Precision::Bf16,
        ..Workload::PLAIN
    }
}

/// Teams of consecutive GPUs: those of a stage follow each other.
fn mesh([tensor, pipeline, data]: [usize; 3], sharding: Sharding) -> Mesh {
    let team = |at: usize| -> Team { (at * tensor..(at + 1) * tensor).map(DeviceId::from).collect() };
    let replica = |replica: usize| (0..pipeline).map(|stage| team(stage * data + replica)).collect();
    Mesh { replicas: (0..data).map(replica).collect(), sharding, ..Mesh::default() }
}

/// Stages of about as many layers on the leads of a mesh, `chunks` on each.
fn spread(system: System, layers: usize, (mesh, chunks): (&Mesh, usize)) -> Placement {
    let leads: Vec<DeviceId> = mesh.leads().collect();
    let stages = leads.len() * chunks;
    let edge = |at: usize| at * layers / stages;
    let range = |at: usize| LayerRange::new(edge(at).into(), (edge(at + 1) - 1).into()).expect("a stage has layers");
    let placed = (0..stages).map(|at| Stage::new(leads[at % leads.len()], range(at)));
    Placement { mesh: mesh.clone(), ..Placement::new(system, placed) }
}

fn both(setting: &Setting, placement: &Placement) -> [Program; 2] {
    spipe_plan::check(&setting.context(), placement).expect("it is a plan");
    [lower, lower_all_replicas].map(|lower| lower(&setting.context(), placement).expect("it has a program"))
}

/// The bytes that collectives of some kinds bring to a device.
fn collected(program: &Program, device: usize, is: impl Fn(Collective) -> bool) -> u64 {
    let here = |lane: LaneId| program.lanes()[lane].device == DeviceId::from(device);
    let wanted = |kind| matches!(kind, ActionKind::Collective(collective) if is(collective));
    let actions = program.actions().iter().filter(|action| here(action.lane) && wanted(action.kind));
    actions.flat_map(|action| program.flows(action)).map(|flow| flow.bytes.get()).sum()
}

/// A replica that stands for all takes the time of all of them, on disjoint routes and on shared ones.
#[test]
fn one_replica_takes_the_time_of_all() {
    let [small, large] = ["gpt2-xl", "llama2-7b"].map(model);
    let gpus = [
        ("a100-80g-x8-nvlink", [1, 2, 4]),
        ("a100-80g-x8-nvlink", [2, 2, 2]),
        ("a100-80g-x8-nvlink", [1, 1, 8]),
        ("v100-32g-x8", [1, 2, 4]),
        ("v100-32g-x4-nvlink", [1, 2, 2]),
        ("rtx3090-x4-two-sockets", [1, 2, 2]),
    ];
    for (name, degrees) in gpus {
        for (system, chunks) in [(System::OneForwardOneBackward, 1), (System::Interleaved, 2), (System::ZbH1, 1)] {
            for sharding in [Sharding::None, Sharding::Optimizer] {
                let (mesh, hardware) = (mesh(degrees, sharding), machine(name));
                let model = if degrees[0] > 1 { &large } else { &small };
                let setting = Setting::on(model, &hardware, &workload(8 * degrees[2] as u64), &mesh).unwrap();
                let placement = spread(system, model.layers().len(), (&mesh, chunks));
                let [one, all] = both(&setting, &placement);
                let lanes =
                    |program: &Program| program.lanes().iter().filter(|lane| lane.name.ends_with("compute")).count();
                assert_eq!([lanes(&one), lanes(&all)], [degrees[1], degrees[1] * degrees[2]]);
                let [short, long] = [one, all].map(|program| iteration_time(&program).unwrap());
                let error = (short.to_ms() - long.to_ms()).abs() / long.to_ms();
                assert!(error < 1e-5, "{name} {degrees:?} {system} {sharding:?}: {short} and {long}");
            }
        }
    }
}

/// One device of a sharded system that stands for many takes the time of all of them: with shards on devices, with shards
/// and steps on hosts, within a computer and over several, whose network cards all carry a part.
#[test]
fn one_device_takes_the_time_of_all_that_shard() {
    let model = model("gpt2-xl");
    // Where hops differ, as over PCIe, the slowest stands for all of them, as long as the others last.
    let machines = [("a100-80g-x8-nvlink", 3, 0.0), ("h100-80g-x8-nvlink", 4, 0.0), ("rtx3090-x4-two-sockets", 6, 0.2)];
    for (name, nodes, unlike) in machines {
        let network = NetworkFile::parse("4x200Gb").unwrap();
        let hardware = Arc::new(machine(name).on_nodes(nodes, Some(network)).unwrap());
        let gpus = hardware.gpus().count();
        let setting = Setting::new(&model, &hardware, &workload(3 * gpus as u64)).unwrap();
        let (context, lead) = (setting.context(), hardware.device("gpu0").unwrap());
        let home = context.hardware.host_memory(lead).unwrap();
        for system in [System::Fsdp, System::ZeroInfinity] {
            let stage = |layer: usize| {
                let stage = Stage::new(lead, LayerRange::new(layer.into(), layer.into()).expect("a layer"));
                let socket = hardware.memories()[home].device.filter(|_| system == System::ZeroInfinity);
                socket.map_or(stage, |socket| stage.with_weights_in(home).with_optimizer_on(socket))
            };
            let placement = Placement::new(system, (0..model.layers().len()).map(stage));
            let [one, all] = both(&setting, &placement.over_gpus(&hardware, None));
            let [few, many] = [&one, &all].map(|program| program.actions().len());
            assert!(many > gpus * few / 2, "{few} actions stand for {many}");
            let held = |program: &Program| {
                let trace = simulate(program, &Options::default()).trace;
                let tracks = trace.memories.iter().filter(|track| track.name == "dram0");
                tracks.map(|track| track.peak.as_f64()).fold(0.0, f64::max)
            };
            let [short, long] = [&one, &all].map(held);
            let parts = (short - long).abs() <= if system == System::Fsdp { 0.0 } else { 0.02 * long };
            assert!(parts, "{nodes} × {name}, {system}: {short} and {long} bytes in dram0");
            let [short, long] = [one, all].map(|program| iteration_time(&program).unwrap());
            let error = (short.to_ms() - long.to_ms()).abs() / long.to_ms();
            // The steps of all devices on a host are one, so that none of them is over before the others.
            let most = if system == System::Fsdp { 1e-5 } else { 1e-2 };
            assert!(error < most + unlike, "{nodes} × {name}, {system}: {short} and {long}");
            let options = spipe_planner::Options::default();
            let least = spipe_planner::least_iteration((context, &[system]), &options, SimTime::MAX);
            assert!(least <= long, "{nodes} × {name}, {system}: {least} at least, and {long}");
        }
    }
}

/// A program in which one replica stands for all holds in its host memories what all of them hold, and says for whom it
/// stands.
#[test]
fn hosts_hold_the_parts_of_all() {
    let (model, hardware) = (model("llama2-7b"), machine("a100-80g-x8-nvlink"));
    for degrees in [[1, 1, 8], [2, 1, 4], [2, 2, 2]] {
        let mesh = mesh(degrees, Sharding::Optimizer);
        let setting = Setting::on(&model, &hardware, &workload(2 * degrees[2] as u64), &mesh).unwrap();
        let mut placement = spread(System::OneForwardOneBackward, model.layers().len(), (&mesh, 1));
        for stage in placement.stages.iter_mut() {
            let host = hardware.host_memory(stage.lead()).and_then(|host| hardware.memories()[host].device);
            *stage = stage.with_optimizer_on(host.expect("a socket"));
        }
        let [one, all] = both(&setting, &placement).map(|program| simulate(&program, &Options::default()).trace);
        let of = |trace: &Trace, kind: &str| {
            let tracks = trace.memories.iter().filter(|track| track.name.starts_with(kind));
            tracks.map(|track| track.peak.as_f64()).fold(0.0, f64::max)
        };
        let [short, long] = [&one, &all].map(|trace| of(trace, "gpu"));
        assert!((short / long - 1.0).abs() < 1e-6, "{degrees:?}: {short} and {long}");
        // The gradients of all are on a host until its step of all of them ends.
        let counted = footprint(&setting.context(), &placement);
        let most = counted[&hardware.memory("dram0").unwrap()].values().map(|need| need.total().as_f64()).sum::<f64>();
        let [short, long] = [&one, &all].map(|trace| of(trace, "dram"));
        assert!(
            long <= short && short <= most * 1.00001 && short < 1.2 * long,
            "{degrees:?}: {short}, {long}, at most {most}"
        );
        let [tensor, _, data] = degrees;
        let team = if tensor == 1 { "gpu0".to_owned() } else { format!("gpu0..gpu{}", tensor - 1) };
        assert_eq!(one.label_of("gpu0"), format!("{team} × {data}"));
        assert_eq!((all.label_of("gpu0"), all.label_of("dram0")), (team, "dram0".to_owned()));
    }
}

/// Without pipeline, nothing overlaps: the iteration is the sum of the closed form.
#[test]
fn the_iteration_is_that_of_the_closed_form() {
    let (model, hardware) = (model("gpt2-xl"), machine("a100-80g-x8-nvlink"));
    for runtime in ["spipe", "megatron"] {
        let runtime = Runtime::shipped(runtime).unwrap();
        let hardware = Arc::new(Hardware::clone(&hardware).under(runtime));
        for (tensor, data) in [(1, 1), (5, 1), (1, 8), (5, 1)] {
            let work = workload(16);
            let mesh = mesh([tensor, 1, data], Sharding::None);
            let setting = Setting::on(&model, &hardware, &work, &mesh).unwrap();
            let placement = spread(System::OneForwardOneBackward, model.layers().len(), (&mesh, 1));
            let simulated = iteration_time(&lower(&setting.context(), &placement).unwrap()).unwrap();
            let spread = Parallelism { tensor: tensor as u64, data: data as u64, recompute: Recompute::None };
            let closed = spread.cost(&model, &hardware, &work).unwrap();
            let error = (simulated.to_ms() - closed.iteration.to_ms()).abs() / closed.iteration.to_ms();
            assert!(error < 0.02, "{} × {tensor} × {data}: {simulated} and {:?}", hardware.runtime().name(), closed);
        }
    }
}

/// Bytes are divided by tensor and, with a divided optimizer, by data.
#[test]
fn memory_is_divided_by_axis() {
    let (model, hardware) = (model("gpt2-xl"), machine("a100-80g-x8-nvlink"));
    let state = |degrees: [usize; 3], sharding| {
        let mesh = mesh(degrees, sharding);
        let setting = Setting::on(&model, &hardware, &workload(8), &mesh).unwrap();
        let placement = spread(System::OneForwardOneBackward, model.layers().len(), (&mesh, 1));
        let needs = footprint(&setting.context(), &placement);
        let of = |gpu: usize| {
            needs[&hardware.devices()[DeviceId::from(gpu)].memory].values().map(|need| need.state.as_f64()).sum::<f64>()
        };
        let used: Vec<f64> = mesh.devices().map(|device| of(device.index())).collect();
        assert_eq!(needs.len(), used.len(), "each device of the mesh has a need of its own");
        assert!(used.windows(2).all(|pair| pair[0].to_bits() == pair[1].to_bits()), "{used:?}");
        used[0]
    };
    let parameters = model.parameters() as f64;
    let close = |bytes: f64, wanted: f64| assert!((bytes / wanted - 1.0).abs() < 0.01, "{bytes} instead of {wanted}");
    close(state([1, 1, 1], Sharding::None), parameters * 16.0);
    close(state([1, 1, 8], Sharding::None), parameters * 16.0);
    close(state([1, 1, 8], Sharding::Optimizer), parameters * (4.0 + 12.0 / 8.0));
    close(state([5, 1, 1], Sharding::None), parameters * 16.0 / 5.0);
}

/// Sequence parallelism divides what is saved, and takes as long.
#[test]
fn sequence_parallelism_divides_activations() {
    let (model, hardware) = (model("llama2-7b"), machine("a100-80g-x8-nvlink"));
    let of = |sequence| {
        let mesh = Mesh { sequence, ..mesh([8, 1, 1], Sharding::None) };
        let setting = Setting::on(&model, &hardware, &workload(8), &mesh).unwrap();
        let (layer, device) = (spipe_base::LayerId::from(5), DeviceId::from(0));
        let memory = *setting.table().memory(layer, device);
        (memory.saved.as_f64(), memory.input.as_f64(), setting.table().time(layer, device).unwrap().forward.get())
    };
    let (alone, whole) = (of(true), of(false));
    let all = Setting::new(&model, &hardware, &workload(8)).unwrap();
    let saved = all.table().memory(5.into(), 0.into()).saved.as_f64();
    assert!((alone.0 / (saved / 8.0) - 1.0).abs() < 0.01 && alone.0 < whole.0, "{alone:?} {whole:?} {saved}");
    assert!((alone.1 * 8.0 / whole.1 - 1.0).abs() < 0.01);
    assert!((alone.2 / whole.2 - 1.0).abs() < 0.05, "{alone:?} {whole:?}");
}

/// A plan on a mesh survives its file.
#[test]
fn plans_on_meshes_are_read_back() {
    let (model, hardware) = (model("gpt2-xl"), machine("a100-80g-x8-nvlink"));
    let mesh = mesh([1, 2, 4], Sharding::Optimizer);
    let placement = spread(System::OneForwardOneBackward, model.layers().len(), (&mesh, 1));
    let plan = Plan::new((*model).clone(), (*hardware).clone(), workload(16), placement).unwrap();
    let text = plan.to_json();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let figures = ["data", "tensor", "pipeline", "nodes"].map(|key| json["mesh"][key].as_u64().unwrap());
    assert_eq!((figures, json["mesh"]["sharding"].as_str()), ([4, 1, 2, 1], Some("optimizer")));
    assert_eq!(
        (json["workload"]["microbatches"].as_u64(), json["idle-devices"].as_array().unwrap().len()),
        (Some(16), 2)
    );
    let again = Plan::from_json("plan.json", &text).unwrap();
    assert_eq!(again.placement(), plan.placement());
    assert_eq!(again.context().workload().microbatches, 4);
    let simulation = simulate(&lower(&again.context(), again.placement()).unwrap(), &Options::default());
    assert!(simulation.trace.iteration > SimTime::ZERO);
}

/// Degrees that no mesh divides are refused with the nearest that do.
#[test]
fn degrees_that_do_not_divide_are_refused() {
    let (model, hardware) = (model("gpt2-xl"), machine("a100-80g-x8-nvlink"));
    let refused = |degrees: Degrees, microbatches: u64| {
        let error = degrees.meshes((&model, &hardware), &[workload(microbatches)], Spelling::default()).unwrap_err();
        error.to_string()
    };
    let none = Degrees::default();
    let lines = [
        refused(Degrees { tensor: Some(4), ..none }, 8),
        refused(Degrees { tensor: Some(2), pipeline: Some(8), ..none }, 8),
        refused(Degrees { pipeline: Some(0), ..none }, 8),
        refused(Degrees { data: Some(3), ..none }, 8),
        refused(Degrees { tensor: Some(1), pipeline: Some(2), data: Some(8), ..none }, 8),
    ];
    insta::assert_snapshot!(lines.join("\n"));
}
