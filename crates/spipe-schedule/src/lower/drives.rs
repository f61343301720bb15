//! Optimizer state on drives: it is read before its step and written after it. Parameters on drives:
//! they are read before each use.
//!
//! ```text
//! nvme0.read       state in ─┐               ┌─ the next but two
//! cpu0.optimizer             └─► step ─┐     │
//! nvme0.write                          └─► state out
//! ```
//!
//! A queue of steps has [`STATE_SLOTS`] slots in DRAM: a read waits until the state that is that many
//! steps before it is written. A device has [`LOAD_SLOTS`] slots for parameters on their way to it.

use super::flows::{Transfer, route};
use crate::{Access, Anchor, Content, Edge, Lifetime, NewAction, Part, ProgramBuilder};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Faults, IdleCause, LaneRole, MemoryId, Payload, SimTime, Subject,
};
use spipe_plan::{Context, LOAD_SLOTS, STATE_SLOTS};
use std::collections::BTreeMap;

/// An optimizer state that a drive keeps.
#[derive(Clone, Copy)]
pub(super) struct DriveState {
    pub subject: Subject,
    pub content: Content,
    pub part: Option<Part>,
    pub bytes: Bytes,
    pub drive: MemoryId,
    /// The memory of its step.
    pub host: MemoryId,
    /// The device whose steps share slots.
    pub queue: DeviceId,
}

/// A state that has been read for its step.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub state: DriveState,
    /// The state on its drive.
    kept: BufferId,
    /// The state in the memory of its step.
    staged: BufferId,
    action: ActionId,
}

impl Read {
    /// The state before its step and after it.
    pub const fn versions(&self) -> (Access, Access) {
        (Access::new(self.staged, 1), Access::new(self.staged, 2))
    }
}

impl DriveState {
    /// The copy of the state over the routes of a machine, from its drive or back to it.
    pub fn over_routes(&self, context: &Context<'_>, payload: Payload, faults: &mut Faults) -> Transfer {
        let (from, to) = if payload == Payload::StateIn { (self.drive, self.host) } else { (self.host, self.drive) };
        over_route(context, (from, to), self.bytes, faults)
    }
}

/// A copy of `bytes` over the route between a drive and DRAM.
pub(super) fn over_route(
    context: &Context<'_>,
    (from, to): (MemoryId, MemoryId),
    bytes: Bytes,
    faults: &mut Faults,
) -> Transfer {
    let flow = route(context, from, to, bytes).map_err(|fault| faults.push(fault));
    Transfer { work: SimTime::ZERO, flows: flow.into_iter().collect() }
}

/// The states that pass through each host, by the device of their queue.
#[derive(Clone, Debug, Default)]
pub(super) struct DriveStates {
    queues: BTreeMap<(DeviceId, MemoryId), Vec<(ActionId, ActionId)>>,
}

impl DriveStates {
    /// Adds the read of a state.
    pub fn read(&mut self, builder: &mut ProgramBuilder, state: DriveState, transfer: Transfer) -> Read {
        let DriveState { content, bytes, drive, host, .. } = state;
        let mut hold = |memory, lifetime| match state.part {
            Some(part) => builder.part(part, content, memory, (bytes, lifetime)),
            None => builder.buffer(content, memory, bytes, lifetime),
        };
        let (kept, staged) = (hold(drive, Lifetime::Resident), hold(host, Lifetime::Transient));
        let ends = (Access::new(kept, 0), Access::new(staged, 1));
        let action = copy(builder, drive, (Payload::StateIn, state.subject, transfer), ends);
        self.enter(builder, (state.queue, host), action);
        Read { state, kept, staged, action }
    }

    /// Adds the write of a state after its step.
    pub fn write(&mut self, builder: &mut ProgramBuilder, read: &Read, transfer: Transfer) {
        let (state, ends) = (&read.state, (read.versions().1, Access::new(read.kept, 1)));
        let action = copy(builder, state.drive, (Payload::StateOut, state.subject, transfer), ends);
        self.leave((state.queue, state.host), (read.action, action));
    }

    /// Lets a read into a slot of a queue wait for the write that frees it.
    pub fn enter(&mut self, builder: &mut ProgramBuilder, queue: (DeviceId, MemoryId), read: ActionId) {
        let before = self.queues.entry(queue).or_default();
        if let Some((_, written)) = before.len().checked_sub(STATE_SLOTS).and_then(|index| before.get(index)) {
            waits(builder, (*written, read), 0);
        }
    }

