//! Pipelines: parameters stay on the device of their stage, and microbatches flow through the
//! stages.

mod boundary;
mod gradients;
mod offload;
mod optimizer;
mod replicas;
mod station;
mod tied;

use super::{drives::DriveStates, flows::dram_flow, machine::machine, steps::update_all};
use crate::{
    Access, Content, Flow, Lifetime, NewAction, Order, Pass, Program, ProgramBuilder, Token,
    order::{Grid, order_of, slots_of},
    work::Work,
};
use boundary::Crossing;
use offload::Offloads;
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Faults, IdVec, MemoryId, MicrobatchId, SimTime, StageId, Subject,
};
use spipe_plan::{Context, Placement, Update};
use station::Station;
use std::collections::BTreeMap;
use tied::Borrowed;

/// The program of a pipeline.
pub(super) fn lower(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    let order = order_of(context, placement)?.repeated(context.shown_replicas());
    let mut builder = machine(context, placement);
    PipelineLowering::new(context, placement, &order, &mut builder).run(&order)?;
    builder.build()
}

type Key = (StageId, MicrobatchId);

/// The state of lowering one placement.
struct PipelineLowering<'a> {
    context: &'a Context<'a>,
    builder: &'a mut ProgramBuilder,
    /// The stages of a replica. Those of the next replicas follow.
    of_replica: usize,
    /// The slots of a boundary on either side: 2 is double buffering.
    slots: usize,
    stations: IdVec<StageId, Station>,
    /// The inputs of stages.
    activations: Grid<Option<Crossing>>,
    /// The gradients of outputs of stages.
    gradients: Grid<Option<Crossing>>,
    /// The saved activations for a backward: those on the device, and those reloaded.
    saved: Grid<[Option<BufferId>; 2]>,
    /// The recomputed activations for a backward.
    recomputed: Grid<Option<BufferId>>,
    /// The flows of copies between memories so far, each with the bytes of its first copy.
    routes: BTreeMap<(MemoryId, MemoryId), Flow>,
    /// By stage, the forwards so far and their copies.
    forwards: Vec<Done>,
    /// By stage, the backwards so far and their copies.
    backwards: Vec<Done>,
    /// By stage, the number of microbatches in the accumulated gradients.
    accumulated: Vec<u32>,
    /// By stage, its gradients once they are reduced over several replicas.
    reduced: BTreeMap<StageId, Access>,
    /// By stage, the part of its parameters that its replica has updated, where each has a part of the optimizer.
    updated: BTreeMap<StageId, Access>,
    /// The last optimizer step of each socket so far.
    last_steps: BTreeMap<DeviceId, ActionId>,
    /// Whether sockets order their optimizer steps by need.
    urgent_steps: bool,
    /// Whether optimizer steps are a phase of their own.
    synchronous_optimizer: bool,
    /// Whether an optimizer step uses the gradients of the iteration before.
    delayed: bool,
    /// By stage, the tied parameters that it borrows from another stage.
    borrowed: BTreeMap<StageId, Borrowed>,
    offloads: Offloads,
    /// By device, the backwards whose gradients leave at once, each with the copy.
    sent: BTreeMap<DeviceId, Vec<(ActionId, ActionId)>>,
    drives: DriveStates,
    faults: Faults,
}

/// The passes of a stage in one direction so far, in order.
#[derive(Clone, Default)]
struct Done {
    computed: Vec<ActionId>,
    /// The copies of the inputs.
    arrived: Vec<ActionId>,
    /// The copies of the outputs.
    copied_out: Vec<ActionId>,
}

impl<'a> PipelineLowering<'a> {
    fn new(context: &'a Context<'a>, placement: &Placement, order: &Order, builder: &'a mut ProgramBuilder) -> Self {
        let stations: IdVec<StageId, Station> = replicas::stages(context, placement)
            .into_iter()
            .map(|(id, stage)| Station::new(context, placement, (id, stage), builder))
            .collect();
        let count = stations.len();
        let shape = [count, order.microbatches()];
        let mut this = Self {
            context,
            builder,
            of_replica: placement.stages.len(),
            slots: slots_of(order),
            stations,
            activations: Grid::new(shape, None),
            gradients: Grid::new(shape, None),
            saved: Grid::new(shape, [None; 2]),
            recomputed: Grid::new(shape, None),
            routes: BTreeMap::new(),
            forwards: vec![Done::default(); count],
            backwards: vec![Done::default(); count],
            accumulated: vec![0; count],
            reduced: BTreeMap::new(),
            updated: BTreeMap::new(),
            last_steps: BTreeMap::new(),
            urgent_steps: placement.update.is_urgent(),
            synchronous_optimizer: placement.update.is_phase(),
            delayed: placement.update == Update::Delayed,
            borrowed: BTreeMap::new(),
            offloads: Offloads::new(placement),
            sent: BTreeMap::new(),
            drives: DriveStates::default(),
            faults: Faults::new(),
        };
        this.borrowed = Borrowed::all(&mut this);
        this
    }

