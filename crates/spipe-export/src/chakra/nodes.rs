//! The nodes of one iteration, device by device.
//!
//! | action | node |
//! |---|---|
//! | forward, backward, recompute, optimizer step, … | `COMP`: time, FLOPs, bytes |
//! | copy from or to another device | `COMM_SEND`, `COMM_RECV` |
//! | copy to the device, from it | `MEM_LOAD`, `MEM_STORE` |
//! | collective | `COMM_COLL` |
//! | precedence from data; any other, and the order of a lane | data dependency; control dependency |

use super::{
    messages::{Message, Messages, homes, is_expressible, moved, reads_written},
    wire::Value,
    work::Work,
};
use spipe_base::{ActionId, ActionKind, Collective, DeviceId, IdVec, LaneRole};
use spipe_schedule::{Action, Precedence, Program};
use std::collections::{BTreeMap, BTreeSet};

/// The kind of a node, by its number in Chakra's schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeKind {
    Load = 2,
    Store = 3,
    Compute = 4,
    Send = 5,
    Receive = 6,
    Collective = 7,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub id: u64,
    pub name: String,
    pub kind: NodeKind,
    pub control: Vec<u64>,
    pub data: Vec<u64>,
    pub micros: u64,
    pub attributes: Vec<(&'static str, Value)>,
}

/// The nodes of each device that has any, in an order in which they can run.
pub fn nodes(program: &Program, work: &Work<'_>) -> BTreeMap<DeviceId, Vec<Node>> {
    let homes = homes(program);
    let mut graph = Graph {
        program,
        work,
        messages: Messages::of(program),
        // Devices without actions have no files, and the others are numbered from zero.
        numbers: homes.iter().copied().collect::<BTreeSet<_>>().into_iter().zip(0..).collect(),
        homes,
        of_action: program.actions().iter().map(|_| 0).collect(),
        received: BTreeMap::new(),
        before: before(program),
        nodes: BTreeMap::new(),
    };
    for action in order(program) {
        graph.add(action);
    }
    graph.nodes
}

struct Graph<'a> {
    program: &'a Program,
    work: &'a Work<'a>,
    messages: Messages,
    numbers: BTreeMap<DeviceId, u32>,
    homes: IdVec<ActionId, DeviceId>,
    /// The node of each action; 0 before it is added.
    of_action: IdVec<ActionId, u64>,
    /// The node that has received a message.
    received: BTreeMap<usize, u64>,
    /// The actions on the same device that an action waits for, and whether their data is read.
    before: IdVec<ActionId, BTreeMap<ActionId, bool>>,
    nodes: BTreeMap<DeviceId, Vec<Node>>,
}

impl Graph<'_> {
    fn push(&mut self, device: DeviceId, mut node: Node) -> u64 {
        let nodes = self.nodes.entry(device).or_default();
        node.id = nodes.len() as u64 + 1;
        nodes.push(node);
        nodes.len() as u64
    }

    /// Adds the receives of an action, the action, and its sends.
    fn add(&mut self, id: ActionId) {
        let device = self.homes[id];
        let action = &self.program.actions()[id];
        let awaited: Vec<usize> = self.messages.awaited.get(&id).into_iter().flatten().copied().collect();
        let mut data: BTreeSet<u64> = BTreeSet::new();
        for number in &awaited {
            let message = self.messages.all[*number].clone();
            if message.receiver == Some(id) {
                continue;
            }
            let node = match self.received.get(number) {
                Some(node) => *node,
                None => self.push(device, self.message(&message, *number, NodeKind::Receive)),
            };
            self.received.insert(*number, node);
            data.insert(node);
        }
        let mut control: BTreeSet<u64> = BTreeSet::new();
        for (before, reads) in &self.before[id] {
            let set = if *reads { &mut data } else { &mut control };
            set.insert(self.of_action[*before]);
        }
        control.retain(|node| !data.contains(node));
        let sent = self.messages.sent.get(&id).cloned().unwrap_or_default();
        let itself = |number: &&usize| self.messages.all[**number].is_copied_by_sender;
        let received = awaited.iter().find(|number| self.messages.all[**number].receiver == Some(id));
        let mut node = match (sent.iter().find(itself), received) {
            (Some(number), _) => self.message(&self.messages.all[*number], *number, NodeKind::Send),
            (None, Some(number)) => self.message(&self.messages.all[*number], *number, NodeKind::Receive),
            (None, None) => self.node(id, action),
        };
        node.name = label(action);
        node.micros = micros(self.program.alone(id).as_ns());
        node.attributes.extend(subject(action));
        (node.control, node.data) = (control.into_iter().collect(), data.into_iter().collect());
        let own = self.push(device, node);
        self.of_action[id] = own;
        for number in sent {
            let message = self.messages.all[number].clone();
            if !message.is_copied_by_sender {
                let mut node = self.message(&message, number, NodeKind::Send);
                node.data = vec![own];
                self.push(device, node);
            }
        }
    }

    /// A send or a receive.
    fn message(&self, message: &Message, tag: usize, kind: NodeKind) -> Node {
        let [from, to] = message.devices.map(|device| self.numbers[&device] as i32);
        let verb = if kind == NodeKind::Send { "send" } else { "receive" };
        let attributes = vec![
            ("is_cpu_op", Value::Bool(false)),
            ("comm_src", Value::Int32(from)),
            ("comm_dst", Value::Int32(to)),
            ("comm_tag", Value::Int32(tag as i32)),
            ("comm_size", Value::Int64(message.bytes as i64)),
        ];
        let name = format!("{verb} {}", label(&self.program.actions()[message.from]));
        Node { id: 0, name, kind, control: Vec::new(), data: Vec::new(), micros: 0, attributes }
    }

    /// Any other node.
    fn node(&self, id: ActionId, action: &Action) -> Node {
        let mut attributes = vec![("is_cpu_op", Value::Bool(false))];
        let kind = match (action.kind, self.program.lanes()[action.lane].role) {
            (ActionKind::Collective(pattern), _) => {
                attributes.push(("comm_type", Value::Int64(pattern_number(pattern))));
                attributes.push(("comm_size", Value::Int64(moved(self.program, action) as i64)));
                NodeKind::Collective
            }
            (ActionKind::Copy(_), role) => {
                attributes.push(("tensor_size", Value::Uint64(moved(self.program, action))));
                let loads = matches!(role, LaneRole::H2d | LaneRole::NvmeIn);
                if loads { NodeKind::Load } else { NodeKind::Store }
            }
            _ => {
                let (operations, bytes) = self.work.of(action, self.homes[id]);
                attributes.push(("num_ops", Value::Int64(operations as i64)));
                attributes.push(("tensor_size", Value::Uint64(bytes)));
                NodeKind::Compute
            }
        };
        Node { id: 0, name: String::new(), kind, control: Vec::new(), data: Vec::new(), micros: 0, attributes }
    }
}

