//! Partitions of a subproblem that meet lower bounds for a given iteration, with the tables of
//! least recompute that the dynamic program needs.

use crate::{
    bounds::partition_dp::{LabelLimits, PartitionSearch},
    costs::{CostSums, HostOffload, StageSlot},
    problem::Deadline,
    space::{
        device_orders::{Coverage, classes},
        subproblem::{DecidedPartition, Partition, Subproblem},
    },
};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Finds partitions, with the least recompute of every range of layers in every slot precomputed.
pub(crate) struct Partitioner<'f, 'a> {
    costs: &'f CostSums<'a>,
    /// By device, all devices that are interchangeable with it except for links shared by their
    /// paths.
    classes: Vec<Vec<usize>>,
    /// Tables of least recompute, by slot on the first of all equal devices.
    least: BTreeMap<StageSlot, Vec<u16>>,
}

impl<'f, 'a> Partitioner<'f, 'a> {
    /// Creates the tables of `cases`.
    pub fn new(costs: &'f CostSums<'a>, cases: &[Subproblem]) -> Self {
        let first = classes(costs, Coverage::UpToLinks);
        let class = |device: usize| (0..first.len()).filter(|other| first[*other] == first[device]).collect();
        let mut this = Self { costs, classes: (0..first.len()).map(class).collect(), least: BTreeMap::new() };
        this.extend(cases);
        this
    }

    /// Adds the tables of `cases`.
    pub fn extend(&mut self, cases: &[Subproblem]) {
        let stage_slots = cases.iter().flat_map(|case| &case.stage_slots);
        let decided = stage_slots.flat_map(|stage_slot| self.decided(*stage_slot));
        let keys: BTreeSet<StageSlot> = decided.map(|(_, stage_slot)| self.key(stage_slot)).collect();
        let missing: Vec<StageSlot> = keys.into_iter().filter(|key| !self.least.contains_key(key)).collect();
        let table = |stage_slot: StageSlot| (stage_slot, least_recompute(self.costs, stage_slot));
        let tables: Vec<(StageSlot, Vec<u16>)> = missing.into_par_iter().map(table).collect();
        self.least.extend(tables);
    }

    /// Returns the devices that are interchangeable with `device` except for links shared by their
    /// paths, including itself.
    pub fn class(&self, device: usize) -> &[usize] {
        &self.classes[device]
    }

    /// Returns the key of a table. The layers say whether a stage is at an end of the pipeline, and
    /// memory on the device depends on the host only through pins.
    fn key(&self, stage_slot: StageSlot) -> StageSlot {
        let indifferent = self.costs.devices[stage_slot.device].is_indifferent();
        let host_offload =
            stage_slot.host_offload.map(|host_offload| if indifferent { host_offload.nearest() } else { host_offload });
        let device = self.costs.models[stage_slot.device];
        StageSlot { first: false, last: false, device, host_offload, ..stage_slot }
    }

    fn width(&self) -> usize {
        self.costs.layers + 1
    }

    /// Returns the least recompute with which layers `from..to` fit on stage `stage` of `case`.
    pub fn least(&self, case: &Subproblem, stage: usize, from: usize, to: usize) -> Option<usize> {
        some(self.least.get(&self.key(case.stage_slots[stage]))?[from * self.width() + to])
    }

    /// Returns, for each subproblem, a partition that meets all bounds for an iteration of `limit`
    /// ms, with its host offloads decided. If `limit` is infinite, it is any partition whose stages
    /// fit their devices. The inner option is none if there is no such partition, the outer one if
    /// the deadline expired.
    pub fn divide(
        &self,
        cases: &[&Subproblem],
        (limit, grain): (f64, LabelLimits),
        deadline: Option<&Deadline<'_>>,
    ) -> Vec<Option<Option<DecidedPartition>>> {
        if limit.is_infinite() {
            let fit = |(index, case): (usize, &&Subproblem)| {
                deadline.is_none_or(|deadline| deadline.allows(index)).then(|| any(self.costs, self, case))
            };
            return cases.par_iter().enumerate().map(fit).collect();
        }
        PartitionSearch::new(self.costs, self, (limit, grain)).all(cases, deadline)
    }

