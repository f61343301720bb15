//! Stages that keep their weights: buffers, boundary copies with double buffering, recompute, the optimizer.

use crate::{
    Access, Action, Anchor, Content, Edge, Flow, Lifetime, Order, Pass, ProgramBuilder, Stage as ProgramStage, Token,
};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, DeviceId, Diagnostic, Faults, IdVec, IdleCause, LaneId, LaneRole, LayerId,
    MemoryId, MicrobatchId, Payload, Seconds, SimTime, StageId, Subject,
};
use spipe_cost::{LayerTime, Mode};
use spipe_hardware::DeviceKind;
use spipe_model::Recompute;
use spipe_plan::{Boundary, Context, InFlight, Placement, Stage, StageFootprint, stage_footprint};
use std::collections::BTreeMap;

/// What every action of a stage uses.
struct Station {
    stage: Stage,
    lane: LaneId,
    memory: MemoryId,
    need: StageFootprint,
    /// Bytes of one microbatch of its input and of its output, in the precision of its device.
    input: Bytes,
    output: Bytes,
    workspace: Bytes,
    recomputed: Bytes,
    parameters: BufferId,
    /// Gradients and optimizer state, in training.
    training: Option<(BufferId, BufferId)>,
    times: Times,
}

/// Work and memory traffic of one microbatch in a stage.
struct Times {
    forward: (Seconds, Bytes),
    recompute: (Seconds, Bytes),
    backward: (Seconds, Bytes),
}

/// The two copies of something that crosses a boundary, or the one that both sides share.
#[derive(Clone, Copy)]
struct Crossing {
    /// Where it is used.
    here: BufferId,
    /// The copy that brought it, if it came from another memory.
    copy: Option<ActionId>,
}

