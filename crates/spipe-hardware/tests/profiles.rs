//! The shipped machines: all listed, all valid, and their routes.

use spipe_base::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, MemoryId, Seconds};
use spipe_hardware::{DataType, DeviceKind, Hardware, HardwareFile, MemoryKind, Provenance, shipped};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

fn machine(wanted: &str) -> Hardware {
    let found = shipped().iter().find(|(name, _)| *name == wanted);
    let (name, text) = found.unwrap_or_else(|| panic!("{wanted} is not shipped"));
    Hardware::from_toml(name, text).unwrap_or_else(|faults| panic!("{faults}"))
}

fn id(machine: &Hardware, name: &str) -> MemoryId {
    machine.memory(name).unwrap_or_else(|| panic!("no memory {name}"))
}

/// The links of a route, the latency in microseconds, and the cap in GB/s.
fn route(machine: &Hardware, from: &str, to: &str) -> (String, f64, Option<f64>) {
    let route = machine.route(id(machine, from), id(machine, to));
    let route = route.unwrap_or_else(|| panic!("{from} and {to} are not connected"));
    let names: Vec<&str> = route.links.iter().map(|link| machine.links()[*link].name.as_str()).collect();
    (names.join(" "), (route.latency.get() * 1e9).round() / 1e3, route.rate_cap.map(|cap| cap.get() / 1e9))
}

#[test]
fn every_file_is_shipped_and_parses_without_warnings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hardware-profiles");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    let listed: BTreeSet<String> = shipped().iter().map(|(name, _)| format!("{name}.toml")).collect();
    assert_eq!(files, listed);
    for (name, _) in shipped() {
        let machine = machine(name);
        assert_eq!(machine.name(), *name);
        assert!(machine.warnings().is_empty(), "{name}: {}", machine.warnings());
        assert!(machine.links().iter().all(|link| !link.provenance.to_string().contains("no source")), "{name}");
    }
}

#[test]
fn the_text_of_a_machine_reads_back_to_an_equal_machine() {
    for (name, text) in shipped() {
        let original = machine(name);
        let written = original.to_toml();
        let again = Hardware::from_toml(name, &written).unwrap_or_else(|faults| panic!("{faults}\n{written}"));
        assert_eq!(original, again, "{name}");
        let by_serde: HardwareFile = toml::from_str(text).unwrap();
        assert_eq!(&by_serde, original.file(), "{name}: serde and the reader of all faults agree");
    }
}

#[test]
fn the_example_machine_is_what_the_documentation_says() {
    let machine = machine("one-gpu");
    assert_eq!(route(&machine, "gpu0", "dram0"), ("pcie0.up root0-dram0.up dram0.channels".into(), 8.0, None));
    assert_eq!(route(&machine, "dram0", "gpu0"), ("dram0.channels root0-dram0.down pcie0.down".into(), 8.0, None));
    assert_eq!(
        route(&machine, "gpu0", "dram0-pageable"),
        ("pcie0.up root0-dram0.up dram0.channels".into(), 8.0, Some(12.5)),
        "half of the narrowest link where the file states nothing"
    );
    assert_eq!(route(&machine, "dram0", "dram0-pageable"), ("dram0.channels dram0.channels".into(), 0.0, None));
    assert_eq!(route(&machine, "gpu0", "gpu0"), (String::new(), 0.0, Some(504.0)));
    let view = &machine.memories()[id(&machine, "dram0-pageable")];
    assert_eq!((view.capacity, view.pageable_view_of), (Bytes::gib(128), machine.memory("dram0")));
    assert_eq!(machine.pool(id(&machine, "dram0-pageable")), id(&machine, "dram0"));
    let names: Vec<&str> = machine.memories().iter().map(|memory| memory.name.as_str()).collect();
    assert_eq!(names, ["gpu0", "dram0", "dram0-pageable"]);
}

#[test]
fn crossing_sockets_takes_the_interconnect() {
    let machine = machine("rtx3090-x4-two-sockets");
    assert_eq!(route(&machine, "gpu0", "dram0").0, "pcie0.up root0-dram0.up dram0.channels");
    assert_eq!(
        route(&machine, "gpu0", "dram1"),
        ("pcie0.up root0-dram0.up interconnect.up dram1.channels".into(), 8.2, None)
    );
    assert_eq!(
        route(&machine, "dram1", "gpu0").0,
        "dram1.channels interconnect.down root0-dram0.down pcie0.down",
        "against the link"
    );
    assert_eq!(route(&machine, "dram0", "dram1").0, "dram0.channels interconnect.up dram1.channels");
    let device = |name: &str| machine.device(name).unwrap();
    assert_eq!(machine.host_memory(device("gpu1")), machine.memory("dram0"));
    assert_eq!(machine.host_memory(device("gpu2")), machine.memory("dram1"));
    assert_eq!(machine.host_memory(device("cpu1")), machine.memory("dram1"));
    assert!(machine.shared_root(device("gpu0"), device("gpu1")));
    assert!(!machine.shared_root(device("gpu1"), device("gpu2")));
    assert!(!machine.shared_root(device("cpu0"), device("gpu0")));
    let DeviceKind::Socket { cores, numa_node, .. } = machine.devices()[device("cpu1")].kind else {
        panic!("a socket")
    };
    assert_eq!((cores, numa_node), (16, 1));
    assert_eq!(machine.dram_channels(id(&machine, "dram1-pageable")), machine.link("dram1.channels"));
}

