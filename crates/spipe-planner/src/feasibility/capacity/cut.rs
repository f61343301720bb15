//! The least host bytes of consecutive layers on one device, cut into stages with choices of their
//! own.
//!
//! The stages of a device take turns together, so that each has as many microbatches in flight as
//! one stage of all the layers would have. Their persistent bytes add up, of their transient bytes
//! the largest counts, and copies to and from the host fill slots that they share. So for a limit T
//! on transient bytes, a label-setting dynamic program over the layers finds the least host bytes:
//!
//! ```text
//! labels(to) = { label + persistent bytes, copies, and host bytes of stage from..to :
//!                label ∈ labels(from), the stage has at most T transient bytes }
//! ```
//!
//! where dominated labels are dropped. It is solved for every value T that the transient bytes of a
//! stage can take, so that the result is exact; for very many layers, as many of them as
//! [`MOST_STEPS`] allows.

use crate::{
    costs::{CostSums, DeviceSums, HostOffload, StageSlot},
    feasibility::capacity::equal_layers::same,
    problem::Deadline,
};
use rayon::prelude::*;
use spipe_plan::{Boundary, OFFLOAD_SLOTS};
use std::{cmp::Reverse, collections::BTreeMap};

/// The most steps for the parts that begin with the same layer and have the same microbatches in
/// flight: a few milliseconds.
const MOST_STEPS: usize = 1 << 19;

/// The most labels for the same layers. Equal layers need fewer than ten.
const MOST_LABELS: usize = 64;

/// The most stages whose transient bytes are listed. Beyond them the limits are this many equal
/// steps.
const MOST_LISTED: usize = 1 << 17;
const EQUAL_LIMITS: u64 = 1 << 7;

/// Consecutive layers with a number of microbatches in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LayerRangeNeeds {
    pub from: usize,
    pub to: usize,
    pub in_flight: u64,
}

/// One of the stages of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutStage {
    /// The layer after its last one.
    pub to: usize,
    pub host_offload: HostOffload,
    pub recomputed: usize,
}

/// The host bytes of a part in several stages.
#[derive(Clone, Debug, Default)]
pub(crate) struct CutNeeds {
    /// The fewest found that suffice, with the stages.
    pub found: Option<(u64, Vec<CutStage>)>,
    /// Whether no fewer suffice.
    pub exact: bool,
}

/// The parts that start with one layer and have one number of microbatches in flight: by the layer
/// after the last, the most host bytes of interest.
type Asked = Vec<(usize, u64)>;

/// Returns the host bytes of each of `parts` of a device, if they are at most those given with it.
/// For parts after the deadline nothing is known.
pub(crate) fn known(
    costs: &CostSums<'_>,
    (index, parts): (usize, &BTreeMap<LayerRangeNeeds, u64>),
    deadline: &Deadline<'_>,
) -> BTreeMap<LayerRangeNeeds, CutNeeds> {
    let limits = limits(costs, index, parts);
    let mut rows: BTreeMap<(usize, u64), Asked> = BTreeMap::new();
    for (part, most) in parts {
        rows.entry((part.from, part.in_flight)).or_default().push((part.to, *most));
    }
    let of_row = |((from, in_flight), asked): (&(usize, u64), &Asked)| -> Vec<(LayerRangeNeeds, CutNeeds)> {
        let row = Row { costs, device: &costs.devices[index], index, from: *from, in_flight: *in_flight };
        let part = |(to, _): &(usize, u64)| LayerRangeNeeds { from: *from, to: *to, in_flight: *in_flight };
        asked.iter().map(part).zip(row.known(asked, &limits, deadline)).collect()
    };
    rows.par_iter().flat_map_iter(of_row).collect()
}

/// Limits on the transient bytes of stages, and whether these are all values that they can take.
struct Limits {
    list: Vec<u64>,
    all: bool,
}

