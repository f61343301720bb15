//! The routes between pairs of memories, computed when they are asked for.

use crate::{
    Link, Memory, MemoryKind, Route,
    topology::{LinkNames, Path, PathSearch, Paths, Topology},
};
use spipe_base::{BytesPerSecond, IdVec, LinkId, MemoryId, Seconds};
use std::{collections::BTreeMap, sync::OnceLock};

/// A memory as an end of routes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    /// The name of its node in the graph.
    pub node: String,
    /// The memory's own links taken by a copy that starts here, and by one that ends here.
    pub leaving: Vec<LinkId>,
    pub arriving: Vec<LinkId>,
    /// For pageable memory, the largest rate of a copy to or from a GPU: the inner value if the
    /// file states one, otherwise half of the narrowest link.
    pub pageable: Option<Option<BytesPerSecond>>,
    /// The largest rate of a copy within the memory.
    pub within: Option<BytesPerSecond>,
    /// Whether other GPUs can read it over PCIe.
    pub peer_access: bool,
}

/// Limits beside those of single links.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Limits {
    /// The limit on both directions of a link, by direction.
    pub both: BTreeMap<LinkId, LinkId>,
    /// The rates of copies, in file order.
    pub copies: Vec<Copies>,
}

/// The rates of copies between any two of some memories.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Copies {
    /// The memories.
    pub among: Vec<MemoryId>,
    /// The largest rate of one copy.
    pub bandwidth: BytesPerSecond,
    /// The limit on both directions together, by the memories in ascending order.
    pub both: BTreeMap<(MemoryId, MemoryId), LinkId>,
}

/// The routes between memories, each computed when it is first asked for.
#[derive(Debug)]
pub(crate) struct Routes {
    graph: Graph,
    /// The facts of each memory.
    own: IdVec<MemoryId, Own>,
    /// The channels of each DRAM.
    pub channels: IdVec<MemoryId, Option<LinkId>>,
}

/// The inputs from which routes are computed.
#[derive(Debug)]
struct Graph {
    topology: Topology,
    links: IdVec<LinkId, Link>,
    names: LinkNames,
    memories: IdVec<MemoryId, Memory>,
    ends: IdVec<MemoryId, End>,
    limits: Limits,
}

/// The facts of a memory, once they are known.
#[derive(Debug, Default)]
struct Own {
    /// The shortest paths to all nodes.
    paths: OnceLock<Paths>,
    /// The routes, by destination.
    routes: OnceLock<IdVec<MemoryId, Option<Route>>>,
    /// The DRAMs that it may use, nearest first: the nearest one, and the others that are not behind a network card.
    hosts: OnceLock<Vec<MemoryId>>,
    /// The root complexes and switches between it and its nearest DRAM.
    roots: OnceLock<Vec<String>>,
}

/// Routes are equal if what they are computed from is.
impl PartialEq for Routes {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (&self.graph, &other.graph);
        (&one.links, &one.ends, &one.limits) == (&other.links, &other.ends, &other.limits)
            && one.memories.len() == other.memories.len()
            && one.topology.nodes().eq(other.topology.nodes())
    }
}

impl Routes {
    pub fn new(
        topology: Topology,
        links: IdVec<LinkId, Link>,
        memories: IdVec<MemoryId, Memory>,
        (ends, limits): (IdVec<MemoryId, End>, Limits),
    ) -> Self {
        let of_dram = |(id, memory): (MemoryId, &Memory)| {
            (memory.kind == MemoryKind::Dram).then(|| ends[id].leaving.first().copied()).flatten()
        };
        let channels = memories.enumerate().map(of_dram).collect();
        let own = memories.iter().map(|_| Own::default()).collect();
        let names = LinkNames::new(&links);
        Self { graph: Graph { topology, links, names, memories, ends, limits }, own, channels }
    }

    /// The route between two memories.
    pub fn between(&self, from: MemoryId, to: MemoryId) -> Option<&Route> {
        self.of(from)?.get(to)?.as_ref()
    }

    /// The routes from a memory, by destination.
    pub fn of(&self, from: MemoryId) -> Option<&IdVec<MemoryId, Option<Route>>> {
        let all = || self.graph.memories.ids().map(|to| self.route(from, to)).collect();
        Some(self.own.get(from)?.routes.get_or_init(all))
    }

    /// The DRAMs that a memory may use, nearest first.
    pub fn hosts(&self, memory: MemoryId) -> &[MemoryId] {
        self.own[memory].hosts.get_or_init(|| self.nearest_drams(memory))
    }

    /// The root complexes and switches between a memory and its nearest DRAM.
    pub fn roots(&self, memory: MemoryId) -> &[String] {
        let roots = || {
            let path = self.nearest_dram(memory).and_then(|host| self.shortest(memory, host));
            path.map_or_else(Vec::new, |path| self.search().nodes_between(path))
        };
        self.own[memory].roots.get_or_init(roots)
    }
}