    /// Returns the host offloads of a slot, each with the least recompute of every range of layers.
    pub fn choices(&self, stage_slot: StageSlot) -> Option<Vec<(HostOffload, &[u16])>> {
        let table = |(host_offload, decided)| Some((host_offload, self.least.get(&self.key(decided))?.as_slice()));
        self.decided(stage_slot).map(table).collect()
    }

    /// Returns the host offloads that a slot leaves open, each with the slot that has it.
    fn decided(&self, stage_slot: StageSlot) -> impl Iterator<Item = (HostOffload, StageSlot)> {
        let all = self.costs.host_offloads(stage_slot.device).iter().copied();
        let open = all.filter(move |_| stage_slot.host_offload.is_none()).chain(stage_slot.host_offload);
        open.map(move |host_offload| (host_offload, StageSlot { host_offload: Some(host_offload), ..stage_slot }))
    }

    /// Returns the partition given by the start of each stage for each end, with its least
    /// recompute.
    pub fn least_of(&self, case: &Subproblem, from_of: &[Vec<usize>]) -> Partition {
        let mut partition = Partition { ends: vec![0; case.stages()], recomputed: vec![0; case.stages()] };
        let mut end = self.costs.layers;
        for stage in (0..case.stages()).rev() {
            let from = from_of[stage][end];
            partition.ends[stage] = end;
            partition.recomputed[stage] = self.least(case, stage, from, end).unwrap_or(0);
            end = from;
        }
        partition
    }
}

/// Returns a partition whose stages fit their devices, each considered alone.
fn any(costs: &CostSums<'_>, partitioner: &Partitioner<'_, '_>, case: &Subproblem) -> Option<DecidedPartition> {
    let (layers, stages) = (costs.layers, case.stages());
    let mut next: Vec<Vec<Option<(usize, HostOffload, usize)>>> = vec![vec![None; layers + 1]; stages];
    for stage in (0..stages.min(layers)).rev() {
        let choices = partitioner.choices(case.stage_slots[stage])?;
        let farthest = layers.checked_sub(stages - 1 - stage)?;
        for from in if stage == 0 { 0..1 } else { stage..layers } {
            let nearest = if stage + 1 == stages { layers } else { from + 1 };
            let goes_on = |to: &usize| stage + 1 == stages || next[stage + 1][*to].is_some();
            next[stage][from] = (nearest..=farthest).rev().filter(goes_on).find_map(|to| {
                let fits = |(host_offload, table): &(HostOffload, &[u16])| {
                    Some((to, *host_offload, some(table[from * (layers + 1) + to])?))
                };
                choices.iter().find_map(fits)
            });
        }
    }
    let (mut decided, mut from) = (DecidedPartition::empty(case.clone()), 0);
    for next in next {
        let (to, host_offload, recomputed) = next[from]?;
        decided.push(to, recomputed, host_offload);
        from = to;
    }
    Some(decided)
}

/// Marks a range that does not fit.
const NONE: u16 = u16::MAX;

pub(crate) fn some(least: u16) -> Option<usize> {
    (least != NONE).then_some(usize::from(least))
}

/// Returns the least recompute of layers `from..to`, at index `from × (layers + 1) + to`.
fn least_recompute(costs: &CostSums<'_>, stage_slot: StageSlot) -> Vec<u16> {
    let (width, device) = (costs.layers + 1, &costs.devices[stage_slot.device]);
    let mut table = vec![NONE; width * width];
    for from in 0..costs.layers {
        let mut near = 0;
        for to in from + 1..=costs.layers {
            let allowed = stage_slot.host_offload.is_none_or(|host_offload| device.allows(host_offload, from, to));
            if !allowed || !device.able(from, to) || device.state(from, to, stage_slot.host_offload) > device.usable {
                break;
            }
            let stage_slot = StageSlot { first: from == 0, last: to == costs.layers, ..stage_slot };
            let least = device.least_recompute(costs.training, stage_slot, (from, to), near);
            near = least.unwrap_or(near);
            table[from * width + to] = least.and_then(|least| u16::try_from(least).ok()).unwrap_or(NONE);
        }
    }
    table
}