/// The name of an action, as in traces.
fn label(action: &Action) -> String {
    spipe_trace::label(action.kind, &action.subject)
}

/// Microseconds, rounded; a node that takes time takes at least one.
fn micros(nanoseconds: u64) -> u64 {
    if nanoseconds == 0 { 0 } else { nanoseconds.saturating_add(500).div_euclid(1000).max(1) }
}

fn subject(action: &Action) -> Vec<(&'static str, Value)> {
    let stage = action.subject.stage.map(|stage| ("stage", Value::Int64(stage.index() as i64)));
    let microbatch = action.subject.microbatch.map(|batch| ("microbatch", Value::Int64(batch.index() as i64)));
    let layers = action.subject.layers.map(|layers| ("layers", Value::Text(layers.to_string())));
    [stage, microbatch, layers].into_iter().flatten().collect()
}

/// The number of a collective in Chakra's schema.
const fn pattern_number(pattern: Collective) -> i64 {
    match pattern {
        Collective::AllReduce => 0,
        Collective::AllGather => 2,
        Collective::ReduceScatter => 7,
    }
}

/// For each action the actions on its device that come before it: those before it in its lane, and
/// the earlier ends of precedences. True if it reads what they wrote.
fn before(program: &Program) -> IdVec<ActionId, BTreeMap<ActionId, bool>> {
    let (actions, homes) = (program.actions(), homes(program));
    let mut before: IdVec<ActionId, BTreeMap<ActionId, bool>> = actions.iter().map(|_| BTreeMap::new()).collect();
    for lane in program.lanes().iter() {
        for pair in lane.queue.windows(2) {
            before[pair[1]].insert(pair[0], false);
        }
    }
    for precedence in program.precedences().iter().filter(|precedence| is_expressible(precedence)) {
        let Precedence { from, to, .. } = *precedence;
        if homes[from] == homes[to] {
            *before[to].entry(from).or_default() |= reads_written(program, &actions[from], &actions[to]);
        }
    }
    before
}

/// An order of all actions that keeps lanes and precedences; ties go by number.
fn order(program: &Program) -> Vec<ActionId> {
    let actions = program.actions();
    let mut next: IdVec<ActionId, Vec<ActionId>> = actions.iter().map(|_| Vec::new()).collect();
    let mut waits: IdVec<ActionId, usize> = actions.iter().map(|_| 0).collect();
    let lanes = program.lanes().iter().flat_map(|lane| lane.queue.windows(2).map(|pair| (pair[0], pair[1])));
    let precedences = program.precedences().iter().filter(|precedence| precedence.distance == 0);
    for (from, to) in lanes.chain(precedences.map(|precedence| (precedence.from, precedence.to))) {
        next[from].push(to);
        waits[to] += 1;
    }
    let mut ready: BTreeSet<ActionId> = actions.ids().filter(|id| waits[*id] == 0).collect();
    let mut order = Vec::with_capacity(actions.len());
    while let Some(id) = ready.pop_first() {
        order.push(id);
        for later in &next[id] {
            waits[*later] -= 1;
            if waits[*later] == 0 {
                ready.insert(*later);
            }
        }
    }
    order
}
