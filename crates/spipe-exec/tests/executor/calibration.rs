//! Calibration keeps to its budget and yields a machine for which plans can be made.

use crate::machine;
use spipe_base::{Bytes, BytesPerSecond, DataType, Seconds};
use spipe_exec::{CalibrationRequest, Copies, Executor, Measured, Unmeasured, calibrate, measured_machine};
use spipe_hardware::{Hardware, MeasuredFile};
use spipe_model::{Batch, Model};
use std::time::{Duration, Instant};

#[test]
fn a_short_calibration_measures_everything_in_time() {
    let model = Model::from_toml("model.toml", machine::LLAMA).unwrap();
    let batch = Batch { microbatch: 2, seq_len: 16 };
    let request = CalibrationRequest {
        executors: vec!["emulated:0".parse().unwrap(), "cpu:0".parse().unwrap()],
        layers: Some((&model, batch)),
        tokens: vec![1, 4],
        budget: Duration::from_secs(4),
    };
    let start = Instant::now();
    let mut progress = Vec::new();
    let measured = calibrate(&request, &mut |step| progress.push(step.clone())).unwrap();
    // Every measurement is made at least twice, however short the budget.
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    assert_eq!(progress.last().map(|last| (last.done, last.of)), Some((20, 20)));
    assert_eq!(measured.devices.len(), 2);
    for device in &measured.devices {
        assert!(
            device.matmul[&DataType::F32].len() >= 3 && device.elementwise.len() >= 3 && device.matvec.len() >= 3,
            "{device:?}"
        );
        let signatures: Vec<&str> = device.layers.iter().map(|layer| layer.signature.as_str()).collect();
        assert_eq!(signatures.len(), 9, "embedding, block, head: {signatures:?} {:?}", device.skipped);
    }
    let parts = Unmeasured {
        name: "here".into(),
        memory: Bytes::mib(512),
        host_memory: Bytes::gib(8),
        link: BytesPerSecond::gb(4.0),
        latency: Seconds::us(10.0),
        measured: MeasuredFile { date: "2026-01-01".into(), command: "test".into(), spread: "5 %".into() },
    };
    let file = measured_machine(&measured.devices[..1], &measured.devices[1], &parts);
    let machine = Hardware::from_file("here", file).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(machine.warnings().is_empty(), "{}", machine.warnings());
    let gpu = &machine.devices()[machine.device("gpu0").unwrap()];
    assert!(gpu.emulated);
    for layer in model.layers() {
        for sequences in [1, 4] {
            let signature = layer.generate_signature(Batch { microbatch: sequences, ..batch });
            assert!(gpu.layer_time(&signature, DataType::F32).is_some(), "{signature}");
        }
        assert!(gpu.layer_time(&layer.signature(batch), DataType::F32).is_some(), "{}", layer.name);
    }
    let (vram, dram) = (machine.memory("gpu0").unwrap(), machine.memory("dram0").unwrap());
    assert!(machine.route(vram, dram).is_some() && machine.route(dram, vram).is_some());
    Hardware::from_toml("here", &machine.to_toml()).unwrap_or_else(|faults| panic!("{faults}"));
    a_device_with_a_memory_of_its_own(&measured.devices, &parts);
}

/// Checks a device with discrete memory: its link has the rates that copies of a run were measured at, and it has a
/// rate for each compute type.
fn a_device_with_a_memory_of_its_own(devices: &[Measured], parts: &Unmeasured) {
    let mut real = Measured {
        executor: Executor::Cuda { index: 0 },
        copies: Some(Copies {
            pinned: [50.0, 45.0].map(BytesPerSecond::gb),
            pageable: [9.0, 8.0].map(BytesPerSecond::gb),
            run: [24.0, 20.0].map(BytesPerSecond::gb),
        }),
        ..devices[0].clone()
    };
    real.matmul.insert(DataType::Bf16, real.matmul[&DataType::F32].clone());
    let file = measured_machine(&[real], &devices[1], parts);
    let machine = Hardware::from_file("here", file).unwrap_or_else(|faults| panic!("{faults}"));
    let gpu = &machine.devices()[machine.device("gpu0").expect("an accelerator")];
    assert!(!gpu.emulated && gpu.peak.contains_key(&DataType::Bf16) && !gpu.peak.contains_key(&DataType::F16));
    let link = |name: &str| machine.links().iter().find(|link| link.name == name).map(|link| link.bandwidth);
    assert_eq!(link("pcie0.up"), Some(BytesPerSecond::gb(20.0)));
    assert_eq!(link("pcie0.down"), Some(BytesPerSecond::gb(24.0)));
}
