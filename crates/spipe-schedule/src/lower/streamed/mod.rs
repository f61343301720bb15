//! Streamed systems: parameters come from the host, and a device runs all microbatches of a chunk
//! of layers before its next chunk.
//!
//! ```text
//! host        parameters ──────────┬──────────────► optimizer step ◄── gradients
//! h2d         weights in (k units) │ ahead of use        ▲
//! device      forward m0 m1 … ─► next chunk …  backward m0 m1 … ─► gradients out
//! ```
//!
//! A chunk may keep its parameters on its device. Its optimizer step then runs there, at the end of
//! an iteration.
//!
//! In coupled systems the forward and the backward have the same chunks, and one device runs both
//! passes of a chunk (Mobius, Superpipeline). Otherwise each has its own chunks, and checkpoints
//! are copied from the forward's device to the backward's (SPipe).

mod activations;
mod bare;
mod from_drives;
mod optimizer;
mod placement;
mod priority;
mod replicas;
mod tied;
mod weights;

pub use bare::{StreamedTimes, UnitTimes, bare_streamed, bare_superpipeline, bare_superpipeline_after};
pub(super) use placement::lower;

use super::{
    drives::{DriveStates, Loads},
    flows::Transfer,
};
use crate::{Access, Content, Edge, Flow, Lifetime, NewAction, Program, ProgramBuilder, Stage as ProgramStage};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Faults, IdleCause, LaneId, LaneRole, LayerRange, MemoryId,
    MicrobatchId, SimTime, StageId, Subject,
};
use spipe_hardware::CollectiveKind;
use spipe_plan::{ExchangePolicy, Visit};
use std::collections::BTreeMap;
use tied::Borrowed;
use weights::Unit;

/// Consecutive layers in one pass on one device.
#[derive(Clone, Debug)]
struct Chunk {
    pub device: DeviceId,
    pub layers: LayerRange,
    /// The layers of its backward.
    pub returns: Option<LayerRange>,
    /// Whether its backward passes on a gradient.
    pub passes_gradient: bool,
    pub recomputed: Option<LayerRange>,
    /// The time of the forward, or of the backward without its recompute, on one microbatch.
    pub work: SimTime,
    /// The time of the recompute before the backward.
    pub recompute: SimTime,
    /// The parameters by layer.
    pub weights: Vec<Bytes>,
    /// The part of them that a copy to the device moves.
    pub streamed: Vec<Bytes>,
    pub gradients: Bytes,
    /// Whether any of its parameters are trained.
    pub trains: bool,
    /// Keys and values of all microbatches, which are resident.
    pub cache: Bytes,
    /// Whether its parameters and their optimizer step stay on the device.
    pub stays: bool,
    /// The input of one microbatch.
    pub input: Bytes,
    /// The output of one microbatch.
    pub output: Bytes,
    /// The saved activations of one microbatch without the input.
    pub saved: Bytes,
    /// The recomputed activations of one microbatch.
    pub again: Bytes,
    pub workspace: Bytes,
    /// The host memory of its parameters: their home, or the DRAM through which they pass.
    pub home: MemoryId,
    /// The drive that keeps its parameters.
    pub shelf: Option<MemoryId>,
    /// The socket of its optimizer step.
    pub socket: Option<DeviceId>,
    /// The optimizer state.
    pub state: Bytes,
    /// The drive that keeps it between steps.
    pub drive: Option<MemoryId>,
    /// The undo log.
    pub undo: Bytes,
    /// The optimizer step.
    pub step: Transfer,
    /// The tied parameters that it borrows from another chunk.
    pub borrowed: Option<Borrowed>,
    /// The accumulation of gradients from another chunk's use of its parameters.
    pub accumulate: Transfer,
    /// The norm of its gradients, where its optimizer step runs.
    pub norm: Transfer,
}

impl Chunk {
    /// The parameters of all layers.
    fn weights(&self) -> Bytes {
        self.weights.iter().copied().sum()
    }

    /// The parameters of some of its layers.
    fn weights_of(&self, layers: LayerRange) -> Bytes {
        self.sum_of(&self.weights, layers)
    }

    /// The bytes that a copy of some of its layers moves.
    fn streamed_of(&self, layers: LayerRange) -> Bytes {
        self.sum_of(&self.streamed, layers)
    }

