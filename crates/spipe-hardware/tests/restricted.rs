//! Parts of machines: every shipped machine without each of its devices, and with each alone.

use spipe_hardware::{Hardware, shipped};

fn names(machine: &Hardware) -> Vec<String> {
    machine.devices().iter().map(|device| device.name.clone()).collect()
}

#[test]
fn every_part_of_a_shipped_machine_is_a_machine() {
    let mut parts = 0;
    for (name, text) in shipped() {
        let machine = Hardware::from_toml(name, text).unwrap();
        let all = names(&machine);
        for device in &all {
            let others: Vec<String> = all.iter().filter(|other| *other != device).cloned().collect();
            for chosen in [vec![device.clone()], others].into_iter().filter(|chosen| !chosen.is_empty()) {
                let part = machine.restricted_to(&chosen).unwrap();
                assert_eq!(names(&part), chosen, "{name}");
                let again = Hardware::from_toml(name, &part.to_toml()).unwrap();
                assert_eq!(part, again, "{name}: the file of a part reads back");
                parts += 1;
            }
        }
    }
    assert!(parts > 100, "only {parts} parts");
}

#[test]
fn sockets_that_are_left_out_keep_their_memory() {
    let (name, text) = shipped().iter().find(|(name, _)| *name == "rtx3090-x4-two-sockets").unwrap();
    let machine = Hardware::from_toml(name, text).unwrap();
    let chosen = ["gpu0", "gpu3"].map(String::from);
    let part = machine.restricted_to(&chosen).unwrap();
    let route = |machine: &Hardware| {
        let (from, to) = (machine.memory("gpu0").unwrap(), machine.memory("gpu3").unwrap());
        let route = machine.route(from, to).unwrap();
        route.links.iter().map(|link| machine.links()[*link].name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(route(&part), route(&machine));
    let dram = part.memory("dram1").unwrap();
    assert_eq!(part.memories()[dram].device, None);
    assert!(part.memory("gpu1").is_none());
}

#[test]
fn unknown_devices_are_refused_together() {
    let (name, text) = shipped().iter().find(|(name, _)| *name == "one-gpu").unwrap();
    let machine = Hardware::from_toml(name, text).unwrap();
    let faults = machine.restricted_to(&["gpu0", "gpu9", "tpu"].map(String::from)).unwrap_err().to_string();
    assert!(faults.contains("`one-gpu` has no device `gpu9`") && faults.contains("`tpu`"), "{faults}");
    assert!(faults.contains("hint: its devices are gpu0, cpu0"), "{faults}");
    assert!(machine.restricted_to(&[]).is_err());
}

/// GPUs keep their numbers in a part of the machine, in its file, and in a part of the part.
#[test]
fn gpus_keep_their_numbers() {
    let (_, text) = shipped().iter().find(|(name, _)| *name == "v100-32g-x16").unwrap();
    let machine = Hardware::from_toml("machine.toml", text).unwrap();
    let found = |machine: &Hardware| -> Vec<(String, usize, u32)> {
        let devices = machine.devices().iter();
        devices.map(|device| (device.name.clone(), device.node.index(), device.index)).collect()
    };
    let all = found(&machine);
    let number = |name: &str| all.iter().find(|(device, ..)| device == name).unwrap().clone();
    // Four computers of four GPUs.
    assert_eq!((number("gpu6").2, number("gpu9").1, number("gpu9").2), (2, 2, 1));
    let names = ["gpu5", "gpu6", "gpu9", "gpu11", "cpu1"].map(String::from);
    let part = machine.restricted_to(&names).unwrap();
    let again = Hardware::from_toml("part.toml", &part.to_toml()).unwrap();
    let smaller = part.restricted_to(&names[1..4]).unwrap();
    for machine in [&part, &again, &smaller] {
        for (name, _, index) in found(machine) {
            assert_eq!(index, number(&name).2, "{name}");
        }
    }
    let ranged = text.replacen("name = \"gpu{0..15}\"", "name = \"gpu{0..15}\"\nindex = 3", 1);
    assert_ne!(&ranged, text);
    let counted = Hardware::from_toml("machine.toml", &ranged).unwrap();
    let sixth = counted.devices().iter().find(|device| device.name == "gpu6").unwrap();
    assert_eq!(sixth.index, 9, "a table counts on from its number");
}
