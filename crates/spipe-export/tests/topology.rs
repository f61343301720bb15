//! Profiles from what tools print about a machine.

use spipe_export::{Printed, hardware_from_topology};
use spipe_hardware::{Hardware, NetworkFile};

const LIKE: &str = include_str!("../../../hardware-profiles/rtx3090-x4-two-sockets.toml");

/// Four GPUs in pairs behind switches, two of them with NVLinks, on two nodes.
const MATRIX: &str = "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n\
    GPU0\t X \tPIX\tSYS\tSYS\tPHB\t0-15\t0\t\tN/A\n\
    GPU1\tPIX\t X \tSYS\tSYS\tPHB\t0-15\t0\t\tN/A\n\
    GPU2\tSYS\tSYS\t X \tNV4\tSYS\t16-31\t1\t\tN/A\n\
    GPU3\tSYS\tSYS\tNV4\t X \tSYS\t16-31\t1\t\tN/A\n\
    NIC0\tPHB\tPHB\tSYS\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n";
const LSCPU: &str = "Core(s) per socket:   12\nSocket(s):            2\nNUMA node(s):         2\n";
const NUMACTL: &str = "available: 2 nodes (0-1)\nnode 0 size: 64000 MB\nnode 1 size: 65000 MB\n";

fn profile(matrix: &str) -> String {
    let printed = Printed {
        matrix: ("topo.txt", matrix),
        lscpu: Some(LSCPU),
        numactl: Some(NUMACTL),
        like: ("rtx3090-x4-two-sockets", LIKE),
        network: None,
    };
    hardware_from_topology(&printed, "mine").unwrap_or_else(|faults| panic!("{faults}"))
}

#[test]
fn the_wiring_is_that_of_the_matrix_and_rates_say_where_they_are_from() {
    let text = profile(MATRIX);
    let hardware = Hardware::from_toml("mine.toml", &text).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    assert_eq!(hardware.devices().len(), 6);
    for index in 0..4 {
        assert!(hardware.device(&format!("gpu{index}")).is_some());
    }
    let capacity = |name: &str| hardware.memories()[hardware.memory(name).unwrap()].capacity.get() >> 20;
    assert_eq!((capacity("dram0"), capacity("dram1")), (64_000, 65_000));
    assert!(text.contains("cores = 12"));
    let parsed: toml::Table = text.parse().unwrap();
    let links: Vec<(String, String)> = parsed["link"]
        .as_array()
        .unwrap()
        .iter()
        .map(|link| {
            let end = |index: usize| link["between"][index].as_str().unwrap().to_owned();
            (end(0), end(1))
        })
        .collect();
    let has = |from: &str, to: &str| links.contains(&(from.to_owned(), to.to_owned()));
    assert!(has("gpu0", "switch0") && has("gpu1", "switch0") && has("switch0", "root0"), "{links:?}");
    assert!(has("gpu2", "root1") && has("gpu2", "gpu3") && has("dram0", "dram1"), "{links:?}");
    for kind in ["gpu", "socket"] {
        for table in parsed[kind].as_array().unwrap() {
            assert!(table["source"].as_str().unwrap().starts_with("figures of `rtx3090-x4-two-sockets`: "));
        }
    }
}

#[test]
fn a_matrix_that_cannot_be_read_is_refused_with_line_and_column() {
    let printed = Printed {
        matrix: ("topo.txt", "\tGPU0\tGPU1\nGPU0\t X \tPIZ\nGPU1\tPIX\t X \n"),
        lscpu: None,
        numactl: None,
        like: ("rtx3090-x4-two-sockets", LIKE),
        network: None,
    };
    let said = hardware_from_topology(&printed, "mine").unwrap_err().to_string();
    assert!(said.contains("`PIZ` is no connection\n  --> topo.txt:2:10"), "{said}");
}

