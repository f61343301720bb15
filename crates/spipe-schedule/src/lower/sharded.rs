//! Devices that share everything: each keeps a part of every stage's parameters, gradients and optimizer state, gathers a stage
//! when it is needed, and runs all stages on microbatches of its own (Rajbhandari et al., ZeRO, 2020; Zhao et al., FSDP, 2023).
//!
//! ```text
//! per use of a stage    [weights in] ─► all-gather ─► forward, or recompute + backward ─► reduce-scatter ─► [gradients out]
//! ```
//!
//! A collective over n devices is a ring: each device gets (n − 1)/n of the bytes from the one before it. A device
//! has a few stages in whole, those used last and those that come: one that has been left makes room for the next. What is still there when
//! it is used again (the last stages, whose backward follows their forward, and the first ones from round to round) is gathered once.

mod collectives;
mod optimizer;
mod shared;

use super::flows::copying;
use super::pipeline::times;
use crate::{Access, Action, Anchor, Content, Edge, Lifetime, Part as Share, ProgramBuilder, Stage as ProgramStage};
use collectives::Whole;
use shared::Shared;
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Faults, IdleCause, LaneId, LaneRole, MemoryId, MicrobatchId,
    Seconds, SimTime, StageId, Subject,
};
use spipe_cost::LayerMemory;
use spipe_plan::{Boundary, Context, InFlight, Placement, Stage, Use, Weights, Window, shard, stage_footprint};
use std::collections::BTreeMap;

/// How many stages' gradients a device holds in whole.
const SLOTS: usize = 2;

/// One device's part of one stage.
struct Part {
    /// The stage as this device computes it.
    stage: Stage,
    id: StageId,
    /// Shards of parameters, gradients and optimizer state, and where parameters and gradients live.
    parameters: BufferId,
    gradients: Option<BufferId>,
    /// Keys and values of the device's own microbatches.
    cache: Option<BufferId>,
    state: Option<(BufferId, MemoryId)>,
    home: MemoryId,
    /// How often gradients have been added up.
    accumulated: u32,
    bytes: Sizes,
    /// What it uses of another stage's parameters.
    shared: Option<Shared>,
}

/// Bytes of a stage in whole and in shards.
#[derive(Clone, Copy)]
struct Sizes {
    parameters: Bytes,
    gradients: Bytes,
    /// A shard of the parameters, and of the gradients.
    parameter_shard: Bytes,
    gradient_shard: Bytes,
    boundary: Bytes,
    saved: Bytes,
    recomputed: Bytes,
    workspace: Bytes,
}

/// A stage that a device has in whole, what that shares, and which of what the device has computed used it last.
#[derive(Clone, Copy)]
struct Gathered {
    own: BufferId,
    shared: Option<Access>,
    used: usize,
}

/// One device.
struct Participant {
    device: DeviceId,
    memory: MemoryId,
    compute: LaneId,
    collective: LaneId,
    parts: Vec<Part>,
    /// Everything computed and reduced so far, in order.
    computed: Vec<ActionId>,
    reduced: Vec<ActionId>,
    /// Which of these used what the next one to be gathered replaces last.
    left: Option<usize>,
    /// What an iteration begins with.
    gathered_first: Vec<ActionId>,
    /// Which stages it has in whole, and these.
    window: Window,
    whole: BTreeMap<usize, Gathered>,
    /// The forward of the last stage in the first round.
    turned_first: Option<ActionId>,
}

impl Participant {
    /// Those of the latest reductions for which nothing has waited yet.
    fn latest_reduced(&self) -> Vec<ActionId> {
        self.reduced.iter().rev().take(SLOTS).copied().collect()
    }
}

/// The state of lowering one placement.
pub(super) struct Lowering<'a> {
    context: &'a Context<'a>,
    builder: &'a mut ProgramBuilder,
    participants: Vec<Participant>,
    /// By participant: what the forward of each stage left for the next stage and for the backward.
    outputs: Vec<Vec<Option<BufferId>>>,
    saved: Vec<Vec<Option<BufferId>>>,
    /// Whether sockets step first what is needed first.
    urgent_steps: bool,
    /// Whether steps are a phase of their own.
    synchronous_optimizer: bool,
    faults: Faults,
}

