//! A realistic trace: a pipeline of GPUs and one CPU socket under 1F1B, executed by a simple
//! in-order scheduler.

use spipe_base::{
    ActionKind, Bytes, IdleCause, LaneId, LaneRole, LayerRange, MicrobatchId, Payload, SimTime, StageId, Subject,
};
use spipe_trace::{
    Arrow, FORMAT_VERSION, Holder, Lane, MemoryTrack, Origin, Sample, Shortage, Span, Status, Trace, idle_intervals,
};
use std::collections::{BTreeMap, VecDeque};

/// The pipeline to run.
#[derive(Clone, Copy)]
pub struct Pipeline {
    /// Stages on GPUs; one more runs on the CPU.
    pub gpus: usize,
    /// Microbatches per iteration.
    pub microbatches: usize,
    /// The origin; the durations of a measured trace vary between actions.
    pub origin: Origin,
}

struct Node {
    lane: usize,
    kind: ActionKind,
    subject: Subject,
    length: u64,
    needs: Vec<(usize, IdleCause)>,
    bytes: Option<Bytes>,
}

/// The execution of a node, and the node whose end allowed it to start.
struct Done {
    start: u64,
    end: u64,
    waited_for: Option<IdleCause>,
    by: Option<usize>,
}

struct Plan {
    lanes: Vec<Lane>,
    nodes: Vec<Node>,
    jitter: Option<u64>,
}

impl Plan {
    fn lane(&mut self, device: &str, role: LaneRole) -> usize {
        self.lanes.push(Lane { name: format!("{device}.{}", role.name()), device: device.into(), role });
        self.lanes.len() - 1
    }

    fn node(&mut self, lane: usize, kind: ActionKind, subject: Subject, us: u64) -> usize {
        let factor = match &mut self.jitter {
            None => 1000,
            Some(state) => {
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                960 + (*state >> 33) % 160
            }
        };
        let bytes = kind.is_transfer().then(|| Bytes::new(us * 24_000));
        self.nodes.push(Node { lane, kind, subject, length: us * factor, needs: Vec::new(), bytes });
        self.nodes.len() - 1
    }

    /// Runs every lane in order and returns the spans sorted by lane and start, with their arrows.
    fn run(self) -> (Vec<Lane>, Vec<Span>, Vec<Arrow>) {
        let mut queues: BTreeMap<usize, VecDeque<usize>> = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            queues.entry(node.lane).or_default().push_back(index);
        }
        let mut done: BTreeMap<usize, Done> = BTreeMap::new();
        let mut last_of_lane: BTreeMap<usize, usize> = BTreeMap::new();
        loop {
            let before = done.len();
            for (lane, queue) in &mut queues {
                while let Some(index) = queue.front().copied() {
                    let Some(next) = self.start(index, last_of_lane.get(lane).copied(), &done) else { break };
                    done.insert(index, next);
                    last_of_lane.insert(*lane, index);
                    queue.pop_front();
                }
            }
            if done.len() == before {
                break;
            }
        }
        let mut order: Vec<(usize, Done)> = done.into_iter().collect();
        order.sort_by_key(|(index, done)| (self.nodes[*index].lane, done.start));
        let place: BTreeMap<usize, u32> =
            order.iter().enumerate().map(|(at, (index, _))| (*index, at as u32)).collect();
        let arrow = |(index, done): &(usize, Done)| Some(Arrow { from: place[&done.by?], to: place[index] });
        let arrows = order.iter().filter_map(arrow).collect();
        let span = |(index, done): &(usize, Done)| {
            let node = &self.nodes[*index];
            Span {
                lane: LaneId::from(node.lane),
                kind: node.kind,
                subject: node.subject,
                start: SimTime::ns(done.start),
                end: SimTime::ns(done.end),
                bytes: node.bytes,
                waited_for: done.waited_for,
            }
        };
        let spans = order.iter().map(span).collect();
        (self.lanes, spans, arrows)
    }

    /// Runs a node after its predecessor in the lane, if all of its dependencies are done.
    fn start(&self, index: usize, before: Option<usize>, done: &BTreeMap<usize, Done>) -> Option<Done> {
        let node = &self.nodes[index];
        let needs: Option<Vec<(u64, usize, IdleCause)>> =
            node.needs.iter().map(|(need, cause)| Some((done.get(need)?.end, *need, *cause))).collect();
        let free = before.and_then(|before| done.get(&before)).map_or(0, |before| before.end);
        let late = needs?.into_iter().max().filter(|(ready, _, _)| *ready > free);
        let start = late.map_or(free, |(ready, _, _)| ready);
        let by = late.map(|(_, need, _)| need).or(before);
        Some(Done { start, end: start + node.length, waited_for: late.map(|(_, _, cause)| cause), by })
    }
}

