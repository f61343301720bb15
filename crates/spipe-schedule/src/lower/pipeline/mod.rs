//! Stages that keep their weights and take turns among microbatches: compute, boundary copies, recompute, offload, optimizer.

mod boundary;
mod gradients;
mod offload;
mod optimizer;
mod shared;
mod station;

use super::flows::dram_flow;
use crate::{Access, Action, Content, Lifetime, Order, Pass, ProgramBuilder, Token};
use boundary::Crossing;
use offload::Offloads;
use shared::Shared;
use spipe_base::{
    ActionId, ActionKind, Bytes, DeviceId, Faults, IdVec, MicrobatchId, Seconds, SimTime, StageId, Subject,
};
use spipe_plan::{Context, Placement, System};
use station::Station;
pub(super) use station::{Times, times};
use std::collections::BTreeMap;

type Key = (StageId, MicrobatchId);

/// The state of lowering one placement.
pub(super) struct Lowering<'a> {
    context: &'a Context<'a>,
    builder: &'a mut ProgramBuilder,
    /// How many slots a boundary has on either side: 2 is double buffering.
    depth: usize,
    stations: IdVec<StageId, Station>,
    /// Inputs of stages and gradients of their outputs, made by the neighbour.
    activations: BTreeMap<Key, Crossing>,
    gradients: BTreeMap<Key, Crossing>,
    /// What the forward left for the backward: kept throughout, or brought back.
    saved: BTreeMap<Key, Vec<Access>>,
    /// What is computed again for the backward.
    recomputed: BTreeMap<Key, Access>,
    /// For each stage, the copies out and the computing actions so far, by direction.
    forwards: Vec<Done>,
    backwards: Vec<Done>,
    /// How often gradients of parameters have been added up, by stage.
    accumulated: Vec<u32>,
    /// The last step of each socket so far.
    stepped: BTreeMap<DeviceId, ActionId>,
    /// Whether sockets step first what is needed first.
    urgent_steps: bool,
    /// Whether steps are a phase of their own.
    synchronous_optimizer: bool,
    /// By stage, what it uses of another one's parameters.
    shared: BTreeMap<StageId, Shared>,
    offloads: Offloads,
    /// By device, backwards whose gradients leave with them, each with the copy.
    sent: BTreeMap<DeviceId, Vec<(ActionId, ActionId)>>,
    faults: Faults,
}

/// What a stage has done in one direction, in order.
#[derive(Clone, Default)]
struct Done {
    computed: Vec<ActionId>,
    /// The copies that brought what was computed on, in the same order.
    arrived: Vec<ActionId>,
    copied_out: Vec<ActionId>,
}

impl<'a> Lowering<'a> {
    pub fn new(context: &'a Context<'a>, placement: &Placement, depth: usize, builder: &'a mut ProgramBuilder) -> Self {
        let stations: IdVec<StageId, Station> =
            placement.stages.ids().map(|id| Station::new(context, placement, id, builder)).collect();
        let count = stations.len();
        let mut this = Self {
            context,
            builder,
            depth,
            stations,
            activations: BTreeMap::new(),
            gradients: BTreeMap::new(),
            saved: BTreeMap::new(),
            recomputed: BTreeMap::new(),
            forwards: vec![Done::default(); count],
            backwards: vec![Done::default(); count],
            accumulated: vec![0; count],
            stepped: BTreeMap::new(),
            urgent_steps: placement.knobs.urgent_steps,
            synchronous_optimizer: placement.knobs.synchronous_optimizer,
            shared: BTreeMap::new(),
            offloads: Offloads::new(placement),
            sent: BTreeMap::new(),
            faults: Faults::new(),
        };
        this.shared = Shared::all(&mut this);
        this
    }

    /// Adds the actions of `order`. Stages are visited such that what an action reads has been added before it.
    pub fn run(mut self, order: &Order, system: System) -> Result<(), Faults> {
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
        self.optimizer(system == System::ZeroOffloadDelayed);
        self.join_iterations();
        self.join_offloads();
        self.join_gradients();
        self.faults.or(())
    }

    fn is_ready(&self, token: &Token) -> bool {
        let key = (token.stage, token.microbatch);
        let last = token.stage.index() + 1 == self.stations.len();
        match token.pass {
            Pass::Forward => token.stage.index() == 0 || self.activations.contains_key(&key),
            _ => last || self.gradients.contains_key(&key),
        }
    }

