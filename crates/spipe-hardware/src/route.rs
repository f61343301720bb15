//! The routes between all pairs of memories, computed once.

use crate::{
    Link, Memory, MemoryKind, Route,
    topology::{Path, PathSearch, Topology},
};
use spipe_base::{BytesPerSecond, IdVec, LinkId, MemoryId, Seconds};
use std::collections::BTreeMap;

/// A memory as an end of routes.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    /// The limit on both directions of a link, by direction.
    pub both: BTreeMap<LinkId, LinkId>,
    /// The rates of copies, in file order.
    pub copies: Vec<Copies>,
}

/// The rates of copies between any two of some memories.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    /// The memories.
    pub among: Vec<MemoryId>,
    /// The largest rate of one copy.
    pub bandwidth: BytesPerSecond,
    /// The limit on both directions together, by the memories in ascending order.
    pub both: BTreeMap<(MemoryId, MemoryId), LinkId>,
}

/// The routes between memories, and the facts derived from them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Routes {
    /// The routes by source, then destination.
    pub between: IdVec<MemoryId, IdVec<MemoryId, Option<Route>>>,
    /// The DRAMs that each memory may use, nearest first: the nearest one, and the others that are
    /// not behind a network card.
    pub hosts: IdVec<MemoryId, Vec<MemoryId>>,
    /// The channels of each DRAM.
    pub channels: IdVec<MemoryId, Option<LinkId>>,
    /// The root complexes and switches between each memory and its nearest DRAM.
    pub roots: IdVec<MemoryId, Vec<String>>,
}

struct Router<'a> {
    paths: PathSearch<'a>,
    links: &'a IdVec<LinkId, Link>,
    memories: &'a IdVec<MemoryId, Memory>,
    ends: &'a IdVec<MemoryId, End>,
    limits: &'a Limits,
    found: BTreeMap<&'a str, BTreeMap<&'a str, Path>>,
    hosts: IdVec<MemoryId, Vec<MemoryId>>,
}

pub(crate) fn routes<'a>(
    topology: &'a Topology,
    links: &'a IdVec<LinkId, Link>,
    memories: &'a IdVec<MemoryId, Memory>,
    (ends, limits): (&'a IdVec<MemoryId, End>, &'a Limits),
) -> Routes {
    let paths = topology.paths(links);
    let found = ends.iter().map(|end| (end.node.as_str(), paths.from(&end.node))).collect();
    let mut router = Router { paths, links, memories, ends, limits, found, hosts: IdVec::new() };
    router.hosts = memories.ids().map(|memory| router.nearest_drams(memory)).collect();
    Routes {
        between: memories.ids().map(|from| memories.ids().map(|to| router.route(from, to)).collect()).collect(),
        channels: memories.enumerate().map(|(id, memory)| router.channels(id, memory)).collect(),
        roots: memories.ids().map(|memory| router.roots(memory)).collect(),
        hosts: router.hosts,
    }
}

impl Copies {
    fn holds(&self, from: MemoryId, to: MemoryId) -> bool {
        from != to && self.among.contains(&from) && self.among.contains(&to)
    }
}

