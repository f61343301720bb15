//! Systems that stream parameters from the host: a device runs all microbatches of a chunk of layers before its next chunk.
//!
//! ```text
//! host        parameters ──────────┬──────────────► optimizer step ◄── gradients
//! h2d         weights in (k units) │ ahead of use        ▲
//! device      forward m0 m1 … ─► next chunk …  backward m0 m1 … ─► gradients out
//! ```
//!
//! A chunk may keep its parameters on its device, which then steps them at the end of an iteration.
//!
//! Forward and backward have chunks of their own: where both are cut alike, one device serves both passes of a chunk (Mobius,
//! Superpipeline); where they are not, checkpoints travel from the forward's device to the backward's (SPipe).

mod activations;
mod bare;
mod machine;
mod optimizer;
mod shared;
mod urgency;
mod weights;

pub use bare::{RoundTimes, UnitTimes, bare_rounds, bare_superpipeline, bare_superpipeline_after};
pub(super) use machine::lower_rounds;

use super::flows::Transfer;
use crate::{Access, Action, Content, Edge, Lifetime, Program, ProgramBuilder, Stage as ProgramStage};
use shared::Borrowed;
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Faults, IdleCause, LaneId, LaneRole, LayerRange, MemoryId,
    MicrobatchId, SimTime, StageId, Subject,
};
use spipe_plan::{Exchanging, Visit};
use std::collections::BTreeMap;
use weights::Unit;

/// Consecutive layers in one pass on one device.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub device: DeviceId,
    pub layers: LayerRange,
    /// The layers that its backward runs through, and whether that hands on a gradient.
    pub returns: Option<LayerRange>,
    pub passes_gradient: bool,
    pub recomputed: Option<LayerRange>,
    /// The forward, or the backward without its recompute, on one microbatch.
    pub work: SimTime,
    /// The recompute before the backward.
    pub recompute: SimTime,
    /// Parameters by layer.
    pub weights: Vec<Bytes>,
    pub gradients: Bytes,
    /// Whether any of them are trained.
    pub trains: bool,
    /// Keys and values of all microbatches, which stay on the device.
    pub cache: Bytes,
    /// Whether its parameters stay on the device, which steps them.
    pub stays: bool,
    /// Bytes of one microbatch at either end.
    pub input: Bytes,
    pub output: Bytes,
    /// What the forward leaves for the backward beside the input, and what is computed again.
    pub saved: Bytes,
    pub again: Bytes,
    pub workspace: Bytes,
    /// Where its parameters live, and who steps them.
    pub home: MemoryId,
    pub socket: Option<DeviceId>,
    /// Optimizer state, what is kept to undo a step, and the time of a step with the flows that it causes.
    pub state: Bytes,
    pub undo: Bytes,
    pub step: Transfer,
    /// What one of its layers uses of another chunk, and the time of adding gradients from such a use of its own parameters.
    pub borrowed: Option<Borrowed>,
    pub accumulate: Transfer,
    /// The time of reading its gradients for their norm where they are stepped.
    pub norm: Transfer,
}

impl Chunk {
    /// Its parameters.
    fn weights(&self) -> Bytes {
        self.weights.iter().copied().sum()
    }

    /// Those of some of its layers.
    fn weights_of(&self, layers: LayerRange) -> Bytes {
        let first = self.layers.first().index();
        self.weights[layers.first().index() - first..=layers.last().index() - first].iter().copied().sum()
    }
}

/// How long copies take.
pub(super) trait Links {
    fn copy(&self, from: MemoryId, to: MemoryId, bytes: Bytes) -> Result<Transfer, Faults>;
}

/// When parameters are stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepping {
    /// Not at all.
    Never,
    /// After the whole backward.
    Serial,
    /// Chunk by chunk, as soon as its gradients are out.
    Asynchronous,
    /// The same, but of those that wait the first one of the model.
    NeededFirst,
}

