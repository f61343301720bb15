//! The time of collectives among groups of devices that run them at once.
//!
//! A ring of n devices takes n − 1 steps to gather or to reduce and scatter, and twice as many to reduce and gather.
//! Each step moves an n-th of the bytes over every hop (Patarasuk and Yuan 2009). A step takes as long as the slowest
//! hop, whose links carry the hops of all rings at once. A group with k devices in each of several computers has k rings,
//! each of which enters a computer at another device, so that the network cards of all of them are used, as NCCL's
//! channels do. Trees reduce and gather over computers in about 2 · log₂ n latencies (Sanders, Speck and Träff 2009).
//!
//! Under a runtime that asks for them, measured collectives of one computer count instead.

use crate::CostError;
use spipe_base::{Bytes, DeviceId, LinkId, Seconds};
use spipe_hardware::{CollectiveKind, CollectiveRates, Constant, Hardware, Route};
use std::collections::BTreeMap;

/// Groups of devices that communicate at the same time.
#[derive(Clone, Debug)]
pub struct Rings<'a> {
    hardware: &'a Hardware,
    /// The devices of the largest group.
    members: usize,
    /// Whether some group is in several computers.
    apart: bool,
    /// The hops; equal ones once.
    hops: Vec<Hop>,
}

/// The way from a device to the next one of its ring.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Hop {
    /// The devices of the ring.
    members: usize,
    /// The rings of the group, which share its bytes.
    rings: usize,
    latency: Seconds,
    /// Bytes per second, beside the hops of all rings.
    rate: f64,
}

impl<'a> Rings<'a> {
    /// The rings of `groups`, each in the given order.
    ///
    /// # Errors
    /// Two neighbours of a ring are not connected.
    pub fn of<'g>(hardware: &'a Hardware, groups: impl IntoIterator<Item = &'g [DeviceId]>) -> Result<Self, CostError> {
        Self::through(hardware, groups, |group| rings(hardware, group))
    }

    /// One ring of each of `groups`, in the given order: each device hands whole tensors to the next one.
    ///
    /// # Errors
    /// Two neighbours of a ring are not connected.
    pub fn single<'g>(
        hardware: &'a Hardware,
        groups: impl IntoIterator<Item = &'g [DeviceId]>,
    ) -> Result<Self, CostError> {
        Self::through(hardware, groups, |group| vec![group.to_vec()])
    }

    fn through<'g>(
        hardware: &'a Hardware,
        groups: impl IntoIterator<Item = &'g [DeviceId]>,
        rings: impl Fn(&[DeviceId]) -> Vec<Vec<DeviceId>>,
    ) -> Result<Self, CostError> {
        let mut routes = Vec::new();
        let (mut members, mut apart) = (1, false);
        for group in groups.into_iter().filter(|group| group.len() > 1) {
            members = members.max(group.len());
            apart |= is_apart(hardware, group);
            let rings = rings(group);
            for hop in rings.iter().flat_map(|ring| hops(ring)) {
                routes.push((group.len(), rings.len(), route(hardware, hop)?));
            }
        }
        let mut load: BTreeMap<LinkId, u64> = BTreeMap::new();
        for link in routes.iter().flat_map(|(_, _, route)| &route.links) {
            *load.entry(*link).or_insert(0) += 1;
        }
        let factor = hardware.runtime().constant(Constant::Links);
        let mut hops: Vec<Hop> = Vec::new();
        for (members, rings, route) in routes {
            let shared = |link: &LinkId| hardware.links()[*link].bandwidth.get() / load[link] as f64;
            let cap = route.rate_cap.map(|cap| cap.get());
            let rate = route.links.iter().map(shared).chain(cap).fold(f64::INFINITY, f64::min) * factor;
            let hop = Hop { members, rings, latency: route.latency, rate };
            if !hops.contains(&hop) {
                hops.push(hop);
            }
        }
        Ok(Self { hardware, members, apart, hops })
    }

    /// The time in which each device hands `bytes` to the next one.
    pub fn step(&self, bytes: Bytes) -> Seconds {
        let time = |hop: &Hop| Seconds::s(bytes.as_f64() / hop.rate) + hop.latency;
        self.hops.iter().map(time).fold(Seconds::ZERO, Seconds::max)
    }

    /// The time of a collective of `bytes` in the whole, in each group.
    pub fn time(&self, kind: CollectiveKind, bytes: Bytes) -> Seconds {
        if bytes == Bytes::ZERO || self.hops.is_empty() {
            return Seconds::ZERO;
        }
        if let Some(measured) = measured(self.hardware, (kind, self.members, self.apart), bytes) {
            return measured;
        }
        let times = self.hops.iter().map(|hop| {
            let steps = steps(kind, hop.members) as f64;
            let moved = Seconds::s(steps * bytes.as_f64() / (hop.members * hop.rings) as f64 / hop.rate);
            moved + hop.latency * latencies(kind, hop.members, self.apart)
        });
        times.fold(Seconds::ZERO, Seconds::max)
    }
}

