//! The least host bytes of consecutive layers on one device, cut into stages with choices of their
//! own.
//!
//! The stages of a device take turns together, so that each has as many microbatches in flight as
//! one stage of all the layers would have. Their persistent bytes add up, of their transient bytes
//! the largest counts, and copies to and from the host fill four slots that they share. The sum of
//! the four largest of copies x is the minimum over S of `4 S + Σ max(0, x − S)`, which is reached
//! where S is one of them or zero. So for a limit T on transient bytes and a slot size S, the least
//! persistent bytes without host offloads are a shortest path, and the least host bytes are a
//! shortest path with two weights:
//!
//! ```text
//! ways(to) = { way + persistent bytes, copies beyond S, and host bytes of stage from..to :
//!              way ∈ ways(from), the stage has at most T transient bytes }
//! ```
//!
//! where dominated labels are dropped.
//!
//! The larger T, the fewer bytes persist. So for an interval of T, the persistent bytes at the
//! largest T and the transient bytes at the smallest give a bound, which settles most intervals at
//! once. The same holds for an interval of S: the largest S leaves the fewest bytes beyond the
//! slots, and the smallest takes the fewest for them. The remaining pairs (T, S) are solved one by
//! one, so that the result is exact, except for very many layers on a device: there a cut that is
//! found fits, and the least is a bound.

mod limits;

use crate::feasibility::capacity::{
    CostSums, HostOffload, StageSlot,
    hold::same,
    way::{CutLabel, CutStage, FoundCut, Piece, keep},
};
use crate::{costs::DeviceSums, problem::Deadline};
use rayon::prelude::*;
use spipe_plan::{Boundary, OFFLOAD_SLOTS};
use std::collections::{BTreeMap, BTreeSet};

use crate::feasibility::capacity::cut::limits::{CutLimits, Limit, limits};

/// The most steps for the parts that begin with the same layer and have the same microbatches in
/// flight.
const MOST_LOOKS: u64 = 1 << 20;

/// The most labels for the same layers: as many as take [`STEPS`] steps for all layers of a part,
/// but between [`FEWEST_WAYS`] and [`MOST_WAYS`].
const STEPS: usize = 1 << 22;
const FEWEST_WAYS: usize = 8;
const MOST_WAYS: usize = 256;

/// Consecutive layers with a number of microbatches in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LayerRangeNeeds {
    pub from: usize,
    pub to: usize,
    pub in_flight: u64,
}

/// The host bytes of a part: at least `least`, and at most those of `found`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeastNeeds {
    pub least: u64,
    pub found: Option<FoundCut>,
}

impl LeastNeeds {
    const NOTHING: Self = Self { least: 0, found: None };
}

/// An interval of limits and one of slot sizes, by the first and the last index.
#[derive(Clone, Copy)]
struct Range {
    limits: (usize, usize),
    slots: (usize, usize),
}

/// The parts that start with one layer, by microbatches in flight, each with the most host bytes of
/// interest.
type Rows = BTreeMap<u64, Vec<(LayerRangeNeeds, u64)>>;

/// Returns the host bytes of each of `parts` of a device, if they are at most those given with it.
/// For parts after the deadline nothing is known.
pub(crate) fn known(
    costs: &CostSums<'_>,
    (index, parts): (usize, &BTreeMap<LayerRangeNeeds, u64>),
    deadline: Option<&Deadline<'_>>,
) -> BTreeMap<LayerRangeNeeds, LeastNeeds> {
    let limits = limits(costs, index, parts);
    let mut starts: BTreeMap<usize, Rows> = BTreeMap::new();
    for (part, most) in parts {
        starts.entry(part.from).or_default().entry(part.in_flight).or_default().push((*part, *most));
    }
    let starts: Vec<_> = starts.into_iter().collect();
    let of_start = |(from, rows): &(usize, Rows)| {
        let ends = rows.values().flatten().map(|(part, _)| part.to).collect();
        let mut start = CutStart { costs, index, from: *from, all: &limits, ends, kept: BTreeMap::new() };
        let of_row = |(in_flight, parts): (&u64, &Vec<(LayerRangeNeeds, u64)>)| {
            if deadline.is_some_and(Deadline::over) {
                return parts.iter().map(|(part, _)| (*part, LeastNeeds::NOTHING)).collect();
            }
            start.known(*in_flight, parts)
        };
        rows.iter().flat_map(of_row).collect::<Vec<(LayerRangeNeeds, LeastNeeds)>>()
    };
    starts.par_iter().flat_map_iter(of_start).collect()
}