/// What is asked of the builder.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub microbatches: usize,
    /// In model order.
    pub forward: Vec<Chunk>,
    /// In model order; empty in inference.
    pub backward: Vec<Chunk>,
    /// How many chunks' parameters a device holds, and whether both passes have the same chunks on the same devices.
    pub exchanging: Exchanging,
    /// How many of the first chunks of the forward are on the device when it begins: bringing them takes no time.
    pub there: usize,
    /// Whether the chunks of an exchange are copied one by one.
    pub sequential: bool,
    /// Whether parameters are copied back when they leave, although the host has them.
    pub write_back: bool,
    /// Whether the parameters of chunks that do not stay move at all.
    pub streams: bool,
    pub stepping: Stepping,
    /// Whether checkpoints leave only in the step before they are used.
    pub late_checkpoints: bool,
    /// Whether steps wait for the norm of all gradients.
    pub waits_for_norm: bool,
    /// Whether steps are taken on trust, and undone when a global check fails.
    pub speculates: bool,
    /// Whether what was undone is done again, with gradients that are clipped.
    pub redoes: bool,
    /// Whether they are undone from their gradients instead of a log.
    pub arithmetic_undo: bool,
}

type Key = (usize, usize);

/// The state of building one program.
pub(super) struct Rounds<'a> {
    spec: &'a Spec,
    links: &'a dyn Links,
    builder: &'a mut ProgramBuilder,
    parameters: Vec<weights::Piece>,
    /// Parameters on the device, by use.
    weights: BTreeMap<Visit, BufferId>,
    /// Those of other chunks that a use shares, and their gradients by backward chunk.
    shared: BTreeMap<Visit, BufferId>,
    shared_gradients: BTreeMap<usize, BufferId>,
    /// Keys and values, by forward chunk.
    caches: BTreeMap<usize, BufferId>,
    /// Inputs and outputs of the forward chunks, by chunk and microbatch, on their own device.
    inputs: BTreeMap<Key, BufferId>,
    outputs: BTreeMap<Key, BufferId>,
    /// Incoming gradients of the backward chunks, and outgoing ones.
    incoming: BTreeMap<Key, BufferId>,
    outgoing: BTreeMap<Key, BufferId>,
    /// What the backward starts from: the input of its chunk, where it is needed, and who makes it.
    checkpoints: BTreeMap<Key, BufferId>,
    made_by_forward: BTreeMap<Key, Vec<BufferId>>,
    saved: BTreeMap<Key, BufferId>,
    /// The copies between devices, by what they wrote.
    sent: BTreeMap<BufferId, ActionId>,
    gradients: BTreeMap<usize, BufferId>,
    /// First and last computing action of each use.
    computed: BTreeMap<Visit, Vec<ActionId>>,
}