    /// Adds the read of a step with its write, in the order of the steps of a queue.
    pub fn leave(&mut self, queue: (DeviceId, MemoryId), (read, written): (ActionId, ActionId)) {
        self.queues.entry(queue).or_default().push((read, written));
    }

    /// Adds the precedences across iterations: the first reads wait for the slots of the last states.
    pub fn join_iterations(&self, builder: &mut ProgramBuilder) {
        for queue in self.queues.values().filter(|queue| queue.len() > STATE_SLOTS) {
            for ((read, _), (_, written)) in queue.iter().zip(&queue[queue.len() - STATE_SLOTS..]) {
                waits(builder, (*written, *read), 1);
            }
        }
    }
}

/// The parameters that pass from drives through DRAM, by the device to which they go.
#[derive(Clone, Debug, Default)]
pub(super) struct Loads(BTreeMap<DeviceId, Vec<Load>>);

/// The reads that fill a slot, and the actions that use what is there. A slot without the latter is open.
#[derive(Clone, Debug, Default)]
struct Load {
    reads: Vec<ActionId>,
    uses: Vec<ActionId>,
}

impl Loads {
    /// Adds a read into the open slot of a device. A slot is opened if none is, once its last content
    /// has been used.
    pub fn enter(&mut self, builder: &mut ProgramBuilder, (device, read): (DeviceId, ActionId)) {
        let loads = self.0.entry(device).or_default();
        if loads.last().is_none_or(|last| !last.uses.is_empty()) {
            loads.push(Load::default());
        }
        let before = (loads.len() - 1).checked_sub(LOAD_SLOTS);
        for used in before.iter().flat_map(|index| &loads[*index].uses) {
            waits(builder, (*used, read), 0);
        }
        if let Some(last) = loads.last_mut() {
            last.reads.push(read);
        }
    }

    /// Closes the open slot of a device, which `uses` use.
    pub fn leave(&mut self, (device, uses): (DeviceId, &[ActionId])) {
        let last = self.0.get_mut(&device).and_then(|loads| loads.last_mut());
        if let Some(last) = last.filter(|last| last.uses.is_empty()) {
            last.uses = uses.to_vec();
        }
    }

    /// Adds the precedences across iterations: the first reads wait for the slots of the last ones.
    pub fn join_iterations(&self, builder: &mut ProgramBuilder) {
        for loads in self.0.values() {
            for (last, first) in loads.iter().skip(loads.len().saturating_sub(LOAD_SLOTS)).zip(loads) {
                for used in &last.uses {
                    first.reads.iter().for_each(|read| waits(builder, (*used, *read), 1));
                }
            }
        }
    }
}

/// Adds a copy between a drive and DRAM, on the lane of the drive for its direction.
pub(super) fn copy(
    builder: &mut ProgramBuilder,
    drive: MemoryId,
    what: (Payload, Subject, Transfer),
    (read, write): (Access, Access),
) -> ActionId {
    copy_all(builder, drive, what, (vec![read], vec![write]))
}

/// The same of several buffers at once.
pub(super) fn copy_all(
    builder: &mut ProgramBuilder,
    drive: MemoryId,
    (payload, subject, Transfer { work, flows }): (Payload, Subject, Transfer),
    (reads, writes): (Vec<Access>, Vec<Access>),
) -> ActionId {
    let (word, role) = match payload {
        Payload::StateIn | Payload::Reload | Payload::WeightsIn => ("read", LaneRole::NvmeIn),
        _ => ("write", LaneRole::NvmeOut),
    };
    let device = builder.drive(drive);
    let lane = builder.lane(device, word, role);
    builder.action(NewAction {
        lane,
        kind: ActionKind::Copy(payload),
        subject,
        reads,
        writes,
        work,
        flows,
        guard: None,
    })
}

fn waits(builder: &mut ProgramBuilder, (from, to): (ActionId, ActionId), distance: u8) {
    let (anchor, cause) = (Anchor::EndToStart, IdleCause::Memory);
    builder.edge(Edge { from, to, anchor, distance, lag: SimTime::ZERO, cause });
}
