//! Groups that have a copy of sharded parameters each: volumes in closed form, and both ends, one group and groups of one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{Setting, both, collected, machine, mesh, model, spread, workload};
use spipe_base::{Bytes, Collective, DeviceId, LayerRange, SimTime};
use spipe_hardware::{Hardware, NetworkFile};
use spipe_plan::{Knob, Placement, Plan, Sharding, Stage, System, check, footprint, needed};
use spipe_planner::{Named, Pin, Pins};
use spipe_schedule::{lower, lower_all_replicas};
use spipe_sim::{Options, iteration_time, simulate};
use spipe_trace::Metrics;
use std::sync::Arc;

/// A stage of each layer, on the device or in the host memory near it.
fn layers(setting: &Setting, hardware: &Hardware, system: System) -> Placement {
    let lead = hardware.device("gpu0").unwrap();
    let home = hardware.host_memory(lead).unwrap();
    let stage = |layer: usize| {
        let stage = Stage::new(lead, LayerRange::new(layer.into(), layer.into()).expect("a layer"));
        let socket = hardware.memories()[home].device.filter(|_| system == System::ZeroInfinity);
        socket.map_or(stage, |socket| stage.with_weights_in(home).with_optimizer_on(socket))
    };
    Placement::new(system, (0..setting.table().layers().len()).map(stage)).over_gpus(hardware, None)
}

fn near(one: f64, other: f64, most: f64) -> bool {
    (one - other).abs() <= most * other
}

/// With s shards in each of g groups and r microbatches, a device receives r·G·(s − 1)/s of gathers and
/// r·(s − 1)/s of scattered gradients, and of the sums over groups (g − 1)/g of its shard twice.
#[test]
fn volumes_are_those_of_the_closed_form() {
    let (model, hardware) = (model("gpt2-xl"), machine("a100-80g-x8-nvlink"));
    let rounds = 3;
    let setting = Setting::new(&model, &hardware, &workload(rounds * 8)).unwrap();
    let (parameters, gradients) = {
        let of = |layer| setting.table().memory(layer, DeviceId::from(0));
        let sum = |part: fn(&spipe_cost::LayerMemory) -> Bytes| {
            setting.table().layers().map(|layer| part(of(layer)).as_f64()).sum::<f64>()
        };
        (
            sum(|memory| memory.parameters + memory.tied_parameters),
            sum(|memory| memory.gradients + memory.tied_gradients),
        )
    };
    let owned: f64 =
        setting.table().layers().map(|layer| setting.table().memory(layer, DeviceId::from(0)).gradients.as_f64()).sum();
    for size in [1, 2, 4, 8] {
        let groups = 8 / size;
        let all = Knob::LARGEST;
        let placement =
            layers(&setting, &hardware, System::Fsdp).with(Knob::ShardGroup, size).with(Knob::Resident, all);
        check(&setting.context(), &placement).expect("it is a plan");
        let program = lower(&setting.context(), &placement).expect("it has a program");
        let (s, g) = (size as f64, groups as f64);
        let shard = owned / s * (g - 1.0) / g;
        for device in [0, 7] {
            let gathered = collected(&program, device, |kind| kind == Collective::AllGather) as f64;
            assert!(near(gathered, parameters * (s - 1.0) / s + shard, 1e-4), "{size}: {gathered}");
            let scattered = collected(&program, device, |kind| kind == Collective::ReduceScatter) as f64;
            let wanted = rounds as f64 * gradients * (s - 1.0) / s + shard;
            assert!(near(scattered, wanted, 1e-4), "{size}: {scattered} instead of {wanted}");
        }
    }
}

/// A group of all GPUs is the plan without groups, to the byte.
#[test]
fn one_group_is_plain_sharding() {
    let (model, hardware) = (model("gpt2-xl"), machine("a100-80g-x8-nvlink"));
    let setting = Setting::new(&model, &hardware, &workload(16)).unwrap();
    for system in [System::Fsdp, System::ZeroInfinity] {
        let plain = layers(&setting, &hardware, system);
        let whole = plain.clone().with(Knob::ShardGroup, 8);
        let trace = |placement: &Placement| {
            let program = lower(&setting.context(), placement).expect("it has a program");
            serde_json::to_string(&simulate(&program, &Options::default()).trace).unwrap()
        };
        assert_eq!(trace(&plain), trace(&whole), "{system}");
        assert_eq!(footprint(&setting.context(), &plain), footprint(&setting.context(), &whole));
    }
}