/// The state of lowering one placement.
pub(super) struct Lowering<'a> {
    context: &'a Context<'a>,
    builder: &'a mut ProgramBuilder,
    stations: IdVec<StageId, Station>,
    /// Inputs of stages and gradients of their outputs, made by the neighbour.
    activations: BTreeMap<(StageId, MicrobatchId), Crossing>,
    gradients: BTreeMap<(StageId, MicrobatchId), Crossing>,
    saved: BTreeMap<(StageId, MicrobatchId), BufferId>,
    /// For each stage, the copies out and the computing actions so far, by direction.
    forwards: Vec<Done>,
    backwards: Vec<Done>,
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
    pub fn new(context: &'a Context<'a>, placement: &Placement, builder: &'a mut ProgramBuilder) -> Self {
        let stations: IdVec<StageId, Station> =
            placement.stages.ids().map(|id| station(context, placement, id, builder)).collect();
        let count = stations.len();
        Self {
            context,
            builder,
            stations,
            activations: BTreeMap::new(),
            gradients: BTreeMap::new(),
            saved: BTreeMap::new(),
            forwards: vec![Done::default(); count],
            backwards: vec![Done::default(); count],
            faults: Faults::new(),
        }
    }

    /// Adds the actions of `order`. Stages are visited such that what an action reads has been added before it.
    pub fn run(mut self, order: &Order) -> Result<(), Faults> {
        let training = self.context.workload().mode == Mode::Train;
        let mut next = vec![0; order.devices().len()];
        loop {
            let mut moved = false;
            for (device, tokens) in order.devices().iter().enumerate() {
                while let Some(token) = tokens.get(next[device]).filter(|token| self.is_ready(token)) {
                    match token.pass {
                        Pass::Forward => self.forward(token.stage, token.microbatch),
                        _ if training => self.backward(token.stage, token.microbatch),
                        _ => {}
                    }
                    next[device] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        if training {
            for stage in self.stations.ids() {
                self.optimizer(stage);
            }
        }
        self.join_iterations();
        self.faults.or(())
    }

    fn is_ready(&self, token: &Token) -> bool {
        let key = (token.stage, token.microbatch);
        let last = token.stage.index() + 1 == self.stations.len();
        match token.pass {
            Pass::Forward => token.stage.index() == 0 || self.activations.contains_key(&key),
            _ => last || self.context.workload().mode == Mode::Infer || self.gradients.contains_key(&key),
        }
    }

    fn forward(&mut self, stage: StageId, microbatch: MicrobatchId) {
        let here = &self.stations[stage];
        let training = here.training.is_some();
        let mut reads = vec![Access::new(here.parameters, 0)];
        let arrived = self.activations.get(&(stage, microbatch)).copied();
        reads.extend(arrived.map(|crossing| Access::new(crossing.here, 1)));
        let mut writes = vec![self.workspace(stage, microbatch)];
        let here = &self.stations[stage];
        if training {
            let held_by_input = if arrived.is_some() { here.input } else { Bytes::ZERO };
            let bytes = here.need.per_microbatch.saturating_sub(held_by_input);
            let content = Content::Saved(here.stage.layers, microbatch);
            let saved = self.builder.buffer(content, here.memory, bytes, Lifetime::Transient);
            self.saved.insert((stage, microbatch), saved);
            writes.push(Access::new(saved, 1));
        }
        let output = self.out(stage, microbatch, true);
        writes.extend(output.map(|buffer| Access::new(buffer, 1)));
        let here = &self.stations[stage];
        let work = here.times.forward;
        let action = self.compute(ActionKind::Forward, Subject::work(stage, microbatch), work, (reads, writes));
        self.arrive_during(stage, arrived, action, true);
        if let Some(output) = output {
            self.hand_over(stage, microbatch, output, true);
        }
    }

    fn backward(&mut self, stage: StageId, microbatch: MicrobatchId) {
        let key = (stage, microbatch);
        let recomputed = self.recompute(stage, microbatch);
        let here = &self.stations[stage];
        let Some((gradients, _)) = here.training else { return };
        let done = self.backwards[stage.index()].computed.len() as u32;
        let mut reads = vec![Access::new(here.parameters, 0), Access::new(self.saved[&key], 1)];
        reads.extend(self.activations.get(&key).map(|crossing| Access::new(crossing.here, 1)));
        reads.extend(recomputed);
        if done > 0 {
            reads.push(Access::new(gradients, done));
        }
        let arrived = self.gradients.get(&key).copied();
        reads.extend(arrived.map(|crossing| Access::new(crossing.here, 1)));
        let mut writes = vec![self.workspace(stage, microbatch), Access::new(gradients, done + 1)];
        let output = self.out(stage, microbatch, false);
        writes.extend(output.map(|buffer| Access::new(buffer, 1)));
        let work = self.stations[stage].times.backward;
        let action = self.compute(ActionKind::Backward, Subject::work(stage, microbatch), work, (reads, writes));
        self.arrive_during(stage, arrived, action, false);
        if let Some(output) = output {
            self.hand_over(stage, microbatch, output, false);
        }
    }

    /// The forward of the recomputed layers again, from the stage's input.
    fn recompute(&mut self, stage: StageId, microbatch: MicrobatchId) -> Option<Access> {
        let here = &self.stations[stage];
        let layers = here.stage.recomputed_layers()?;
        let mut reads = vec![Access::new(here.parameters, 0), Access::new(self.saved[&(stage, microbatch)], 1)];
        reads.extend(self.activations.get(&(stage, microbatch)).map(|crossing| Access::new(crossing.here, 1)));
        let (memory, bytes, work) = (here.memory, here.recomputed, here.times.recompute);
        let content = Content::Recomputed(layers, microbatch);
        let buffer = self.builder.buffer(content, memory, bytes, Lifetime::Transient);
        let writes = vec![self.workspace(stage, microbatch), Access::new(buffer, 1)];
        self.compute(ActionKind::Recompute, Subject::work(stage, microbatch), work, (reads, writes));
        Some(Access::new(buffer, 1))
    }

    fn optimizer(&mut self, stage: StageId) {
        let here = &self.stations[stage];
        let Some((gradients, state)) = here.training else { return };
        let device = here.stage.device;
        let parameters = here.stage.layers.iter().map(|layer| self.context.cost.parameters(layer)).sum();
        let time = self.context.cost.optimizer_time(parameters, device);
        let traffic = self.context.cost.optimizer_traffic(parameters, device);
        let flows = self.dram_flow(device, time, traffic);
        let last = self.backwards[stage.index()].computed.len() as u32;
        self.builder.action(Action {
            lane: here.lane,
            kind: ActionKind::OptimizerStep,
            subject: Subject { layers: Some(here.stage.layers), ..Subject::stage(stage) },
            reads: vec![Access::new(gradients, last), Access::new(here.parameters, 0), Access::new(state, 0)],
            writes: vec![Access::new(here.parameters, 1), Access::new(state, 1)],
            work: SimTime::from_seconds(time),
            flows,
            guard: None,
        });
    }

    fn workspace(&mut self, stage: StageId, microbatch: MicrobatchId) -> Access {
        let here = &self.stations[stage];
        let content = Content::Workspace(stage, microbatch);
        Access::new(self.builder.buffer(content, here.memory, here.workspace, Lifetime::Transient), 1)
    }

    /// The buffer that a stage writes for its neighbour, in its own memory; none at the ends of the model.
    fn out(&mut self, stage: StageId, microbatch: MicrobatchId, forward: bool) -> Option<BufferId> {
        let here = &self.stations[stage];
        let (content, bytes) = if forward {
            let last = stage.index() + 1 == self.stations.len();
            (!last).then_some((Content::Activation(here.stage.layers.last(), microbatch), here.output))?
        } else {
            let before = here.stage.layers.first().index().checked_sub(1)?;
            (Content::Gradient(LayerId::from(before), microbatch), here.input)
        };
        Some(self.builder.buffer(content, here.memory, bytes, Lifetime::Transient))
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
        let flows = self.dram_flow(here.stage.device, time, traffic);
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
            ActionKind::Backward => self.backwards[stage.index()].computed.push(action),
            _ => {}
        }
        action
    }

    /// Arithmetic on a CPU draws on the channels of its DRAM, but alone it is never slowed by them: the figure for its time
    /// already holds its own traffic, part of which caches serve.
    fn dram_flow(&self, device: DeviceId, time: Seconds, traffic: Bytes) -> Vec<Flow> {
        let hardware = self.context.hardware;
        let device = &hardware.devices()[device];
        let channels = match device.kind {
            DeviceKind::Socket { .. } => hardware.dram_channels(device.memory),
            DeviceKind::Gpu => None,
        };
        let flow = |channel| {
            let bandwidth = hardware.links()[channel].bandwidth;
            let most = (bandwidth.get() * time.get()).floor().max(0.0) as u64;
            Flow {
                route: [channel].into(),
                latency: SimTime::ZERO,
                bytes: traffic.min(Bytes::new(most)),
                rate_cap: None,
            }
        };
        channels.map(flow).into_iter().filter(|flow| flow.bytes > Bytes::ZERO).collect()
    }

    /// Passes a stage's output (or the gradient of its input) to the neighbour: by a copy if that is in another memory.
    fn hand_over(&mut self, stage: StageId, microbatch: MicrobatchId, output: BufferId, forward: bool) {
        let neighbour = neighbour(stage, forward);
        let crossing = if self.stations[stage].memory == self.stations[neighbour].memory {
            Crossing { here: output, copy: None }
        } else {
            self.copy(stage, microbatch, output, forward)
        };
        let arrivals = if forward { &mut self.activations } else { &mut self.gradients };
        arrivals.insert((neighbour, microbatch), crossing);
    }

    fn copy(&mut self, stage: StageId, microbatch: MicrobatchId, output: BufferId, forward: bool) -> Crossing {
        let (from, to) = (&self.stations[stage], &self.stations[neighbour(stage, forward)]);
        let (content, payload, bytes, wire) = if forward {
            let content = Content::Activation(from.stage.layers.last(), microbatch);
            (content, Payload::Activation, to.input, from.output.min(to.input))
        } else {
            let content = Content::Gradient(to.stage.layers.last(), microbatch);
            (content, Payload::Gradient, to.output, from.input.min(to.output))
        };
        let flow = route(self.context, from.memory, to.memory, wire).map_err(|fault| self.faults.push(fault));
        let (sender, receiver, memory) = (from.stage.device, to.stage.device, to.memory);
        let lane = self.copy_lane(sender, receiver);
        let here = self.builder.buffer(content, memory, bytes, Lifetime::Transient);
        let copy = self.builder.action(Action {
            lane,
            kind: ActionKind::Copy(payload),
            subject: Subject::work(stage, microbatch),
            reads: vec![Access::new(output, 1)],
            writes: vec![Access::new(here, 1)],
            work: SimTime::ZERO,
            flows: flow.into_iter().collect(),
            guard: None,
        });
        let done = if forward { &mut self.forwards } else { &mut self.backwards };
        done[stage.index()].copied_out.push(copy);
        Crossing { here, copy: Some(copy) }
    }

    /// The copy engine that moves bytes from one device's memory to another's: that of the GPU if one side is a CPU, a
    /// channel of their link otherwise.
    fn copy_lane(&mut self, from: DeviceId, to: DeviceId) -> LaneId {
        let is_cpu = |device| self.context.is_cpu(device);
        match (is_cpu(from), is_cpu(to)) {
            (false, true) => self.builder.lane(from, LaneRole::D2h.name(), LaneRole::D2h),
            (true, false) => self.builder.lane(to, LaneRole::H2d.name(), LaneRole::H2d),
            _ => {
                let other = self.context.hardware.devices()[to].name.clone();
                self.builder.lane(from, &format!("to-{other}"), LaneRole::Channel)
            }
        }
    }

    /// Double buffering: a copy arrives only once the computation before its user has started, and a computation starts
    /// only once the output before the last one has left.
    fn arrive_during(&mut self, stage: StageId, arrived: Option<Crossing>, user: ActionId, forward: bool) {
        let done = if forward { &mut self.forwards } else { &mut self.backwards };
        let done = &mut done[stage.index()];
        done.arrived.extend(arrived.and_then(|crossing| crossing.copy));
        let mut edges = Vec::new();
        let before = done.computed.len().checked_sub(2).map(|index| done.computed[index]);
        if let (Some(copy), Some(before)) = (arrived.and_then(|crossing| crossing.copy), before) {
            edges.push((before, copy, Anchor::StartToStart));
        }
        if let Some(out) = done.copied_out.len().checked_sub(2).map(|index| done.copied_out[index]) {
            edges.push((out, user, Anchor::EndToStart));
        }
        for (from, to, anchor) in edges {
            self.builder.edge(Edge { from, to, anchor, distance: 0, lag: SimTime::ZERO, cause: IdleCause::Memory });
        }
    }
}

impl Lowering<'_> {
    /// Double buffering goes on across iterations: the first input arrives once the last computation has started, and the
    /// first computations start once the last outputs have left.
    fn join_iterations(&mut self) {
        let mut edges = Vec::new();
        for done in self.forwards.iter().chain(&self.backwards) {
            let Some(last) = done.computed.last() else { continue };
            edges.extend(done.arrived.first().map(|copy| (*last, *copy, Anchor::StartToStart)));
            let waiting = done.computed.iter().take(2.min(done.copied_out.len()));
            let leaving = done.copied_out.iter().skip(done.copied_out.len().saturating_sub(2));
            edges.extend(leaving.zip(waiting).map(|(out, user)| (*out, *user, Anchor::EndToStart)));
        }
        for (from, to, anchor) in edges {
            self.builder.edge(Edge { from, to, anchor, distance: 1, lag: SimTime::ZERO, cause: IdleCause::Memory });
        }
    }
}

