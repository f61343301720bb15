//! Whether stages fit the memories at all, whichever devices they are on, in whichever order, one on each or several.
//!
//! What layers need on a device depends on its kind, on the layers and how they are cut into stages, and on how many microbatches are
//! in flight, which without a head start only the number of devices behind decides. So it does not matter in which order the devices of
//! a kind are, only how many of each are behind:
//!
//! ```text
//! ways(one more of kind k, from) = { way + what layers from..to on k need of its host : way ∈ ways(those behind, to) }
//! ```
//!
//! by dynamic programming from the last layer to the first. Of the ways with the same devices and layers only those are kept of which
//! none needs less of every host. What layers need of the host is looked up ([`hold`]), and found out more and more exactly:
//!
//! ```text
//! in one stage       where that fits, it is a plan
//! a bound            where even that does not fit, nothing does
//! cut into several   exact, but for very many layers on a device ([`cut`]) or in all
//! ```
//!
//! Hosts count, one after the other,
//!
//! ```text
//! not at all     nothing leaves the GPUs: where that fits, it is a plan
//! all together   where that does not fit, nothing does; a way that can be spread over the hosts is a plan
//! each by itself exact, where they are few and no stages of one device are on two of them
//! by class      those that are alike told apart only by what they hold ([`spread`])
//! ```

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
use crate::feasibility::capacity::hold::{Holds, Place};
use crate::feasibility::capacity::host_packing::Measure;

/// How many hosts are told apart.
const HOSTS: usize = 4;

/// Beyond so many layers it is not found out what stages of several choices need.
const MOST_LAYERS: usize = 1024;

/// How many ways are tried to be spread over the hosts.
const TRIES: usize = 64;

/// What can be said of a discipline.
#[derive(Debug)]
pub(crate) enum Capacity {
    /// This placement fits.
    Fits(Placement),
    /// No placement fits.
    Never,
    /// Neither is certain, and there is a reason to search.
    Open,
    /// Neither is certain, and a search would find nothing: stages fit all hosts together, but no way is found to spread them over the hosts;
    /// or only several stages on a device may fit, of too many layers.
    Unfound,
}

/// How the memories of hosts count.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    Unused,
    Together,
    Apart,
    /// Each class with its measures.
    ByClass(Vec<(usize, Measure)>),
}

/// Whether a placement fits under `schedule`, which has no head start, as far as that is found out before the deadline.
pub(crate) fn capacity(
    costs: &CostSums<'_>,
    schedule: ScheduleKind,
    (pins, deadline): (&Pins, &Deadline<'_>),
) -> Capacity {
    capacity_with(costs, (schedule, f64::INFINITY), (pins, HOSTS), Some(deadline))
}

/// A placement that fits where no device needs longer than `most` ms for the passes of all microbatches, if one is found.
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

/// What can be said of placements whose devices need no longer than `most` ms for all passes, where no more than so many hosts are told apart.
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

/// Whether something fits with what is known of the needs of layers.
struct Question<'q, 'f, 'a> {
    costs: &'f CostSums<'a>,
    schedule: ScheduleKind,
    pins: &'q Pins,
    /// Whether hosts are told apart.
    few: bool,
    holds: &'q Holds,
    /// Whether what was found counts, or only bounds of it.
    sure: bool,
    /// Whether stages of one device may be on several hosts.
    apart: bool,
}

/// What one way to count hosts comes to.
enum Answer {
    Certain(Capacity),
    /// Something fits hosts that count so, which other hosts may not have room for.
    Perhaps,
    /// The same, and this is what it breaks.
    Breaks(usize, Measure),
}

impl Question<'_, '_, '_> {
    fn answer(&self) -> Capacity {
        for hosts in [Hosts::Unused, Hosts::Together] {
            if let Answer::Certain(answer) = self.with(&hosts) {
                return answer;
            }
        }
        if self.few {
            return match self.with(&Hosts::Apart) {
                Answer::Certain(Capacity::Never) if self.apart => Capacity::Open,
                Answer::Certain(answer) => answer,
                _ => Capacity::Open,
            };
        }
        // Bounds are no ways that can be spread.
        if !self.sure {
            return Capacity::Unfound;
        }
        let mut measures: Vec<(usize, Measure)> = Vec::new();
        loop {
            match self.with(&Hosts::ByClass(measures.clone())) {
                // Classes count as if each device had all that it leaves on one host.
                Answer::Certain(Capacity::Never) if self.apart => return Capacity::Open,
                Answer::Certain(answer) => return answer,
                Answer::Breaks(class, measure) if !measures.contains(&(class, measure)) => {
                    measures.push((class, measure));
                }
                _ => return Capacity::Unfound,
            }
        }
    }

    /// What can be said if hosts count so.
    fn with(&self, hosts: &Hosts) -> Answer {
        // Where there are too many sums to follow, a search would not do better.
        let followed = matches!(hosts, Hosts::ByClass(measures) if !measures.is_empty());
        let chain = Chain::new(self, hosts).and_then(|chain| chain.ways().map(|ways| (chain, ways)));
        let Some((chain, ways)) = chain else {
            return Answer::Certain(if followed { Capacity::Unfound } else { Capacity::Open });
        };
        let complete = chain.complete(&ways);
        if complete.is_empty() {
            return if chain.hosts { Answer::Certain(Capacity::Never) } else { Answer::Perhaps };
        }
        if !self.sure {
            return Answer::Perhaps;
        }
        let fits = |placement: &Placement| {
            self.pins.allow(&self.costs.context, placement) && check(&self.costs.context, placement).is_ok()
        };
        let mut spread = false;
        for (state, index) in complete.iter().take(TRIES) {
            let Some(placement) = chain.place(&ways, *state, *index) else { continue };
            let placement = self.pins.with_common_knobs(placement);
            if fits(&placement) {
                return Answer::Certain(Capacity::Fits(placement));
            }
            spread = true;
        }
        let by_class = matches!(hosts, Hosts::ByClass(_));
        match complete.iter().take(TRIES).find_map(|(state, index)| chain.broken(&ways, *state, *index)) {
            // What else the checker or a pin refuses may have other ways.
            _ if by_class && spread => Answer::Certain(Capacity::Open),
            Some((class, measure)) if by_class => Answer::Breaks(class, measure),
            _ => Answer::Perhaps,
        }
    }

    /// For all layers on devices that are part of a placement that may fit, how much they may need of hosts, all hosts together.
    fn most(&self) -> Option<BTreeMap<Place, u64>> {
        let chain = Chain::new(self, &Hosts::Together)?;
        let ways = chain.ways()?;
        Some(chain.most(&ways))
    }
}

/// The usable bytes of each memory of a socket.
fn host_memories(costs: &CostSums<'_>) -> BTreeMap<MemoryId, u64> {
    let sockets = costs.devices.iter().filter(|device| device.is_cpu);
    sockets.map(|device| (device.memory, device.usable)).collect()
}

/// The memory of a socket, or of those that may help a GPU, the nearest first.
fn hosts_of(costs: &CostSums<'_>, device: usize) -> Vec<MemoryId> {
    let own = &costs.devices[device];
    if own.is_cpu { vec![own.memory] } else { costs.hosts(device).map(|host| host.memory).collect() }
}

/// The rooms of those that may help a GPU, the nearest first.
fn rooms(costs: &CostSums<'_>, device: usize) -> Vec<u64> {
    costs.hosts(device).map(|host| costs.devices[host.socket.index()].usable).collect()
}

/// Whether two devices hold the same layers in the same bytes, and have hosts of the same size or none.
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