    /// Adds the actions of `order`. Writers are added before their readers.
    fn run(mut self, order: &Order) -> Result<(), Faults> {
        let mut next = vec![0; order.devices().len()];
        loop {
            let mut moved = false;
            for (device, tokens) in order.devices().iter().enumerate() {
                while let Some(token) = tokens.get(next[device]).filter(|token| self.is_ready(token)) {
                    match token.pass {
                        Pass::Forward => self.forward(token.stage, token.microbatch),
                        _ => self.backward(*token),
                    }
                    next[device] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        self.reduce_over_replicas();
        update_all(&mut self);
        self.gather_over_replicas();
        self.drives.join_iterations(self.builder);
        self.join_iterations();
        self.join_offloads();
        self.join_gradients();
        self.faults.or(())
    }

    fn is_ready(&self, token: &Token) -> bool {
        let key = (token.stage, token.microbatch);
        match token.pass {
            Pass::Forward => self.is_first(token.stage) || self.activations[key].is_some(),
            _ => self.is_last(token.stage) || self.gradients[key].is_some(),
        }
    }

    /// Whether a stage is the first of its replica.
    fn is_first(&self, stage: StageId) -> bool {
        stage.index().is_multiple_of(self.of_replica)
    }

    /// Whether a stage is the last of its replica.
    fn is_last(&self, stage: StageId) -> bool {
        (stage.index() + 1).is_multiple_of(self.of_replica)
    }

    fn forward(&mut self, stage: StageId, microbatch: MicrobatchId) {
        let here = &self.stations[stage];
        let trains = here.gradients.is_some();
        let mut reads = vec![Access::new(here.parameters, 0)];
        reads.extend(self.tied_parameters(stage));
        reads.extend(here.cache.map(|cache| Access::new(cache, 0)));
        let arrived = self.activations[(stage, microbatch)];
        reads.extend(arrived.map(|crossing| Access::new(crossing.here, 1)));
        let mut writes = vec![self.workspace(stage, microbatch)];
        let mut leaves = None;
        if trains {
            let here = &self.stations[stage];
            let held_by_input = if arrived.is_some() { here.input } else { Bytes::ZERO };
            let (kept, offloaded) = (here.kept.saturating_sub(held_by_input), here.offloaded);
            let content = Content::Saved(here.stage.layers, microbatch);
            let mut buffer = |bytes| self.builder.buffer(content, here.memory, bytes, Lifetime::Transient);
            let kept = Some(kept).filter(|kept| *kept > Bytes::ZERO || offloaded == Bytes::ZERO).map(&mut buffer);
            leaves = Some(offloaded).filter(|bytes| *bytes > Bytes::ZERO).map(buffer);
            self.saved[(stage, microbatch)][0] = kept;
            writes.extend(kept.into_iter().chain(leaves).map(|buffer| Access::new(buffer, 1)));
        }
        let output = self.out(stage, microbatch, true);
        writes.extend(output.map(|buffer| Access::new(buffer, 1)));
        let work = self.stations[stage].work.forward;
        let action = self.compute(ActionKind::Forward, Subject::work(stage, microbatch), work, (reads, writes));
        self.arrive_during(stage, arrived, action, true);
        if let Some(leaves) = leaves {
            self.offload(stage, microbatch, (leaves, action));
        }
        if let Some(output) = output {
            self.hand_over(stage, microbatch, output, true);
        }
    }

    fn backward(&mut self, token: Token) {
        let Token { stage, microbatch, pass } = token;
        let key = (stage, microbatch);
        let back = if pass == Pass::BackwardWeight { None } else { self.reload(stage, microbatch) };
        if let Some((again, _)) = back {
            self.saved[key][1] = Some(again.buffer);
        }
        if pass != Pass::BackwardWeight {
            self.recompute(stage, microbatch);
        }
        let Some(gradients) = self.stations[stage].gradients else { return };
        let mut reads = self.needed_for_backward(key);
        let arrived = self.gradients[key];
        reads.extend(arrived.map(|crossing| Access::new(crossing.here, 1)));
        let mut writes = vec![self.workspace(stage, microbatch)];
        let leaves = if pass == Pass::BackwardInput { None } else { self.leaving_gradients(stage) };
        if let Some(leaves) = leaves {
            writes.push(Access::new(leaves, 1));
        } else if pass != Pass::BackwardInput {
            let done = self.accumulated[stage.index()];
            reads.extend((done > 0).then_some(Access::new(gradients, done)));
            writes.push(Access::new(gradients, done + 1));
            self.accumulated[stage.index()] += 1;
            self.tied_gradients(stage, &mut reads, &mut writes);
        }
        let output = if pass == Pass::BackwardWeight { None } else { self.out(stage, microbatch, false) };
        writes.extend(output.map(|buffer| Access::new(buffer, 1)));
        let work = &self.stations[stage].work;
        let (kind, work) = match pass {
            Pass::BackwardInput => (ActionKind::BackwardInput, work.backward_input),
            Pass::BackwardWeight => (ActionKind::BackwardWeight, work.later_weight()),
            _ => (ActionKind::Backward, work.backward()),
        };
        // The layers are named only if they are not the whole stage.
        let here = &self.stations[stage];
        let layers = here.backward.filter(|layers| *layers != here.stage.layers);
        let subject = Subject { layers, ..Subject::work(stage, microbatch) };
        let action = self.compute(kind, subject, work, (reads, writes));
        if pass != Pass::BackwardWeight {
            self.arrive_during(stage, arrived, action, false);
        }
        if let Some((_, back)) = back {
            self.reloaded_for(stage, back, action);
        }
        if let Some(leaves) = leaves {
            self.send_gradients((stage, microbatch), (leaves, action));
        }
        if let Some(output) = output {
            self.hand_over(stage, microbatch, output, false);
        }
    }

    /// The accesses of a backward or recompute: parameters, saved and recomputed activations, and
    /// the stage's input.
    fn needed_for_backward(&self, key: Key) -> Vec<Access> {
        let mut reads = vec![Access::new(self.stations[key.0].parameters, 0)];
        reads.extend(self.tied_parameters(key.0));
        let saved = self.saved[key].into_iter().flatten();
        let input = self.activations[key].map(|crossing| crossing.here);
        reads.extend(saved.chain(input).chain(self.recomputed[key]).map(|buffer| Access::new(buffer, 1)));
        reads
    }

    /// Adds the recompute of a stage, if it has one.
    fn recompute(&mut self, stage: StageId, microbatch: MicrobatchId) {
        let key = (stage, microbatch);
        let here = &self.stations[stage];
        let Some(layers) = here.stage.recomputed_layers() else { return };
        let reads = self.needed_for_backward(key);
        let (memory, bytes, work) = (here.memory, here.recomputed, here.work.recompute);
        let content = Content::Recomputed(layers, microbatch);
        let buffer = self.builder.buffer(content, memory, bytes, Lifetime::Transient);
        let writes = vec![self.workspace(stage, microbatch), Access::new(buffer, 1)];
        self.compute(ActionKind::Recompute, Subject::work(stage, microbatch), work, (reads, writes));
        self.recomputed[key] = Some(buffer);
    }

    fn workspace(&mut self, stage: StageId, microbatch: MicrobatchId) -> Access {
        let here = &self.stations[stage];
        let content = Content::Workspace(stage, microbatch);
        Access::new(self.builder.buffer(content, here.memory, here.workspace, Lifetime::Transient), 1)
    }

    fn compute(
        &mut self,
        kind: ActionKind,
        subject: Subject,
        (time, traffic): Work,
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let stage = subject.stage.unwrap_or(StageId::new(0));
        let here = &self.stations[stage];
        let flows = dram_flow(self.context, here.stage.lead(), time, traffic);
        let lane = here.lane;
        let action = self.builder.action(NewAction {
            lane,
            kind,
            subject,
            reads,
            writes,
            work: SimTime::from_seconds(time),
            flows,
            guard: None,
        });
        match kind {
            ActionKind::Forward => self.forwards[stage.index()].computed.push(action),
            ActionKind::Backward | ActionKind::BackwardInput => self.backwards[stage.index()].computed.push(action),
            _ => {}
        }
        action
    }
}