impl Copies {
    fn holds(&self, from: MemoryId, to: MemoryId) -> bool {
        from != to && self.among.contains(&from) && self.among.contains(&to)
    }
}

impl Routes {
    fn search(&self) -> PathSearch<'_> {
        self.graph.topology.paths(&self.graph.links, &self.graph.names)
    }

    fn shortest(&self, from: MemoryId, to: MemoryId) -> Option<&Path> {
        let paths = || self.search().from(&self.graph.ends[from].node, false);
        let to = self.graph.topology.index(&self.graph.ends[to].node)?;
        self.own[from].paths.get_or_init(paths).get(&to)
    }

    fn nearest_drams(&self, memory: MemoryId) -> Vec<MemoryId> {
        let is_dram = |id: &MemoryId| {
            let memory = &self.graph.memories[*id];
            memory.kind == MemoryKind::Dram && memory.pageable_view_of.is_none()
        };
        let near = |within: bool| {
            let paths = self.search().from(&self.graph.ends[memory].node, within);
            let path = |dram: &MemoryId| paths.get(&self.graph.topology.index(&self.graph.ends[*dram].node)?).cloned();
            let drams = self.graph.memories.ids().filter(is_dram);
            let mut near: Vec<(Path, MemoryId)> = drams.filter_map(|dram| Some((path(&dram)?, dram))).collect();
            near.sort();
            near.into_iter().map(|(_, dram)| dram).collect::<Vec<_>>()
        };
        let own = near(true);
        // Without a DRAM in its computer, the nearest of another one.
        if own.is_empty() { near(false).into_iter().take(1).collect() } else { own }
    }

    fn nearest_dram(&self, memory: MemoryId) -> Option<MemoryId> {
        self.hosts(memory).first().copied()
    }

    fn route(&self, from: MemoryId, to: MemoryId) -> Option<Route> {
        let between = self.links_between(from, to)?;
        let (start, end) = (&self.graph.ends[from], &self.graph.ends[to]);
        let within = start.node == end.node;
        let narrowest = between.iter().map(|link| self.graph.links[*link].bandwidth).min();
        let mut links: Vec<LinkId> = start.leaving.iter().chain(&between).chain(&end.arriving).copied().collect();
        let latency = links.iter().map(|link| self.graph.links[*link].latency).sum::<Seconds>();
        let cap = if within { start.within } else { self.pageable_cap(from, to, narrowest) };
        links.extend(between.iter().filter_map(|link| self.graph.limits.both.get(link)));
        let Some(copies) = self.graph.limits.copies.iter().find(|copies| copies.holds(from, to)) else {
            return Some(Route { links, latency, rate_cap: cap });
        };
        links.extend(copies.both.get(&(from.min(to), from.max(to))));
        Some(Route { links, latency, rate_cap: cap.into_iter().chain([copies.bandwidth]).min() })
    }

    /// Returns the links between two memories, without the memories' own.
    fn links_between(&self, from: MemoryId, to: MemoryId) -> Option<Vec<LinkId>> {
        let path = self.shortest(from, to)?;
        let is_gpu = |id: MemoryId| self.graph.memories[id].kind == MemoryKind::Gpu;
        let closed =
            is_gpu(from) && is_gpu(to) && !(self.graph.ends[from].peer_access && self.graph.ends[to].peer_access);
        if !closed || path.hops() <= 1 {
            return Some(self.search().links(path));
        }
        self.direct_link(from, to).map(|link| vec![link]).or_else(|| self.via_host(from, to))
    }

    /// Returns the link that joins two memories directly.
    fn direct_link(&self, from: MemoryId, to: MemoryId) -> Option<LinkId> {
        let (from, to) = (&self.graph.ends[from].node, &self.graph.ends[to].node);
        let direct = self.graph.links.enumerate().filter(|(_, link)| link.from == *from && link.to == *to);
        direct.min_by_key(|(_, link)| (link.latency, &link.name)).map(|(id, _)| id)
    }

    /// Returns the links into the host memory nearest to the source and out of it again.
    fn via_host(&self, from: MemoryId, to: MemoryId) -> Option<Vec<LinkId>> {
        let host = self.nearest_dram(from)?;
        let (into, out) = (self.shortest(from, host)?, self.shortest(host, to)?);
        let end = &self.graph.ends[host];
        let buffer = end.arriving.iter().chain(&end.leaving).copied();
        Some(self.search().links(into).into_iter().chain(buffer).chain(self.search().links(out)).collect())
    }

    /// Returns the rate cap that pageable host memory imposes on a copy to or from a GPU.
    fn pageable_cap(&self, from: MemoryId, to: MemoryId, narrowest: Option<BytesPerSecond>) -> Option<BytesPerSecond> {
        let one_gpu = [from, to].iter().any(|id| self.graph.memories[*id].kind == MemoryKind::Gpu);
        let stated = self.graph.ends[from].pageable.or(self.graph.ends[to].pageable).filter(|_| one_gpu)?;
        stated.or_else(|| BytesPerSecond::new(narrowest?.get() / 2.0))
    }
}
