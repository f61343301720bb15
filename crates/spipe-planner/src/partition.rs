//! Divisions of a case that meet lower bounds for a given iteration, by dynamic programming; and the least recompute of every
//! range of layers, which it needs.

use crate::{
    case::{Case, Division},
    deadline::Deadline,
    divide::{Divide, Divided, Dues, Grain, any},
    figures::{Figures, Help, Seat},
    sequence::{Coverage, classes},
};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Finds divisions, with the least recompute of every range of layers in every seat worked out before.
pub(crate) struct Partitioner<'f, 'a> {
    figures: &'f Figures<'a>,
    /// By device, all that are as good as it but for the links that their ways share.
    classes: Vec<Vec<usize>>,
    /// By seat on the first of all devices that are alike.
    least: BTreeMap<Seat, Vec<u16>>,
    /// What is due beside that.
    pub dues: Option<Dues>,
}

impl<'f, 'a> Partitioner<'f, 'a> {
    /// For `cases` and nothing else.
    pub fn new(figures: &'f Figures<'a>, cases: &[Case]) -> Self {
        let first = classes(figures, Coverage::UpToLinks);
        let class = |device: usize| (0..first.len()).filter(|other| first[*other] == first[device]).collect();
        let mut this =
            Self { figures, classes: (0..first.len()).map(class).collect(), least: BTreeMap::new(), dues: None };
        this.extend(cases);
        this
    }

    /// For those as well.
    pub fn extend(&mut self, cases: &[Case]) {
        let decided = |seat: &Seat| {
            let helps = match seat.help {
                Some(help) => vec![help],
                None => self.figures.helps(seat.device).to_vec(),
            };
            let seat = *seat;
            helps.into_iter().map(move |help| Seat { help: Some(help), ..seat })
        };
        let seats: BTreeSet<Seat> =
            cases.iter().flat_map(|case| &case.seats).flat_map(decided).map(|seat| self.key(seat)).collect();
        let missing: Vec<Seat> = seats.into_iter().filter(|seat| !self.least.contains_key(seat)).collect();
        let table = |seat: Seat| (seat, least_recompute(self.figures, seat));
        let tables: Vec<(Seat, Vec<u16>)> = missing.into_par_iter().map(table).collect();
        self.least.extend(tables);
    }

    /// All devices that are as good as `device` but for the links that their ways share, itself among them.
    pub fn class(&self, device: usize) -> &[usize] {
        &self.classes[device]
    }

    /// Whether a stage is at an end of the pipeline follows from its layers, and what it needs of its device depends on no host, unless
    /// pins say so.
    fn key(&self, seat: Seat) -> Seat {
        let indifferent = self.figures.devices[seat.device].is_indifferent();
        let help = seat.help.map(|help| if indifferent { help.nearest() } else { help });
        Seat { first: false, last: false, device: self.figures.models[seat.device], help, ..seat }
    }

    fn width(&self) -> usize {
        self.figures.layers + 1
    }

    /// The least recompute with which layers `from..to` fit on stage `stage` of `case`.
    pub fn least(&self, case: &Case, stage: usize, from: usize, to: usize) -> Option<usize> {
        some(self.least.get(&self.key(case.seats[stage]))?[from * self.width() + to])
    }

    /// For each case, with a division that meets all bounds for an iteration of `limit` ms, the case in which every undecided stage has
    /// the help with which it does so; with one of infinity, any division whose stages fit their devices. None where the deadline
    /// came before.
    pub fn divide(
        &self,
        cases: &[&Case],
        (limit, grain): (f64, Grain),
        deadline: Option<&Deadline<'_>>,
    ) -> Vec<Option<Option<Divided>>> {
        if limit.is_infinite() {
            let fit = |(index, case): (usize, &&Case)| {
                deadline.is_none_or(|deadline| deadline.allows(index)).then(|| any(self.figures, self, case))
            };
            return cases.par_iter().enumerate().map(fit).collect();
        }
        Divide::new(self.figures, self, (limit, grain)).all(cases, deadline)
    }

    /// The same for one case.
    pub fn decided(&self, case: &Case, limit: f64) -> Option<Divided> {
        self.divide(&[case], (limit, Grain::ALL[1]), None).into_iter().flatten().flatten().next()
    }

    /// A division of a case that meets them.
    pub fn division(&self, case: &Case, limit: f64) -> Option<Division> {
        self.decided(case, limit).map(|divided| divided.division)
    }

    /// What may be chosen for a stage, each with the least recompute of every range of layers.
    pub fn choices(&self, seat: Seat) -> Option<Vec<(Help, &[u16])>> {
        let helps = match seat.help {
            Some(help) => vec![help],
            None => self.figures.helps(seat.device).to_vec(),
        };
        let table = |help: Help| Some((help, self.least.get(&self.key(Seat { help: Some(help), ..seat }))?.as_slice()));
        helps.into_iter().map(table).collect()
    }

    /// The division that the starts of the stages, by where they end, lead to, each with its least recompute.
    pub fn least_of(&self, case: &Case, from_of: &[Vec<usize>]) -> Division {
        let mut division = Division { ends: vec![0; case.stages()], recomputed: vec![0; case.stages()] };
        let mut end = self.figures.layers;
        for stage in (0..case.stages()).rev() {
            let from = from_of[stage][end];
            division.ends[stage] = end;
            division.recomputed[stage] = self.least(case, stage, from, end).unwrap_or(0);
            end = from;
        }
        division
    }
}

/// Stands for a range that does not fit.
const NONE: u16 = u16::MAX;

pub(crate) fn some(least: u16) -> Option<usize> {
    (least != NONE).then_some(usize::from(least))
}

/// The least recompute of layers `from..to` at `from × (layers + 1) + to`.
fn least_recompute(figures: &Figures<'_>, seat: Seat) -> Vec<u16> {
    let (width, device) = (figures.layers + 1, &figures.devices[seat.device]);
    let mut table = vec![NONE; width * width];
    for from in 0..figures.layers {
        let mut near = 0;
        for to in from + 1..=figures.layers {
            let allowed = seat.help.is_none_or(|help| device.allows(help, from, to));
            if !allowed || !device.able(from, to) || device.state(from, to, seat.help) > device.usable {
                break;
            }
            let seat = Seat { first: from == 0, last: to == figures.layers, ..seat };
            let least = device.least_recompute(figures.training, seat, (from, to), near);
            near = least.unwrap_or(near);
            table[from * width + to] = least.and_then(|least| u16::try_from(least).ok()).unwrap_or(NONE);
        }
    }
    table
}