/// Returns the limits for stages of `parts`, in an order in which any number of the first are about
/// evenly spaced.
fn limits(costs: &CostSums<'_>, index: usize, parts: &BTreeMap<LayerRangeNeeds, u64>) -> Limits {
    let (device, stage_slot) = (&costs.devices[index], StageSlot::alone(index));
    let ends = |part: fn(&LayerRangeNeeds) -> usize| parts.keys().map(part);
    let (first, last) = (ends(|part| part.from).min().unwrap_or(0), ends(|part| part.to).max().unwrap_or(0));
    let longest = ends(|part| part.to - part.from).max().unwrap_or(0);
    let ranges = (first..last).flat_map(|from| (from + 1..=last.min(from + longest)).map(move |to| (from, to)));
    let mut list: Vec<u64> = Vec::new();
    let (mut listed, mut all) = (0, true);
    for (from, to) in ranges {
        // Stages like those one layer earlier are there already.
        if from >= first + 2 && to < costs.layers && same(costs, from - 2, to) {
            continue;
        }
        let Some((fewest, most)) = device.recomputes(costs.training, from, to) else { continue };
        listed += AROUND.len() * (most + 1 - fewest);
        if listed > MOST_LISTED {
            list = (1..=EQUAL_LIMITS).map(|part| device.usable / EQUAL_LIMITS * part).collect();
            all = false;
            break;
        }
        for around in AROUND {
            let transient = |recomputed: usize| device.parts(stage_slot, (from, to), recomputed, around).1;
            list.extend((fewest..=most).map(transient).take_while(|transient| *transient <= device.usable));
        }
    }
    list.sort_unstable();
    list.dedup();
    let mut spaced: Vec<(usize, u64)> = list.into_iter().enumerate().collect();
    spaced.sort_by_key(|(index, _)| Reverse((index + 1).trailing_zeros()));
    Limits { list: spaced.into_iter().map(|(_, limit)| limit).collect(), all }
}

/// The boundaries of a stage on which its transient bytes depend.
const AROUND: [[Boundary; 2]; 4] = [
    [Boundary::End, Boundary::End],
    [Boundary::End, Boundary::Within],
    [Boundary::Within, Boundary::End],
    [Boundary::Within, Boundary::Within],
];

/// A stage with its bytes: persistent on the device, per copied microbatch with the number of
/// copies, and on the host.
struct Piece {
    stage: CutStage,
    stays: u64,
    moving: (u64, u64),
    of_host: u64,
}

/// A label: a cut of the first layers with its bytes, and its last stage with the predecessor by
/// layer and index.
#[derive(Clone, Copy)]
struct CutLabel {
    of_host: u64,
    stays: u64,
    moving: Moving,
    last: Option<(CutStage, usize, usize)>,
}

impl CutLabel {
    /// The label of no layers.
    const START: Self = Self { of_host: 0, stays: 0, moving: Moving::NONE, last: None };

    /// The label with one more stage; `before` is the predecessor.
    fn with(&self, piece: &Piece, before: (usize, usize)) -> Self {
        Self {
            of_host: self.of_host + piece.of_host,
            stays: self.stays + piece.stays,
            moving: self.moving.with(piece.moving),
            last: Some((piece.stage, before.0, before.1)),
        }
    }

    /// The bytes held on the device.
    fn held(&self) -> u64 {
        self.stays + self.moving.total()
    }

    fn dominates(&self, other: &Self) -> bool {
        self.of_host <= other.of_host && self.stays <= other.stays && self.moving.within(&other.moving)
    }
}

/// Inserts `label` unless one of `labels` dominates it, and removes those that it dominates.
/// Returns `false` if there are too many.
fn insert(labels: &mut Vec<CutLabel>, label: CutLabel) -> bool {
    if labels.iter().any(|other| other.dominates(&label)) {
        return true;
    }
    labels.retain(|other| !label.dominates(other));
    let room = labels.len() < MOST_LABELS;
    labels.extend(Some(label).filter(|_| room));
    room
}

/// The layers from one on, on a device with microbatches in flight.
struct Row<'f, 'a> {
    costs: &'f CostSums<'a>,
    device: &'f DeviceSums,
    index: usize,
    from: usize,
    in_flight: u64,
}

