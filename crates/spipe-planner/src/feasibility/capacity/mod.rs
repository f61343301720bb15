//! The feasibility of pipelines: whether stages fit the memories, on any devices in any order, with
//! one or several stages per device.
//!
//! The bytes that layers need on a device depend on its kind, on the layers and their cut into
//! stages, and on the microbatches in flight, which without a head start only the number of devices
//! behind decides. So the order of devices of a kind does not matter, only their number behind:
//!
//! ```text
//! ways(one more of kind k, from) = { way + host bytes of layers from..to on k :
//!                                    way ∈ ways(those behind, to) }
//! ```
//!
//! This is a dynamic program ([`chain`]) from the last layer to the first. A label (`way`) is
//! dropped if another one of its state needs no more of any host. The host bytes of layers are
//! looked up ([`hold`]), in tables of increasing precision:
//!
//! ```text
//! in one stage       if that fits, it is a plan
//! a bound            if even that does not fit, nothing does
//! cut into several   exact ([`cut`]), except for very many layers
//! ```
//!
//! Hosts are modelled in turn as
//!
//! ```text
//! unused     nothing leaves the GPUs: if that fits, it is a plan
//! together   as one: if that does not fit, nothing does; what can be packed onto them is a plan
//! apart      each by itself: exact, if each device's host data is on one of them
//! ```

mod chain;
mod cut;
mod equal_layers;
mod hold;
mod packing;

use crate::{
    costs::{CostSums, DeviceSums, HostOffload, StageSlot},
    problem::{Deadline, pins::Pins},
    space::subproblem::{ScheduleKind, Subproblem},
};
use spipe_base::MemoryId;
use spipe_plan::{Placement, check};
use std::collections::BTreeMap;

use crate::feasibility::capacity::chain::Chain;
use crate::feasibility::capacity::hold::{HeldStage, Holds};

/// The most hosts that are distinguished: two sockets of two NUMA nodes. With more of them, stages that
/// fit all hosts together but cannot be packed onto them are undecided.
const HOSTS: usize = 4;

/// The most layers for which several stages per device are examined, to keep the time limit with
/// thousands of layers.
const MOST_LAYERS: usize = 1024;

/// The most labels that are tried to be packed onto the hosts, those with the fewest bytes first.
const TRIES: usize = 64;

/// The answer for a schedule.
#[derive(Debug)]
pub(crate) enum Capacity {
    /// This placement fits.
    Fits(Placement),
    /// No placement fits.
    Never,
    /// Undecided, and worth a search.
    Open,
    /// Undecided, and a search would find nothing: stages fit all hosts together, but no packing
    /// onto the hosts is found; or only several stages per device may fit, of too many layers.
    Unfound,
}

/// The model of the hosts' memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hosts {
    Unused,
    Together,
    Apart,
}

/// Decides, within the deadline, whether a placement fits under `schedule`, which has no head
/// start.
pub(crate) fn capacity(
    costs: &CostSums<'_>,
    schedule: ScheduleKind,
    (pins, deadline): (&Pins, &Deadline<'_>),
) -> Capacity {
    let choice = (0..costs.devices.len()).any(|device| costs.hosts(device).count() > 1);
    let question = |holds, sure, several: bool| {
        let choice = several && choice;
        Question { costs, schedule, pins, holds, sure, choice }
    };
    let whole = Holds::whole(costs, schedule);
    let whole = question(&whole, true, false).answer();
    if matches!(whole, Capacity::Fits(_)) {
        return whole;
    }
    let bounds = Holds::bounds(costs, schedule);
    let bounded = question(&bounds, false, true);
    if costs.training && matches!(bounded.answer(), Capacity::Never) {
        return Capacity::Never;
    }
    // Without a backward, several stages need no less than one.
    if !costs.training || matches!(whole, Capacity::Open) {
        return whole;
    }
    if costs.layers > MOST_LAYERS {
        return Capacity::Unfound;
    }
    let Some(needs) = bounded.most() else { return Capacity::Open };
    let holds = Holds::cut(costs, schedule, (&needs, deadline));
    match question(&holds, true, true).answer() {
        Capacity::Never if !holds.exact() => question(&holds, false, true).answer(),
        answer => answer,
    }
}

/// The question of feasibility under one table of host bytes.
struct Question<'q, 'f, 'a> {
    costs: &'f CostSums<'a>,
    schedule: ScheduleKind,
    pins: &'q Pins,
    holds: &'q Holds,
    /// Whether amounts that suffice count, or only bounds.
    sure: bool,
    /// Whether stages of one device may be on several hosts.
    choice: bool,
}