impl<'a> Lowering<'a> {
    pub fn new(context: &'a Context<'a>, placement: &Placement, builder: &'a mut ProgramBuilder) -> Self {
        let devices = placement.participants(context.hardware);
        let mut participants = Vec::new();
        for device in &devices {
            let memory = builder.memory_of(*device);
            let share = Share { index: participants.len() as u32, of: devices.len() as u32 };
            let parts = placement.stages.ids().map(|id| part(context, placement, (*device, share, id), builder));
            let parts = parts.collect();
            participants.push(Participant {
                device: *device,
                memory,
                compute: builder.lane(*device, LaneRole::Compute.name(), LaneRole::Compute),
                collective: builder.lane(*device, "collective", LaneRole::Channel),
                parts,
                computed: Vec::new(),
                reduced: Vec::new(),
                left: None,
                gathered_first: Vec::new(),
                window: Window::new(placement.resident_stages()),
                whole: BTreeMap::new(),
                turned_first: None,
            });
        }
        let stages = placement.stages.len();
        let none = vec![vec![None; stages]; devices.len()];
        Self {
            context,
            builder,
            participants,
            outputs: none.clone(),
            saved: none,
            synchronous_optimizer: placement.knobs.synchronous_optimizer,
            urgent_steps: placement.knobs.urgent_steps,
            faults: Faults::new(),
        }
    }

