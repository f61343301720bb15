//! Replicas that stream from copies of their own: one stands for all, one alone is none, and times in closed form.

use super::{Setting, both, collected, machine, mesh, model, workload};
use spipe_base::{ActionKind, Bytes, Collective, DeviceId, LayerRange};
use spipe_hardware::{Hardware, NetworkFile};
use spipe_plan::{Knob, Mesh, Placement, Plan, Sharding, Stage, System, check, footprint, needed};
use spipe_schedule::{Program, lower};
use spipe_search::{Degrees, Spelling};
use spipe_sim::{Options, iteration_time, simulate};
use spipe_trace::Metrics;
use std::sync::Arc;

/// Two GPUs with a link each to the memory of one socket, and one that joins them.
fn two_gpus() -> Arc<Hardware> {
    let socket = r#"
format-version = 1
name = "two"
[[socket]]
name = "cpu0"
cores = 16
peak = { f32 = "1 TFLOP/s" }
optimizer-rate = "1 Gparam/s"
dram = { name = "dram0", capacity = "512 GiB", bandwidth = "2000 GB/s" }
source = "estimate: a test"
"#;
    let gpu = r#"
[[gpu]]
name = "gpu$"
memory = "24 GiB"
memory-bandwidth = "1000 GB/s"
peak = { f32 = "40 TFLOP/s", bf16 = "80 TFLOP/s" }
source = "estimate: a test"
[[link]]
name = "pcie$"
between = ["gpu$", "dram0"]
bandwidth = "20 GB/s"
latency = "8 us"
source = "estimate: a test"
"#;
    let bridge = r#"
[[link]]
name = "bridge"
between = ["gpu0", "gpu1"]
bandwidth = "100 GB/s"
latency = "2 us"
source = "estimate: a test"
"#;
    let text = [socket, &gpu.replace('$', "0"), &gpu.replace('$', "1"), bridge].concat();
    Arc::new(Hardware::from_toml("two", &text).expect("a machine"))
}

/// Streamed stages of `each` layers, around the leads of a mesh; SPipe's backward has as many of its own.
fn streamed(system: System, (hardware, layers): (&Hardware, usize), (mesh, each): (&Mesh, usize)) -> Placement {
    let leads: Vec<DeviceId> = mesh.leads().collect();
    let edges: Vec<usize> = (0..layers).step_by(each).collect();
    let stage = |(at, first): (usize, &usize), back: bool| {
        let last = (first + each).min(layers) - 1;
        let place = at % leads.len();
        let lead = leads[if back { leads.len() - 1 - place } else { place }];
        let home = hardware.host_memory(lead).expect("a host");
        let socket = hardware.memories()[home].device.expect("a socket");
        let stage = Stage::new(lead, LayerRange::new((*first).into(), last.into()).expect("layers"));
        stage.with_everything_recomputed().with_weights_in(home).with_optimizer_on(socket)
    };
    let of = |back: bool| edges.iter().enumerate().map(|it| stage(it, back)).collect::<Vec<_>>();
    let mesh = if mesh.is_single() { Mesh::default() } else { mesh.clone() };
    let placement = Placement { mesh, ..Placement::new(system, of(false)) };
    if system == System::Spipe { placement.with_backward(of(true)) } else { placement }
}

