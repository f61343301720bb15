//! The builder of programs: it adds parts, orders the lanes, and checks and freezes the result.

use super::{
    Action, Buffer, Channel, Content, Device, Edge, Flow, Lane, LaneOrder, Lifetime, NewAction, Part, Precedence,
    Program, Shape, Space, Stage, check, precedence,
};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, BytesPerSecond, DeviceId, Diagnostic, Faults, Fold, IdVec, IdleCause,
    LaneId, LaneRole, LayerRange, LinkId, MemoryId, MicrobatchId, SimTime, StageId,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

/// A program under construction.
#[derive(Clone, Debug)]
pub struct ProgramBuilder {
    /// The parts so far. Its precedences are empty until the end.
    program: Program,
    edges: Vec<Edge>,
    /// See [`ProgramBuilder::take_turns`].
    turns: Vec<Vec<ActionId>>,
    /// The lanes of each device by the last word of their name.
    lanes_of: BTreeMap<DeviceId, Vec<(String, LaneId)>>,
    /// See [`ProgramBuilder::pause`].
    pauses: BTreeMap<DeviceId, SimTime>,
    /// See [`ProgramBuilder::share`].
    sharers: BTreeMap<(DeviceId, MemoryId), u64>,
}

impl Default for ProgramBuilder {
    /// A builder of a program without requirements.
    fn default() -> Self {
        Self::new(Shape::default())
    }
}

impl ProgramBuilder {
    /// An empty program.
    pub fn new(shape: Shape) -> Self {
        let program = Program {
            shape,
            devices: IdVec::new(),
            memories: IdVec::new(),
            channels: IdVec::new(),
            stages: IdVec::new(),
            buffers: IdVec::new(),
            lanes: IdVec::new(),
            actions: IdVec::new(),
            accesses: Vec::new(),
            flows: Vec::new(),
            precedences: Vec::new(),
            leaving: Vec::new(),
            folds: Vec::new(),
        };
        Self {
            program,
            edges: Vec::new(),
            turns: Vec::new(),
            lanes_of: BTreeMap::new(),
            pauses: BTreeMap::new(),
            sharers: BTreeMap::new(),
        }
    }

    /// Lets the compute lane of `device` end each iteration `time` later: its last action takes longer
    /// by as much.
    pub fn pause(&mut self, device: DeviceId, time: SimTime) {
        self.pauses.insert(device, time);
    }

    /// States that a device or memory of the program stands for others.
    pub fn fold(&mut self, fold: Fold) {
        self.program.folds.push(fold);
    }

    /// States that the data of `device`'s stages is in a host memory for each of `sharers` devices: buffers there will be
    /// as large as those of all of them.
    pub fn share(&mut self, (device, memory): (DeviceId, MemoryId), sharers: u64) {
        self.sharers.insert((device, memory), sharers);
    }

    /// Adds a memory.
    pub fn memory(&mut self, name: &str, capacity: Option<Bytes>) -> MemoryId {
        self.program.memories.push(Space { name: name.into(), capacity })
    }

    /// Adds a device with its own memory.
    pub fn device(&mut self, name: &str, memory: MemoryId, emulated: bool) -> DeviceId {
        self.program.devices.push(Device { name: name.into(), memory, emulated })
    }

    /// The device of a drive, which has the lanes of its reads and writes. The first call adds it.
    pub fn drive(&mut self, memory: MemoryId) -> DeviceId {
        let found = self.program.devices.enumerate().find(|(_, device)| device.memory == memory);
        let name = self.program.memories[memory].name.clone();
        found.map(|(id, _)| id).unwrap_or_else(|| self.device(&name, memory, false))
    }

    /// Adds a channel.
    pub fn channel(&mut self, name: &str, bandwidth: BytesPerSecond) -> LinkId {
        self.program.channels.push(Channel { name: name.into(), bandwidth })
    }

    /// Adds a stage.
    pub fn stage(&mut self, stage: Stage) -> StageId {
        self.program.stages.push(stage)
    }

    /// The lane of `device` named `device.word`. The first call adds it with `role`.
    pub fn lane(&mut self, device: DeviceId, word: &str, role: LaneRole) -> LaneId {
        let of_device = self.lanes_of.entry(device).or_default();
        if let Some((_, lane)) = of_device.iter().find(|(known, _)| known == word) {
            return *lane;
        }
        let name = format!("{}.{word}", self.program.devices[device].name);
        let order = if role == LaneRole::Compute { LaneOrder::AsAdded } else { LaneOrder::AsReady };
        let lane = self.program.lanes.push(Lane { name, device, role, order, queue: Vec::new() });
        of_device.push((word.to_owned(), lane));
        lane
    }