/// The rings of a group: one, or where its devices are in several computers, one for each device of a computer, which
/// enters each computer at another one.
pub fn rings(hardware: &Hardware, group: &[DeviceId]) -> Vec<Vec<DeviceId>> {
    let computer = |device: &DeviceId| hardware.devices()[*device].node;
    let runs: Vec<&[DeviceId]> = group.chunk_by(|one, next| computer(one) == computer(next)).collect();
    let each = runs.first().map_or(0, |run| run.len());
    let alike = runs.iter().all(|run| run.len() == each);
    if runs.len() < 2 || !alike || each < 2 {
        return vec![group.to_vec()];
    }
    let from =
        |first: usize| runs.iter().flat_map(move |run| run[first..].iter().chain(&run[..first])).copied().collect();
    (0..each).map(from).collect()
}

/// The pairs of neighbours of a ring, each with the one that receives second.
pub fn hops(ring: &[DeviceId]) -> impl Iterator<Item = [DeviceId; 2]> + '_ {
    ring.iter().zip(ring.iter().cycle().skip(1)).map(|(from, to)| [*from, *to])
}

/// Whether devices are in several computers.
pub fn is_apart(hardware: &Hardware, group: &[DeviceId]) -> bool {
    let computer = |device: &DeviceId| hardware.devices()[*device].node;
    group.windows(2).any(|pair| computer(&pair[0]) != computer(&pair[1]))
}

/// The steps of a ring of `members` devices.
pub const fn steps(kind: CollectiveKind, members: usize) -> u64 {
    let rounds = if matches!(kind, CollectiveKind::AllReduce) { 2 } else { 1 };
    rounds * (members as u64 - 1)
}

/// The latencies of a collective, in hops one after the other: those of a ring or, over several computers, of a tree.
pub fn latencies(kind: CollectiveKind, members: usize, apart: bool) -> f64 {
    let ring = steps(kind, members) as f64;
    let tree = 2.0 * (members as f64).log2().ceil();
    if apart && kind == CollectiveKind::AllReduce { ring.min(tree) } else { ring }
}

/// The measured time of a collective among devices of one computer, if the runtime asks for it.
pub fn measured(
    hardware: &Hardware,
    (kind, members, apart): (CollectiveKind, usize, bool),
    bytes: Bytes,
) -> Option<Seconds> {
    let runtime = hardware.runtime();
    let wanted = runtime.collectives() == CollectiveRates::Measured && !apart;
    let measured = hardware.collective(kind, members).filter(|_| wanted)?;
    Some(Seconds::s(measured.time(bytes).get() / runtime.constant(Constant::Links)))
}

/// The route between the memories of two devices.
///
/// # Errors
/// There is none.
pub fn route(hardware: &Hardware, [from, to]: [DeviceId; 2]) -> Result<&Route, CostError> {
    let (here, there) = (&hardware.devices()[from], &hardware.devices()[to]);
    let apart = || CostError::Apart { from: here.name.clone(), to: there.name.clone() };
    hardware.route(here.memory, there.memory).ok_or_else(apart)
}
