//! Sharded systems: each device holds a shard of every stage's parameters, gradients and optimizer
//! state, gathers a stage before its use, and runs all stages on its own microbatches (Rajbhandari
//! et al., ZeRO, 2020; Zhao et al., FSDP, 2023).
//!
//! ```text
//! forward    [read] ─► [weights in] ─► all-gather ─► forward
//! backward   [read] ─► [weights in] ─► all-gather ─► recompute, backward ─► reduce-scatter ─► [gradients out]
//! ```
//!
//! Where groups have a copy of everything each, collectives are among the devices of a group, and groups add up their
//! gradients ([`groups`]). A collective over n devices is a ring: each device receives (n − 1)/n of the bytes from the one
//! before it. A device has a window of gathered stages: those used last, and those being gathered.
//! A stage that is used again within the window is gathered once: the last stages, whose backward
//! follows their forward, and the first ones from round to round.

mod beside;
mod collectives;
mod from_drives;
mod groups;
mod optimizer;
mod participant;
mod tied;

use super::{
    collectives::Hops,
    drives::{DriveStates, Loads},
    flows::copying,
    machine::machine,
    steps::update_all,
};
use crate::{
    Access, Anchor, Content, Edge, Lifetime, NewAction, Part, Program, ProgramBuilder,
    work::{StageWork, Work},
};
use collectives::{Reduction, Whole};
use from_drives::Arrived;
use participant::{Gathered, Participant, SLOTS};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Faults, IdleCause, LaneRole, MemoryId, MicrobatchId, SimTime,
    StageId, Subject,
};
use spipe_cost::collectives::is_apart;
use spipe_plan::{Context, Placement, ShardGroups, Team, Use, check_mesh, uses_drives};
use std::ops::Range;

/// The most devices of a program that has all of them: those of one computer. The accesses of a program grow with the square
/// of its devices, since each reads the shards of all others.
const MOST_SHOWN: u64 = 8;

/// Whether one device stands for all in the program of a sharded system, which is so where many do the same.
pub(super) fn one_for_all(context: &Context<'_>, placement: &Placement) -> bool {
    let many = placement.mesh.data() > MOST_SHOWN && !context.cost.shows_all();
    many && !uses_drives(context, placement) && check_mesh(context.hardware, &placement.mesh).is_ok()
}

/// The program of a sharded system.
pub(super) fn lower(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    let table = if one_for_all(context, placement) {
        context.cost.of_one_replica(&placement.mesh)
    } else if placement.shard_groups().count() > 1 || is_apart(context.hardware, &placement.replicas()) {
        // Each device has its own hops alone.
        context.cost.clone().showing_all()
    } else {
        return of_shown(context, placement);
    };
    of_shown(&Context { cost: &table, ..*context }, placement)
}

fn of_shown(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    let mut builder = machine(context, placement);
    ShardedLowering::new(context, placement, &mut builder).run()?;
    builder.build()
}

/// The state of lowering one placement.
struct ShardedLowering<'a> {
    context: &'a Context<'a>,
    builder: &'a mut ProgramBuilder,
    /// All devices, each with a shard of everything, by groups that have a copy of everything.
    groups: ShardGroups,
    /// The devices of the program: all of them, or one for all.
    participants: Vec<Participant>,
    /// By participant, its hops in the rings of groups, over several computers or of one for all; empty for the ring of a
    /// computer.
    hops: Vec<Hops>,
    /// By participant, its hops among the devices with the same shard; empty for one group.
    sums: Vec<Hops>,
    /// By participant and stage, the output of the forward, and then the gradient of that output.
    outputs: Vec<Vec<Option<BufferId>>>,
    /// By participant and stage, the saved activations.
    saved: Vec<Vec<Option<BufferId>>>,
    /// Whether sockets order their optimizer steps by need.
    urgent_steps: bool,
    /// Whether optimizer steps are a phase of their own.
    synchronous_optimizer: bool,
    drives: DriveStates,
    /// The parameters of steps, on their way from drives and back.
    shelved: DriveStates,
    /// The parameters on their way from drives to gathers.
    loads: Loads,
    arrived: Arrived,
    /// The backward that the gather at hand waits for.
    after: Option<ActionId>,
    faults: Faults,
}