#[test]
fn what_a_gpu_leaves_stays_in_its_machine() {
    let machine = machine("v100-32g-x32");
    let names = |device: &str| -> Vec<&str> {
        let hosts = machine.host_memories(machine.device(device).unwrap()).iter();
        hosts.map(|memory| machine.memories()[*memory].name.as_str()).collect()
    };
    assert_eq!(
        names("gpu5"),
        ["dram5", "dram4", "dram6", "dram7"],
        "the nearest first, and none behind a network card"
    );
    assert_eq!(names("gpu31")[0], "dram31");
}

/// Computers are what network cards join: the 16 GPUs of `v100-32g-x16` are in four.
#[test]
fn devices_know_their_computer() {
    for (name, _) in shipped() {
        let machine = machine(name);
        let mut gpus = BTreeMap::<_, usize>::new();
        for device in machine.devices().iter() {
            *gpus.entry(device.node).or_default() += usize::from(device.is_gpu());
        }
        let (gpus, all): (Vec<usize>, usize) = (gpus.values().copied().collect(), gpus.values().sum());
        let wanted = if name.starts_with("v100-32g-x") { vec![4; all / 4] } else { vec![all] };
        assert_eq!(gpus, wanted, "{name}");
    }
}

#[test]
fn cards_without_peer_access_copy_through_host_memory() {
    let geforce = machine("rtx3090-x4-two-sockets");
    assert_eq!(
        route(&geforce, "gpu0", "gpu1").0,
        "pcie0.up root0-dram0.up dram0.channels dram0.channels root0-dram0.down pcie1.down"
    );
    let tesla = machine("a100-80g-x2");
    assert_eq!(route(&tesla, "gpu0", "gpu1").0, "pcie0.up pcie1.down");
}

#[test]
fn nvlink_is_preferred_and_gpus_are_not_passed_through() {
    let node = machine("v100-32g-x4-nvlink");
    assert_eq!(route(&node, "gpu0", "gpu3"), ("nvlink0-3.up".into(), 3.0, None));
    assert_eq!(route(&node, "gpu3", "gpu0").0, "nvlink0-3.down");
    assert_eq!(route(&node, "gpu0", "dram1").0, "pcie0.up root0-dram0.up fabric0-1.up dram1.channels");
    let switched = machine("a100-80g-x8-nvlink");
    assert_eq!(route(&switched, "gpu0", "gpu5").0, "nvlink0.up nvlink5.down");
    assert_eq!(route(&switched, "gpu0", "dram0").0, "pcie0.up uplink0.up dram0.channels");
    let device = |name: &str| switched.device(name).unwrap();
    assert!(switched.shared_root(device("gpu2"), device("gpu3")));
    assert!(!switched.shared_root(device("gpu1"), device("gpu2")));
}

#[test]
fn nodes_meet_at_the_network() {
    let machine = machine("v100-32g-x32");
    assert_eq!(machine.devices().iter().filter(|device| device.is_gpu()).count(), 32);
    assert_eq!(
        route(&machine, "gpu0", "gpu4").0,
        "pcie0.up nic0-pcie.down port0.up port1.down nic1-pcie.up pcie4.down"
    );
    assert_eq!(
        route(&machine, "gpu31", "dram0").0,
        "pcie31.up root31-dram31.up fabric28-31.down root28-dram28.down nic7-pcie.down port7.up port0.down nic0-pcie.up \
         root0-dram0.up dram0.channels"
    );
}

#[test]
fn drives_have_their_own_rates() {
    let machine = machine("rtx4090-pcie4-128gb");
    let memory = &machine.memories()[id(&machine, "nvme0")];
    assert_eq!((memory.kind, memory.capacity), (MemoryKind::Nvme, Bytes::new(2_000_000_000_000)));
    assert_eq!(
        route(&machine, "nvme0", "dram0"),
        ("nvme0.read m2.up root0-dram0.up dram0.channels".into(), 80.0, None)
    );
    assert_eq!(route(&machine, "gpu0", "nvme0").0, "pcie0.up m2.down nvme0.write");
}

