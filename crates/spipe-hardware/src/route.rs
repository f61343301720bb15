//! The routes between all pairs of memories, worked out once.

use crate::{
    Link, Memory, MemoryKind, Route,
    build::End,
    topology::{Topology, Way, Ways},
};
use spipe_base::{BytesPerSecond, IdVec, LinkId, MemoryId, Seconds};
use std::collections::BTreeMap;

/// What is known of the ways between memories.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Routes {
    /// By source, then destination.
    pub between: IdVec<MemoryId, IdVec<MemoryId, Option<Route>>>,
    /// The DRAMs that each memory may leave something in, the nearest first: that one, and what is not beyond a network card.
    pub hosts: IdVec<MemoryId, Vec<MemoryId>>,
    /// The channels of each DRAM.
    pub channels: IdVec<MemoryId, Option<LinkId>>,
    /// The root complexes and switches between each memory and its nearest DRAM.
    pub roots: IdVec<MemoryId, Vec<String>>,
}

struct Router<'a> {
    ways: Ways<'a>,
    links: &'a IdVec<LinkId, Link>,
    memories: &'a IdVec<MemoryId, Memory>,
    ends: &'a IdVec<MemoryId, End>,
    found: BTreeMap<&'a str, BTreeMap<&'a str, Way>>,
    hosts: IdVec<MemoryId, Vec<MemoryId>>,
}

pub(crate) fn routes<'a>(
    topology: &'a Topology,
    links: &'a IdVec<LinkId, Link>,
    memories: &'a IdVec<MemoryId, Memory>,
    ends: &'a IdVec<MemoryId, End>,
) -> Routes {
    let ways = topology.ways(links);
    let found = ends.iter().map(|end| (end.node.as_str(), ways.from(&end.node))).collect();
    let mut router = Router { ways, links, memories, ends, found, hosts: IdVec::new() };
    router.hosts = memories.ids().map(|memory| router.nearest_drams(memory)).collect();
    Routes {
        between: memories.ids().map(|from| memories.ids().map(|to| router.route(from, to)).collect()).collect(),
        channels: memories.enumerate().map(|(id, memory)| router.channels(id, memory)).collect(),
        roots: memories.ids().map(|memory| router.roots(memory)).collect(),
        hosts: router.hosts,
    }
}

impl Router<'_> {
    fn way(&self, from: MemoryId, to: MemoryId) -> Option<&Way> {
        self.found.get(self.ends[from].node.as_str())?.get(self.ends[to].node.as_str())
    }

    fn nearest_drams(&self, memory: MemoryId) -> Vec<MemoryId> {
        let is_dram = |id: &MemoryId| {
            self.memories[*id].kind == MemoryKind::Dram && self.memories[*id].pageable_view_of.is_none()
        };
        let drams = self.memories.ids().filter(is_dram);
        let mut near: Vec<(&Way, MemoryId)> = drams.filter_map(|dram| Some((self.way(memory, dram)?, dram))).collect();
        near.sort();
        let within = |(index, (way, _)): &(usize, (&Way, MemoryId))| *index == 0 || self.ways.is_within(way);
        near.into_iter().enumerate().filter(within).map(|(_, (_, dram))| dram).collect()
    }

    fn nearest_dram(&self, memory: MemoryId) -> Option<MemoryId> {
        self.hosts[memory].first().copied()
    }

    fn channels(&self, id: MemoryId, memory: &Memory) -> Option<LinkId> {
        (memory.kind == MemoryKind::Dram).then(|| self.ends[id].leaving.first().copied()).flatten()
    }

    fn roots(&self, memory: MemoryId) -> Vec<String> {
        let way = self.nearest_dram(memory).and_then(|host| self.way(memory, host));
        way.map_or_else(Vec::new, |way| self.ways.nodes_between(way))
    }

    fn route(&self, from: MemoryId, to: MemoryId) -> Option<Route> {
        let path = self.path(from, to)?;
        let (start, end) = (&self.ends[from], &self.ends[to]);
        let within = start.node == end.node;
        let narrowest = path.iter().map(|link| self.links[*link].bandwidth).min();
        let links: Vec<LinkId> = start.leaving.iter().chain(&path).chain(&end.arriving).copied().collect();
        let latency = links.iter().map(|link| self.links[*link].latency).sum::<Seconds>();
        let rate_cap = if within { start.within } else { self.pageable_cap(from, to, narrowest) };
        Some(Route { links, latency, rate_cap })
    }

    /// The links between two memories, without those of the memories themselves.
    fn path(&self, from: MemoryId, to: MemoryId) -> Option<Vec<LinkId>> {
        let way = self.way(from, to)?;
        let is_gpu = |id: MemoryId| self.memories[id].kind == MemoryKind::Gpu;
        let closed = is_gpu(from) && is_gpu(to) && !(self.ends[from].peer_access && self.ends[to].peer_access);
        if !closed || way.hops() <= 1 {
            return Some(self.ways.links(way));
        }
        self.direct_link(from, to).map(|link| vec![link]).or_else(|| self.via_host(from, to))
    }

    /// The link that joins two memories without a node between them.
    fn direct_link(&self, from: MemoryId, to: MemoryId) -> Option<LinkId> {
        let (from, to) = (&self.ends[from].node, &self.ends[to].node);
        let direct = self.links.enumerate().filter(|(_, link)| link.from == *from && link.to == *to);
        direct.min_by_key(|(_, link)| (link.latency, &link.name)).map(|(id, _)| id)
    }

    /// Into the host memory nearest to the source, and out of it again.
    fn via_host(&self, from: MemoryId, to: MemoryId) -> Option<Vec<LinkId>> {
        let host = self.nearest_dram(from)?;
        let (into, out) = (self.way(from, host)?, self.way(host, to)?);
        let end = &self.ends[host];
        let buffer = end.arriving.iter().chain(&end.leaving).copied();
        Some(self.ways.links(into).into_iter().chain(buffer).chain(self.ways.links(out)).collect())
    }

    /// What pageable host memory leaves of a copy to or from a GPU.
    fn pageable_cap(&self, from: MemoryId, to: MemoryId, narrowest: Option<BytesPerSecond>) -> Option<BytesPerSecond> {
        let one_gpu = [from, to].iter().any(|id| self.memories[*id].kind == MemoryKind::Gpu);
        let stated = self.ends[from].pageable.or(self.ends[to].pageable).filter(|_| one_gpu)?;
        stated.or_else(|| BytesPerSecond::new(narrowest?.get() / 2.0))
    }
}
