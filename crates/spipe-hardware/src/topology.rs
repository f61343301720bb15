//! The graph of nodes and links, and the shortest ways through it.

use crate::Link;
use petgraph::{
    graph::{DiGraph, NodeIndex},
    visit::EdgeRef,
};
use spipe_base::{IdVec, LinkId, Seconds};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

/// What a node is for the copies of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// The memory of a GPU or a drive, through which none pass.
    Closed,
    /// A DRAM.
    Dram,
    /// A root complex or a switch.
    Open,
    /// The way to another machine.
    NetworkCard,
}

/// The nodes and the directed links between them.
#[derive(Default)]
pub(crate) struct Topology {
    /// Nodes by name.
    graph: DiGraph<(String, Node), LinkId>,
    by_name: BTreeMap<String, NodeIndex>,
}

/// A way along links. Ways are compared by latency, then the number of links, then the names of the links in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    latency_ps: u64,
    hops: usize,
    /// Positions of the links among all links sorted by name.
    ranks: Vec<u32>,
}

impl Topology {
    /// Adds a node, unless the name is taken.
    pub fn add(&mut self, name: &str, node: Node) {
        if !self.by_name.contains_key(name) {
            let index = self.graph.add_node((name.into(), node));
            self.by_name.insert(name.into(), index);
        }
    }

    /// Makes `alias` another name of a node that is there, unless the name is taken.
    pub fn alias(&mut self, alias: &str, name: &str) {
        if let (Some(&node), false) = (self.by_name.get(name), self.by_name.contains_key(alias)) {
            self.by_name.insert(alias.into(), node);
        }
    }

    /// Whether two names mean the same node.
    pub fn same(&self, one: &str, other: &str) -> bool {
        self.by_name.get(one) == self.by_name.get(other)
    }

    /// What the node of that name is, if there is one.
    pub fn node(&self, name: &str) -> Option<Node> {
        self.by_name.get(name).map(|index| self.graph[*index].1)
    }

    /// Joins two nodes that are there.
    pub fn join(&mut self, from: &str, to: &str, link: LinkId) {
        if let (Some(&from), Some(&to)) = (self.by_name.get(from), self.by_name.get(to)) {
            self.graph.add_edge(from, to, link);
        }
    }

    /// The ways among the nodes, by their links.
    pub fn ways<'a>(&'a self, links: &'a IdVec<LinkId, Link>) -> Ways<'a> {
        let mut by_name: Vec<LinkId> = links.ids().collect();
        by_name.sort_by(|a, b| links[*a].name.cmp(&links[*b].name));
        let mut ranks = vec![0; links.len()];
        for (rank, link) in (0..).zip(&by_name) {
            ranks[link.index()] = rank;
        }
        Ways { topology: self, links, by_name, ranks }
    }
}

/// A search for ways.
pub(crate) struct Ways<'a> {
    topology: &'a Topology,
    links: &'a IdVec<LinkId, Link>,
    by_name: Vec<LinkId>,
    ranks: Vec<u32>,
}

impl<'a> Ways<'a> {
    /// The shortest way from one node to every other that can be reached (Dijkstra).
    pub fn from(&self, start: &str) -> BTreeMap<&'a str, Way> {
        let Some(&start) = self.topology.by_name.get(start) else { return BTreeMap::new() };
        let mut found: BTreeMap<NodeIndex, Way> = BTreeMap::new();
        let mut open = BinaryHeap::from([Reverse((Way { latency_ps: 0, hops: 0, ranks: Vec::new() }, start))]);
        while let Some(Reverse((way, node))) = open.pop() {
            if found.contains_key(&node) {
                continue;
            }
            if node == start || self.topology.graph[node].1 != Node::Closed {
                for edge in self.topology.graph.edges(node).filter(|edge| !found.contains_key(&edge.target())) {
                    open.push(Reverse((self.extend(&way, *edge.weight()), edge.target())));
                }
            }
            found.insert(node, way);
        }
        let topology = self.topology;
        found.into_iter().map(|(node, way)| (topology.graph[node].0.as_str(), way)).collect()
    }

    fn extend(&self, way: &Way, link: LinkId) -> Way {
        let mut longer = way.clone();
        longer.latency_ps = longer.latency_ps.saturating_add(picoseconds(self.links[link].latency));
        longer.hops += 1;
        longer.ranks.push(self.ranks[link.index()]);
        longer
    }

    /// The links of a way, in order.
    pub fn links(&self, way: &Way) -> Vec<LinkId> {
        way.ranks.iter().map(|rank| self.by_name[*rank as usize]).collect()
    }

    /// The nodes that a way passes between its ends, other than DRAM.
    pub fn nodes_between(&self, way: &Way) -> Vec<String> {
        let inner = self.links(way).into_iter().skip(1).map(|link| self.links[link].from.clone());
        inner.filter(|name| self.topology.node(name) != Some(Node::Dram)).collect()
    }

    /// Whether a way stays within one machine.
    pub fn is_within(&self, way: &Way) -> bool {
        self.nodes_between(way).iter().all(|name| self.topology.node(name) != Some(Node::NetworkCard))
    }
}

impl Way {
    /// How many links it has.
    pub fn hops(&self) -> usize {
        self.hops
    }
}

/// Whole picoseconds, so that the order in which latencies are added does not decide between ways.
fn picoseconds(latency: Seconds) -> u64 {
    (latency.get() * 1e12).round() as u64
}