impl Question<'_, '_, '_> {
    fn answer(&self) -> Capacity {
        for hosts in [Hosts::Unused, Hosts::Together] {
            if let Some(answer) = self.with(hosts) {
                return answer;
            }
        }
        if host_memories(self.costs).len() > HOSTS {
            return Capacity::Unfound;
        }
        match self.with(Hosts::Apart) {
            Some(Capacity::Never) if self.choice => Capacity::Open,
            answer => answer.unwrap_or(Capacity::Open),
        }
    }

    /// The answer under one model of hosts; `None` if something fits these modelled hosts, but
    /// perhaps not the real ones.
    fn with(&self, hosts: Hosts) -> Option<Capacity> {
        let Some((chain, ways)) = Chain::new(self, hosts).and_then(|chain| chain.ways().map(|ways| (chain, ways)))
        else {
            return Some(Capacity::Open);
        };
        let complete = chain.complete(&ways);
        if complete.is_empty() {
            return (hosts != Hosts::Unused).then_some(Capacity::Never);
        }
        let fits = |placement: &Placement| {
            self.pins.allow(&self.costs.context, placement) && check(&self.costs.context, placement).is_ok()
        };
        let tries = complete.iter().take(TRIES).filter(|_| self.sure);
        let placements = tries.filter_map(|(state, index)| chain.place(&ways, *state, *index));
        placements.map(|placement| self.pins.with_common_knobs(placement)).find(fits).map(Capacity::Fits)
    }

    /// For layers on each device that may be part of a placement that fits: the most host bytes
    /// that they may need, with all hosts as one.
    fn most(&self) -> Option<BTreeMap<HeldStage, u64>> {
        let chain = Chain::new(self, Hosts::Together)?;
        let ways = chain.ways()?;
        Some(chain.most(&ways))
    }
}

/// Returns the usable bytes of each socket's memory.
fn host_memories(costs: &CostSums<'_>) -> BTreeMap<MemoryId, u64> {
    let sockets = costs.devices.iter().filter(|device| device.is_cpu);
    sockets.map(|device| (device.memory, device.usable)).collect()
}

/// Returns the memory of a socket, or those of the hosts of a GPU, the nearest first.
fn hosts_of(costs: &CostSums<'_>, device: usize) -> Vec<MemoryId> {
    let own = &costs.devices[device];
    if own.is_cpu { vec![own.memory] } else { costs.hosts(device).map(|host| host.memory).collect() }
}

/// Returns the usable bytes of the hosts of a GPU, the nearest first.
fn rooms(costs: &CostSums<'_>, device: usize) -> Vec<u64> {
    costs.hosts(device).map(|host| costs.devices[host.socket.index()].usable).collect()
}

/// Whether two devices need the same bytes for the same layers, and have hosts of equal size or
/// none.
fn hold_alike(costs: &CostSums<'_>, one: usize, other: usize) -> bool {
    let (first, second) = (&costs.devices[one], &costs.devices[other]);
    let able = |device: &DeviceSums| device.times.iter().map(Option::is_some).collect::<Vec<bool>>();
    first.is_cpu == second.is_cpu
        && first.usable == second.usable
        && rooms(costs, one) == rooms(costs, other)
        && first.bytes == second.bytes
        && able(first) == able(second)
}

#[cfg(test)]
mod tests;
