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
//! cut into several   exact ([`cut`], [`way`]), except for very many layers
//! ```
//!
//! Hosts are modelled in turn as
//!
//! ```text
//! unused            nothing leaves the GPUs: if that fits, it is a plan
//! one               if that does not fit, nothing does; what can be packed onto them is a plan
//! each by itself    exact, if hosts are few and each device's host data is on one of them
//! classes           equal hosts, distinguished only by the bytes they hold ([`host_packing`])
//! ```
//!
//! Before all this, a count of layers by their state alone ([`crowd`]) is tried.

mod chain;
mod crowd;
mod cut;
mod hold;
mod host_packing;
mod way;

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
use crate::feasibility::capacity::host_packing::Measure;

/// The most hosts that are distinguished. More are grouped into classes.
const HOSTS: usize = 4;

/// The most layers for which several stages per device are examined, to keep the time limit with
/// thousands of layers.
const MOST_LAYERS: usize = 1024;

/// The most labels that are tried to be packed onto the hosts.
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
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    Unused,
    Together,
    Apart,
    /// One sum of bytes per class, and these measures.
    ByClass(Vec<(usize, Measure)>),
}

/// Decides, within the deadline, whether a placement fits under `schedule`, which has no head
/// start.
pub(crate) fn capacity(
    costs: &CostSums<'_>,
    schedule: ScheduleKind,
    (pins, deadline): (&Pins, &Deadline<'_>),
) -> Capacity {
    capacity_with(costs, (schedule, f64::INFINITY), (pins, HOSTS), Some(deadline))
}

/// Returns a placement that fits and whose devices take at most `most` ms for the passes of all
/// microbatches, if one is found.
pub(crate) fn fitting(
    costs: &CostSums<'_>,
    (schedule, most): (ScheduleKind, f64),
    (pins, deadline): (&Pins, &Deadline<'_>),
) -> Option<Placement> {
    match capacity_with(costs, (schedule, most), (pins, HOSTS), Some(deadline)) {
        Capacity::Fits(placement) => Some(placement),
        Capacity::Never | Capacity::Open | Capacity::Unfound => None,
    }
}

/// Decides whether a placement fits whose devices take at most `most` ms for all passes. At most
/// `apart` hosts are distinguished.
fn capacity_with(
    costs: &CostSums<'_>,
    (schedule, most): (ScheduleKind, f64),
    (pins, apart): (&Pins, usize),
    deadline: Option<&Deadline<'_>>,
) -> Capacity {
    if crowd::too_many(costs) {
        return Capacity::Never;
    }
    let few = host_memories(costs).len() <= apart;
    let choice = (0..costs.devices.len()).any(|device| costs.hosts(device).count() > 1);
    let question = |holds: &Holds, sure: bool, cut: bool| {
        let apart = cut && choice;
        Question { costs, schedule, pins, few, holds, sure, apart }.answer()
    };
    let ask = |holds: &Holds, sure: bool| question(holds, sure, true);
    let whole = question(&Holds::whole(costs, (schedule, most)), true, false);
    if matches!(whole, Capacity::Fits(_)) {
        return whole;
    }
    let bounds = Holds::bounds(costs, (schedule, most));
    if costs.training && matches!(ask(&bounds, false), Capacity::Never) {
        return Capacity::Never;
    }
    // Without a backward, several stages need no less than one.
    if !costs.training || matches!(whole, Capacity::Open) {
        return whole;
    }
    if costs.layers > MOST_LAYERS {
        return Capacity::Unfound;
    }
    let question = Question { costs, schedule, pins, few, holds: &bounds, sure: false, apart: choice };
    let Some(needs) = question.most() else { return Capacity::Open };
    let holds = Holds::cut(costs, (schedule, most), (&needs, deadline));
    match ask(&holds, true) {
        Capacity::Never if !holds.exact() => ask(&holds, false),
        answer => answer,
    }
}

/// The question of feasibility under one table of host bytes.
struct Question<'q, 'f, 'a> {
    costs: &'f CostSums<'a>,
    schedule: ScheduleKind,
    pins: &'q Pins,
    /// Whether hosts are so few that each is distinguished.
    few: bool,
    holds: &'q Holds,
    /// Whether amounts that suffice count, or only bounds.
    sure: bool,
    /// Whether stages of one device may be on several hosts.
    apart: bool,
}

/// The answer under one model of hosts.
enum CapacityAnswer {
    Certain(Capacity),
    /// Something fits these modelled hosts, but perhaps not the real ones.
    Perhaps,
    /// The same; the packing exceeds this measure of this class.
    Breaks(usize, Measure),
}

impl Question<'_, '_, '_> {
    fn answer(&self) -> Capacity {
        for hosts in [Hosts::Unused, Hosts::Together] {
            if let CapacityAnswer::Certain(answer) = self.with(&hosts) {
                return answer;
            }
        }
        if self.few {
            return match self.with(&Hosts::Apart) {
                CapacityAnswer::Certain(Capacity::Never) if self.apart => Capacity::Open,
                CapacityAnswer::Certain(answer) => answer,
                _ => Capacity::Open,
            };
        }
        // Labels of bounds cannot be packed.
        if !self.sure {
            return Capacity::Unfound;
        }
        let mut measures: Vec<(usize, Measure)> = Vec::new();
        loop {
            match self.with(&Hosts::ByClass(measures.clone())) {
                // Sums by class assume that each device has its host data on one host.
                CapacityAnswer::Certain(Capacity::Never) if self.apart => return Capacity::Open,
                CapacityAnswer::Certain(answer) => return answer,
                CapacityAnswer::Breaks(class, measure) if !measures.contains(&(class, measure)) => {
                    measures.push((class, measure));
                }
                _ => return Capacity::Unfound,
            }
        }
    }

    /// The answer under one model of hosts.
    fn with(&self, hosts: &Hosts) -> CapacityAnswer {
        // With too many sums to follow, a search would not do better.
        let followed = matches!(hosts, Hosts::ByClass(measures) if !measures.is_empty());
        let chain = Chain::new(self, hosts).and_then(|chain| chain.ways().map(|ways| (chain, ways)));
        let Some((chain, ways)) = chain else {
            return CapacityAnswer::Certain(if followed { Capacity::Unfound } else { Capacity::Open });
        };
        let complete = chain.complete(&ways);
        if complete.is_empty() {
            return if chain.hosts { CapacityAnswer::Certain(Capacity::Never) } else { CapacityAnswer::Perhaps };
        }
        if !self.sure {
            return CapacityAnswer::Perhaps;
        }
        let fits = |placement: &Placement| {
            self.pins.allow(&self.costs.context, placement) && check(&self.costs.context, placement).is_ok()
        };
        let mut spread = false;
        for (state, index) in complete.iter().take(TRIES) {
            let Some(placement) = chain.place(&ways, *state, *index) else { continue };
            let placement = self.pins.with_common_knobs(placement);
            if fits(&placement) {
                return CapacityAnswer::Certain(Capacity::Fits(placement));
            }
            spread = true;
        }
        let by_class = matches!(hosts, Hosts::ByClass(_));
        match complete.iter().take(TRIES).find_map(|(state, index)| chain.broken(&ways, *state, *index)) {
            // The checker or a pin refuses a packing; a search may find another one.
            _ if by_class && spread => CapacityAnswer::Certain(Capacity::Open),
            Some((class, measure)) if by_class => CapacityAnswer::Breaks(class, measure),
            _ => CapacityAnswer::Perhaps,
        }
    }

    /// For layers on each device that may be part of a placement that fits: the most host bytes
    /// that they may need, with all hosts as one.
    fn most(&self) -> Option<BTreeMap<HeldStage, u64>> {
        let chain = Chain::new(self, &Hosts::Together)?;
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
