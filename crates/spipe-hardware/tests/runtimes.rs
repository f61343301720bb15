//! Runtimes: the shipped files, their faults, and their effect on memories.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::{Bytes, Text};
use spipe_hardware::{Constant, Hardware, Runtime, shipped, shipped_runtimes};

fn machine(name: &str) -> Hardware {
    let (file, text) = shipped().iter().find(|(known, _)| *known == name).unwrap();
    Hardware::from_toml(file, text).unwrap()
}

fn runtime(text: &str) -> Runtime {
    Runtime::from_toml("runtime.toml", &format!("format-version = 1\nname = \"own\"\n{text}")).unwrap()
}

fn refusal(text: &str) -> String {
    Runtime::from_toml("runtime.toml", &format!("format-version = 1\nname = \"own\"\n{text}")).unwrap_err().to_string()
}

#[test]
fn shipped_runtimes_are_valid_and_read_back() {
    for (name, text) in shipped_runtimes() {
        let read = Runtime::from_toml(name, text).unwrap();
        assert_eq!(read.name(), *name);
        assert_eq!(Runtime::from_toml(name, &read.to_toml()).unwrap(), read);
    }
    assert_eq!(Runtime::shipped("spipe").unwrap(), Runtime::default());
}

#[test]
fn the_runtime_spipe_leaves_every_shipped_machine_as_it_is() {
    for (name, _) in shipped() {
        let plain = machine(name);
        assert_eq!(plain.clone().under(Runtime::shipped("spipe").unwrap()), plain, "{name}");
        assert_eq!(
            plain.clone().under(Runtime::shipped("megatron").unwrap()).under(Runtime::default()),
            plain,
            "{name}"
        );
    }
}

#[test]
fn the_larger_of_two_counts_of_contexts_holds() {
    let usable = |machine: &Hardware, name: &str| machine.memories()[machine.memory(name).unwrap()].usable();
    // The profile reserves 0.6 GiB on its only card.
    let plain = machine("rtx4090-pcie4-128gb");
    let with = |bytes: &str| {
        runtime(&format!("[memory]\ncontext = \"{bytes}\"\ncommunicators = \"9 GiB\"\nsource = \"test\"\n"))
    };
    assert_eq!(usable(&plain.clone().under(with("0.5 GiB")), "gpu0"), usable(&plain, "gpu0"));
    assert_eq!(usable(&plain.clone().under(with("2 GiB")), "gpu0"), Bytes::gib(22));
    // A machine of several cards has communicators too.
    let several = machine("a100-80g-x2").under(with("2 GiB"));
    assert_eq!(usable(&several, "gpu1"), Bytes::gib(69));
    let lost = runtime("[memory]\nallocator-share = 0.5\nhost-share = 0.25\nsource = \"test\"\n");
    let lossy = plain.clone().under(lost);
    assert_eq!(usable(&lossy, "gpu0").get(), usable(&plain, "gpu0").get() / 2);
    assert_eq!(usable(&lossy, "dram0").get(), usable(&plain, "dram0").get() / 4 * 3);
    let roomy = plain.clone().with_head_room(0.5);
    assert_eq!(usable(&roomy, "dram0").get(), usable(&plain, "dram0").get() / 2);
    let larger = roomy.with_larger(&[plain.memory("dram0").unwrap()], Bytes::gib(2)).unwrap();
    assert_eq!(usable(&larger, "dram0"), usable(&roomy, "dram0") + Bytes::gib(1));
}

#[test]
fn every_constant_can_be_replaced_alone() {
    let plain = Runtime::shipped("megatron").unwrap();
    for constant in Constant::ALL {
        let changed = plain.with_constant(constant, 0.5).unwrap();
        for other in Constant::ALL {
            let expected = if other == constant { 0.5 } else { plain.constant(other) };
            assert!((changed.constant(other) - expected).abs() < 1e-12, "{}", other.name());
        }
        assert_eq!(Constant::named(constant.name()), Some(constant));
        assert!(plain.with_constant(constant, -1.0).is_err() && plain.with_constant(constant, f64::NAN).is_err());
    }
    let time = plain.with_constant(Constant::Launch, 2e-6).unwrap();
    assert_eq!(time.file().host.as_ref().unwrap().launch.map(|Text(time)| time), Some(time.launch()));
}

#[test]
fn faults_name_the_key_and_its_place() {
    let unknown = refusal("[host]\nlunch = \"6 us\"\nsource = \"test\"\n");
    assert!(unknown.contains("runtime.toml:4:1") && unknown.contains("did you mean `launch`"), "{unknown}");
    assert!(refusal("[host]\nlaunch = 6\nsource = \"test\"\n").contains("expected a duration"));
    assert!(refusal("[host]\nlaunch = \"6 us\"\n").contains("`host` has no source"));
    assert!(refusal("[kernels]\nattention = \"flash-9\"\nsource = \"test\"\n").contains("known: products"));
    assert!(refusal("[efficiency]\nproducts = 0\nsource = \"test\"\n").contains("above 0"));
    assert!(refusal("[memory]\nhost-share = 1.5\nsource = \"test\"\n").contains("share from 0 to 1"));
    assert!(refusal("[kernels]\nblock = { forward = -1, backward = 2 }\nsource = \"test\"\n").contains("launches"));
    assert!(Runtime::from_toml("r", "format-version = 2\nname = \"x\"\n").unwrap_err().to_string().contains("version"));
}