impl Row<'_, '_> {
    /// The host bytes of each of the parts `asked`.
    fn known(&self, asked: &Asked, limits: &Limits, deadline: &Deadline<'_>) -> Vec<CutNeeds> {
        let mut found: Vec<CutNeeds> = vec![CutNeeds { found: None, exact: limits.all }; asked.len()];
        let reach = asked.iter().map(|(to, _)| *to).max().unwrap_or(self.from);
        let (mut steps, mut exact) = (MOST_STEPS, true);
        for limit in &limits.list {
            if steps == 0 || deadline.over() {
                exact = false;
                break;
            }
            let wanted = |(known, (_, most)): (&CutNeeds, &(usize, u64))| match &known.found {
                Some((of_host, _)) => of_host.checked_sub(1).map(|better| better.min(*most)),
                None => Some(*most),
            };
            let Some(most) = found.iter().zip(asked).filter_map(wanted).max() else { break };
            let Some(labels) = self.labels((*limit, most), reach, &mut steps) else {
                exact = false;
                continue;
            };
            for (known, asked) in found.iter_mut().zip(asked) {
                let Some(most) = wanted((known, asked)) else { continue };
                let better = self.complete(&labels, *limit, (asked.0, most));
                known.found =
                    better.map(|(of_host, last)| (of_host, self.stages(&labels, last))).or(known.found.take());
            }
        }
        found.iter_mut().for_each(|known| known.exact &= exact);
        found
    }

    /// The labels of the layers up to each one before `reach`, under a limit on transient bytes, none
    /// with more than `most` host bytes; `None` if some would be lost.
    fn labels(&self, (limit, most): (u64, u64), reach: usize, steps: &mut usize) -> Option<Vec<Vec<CutLabel>>> {
        let room = self.device.usable.saturating_sub(limit);
        let mut labels: Vec<Vec<CutLabel>> = vec![Vec::new(); reach + 1 - self.from];
        labels[0].push(CutLabel::START);
        for to in self.from + 1..reach {
            let (before, here) = labels.split_at_mut(to - self.from);
            let here = &mut here[0];
            for (offset, before) in before.iter().enumerate().filter(|(_, before)| !before.is_empty()) {
                let from = self.from + offset;
                let mut all = true;
                self.each(limit, ((from, to), false), |piece| {
                    *steps = steps.saturating_sub(before.len() * (1 + here.len()));
                    for (index, label) in before.iter().enumerate() {
                        let label = label.with(&piece, (from, index));
                        if label.of_host <= most && label.held() <= room {
                            all &= insert(here, label);
                        }
                    }
                });
                if !all || *steps == 0 {
                    return None;
                }
            }
        }
        Some(labels)
    }

    /// The least host bytes, at most `most`, with which one more stage up to `to` fits, and the
    /// label of that.
    fn complete(&self, labels: &[Vec<CutLabel>], limit: u64, (to, most): (usize, u64)) -> Option<(u64, CutLabel)> {
        let mut best: Option<(u64, CutLabel)> = None;
        for from in self.from..to {
            let before = &labels[from - self.from];
            self.each(limit, ((from, to), true), |piece| {
                for (index, label) in before.iter().enumerate() {
                    let label = label.with(&piece, (from, index));
                    let need = label.held() + self.shared(to) + limit;
                    let of_host = if self.device.is_cpu { need } else { label.of_host };
                    let better = best.is_none_or(|(least, _)| of_host < least);
                    if need <= self.device.usable && of_host <= most && better {
                        best = Some((of_host, label));
                    }
                }
            });
        }
        best
    }

    /// The stages of a label, in order.
    fn stages(&self, labels: &[Vec<CutLabel>], mut label: CutLabel) -> Vec<CutStage> {
        let mut stages = Vec::new();
        while let Some((stage, from, index)) = label.last {
            stages.push(stage);
            label = labels[from - self.from][index];
        }
        stages.reverse();
        stages
    }

    /// The additional bytes of the stages up to layer `to` for parameters that the first and the
    /// last layer share.
    fn shared(&self, to: usize) -> u64 {
        let stage_slot =
            StageSlot { first: self.from == 0, last: to == self.costs.layers, ..StageSlot::alone(self.index) };
        if stage_slot.first && stage_slot.last { self.device.shared_within() } else { self.device.shared(stage_slot) }
    }