/// The stage that takes what `stage` hands over.
fn neighbour(stage: StageId, forward: bool) -> StageId {
    StageId::from(if forward { stage.index() + 1 } else { stage.index() - 1 })
}

fn station(context: &Context<'_>, placement: &Placement, id: StageId, builder: &mut ProgramBuilder) -> Station {
    let stage = placement.stages[id];
    let layers = stage.layers;
    let in_flight = InFlight::of(placement, id, context.workload().microbatches, |device| context.is_cpu(device));
    let need = stage_footprint(context, &stage, in_flight, Boundary::around(placement, id));
    let memory = builder.memory_of(stage.device);
    let recomputed = stage.recomputed_layers();
    builder.stage(ProgramStage { device: stage.device, layers, recomputed });
    let of = |layer: LayerId| context.cost.memory(layer, stage.device);
    let sum = |bytes: fn(&spipe_cost::LayerMemory) -> Bytes| layers.iter().map(|layer| bytes(of(layer))).sum();
    let mut resident = |content, bytes| builder.buffer(content, memory, bytes, Lifetime::Resident);
    let parameters = resident(Content::Parameters(layers), sum(|memory| memory.parameters));
    let training = (context.workload().mode == Mode::Train).then(|| {
        let gradients = resident(Content::Gradients(layers), sum(|memory| memory.gradients));
        (gradients, resident(Content::OptimizerState(layers), sum(|memory| memory.optimizer)))
    });
    let again: Bytes = recomputed.iter().flat_map(|layers| layers.iter()).map(|layer| of(layer).saved).sum();
    Station {
        stage,
        lane: builder.lane(stage.device, LaneRole::Compute.name(), LaneRole::Compute),
        memory,
        need,
        input: layers.first().index().checked_sub(1).map_or(Bytes::ZERO, |before| of(before.into()).boundary),
        output: of(layers.last()).boundary,
        workspace: need.transient - again,
        recomputed: again,
        parameters,
        training,
        times: times(context, &stage),
    }
}

