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
    figures::{Figures, Seat, StageTimes},
};
use std::collections::BTreeMap;

/// How often the floor under S is raised before the case counts as possible.
const ROUNDS: usize = 6;

/// Keeps rounding from declaring a bound unmet that is met exactly.
const TOLERANCE: f64 = 1e-9;

/// Finds divisions, with the least recompute of every range of layers in every seat worked out before.
pub(crate) struct Partitioner<'f, 'a> {
    figures: &'f Figures<'a>,
    least: BTreeMap<Seat, Vec<Option<usize>>>,
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
        for seat in cases.iter().flat_map(|case| &case.seats) {
            self.least.entry(key(*seat)).or_insert_with(|| least_recompute(self.figures, *seat));
        }
    }

    fn width(&self) -> usize {
        self.figures.layers + 1
    }

    /// The least recompute with which layers `from..to` fit on stage `stage` of `case`.
    pub fn least(&self, case: &Case, stage: usize, from: usize, to: usize) -> Option<usize> {
        self.least.get(&key(case.seats[stage]))?[from * self.width() + to]
    }

    /// A division that meets all bounds for an iteration of `limit` ms, if there is one; with one of infinity, any division
    /// that fits in memory.
    pub fn division(&self, case: &Case, limit: f64) -> Option<Division> {
        let mut floor = 0.0;
        for _ in 0..ROUNDS {
            let (total, division) = self.least_chain(case, limit, floor)?;
            if !self.figures.training || total <= floor * (1.0 + TOLERANCE) || limit.is_infinite() {
                return Some(division);
            }
            floor = total;
        }
        self.least_chain(case, limit, floor).map(|(_, division)| division)
    }

    /// The division of least S among those whose stages meet the bounds for `limit` if S were `floor`.
    fn least_chain(&self, case: &Case, limit: f64, floor: f64) -> Option<(f64, Division)> {
        let (layers, stages) = (self.figures.layers, case.stages());
        if stages > layers {
            return None;
        }
        let judge = Judge { figures: self.figures, case, limit: limit * (1.0 + TOLERANCE), floor };
        let mut chain = vec![f64::INFINITY; self.width()];
        chain[0] = 0.0;
        let mut from_of = vec![vec![0; self.width()]; stages];
        for (stage, starts) in from_of.iter_mut().enumerate() {
            let mut next = vec![f64::INFINITY; self.width()];
            let farthest = layers - (stages - 1 - stage);
            let nearest = if stage + 1 == stages { layers } else { stage + 1 };
            let device = case.device(self.figures, stage);
            let table = self.least.get(&key(case.seats[stage]))?;
            for from in (stage..farthest).filter(|from| chain[*from].is_finite()) {
                for to in nearest.max(from + 1)..=farthest {
                    let Some(recomputed) = table[from * self.width() + to] else {
                        if device.able(from, to) && device.state(from, to, case.seats[stage].help) <= device.usable {
                            continue;
                        }
                        break;
                    };
                    let times = device.stage_times((from, to), recomputed, case.seats[stage].help);
                    if judge.too_slow(stage, chain[from], &times) {
                        if judge.too_slow(stage, chain[from], &StageTimes { recompute: 0.0, ..times }) {
                            break;
                        }
                        continue;
                    }
                    let total = judge.after(stage, to, chain[from], &times);
                    if total < next[to] {
                        next[to] = total;
                        starts[to] = from;
                    }
                }
            }
            chain = next;
        }
        let total = chain[layers];
        total.is_finite().then(|| (total, self.trace(case, &from_of)))
    }

    /// The division that the starts of the stages, by where they end, lead to.
    pub fn trace(&self, case: &Case, from_of: &[Vec<usize>]) -> Division {
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

/// Whether a stage is at an end of the pipeline follows from its layers.
fn key(seat: Seat) -> Seat {
    Seat { first: false, last: false, ..seat }
}

/// The least recompute of layers `from..to` at `from × (layers + 1) + to`.
fn least_recompute(figures: &Figures<'_>, seat: Seat) -> Vec<Option<usize>> {
    let (width, device) = (figures.layers + 1, &figures.devices[seat.device]);
    let mut table = vec![None; width * width];
    for from in 0..figures.layers {
        for to in from + 1..=figures.layers {
            if !device.able(from, to) || device.state(from, to, seat.help) > device.usable {
                break;
            }
            let seat = Seat { first: from == 0, last: to == figures.layers, ..seat };
            table[from * width + to] = device.least_recompute(figures.training, seat, from, to);
        }
    }
    table
}
