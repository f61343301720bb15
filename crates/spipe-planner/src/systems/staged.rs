//! What no placement of stages takes less than, however many of them its devices have.
//!
//! The stages of a device are neighbours and take their turn together, so that they compute like one. Whatever they choose for their layers,
//! that one takes no longer if of what is stepped, saved or recomputed nothing counts ([`Figures::ideal`]) but what the memory of the device
//! makes them do at least ([`Dues`]). So what the partition bounds of single stages refuse there, no placement of several does.

use crate::{
    Problem,
    case::{Case, Division},
    deadline::Deadline,
    divide::{Divided, Dues, Grain},
    figures::Figures,
    ilp::cases,
    partition::Partitioner,
    sequence::{Coverage, within},
};
use spipe_plan::{Placement, System};
use std::{cmp::Reverse, collections::BTreeMap};

/// How close to the least iteration that is not refused the search goes.
const CLOSE: f64 = 1e-3;

/// Beyond so many sequences of devices nothing is said.
const MOST_SEQUENCES: usize = 1000;

/// Of more devices there are more of them; to find that out takes time that others need.
const MOST_DEVICES: usize = 16;

/// The machine on which nothing is stepped, saved or recomputed but what is due.
pub(super) struct Staged<'s, 'a> {
    problem: &'s Problem<'a>,
    figures: Figures<'a>,
    sequences: Vec<Vec<usize>>,
}

impl<'s, 'a> Staged<'s, 'a> {
    /// For what takes less than `high` ms; none where nothing can be said.
    pub fn new(problem: &'s Problem<'a>, high: f64, deadline: &Deadline<'_>) -> Option<Self> {
        if problem.context.cost.devices().len() > MOST_DEVICES {
            return None;
        }
        let figures = Figures::ideal(problem.context, &problem.options);
        // Pinned stages are counted among several on a device.
        let bounded = figures.training && figures.frozen == 0 && !problem.options.pins.count_stages();
        if !bounded || !high.is_finite() {
            return None;
        }
        let sequences = within(&figures, (MOST_SEQUENCES, high), Some(deadline));
        let known = sequences.coverage != Coverage::Natural;
        known.then_some(Self { problem, figures, sequences: sequences.list })
    }

    /// What no placement of `system` takes less than, in ms, if any takes between `low` and `high`: `low` where nothing more is known in
    /// time; and where stages may be that take little more.
    pub fn least(
        &self,
        system: System,
        (mut low, mut high): (f64, f64),
        deadline: &Deadline<'_>,
    ) -> (f64, Vec<Placement>) {
        let options = self.problem.options.clone();
        let problem = Problem { systems: vec![system], options, ..*self.problem };
        let cases = cases(&problem, &self.figures, &self.sequences);
        let mut partitioner = Partitioner::new(&self.figures, &cases);
        partitioner.dues = Dues::new(&Figures::new(self.problem.context, &self.problem.options), &cases);
        // Those that are not refused at a time.
        let possible = |active: &[usize], limit: f64| -> Option<Vec<(usize, Division)>> {
            let active_cases: Vec<&Case> = active.iter().map(|case| &cases[*case]).collect();
            let tested = partitioner.divide(&active_cases, (limit, Grain::ALL[0]), Some(deadline));
            let all: Option<Vec<Divided>> = tested.into_iter().collect();
            let found = |(case, divided): (&usize, Divided)| Some((*case, divided?.0));
            all.map(|all| active.iter().zip(all).filter_map(found).collect())
        };
        // By case, how often it was not refused, and how it was divided the last time.
        let mut divided: BTreeMap<usize, (usize, Division)> = BTreeMap::new();
        let mut active: Vec<usize> = (0..cases.len()).collect();
        // Whether all are refused is asked first of the time at which it matters most.
        let mut middle = high;
        while high > low * (1.0 + CLOSE) {
            let Some(found) = possible(&active, middle) else { break };
            if found.is_empty() {
                low = middle;
            } else {
                (active, high) = (found.iter().map(|(case, _)| *case).collect(), middle);
                for (case, division) in found {
                    let times = divided.get(&case).map_or(0, |(times, _)| *times);
                    divided.insert(case, (times + 1, division));
                }
            }
            middle = if low > 0.0 { (low * high).sqrt() } else { high / 2.0 };
        }
        // Those first that are refused last.
        let mut divided: Vec<(usize, (usize, Division))> = divided.into_iter().collect();
        divided.sort_by_key(|(case, (times, _))| (Reverse(*times), *case));
        let placement =
            |(case, (_, division)): &(usize, (usize, Division))| cases[*case].placement(&self.figures, division);
        let placements = divided.iter().map(placement).collect();
        (low, placements)
    }
}