/// Returns the stages of `part` that `found` describes.
pub(crate) fn stages(
    costs: &CostSums<'_>,
    index: usize,
    part: LayerRangeNeeds,
    found: FoundCut,
) -> Option<Vec<CutStage>> {
    let row = Row::new(costs, index, (part.from, part.in_flight));
    let room = costs.devices[index].usable.checked_sub(found.limit + OFFLOAD_SLOTS * found.slot)?;
    let sizes = (found.limit, found.slot);
    let (ways, _) = row.ways((sizes, room), part.to, (usize::MAX, found.of_host), &mut 0);
    let mut way = row.complete(&ways, sizes, part.to, |way| way.needs.weight + row.shared(part.to) <= room)?;
    let mut stages = Vec::new();
    while let Some((stage, from, index)) = way.last {
        stages.push(stage);
        way = ways[from - part.from][index];
    }
    stages.reverse();
    Some(stages)
}

/// The parts of a device that begin with the same layer.
struct CutStart<'s, 'f, 'a> {
    costs: &'f CostSums<'a>,
    index: usize,
    from: usize,
    all: &'s CutLimits,
    ends: BTreeSet<usize>,
    /// By limit and microbatches in flight: the least persistent bytes of the layers up to each
    /// end, without host offloads.
    kept: BTreeMap<(usize, u64), BTreeMap<usize, u64>>,
}

/// The layers up to one of the ends, with the known limits of their host bytes.
struct Asked {
    to: usize,
    /// The most host bytes of interest.
    most: u64,
    least: u64,
    found: Option<FoundCut>,
}

