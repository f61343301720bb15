//! The best division of one case under two families of lower bounds, by dynamic programming.
//!
//! For m microbatches, K_i in flight on stage i, and per stage F, R (recompute) and B, with transfers a and g over the
//! boundaries, every division has, in training,
//!
//! ```text
//! own         T ≥ m (F_i + R_i + B_i) + O_i
//! chain       T ≥ Σ_{j<i} (F_j + B_j + a_j + g_j) + m (F_i + R_i + B_i) + O_0
//! turnaround  T ≥ S + (m − K_i) F_i + (m − 1)(R_i + B_i)       S = Σ_j (F_j + B_j) + Σ_j (a_j + g_j) + O_0
//!             T ≥ S + (m − 1) F_i + (m − K_i)(R_i + B_i)
//! ```
//!
//! and in inference T ≥ m F_i. The ILP has the same families, as [`crate::ilp::families`], where each is proven. Whether
//! some division meets them for a given T takes O(L² p): going through the stages, the least chain before stage i that
//! ends at layer e is all that matters of the stages before; and S ≤ T − turnaround is found by raising a floor under S
//! until it holds.

use crate::{
    case::{Case, Division},
    figures::{Figures, Help, Seat, StageTimes},
};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// How often the floor under S is raised before the case counts as possible.
const ROUNDS: usize = 6;

/// Keeps rounding from declaring a bound unmet that is met exactly.
const TOLERANCE: f64 = 1e-9;

/// Finds divisions, with the least recompute of every range of layers in every seat worked out before.
pub(crate) struct Partitioner<'f, 'a> {
    figures: &'f Figures<'a>,
    /// By seat on the first of all devices that are alike.
    least: BTreeMap<Seat, Vec<u16>>,
}

