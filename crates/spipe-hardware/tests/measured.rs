//! Files written by a calibration, and the use of their measured numbers.

use spipe_base::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, ParamsPerSecond, Seconds, Text};
use spipe_hardware::{
    DataType, DramFile, GpuFile, Hardware, HardwareFile, LayerTimeFile, LinkFile, MeasuredFile, MeasuredLayer,
    Provenance, SocketFile,
};

fn calibrated() -> HardwareFile {
    let mut file = HardwareFile::new("here");
    let dram = DramFile::new("dram0", Bytes::gib(16), BytesPerSecond::gb(20.0));
    let mut socket = SocketFile::new("cpu0", 2, ParamsPerSecond::gparams(0.3), dram);
    let measured = MeasuredFile {
        date: "2026-01-31".into(),
        command: "spipe calibrate -o here.toml".into(),
        spread: "3 %".into(),
    };
    socket.measured = Some(measured.clone());
    socket.peak.insert(DataType::F32, Text(FlopsPerSecond::tflops(0.2)));
    let point = |flops, tflops| (Text(Flops::flop(flops)), Text(FlopsPerSecond::tflops(tflops)));
    socket.matmul.insert(DataType::F32, vec![point(1e6, 0.01), point(1e8, 0.11), point(1e10, 0.12)]);
    socket.elementwise = vec![(Text(Bytes::mib(1)), Text(BytesPerSecond::gb(5.0)))];
    let layer = "linear 1024×1024 batch 8";
    socket.layer_time.push(LayerTimeFile {
        layer: layer.into(),
        data_type: DataType::F32,
        forward: Text(Seconds::ms(1.5)),
        backward_input: Text(Seconds::ms(1.6)),
        backward_weight: Text(Seconds::ms(1.7)),
        replay: Some(Text(Seconds::ms(0.3))),
        split: Some(Text(Seconds::ms(0.2))),
    });
    file.socket.push(socket);
    let mut gpu = GpuFile::new("gpu0", Bytes::gib(1), BytesPerSecond::gb(10.0));
    (gpu.emulated, gpu.cores, gpu.measured) = (true, Some(1), Some(measured));
    gpu.peak.insert(DataType::F32, Text(FlopsPerSecond::tflops(0.1)));
    file.gpu.push(gpu);
    file.link.push(LinkFile::new("bus0", ["gpu0", "cpu0"], BytesPerSecond::gb(2.0)));
    file
}

#[test]
fn a_calibrated_machine_survives_its_text() {
    let machine = Hardware::from_file("here.toml", calibrated()).unwrap();
    assert!(machine.warnings().is_empty(), "{}", machine.warnings());
    let again = Hardware::from_toml("here.toml", &machine.to_toml()).unwrap();
    assert_eq!(machine, again);
    assert_eq!(HardwareFile::from_toml("here.toml", &machine.to_toml()), Ok(calibrated()));
}

#[test]
fn measured_numbers_win_over_the_model() {
    let machine = Hardware::from_file("here.toml", calibrated()).unwrap();
    let socket = &machine.devices()[machine.device("cpu0").unwrap()];
    let rate = |flops: f64| socket.matmul_rate(DataType::Bf16, Flops::flop(flops)).unwrap().get() / 1e12;
    for (flops, tflops) in [(1.0, 0.01), (1e6, 0.01), (1e7, 0.06), (1e8, 0.11), (1e15, 0.12)] {
        assert!((rate(flops) - tflops).abs() < 1e-9, "{flops}");
    }
    assert_eq!(socket.elementwise_rate(Bytes::gib(1)), BytesPerSecond::gb(5.0));
    let layer = MeasuredLayer {
        forward: Seconds::ms(1.5),
        backward_input: Seconds::ms(1.6),
        backward_weight: Seconds::ms(1.7),
        replay: Seconds::ms(0.3),
        split: Seconds::ms(0.2),
    };
    assert_eq!(socket.layer_time("linear 1024×1024 batch 8", DataType::F32), Some(layer));
    assert_eq!(socket.layer_time("linear 1024×1024 batch 8", DataType::Bf16), None);
    assert_eq!(socket.layer_time("linear 1024×1024 batch 9", DataType::F32), None);
    assert!(
        matches!(socket.provenance(), Provenance::Measured { command, .. } if command.starts_with("spipe calibrate"))
    );
}

#[test]
fn an_emulated_accelerator_is_a_gpu_that_cores_play() {
    let machine = Hardware::from_file("here.toml", calibrated()).unwrap();
    let gpu = &machine.devices()[machine.device("gpu0").unwrap()];
    assert!(gpu.is_gpu() && gpu.emulated);
    assert_eq!(gpu.emulated_cores, Some(1));
    assert_eq!(gpu.arithmetic_type(DataType::F16), Some(DataType::F32));
    let names = |from: &str, to: &str| {
        let route = machine.route(machine.memory(from).unwrap(), machine.memory(to).unwrap()).unwrap();
        route.links.iter().map(|link| machine.links()[*link].name.clone()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("gpu0", "dram0"), "bus0.up dram0.channels", "a socket's name is the node of its DRAM");
}