impl CutStart<'_, '_, '_> {
    /// The host bytes with `in_flight` microbatches in flight, by branch and bound over intervals
    /// of limits and slot sizes.
    fn known(&mut self, in_flight: u64, parts: &[(LayerRangeNeeds, u64)]) -> Vec<(LayerRangeNeeds, LeastNeeds)> {
        let asked =
            |(part, most): &(LayerRangeNeeds, u64)| Asked { to: part.to, most: *most, least: u64::MAX, found: None };
        let mut asked: Vec<Asked> = parts.iter().map(asked).collect();
        let row = Row::new(self.costs, self.index, (self.from, in_flight));
        let mut looks = MOST_LOOKS;
        let last = self.all.passing.len().checked_sub(1);
        let whole = |last| Range { limits: (0, last), slots: (0, self.all.slots.len() - 1) };
        let mut open: Vec<Range> = last.map(whole).into_iter().collect();
        while let Some(range) = open.pop() {
            let bounds = self.bounds(&row, range, &mut asked, &mut looks);
            if bounds.is_empty() {
                continue;
            }
            match self.halves(range).filter(|_| looks > 0) {
                Some(halves) => open.extend(halves),
                None => {
                    for (index, bound) in bounds {
                        asked[index].least = asked[index].least.min(bound);
                    }
                }
            }
        }
        let known = |asked: Asked| LeastNeeds { least: asked.least, found: asked.found };
        parts.iter().map(|(part, _)| *part).zip(asked.into_iter().map(known)).collect()
    }

    /// The upper and the lower half of the wider of the two intervals; `None` if both are single
    /// values.
    fn halves(&self, range: Range) -> Option<[Range; 2]> {
        let Range { limits, slots } = range;
        let width = |list: &[Limit], (first, last): (usize, usize)| list[last].high - list[first].low;
        let of_slots = width(&self.all.slots, slots) * OFFLOAD_SLOTS;
        let split = |(first, last): (usize, usize)| {
            let middle = first.midpoint(last);
            [(middle + 1, last), (first, middle)]
        };
        if slots.0 < slots.1 && (limits.0 == limits.1 || of_slots >= width(&self.all.passing, limits)) {
            Some(split(slots).map(|slots| Range { slots, ..range }))
        } else if limits.0 < limits.1 {
            Some(split(limits).map(|limits| Range { limits, ..range }))
        } else {
            None
        }
    }

    /// Returns a bound on the host bytes for some limits and slot sizes, for each end that may
    /// still improve; cuts that fit are recorded.
    fn bounds(&mut self, row: &Row<'_, '_>, range: Range, asked: &mut [Asked], looks: &mut u64) -> Vec<(usize, u64)> {
        let (low, high) = (self.all.passing[range.limits.0].low, self.all.passing[range.limits.1].high);
        let (least_slot, slot) = (self.all.slots[range.slots.0].low, self.all.slots[range.slots.1].high);
        let (costs, index) = (self.costs, self.index);
        let kept = self.kept(row, range.limits.1, looks);
        let mut bounds: Vec<(usize, u64)> = Vec::new();
        for (part, asked) in asked.iter_mut().enumerate() {
            let Some(kept) = kept.get(&asked.to) else { continue };
            let total = row.total(asked.to, *kept);
            let need = |passing: u64| total + passing;
            if need(high) <= row.device.usable {
                asked.improve(FoundCut {
                    of_host: if row.device.is_cpu { need(high) } else { 0 },
                    limit: high,
                    slot: 0,
                });
            }
            let bound = match (need(low).saturating_sub(row.device.usable), row.device.is_cpu) {
                (0, true) => Some(need(low)),
                (0, false) => Some(0),
                (excess, _) => least_for(costs, (index, row.in_flight), excess),
            };
            bounds.extend(bound.filter(|bound| asked.wants(*bound)).map(|bound| (part, bound)));
        }
        if bounds.is_empty() || *looks == 0 || self.costs.hosts(self.index).next().is_none() {
            return bounds;
        }
        // A tighter bound by labels with enough bytes on the host.
        let reach = bounds.iter().map(|(index, _)| asked[*index].to).max().unwrap_or(self.from);
        let most = bounds.iter().map(|(index, _)| asked[*index].wanted()).max().unwrap_or(0);
        let Some(room) = row.device.usable.checked_sub(low + OFFLOAD_SLOTS * least_slot) else { return Vec::new() };
        let sizes = (high, slot);
        let (ways, all) = row.ways((sizes, room), reach, (most_ways(reach - self.from), most), looks);
        bounds.retain_mut(|(index, bound)| {
            let asked = &mut asked[*index];
            let shared = row.shared(asked.to);
            let found = row.complete(&ways, sizes, asked.to, |way| way.held() + shared + high <= row.device.usable);
            found.into_iter().for_each(|way| asked.improve(way.found(high)));
            let least = row.complete(&ways, sizes, asked.to, |way| way.needs.weight + shared <= room);
            let least = least.map_or(u64::MAX, |way| way.needs.of_host);
            *bound = if all { least.max(*bound) } else { *bound };
            asked.wants(*bound)
        });
        bounds
    }

    /// The least persistent bytes of the layers up to each end under a limit, without host
    /// offloads. If all stages have a backward, the best cuts are the same for any number of
    /// microbatches in flight.
    fn kept(&mut self, row: &Row<'_, '_>, limit: usize, looks: &mut u64) -> &BTreeMap<usize, u64> {
        let in_flight = row.in_flight_that_matters();
        let (costs, index, from) = (self.costs, self.index, self.from);
        let (limits, ends) = (&self.all.passing, &self.ends);
        self.kept
            .entry((limit, in_flight))
            .or_insert_with(|| Row::new(costs, index, (from, in_flight)).kept(limits[limit].high, ends, looks))
    }
}

impl Asked {
    fn improve(&mut self, found: FoundCut) {
        if self.wants(found.of_host) {
            self.found = Some(found);
            self.least = self.least.min(found.of_host);
        }
    }

    /// The most host bytes that would be an improvement.
    fn wanted(&self) -> u64 {
        self.found.map_or(self.most, |found| self.most.min(found.of_host.saturating_sub(1)))
    }

    fn wants(&self, of_host: u64) -> bool {
        of_host <= self.most && self.found.is_none_or(|found| of_host < found.of_host)
    }
}

