//! Properties of every machine.

use proptest::prelude::*;
use spipe_base::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, ParamsPerSecond, Seconds, Text};
use spipe_hardware::{DataType, DramFile, GpuFile, Hardware, HardwareFile, LinkFile, SocketFile};

/// Up to three sockets in a chain and up to six GPUs under one or two roots per socket, some joined
/// directly, some without peer access.
fn machines() -> impl Strategy<Value = HardwareFile> {
    let gpu = (0usize..3, 0usize..2, 1.0..500.0, 0u32..20, any::<bool>());
    let pair = (0usize..6, 0usize..6, 1.0..500.0, 0u32..20);
    (1usize..4, prop::collection::vec(gpu, 0..6), prop::collection::vec(pair, 0..5)).prop_map(
        |(sockets, gpus, pairs)| {
            let mut file = HardwareFile::new("random");
            let link = |name: String, ends: [&str; 2], gb: f64, us: u32| {
                let mut link = LinkFile::new(name, ends, BytesPerSecond::gb(gb));
                link.latency = Some(Text(Seconds::us(f64::from(us))));
                link
            };
            for index in 0..sockets {
                let dram = DramFile::new(format!("dram{index}"), Bytes::gib(8), BytesPerSecond::gb(40.0));
                let mut socket = SocketFile::new(format!("cpu{index}"), 4, ParamsPerSecond::gparams(1.0), dram);
                socket.peak.insert(DataType::F32, Text(FlopsPerSecond::tflops(1.0)));
                file.socket.push(socket);
                for root in 0..2 {
                    let [root, dram] = [format!("root{index}-{root}"), format!("dram{index}")];
                    file.root_complex.push(spipe_hardware::NodeFile { name: root.clone(), source: None });
                    file.link.push(link(format!("{root}-{dram}"), [&root, &dram], 50.0, 0));
                }
                if index > 0 {
                    let [here, there] = [format!("cpu{}", index - 1), format!("cpu{index}")];
                    file.link.push(link(format!("upi{index}"), [&here, &there], 20.0, 1));
                }
            }
            for (index, (socket, root, gb, us, peer_access)) in gpus.iter().enumerate() {
                let mut gpu = GpuFile::new(format!("gpu{index}"), Bytes::gib(4), BytesPerSecond::gb(900.0));
                gpu.peak.insert(DataType::F16, Text(FlopsPerSecond::tflops(100.0)));
                gpu.peer_access = Some(*peer_access);
                file.gpu.push(gpu);
                let ends = [format!("gpu{index}"), format!("root{}-{root}", socket % sockets)];
                file.link.push(link(format!("pcie{index}"), [&ends[0], &ends[1]], *gb, *us));
            }
            for (index, (a, b, gb, us)) in pairs.iter().enumerate().filter(|(_, (a, b, ..))| a != b) {
                if a.max(b) < &gpus.len() {
                    let ends = [format!("gpu{a}"), format!("gpu{b}")];
                    file.link.push(link(format!("nvlink{index}"), [&ends[0], &ends[1]], *gb, *us));
                }
            }
            file
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn routes_are_symmetric_and_joined(file in machines()) {
        let machine = Hardware::from_file("random", file).unwrap();
        for from in machine.memories().ids() {
            for to in machine.memories().ids() {
                let (there, back) = (machine.route(from, to), machine.route(to, from));
                prop_assert!(there.is_some() && back.is_some(), "all is connected");
                let (Some(there), Some(back)) = (there, back) else { continue };
                prop_assert!((there.latency.get() - back.latency.get()).abs() < 1e-12);
                prop_assert!(there.links.iter().all(|link| machine.links()[*link].bandwidth.get() > 0.0));
                let ends: Vec<_> = there.links.iter().map(|link| &machine.links()[*link]).collect();
                let node = |name: &str| name.replace("cpu", "dram");
                prop_assert!(ends.windows(2).all(|pair| node(&pair[0].to) == node(&pair[1].from)), "no gap");
            }
        }
    }

    #[test]
    fn rates_are_positive_and_grow(file in machines(), size in 0.0..1e18f64, factor in 1.0..1e6f64) {
        let machine = Hardware::from_file("random", file).unwrap();
        for device in machine.devices() {
            let data_type = if device.is_gpu() { DataType::F16 } else { DataType::F32 };
            let rate = |flops: f64| device.matmul_rate(data_type, Flops::flop(flops)).map_or(0.0, |rate| rate.get());
            prop_assert!(rate(size) > 0.0 && rate(size * factor) >= rate(size));
            prop_assert!(rate(size) < device.peak[&data_type].get());
            prop_assert!(device.elementwise_rate(Bytes::from_f64(size)) < device.memory_bandwidth);
        }
    }

    #[test]
    fn spoiled_text_is_refused_without_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        length in 0usize..40,
        put in "[a-z0-9 {}.\"=\n\\[\\]/-]{0,12}",
    ) {
        let (name, text) = which.get(spipe_hardware::shipped());
        let letters: Vec<char> = text.chars().collect();
        let start = at.index(letters.len());
        let end = (start + length).min(letters.len());
        let kept = (letters[..start].iter(), letters[end..].iter());
        let spoiled: String = kept.0.copied().chain(put.chars()).chain(kept.1.copied()).collect();
        if let Err(faults) = Hardware::from_toml(name, &spoiled) {
            prop_assert!(faults.iter().all(|fault| fault.position.is_some()));
            prop_assert!(!faults.is_harmless());
        }
    }

    #[test]
    fn text_reads_back(file in machines()) {
        let machine = Hardware::from_file("random", file.clone()).unwrap();
        prop_assert_eq!(HardwareFile::from_toml("random", &machine.to_toml()), Ok(file));
    }
}