/// A replica that stands for all takes the time of all of them, where each has a link of its own and where they share.
#[test]
fn one_replica_takes_the_time_of_all_that_stream() {
    let model = model("gpt2-xl");
    let layers = model.layers().len();
    let machines =
        [("a100-80g-x8-nvlink", [1, 2, 4]), ("v100-32g-x8", [1, 1, 8]), ("rtx3090-x4-two-sockets", [1, 2, 2])];
    for (name, degrees) in machines {
        for system in [System::Mobius, System::Superpipeline, System::Spipe, System::NaiveSwap] {
            if system == System::NaiveSwap && degrees[1] > 1 {
                continue;
            }
            let (mesh, hardware) = (mesh(degrees, Sharding::None), machine(name));
            let setting = Setting::on(&model, &hardware, &workload(4 * degrees[2] as u64), &mesh).unwrap();
            let placement = streamed(system, (&hardware, layers), (&mesh, 4));
            let [one, all] = both(&setting, &placement);
            let lanes = |program: &Program| program.lanes().iter().filter(|it| it.name.ends_with("compute")).count();
            assert_eq!([lanes(&one), lanes(&all)], [degrees[1], degrees[1] * degrees[2]]);
            let [short, long] = [&one, &all].map(|program| iteration_time(program).unwrap());
            let error = (short.to_ms() - long.to_ms()).abs() / long.to_ms();
            // The steps of all replicas on a host are one. In truth some are over before the others, whose parameters then
            // have links to themselves.
            assert!(error < 0.1, "{name}, {system}: {short} and {long}");
            let needs = footprint(&setting.context(), &placement);
            let peaks = Metrics::of(&simulate(&all, &Options::default()).trace).peaks;
            for (memory, peak) in peaks {
                let id = hardware.memory(&memory).expect("a memory");
                assert!(peak <= needed(&needs, id), "{name}, {system}: {peak} in {memory}");
            }
        }
    }
}

/// Replicas on hosts of their own have nothing in common but sums: one stands for all to the last digits.
#[test]
fn replicas_on_computers_of_their_own_are_alike() {
    let (model, network) = (model("gpt2-xl"), NetworkFile::parse("1x200Gb").unwrap());
    let hardware = Arc::new(machine("one-gpu").on_nodes(4, Some(network)).unwrap());
    for system in [System::Mobius, System::Superpipeline, System::Spipe, System::NaiveSwap] {
        let mesh = mesh([1, 1, 4], Sharding::None);
        let setting = Setting::on(&model, &hardware, &workload(16), &mesh).unwrap();
        let placement = streamed(system, (&hardware, model.layers().len()), (&mesh, 4));
        let [short, long] = both(&setting, &placement).map(|program| iteration_time(&program).unwrap());
        let error = (short.to_ms() - long.to_ms()).abs() / long.to_ms();
        assert!(error < 1e-5, "{system}: {short} and {long}");
    }
}

/// A mesh of one replica is the plan without a mesh, to the byte.
#[test]
fn one_replica_is_none() {
    let (model, hardware) = (model("gpt2-xl"), machine("v100-32g-x8"));
    let layers = model.layers().len();
    for system in [System::Mobius, System::Superpipeline, System::Spipe] {
        let mesh = mesh([1, 2, 1], Sharding::None);
        let placement = streamed(system, (&hardware, layers), (&mesh, 4));
        let [single, plain] =
            [Setting::on(&model, &hardware, &workload(8), &mesh), Setting::new(&model, &hardware, &workload(8))]
                .map(Result::unwrap);
        let trace = |setting: &Setting, placement: &Placement| {
            check(&setting.context(), placement).expect("it is a plan");
            let program = lower(&setting.context(), placement).expect("it has a program");
            serde_json::to_string(&simulate(&program, &Options::default()).trace).unwrap()
        };
        assert_eq!(trace(&single, &placement), trace(&plain, &placement), "{system}");
    }
}

