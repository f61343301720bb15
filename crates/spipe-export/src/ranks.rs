//! The processes of an export: the device of each, and the part of its computer to which it is bound.

use serde::Serialize;
use spipe_base::{DeviceId, MemoryId, NodeId};
use spipe_hardware::{Device, DeviceKind, Hardware};
use spipe_plan::Plan;
use std::collections::BTreeSet;

/// A process and its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Rank {
    /// The name of the device in the plan.
    pub device: String,
    /// `gpu` or `cpu`; emulated accelerators are cores.
    pub kind: &'static str,
    /// The number of the computer among those of the plan, as launchers count them.
    pub node: usize,
    /// The number of the GPU among those of its computer, as `nvidia-smi` counts them.
    gpu: Option<u32>,
    /// The socket near the device, or the one on which its steps run, among the `sockets` of its computer.
    socket: Option<usize>,
    sockets: usize,
    /// The cores that this process may use of that socket.
    threads: u32,
}

impl Rank {
    /// Whether it has a GPU of its own.
    pub fn is_gpu(&self) -> bool {
        self.kind == "gpu"
    }
}

/// `devices` so that those of one computer are neighbours, as launchers number their processes.
pub fn by_node(hardware: &Hardware, mut devices: Vec<DeviceId>) -> Vec<DeviceId> {
    devices.sort_by_key(|device| hardware.devices()[*device].node);
    devices
}

/// The process of each device; `steps_on` is the device on which the optimizer of one runs.
pub fn ranks(plan: &Plan, devices: &[DeviceId], steps_on: impl Fn(DeviceId) -> DeviceId) -> Vec<Rank> {
    let hardware = plan.context().hardware;
    let workers: Vec<DeviceId> = devices.iter().map(|device| steps_on(*device)).collect();
    let node = |device: &DeviceId| hardware.devices()[*device].node;
    let nodes: BTreeSet<NodeId> = devices.iter().map(node).collect();
    let rank = |(device, worker): (&DeviceId, &DeviceId)| {
        let found = &hardware.devices()[*device];
        let sharing = workers.iter().filter(|other| *other == worker).count();
        let (socket, sockets) = socket_of(hardware, *device, *worker);
        Rank {
            device: found.name.clone(),
            kind: if is_real_gpu(found) { "gpu" } else { "cpu" },
            node: nodes.iter().position(|other| *other == found.node).unwrap_or_default(),
            gpu: is_real_gpu(found).then_some(found.index),
            socket,
            sockets,
            threads: (cores(&hardware.devices()[*worker]) / sharing as u32).max(1),
        }
    };
    devices.iter().zip(&workers).map(rank).collect()
}

/// The place of a DRAM among those of a device's computer.
pub fn socket_of_memory(hardware: &Hardware, device: DeviceId, memory: MemoryId) -> Option<usize> {
    let mut drams: Vec<MemoryId> = hardware.host_memories(device).to_vec();
    drams.sort();
    drams.iter().position(|dram| *dram == hardware.pool(memory))
}

const fn is_real_gpu(device: &Device) -> bool {
    device.is_gpu() && !device.emulated
}

/// The place of the DRAM near a device among those of its computer, and their number. The optimizer's
/// socket goes before the device's own. An emulated accelerator is bound nowhere.
fn socket_of(hardware: &Hardware, device: DeviceId, worker: DeviceId) -> (Option<usize>, usize) {
    if hardware.devices()[device].emulated {
        return (None, 0);
    }
    let mut drams: Vec<MemoryId> = hardware.host_memories(device).to_vec();
    drams.sort();
    let home = if hardware.devices()[worker].is_socket() {
        Some(hardware.pool(hardware.devices()[worker].memory))
    } else {
        hardware.host_memory(device)
    };
    (home.and_then(|home| drams.iter().position(|dram| *dram == home)), drams.len())
}

/// The cores that compute for a device; a GPU needs one for its launches.
fn cores(device: &Device) -> u32 {
    match device.kind {
        DeviceKind::Socket { cores, .. } => cores,
        DeviceKind::Gpu => device.emulated_cores.unwrap_or(1),
    }
}