impl<'a> ShardedLowering<'a> {
    fn new(context: &'a Context<'a>, placement: &Placement, builder: &'a mut ProgramBuilder) -> Self {
        let groups = placement.shard_groups();
        let devices = groups.devices();
        let (of, several) = (groups.size() as u32, groups.count() > 1);
        let share = |at: usize| Part { index: groups.shard_of(at) as u32, of };
        let participant = |(at, device): (usize, &DeviceId)| {
            Participant::new(context, placement, (*device, share(at), groups.count()), builder)
        };
        let shown = if context.mesh().data() > 1 { 1 } else { devices.len() };
        let participants: Vec<Participant> = devices.iter().enumerate().take(shown).map(participant).collect();
        let mut faults = Faults::new();
        let mut hops = |among: &[Team], shown: usize| -> Vec<Hops> {
            let mut of = |device: &DeviceId| {
                Hops::of(context, (among, &[*device])).map_err(|fault| faults.push(fault)).unwrap_or_default()
            };
            devices.iter().take(shown).map(&mut of).collect()
        };
        let in_rings = shown < devices.len() || several || is_apart(context.hardware, devices);
        let sums = hops(&groups.across(), if several { shown } else { 0 });
        let hops = hops(&groups.groups(), if in_rings { shown } else { 0 });
        let stages = placement.stages.len();
        let none = vec![vec![None; stages]; shown];
        Self {
            context,
            builder,
            groups,
            participants,
            hops,
            sums,
            outputs: none.clone(),
            saved: none,
            synchronous_optimizer: placement.update.is_phase(),
            urgent_steps: placement.update.is_urgent(),
            drives: DriveStates::default(),
            shelved: DriveStates::default(),
            loads: Loads::default(),
            arrived: Arrived::default(),
            after: None,
            faults,
        }
    }

    fn run(mut self) -> Result<(), Faults> {
        let count = self.participants.len();
        let (first, stages) = (self.first_with_backward(), self.stages());
        for round in 0..self.context.workload().microbatches as usize / count.max(1) {
            for stage in 0..stages {
                self.read_shards(stage);
                for at in 0..count {
                    self.forward(at, stage, MicrobatchId::from(round * count + at));
                }
                self.leave_shards();
            }
            for stage in (first..stages).rev() {
                self.read_shards(stage);
                let gradients: Vec<_> =
                    (0..count).map(|at| self.backward(at, stage, MicrobatchId::from(round * count + at))).collect();
                self.leave_shards();
                let (own, tied): (Vec<BufferId>, Vec<Option<BufferId>>) = gradients.into_iter().unzip();
                let tied: Vec<BufferId> = tied.into_iter().flatten().collect();
                // Groups add up what all devices have scattered.
                let together = if self.groups.count() > 1 { count } else { 1 };
                for at in (0..count).step_by(together.max(1)) {
                    self.reduce_scatter(at..at + together, stage, &own);
                    self.reduce_tied(at..at + together, stage, &tied);
                }
            }
        }
        self.add_up_groups();
        update_all(&mut self);
        self.drives.join_iterations(self.builder);
        self.shelved.join_iterations(self.builder);
        self.loads.join_iterations(self.builder);
        self.join_iterations();
        self.faults.or(())
    }

    /// The number of stages.
    fn stages(&self) -> usize {
        self.participants.first().map_or(0, |participant| participant.parts.len())
    }

    /// The first stage that has a backward, or the number of stages.
    fn first_with_backward(&self) -> usize {
        (0..self.stages()).find(|stage| self.returns(*stage)).unwrap_or(self.stages())
    }

    /// Whether a stage has a backward.
    fn returns(&self, stage: usize) -> bool {
        let part = self.participants.first().and_then(|here| here.parts.get(stage));
        part.is_some_and(|part| self.context.backward_of(part.stage.layers).is_some())
    }