    /// Orders a lane by need: see [`LaneOrder::AsNeeded`].
    pub fn as_needed(&mut self, lane: LaneId) {
        self.program.lanes[lane].order = LaneOrder::AsNeeded;
    }

    /// Adds a buffer.
    pub fn buffer(&mut self, content: Content, memory: MemoryId, bytes: Bytes, lifetime: Lifetime) -> BufferId {
        self.program.buffers.push(Buffer { content, memory, bytes, lifetime, part: None })
    }

    /// Adds a buffer that holds one part of its content.
    pub fn part(
        &mut self,
        part: Part,
        content: Content,
        memory: MemoryId,
        (bytes, lifetime): (Bytes, Lifetime),
    ) -> BufferId {
        self.program.buffers.push(Buffer { content, memory, bytes, lifetime, part: Some(part) })
    }

    /// Adds an action at the end of its lane.
    ///
    /// # Panics
    /// If there are more accesses or flows than 32 bits count.
    pub fn action(&mut self, action: NewAction) -> ActionId {
        let NewAction { lane, kind, subject, reads, writes, work, flows, guard } = action;
        let Program { accesses: all, flows: all_flows, actions, .. } = &mut self.program;
        let at = |length: usize| match u32::try_from(length) {
            Ok(at) => at,
            Err(_) => panic!("{length} accesses or flows are too many for a program"),
        };
        let first = at(all.len());
        all.extend(reads);
        let middle = at(all.len());
        all.extend(writes);
        let accesses = [first, middle, at(all.len())];
        let first = at(all_flows.len());
        all_flows.extend(flows);
        let flows = [first, at(all_flows.len())];
        let id = actions.push(Action { lane, kind, subject, work, guard, accesses, flows });
        self.program.lanes[lane].queue.push(id);
        id
    }

    /// Adds a precedence that does not follow from data.
    pub fn edge(&mut self, edge: Edge) {
        self.edges.push(edge);
    }

    /// Serialises actions of several lanes, in the order in which a list schedule starts them.
    pub fn take_turns(&mut self, group: Vec<ActionId>) {
        self.turns.push(group);
    }

    /// The memory of `device`.
    pub fn memory_of(&self, device: DeviceId) -> MemoryId {
        self.program.devices[device].memory
    }

    /// The content of a buffer.
    pub fn content_of(&self, buffer: BufferId) -> Content {
        self.program.buffers[buffer].content
    }

    /// The bytes of a buffer.
    pub fn bytes_of(&self, buffer: BufferId) -> Bytes {
        self.program.buffers[buffer].bytes
    }

    /// The name of `device`.
    pub fn name_of(&self, device: DeviceId) -> &str {
        &self.program.devices[device].name
    }

    /// An action added before.
    pub fn get(&self, action: ActionId) -> &Action {
        &self.program.actions[action]
    }

    /// The bytes that an action added before moves.
    pub fn flows_of(&self, action: ActionId) -> &[Flow] {
        self.program.flows(&self.program.actions[action])
    }

    /// Orders the lanes, checks the program and freezes it.
    ///
    /// # Errors
    /// Every fault of the program.
    pub fn build(mut self) -> Result<Program, Faults> {
        if self.program.shape.feeds_back {
            let edges = fed_back(&self.program);
            self.edges.extend(edges);
        }
        let mut program = self.program;
        let mut faults = check::references(&program, &self.edges);
        if !faults.is_harmless() {
            return Err(faults);
        }
        program.precedences = precedence::derive(&program, &self.edges);
        program.leaving = offsets(&program.precedences, program.actions.len());
        // The edges are needed again only with those of turns.
        let edges = if self.turns.is_empty() { Vec::new() } else { self.edges };
        match order_lanes(&mut program, &self.turns) {
            Ok(turns) if turns.is_empty() => {}
            Ok(turns) => {
                let edges: Vec<Edge> = edges.into_iter().chain(turns).collect();
                program.precedences = precedence::derive(&program, &edges);
                program.leaving = offsets(&program.precedences, program.actions.len());
            }
            Err(fault) => faults.push(fault),
        }
        add_pauses(&mut program, &self.pauses);
        multiply_shared(&mut program, &self.sharers);
        faults.extend(check::program(&program));
        faults.or(program)
    }
}