#[test]
fn lanes_have_the_rates_of_the_gpus_link() {
    // The first link of this profile is not that of a GPU.
    let like = LIKE.replacen("[[link]]", "[[link]]\nname = \"first\"\nbetween = [\"dram0\", \"root0\"]\nbandwidth = \"1 GB/s\"\nsource = \"estimate: a test\"\n\n[[link]]", 1);
    let printed =
        Printed { matrix: ("topo.txt", MATRIX), lscpu: None, numactl: None, like: ("changed", &like), network: None };
    let text = hardware_from_topology(&printed, "mine").unwrap_or_else(|faults| panic!("{faults}"));
    let parsed: toml::Table = text.parse().unwrap();
    let links = parsed["link"].as_array().unwrap();
    assert!(links.iter().all(|link| link.get("bandwidth").and_then(toml::Value::as_str) != Some("1 GB/s")), "{text}");
}

#[test]
fn network_cards_are_where_the_matrix_has_them() {
    // Each GPU shares a switch with a card; two more cards, a pair, are at the bridge of GPU 2.
    let matrix = "\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tNIC2\tNIC3\tCPU Affinity\tNUMA Affinity\n\
        GPU0\t X \tNODE\tSYS\tPIX\tNODE\tSYS\tSYS\t0-15\t0\n\
        GPU1\tNODE\t X \tSYS\tNODE\tPXB\tSYS\tSYS\t0-15\t0\n\
        GPU2\tSYS\tSYS\t X \tSYS\tSYS\tPHB\tPHB\t16-31\t1\n\
        NIC0\tPIX\tNODE\tSYS\t X \tNODE\tSYS\tSYS\t\t\n\
        NIC1\tNODE\tPXB\tSYS\tNODE\t X \tSYS\tSYS\t\t\n\
        NIC2\tSYS\tSYS\tPHB\tSYS\tSYS\t X \tPIX\t\t\n\
        NIC3\tSYS\tSYS\tPHB\tSYS\tSYS\tPIX\t X \t\t\n";
    let like = LIKE.replace("peer-access = false\n", "");
    let import = |network: &str| {
        let network = NetworkFile::parse(network).ok();
        let like = ("peers", like.as_str());
        let printed = Printed { matrix: ("topo.txt", matrix), lscpu: None, numactl: None, like, network };
        hardware_from_topology(&printed, "mine")
    };
    for (cards, places) in [
        ("2x400Gb", &["switch0", "switch1"][..]),
        ("3x400Gb", &["switch0", "switch1", "root1"]),
        ("4x400Gb", &["switch0", "switch1", "root1", "root1"]),
    ] {
        let text = import(cards).unwrap_or_else(|faults| panic!("{faults}"));
        let one = Hardware::from_toml("mine.toml", &text).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
        assert_eq!(one.file().network.as_ref().unwrap().at, places);
        let two = one.on_nodes(2, None).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
        let route = |from: &str, to: &str| two.route(two.memory(from).unwrap(), two.memory(to).unwrap()).unwrap();
        let over: Vec<&str> = route("gpu1", "gpu4").links.iter().map(|link| two.links()[*link].name.as_str()).collect();
        assert_eq!(over.len(), 6, "{over:?}");
        assert!(over[1].starts_with("n0-nic1") && over[4].starts_with("n1-nic1"), "{over:?}");
    }
    let said = import("5x400Gb").unwrap_err().to_string();
    assert!(said.contains("`topo.txt` has 4 network cards, not 5"), "{said}");
}

#[test]
fn cards_at_what_is_not_there_are_refused() {
    let text =
        format!("{}\n[network]\ncards = 2\nrate = \"23 GB/s\"\nat = [\"switch0\", \"swich1\"]\n", profile(MATRIX));
    let said = Hardware::from_toml("mine.toml", &text).unwrap_err().to_string();
    assert!(said.contains("no `swich1` for a card to be at"), "{said}");
    let said = Hardware::from_toml("mine.toml", &text.replace("cards = 2", "cards = 3")).unwrap_err().to_string();
    assert!(said.contains("3 cards are at 2 places"), "{said}");
}