/// Returns the least host bytes with which `excess` bytes leave a device; `None` if none can.
pub(crate) fn least_for(costs: &CostSums<'_>, (index, in_flight): (usize, u64), excess: u64) -> Option<u64> {
    costs.hosts(index).next()?;
    let stepped = costs.devices[index].bytes.iter().filter(|bytes| bytes.optimizer.get() > 0);
    let of_layer =
        stepped.map(|bytes| ((bytes.optimizer + bytes.gradients + bytes.parameters).get(), bytes.optimizer.get()));
    // Beside stages that offload more, a stage needs no slot of its own.
    let saved = (in_flight > 0).then_some((1, 1));
    let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
    let cheaper = |one: &(u64, u64), other: &(u64, u64)| product(one.0, other.1).cmp(&product(other.0, one.1));
    let (of_host, freed) = of_layer.chain(saved).min_by(cheaper)?;
    u64::try_from(product(excess, of_host).div_ceil(u128::from(freed))).ok()
}

/// Returns the most labels for a part of `layers` layers.
fn most_ways(layers: usize) -> usize {
    (STEPS / (layers * layers).max(1)).clamp(FEWEST_WAYS, MOST_WAYS)
}

/// The layers from one on, on a device with microbatches in flight.
struct Row<'f, 'a> {
    costs: &'f CostSums<'a>,
    device: &'f DeviceSums,
    index: usize,
    from: usize,
    in_flight: u64,
}

impl<'f, 'a> Row<'f, 'a> {
    fn new(costs: &'f CostSums<'a>, index: usize, (from, in_flight): (usize, u64)) -> Self {
        Self { costs, device: &costs.devices[index], index, from, in_flight }
    }

    /// The additional bytes of the stages up to layer `to` for parameters that the first and the
    /// last layer share.
    fn shared(&self, to: usize) -> u64 {
        let seat = StageSlot { first: self.from == 0, last: to == self.costs.layers, ..StageSlot::alone(self.index) };
        if seat.first && seat.last { self.device.shared_within() } else { self.device.shared(seat) }
    }

    /// The microbatches in flight with which the least persistent bytes are computed.
    fn in_flight_that_matters(&self) -> u64 {
        if self.device.returns(self.from + 1) { 1 } else { self.in_flight }
    }

    /// The persistent bytes of the stages up to layer `to`, given those with
    /// [`Self::in_flight_that_matters`].
    fn total(&self, to: usize, kept: u64) -> u64 {
        let of_each = kept.saturating_sub(self.fixed(to));
        kept + of_each * (self.in_flight - self.in_flight_that_matters()) + self.shared(to)
    }

    /// Their persistent bytes that do not depend on the microbatches in flight.
    fn fixed(&self, to: usize) -> u64 {
        let seat = StageSlot { in_flight: 0, ..StageSlot::alone(self.index) };
        let outer = |edge: bool| if edge { Boundary::End } else { Boundary::Across };
        let around = [outer(self.from == 0), outer(to == self.costs.layers)];
        self.device.parts(seat, (self.from, to), 0, around).0
    }

    /// The least persistent bytes of stages up to each of `ends` under a limit on transient bytes,
    /// without host offloads.
    fn kept(&self, limit: u64, ends: &BTreeSet<usize>, looks: &mut u64) -> BTreeMap<usize, u64> {
        let reach = ends.last().copied().unwrap_or(self.from);
        let mut kept: Vec<Option<u64>> = vec![None; reach + 1 - self.from];
        kept[0] = Some(0);
        let least = |kept: &[Option<u64>], (to, end): (usize, bool), looks: &mut u64| {
            let mut least: Option<u64> = None;
            for from in self.from..to {
                let Some(before) = kept[from - self.from] else { continue };
                self.each((limit, HostOffload::of(0)), ((from, to), end), looks, |piece| {
                    let now = before + piece.stays;
                    least = Some(least.map_or(now, |least| least.min(now)));
                });
            }
            least
        };
        for to in self.from + 1..reach {
            kept[to - self.from] = least(&kept, (to, false), looks);
        }
        ends.iter().filter_map(|to| Some((*to, least(&kept, (*to, true), looks)?))).collect()
    }