impl<'f, 'a> Partitioner<'f, 'a> {
    /// For `cases` and nothing else.
    pub fn new(figures: &'f Figures<'a>, cases: &[Case]) -> Self {
        let mut this = Self { figures, least: BTreeMap::new() };
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

    /// Whether a stage is at an end of the pipeline follows from its layers.
    fn key(&self, seat: Seat) -> Seat {
        Seat { first: false, last: false, device: self.figures.models[seat.device], ..seat }
    }

    fn width(&self) -> usize {
        self.figures.layers + 1
    }

    /// The least recompute with which layers `from..to` fit on stage `stage` of `case`.
    pub fn least(&self, case: &Case, stage: usize, from: usize, to: usize) -> Option<usize> {
        some(self.least.get(&self.key(case.seats[stage]))?[from * self.width() + to])
    }

    /// A division that meets all bounds for an iteration of `limit` ms, if there is one; with one of infinity, any division
    /// that fits in memory.
    pub fn division(&self, case: &Case, limit: f64) -> Option<Division> {
        self.decided(case, limit).map(|(division, _)| division)
    }

    /// The same with the case in which every undecided stage has the help with which it meets them.
    pub fn decided(&self, case: &Case, limit: f64) -> Option<(Division, Case)> {
        let mut floor = 0.0;
        for _ in 0..ROUNDS {
            let (total, found) = self.least_chain(case, limit, floor)?;
            let alone = !self.figures.training || case.frozen > 0;
            if alone || total <= floor * (1.0 + TOLERANCE) || limit.is_infinite() {
                return Some(found);
            }
            floor = total;
        }
        self.least_chain(case, limit, floor).map(|(_, found)| found)
    }

    /// The division of least S among those whose stages meet the bounds for `limit` if S were `floor`.
    fn least_chain(&self, case: &Case, limit: f64, floor: f64) -> Option<(f64, (Division, Case))> {
        let (layers, stages) = (self.figures.layers, case.stages());
        if stages > layers {
            return None;
        }
        let judge = Judge { figures: self.figures, case, limit: limit * (1.0 + TOLERANCE), floor };
        let mut chain = vec![f64::INFINITY; self.width()];
        chain[0] = 0.0;
        let mut ways = vec![vec![Way::default(); self.width()]; stages];
        for (stage, ways) in ways.iter_mut().enumerate() {
            let mut next = vec![f64::INFINITY; self.width()];
            let farthest = layers - (stages - 1 - stage);
            let nearest = if stage + 1 == stages { layers } else { stage + 1 };
            let device = case.device(self.figures, stage);
            let choices = self.choices(case, stage)?;
            for from in (stage..farthest).filter(|from| chain[*from].is_finite()) {
                for to in nearest.max(from + 1)..=farthest {
                    let fastest = device.stage_times((from, to), 0, case.seats[stage].help);
                    let holds = device.state(from, to, case.seats[stage].help) <= device.usable;
                    if !device.able(from, to) || !holds || judge.too_slow(stage, chain[from], &fastest) {
                        break;
                    }
                    for (help, table) in &choices {
                        let Some(recomputed) = some(table[from * self.width() + to]) else { continue };
                        let times = device.stage_times((from, to), recomputed, Some(*help));
                        let moves = device.link_time(*help, self.figures.microbatches, (from, to), recomputed);
                        if moves > judge.limit || judge.too_slow(stage, chain[from], &times) {
                            continue;
                        }
                        let total = judge.after(stage, to, chain[from], &times);
                        if total < next[to] {
                            next[to] = total;
                            ways[to] = Way { from, help: *help, recomputed };
                        }
                    }
                }
            }
            chain = next;
        }
        let total = chain[layers];
        total.is_finite().then(|| (total, self.trace(case, &ways)))
    }

    /// What may be chosen for a stage, each with the least recompute of every range of layers.
    fn choices(&self, case: &Case, stage: usize) -> Option<Vec<(Help, &Vec<u16>)>> {
        let seat = case.seats[stage];
        let helps = match seat.help {
            Some(help) => vec![help],
            None => self.figures.helps(seat.device).to_vec(),
        };
        let table = |help: Help| Some((help, self.least.get(&self.key(Seat { help: Some(help), ..seat }))?));
        helps.into_iter().map(table).collect()
    }

    /// The division, and the decided case, that the ways to the last layer lead to.
    fn trace(&self, case: &Case, ways: &[Vec<Way>]) -> (Division, Case) {
        let mut division = Division { ends: vec![0; case.stages()], recomputed: vec![0; case.stages()] };
        let mut decided = case.clone();
        let mut end = self.figures.layers;
        for stage in (0..case.stages()).rev() {
            let way = ways[stage][end];
            (division.ends[stage], division.recomputed[stage]) = (end, way.recomputed);
            decided.seats[stage].help = Some(way.help);
            end = way.from;
        }
        (division, decided)
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

/// How the best stages before a layer end: where the last of them begins, and what is chosen for it.
#[derive(Clone, Copy, Default)]
struct Way {
    from: usize,
    help: Help,
    recomputed: usize,
}

/// Whether a stage meets the bounds.
struct Judge<'f, 'a> {
    figures: &'f Figures<'a>,
    case: &'f Case,
    limit: f64,
    floor: f64,
}

impl Judge<'_, '_> {
    fn too_slow(&self, stage: usize, chain: f64, times: &StageTimes) -> bool {
        let m = self.figures.microbatches as f64;
        if !self.figures.training {
            return m * times.forward > self.limit;
        }
        let rest = m - self.case.seats[stage].in_flight as f64;
        let (forward, backward) = (times.forward, times.recompute + times.backward);
        let step = if stage == 0 { times.optimizer } else { 0.0 };
        let own = m * times.busy() + times.optimizer;
        if self.case.frozen > 0 {
            return own > self.limit;
        }
        let chained = chain + m * times.busy() + step;
        let turn = (rest * forward + (m - 1.0) * backward).max((m - 1.0) * forward + rest * backward);
        own.max(chained).max(self.floor + turn) > self.limit
    }

    fn after(&self, stage: usize, to: usize, chain: f64, times: &StageTimes) -> f64 {
        let step = if stage == 0 { times.optimizer } else { 0.0 };
        let (activation, gradient) =
            if stage + 1 == self.case.stages() { (0.0, 0.0) } else { self.case.transfers(self.figures, stage, to) };
        chain + times.forward + times.backward + step + activation + gradient
    }
}

/// Stands for a range that does not fit.
const NONE: u16 = u16::MAX;

fn some(least: u16) -> Option<usize> {
    (least != NONE).then_some(usize::from(least))
}

/// The least recompute of layers `from..to` at `from × (layers + 1) + to`.
fn least_recompute(figures: &Figures<'_>, seat: Seat) -> Vec<u16> {
    let (width, device) = (figures.layers + 1, &figures.devices[seat.device]);
    let mut table = vec![NONE; width * width];
    for from in 0..figures.layers {
        for to in from + 1..=figures.layers {
            if !device.able(from, to) || device.state(from, to, seat.help) > device.usable {
                break;
            }
            let seat = Seat { first: from == 0, last: to == figures.layers, ..seat };
            let least = device.least_recompute(figures.training, seat, from, to);
            table[from * width + to] = least.and_then(|least| u16::try_from(least).ok()).unwrap_or(NONE);
        }
    }
    table
}