    fn forward(&mut self, at: usize, stage: usize, microbatch: MicrobatchId) {
        let mut reads = self.gather(at, stage);
        let here = &self.participants[at];
        let part = &here.parts[stage];
        reads.extend(part.cache.map(|cache| Access::new(cache, 0)));
        reads.extend(
            stage.checked_sub(1).and_then(|before| self.outputs[at][before]).map(|input| Access::new(input, 1)),
        );
        let (memory, layers, id, bytes) = (here.memory, part.stage.layers, part.id, part.bytes);
        let (mut work, returns) = (StageWork::of(self.context, &part.stage).forward, self.returns(stage));
        work.0 = work.0 + self.beside_forward(at, stage, work.0);
        let mut new = |content, bytes| self.builder.buffer(content, memory, bytes, Lifetime::Transient);
        let mut writes = vec![Access::new(new(Content::Workspace(id, microbatch), bytes.workspace), 1)];
        if returns {
            let saved = new(Content::Saved(layers, microbatch), bytes.saved);
            self.saved[at][stage] = Some(saved);
            writes.push(Access::new(saved, 1));
        }
        if stage + 1 < self.participants[at].parts.len() {
            let output = new(Content::Activation(layers.last(), microbatch), bytes.boundary);
            self.outputs[at][stage] = Some(output);
            writes.push(Access::new(output, 1));
        }
        let forward = self.compute(at, (ActionKind::Forward, Subject::work(id, microbatch)), work, (reads, writes));
        if stage + 1 == self.participants[at].parts.len() {
            self.wait_for_reductions(at, forward);
        }
    }

    /// Lets the forward of the last stage, where a round holds most, wait until the gradients of
    /// the round before are reduced.
    fn wait_for_reductions(&mut self, at: usize, last: ActionId) {
        let here = &mut self.participants[at];
        here.first_last_forward.get_or_insert(last);
        for before in here.latest_reduced() {
            self.slot(before, last, Anchor::EndToStart, 0);
        }
    }

    /// Adds the backward of a stage, after its recompute. Returns the unreduced gradients of its
    /// parameters, and of borrowed ones.
    fn backward(&mut self, at: usize, stage: usize, microbatch: MicrobatchId) -> (BufferId, Option<BufferId>) {
        let mut reads = self.gather(at, stage);
        let tied = self.tied_gradients(at, stage);
        let here = &self.participants[at];
        let part = &here.parts[stage];
        let (memory, layers, id, bytes) = (here.memory, part.stage.layers, part.id, part.bytes);
        let (recomputed, work) = (part.stage.recomputed_layers(), StageWork::of(self.context, &part.stage));
        reads.extend(self.saved[at][stage].map(|saved| Access::new(saved, 1)));
        reads.extend(
            stage.checked_sub(1).and_then(|before| self.outputs[at][before]).map(|input| Access::new(input, 1)),
        );
        if let Some(layers) = recomputed {
            let content = Content::Recomputed(layers, microbatch);
            let again = self.builder.buffer(content, memory, bytes.recomputed, Lifetime::Transient);
            let space = self.workspace(memory, id, (microbatch, bytes.workspace));
            let writes = vec![space, Access::new(again, 1)];
            let what = (ActionKind::Recompute, Subject::work(id, microbatch));
            self.compute(at, what, work.recompute, (reads.clone(), writes));
            reads.push(Access::new(again, 1));
        }
        // The gradient of the output, from the next stage.
        let incoming = self.outputs[at][stage].take().filter(|_| stage + 1 < self.participants[at].parts.len());
        reads.extend(incoming.map(|gradient| Access::new(gradient, 1)));
        let whole = self.builder.buffer(Content::Gradients(layers), memory, bytes.gradients, Lifetime::Transient);
        let mut writes = vec![self.workspace(memory, id, (microbatch, bytes.workspace)), Access::new(whole, 1)];
        writes.extend(tied.map(|gradients| Access::new(gradients, 1)));
        if let Some(before) = stage.checked_sub(1).filter(|_| self.context.passes_gradient(layers)) {
            let part = &self.participants[at].parts[before];
            let content = Content::Gradient(part.stage.layers.last(), microbatch);
            let gradient = self.builder.buffer(content, memory, part.bytes.boundary, Lifetime::Transient);
            self.outputs[at][before] = Some(gradient);
            writes.push(Access::new(gradient, 1));
        }
        // The layers are named only if they are not the whole stage.
        let part = self.context.backward_of(layers).filter(|part| *part != layers);
        let what = (ActionKind::Backward, Subject { layers: part, ..Subject::work(id, microbatch) });
        let (time, moved) = work.backward();
        let time = time + self.beside_backward(at, stage, time + work.recompute.0);
        let backward = self.compute(at, what, (time, moved), (reads, writes));
        self.gather_after(at, stage, backward);
        let reduced = &self.participants[at].reduced;
        if let Some(before) = reduced.len().checked_sub(SLOTS).map(|index| reduced[index]) {
            self.slot(before, backward, Anchor::EndToStart, 0);
        }
        (whole, tied)
    }