    /// Computes the labels of the layers up to each one before `reach`, under a limit on transient
    /// bytes, with slots of `slot` bytes and `room` for persistent bytes. At most `apart` labels
    /// are kept for each, none with more than `most` host bytes. Also returns whether no label of
    /// interest was lost.
    fn ways(
        &self,
        ((limit, slot), room): ((u64, u64), u64),
        reach: usize,
        (apart, most): (usize, u64),
        looks: &mut u64,
    ) -> (Vec<Vec<CutLabel>>, bool) {
        let host_offloads = self.costs.kinds_of_host_offload(self.index);
        let mut all = true;
        let mut ways: Vec<Vec<CutLabel>> = vec![Vec::new(); reach + 1 - self.from];
        ways[0].push(CutLabel::start());
        for to in self.from + 1..reach {
            let (before, here) = ways.split_at_mut(to - self.from);
            for (offset, ways) in before.iter().enumerate().filter(|(_, ways)| !ways.is_empty()) {
                let from = self.from + offset;
                self.each((limit, host_offloads), ((from, to), false), looks, |piece| {
                    for (index, way) in ways.iter().enumerate() {
                        let needs = way.needs_with(&piece, slot);
                        // Later labels need more of the host.
                        if needs.of_host > most {
                            break;
                        }
                        if needs.weight <= room {
                            all &= keep(&mut here[0], apart, needs, || way.with(&piece, needs, (from, index)));
                        }
                    }
                });
                *looks = looks.saturating_sub(ways.len() as u64);
            }
        }
        (ways, all)
    }

    /// Returns the label that adds one stage up to `to`, fits, and needs the fewest host bytes,
    /// then the fewest on the device.
    fn complete(
        &self,
        ways: &[Vec<CutLabel>],
        (limit, slot): (u64, u64),
        to: usize,
        fits: impl Fn(&CutLabel) -> bool,
    ) -> Option<CutLabel> {
        let mut best: Option<CutLabel> = None;
        for from in self.from..to {
            let before = &ways[from - self.from];
            self.each((limit, self.costs.kinds_of_host_offload(self.index)), ((from, to), true), &mut 0, |piece| {
                for (index, way) in before.iter().enumerate() {
                    let needs = way.needs_with(&piece, slot);
                    // Later labels need more of the host.
                    if best.is_some_and(|best| best.needs.of_host < needs.of_host) {
                        break;
                    }
                    if best.is_none_or(|best| needs < best.needs) {
                        let way = way.with(&piece, needs, (from, index));
                        best = if fits(&way) { Some(way) } else { best };
                    }
                }
            });
        }
        best
    }

    /// Visits every stage of layers `from..to` with at most `limit` transient bytes, except
    /// dominated ones.
    ///
    /// Beyond the first, each recomputed layer lessens the persistent bytes here and on the host,
    /// so that only the fewest and the most within the limit matter; if the most is all layers,
    /// nothing else keeps less. On either side are other stages of the device, except before its
    /// first layer, and after its last one where `end` is set. The whole model in one stage is left
    /// out.
    fn each(
        &self,
        (limit, host_offloads): (u64, &[HostOffload]),
        ((from, to), end): ((usize, usize), bool),
        looks: &mut u64,
        mut visit: impl FnMut(Piece),
    ) {
        let (device, layers) = (self.device, (from, to));
        let everything = end && from == 0 && to == self.costs.layers;
        let Some((fewest, most)) = device.recomputes(self.costs.training, from, to) else { return };
        *looks = looks.saturating_sub(1);
        let around = self.around(layers, end);
        let seat = |host_offload: HostOffload| StageSlot {
            in_flight: self.in_flight,
            host_offload: Some(host_offload),
            ..StageSlot::alone(self.index)
        };
        let parts =
            |host_offload: HostOffload, recomputed: usize| device.parts(seat(host_offload), layers, recomputed, around);
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
            for host_offload in host_offloads.iter().filter(useful) {
                let of_host = device.need_of_host(seat(*host_offload), *host_offload, layers, recomputed);
                let choice = CutStage { to, host_offload: *host_offload, recomputed };
                let moving = device.on_the_way(seat(*host_offload), layers, recomputed);
                visit(Piece { choice, stays: parts(*host_offload, recomputed).0, moving, of_host });
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
