//! The time of collectives among groups of devices that run them at once.
//!
//! A ring of n devices takes n − 1 steps to gather or to reduce and scatter, and twice as many to reduce and gather.
//! Each step moves an n-th of the bytes over every hop (Patarasuk and Yuan 2009). A step takes as long as the slowest
//! hop, whose links carry the hops of all rings at once.
//!
//! Under a runtime that asks for them, measured collectives of the machine count instead.

use crate::CostError;
use spipe_base::{Bytes, DeviceId, LinkId, Seconds};
use spipe_hardware::{CollectiveKind, CollectiveRates, Constant, Hardware};
use std::collections::BTreeMap;

/// Rings of devices that communicate at the same time.
#[derive(Clone, Debug)]
pub struct Rings<'a> {
    hardware: &'a Hardware,
    /// The devices of the longest ring.
    members: usize,
    /// The hops; equal ones once.
    hops: Vec<Hop>,
}

/// The way from a device to the next one of its ring.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Hop {
    /// The devices of the ring.
    members: usize,
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
        let mut routes = Vec::new();
        let mut members = 1;
        for group in groups.into_iter().filter(|group| group.len() > 1) {
            members = members.max(group.len());
            for (from, to) in group.iter().zip(group.iter().cycle().skip(1)) {
                let (here, there) = (&hardware.devices()[*from], &hardware.devices()[*to]);
                let route = hardware.route(here.memory, there.memory);
                let apart = || CostError::Apart { from: here.name.clone(), to: there.name.clone() };
                routes.push((group.len(), route.ok_or_else(apart)?));
            }
        }
        let mut load: BTreeMap<LinkId, u64> = BTreeMap::new();
        for link in routes.iter().flat_map(|(_, route)| &route.links) {
            *load.entry(*link).or_insert(0) += 1;
        }
        let factor = hardware.runtime().constant(Constant::Links);
        let mut hops: Vec<Hop> = Vec::new();
        for (members, route) in routes {
            let shared = |link: &LinkId| hardware.links()[*link].bandwidth.get() / load[link] as f64;
            let cap = route.rate_cap.map(|cap| cap.get());
            let rate = route.links.iter().map(shared).chain(cap).fold(f64::INFINITY, f64::min) * factor;
            let hop = Hop { members, latency: route.latency, rate };
            if !hops.contains(&hop) {
                hops.push(hop);
            }
        }
        Ok(Self { hardware, members, hops })
    }

    /// The time of a collective of `bytes` in the whole, in each ring.
    pub fn time(&self, kind: CollectiveKind, bytes: Bytes) -> Seconds {
        if bytes == Bytes::ZERO || self.hops.is_empty() {
            return Seconds::ZERO;
        }
        let runtime = self.hardware.runtime();
        let measured = (runtime.collectives() == CollectiveRates::Measured)
            .then(|| self.hardware.collective(kind, self.members))
            .flatten();
        if let Some(measured) = measured {
            return Seconds::s(measured.time(bytes).get() / runtime.constant(Constant::Links));
        }
        let rounds = if kind == CollectiveKind::AllReduce { 2 } else { 1 };
        let times = self.hops.iter().map(|hop| {
            let step = hop.latency + Seconds::s(bytes.as_f64() / hop.members as f64 / hop.rate);
            step * (rounds * (hop.members - 1)) as f64
        });
        times.fold(Seconds::ZERO, Seconds::max)
    }
}
