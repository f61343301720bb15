//! The stability of ranks over the ranges of prices.

use super::{order::front_of, solved::Solved};
use crate::{Figures, Job, Objective, run::better};
use spipe_market::Range;
use std::collections::{BTreeMap, BTreeSet};

/// The draws of prices by which the stability of ranks is counted.
const DRAWS: usize = 200;

/// The seed of the draws.
const SEED: u64 = 1;

/// How often each machine is first, and on the front, over draws of prices.
pub(super) struct Stability {
    first: Vec<usize>,
    front: Vec<usize>,
}

impl Stability {
    /// Draws prices by a Latin hypercube: each part has one position in its range per draw, the same in all
    /// machines. Rates do not depend on prices, so nothing is planned again.
    pub fn of(job: &Job, solved: &[&Solved<'_>], objective: Objective) -> Self {
        let mut found = Self { first: vec![0; solved.len()], front: vec![0; solved.len()] };
        let items =
            |one: &&Solved<'_>| one.candidate.price.items.iter().map(|(item, _)| item.name.clone()).collect::<Vec<_>>();
        let names: BTreeSet<String> = solved.iter().flat_map(items).collect();
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut draws: Vec<BTreeMap<String, f64>> = vec![BTreeMap::new(); DRAWS];
        for name in names {
            let mut strata: Vec<usize> = (0..DRAWS).collect();
            random.shuffle(&mut strata);
            for (positions, stratum) in draws.iter_mut().zip(strata) {
                positions.insert(name.clone(), (stratum as f64 + random.f64()) / DRAWS as f64);
            }
        }
        for positions in &draws {
            let figures: Vec<Figures> = solved
                .iter()
                .map(|one| {
                    let price = one.candidate.price.items.iter();
                    let price: f64 = price.map(|(item, range)| range.at(positions[&item.name])).sum();
                    let hour = job
                        .own
                        .hour(Range::exactly(price * (1.0 + job.tax)), spipe_market::Watts::new(one.figures.watts));
                    Figures { cost: hour * one.figures.hours, ..one.figures }
                })
                .collect();
            let keys: Vec<(bool, f64)> = figures.iter().map(|figures| figures.key(job, objective)).collect();
            if let Some(first) =
                (0..keys.len()).reduce(|best, other| if better(keys[other], keys[best]) { other } else { best })
            {
                found.first[first] += 1;
            }
            let points: Vec<(f64, f64)> = figures.iter().map(|figures| (figures.hours, figures.cost.typical)).collect();
            front_of(&points).into_iter().for_each(|index| found.front[index] += 1);
        }
        found
    }

    /// The shares of draws in which a machine is first, and on the front.
    pub fn shares(&self, index: usize) -> (f64, f64) {
        (self.first[index] as f64 / DRAWS as f64, self.front[index] as f64 / DRAWS as f64)
    }
}
