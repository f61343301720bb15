//! The processes of a program: one for each device that computes.

use crate::ranks::{self, Rank};
use spipe_base::{ActionKind, DeviceId, MemoryId, Payload};
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
        // The devices of drives follow those of the machine; the first process runs their lanes.
        let is_socket = |device: &DeviceId| !computing.contains(device) && device.index() < hardware.devices().len();
        let lanes = program.lanes().iter().map(|lane| lane.device);
        let sockets = lanes.filter(is_socket).map(|device| (device, beside(device))).collect();
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
        let socket = |device: DeviceId| {
            let near = plan.context().hardware.host_memory(device);
            let beside = |socket: &&DeviceId| Some(plan.context().hardware.devices()[**socket].memory) == near;
            self.sockets.keys().find(beside).copied().unwrap_or(device)
        };
        ranks::ranks(plan, &self.computing, socket)
    }

    /// The place of a DRAM among the sockets of the computer.
    pub fn socket(&self, plan: &Plan, memory: MemoryId) -> Option<usize> {
        ranks::socket_of_memory(plan.context().hardware, *self.computing.first()?, memory)
    }
}