    fn sum_of(&self, bytes: &[Bytes], layers: LayerRange) -> Bytes {
        let first = self.layers.first().index();
        bytes[layers.first().index() - first..=layers.last().index() - first].iter().copied().sum()
    }
}

/// The cost of copies and collectives.
trait Links {
    fn copy(&self, from: MemoryId, to: MemoryId, bytes: Bytes) -> Result<Transfer, Faults>;

    /// The replicas that hold the same parameters.
    fn holders(&self) -> usize {
        1
    }

    /// The flows of a collective of `bytes` into a device, among all that run the same chunk.
    fn collective(&self, _device: DeviceId, _what: (CollectiveKind, Bytes)) -> Result<Vec<Flow>, Faults> {
        Ok(Vec::new())
    }
}

/// When optimizer steps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpdateOrder {
    /// Never.
    Never,
    /// After the whole backward.
    Serial,
    /// Chunk by chunk, once the gradients are on the host.
    Asynchronous,
    /// The same, with priority for the first layers of the model, which the next forward needs
    /// first.
    NeededFirst,
}

/// The specification of a program.
#[derive(Clone, Debug)]
struct Spec {
    pub microbatches: usize,
    /// The chunks of the forward in model order.
    pub forward: Vec<Chunk>,
    /// The chunks of the backward in model order; empty in inference.
    pub backward: Vec<Chunk>,
    /// How parameters are exchanged, and whether both passes have the same chunks on the same
    /// devices.
    pub exchange: ExchangePolicy,
    /// The number of chunks, counted from the first, that are on the device when the forward
    /// begins. Their copies take no time.
    pub preloaded: usize,
    /// Whether the chunks of an exchange are copied one by one.
    pub sequential: bool,
    /// Whether parameters are copied back to the host although it has them unchanged.
    pub write_back: bool,
    /// Whether parameters of chunks that do not stay are copied at all; otherwise they are
    /// resident.
    pub streams: bool,
    pub updates: UpdateOrder,
    /// Whether checkpoints are sent only during the computation before their use.
    pub late_checkpoints: bool,
    /// Whether optimizer steps wait for the global norm of gradients.
    pub waits_for_norm: bool,
    /// Whether optimizer steps run speculatively and are undone if the global check fails.
    pub speculates: bool,
    /// Whether undone steps are repeated with clipped gradients.
    pub redoes: bool,
    /// Whether steps are undone from their gradients instead of an undo log.
    pub arithmetic_undo: bool,
}

/// A chunk and a microbatch.
type Key = (usize, usize);

/// The state of building one program.
struct StreamedLowering<'a> {
    spec: &'a Spec,
    links: &'a dyn Links,
    /// The program so far, while this replica adds to it.
    builder: ProgramBuilder,
    /// Its place among the replicas of the program.
    replica: usize,
    /// Whether gradients are summed over replicas after the last microbatch.
    summed: bool,
    parameters: Vec<weights::Piece>,
    /// The parameters on the device, by visit.
    weights: BTreeMap<Visit, BufferId>,
    /// The borrowed parameters on the device, by visit.
    tied: BTreeMap<Visit, BufferId>,
    /// The gradients of borrowed parameters, by backward chunk.
    tied_gradients: BTreeMap<usize, BufferId>,
    /// Keys and values, by forward chunk.
    caches: BTreeMap<usize, BufferId>,
    /// The inputs of forward chunks, on their devices.
    inputs: BTreeMap<Key, BufferId>,
    /// The outputs of forward chunks, on their devices.
    outputs: BTreeMap<Key, BufferId>,
    /// The gradients of outputs of backward chunks.
    incoming: BTreeMap<Key, BufferId>,
    /// The gradients of inputs of backward chunks.
    outgoing: BTreeMap<Key, BufferId>,
    /// The inputs of backward chunks, on their devices.
    checkpoints: BTreeMap<Key, BufferId>,
    /// The checkpoints that a forward chunk makes within its layers.
    made_by_forward: BTreeMap<Key, Vec<BufferId>>,
    saved: BTreeMap<Key, BufferId>,
    /// The copies between devices, by the buffer that they write.
    sent: BTreeMap<BufferId, ActionId>,
    gradients: BTreeMap<usize, BufferId>,
    /// The passes and recomputes of each visit, in order.
    computed: BTreeMap<Visit, Vec<ActionId>>,
    drives: DriveStates,
    /// The parameters of steps, on their way from drives and back.
    shelved: DriveStates,
    /// The parameters on their way from drives to devices.
    loads: Loads,
}

