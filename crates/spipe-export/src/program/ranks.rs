//! The processes of a program: one for each device that computes.

use super::file::Rank;
use spipe_base::{ActionKind, DeviceId, MemoryId, Payload};
use spipe_hardware::{DeviceKind, Hardware};
use spipe_plan::Plan;
use spipe_schedule::{Lane, Program};
use std::collections::BTreeMap;

/// The processes by device. Sockets that only run optimizer steps belong to the first process of
/// their NUMA node.
#[derive(Clone, Debug)]
pub struct Ranks {
    computing: Vec<DeviceId>,
    sockets: BTreeMap<DeviceId, usize>,
}

impl Ranks {
    /// The processes of a program.
    pub fn of(plan: &Plan, program: &Program) -> Self {
        let hardware = plan.context().hardware;
        let mut computing: Vec<DeviceId> = program.stages().iter().map(|stage| stage.device).collect();
        computing.sort_unstable();
        computing.dedup();
        let beside = |socket: DeviceId| {
            let dram = hardware.devices()[socket].memory;
            let near = |device: &DeviceId| hardware.host_memory(*device) == Some(dram);
            computing.iter().position(near).unwrap_or_default()
        };
        let lanes = program.lanes().iter().map(|lane| lane.device);
        let sockets =
            lanes.filter(|device| !computing.contains(device)).map(|device| (device, beside(device))).collect();
        Self { computing, sockets }
    }

    /// The process of a device that computes.
    pub fn of_device(&self, device: DeviceId) -> Option<usize> {
        self.computing.iter().position(|other| *other == device)
    }

    /// The process that runs the lanes of a device.
    pub fn of_lane(&self, device: DeviceId) -> usize {
        self.of_device(device).or_else(|| self.sockets.get(&device).copied()).unwrap_or_default()
    }

    /// The process into whose device a lane copies, if it is another one's.
    pub fn receiver(&self, program: &Program, lane: &Lane) -> Option<usize> {
        let passes = |kind| {
            matches!(
                kind,
                ActionKind::Copy(
                    Payload::Activation
                        | Payload::Gradient
                        | Payload::Checkpoint
                        | Payload::WeightsIn
                        | Payload::GradientsOut
                )
            )
        };
        let own = program.devices()[lane.device].memory;
        let actions = lane.queue.iter().map(|id| &program.actions()[*id]).filter(|action| passes(action.kind));
        let mut targets =
            actions.flat_map(|action| program.writes(action)).map(|write| program.buffers()[write.buffer].memory);
        let target = targets.find(|memory| *memory != own)?;
        let receiver = self.computing.iter().position(|device| program.devices()[*device].memory == target)?;
        (receiver != self.of_lane(lane.device)).then_some(receiver)
    }

    /// The processes in the file.
    pub fn list(&self, plan: &Plan) -> Vec<Rank> {
        let hardware = plan.context().hardware;
        let rank = |id: &DeviceId| {
            let device = &hardware.devices()[*id];
            let real = device.is_gpu() && !device.emulated;
            let before = |(other, that): &(DeviceId, &spipe_hardware::Device)| {
                *other < *id && that.is_gpu() && !that.emulated && that.node == device.node
            };
            Rank {
                device: device.name.clone(),
                kind: if real { "gpu" } else { "cpu" }.into(),
                gpu: real.then(|| hardware.devices().enumerate().filter(before).count()),
                numa_node: hardware.host_memory(*id).and_then(|dram| numa_node(hardware, dram)),
            }
        };
        self.computing.iter().map(rank).collect()
    }

    /// The NUMA node of a DRAM.
    pub fn numa_node(&self, plan: &Plan, memory: MemoryId) -> Option<u32> {
        numa_node(plan.context().hardware, memory)
    }
}

fn numa_node(hardware: &Hardware, memory: MemoryId) -> Option<u32> {
    let memory = hardware.memories()[memory].pageable_view_of.unwrap_or(memory);
    hardware.devices().iter().find_map(|device| match device.kind {
        DeviceKind::Socket { numa_node, .. } if device.memory == memory => Some(numa_node),
        _ => None,
    })
}