/// The order of one device: `warm_up` forwards, then forwards and backwards in turn.
fn one_forward_one_backward(warm_up: usize, microbatches: usize) -> Vec<(bool, usize)> {
    let mut order: Vec<(bool, usize)> = (0..warm_up.min(microbatches)).map(|microbatch| (true, microbatch)).collect();
    for microbatch in 0..microbatches {
        order.extend((microbatch + warm_up < microbatches).then_some((true, microbatch + warm_up)));
        order.push((false, microbatch));
    }
    order
}

/// The trace.
pub fn trace(sample: Pipeline) -> Trace {
    let stages = sample.gpus + 1;
    let jitter = (sample.origin == Origin::Measured).then_some(7);
    let mut plan = Plan { lanes: Vec::new(), nodes: Vec::new(), jitter };
    let mut lanes = Vec::new();
    for stage in 0..stages {
        let device = if stage < sample.gpus { format!("gpu{stage}") } else { "cpu0".into() };
        let compute = plan.lane(&device, LaneRole::Compute);
        let copies =
            (stage < sample.gpus).then(|| (plan.lane(&device, LaneRole::H2d), plan.lane(&device, LaneRole::D2h)));
        lanes.push((compute, copies));
    }
    let optimizer = plan.lane("cpu0", LaneRole::Optimizer);
    plan.lane("nvme0", LaneRole::NvmeIn);
    // (stage, microbatch) → the arithmetic and the copy that carries its result on.
    let (mut forwards, mut backwards, mut ups, mut downs) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (stage, (compute, copies)) in lanes.iter().enumerate() {
        let layers = LayerRange::new((stage * 8).into(), (stage * 8 + 7).into());
        let work = |microbatch: usize| Subject {
            layers,
            ..Subject::work(StageId::from(stage), MicrobatchId::from(microbatch))
        };
        let scale = if stage < sample.gpus { 1 } else { 2 };
        for (is_forward, microbatch) in one_forward_one_backward(stages - 1 - stage, sample.microbatches) {
            let subject = work(microbatch);
            let key = (stage, microbatch);
            if is_forward {
                forwards.insert(key, plan.node(*compute, ActionKind::Forward, subject, 6_000 * scale));
                if let Some((_, down)) = copies {
                    ups.insert(key, plan.node(*down, ActionKind::Copy(Payload::Activation), subject, 900));
                }
                continue;
            }
            let kind = if stage % 2 == 0 { ActionKind::BackwardInput } else { ActionKind::Backward };
            let recompute = (stage == 1).then(|| plan.node(*compute, ActionKind::Recompute, subject, 5_500));
            let length = if stage % 2 == 0 { 6_200 } else { 11_800 };
            let backward = plan.node(*compute, kind, subject, length * scale);
            if kind == ActionKind::BackwardInput {
                let weight = plan.node(*compute, ActionKind::BackwardWeight, subject, 5_600 * scale);
                plan.nodes[weight].needs.push((backward, IdleCause::Order));
            }
            backwards.insert(key, recompute.unwrap_or(backward));
            backwards.insert((stage + 1000, microbatch), backward);
            if let Some((_, down)) = copies.filter(|_| stage > 0) {
                downs.insert(key, plan.node(down, ActionKind::Copy(Payload::Gradient), subject, 900));
            }
        }
    }
    connect(&mut plan, &lanes, sample, [&forwards, &backwards, &ups, &downs]);
    steps(&mut plan, &lanes, optimizer, &backwards, sample);
    let (lanes, spans, arrows) = plan.run();
    finish(sample, lanes, spans, arrows)
}

type Nodes = BTreeMap<(usize, usize), usize>;
type DeviceLanes = (usize, Option<(usize, usize)>);

fn connect(plan: &mut Plan, lanes: &[DeviceLanes], sample: Pipeline, [forwards, backwards, ups, downs]: [&Nodes; 4]) {
    for stage in 0..lanes.len() {
        for microbatch in 0..sample.microbatches {
            let key = (stage, microbatch);
            let last = backwards[&(stage + 1000, microbatch)];
            plan.nodes[backwards[&key]]
                .needs
                .push((forwards.get(&key).copied().unwrap_or(last), IdleCause::Activation));
            if let Some(up) = ups.get(&key) {
                plan.nodes[*up].needs.push((forwards[&key], IdleCause::Activation));
            }
            if let Some(down) = downs.get(&key) {
                plan.nodes[*down].needs.push((last, IdleCause::Gradient));
            }
            if stage > 0 {
                let arrived = ups[&(stage - 1, microbatch)];
                plan.nodes[forwards[&key]].needs.push((arrived, IdleCause::Activation));
            }
            if stage + 1 < lanes.len() {
                let after = (stage + 1, microbatch);
                let source = downs.get(&after).copied().unwrap_or(backwards[&(stage + 1001, microbatch)]);
                plan.nodes[backwards[&key]].needs.push((source, IdleCause::Gradient));
            }
        }
    }
}