    pub fn run(mut self) -> Result<(), Faults> {
        let count = self.participants.len();
        let stages = self.participants.first().map_or(0, |participant| participant.parts.len());
        let first = (0..stages).find(|stage| self.returns(*stage)).unwrap_or(stages);
        for round in 0..self.context.workload().microbatches as usize / count.max(1) {
            for stage in 0..stages {
                for at in 0..count {
                    self.forward(at, stage, MicrobatchId::from(round * count + at));
                }
            }
            for stage in (first..stages).rev() {
                let gradients: Vec<_> =
                    (0..count).map(|at| self.backward(at, stage, MicrobatchId::from(round * count + at))).collect();
                let (own, shared): (Vec<BufferId>, Vec<Option<BufferId>>) = gradients.into_iter().unzip();
                let shared: Vec<BufferId> = shared.into_iter().flatten().collect();
                for at in 0..count {
                    self.reduce_scatter(at, stage, &own);
                    self.reduce_shared(at, stage, &shared);
                }
            }
        }
        self.optimizer(first..stages);
        self.join_iterations();
        self.faults.or(())
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
        let (work, returns) = (times(self.context, &part.stage).forward, self.returns(stage));
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
            self.turn(at, forward);
        }
    }

    /// Gradients of a round are out before the next one holds most: when it is at its last stage.
    fn turn(&mut self, at: usize, last: ActionId) {
        let here = &mut self.participants[at];
        here.turned_first.get_or_insert(last);
        for before in here.latest_reduced() {
            self.slot(before, last, Anchor::EndToStart, 0);
        }
    }

    /// The backward of a stage, after its recompute; returns the gradients of its parameters in whole, and of those that it shares.
    fn backward(&mut self, at: usize, stage: usize, microbatch: MicrobatchId) -> (BufferId, Option<BufferId>) {
        let mut reads = self.gather(at, stage);
        let shared = self.shared_gradients(at, stage);
        let here = &self.participants[at];
        let part = &here.parts[stage];
        let (memory, layers, id, bytes) = (here.memory, part.stage.layers, part.id, part.bytes);
        let (recomputed, times) = (part.stage.recomputed_layers(), times(self.context, &part.stage));
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
            self.compute(at, what, times.recompute, (reads.clone(), writes));
            reads.push(Access::new(again, 1));
        }
        // The gradient that the stage behind left.
        let incoming = self.outputs[at][stage].take().filter(|_| stage + 1 < self.participants[at].parts.len());
        reads.extend(incoming.map(|gradient| Access::new(gradient, 1)));
        let whole = self.builder.buffer(Content::Gradients(layers), memory, bytes.gradients, Lifetime::Transient);
        let mut writes = vec![self.workspace(memory, id, (microbatch, bytes.workspace)), Access::new(whole, 1)];
        writes.extend(shared.map(|gradients| Access::new(gradients, 1)));
        if let Some(before) = stage.checked_sub(1).filter(|_| self.context.passes_gradient(layers)) {
            let part = &self.participants[at].parts[before];
            let content = Content::Gradient(part.stage.layers.last(), microbatch);
            let gradient = self.builder.buffer(content, memory, part.bytes.boundary, Lifetime::Transient);
            self.outputs[at][before] = Some(gradient);
            writes.push(Access::new(gradient, 1));
        }
        // The whole stage is not worth a word.
        let part = self.context.backward_of(layers).filter(|part| *part != layers);
        let what = (ActionKind::Backward, Subject { layers: part, ..Subject::work(id, microbatch) });
        let backward = self.compute(at, what, times.backward(), (reads, writes));
        let reduced = &self.participants[at].reduced;
        if let Some(before) = reduced.len().checked_sub(SLOTS).map(|index| reduced[index]) {
            self.slot(before, backward, Anchor::EndToStart, 0);
        }
        (whole, shared)
    }

    /// What a stage reads of parameters for the next thing that a device computes: they are there, or are gathered in the place of a stage
    /// that has been left.
    fn gather(&mut self, at: usize, stage: usize) -> Vec<Access> {
        let used = self.participants[at].computed.len();
        let here = &mut self.participants[at];
        let there = match here.window.uses(stage) {
            Use::There => here.whole.get(&stage).copied(),
            Use::Gathered { instead_of } => {
                self.leave(at, instead_of);
                None
            }
        };
        let there = there.unwrap_or_else(|| {
            let part = &self.participants[at].parts[stage];
            let (layers, bytes) = (part.stage.layers, part.bytes);
            let subject = Subject { layers: Some(layers), ..Subject::stage(part.id) };
            let (whole, shard) = (bytes.parameters, bytes.parameter_shard);
            let own =
                self.gather_whole(at, stage, &Whole { subject, content: Content::Parameters(layers), whole, shard });
            Gathered { own, shared: self.gather_shared(at, stage), used }
        });
        self.participants[at].whole.insert(stage, Gathered { used, ..there });
        std::iter::once(Access::new(there.own, 1)).chain(there.shared).collect()
    }

    /// A stage makes room for the next one once it has been used for the last time.
    fn leave(&mut self, at: usize, stage: Option<usize>) {
        let here = &mut self.participants[at];
        here.left = stage.and_then(|stage| here.whole.remove(&stage)).map(|left| left.used);
    }

    /// What is gathered comes, beginning with `first`, once what it replaces has been left, and the ring turns once it has been on all devices.
    fn make_room(&mut self, at: usize, (first, gather): (ActionId, ActionId)) {
        let Some(left) = self.participants[at].left else {
            self.participants[at].gathered_first.push(first);
            return;
        };
        let here = self.participants.iter().enumerate();
        let waits: Vec<_> = here.filter_map(|(other, it)| Some((other, *it.computed.get(left)?))).collect();
        for (other, from) in waits {
            let (to, cause) = if other == at { (first, IdleCause::Memory) } else { (gather, IdleCause::Order) };
            let (anchor, distance, lag) = (Anchor::EndToStart, 0, SimTime::ZERO);
            self.builder.edge(Edge { from, to, anchor, distance, lag, cause });
        }
    }

    /// Every device ends with the sum of its shard of the gradients.
    fn reduce_scatter(&mut self, at: usize, stage: usize, gradients: &[BufferId]) {
        let part = &self.participants[at].parts[stage];
        let Some(sum) = part.gradients else { return };
        let (layers, bytes, home) = (part.stage.layers, part.bytes, part.home);
        let subject = Subject { layers: Some(layers), ..Subject::stage(part.id) };
        let (whole, shard) = (bytes.gradients, bytes.gradient_shard);
        let what = Whole { subject, content: Content::Gradients(layers), whole, shard };
        let last = self.reduce_whole(at, &what, (Access::new(sum, part.accumulated), home), gradients);
        let here = &mut self.participants[at];
        here.parts[stage].accumulated += 1;
        here.reduced.push(last);
    }

    /// Which part of everything is a device's own.
    fn share(&self, at: usize) -> Share {
        Share { index: at as u32, of: self.participants.len() as u32 }
    }

    /// The device that steps what lies in a memory: the GPU itself, or the socket to which the memory belongs.
    fn steps(&self, at: usize, memory: MemoryId) -> DeviceId {
        self.context.hardware.memories()[memory].device.unwrap_or(self.participants[at].device)
    }

    fn compute(
        &mut self,
        at: usize,
        (kind, subject): (ActionKind, Subject),
        (time, _): (Seconds, Bytes),
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let lane = self.participants[at].compute;
        let work = SimTime::from_seconds(time);
        let action = Action { lane, kind, subject, reads, writes, work, flows: Vec::new(), guard: None };
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
        self.builder.action(Action { lane, kind, subject, reads, writes, work: SimTime::ZERO, flows, guard: None })
    }

    fn workspace(&mut self, memory: MemoryId, id: StageId, (microbatch, bytes): (MicrobatchId, Bytes)) -> Access {
        Access::new(self.builder.buffer(Content::Workspace(id, microbatch), memory, bytes, Lifetime::Transient), 1)
    }

    /// The first stage of an iteration is gathered once all devices have left the last one of the iteration before.
    fn join_iterations(&mut self) {
        let lasts: Vec<ActionId> = self.participants.iter().filter_map(|here| here.computed.last().copied()).collect();
        let firsts = self.participants.iter().enumerate();
        let firsts: Vec<(usize, ActionId)> =
            firsts.flat_map(|(at, here)| here.gathered_first.iter().map(move |first| (at, *first))).collect();
        for (at, first) in firsts {
            for (other, last) in lasts.iter().enumerate() {
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
        let turns: Vec<_> = self.participants.iter().map(|here| (here.latest_reduced(), here.turned_first)).collect();
        for (before, turned) in turns {
            for (from, to) in before.into_iter().zip(turned.into_iter().cycle()) {
                self.slot(from, to, Anchor::EndToStart, 1);
            }
        }
    }

    fn slot(&mut self, from: ActionId, to: ActionId, anchor: Anchor, distance: u8) {
        self.builder.edge(Edge { from, to, anchor, distance, lag: SimTime::ZERO, cause: IdleCause::Memory });
    }
}

fn part(
    context: &Context<'_>,
    placement: &Placement,
    (device, share, id): (DeviceId, Share, StageId),
    builder: &mut ProgramBuilder,
) -> Part {
    let count = share.of as usize;
    let stage = Stage { device, ..placement.stages[id] };
    let (layers, memory) = (stage.layers, builder.memory_of(device));
    let on_device = Stage { offload: None, optimizer: None, weights: Weights::Resident, ..stage };
    let need = stage_footprint(context, &on_device, InFlight(1), [Boundary::End; 2]);
    let recomputed = stage.recomputed_layers();
    let id = builder.stage(ProgramStage { device, layers, recomputed });
    let of = |layer| context.cost.memory(layer, device);
    let sum = |part: fn(&LayerMemory) -> Bytes| layers.iter().map(|layer| part(of(layer))).sum::<Bytes>();
    let (parameters, gradients) = (sum(|memory| memory.parameters), sum(|memory| memory.gradients));
    let host = context.hardware.host_memory(device).unwrap_or(memory);
    let home = if matches!(stage.weights, Weights::Streamed(_)) { host } else { memory };
    let stepped_in = if home == host || stage.optimizer.is_some() { host } else { memory };
    let again: Bytes = recomputed.iter().flat_map(|layers| layers.iter()).map(|layer| of(layer).saved).sum();
    let input = layers.first().index().checked_sub(1).map_or(Bytes::ZERO, |before| of(before.into()).boundary);
    let bytes = Sizes {
        parameters,
        gradients,
        parameter_shard: shard(parameters, count),
        gradient_shard: shard(gradients, count),
        boundary: of(layers.last()).boundary,
        saved: need.per_microbatch.saturating_sub(input),
        recomputed: again,
        workspace: need.transient - again,
    };
    let shared = Shared::of(context, placement, &stage);
    // What others own is reduced as if it came with its own.
    let training = context.backward_of(layers).is_some() && (context.trains(layers) || shared.is_some());
    let mut resident = |content, memory, bytes| builder.part(share, content, memory, (bytes, Lifetime::Resident));
    let cache = shard(sum(|memory| memory.cache), count);
    Part {
        cache: (cache > Bytes::ZERO).then(|| resident(Content::Cache(layers), memory, cache)),
        parameters: resident(Content::Parameters(layers), home, bytes.parameter_shard),
        gradients: training.then(|| resident(Content::Gradients(layers), home, bytes.gradient_shard)),
        state: training.then(|| {
            let bytes = shard(sum(|memory| memory.optimizer), count);
            (resident(Content::OptimizerState(layers), stepped_in, bytes), stepped_in)
        }),
        shared,
        stage,
        id,
        home,
        accumulated: 0,
        bytes,
    }
}