    /// The accesses to a stage's parameters for the next pass of a device. They are gathered if
    /// they are not in the window.
    fn gather(&mut self, at: usize, stage: usize) -> Vec<Access> {
        let used = self.participants[at].computed.len();
        let here = &mut self.participants[at];
        let present = match here.window.touch(stage) {
            Use::Present => here.gathered.get(&stage).copied(),
            Use::Gathered { instead_of } => {
                self.drop_gathered(at, instead_of);
                None
            }
        };
        let gathered = present.unwrap_or_else(|| {
            let own = self.gather_whole(at, stage, &self.whole(at, stage));
            Gathered { own, tied: self.gather_tied(at, stage), used }
        });
        self.participants[at].gathered.insert(stage, Gathered { used, ..gathered });
        std::iter::once(Access::new(gathered.own, 1)).chain(gathered.tied).collect()
    }

    /// The parameters of a stage.
    fn whole(&self, at: usize, stage: usize) -> Whole {
        let part = &self.participants[at].parts[stage];
        let (layers, bytes) = (part.stage.layers, part.bytes);
        let subject = Subject { layers: Some(layers), ..Subject::stage(part.id) };
        let (whole, shard) = (bytes.parameters, bytes.parameter_shard);
        Whole { subject, content: Content::Parameters(layers), whole, shard }
    }

    /// Drops a stage from the window of a device: the next gather waits for its last use.
    fn drop_gathered(&mut self, at: usize, stage: Option<usize>) {
        let here = &mut self.participants[at];
        here.replaced = stage.and_then(|stage| here.gathered.remove(&stage)).map(|dropped| dropped.used);
    }

    /// Lets a gather, which begins with `first`, wait for the last use of the stage that it
    /// replaces. Its collective waits for that on all devices of the group.
    fn make_room(&mut self, at: usize, (first, gather): (ActionId, ActionId)) {
        if let Some(from) = self.after {
            let (to, anchor, cause) = (first, Anchor::EndToStart, IdleCause::Order);
            self.builder.edge(Edge { from, to, anchor, distance: 0, lag: SimTime::ZERO, cause });
        }
        let Some(used) = self.participants[at].replaced else {
            self.participants[at].gathered_first.push(first);
            return;
        };
        let here = self.group_of(at).map(|other| (other, &self.participants[other]));
        let waits: Vec<_> = here.filter_map(|(other, it)| Some((other, *it.computed.get(used)?))).collect();
        for (other, from) in waits {
            let (to, cause) = if other == at { (first, IdleCause::Memory) } else { (gather, IdleCause::Order) };
            let (anchor, distance, lag) = (Anchor::EndToStart, 0, SimTime::ZERO);
            self.builder.edge(Edge { from, to, anchor, distance, lag, cause });
        }
    }