fn times(context: &Context<'_>, stage: &Stage) -> Times {
    let sum = |layers: Vec<LayerId>, part: &dyn Fn(&LayerTime) -> (Seconds, Bytes)| {
        layers
            .into_iter()
            .filter_map(|layer| context.cost.time(layer, stage.device))
            .map(part)
            .fold((Seconds::ZERO, Bytes::ZERO), |(time, bytes), (more, moved)| (time + more, bytes + moved))
    };
    let all: Vec<LayerId> = stage.layers.iter().collect();
    let again: Vec<LayerId> = stage.recomputed_layers().into_iter().flat_map(|layers| layers.iter()).collect();
    let recompute_time =
        again.iter().filter_map(|layer| context.cost.recompute_time(*layer, stage.device, Recompute::Full)).sum();
    let (_, recompute_traffic) = sum(again, &|time| (time.forward, time.forward_traffic));
    Times {
        forward: sum(all.clone(), &|time| (time.forward, time.forward_traffic)),
        recompute: (recompute_time, recompute_traffic),
        backward: sum(all, &|time| (time.backward(), time.backward_traffic)),
    }
}

/// The flow of `bytes` between two memories, if a route joins them.
fn route(context: &Context<'_>, from: MemoryId, to: MemoryId, bytes: Bytes) -> Result<Flow, Diagnostic> {
    let hardware = context.hardware;
    let name = |memory: MemoryId| &hardware.memories()[memory].name;
    let route = hardware
        .route(from, to)
        .ok_or_else(|| Diagnostic::error(format!("no link joins `{}` and `{}`", name(from), name(to))))?;
    Ok(Flow {
        route: route.links.as_slice().into(),
        latency: SimTime::from_seconds(route.latency),
        bytes,
        rate_cap: route.rate_cap,
    })
}