#[test]
fn large_matmuls_are_fast_and_small_ones_slow() {
    let machine = machine("a100-80g");
    let gpu = &machine.devices()[machine.device("gpu0").unwrap()];
    let rate = |flops: f64| gpu.matmul_rate(DataType::Bf16, Flops::flop(flops)).unwrap();
    let share = |flops: f64| rate(flops) / FlopsPerSecond::tflops(312.0);
    assert!((0.60..0.75).contains(&share(2.0 * 8192f64.powi(3))), "{}", share(2.0 * 8192f64.powi(3)));
    assert!(share(2.0 * 256f64.powi(3)) < 0.02);
    assert!(gpu.elementwise_rate(Bytes::gib(1)) > BytesPerSecond::gb(1600.0));
    assert!(gpu.elementwise_rate(Bytes::kib(4)) < BytesPerSecond::gb(10.0));
    let socket = &machine.devices()[machine.device("cpu0").unwrap()];
    assert_eq!(socket.arithmetic_type(DataType::Bf16), Some(DataType::F32), "cores widen");
    let volta = self::machine("v100-32g-x4-nvlink");
    assert_eq!(volta.devices()[volta.device("gpu0").unwrap()].matmul_rate(DataType::Bf16, Flops::flop(1e9)), None);
    assert!(gpu.launch_floor > Seconds::ZERO);
    assert!(matches!(gpu.provenance(), Provenance::DataSheet(name) if name.contains("A100")));
}

#[test]
fn the_schema_names_every_table() {
    let schema = serde_json::to_value(spipe_hardware::schema()).unwrap();
    let properties: Vec<&str> = schema["properties"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    assert_eq!(
        properties,
        [
            "collective",
            "copy",
            "description",
            "fitted",
            "format-version",
            "gpu",
            "link",
            "name",
            "network",
            "nic",
            "nodes",
            "nvme",
            "parts",
            "root-complex",
            "socket",
            "switch"
        ]
    );
}

#[test]
fn one_memory_of_several_equal_ones_can_be_larger() {
    let four = machine("rtx3090-x4-two-sockets");
    let (gpu1, dram1) = (id(&four, "gpu1"), id(&four, "dram1"));
    let more = four.with_larger(&[gpu1, dram1], Bytes::gib(3)).unwrap();
    for (memory, before) in four.memories().enumerate() {
        let pool = four.pool(memory);
        let grown = if pool == gpu1 || pool == dram1 { Bytes::gib(3) } else { Bytes::ZERO };
        assert_eq!(more.memories()[memory].capacity, before.capacity + grown, "{}", before.name);
    }
    assert_eq!(four.devices(), more.devices());
    assert_eq!(four.with_larger(&[gpu1], Bytes::ZERO).unwrap().routes().count(), four.routes().count());
}

/// A limit on both directions of a link, and measured rates of copies.
#[test]
fn both_directions_and_pairs_have_limits_of_their_own() {
    let (_, text) = *shipped().iter().find(|(name, _)| *name == "rtx3090-x4-two-sockets").unwrap();
    let stated = text.replacen(
        "between = [\"gpu{0..1}\", \"root0\"]\n",
        "between = [\"gpu{0..1}\", \"root0\"]\nboth = \"36 GB/s\"\n",
        1,
    );
    let copies = "\n[[copy]]\namong = [\"gpu{0..1}\"]\nbandwidth = \"6.1 GB/s\"\nboth = \"9 GB/s\"\nsource = \"test\"\n\
                  [[copy]]\namong = [\"gpu{0..3}\"]\nbandwidth = \"8.6 GB/s\"\nsource = \"test\"\n";
    let limited = Hardware::from_toml("m", &format!("{stated}{copies}")).unwrap();
    assert_eq!(route(&limited, "gpu0", "dram0").0, "pcie0.up root0-dram0.up dram0.channels pcie0.both");
    assert_eq!(route(&limited, "dram0", "gpu0").0, "dram0.channels root0-dram0.down pcie0.down pcie0.both");
    assert_eq!(route(&limited, "gpu2", "dram1").0, "pcie2.up root1-dram1.up dram1.channels");
    let near = route(&limited, "gpu0", "gpu1");
    assert!(near.0.ends_with("pcie0.both pcie1.both gpu0-gpu1.both"), "{}", near.0);
    let cap = |from, to| {
        let found = limited.route(limited.memory(from).unwrap(), limited.memory(to).unwrap()).unwrap();
        found.rate_cap.map(|rate| rate.get())
    };
    assert_eq!((cap("gpu0", "gpu1"), cap("gpu1", "gpu2")), (Some(6.1e9), Some(8.6e9)));
    assert_eq!((cap("gpu3", "gpu2"), cap("gpu3", "dram1")), (Some(8.6e9), None));
    let pair = limited.restricted_to(&["gpu0".into(), "gpu1".into(), "cpu0".into()]).unwrap();
    assert!(route(&pair, "gpu1", "gpu0").0.ends_with("gpu0-gpu1.both"));
    let alone = limited.restricted_to(&["gpu0".into(), "cpu0".into()]).unwrap();
    assert_eq!(alone.route(alone.memory("gpu0").unwrap(), alone.memory("dram0").unwrap()).unwrap().rate_cap, None);
    for (among, why) in [
        ("[\"gpu0\"]", "fewer than two"),
        ("[\"gpu0\", \"gpu9\"]", "`gpu9` is no memory"),
        ("[\"gpu0\", \"gpu0\"]", "named twice"),
    ] {
        let wrong = format!("{text}\n[[copy]]\namong = {among}\nbandwidth = \"6 GB/s\"\nsource = \"test\"\n");
        let refused = Hardware::from_toml("m", &wrong).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}