fn steps(plan: &mut Plan, lanes: &[DeviceLanes], optimizer: usize, backwards: &Nodes, sample: Pipeline) {
    for (stage, (compute, copies)) in lanes.iter().enumerate().rev() {
        let subject = Subject::stage(StageId::from(stage));
        let done = backwards[&(stage + 1000, sample.microbatches - 1)];
        let last = plan.nodes.iter().rposition(|node| node.lane == *compute).unwrap_or(done);
        let gradients =
            copies.map(|(_, down)| plan.node(down, ActionKind::Copy(Payload::GradientsOut), subject, 4_000));
        if let Some(gradients) = gradients {
            plan.nodes[gradients].needs.push((last, IdleCause::Gradient));
        }
        let step = plan.node(optimizer, ActionKind::OptimizerStep, subject, 5_000);
        plan.nodes[step].needs.push((gradients.unwrap_or(last), IdleCause::Gradient));
        if let Some((up, _)) = copies {
            let weights = plan.node(*up, ActionKind::Copy(Payload::WeightsIn), subject, 4_000);
            plan.nodes[weights].needs.push((step, IdleCause::Optimizer));
        }
    }
}

fn finish(sample: Pipeline, lanes: Vec<Lane>, spans: Vec<Span>, arrows: Vec<Arrow>) -> Trace {
    let iteration = spans.iter().map(|span| span.end).max().unwrap_or_default();
    let idle = idle_intervals(&lanes, &spans, iteration);
    let memories = lanes.iter().filter(|lane| lane.role == LaneRole::Compute).map(|lane| memory(lane, &lanes, &spans));
    let notes = match sample.origin {
        Origin::Predicted => vec![],
        Origin::Measured => {
            vec!["emulated accelerator: CPU cores with a memory cap and a paced link, not a GPU".into()]
        }
    };
    Trace {
        format_version: FORMAT_VERSION,
        name: format!("1F1B, gpt-small, {} GPUs and a CPU socket", sample.gpus),
        origin: sample.origin,
        notes,
        status: Status::Ok,
        iteration,
        iterations: vec![iteration],
        tokens: Some(sample.microbatches as u64 * 1024),
        memories: memories.collect(),
        iteration_without_profiler: None,
        folds: Vec::new(),
        explanation: None,
        lanes,
        spans,
        arrows,
        idle,
    }
}

fn memory(lane: &Lane, lanes: &[Lane], spans: &[Span]) -> MemoryTrack {
    let is_cpu = lane.device.starts_with("cpu");
    let fixed = if is_cpu { Bytes::gib(41) } else { Bytes::gib(9) };
    let mut changes: Vec<(SimTime, bool)> = Vec::new();
    for span in spans.iter().filter(|span| lanes[span.lane.index()] == *lane) {
        match span.kind {
            ActionKind::Forward => changes.push((span.start, true)),
            ActionKind::Backward | ActionKind::BackwardWeight => changes.push((span.end, false)),
            _ => {}
        }
    }
    changes.sort();
    let mut held = fixed;
    let mut samples = vec![Sample { at: SimTime::ZERO, bytes: held }];
    for (at, grows) in changes {
        held = if grows { held + Bytes::mib(2900) } else { held.saturating_sub(Bytes::mib(2900)).max(fixed) };
        samples.push(Sample { at, bytes: held });
    }
    let peak = samples.iter().map(|sample| sample.bytes).max().unwrap_or(fixed);
    MemoryTrack {
        name: if is_cpu { "dram0".into() } else { lane.device.clone() },
        capacity: Some(if is_cpu { Bytes::gib(256) } else { Bytes::gib(24) }),
        peak,
        holders: vec![
            Holder { what: "parameters and gradients".into(), bytes: fixed },
            Holder { what: "saved activations".into(), bytes: peak.saturating_sub(fixed) },
        ],
        samples,
    }
}

/// The same trace, stopped by a shortage of memory.
pub fn out_of_memory(mut trace: Trace) -> Trace {
    let at = SimTime::ns(trace.iteration.as_ns() / 2);
    trace.spans.retain(|span| span.end <= at);
    trace.memories.iter_mut().for_each(|memory| memory.samples.retain(|sample| sample.at <= at));
    trace.arrows.clear();
    trace.idle.retain(|idle| idle.end <= at);
    trace.status = Status::OutOfMemory(Shortage {
        memory: "gpu0".into(),
        at,
        needed: Bytes::gib(3),
        free: Bytes::mib(700),
        action: "0F3".into(),
        holders: trace.memories[0].holders.clone(),
    });
    trace
}