/// With steps after the backward, on one socket and beside nothing, each replica more adds its steps: T₂ = T₁ + S. A device
/// receives 2·(n − 1)/n of the gradients from the other one, and the host has a copy for each.
#[test]
fn times_and_bytes_are_those_of_the_closed_form() {
    let model = model("gpt2-xl");
    let hardware = two_gpus();
    let of = |replicas: usize| {
        let mesh = mesh([1, 1, replicas], Sharding::None);
        let setting = Setting::on(&model, &hardware, &workload(4 * replicas as u64), &mesh).unwrap();
        let placement = streamed(System::Mobius, (&hardware, model.layers().len()), (&mesh, 2));
        check(&setting.context(), &placement).expect("it is a plan");
        let program = lower(&setting.context(), &placement).expect("it has a program");
        let dram = hardware.memory("dram0").unwrap();
        let held = needed(&footprint(&setting.context(), &placement), dram).as_f64();
        (iteration_time(&program).unwrap().to_ms(), collected(&program, 0, |_| true), held, setting)
    };
    let ((one, none, single, setting), (two, moved, double, _)) = (of(1), of(2));
    let context = setting.context();
    let (cpu, gpu) = (hardware.device("cpu0").unwrap(), DeviceId::from(0));
    let trained: u64 = context.cost.layers().map(|layer| context.cost.trained_parameters(layer)).sum();
    let steps = context.cost.optimizer_time(trained, cpu).to_ms();
    assert!(((two - one) / steps - 1.0).abs() < 0.05, "{two} ms, {one} ms and steps of {steps} ms");
    let memory = |layer| context.cost.memory(layer, gpu);
    let gradients: Bytes =
        context.cost.layers().map(|layer| memory(layer).gradients + memory(layer).tied_gradients).sum();
    assert_eq!(none, 0);
    assert!((moved as f64 / gradients.as_f64() - 1.0).abs() < 1e-3, "{moved} of {gradients}");
    assert!((double / single - 2.0).abs() < 1e-6, "{double} and {single}");
}

/// Degrees choose replicas of streamed systems; a divided optimizer is refused by name, and so are plans that say so.
#[test]
fn copies_are_whole() {
    let (model, hardware) = (model("gpt2-xl"), machine("v100-32g-x8"));
    let degrees = Degrees { tensor: Some(1), pipeline: Some(2), data: Some(4), ..Degrees::default() };
    let chosen = |sharding| {
        let given = Degrees { sharding, ..degrees };
        given.chosen((&model, &hardware), &[workload(16)], (&[System::Mobius], Spelling::default()))
    };
    let meshes = chosen(None).unwrap();
    assert!(meshes.systems == [System::Mobius] && chosen(Some(Sharding::Optimizer)).is_err());
    let mesh = mesh([1, 2, 4], Sharding::Optimizer);
    let setting = Setting::on(&model, &hardware, &workload(16), &mesh).unwrap();
    let placement = streamed(System::Mobius, (&hardware, model.layers().len()), (&mesh, 4));
    let fault = check(&setting.context(), &placement).unwrap_err().to_string();
    assert!(fault.contains("each replica streams from a copy of its own"), "{fault}");
    let whole = Placement { mesh: Mesh { sharding: Sharding::None, ..mesh }, ..placement };
    let plan = Plan::new((*model).clone(), (*hardware).clone(), workload(16), whole.with(Knob::WriteBack, 0)).unwrap();
    assert_eq!(Plan::from_json("plan.json", &plan.to_json()).unwrap().placement(), plan.placement());
}

/// The sum of a chunk's gradients comes after its last backward, and before they leave for the host.
#[test]
fn gradients_leave_once_they_are_summed() {
    let (model, hardware) = (model("gpt2-xl"), machine("v100-32g-x8"));
    let mesh = mesh([1, 1, 2], Sharding::None);
    let setting = Setting::on(&model, &hardware, &workload(8), &mesh).unwrap();
    let placement = streamed(System::Spipe, (&hardware, model.layers().len()), (&mesh, 8));
    let program = lower(&setting.context(), &placement).unwrap();
    let gathers = program.actions().iter().filter(|it| it.kind == ActionKind::Collective(Collective::AllGather));
    let sums: Vec<_> = gathers.flat_map(|action| program.writes(action)).copied().collect();
    let outs: Vec<_> = program
        .actions()
        .iter()
        .filter(|action| action.kind == ActionKind::Copy(spipe_base::Payload::GradientsOut))
        .flat_map(|action| program.reads(action))
        .copied()
        .collect();
    assert!(!outs.is_empty() && outs.iter().all(|read| sums.contains(read)), "{} of {}", outs.len(), sums.len());
}