impl Rounds<'_> {
    /// Adds everything and proves the program well-formed.
    pub fn build(spec: &Spec, links: &dyn Links, mut builder: ProgramBuilder) -> Result<Program, Faults> {
        let mut this = Rounds {
            spec,
            links,
            builder: &mut builder,
            parameters: Vec::new(),
            weights: BTreeMap::new(),
            shared: BTreeMap::new(),
            shared_gradients: BTreeMap::new(),
            caches: BTreeMap::new(),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            incoming: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            made_by_forward: BTreeMap::new(),
            saved: BTreeMap::new(),
            sent: BTreeMap::new(),
            gradients: BTreeMap::new(),
            computed: BTreeMap::new(),
        };
        this.add_stages();
        this.hold_parameters();
        this.hold_caches();
        let uses = this.uses();
        for of_device in uses.values() {
            this.hold_weights(of_device);
        }
        this.hold_shared_of_kept();
        this.carry_forward()?;
        this.carry_checkpoints()?;
        this.carry_backward()?;
        for of_device in uses.values() {
            for this_use in of_device {
                this.compute(*this_use);
            }
        }
        this.reuse_inputs();
        if spec.late_checkpoints {
            this.delay_checkpoints();
        }
        if spec.streams {
            for of_device in uses.values() {
                this.load(of_device)?;
            }
        }
        this.step()?;
        builder.build()
    }

    fn chunk(&self, this: Visit) -> &Chunk {
        if this.backward { &self.spec.backward[this.chunk] } else { &self.spec.forward[this.chunk] }
    }

    /// Stages of the program: those of the forward, and behind them those of the backward where it has its own.
    fn add_stages(&mut self) {
        let backward = if self.spec.exchanging.coupled { &[][..] } else { &self.spec.backward };
        for chunk in self.spec.forward.iter().chain(backward) {
            let recomputed = if self.spec.exchanging.coupled {
                self.spec.backward.iter().find(|back| back.layers == chunk.layers).and_then(|back| back.recomputed)
            } else {
                chunk.recomputed
            };
            self.builder.stage(ProgramStage { device: chunk.device, layers: chunk.layers, recomputed });
        }
    }

    fn stage(&self, this: Visit) -> StageId {
        StageId::from(
            this.chunk + if this.backward && !self.spec.exchanging.coupled { self.spec.forward.len() } else { 0 },
        )
    }

    /// The uses of each device in the order in which it computes: forward in model order, backward against it.
    fn uses(&self) -> BTreeMap<DeviceId, Vec<Visit>> {
        let mut uses: BTreeMap<DeviceId, Vec<Visit>> = BTreeMap::new();
        for (chunk, this) in self.spec.forward.iter().enumerate() {
            uses.entry(this.device).or_default().push(Visit { backward: false, chunk });
        }
        for (chunk, this) in self.spec.backward.iter().enumerate().rev().filter(|(_, this)| this.returns.is_some()) {
            uses.entry(this.device).or_default().push(Visit { backward: true, chunk });
        }
        uses
    }

    /// All microbatches of one chunk in one pass.
    fn compute(&mut self, this: Visit) {
        for microbatch in 0..self.spec.microbatches {
            let action = if this.backward { self.backward(this, microbatch) } else { self.forward(this, microbatch) };
            self.computed.entry(this).or_default().push(action);
        }
    }

    fn forward(&mut self, this: Visit, microbatch: usize) -> ActionId {
        let key = (this.chunk, microbatch);
        let mut reads = vec![self.weights(this)];
        reads.extend(self.shared_parameters(this));
        reads.extend(self.caches.get(&this.chunk).map(|cache| Access::new(*cache, 0)));
        reads.extend(self.inputs.get(&key).map(|input| Access::new(*input, 1)));
        let mut writes = vec![self.workspace(this, microbatch)];
        let made = self.made_by_forward.get(&key).into_iter().flatten();
        writes.extend(self.outputs.get(&key).into_iter().chain(made).map(|buffer| Access::new(*buffer, 1)));
        let chunk = self.chunk(this);
        if self.spec.exchanging.coupled
            && !self.spec.backward.is_empty()
            && chunk.returns.is_some()
            && chunk.saved > Bytes::ZERO
        {
            let (content, bytes) = (Content::Saved(chunk.layers, MicrobatchId::from(microbatch)), chunk.saved);
            let saved = self.on_device(this, content, bytes);
            self.saved.insert(key, saved);
            writes.push(Access::new(saved, 1));
        }
        let work = self.chunk(this).work;
        self.arithmetic((this, None), (ActionKind::Forward, microbatch), work, (reads, writes))
    }

    fn backward(&mut self, this: Visit, microbatch: usize) -> ActionId {
        let key = (this.chunk, microbatch);
        let id = MicrobatchId::from(microbatch);
        let mut reads = vec![self.weights(this)];
        reads.extend(self.shared_parameters(this));
        reads.extend(self.checkpoints.get(&key).into_iter().chain(self.saved.get(&key)).map(|it| Access::new(*it, 1)));
        let chunk = self.chunk(this).clone();
        if let Some(layers) = chunk.recomputed.filter(|_| chunk.recompute > SimTime::ZERO) {
            let again = self.on_device(this, Content::Recomputed(layers, id), chunk.again);
            let writes = vec![self.workspace(this, microbatch), Access::new(again, 1)];
            let what = (ActionKind::Recompute, microbatch);
            let action = self.arithmetic((this, None), what, chunk.recompute, (reads.clone(), writes));
            self.computed.entry(this).or_default().push(action);
            reads.push(Access::new(again, 1));
        }
        reads.extend(self.incoming.get(&key).map(|gradient| Access::new(*gradient, 1)));
        let gradients = match self.gradients.get(&this.chunk) {
            Some(gradients) => *gradients,
            None => {
                let gradients = self.on_device(this, Content::Gradients(chunk.layers), chunk.gradients);
                self.gradients.insert(this.chunk, gradients);
                gradients
            }
        };
        let done = microbatch as u32;
        reads.extend((done > 0).then_some(Access::new(gradients, done)));
        let mut writes = vec![self.workspace(this, microbatch), Access::new(gradients, done + 1)];
        writes.extend(self.outgoing.get(&key).map(|gradient| Access::new(*gradient, 1)));
        self.add_shared_gradients((this, microbatch), (&mut reads, &mut writes));
        // The whole chunk is not worth a word.
        let layers = chunk.returns.filter(|layers| *layers != chunk.layers);
        self.arithmetic((this, layers), (ActionKind::Backward, microbatch), chunk.work, (reads, writes))
    }

    fn arithmetic(
        &mut self,
        (this, layers): (Visit, Option<LayerRange>),
        (kind, microbatch): (ActionKind, usize),
        work: SimTime,
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let lane = self.lane(self.chunk(this).device, LaneRole::Compute);
        let subject = Subject { layers, ..Subject::work(self.stage(this), MicrobatchId::from(microbatch)) };
        self.builder.action(Action { lane, kind, subject, reads, writes, work, flows: Vec::new(), guard: None })
    }

    /// Whether the parameters of a use come from the host.
    fn streamed(&self, this: Visit) -> bool {
        self.spec.streams && !self.chunk(this).stays
    }

    /// Streamed parameters are version 1 of a buffer that a copy wrote, others version 0 of one that was there.
    fn version_of_weights(&self, this: Visit) -> u32 {
        u32::from(self.streamed(this))
    }

    /// The parameters that a use reads.
    fn weights(&self, this: Visit) -> Access {
        Access::new(self.weights[&this], self.version_of_weights(this))
    }

    fn lane(&mut self, device: DeviceId, role: LaneRole) -> LaneId {
        self.builder.lane(device, role.name(), role)
    }

    fn on_device(&mut self, this: Visit, content: Content, bytes: Bytes) -> BufferId {
        let memory = self.builder.memory_of(self.chunk(this).device);
        self.builder.buffer(content, memory, bytes, Lifetime::Transient)
    }

    fn workspace(&mut self, this: Visit, microbatch: usize) -> Access {
        let content = Content::Workspace(self.stage(this), MicrobatchId::from(microbatch));
        let bytes = self.chunk(this).workspace;
        Access::new(self.on_device(this, content, bytes), 1)
    }

    /// Adds a copy on a lane; its reads and writes are those of version 1 unless it says otherwise.
    fn copy(
        &mut self,
        (lane, kind, subject): (LaneId, ActionKind, Subject),
        transfer: Transfer,
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let Transfer { work, flows } = transfer;
        self.builder.action(Action { lane, kind, subject, reads, writes, work, flows, guard: None })
    }

    fn wait(&mut self, from: ActionId, to: ActionId, (distance, cause): (u8, IdleCause)) {
        let anchor = crate::Anchor::EndToStart;
        self.builder.edge(Edge { from, to, anchor, distance, lag: SimTime::ZERO, cause });
    }
}