/// Groups of one GPU move what replicas do that divide nothing, and need the memory of whole copies.
#[test]
fn groups_of_one_are_replicas() {
    let (model, hardware) = (model("gpt2-xl"), machine("a100-80g-x8-nvlink"));
    let work = workload(16);
    let setting = Setting::new(&model, &hardware, &work).unwrap();
    let groups = layers(&setting, &hardware, System::Fsdp).with(Knob::ShardGroup, 1);
    let program = lower(&setting.context(), &groups).expect("it has a program");
    let mesh = mesh([1, 1, 8], Sharding::None);
    let replicas = Setting::on(&model, &hardware, &work, &mesh).unwrap();
    let placement = spread(System::OneForwardOneBackward, model.layers().len(), (&mesh, 1));
    let plain = lower_all_replicas(&replicas.context(), &placement).expect("it has a program");
    for wanted in [Collective::AllGather, Collective::ReduceScatter] {
        let [one, other] = [&program, &plain].map(|program| collected(program, 3, |kind| kind == wanted) as f64);
        assert!(near(one, other, 1e-4), "{wanted:?}: {one} and {other}");
    }
    let host = |size: u64| {
        let placement = layers(&setting, &hardware, System::ZeroInfinity).with(Knob::ShardGroup, size);
        let needs = footprint(&setting.context(), &placement);
        let hosts = hardware.memories().ids().filter(|id| hardware.memories()[*id].name.starts_with("dram"));
        hosts.map(|memory| needed(&needs, memory).as_f64()).sum::<f64>()
    };
    assert!(near(host(1), 8.0 * host(8), 1e-3) && near(host(4), 2.0 * host(8), 1e-3), "a copy for each group");
}

/// One device stands for all of those in groups, and no plan is shorter than its bound; the simulated peak is within the
/// counted one.
#[test]
fn one_device_takes_the_time_of_all_in_groups() {
    let model = model("gpt2-xl");
    let network = NetworkFile::parse("4x200Gb").unwrap();
    for (name, nodes, sizes) in [("a100-80g-x8-nvlink", 3, [1, 4, 8]), ("h100-80g-x8-nvlink", 4, [2, 8, 16])] {
        let hardware = Arc::new(machine(name).on_nodes(nodes, Some(network.clone())).unwrap());
        let gpus = hardware.gpus().count();
        let setting = Setting::new(&model, &hardware, &workload(2 * gpus as u64)).unwrap();
        for system in [System::Fsdp, System::ZeroInfinity] {
            for size in sizes {
                let placement = layers(&setting, &hardware, system).with(Knob::ShardGroup, size);
                let [one, all] = both(&setting, &placement);
                let (few, many) = (one.actions().len(), all.actions().len());
                assert!(many > gpus * few / 2, "{few} actions stand for {many}");
                let [short, long] = [&one, &all].map(|program| iteration_time(program).unwrap());
                let error = (short.to_ms() - long.to_ms()).abs() / long.to_ms();
                // The copies and steps of all devices on a host are one, so that none of them is over before the others. The
                // larger their shards, the more of them there is.
                // Where gathers and sums both cross the network, the slowest hop of either need not be on the same card.
                let near = size <= 8 && system == System::Fsdp;
                let most = if near { 1e-5 } else { 0.1 };
                assert!(error < most, "{nodes} × {name}, groups of {size}, {system}: {short} and {long}");
                let pin = Named { words: "groups".into(), pin: Pin::Knob(Knob::ShardGroup, size) };
                let options = spipe_planner::Options { pins: Pins::new(&[pin]).unwrap(), ..Default::default() };
                let least = spipe_planner::least_iteration((setting.context(), &[system]), &options, SimTime::MAX);
                assert!(least > SimTime::ZERO && least <= long, "{size}, {system}: {least} at least, and {long}");
                let needs = footprint(&setting.context(), &placement);
                let simulation = simulate(&all, &Options::default());
                let memory = hardware.devices()[DeviceId::from(0)].memory;
                let peak = Metrics::of(&simulation.trace).peaks[&hardware.memories()[memory].name];
                assert!(peak <= needed(&needs, memory), "{size}, {system}: {peak}");
            }
        }
    }
}

/// Groups survive the file of a plan, and those that do not divide the GPUs are refused with those that do.
#[test]
fn groups_are_read_back_and_checked() {
    let (model, hardware) = (model("gpt2-xl"), machine("a100-80g-x8-nvlink"));
    let two = Arc::new(hardware.on_nodes(2, Some(NetworkFile::parse("4x200Gb").unwrap())).unwrap());
    let setting = Setting::new(&model, &two, &workload(16)).unwrap();
    let of = |size: u64| layers(&setting, &two, System::Fsdp).with(Knob::ShardGroup, size);
    let fault = |size: u64| check(&setting.context(), &of(size)).unwrap_err().to_string();
    assert!(fault(3).contains("16 GPUs cannot be divided into groups of 3"), "{}", fault(3));
    assert!(fault(3).contains("use groups of 2 or 4"), "{}", fault(3));
    assert!(
        fault(0).contains("use groups of 1") && fault(99).contains("use groups of 16"),
        "{} {}",
        fault(0),
        fault(99)
    );
    let odd = layers(&setting, &two, System::Fsdp).over((0..12).map(DeviceId::from)).with(Knob::ShardGroup, 6);
    let uneven = Setting::new(&model, &two, &workload(24)).unwrap();
    let fault = check(&uneven.context(), &odd).unwrap_err().to_string();
    assert!(fault.contains("a group of 6 GPUs would have a part of a computer's"), "{fault}");
    let placement = layers(&setting, &two, System::Fsdp).over((0..8).map(DeviceId::from)).with(Knob::ShardGroup, 4);
    let plan = Plan::new((*model).clone(), (*two).clone(), workload(16), placement.clone()).unwrap();
    let text = plan.to_json();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((json["mesh"]["shard-group"].as_u64(), json["mesh"]["data"].as_u64()), (Some(4), Some(8)));
    assert_eq!(Plan::from_json("plan.json", &text).unwrap().placement(), &placement);
}