impl<'a> StreamedLowering<'a> {
    fn new((spec, links): (&'a Spec, &'a dyn Links), replica: usize, builder: ProgramBuilder) -> Self {
        Self {
            spec,
            links,
            builder,
            replica,
            summed: links.holders() > 1,
            parameters: Vec::new(),
            weights: BTreeMap::new(),
            tied: BTreeMap::new(),
            tied_gradients: BTreeMap::new(),
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
            drives: DriveStates::default(),
            shelved: DriveStates::default(),
            loads: Loads::default(),
        }
    }
}

impl StreamedLowering<'_> {
    /// The program of replicas with these specifications.
    fn build(specs: &[Spec], links: &dyn Links, mut builder: ProgramBuilder) -> Result<Program, Faults> {
        let mut replicas = Vec::new();
        for (replica, spec) in specs.iter().enumerate() {
            let mut this = StreamedLowering::new((spec, links), replica, builder);
            this.passes()?;
            builder = std::mem::take(&mut this.builder);
            replicas.push(this);
        }
        replicas::sum_gradients(&mut replicas, &mut builder)?;
        optimizer::update_all(&mut replicas, &mut builder)?;
        for this in &mut replicas {
            this.drives.join_iterations(&mut builder);
            this.shelved.join_iterations(&mut builder);
            this.loads.join_iterations(&mut builder);
        }
        builder.build()
    }

    /// Adds the passes of all chunks, and the copies of parameters.
    fn passes(&mut self) -> Result<(), Faults> {
        self.add_stages();
        self.hold_parameters();
        self.hold_caches();
        let visits = self.visits();
        for of_device in visits.values() {
            self.hold_weights(of_device);
        }
        self.hold_tied_of_resident();
        self.carry_forward()?;
        self.carry_checkpoints()?;
        self.carry_backward()?;
        for of_device in visits.values() {
            for visit in of_device {
                self.compute(*visit);
            }
        }
        self.reuse_inputs();
        if self.spec.late_checkpoints {
            self.delay_checkpoints();
        }
        if self.spec.streams {
            for of_device in visits.values() {
                self.load(of_device)?;
            }
        }
        Ok(())
    }

    /// Adds to a program what `each` adds.
    fn adding<T>(&mut self, builder: &mut ProgramBuilder, each: impl FnOnce(&mut Self) -> T) -> T {
        std::mem::swap(&mut self.builder, builder);
        let made = each(self);
        std::mem::swap(&mut self.builder, builder);
        made
    }

    /// The number of a microbatch among those of all replicas.
    fn id(&self, microbatch: usize) -> MicrobatchId {
        MicrobatchId::from(self.replica * self.spec.microbatches + microbatch)
    }

    /// The complete gradients in a buffer of a chunk.
    fn complete(&self, gradients: BufferId) -> Access {
        Access::new(gradients, self.spec.microbatches as u32 + u32::from(self.summed))
    }

    fn chunk(&self, this: Visit) -> &Chunk {
        if this.backward { &self.spec.backward[this.chunk] } else { &self.spec.forward[this.chunk] }
    }

    /// Adds the stages: those of the forward, and then those of the backward if it has its own.
    fn add_stages(&mut self) {
        let spec = self.spec;
        let backward = if spec.exchange.coupled { &[][..] } else { &spec.backward };
        for chunk in spec.forward.iter().chain(backward) {
            let recomputed = if spec.exchange.coupled {
                self.spec.backward.iter().find(|back| back.layers == chunk.layers).and_then(|back| back.recomputed)
            } else {
                chunk.recomputed
            };
            self.builder.stage(ProgramStage { device: chunk.device, layers: chunk.layers, recomputed });
        }
    }

    fn stage(&self, this: Visit) -> StageId {
        // Decoupled passes have stages of their own.
        let own = if self.spec.exchange.coupled { 0 } else { self.spec.backward.len() };
        let forward = self.spec.forward.len();
        let first = self.replica * (forward + own);
        StageId::from(first + this.chunk + if this.backward && own > 0 { forward } else { 0 })
    }

    /// The visits of each device in execution order: the forward in model order, the backward in
    /// reverse.
    fn visits(&self) -> BTreeMap<DeviceId, Vec<Visit>> {
        let mut visits: BTreeMap<DeviceId, Vec<Visit>> = BTreeMap::new();
        for (chunk, this) in self.spec.forward.iter().enumerate() {
            visits.entry(this.device).or_default().push(Visit { backward: false, chunk });
        }
        for (chunk, this) in self.spec.backward.iter().enumerate().rev().filter(|(_, this)| this.returns.is_some()) {
            visits.entry(this.device).or_default().push(Visit { backward: true, chunk });
        }
        visits
    }

    /// Adds the passes of a visit on all microbatches.
    fn compute(&mut self, this: Visit) {
        for microbatch in 0..self.spec.microbatches {
            let action = if this.backward { self.backward(this, microbatch) } else { self.forward(this, microbatch) };
            self.computed.entry(this).or_default().push(action);
        }
    }

    fn forward(&mut self, this: Visit, microbatch: usize) -> ActionId {
        let key = (this.chunk, microbatch);
        let mut reads = vec![self.weights(this)];
        reads.extend(self.tied_parameters(this));
        reads.extend(self.caches.get(&this.chunk).map(|cache| Access::new(*cache, 0)));
        reads.extend(self.inputs.get(&key).map(|input| Access::new(*input, 1)));
        let mut writes = vec![self.workspace(this, microbatch)];
        let made = self.made_by_forward.get(&key).into_iter().flatten();
        writes.extend(self.outputs.get(&key).into_iter().chain(made).map(|buffer| Access::new(*buffer, 1)));
        let chunk = self.chunk(this);
        if self.spec.exchange.coupled
            && !self.spec.backward.is_empty()
            && chunk.returns.is_some()
            && chunk.saved > Bytes::ZERO
        {
            let (content, bytes) = (Content::Saved(chunk.layers, self.id(microbatch)), chunk.saved);
            let saved = self.on_device(this, content, bytes);
            self.saved.insert(key, saved);
            writes.push(Access::new(saved, 1));
        }
        let work = self.chunk(this).work;
        self.arithmetic((this, None), (ActionKind::Forward, microbatch), work, (reads, writes))
    }

    fn backward(&mut self, this: Visit, microbatch: usize) -> ActionId {
        let key = (this.chunk, microbatch);
        let id = self.id(microbatch);
        let mut reads = vec![self.weights(this)];
        reads.extend(self.tied_parameters(this));
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
        self.add_tied_gradients((this, microbatch), (&mut reads, &mut writes));
        // The layers are named only if they are not the whole chunk.
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
        let subject = Subject { layers, ..Subject::work(self.stage(this), self.id(microbatch)) };
        self.builder.action(NewAction { lane, kind, subject, reads, writes, work, flows: Vec::new(), guard: None })
    }

    /// Whether the parameters of a visit come from the host.
    fn streamed(&self, this: Visit) -> bool {
        self.spec.streams && !self.chunk(this).stays
    }

    /// The version of parameters that a visit reads: 1 of a buffer that a copy wrote, or 0 of a
    /// resident one.
    fn version_of_weights(&self, this: Visit) -> u32 {
        u32::from(self.streamed(this))
    }

    /// The parameters that a visit reads.
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
        let content = Content::Workspace(self.stage(this), self.id(microbatch));
        let bytes = self.chunk(this).workspace;
        Access::new(self.on_device(this, content, bytes), 1)
    }

    /// Adds a copy on a lane.
    fn copy(
        &mut self,
        (lane, kind, subject): (LaneId, ActionKind, Subject),
        transfer: Transfer,
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let Transfer { work, flows } = transfer;
        self.builder.action(NewAction { lane, kind, subject, reads, writes, work, flows, guard: None })
    }

    fn wait(&mut self, from: ActionId, to: ActionId, (distance, cause): (u8, IdleCause)) {
        let anchor = crate::Anchor::EndToStart;
        self.builder.edge(Edge { from, to, anchor, distance, lag: SimTime::ZERO, cause });
    }
}
