//! Hardware profiles from measurements.

use super::{Copies, Measured};
use spipe_base::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds, Text};
use spipe_hardware::{
    DramFile, ElementwisePoints, GpuFile, HardwareFile, LayerTimeFile, LinkFile, MatmulPoints, MeasuredFile, Peak,
    SocketFile,
};

/// Properties of a profile that are not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmeasured {
    /// The name of the machine.
    pub name: String,
    /// Capacity of each emulated accelerator.
    pub memory: Bytes,
    /// Capacity of the host.
    pub host_memory: Bytes,
    /// Bandwidth of each accelerator's link in each direction.
    pub link: BytesPerSecond,
    /// Latency of that link.
    pub latency: Seconds,
    /// Date, command and spread.
    pub measured: MeasuredFile,
}

/// A machine of `accelerators`, as `gpu0`, `gpu1` …, emulated or not, each with a link of its own;
/// and one socket, `cpu0` with `dram0`.
pub fn measured_machine(accelerators: &[Measured], socket: &Measured, machine: &Unmeasured) -> HardwareFile {
    let mut file = HardwareFile::new(&machine.name);
    let count = accelerators.len();
    let plural = if count == 1 { "" } else { "s" };
    file.description = Some(if accelerators.iter().all(|accelerator| accelerator.executor.is_emulated()) {
        format!("This machine with {count} emulated accelerator{plural}: cores with a memory cap and a paced link.")
    } else {
        format!("This machine with {count} accelerator{plural}, as measured.")
    });
    file.socket.push(socket_file(socket, machine));
    for (index, accelerator) in accelerators.iter().enumerate() {
        let name = format!("gpu{index}");
        file.gpu.push(gpu_file(&name, accelerator, machine));
        let mut link = LinkFile::new(format!("pcie{index}"), [&name, "root0"], machine.link);
        link.latency = Some(Text(machine.latency));
        link.source = Some("set when the profile was made".into());
        if let Some(Copies { run: [inbound, outbound], .. }) = accelerator.copies {
            (link.bandwidth, link.up, link.down) = (None, Some(Text(outbound)), Some(Text(inbound)));
            link.source = Some("measured with copies of 64 MiB, as actions copy".into());
        }
        file.link.push(link);
    }
    if count > 0 {
        let mut root = LinkFile::new("root0-dram0", ["root0", "dram0"], socket.memory_bandwidth);
        root.source =
            Some("the measured bandwidth of the memory, which is what there is behind the emulated links".into());
        file.link.push(root);
    }
    file
}

fn socket_file(measured: &Measured, machine: &Unmeasured) -> SocketFile {
    let dram = DramFile::new("dram0", machine.host_memory, measured.memory_bandwidth);
    let mut socket = SocketFile::new("cpu0", cores(measured), measured.optimizer_rate, dram);
    socket.peak = peak(measured);
    socket.launch_floor = Some(Text(measured.launch_floor));
    socket.matmul = matmul(measured);
    socket.elementwise = bandwidths(&measured.elementwise);
    socket.matvec = bandwidths(&measured.matvec);
    socket.layer_time = layer_times(measured);
    socket.measured = Some(machine.measured.clone());
    socket
}

fn gpu_file(name: &str, measured: &Measured, machine: &Unmeasured) -> GpuFile {
    let mut gpu = GpuFile::new(name, machine.memory, optimizer_bandwidth(measured));
    gpu.emulated = measured.executor.is_emulated();
    gpu.cores = gpu.emulated.then(|| cores(measured));
    gpu.peak = peak(measured);
    gpu.launch_floor = Some(Text(measured.launch_floor));
    gpu.matmul = matmul(measured);
    gpu.elementwise = bandwidths(&measured.elementwise);
    gpu.matvec = bandwidths(&measured.matvec);
    gpu.layer_time = layer_times(measured);
    gpu.measured = Some(machine.measured.clone());
    gpu
}

/// Bytes moved by an f32 step of AdamW per parameter: gradient in, parameter and two moments in and
/// out.
const STEP_BYTES: f64 = 28.0;

/// The memory bandwidth of an accelerator, derived from its optimizer rate. The cost model uses it
/// for optimizer steps alone: other operations that depend on bandwidth have measured points.
fn optimizer_bandwidth(measured: &Measured) -> BytesPerSecond {
    BytesPerSecond::bytes(measured.optimizer_rate.get() * STEP_BYTES)
}

fn cores(measured: &Measured) -> u32 {
    measured.executor.cpu().map_or(1, |(_, cores)| cores.len().max(1) as u32)
}

fn peak(measured: &Measured) -> Peak {
    // Every measurement has at least one point.
    let best = |data_type| Text(measured.best_rate(data_type).unwrap_or(FlopsPerSecond::flops(1e9)));
    measured.matmul.keys().map(|data_type| (*data_type, best(*data_type))).collect()
}

fn matmul(measured: &Measured) -> MatmulPoints {
    let texts =
        |points: &Vec<(Flops, FlopsPerSecond)>| points.iter().map(|(work, rate)| (Text(*work), Text(*rate))).collect();
    measured.matmul.iter().map(|(data_type, points)| (*data_type, texts(points))).collect()
}

fn bandwidths(points: &[(Bytes, BytesPerSecond)]) -> ElementwisePoints {
    points.iter().map(|(bytes, rate)| (Text(*bytes), Text(*rate))).collect()
}

fn layer_times(measured: &Measured) -> Vec<LayerTimeFile> {
    let file = |layer: &super::MeasuredLayer| LayerTimeFile {
        layer: layer.signature.clone(),
        data_type: layer.data_type,
        forward: Text(layer.forward),
        backward_input: Text(layer.backward_input),
        backward_weight: Text(layer.backward_weight),
        replay: Some(Text(layer.replay)),
        split: (layer.split > Seconds::ZERO).then_some(Text(layer.split)),
    };
    measured.layers.iter().map(file).collect()
}
