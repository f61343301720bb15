//! Closer bounds: before a machine is planned, its rate is bounded as closely as the table needs.

use crate::{
    Judge, Plans, Question,
    run::{Best, Machines, Open, optimist},
};
use rayon::prelude::*;
use spipe_hardware::Hardware;
use std::collections::BTreeMap;

/// The steps in which the least rate that is of interest is halved: to 10⁻⁶ of the bound.
const HALVINGS: usize = 20;

/// The closest bounds so far, by key of machine: a rate for each training.
#[derive(Default)]
pub(crate) struct Closer {
    rates: BTreeMap<String, Vec<f64>>,
}

impl Closer {
    /// Removes the machines whose closer bounds can enter neither the table nor the front. Machines with a plan stay.
    pub fn narrow<'a>(
        &mut self,
        (question, judge): (&Question<'_>, &impl Judge),
        (machines, plans, best): (&Machines<'_>, &Plans, &Best),
        batch: &mut Vec<Open<'a>>,
    ) {
        let mut by_key: BTreeMap<&str, Vec<&Open<'a>>> = BTreeMap::new();
        for one in batch.iter().filter(|one| !plans.contains_key(&one.candidate.key)) {
            by_key.entry(&one.candidate.key).or_default().push(one);
        }
        let look = |(key, same): (&str, Vec<&Open<'a>>)| {
            let (hardware, most) = &machines[key];
            let rates = self.rates.get(key).unwrap_or(most).clone();
            let mut look = Look { question, best, hardware, rates };
            // The machines of a batch are in the order of their bounds: where one is planned, the others share.
            let aside: Vec<usize> = same
                .iter()
                .take_while(|one| !judge.is_stopped() && look.excludes(one, judge))
                .map(|one| one.candidate.index)
                .collect();
            (key.to_owned(), look.rates, aside)
        };
        let found: Vec<(String, Vec<f64>, Vec<usize>)> = by_key.into_par_iter().map(look).collect();
        for (key, rates, aside) in found {
            batch.retain(|one| !aside.contains(&one.candidate.index));
            self.rates.insert(key, rates);
        }
    }
}

/// A look at the machines of one key.
struct Look<'q, 'a> {
    question: &'q Question<'a>,
    best: &'q Best,
    hardware: &'q Hardware,
    /// The rates that no plan exceeds, closer with each look.
    rates: Vec<f64>,
}

impl Look<'_, '_> {
    /// Whether a machine can enter neither the table nor the front, by bounds that are as close as it takes.
    fn excludes(&mut self, one: &Open<'_>, judge: &impl Judge) -> bool {
        for train in 0..self.rates.len() {
            if self.outside(one, &self.rates) {
                return true;
            }
            let enough = self.enough(one, train);
            if enough <= 0.0 {
                continue;
            }
            let closer = judge.closest_tokens_per_second(self.hardware, train, enough);
            self.rates[train] = self.rates[train].min(closer);
        }
        self.outside(one, &self.rates)
    }

    fn outside(&self, one: &Open<'_>, rates: &[f64]) -> bool {
        let Question { job, objective, .. } = self.question;
        let figures = optimist(job, one.candidate, rates);
        self.best.excludes(figures.key(job, *objective), &figures)
    }

    /// The least rate of a training with which the machine may enter, beside the bounds of the others; 0 if it
    /// may at any rate.
    fn enough(&self, one: &Open<'_>, train: usize) -> f64 {
        let mut rates = self.rates.clone();
        let (mut low, mut high) = (0.0, self.rates[train]);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            rates[train] = middle;
            if self.outside(one, &rates) { low = middle } else { high = middle }
        }
        low
    }
}
