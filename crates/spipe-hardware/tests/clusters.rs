//! Several equal computers with a network between them.

use spipe_base::{Bytes, DeviceId};
use spipe_hardware::{Hardware, NetworkFile, shipped};

fn machine(name: &str) -> Hardware {
    let (_, text) = shipped().iter().find(|(known, _)| *known == name).expect("it is shipped");
    Hardware::from_toml(name, text).expect("it is shipped")
}

fn links(machine: &Hardware, from: &str, to: &str) -> Vec<String> {
    let memory = |name| machine.memory(name).unwrap_or_else(|| panic!("no {name}"));
    let route = machine.route(memory(from), memory(to)).expect("there is a way");
    route.links.iter().map(|link| machine.links()[*link].name.clone()).collect()
}

#[test]
fn devices_are_numbered_across_computers() {
    let one = machine("a100-80g-x8-nvlink");
    let four = one.on_nodes(4, NetworkFile::parse("4x200Gb").ok()).unwrap();
    let gpus: Vec<&str> = four.devices().iter().filter(|device| device.is_gpu()).map(|it| it.name.as_str()).collect();
    assert_eq!((gpus.len(), gpus[0], gpus[8], gpus[31]), (32, "gpu0", "gpu8", "gpu31"));
    let of = |name: &str| &four.devices()[four.device(name).unwrap()];
    assert_eq!(["gpu7", "gpu8", "cpu2", "gpu31"].map(|name| of(name).node.index()), [0, 1, 1, 3]);
    assert_eq!(["gpu7", "gpu8", "gpu31"].map(|name| of(name).index), [7, 0, 7]);
    let host = |name: &str| four.memories()[four.host_memory(four.device(name).unwrap()).unwrap()].name.as_str();
    assert_eq!(["gpu0", "gpu7", "gpu8", "gpu15"].map(host), ["dram0", "dram1", "dram2", "dram3"]);
    assert_eq!(four.memories()[four.memory("gpu9").unwrap()].capacity, Bytes::gib(80));
    // The machine survives its file, and the part of it that a plan uses.
    assert_eq!(Hardware::from_toml("four", &four.to_toml()).unwrap(), four);
    let part = four.restricted_to(&["gpu0".into(), "gpu8".into(), "cpu0".into()]).unwrap();
    assert_eq!(part.devices().len(), 3);
    assert_eq!(links(&part, "gpu0", "gpu8"), links(&four, "gpu0", "gpu8"));
}

#[test]
fn copies_between_computers_pass_the_cards_of_their_gpus() {
    let one = machine("a100-80g-x8-nvlink");
    let on = |network: &str| one.on_nodes(2, NetworkFile::parse(network).ok()).unwrap();
    let four = on("4x200Gb");
    let way = links(&four, "gpu2", "gpu8");
    assert_eq!(
        way,
        ["n0-pcie2.up", "n0-nic1-bus.up", "n0-nic1-port.up", "n1-nic0-port.down", "n1-nic0-bus.down", "n1-pcie0.down"]
    );
    assert_eq!(links(&four, "gpu0", "gpu1"), ["n0-nvlink0.up", "n0-nvlink1.down"]);
    let eight = on("8x25GB/s");
    for (from, to) in [(0, 8), (1, 9), (7, 8)] {
        let way = links(&eight, &format!("gpu{from}"), &format!("gpu{to}"));
        assert_eq!(way[0], format!("n0-nic{from}-bus.up"), "each GPU has its own card: {way:?}");
    }
    // No copy within a computer passes a card, and drams reach each other.
    let within = links(&eight, "gpu3", "dram0");
    assert!(within.iter().all(|link| !link.contains("nic")), "{within:?}");
    assert!(links(&eight, "dram0", "dram2").iter().any(|link| link.contains("nic")));
    let rate = |machine: &Hardware, name: &str| machine.links()[machine.link(name).unwrap()].bandwidth.get();
    assert!((rate(&eight, "n1-nic3-port.up") / 25e9 - 1.0).abs() < 1e-9);
    assert!((rate(&four, "n1-nic3-port.up") / (25e9 * 0.92) - 1.0).abs() < 1e-9);
}

#[test]
fn a_narrow_network_has_uplinks() {
    let one = machine("a100-80g-x8-nvlink");
    let network = NetworkFile { oversubscription: Some(2.0), ..NetworkFile::parse("8x25GB/s").unwrap() };
    let two = one.on_nodes(2, Some(network)).unwrap();
    let uplink = two.links()[two.link("n0-uplink.up").unwrap()].bandwidth.get();
    assert!((uplink / 100e9 - 1.0).abs() < 1e-9, "{uplink}");
    assert!(links(&two, "gpu0", "gpu8").contains(&"n0-uplink.up".to_owned()));
}

#[test]
fn wrong_networks_are_refused() {
    for wrong in ["200Gb", "x200Gb", "0x200Gb", "4x", "4xfast", "4x-1Gb"] {
        assert!(NetworkFile::parse(wrong).is_err(), "{wrong}");
    }
    let (_, text) = shipped().iter().find(|(name, _)| *name == "one-gpu").unwrap();
    let without = text.replacen("format-version = 1", "format-version = 1\nnodes = 2", 1);
    let error = Hardware::from_toml("two", &without).unwrap_err().to_string();
    assert!(error.contains("2 computers without a network") && error.contains("[network]"), "{error}");
    let sixteen = machine("v100-32g-x16");
    let error = sixteen.on_nodes(2, NetworkFile::parse("1x100Gb").ok()).unwrap_err().to_string();
    assert!(error.contains("several computers already"), "{error}");
    assert!(sixteen.devices()[DeviceId::from(0)].is_gpu());
}