impl Router<'_> {
    fn shortest(&self, from: MemoryId, to: MemoryId) -> Option<&Path> {
        self.found.get(self.ends[from].node.as_str())?.get(self.ends[to].node.as_str())
    }

    fn nearest_drams(&self, memory: MemoryId) -> Vec<MemoryId> {
        let is_dram = |id: &MemoryId| {
            self.memories[*id].kind == MemoryKind::Dram && self.memories[*id].pageable_view_of.is_none()
        };
        let drams = self.memories.ids().filter(is_dram);
        let mut near: Vec<(&Path, MemoryId)> =
            drams.filter_map(|dram| Some((self.shortest(memory, dram)?, dram))).collect();
        near.sort();
        let within = |(index, (path, _)): &(usize, (&Path, MemoryId))| *index == 0 || self.paths.is_within(path);
        near.into_iter().enumerate().filter(within).map(|(_, (_, dram))| dram).collect()
    }

    fn nearest_dram(&self, memory: MemoryId) -> Option<MemoryId> {
        self.hosts[memory].first().copied()
    }

    fn channels(&self, id: MemoryId, memory: &Memory) -> Option<LinkId> {
        (memory.kind == MemoryKind::Dram).then(|| self.ends[id].leaving.first().copied()).flatten()
    }

    fn roots(&self, memory: MemoryId) -> Vec<String> {
        let path = self.nearest_dram(memory).and_then(|host| self.shortest(memory, host));
        path.map_or_else(Vec::new, |path| self.paths.nodes_between(path))
    }

    fn route(&self, from: MemoryId, to: MemoryId) -> Option<Route> {
        let between = self.links_between(from, to)?;
        let (start, end) = (&self.ends[from], &self.ends[to]);
        let within = start.node == end.node;
        let narrowest = between.iter().map(|link| self.links[*link].bandwidth).min();
        let mut links: Vec<LinkId> = start.leaving.iter().chain(&between).chain(&end.arriving).copied().collect();
        let latency = links.iter().map(|link| self.links[*link].latency).sum::<Seconds>();
        let cap = if within { start.within } else { self.pageable_cap(from, to, narrowest) };
        links.extend(between.iter().filter_map(|link| self.limits.both.get(link)));
        let Some(copies) = self.limits.copies.iter().find(|copies| copies.holds(from, to)) else {
            return Some(Route { links, latency, rate_cap: cap });
        };
        links.extend(copies.both.get(&(from.min(to), from.max(to))));
        Some(Route { links, latency, rate_cap: cap.into_iter().chain([copies.bandwidth]).min() })
    }

    /// Returns the links between two memories, without the memories' own.
    fn links_between(&self, from: MemoryId, to: MemoryId) -> Option<Vec<LinkId>> {
        let path = self.shortest(from, to)?;
        let is_gpu = |id: MemoryId| self.memories[id].kind == MemoryKind::Gpu;
        let closed = is_gpu(from) && is_gpu(to) && !(self.ends[from].peer_access && self.ends[to].peer_access);
        if !closed || path.hops() <= 1 {
            return Some(self.paths.links(path));
        }
        self.direct_link(from, to).map(|link| vec![link]).or_else(|| self.via_host(from, to))
    }

    /// Returns the link that joins two memories directly.
    fn direct_link(&self, from: MemoryId, to: MemoryId) -> Option<LinkId> {
        let (from, to) = (&self.ends[from].node, &self.ends[to].node);
        let direct = self.links.enumerate().filter(|(_, link)| link.from == *from && link.to == *to);
        direct.min_by_key(|(_, link)| (link.latency, &link.name)).map(|(id, _)| id)
    }

    /// Returns the links into the host memory nearest to the source and out of it again.
    fn via_host(&self, from: MemoryId, to: MemoryId) -> Option<Vec<LinkId>> {
        let host = self.nearest_dram(from)?;
        let (into, out) = (self.shortest(from, host)?, self.shortest(host, to)?);
        let end = &self.ends[host];
        let buffer = end.arriving.iter().chain(&end.leaving).copied();
        Some(self.paths.links(into).into_iter().chain(buffer).chain(self.paths.links(out)).collect())
    }

    /// Returns the rate cap that pageable host memory imposes on a copy to or from a GPU.
    fn pageable_cap(&self, from: MemoryId, to: MemoryId, narrowest: Option<BytesPerSecond>) -> Option<BytesPerSecond> {
        let one_gpu = [from, to].iter().any(|id| self.memories[*id].kind == MemoryKind::Gpu);
        let stated = self.ends[from].pageable.or(self.ends[to].pageable).filter(|_| one_gpu)?;
        stated.or_else(|| BytesPerSecond::new(narrowest?.get() / 2.0))
    }
}