    fn forward(&mut self, stage: StageId, microbatch: MicrobatchId) {
        let here = &self.stations[stage];
        let training = here.gradients.is_some();
        let mut reads = vec![Access::new(here.parameters, 0)];
        reads.extend(self.shared_parameters(stage));
        reads.extend(here.cache.map(|cache| Access::new(cache, 0)));
        let arrived = self.activations.get(&(stage, microbatch)).copied();
        reads.extend(arrived.map(|crossing| Access::new(crossing.here, 1)));
        let mut writes = vec![self.workspace(stage, microbatch)];
        let mut leaves = None;
        if training {
            let here = &self.stations[stage];
            let held_by_input = if arrived.is_some() { here.input } else { Bytes::ZERO };
            let (kept, offloaded) = (here.kept.saturating_sub(held_by_input), here.offloaded);
            let content = Content::Saved(here.stage.layers, microbatch);
            let mut buffer = |bytes| self.builder.buffer(content, here.memory, bytes, Lifetime::Transient);
            let kept = Some(kept).filter(|kept| *kept > Bytes::ZERO || offloaded == Bytes::ZERO).map(&mut buffer);
            leaves = Some(offloaded).filter(|bytes| *bytes > Bytes::ZERO).map(buffer);
            self.saved.insert((stage, microbatch), kept.map(|kept| Access::new(kept, 1)).into_iter().collect());
            writes.extend(kept.into_iter().chain(leaves).map(|buffer| Access::new(buffer, 1)));
        }
        let output = self.out(stage, microbatch, true);
        writes.extend(output.map(|buffer| Access::new(buffer, 1)));
        let work = self.stations[stage].times.forward;
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
            self.saved.entry(key).or_default().push(again);
        }
        if pass != Pass::BackwardWeight {
            self.recompute(stage, microbatch);
        }
        let Some(gradients) = self.stations[stage].gradients else { return };
        let mut reads = self.needed_for_backward(key);
        let arrived = self.gradients.get(&key).copied();
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
            self.shared_gradients(stage, &mut reads, &mut writes);
        }
        let output = if pass == Pass::BackwardWeight { None } else { self.out(stage, microbatch, false) };
        writes.extend(output.map(|buffer| Access::new(buffer, 1)));
        let times = &self.stations[stage].times;
        let (kind, work) = match pass {
            Pass::BackwardInput => (ActionKind::BackwardInput, times.backward_input),
            Pass::BackwardWeight => (ActionKind::BackwardWeight, times.backward_weight),
            _ => (ActionKind::Backward, times.backward()),
        };
        // The whole stage is not worth a word.
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

    /// Parameters, what was saved or computed again, and the stage's input.
    fn needed_for_backward(&self, key: Key) -> Vec<Access> {
        let mut reads = vec![Access::new(self.stations[key.0].parameters, 0)];
        reads.extend(self.shared_parameters(key.0));
        reads.extend(self.saved.get(&key).into_iter().flatten());
        reads.extend(self.activations.get(&key).map(|crossing| Access::new(crossing.here, 1)));
        reads.extend(self.recomputed.get(&key));
        reads
    }

    /// The forward of the recomputed layers again, from the stage's input.
    fn recompute(&mut self, stage: StageId, microbatch: MicrobatchId) {
        let key = (stage, microbatch);
        let here = &self.stations[stage];
        let Some(layers) = here.stage.recomputed_layers() else { return };
        let reads = self.needed_for_backward(key);
        let (memory, bytes, work) = (here.memory, here.recomputed, here.times.recompute);
        let content = Content::Recomputed(layers, microbatch);
        let buffer = self.builder.buffer(content, memory, bytes, Lifetime::Transient);
        let writes = vec![self.workspace(stage, microbatch), Access::new(buffer, 1)];
        self.compute(ActionKind::Recompute, Subject::work(stage, microbatch), work, (reads, writes));
        self.recomputed.insert(key, Access::new(buffer, 1));
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
        (time, traffic): (Seconds, Bytes),
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let stage = subject.stage.unwrap_or(StageId::new(0));
        let here = &self.stations[stage];
        let flows = dram_flow(self.context, here.stage.device, time, traffic);
        let lane = here.lane;
        let action = self.builder.action(Action {
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
