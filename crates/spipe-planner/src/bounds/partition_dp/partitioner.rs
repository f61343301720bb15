//! Divisions of a case that meet lower bounds for a given iteration, by dynamic programming; and the least recompute of every
//! range of layers, which it needs.

use crate::{
    bounds::partition_dp::{Divide, Divided, Grain, any, memory_pressure::Dues},
    costs::{CostSums, HostOffload, StageSlot},
    problem::Deadline,
    space::{
        device_orders::{Coverage, classes},
        subproblem::{Partition, Subproblem},
    },
};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Finds divisions, with the least recompute of every range of layers in every seat worked out before.
pub(crate) struct Partitioner<'f, 'a> {
    costs: &'f CostSums<'a>,
    /// By device, all that are as good as it but for the links that their ways share.
    classes: Vec<Vec<usize>>,
    /// By seat on the first of all devices that are alike.
    least: BTreeMap<StageSlot, Vec<u16>>,
    /// What is due beside that.
    pub dues: Option<Dues>,
}

impl<'f, 'a> Partitioner<'f, 'a> {
    /// For `cases` and nothing else.
    pub fn new(costs: &'f CostSums<'a>, cases: &[Subproblem]) -> Self {
        let first = classes(costs, Coverage::UpToLinks);
        let class = |device: usize| (0..first.len()).filter(|other| first[*other] == first[device]).collect();
        let mut this =
            Self { costs, classes: (0..first.len()).map(class).collect(), least: BTreeMap::new(), dues: None };
        this.extend(cases);
        this
    }

    /// For those as well.
    pub fn extend(&mut self, cases: &[Subproblem]) {
        let decided = |seat: &StageSlot| {
            let host_offloads = match seat.host_offload {
                Some(host_offload) => vec![host_offload],
                None => self.costs.host_offloads(seat.device).to_vec(),
            };
            let seat = *seat;
            host_offloads.into_iter().map(move |host_offload| StageSlot { host_offload: Some(host_offload), ..seat })
        };
        let seats: BTreeSet<StageSlot> =
            cases.iter().flat_map(|case| &case.seats).flat_map(decided).map(|seat| self.key(seat)).collect();
        let missing: Vec<StageSlot> = seats.into_iter().filter(|seat| !self.least.contains_key(seat)).collect();
        let table = |seat: StageSlot| (seat, least_recompute(self.costs, seat));
        let tables: Vec<(StageSlot, Vec<u16>)> = missing.into_par_iter().map(table).collect();
        self.least.extend(tables);
    }

    /// All devices that are as good as `device` but for the links that their ways share, itself among them.
    pub fn class(&self, device: usize) -> &[usize] {
        &self.classes[device]
    }

    /// Whether a stage is at an end of the pipeline follows from its layers, and what it needs of its device depends on no host, unless
    /// pins say so.
    fn key(&self, seat: StageSlot) -> StageSlot {
        let indifferent = self.costs.devices[seat.device].is_indifferent();
        let host_offload =
            seat.host_offload.map(|host_offload| if indifferent { host_offload.nearest() } else { host_offload });
        StageSlot { first: false, last: false, device: self.costs.models[seat.device], host_offload, ..seat }
    }

    fn width(&self) -> usize {
        self.costs.layers + 1
    }

    /// The least recompute with which layers `from..to` fit on stage `stage` of `case`.
    pub fn least(&self, case: &Subproblem, stage: usize, from: usize, to: usize) -> Option<usize> {
        some(self.least.get(&self.key(case.seats[stage]))?[from * self.width() + to])
    }

    /// For each case, with a division that meets all bounds for an iteration of `limit` ms, the case in which every undecided stage has
    /// the help with which it does so; with one of infinity, any division whose stages fit their devices. None where the deadline
    /// came before.
    pub fn divide(
        &self,
        cases: &[&Subproblem],
        (limit, grain): (f64, Grain),
        deadline: Option<&Deadline<'_>>,
    ) -> Vec<Option<Option<Divided>>> {
        if limit.is_infinite() {
            let fit = |(index, case): (usize, &&Subproblem)| {
                deadline.is_none_or(|deadline| deadline.allows(index)).then(|| any(self.costs, self, case))
            };
            return cases.par_iter().enumerate().map(fit).collect();
        }
        Divide::new(self.costs, self, (limit, grain)).all(cases, deadline)
    }

    /// The same for one case.
    pub fn decided(&self, case: &Subproblem, limit: f64) -> Option<Divided> {
        self.divide(&[case], (limit, Grain::ALL[1]), None).into_iter().flatten().flatten().next()
    }

    /// A division of a case that meets them.
    pub fn partition(&self, case: &Subproblem, limit: f64) -> Option<Partition> {
        self.decided(case, limit).map(|divided| divided.partition)
    }

    /// What may be chosen for a stage, each with the least recompute of every range of layers.
    pub fn choices(&self, seat: StageSlot) -> Option<Vec<(HostOffload, &[u16])>> {
        let host_offloads = match seat.host_offload {
            Some(host_offload) => vec![host_offload],
            None => self.costs.host_offloads(seat.device).to_vec(),
        };
        let table = |host_offload: HostOffload| {
            Some((
                host_offload,
                self.least.get(&self.key(StageSlot { host_offload: Some(host_offload), ..seat }))?.as_slice(),
            ))
        };
        host_offloads.into_iter().map(table).collect()
    }

    /// The division that the starts of the stages, by where they end, lead to, each with its least recompute.
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

/// Stands for a range that does not fit.
const NONE: u16 = u16::MAX;

pub(crate) fn some(least: u16) -> Option<usize> {
    (least != NONE).then_some(usize::from(least))
}

/// The least recompute of layers `from..to` at `from × (layers + 1) + to`.
fn least_recompute(costs: &CostSums<'_>, seat: StageSlot) -> Vec<u16> {
    let (width, device) = (costs.layers + 1, &costs.devices[seat.device]);
    let mut table = vec![NONE; width * width];
    for from in 0..costs.layers {
        let mut near = 0;
        for to in from + 1..=costs.layers {
            let allowed = seat.host_offload.is_none_or(|host_offload| device.allows(host_offload, from, to));
            if !allowed || !device.able(from, to) || device.state(from, to, seat.host_offload) > device.usable {
                break;
            }
            let seat = StageSlot { first: from == 0, last: to == costs.layers, ..seat };
            let least = device.least_recompute(costs.training, seat, (from, to), near);
            near = least.unwrap_or(near);
            table[from * width + to] = least.and_then(|least| u16::try_from(least).ok()).unwrap_or(NONE);
        }
    }
    table
}
