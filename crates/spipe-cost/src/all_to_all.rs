//! The time of all-to-alls among groups of devices that run them at once.
//!
//! Each of n devices sends an n-th of its bytes to each other one. All copies of all groups are under way together: an
//! all-to-all takes as long as the busiest link, or as the slowest pair where a copy has a rate of its own, after one
//! latency.

use crate::{CostError, collectives::route};
use spipe_base::{Bytes, DeviceId, LinkId, Seconds};
use spipe_hardware::{Constant, Hardware};
use std::collections::BTreeMap;

/// Groups of devices that exchange data at the same time, each with all of its group.
#[derive(Clone, Copy, Debug)]
pub struct AllToAll {
    latency: Seconds,
    /// The seconds for each byte of a device.
    per_byte: f64,
}

impl AllToAll {
    /// The exchange of `groups`.
    ///
    /// # Errors
    /// Two devices of a group are not connected.
    pub fn of<'g>(hardware: &Hardware, groups: impl IntoIterator<Item = &'g [DeviceId]>) -> Result<Self, CostError> {
        let mut load: BTreeMap<LinkId, f64> = BTreeMap::new();
        let mut all = Self { latency: Seconds::ZERO, per_byte: 0.0 };
        for group in groups {
            let part = 1.0 / group.len() as f64;
            for (from, to) in group.iter().flat_map(|from| group.iter().map(move |to| (*from, *to))) {
                if from == to {
                    continue;
                }
                let route = route(hardware, [from, to])?;
                route.links.iter().for_each(|link| *load.entry(*link).or_default() += part);
                all.latency = all.latency.max(route.latency);
                all.per_byte = all.per_byte.max(route.rate_cap.map_or(0.0, |cap| part / cap.get()));
            }
        }
        let busiest = load.iter().map(|(link, parts)| parts / hardware.links()[*link].bandwidth.get());
        all.per_byte = busiest.fold(all.per_byte, f64::max) / hardware.runtime().constant(Constant::Links);
        Ok(all)
    }

    /// The time in which each device exchanges `bytes`, of which it keeps one part of as many as there are devices.
    pub fn time(&self, bytes: Bytes) -> Seconds {
        if bytes == Bytes::ZERO { Seconds::ZERO } else { self.latency + Seconds::s(bytes.as_f64() * self.per_byte) }
    }
}