/// Sorts every queue without fixed order, and every group of `turns`, by the start of its actions
/// in a list schedule without contention. Returns the edges of the groups.
///
/// That schedule respects all precedences and all fixed queues, so that in-order lanes cannot
/// deadlock.
fn order_lanes(program: &mut Program, turns: &[Vec<ActionId>]) -> Result<Vec<Edge>, Diagnostic> {
    let started = Kahn::new(program, turns).run().map_err(|stuck| {
        let named: Vec<String> = stuck.iter().map(|id| program.describe(*id)).collect();
        Diagnostic::error(format!("actions wait for each other in a cycle: {}", named.join(" → ")))
            .hint("a lane runs its actions in order: look for an action that waits for a later one of the same lane")
    })?;
    let mut queues: Vec<Vec<ActionId>> = vec![Vec::new(); program.lanes.len()];
    let mut place = vec![0; program.actions.len()];
    for (index, action) in started.into_iter().enumerate() {
        queues[program.actions[action].lane.index()].push(action);
        place[action.index()] = index;
    }
    for (lane, queue) in program.lanes.iter_mut().zip(queues) {
        lane.queue = queue;
    }
    let edge = |from: ActionId, to: ActionId, distance| {
        let (anchor, lag, cause) = (super::Anchor::EndToStart, SimTime::ZERO, IdleCause::Order);
        Edge { from, to, anchor, distance, lag, cause }
    };
    let mut edges = Vec::new();
    for group in turns {
        let mut group = group.clone();
        group.sort_unstable_by_key(|action| place[action.index()]);
        edges.extend(group.windows(2).map(|pair| edge(pair[0], pair[1], 0)));
        if let [first, .., last] = group[..] {
            edges.push(edge(last, first, 1));
        }
    }
    Ok(edges)
}

fn add_pauses(program: &mut Program, pauses: &BTreeMap<DeviceId, SimTime>) {
    for lane in program.lanes.iter().filter(|lane| lane.role == LaneRole::Compute) {
        if let (Some(last), Some(pause)) = (lane.queue.last(), pauses.get(&lane.device)) {
            program.actions[*last].work += *pause;
        }
    }
}

/// Multiplies the buffers in host memories that devices of the program share with those for which they stand.
fn multiply_shared(program: &mut Program, sharers: &BTreeMap<(DeviceId, MemoryId), u64>) {
    if sharers.values().all(|sharers| *sharers == 1) {
        return;
    }
    let stages: Vec<(DeviceId, LayerRange)> = program.stages.iter().map(|stage| (stage.device, stage.layers)).collect();
    let shared: BTreeSet<MemoryId> = sharers.keys().map(|(_, memory)| *memory).collect();
    for buffer in program.buffers.iter_mut().filter(|buffer| shared.contains(&buffer.memory)) {
        let layer = buffer.content.layer();
        let runs = |(_, layers): &&(DeviceId, LayerRange)| layer.is_some_and(|layer| layers.contains(layer));
        let of = |(device, _): &(DeviceId, LayerRange)| sharers.get(&(*device, buffer.memory));
        buffer.bytes = buffer.bytes * stages.iter().filter(runs).find_map(of).copied().unwrap_or(1);
    }
}

/// The edges of a program that feeds back: the first layer of each microbatch waits for the last
/// layer in the iteration before. The data is a token id or an image and counts as no bytes,
/// because it is far smaller than activations.
fn fed_back(program: &Program) -> Vec<Edge> {
    let forwards = program.actions.enumerate().filter(|(_, action)| action.kind == ActionKind::Forward);
    let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
    for (id, action) in forwards {
        let stage = action.subject.stage.and_then(|stage| program.stages.get(stage));
        let (Some(stage), Some(microbatch)) = (stage, action.subject.microbatch) else { continue };
        if stage.layers.first().index() == 0 {
            first.insert(microbatch, id);
        }
        if stage.layers.last().index() + 1 == program.shape.layers {
            last.insert(microbatch, id);
        }
    }
    let edge = |(microbatch, from): (MicrobatchId, ActionId)| {
        let to = *first.get(&microbatch)?;
        let (anchor, cause) = (super::Anchor::EndToStart, IdleCause::Activation);
        (from != to).then_some(Edge { from, to, anchor, distance: 1, lag: SimTime::ZERO, cause })
    };
    last.into_iter().filter_map(edge).collect()
}

/// The start of each action's precedences in the sorted list.
fn offsets(precedences: &[Precedence], actions: usize) -> Vec<u32> {
    let mut leaving = vec![0u32; actions + 1];
    for precedence in precedences {
        leaving[precedence.from.index() + 1] += 1;
    }
    for index in 0..actions {
        leaving[index + 1] += leaving[index];
    }
    leaving
}