    /// Adds the reduction of a stage's gradients on some devices.
    fn reduce_scatter(&mut self, devices: Range<usize>, stage: usize, gradients: &[BufferId]) {
        let reduction = |at: usize| {
            let part = &self.participants[at].parts[stage];
            let (layers, bytes) = (part.stage.layers, part.bytes);
            let subject = Subject { layers: Some(layers), ..Subject::stage(part.id) };
            let (whole, shard) = (bytes.gradients, bytes.gradient_shard);
            let what = Whole { subject, content: Content::Gradients(layers), whole, shard };
            Some(Reduction { at, what, sum: Access::new(part.gradients?, part.accumulated), home: part.home })
        };
        let all: Vec<Reduction> = devices.filter_map(reduction).collect();
        for (this, last) in all.iter().zip(self.reduce_whole(&all, gradients)) {
            let here = &mut self.participants[this.at];
            here.parts[stage].accumulated += 1;
            here.reduced.push(last);
        }
    }

    /// The part that a device holds of every tensor.
    fn share(&self, at: usize) -> Part {
        Part { index: self.groups.shard_of(at) as u32, of: self.groups.size() as u32 }
    }

    /// The device of the optimizer step of a shard in `memory`: the GPU itself, or the socket to
    /// which the memory belongs.
    fn steps(&self, at: usize, memory: MemoryId) -> DeviceId {
        self.context.hardware.memories()[memory].device.unwrap_or(self.participants[at].device)
    }

    fn compute(
        &mut self,
        at: usize,
        (kind, subject): (ActionKind, Subject),
        (time, _): Work,
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let lane = self.participants[at].compute;
        let work = SimTime::from_seconds(time);
        let action = NewAction { lane, kind, subject, reads, writes, work, flows: Vec::new(), guard: None };
        let id = self.builder.action(action);
        if kind != ActionKind::Recompute {
            self.participants[at].computed.push(id);
        }
        id
    }

    fn copy(
        &mut self,
        at: usize,
        (kind, subject): (ActionKind, Subject),
        (from, to, bytes): (MemoryId, MemoryId, Bytes),
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let here = &self.participants[at];
        let role = if from == here.memory { LaneRole::D2h } else { LaneRole::H2d };
        let lane = self.builder.lane(here.device, role.name(), role);
        let flow = copying(self.context, (from, to, bytes), (&reads, &writes)).map_err(|fault| self.faults.push(fault));
        let flows = flow.into_iter().collect();
        self.builder.action(NewAction { lane, kind, subject, reads, writes, work: SimTime::ZERO, flows, guard: None })
    }

    fn workspace(&mut self, memory: MemoryId, id: StageId, (microbatch, bytes): (MicrobatchId, Bytes)) -> Access {
        Access::new(self.builder.buffer(Content::Workspace(id, microbatch), memory, bytes, Lifetime::Transient), 1)
    }

    /// Adds the precedences across iterations: the first gathers wait for the last passes of all
    /// devices of their group, and the first round waits for the last reductions.
    fn join_iterations(&mut self) {
        let lasts: Vec<ActionId> = self.participants.iter().filter_map(|here| here.computed.last().copied()).collect();
        let firsts = self.participants.iter().enumerate();
        let firsts: Vec<(usize, ActionId)> =
            firsts.flat_map(|(at, here)| here.gathered_first.iter().map(move |first| (at, *first))).collect();
        for (at, first) in firsts {
            for (other, last) in self.group_of(at).filter_map(|other| Some((other, lasts.get(other)?))) {
                let cause = if other == at { IdleCause::Memory } else { IdleCause::Order };
                let (from, to) = (*last, first);
                self.builder.edge(Edge {
                    from,
                    to,
                    anchor: Anchor::EndToStart,
                    distance: 1,
                    lag: SimTime::ZERO,
                    cause,
                });
            }
        }
        let turns: Vec<_> =
            self.participants.iter().map(|here| (here.latest_reduced(), here.first_last_forward)).collect();
        for (before, last) in turns {
            for (from, to) in before.into_iter().zip(last.into_iter().cycle()) {
                self.slot(from, to, Anchor::EndToStart, 1);
            }
        }
    }

    fn slot(&mut self, from: ActionId, to: ActionId, anchor: Anchor, distance: u8) {
        self.builder.edge(Edge { from, to, anchor, distance, lag: SimTime::ZERO, cause: IdleCause::Memory });
    }
}