    /// Visits every stage of layers `from..to` with at most `limit` transient bytes, except
    /// dominated ones.
    ///
    /// Beyond the first, each recomputed layer lessens the persistent bytes here and on the host,
    /// so that only the fewest and the most within the limit matter; if the most is all layers,
    /// nothing else keeps less. On either side are other stages of the device, except before its
    /// first layer, and after its last one where `end` is set. The whole model in one stage is left
    /// out.
    fn each(&self, limit: u64, ((from, to), end): ((usize, usize), bool), mut visit: impl FnMut(Piece)) {
        let (device, layers) = (self.device, (from, to));
        let everything = end && from == 0 && to == self.costs.layers;
        let Some((fewest, most)) = device.recomputes(self.costs.training, from, to) else { return };
        let around = self.around(layers, end);
        let stage_slot = |host_offload: HostOffload| StageSlot {
            in_flight: self.in_flight,
            host_offload: Some(host_offload),
            ..StageSlot::alone(self.index)
        };
        let parts = |host_offload: HostOffload, recomputed: usize| {
            device.parts(stage_slot(host_offload), layers, recomputed, around)
        };
        let Some(left) = limit.checked_sub(parts(HostOffload::NONE, 0).1) else { return };
        let largest = device.within(layers, left).min(most);
        if everything || largest < fewest || !device.able(from, to) {
            return;
        }
        let state = |host_offload: HostOffload| device.state(from, to, Some(host_offload));
        let single = largest == to - from || largest == fewest;
        for recomputed in [largest, fewest].into_iter().take(if single { 1 } else { 2 }) {
            let offloads = device.leaving(layers, recomputed) > 0;
            let useful = |host_offload: &&HostOffload| {
                (!host_offload.activations || offloads)
                    && (!host_offload.optimizer || state(HostOffload::STEP) < state(HostOffload::NONE))
            };
            for host_offload in self.costs.kinds_of_host_offload(self.index).iter().filter(useful) {
                let of_host = device.need_of_host(stage_slot(*host_offload), *host_offload, layers, recomputed);
                let stage = CutStage { to, host_offload: *host_offload, recomputed };
                let moving = device.on_the_way(stage_slot(*host_offload), layers, recomputed);
                visit(Piece { stage, stays: parts(*host_offload, recomputed).0, moving, of_host });
            }
        }
    }

    /// The boundaries of stage `from..to`, which has the last layer of the part if `end` is set.
    fn around(&self, (from, to): (usize, usize), end: bool) -> [Boundary; 2] {
        let outer = |edge: bool| if edge { Boundary::End } else { Boundary::Across };
        [
            if from == self.from { outer(from == 0) } else { Boundary::Within },
            if end { outer(to == self.costs.layers) } else { Boundary::Within },
        ]
    }
}

/// The offload slots of a device, which its stages share: the bytes in each slot, in descending
/// order. The largest copies of all stages fill them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moving([u64; OFFLOAD_SLOTS as usize]);

impl Moving {
    const NONE: Self = Self([0; OFFLOAD_SLOTS as usize]);

    /// The slots with `copies` more copies of `bytes` each.
    fn with(mut self, (bytes, copies): (u64, u64)) -> Self {
        let first = self.0.partition_point(|other| *other >= bytes);
        let all = self.0.len();
        let last = all.min(first + copies.min(OFFLOAD_SLOTS) as usize);
        self.0.copy_within(first..all - (last - first), last);
        self.0[first..last].fill(bytes);
        self
    }

    /// Whether no slot holds more than that of `other`.
    fn within(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(one, other)| one <= other)
    }

    /// The bytes in all slots.
    fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(list: &[(u64, u64)]) -> Moving {
        list.iter().fold(Moving::NONE, |moving, more| moving.with(*more))
    }

    proptest! {
        #[test]
        fn the_largest_of_all_that_moves_are_in_the_slots(list in prop::collection::vec((0u64..9, 0u64..6), 0..5)) {
            let copies = |(bytes, copies): &(u64, u64)| vec![*bytes; *copies as usize];
            let mut all: Vec<u64> = list.iter().flat_map(copies).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            prop_assert_eq!(of(&list).total(), all.iter().take(OFFLOAD_SLOTS as usize).sum::<u64>());
        }

        #[test]
        fn labels_are_kept_that_none_dominates(needs in prop::collection::vec((0u64..9, 0u64..9), 0..20)) {
            let mut labels = Vec::new();
            for (stays, of_host) in &needs {
                let label = CutLabel { of_host: *of_host, stays: *stays, ..CutLabel::START };
                prop_assert!(insert(&mut labels, label), "too many labels");
            }
            let better = |one: &(u64, u64), other: &(u64, u64)| one != other && one.0 <= other.0 && one.1 <= other.1;
            let mut best: Vec<(u64, u64)> =
                needs.iter().filter(|one| !needs.iter().any(|other| better(other, one))).copied().collect();
            let mut kept: Vec<(u64, u64)> = labels.iter().map(|label| (label.stays, label.of_host)).collect();
            best.sort_unstable();
            best.dedup();
            kept.sort_unstable();
            prop_assert_eq!(kept, best);
        }
    }
}
