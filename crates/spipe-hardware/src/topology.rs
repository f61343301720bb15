//! The graph of nodes and links, and its shortest paths.

use crate::Link;
use petgraph::{
    graph::{DiGraph, NodeIndex},
    unionfind::UnionFind,
    visit::EdgeRef,
};
use spipe_base::{IdVec, LinkId, Seconds};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

/// The role of a node for copies between other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// The memory of a GPU or a drive; copies do not pass through it.
    Closed,
    /// A DRAM.
    Dram,
    /// A root complex or a switch.
    Open,
    /// A connection to another machine.
    NetworkCard,
}

/// The nodes and the directed links between them.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    /// Nodes by name.
    graph: DiGraph<(String, Node), LinkId>,
    by_name: BTreeMap<String, NodeIndex>,
}

/// A path of links. Paths are compared by latency, then by the number of links, then by the names
/// of the links in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    latency_ps: u64,
    hops: usize,
    /// The ranks of the links when all links are sorted by name.
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

    /// Makes `alias` another name of an existing node, unless the name is taken.
    pub fn alias(&mut self, alias: &str, name: &str) {
        if let (Some(&node), false) = (self.by_name.get(name), self.by_name.contains_key(alias)) {
            self.by_name.insert(alias.into(), node);
        }
    }

    /// Whether two names denote the same node.
    pub fn same(&self, one: &str, other: &str) -> bool {
        self.by_name.get(one) == self.by_name.get(other)
    }

    /// Returns the role of the node with this name, if there is one.
    pub fn node(&self, name: &str) -> Option<Node> {
        self.by_name.get(name).map(|index| self.graph[*index].1)
    }

    /// Adds a link between two existing nodes.
    pub fn join(&mut self, from: &str, to: &str, link: LinkId) {
        if let (Some(&from), Some(&to)) = (self.by_name.get(from), self.by_name.get(to)) {
            self.graph.add_edge(from, to, link);
        }
    }

    /// Returns, by name of a node, the number of its computer: the nodes that links join without a network card
    /// between them.
    pub fn computers(&self) -> BTreeMap<&str, usize> {
        let mut joined = UnionFind::new(self.graph.node_count());
        let is_card = |node: NodeIndex| self.graph[node].1 == Node::NetworkCard;
        for edge in self.graph.edge_references().filter(|edge| !is_card(edge.source()) && !is_card(edge.target())) {
            joined.union(edge.source().index(), edge.target().index());
        }
        self.by_name.iter().map(|(name, node)| (name.as_str(), joined.find(node.index()))).collect()
    }

    /// Returns the node with this name.
    pub fn index(&self, name: &str) -> Option<NodeIndex> {
        self.by_name.get(name).copied()
    }

    /// Returns the nodes with their roles.
    pub fn nodes(&self) -> impl Iterator<Item = &(String, Node)> {
        self.graph.node_weights()
    }

    /// Returns a search for shortest paths.
    pub fn paths<'a>(&'a self, links: &'a IdVec<LinkId, Link>, names: &'a LinkNames) -> PathSearch<'a> {
        PathSearch { topology: self, links, names }
    }
}

/// The links sorted by name.
#[derive(Debug)]
pub(crate) struct LinkNames {
    by_name: Vec<LinkId>,
    ranks: Vec<u32>,
}

impl LinkNames {
    pub fn new(links: &IdVec<LinkId, Link>) -> Self {
        let mut by_name: Vec<LinkId> = links.ids().collect();
        by_name.sort_by(|a, b| links[*a].name.cmp(&links[*b].name));
        let mut ranks = vec![0; links.len()];
        for (rank, link) in (0..).zip(&by_name) {
            ranks[link.index()] = rank;
        }
        Self { by_name, ranks }
    }
}

/// A search for shortest paths.
pub(crate) struct PathSearch<'a> {
    topology: &'a Topology,
    links: &'a IdVec<LinkId, Link>,
    names: &'a LinkNames,
}

/// The shortest paths from one node, by node.
pub(crate) type Paths = BTreeMap<NodeIndex, Path>;

impl PathSearch<'_> {
    /// Returns the shortest paths from one node to all reachable ones (Dijkstra), or with `within` to those of its
    /// computer.
    pub fn from(&self, start: &str, within: bool) -> Paths {
        let Some(start) = self.topology.index(start) else { return BTreeMap::new() };
        let closed = |node: NodeIndex| match self.topology.graph[node].1 {
            Node::Closed => true,
            Node::NetworkCard => within,
            Node::Dram | Node::Open => false,
        };
        let mut found = Paths::new();
        let mut open = BinaryHeap::from([Reverse((Path { latency_ps: 0, hops: 0, ranks: Vec::new() }, start))]);
        while let Some(Reverse((path, node))) = open.pop() {
            if found.contains_key(&node) {
                continue;
            }
            if node == start || !closed(node) {
                for edge in self.topology.graph.edges(node).filter(|edge| !found.contains_key(&edge.target())) {
                    open.push(Reverse((self.extend(&path, *edge.weight()), edge.target())));
                }
            }
            found.insert(node, path);
        }
        found
    }

    fn extend(&self, path: &Path, link: LinkId) -> Path {
        let mut longer = path.clone();
        longer.latency_ps = longer.latency_ps.saturating_add(picoseconds(self.links[link].latency));
        longer.hops += 1;
        longer.ranks.push(self.names.ranks[link.index()]);
        longer
    }

    /// Returns the links of a path, in order.
    pub fn links(&self, path: &Path) -> Vec<LinkId> {
        path.ranks.iter().map(|rank| self.names.by_name[*rank as usize]).collect()
    }

    /// Returns the nodes between the ends of a path, except DRAM.
    pub fn nodes_between(&self, path: &Path) -> Vec<String> {
        let inner = self.links(path).into_iter().skip(1).map(|link| self.links[link].from.clone());
        inner.filter(|name| self.topology.node(name) != Some(Node::Dram)).collect()
    }
}

impl Path {
    /// Returns the number of links.
    pub fn hops(&self) -> usize {
        self.hops
    }
}

/// Converts to whole picoseconds, so that rounding in sums of latencies cannot decide between
/// paths.
fn picoseconds(latency: Seconds) -> u64 {
    (latency.get() * 1e12).round() as u64
}