/// A list schedule of one iteration: a topological order that takes the earliest startable action
/// first. Ties go to the lower rank ([`Program::rank`]), then to the lower id.
struct Kahn<'a> {
    program: &'a Program,
    /// The groups of `turns` to which each action belongs.
    groups: BTreeMap<ActionId, Vec<usize>>,
    group_free: Vec<SimTime>,
    waiting: Vec<u32>,
    /// The next action in a queue with fixed order.
    queued_behind: Vec<Option<ActionId>>,
    ready_at: Vec<SimTime>,
}

impl<'a> Kahn<'a> {
    fn new(program: &'a Program, turns: &[Vec<ActionId>]) -> Self {
        let count = program.actions.len();
        let mut groups: BTreeMap<ActionId, Vec<usize>> = BTreeMap::new();
        for (index, group) in turns.iter().enumerate() {
            for action in group {
                groups.entry(*action).or_default().push(index);
            }
        }
        let mut waiting = vec![0; count];
        for precedence in program.precedences.iter().filter(|precedence| precedence.distance == 0) {
            waiting[precedence.to.index()] += 1;
        }
        let mut queued_behind = vec![None; count];
        for lane in program.lanes.iter().filter(|lane| lane.order == LaneOrder::AsAdded) {
            for pair in lane.queue.windows(2) {
                queued_behind[pair[0].index()] = Some(pair[1]);
                waiting[pair[1].index()] += 1;
            }
        }
        let group_free = vec![SimTime::ZERO; turns.len()];
        Self { program, groups, group_free, waiting, queued_behind, ready_at: vec![SimTime::ZERO; count] }
    }

    /// The successors of `action`, each with its anchor (false for the start, true for the end) and
    /// its lag.
    fn successors(&self, action: ActionId) -> impl Iterator<Item = (ActionId, bool, SimTime)> + use<'a> {
        let leaving = &self.program.precedences[self.program.leaving(action)];
        let data = leaving
            .iter()
            .filter(|precedence| precedence.distance == 0)
            .map(|precedence| (precedence.to, precedence.anchor == super::Anchor::EndToStart, precedence.lag));
        data.chain(self.queued_behind[action.index()].map(|next| (next, true, SimTime::ZERO)))
    }

    /// The actions in the order in which they start.
    ///
    /// # Errors
    /// The actions of a cycle.
    fn run(mut self) -> Result<Vec<ActionId>, Vec<ActionId>> {
        let actions = &self.program.actions;
        let mut free = vec![SimTime::ZERO; self.program.lanes.len()];
        let entry = |at: SimTime, id: ActionId| Reverse((at, self.program.rank(id), id));
        let mut heap: BinaryHeap<Reverse<(SimTime, usize, ActionId)>> =
            actions.ids().filter(|id| self.waiting[id.index()] == 0).map(|id| entry(SimTime::ZERO, id)).collect();
        let mut order = Vec::with_capacity(actions.len());
        while let Some(Reverse((at, _, id))) = heap.pop() {
            let lane = actions[id].lane.index();
            let groups = self.groups.get(&id).map_or(&[][..], Vec::as_slice);
            let open = groups.iter().map(|group| self.group_free[*group]).fold(free[lane], SimTime::max);
            if at < open {
                heap.push(entry(open, id));
                continue;
            }
            let end = at + self.program.alone(id);
            free[lane] = end;
            for group in groups {
                self.group_free[*group] = end;
            }
            order.push(id);
            for (next, after_end, lag) in self.successors(id) {
                let from = if after_end { end } else { at };
                let ready = &mut self.ready_at[next.index()];
                *ready = (*ready).max(from + lag);
                self.waiting[next.index()] -= 1;
                if self.waiting[next.index()] == 0 {
                    heap.push(entry(*ready, next));
                }
            }
        }
        if order.len() == actions.len() { Ok(order) } else { Err(self.cycle()) }
    }

    /// A cycle of actions, each of which waits for the one before it.
    fn cycle(&self) -> Vec<ActionId> {
        let mut waits_for: BTreeMap<ActionId, ActionId> = BTreeMap::new();
        for from in self.program.actions.ids().filter(|from| self.waiting[from.index()] > 0) {
            for (to, _, _) in self.successors(from) {
                waits_for.entry(to).or_insert(from);
            }
        }
        let Some(mut at) = waits_for.keys().next().copied() else { return Vec::new() };
        let mut seen = Vec::new();
        while !seen.contains(&at) {
            seen.push(at);
            match waits_for.get(&at) {
                Some(before) => at = *before,
                None => return seen,
            }
        }
        let start = seen.iter().position(|id| *id == at).unwrap_or(0);
        let mut cycle = seen.split_off(start);
        cycle.reverse();
        cycle
    }
}
