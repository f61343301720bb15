//! What no placement of stages takes less than, however many of them its devices have.
//!
//! The stages of a device are neighbours and take their turn together, so that they compute like one. Whatever they choose for their layers,
//! that one takes no longer if of what is stepped, saved or recomputed nothing counts ([`CostSums::ideal`]) but what the memory of the device
//! makes them do at least ([`Dues`]). So what the partition bounds of single stages refuse there, no placement of several does.

use crate::{
    bounds::partition_dp::{Divided, Grain, memory_pressure::Dues, partitioner::Partitioner},
    costs::CostSums,
    problem::{Deadline, Problem},
    space::{
        device_orders::{Coverage, within},
        subproblem::{Subproblem, cases},
    },
};
use spipe_plan::{Placement, System};
use std::{cmp::Reverse, collections::BTreeMap};

/// How close to the least iteration that is not refused the search goes.
const CLOSE: f64 = 2e-4;

/// By which part more than what is refused is asked for first, and twice that the next time.
const RISE: f64 = 0.01;

/// For which parts of an iteration activations are on their way where stages are to be near what then is possible: they leave during forwards and
/// return during backwards, in few slots.
const WAYS: [f64; 3] = [0.3, 0.5, 0.75];

/// How many of the ways to place stages that are not refused are tried.
pub(crate) const MOST_HINTS: usize = 2;

/// Beyond so many sequences of devices nothing is said.
const MOST_SEQUENCES: usize = 1000;

/// Of more devices there are more of them; to find that out takes time that others need.
const MOST_DEVICES: usize = 64;

/// Single stages on devices of which little is refused.
pub(crate) struct Hint {
    pub placement: Placement,
    /// By stage, for how long hosts step its layers in an iteration, in ms.
    pub hosted: Vec<f64>,
    /// The iteration in ms, and for which part of it activations are on their way.
    pub iteration: f64,
    pub ways: f64,
}

/// The machine on which nothing is stepped, saved or recomputed but what is due.
pub(crate) struct Staged<'s, 'a> {
    problem: &'s Problem<'a>,
    costs: CostSums<'a>,
    sequences: Vec<Vec<usize>>,
}

impl<'s, 'a> Staged<'s, 'a> {
    /// For what takes less than `high` ms; none where nothing can be said.
    pub fn new((problem, costs): (&'s Problem<'a>, &CostSums<'a>), high: f64, deadline: &Deadline<'_>) -> Option<Self> {
        if problem.context.cost.devices().len() > MOST_DEVICES {
            return None;
        }
        let costs = costs.ideal(&problem.options);
        // Pinned stages are counted among several on a device.
        let bounded = costs.training && costs.frozen == 0 && !problem.options.pins.count_stages();
        if !bounded || !high.is_finite() {
            return None;
        }
        let few = |costs: &CostSums<'_>| {
            let sequences = within(costs, (MOST_SEQUENCES, high), Some(deadline));
            (sequences.coverage != Coverage::Natural).then_some(sequences.list)
        };
        if let Some(sequences) = few(&costs) {
            return Some(Self { problem, costs, sequences });
        }
        // Where devices that are alike are at many kinds of places, it is not told apart where each of them is.
        let costs = costs.blurred();
        few(&costs).map(|sequences| Self { problem, costs, sequences })
    }

    /// What no placement of `system` on the devices of `costs` takes less than, in ms, if any takes between `low` and `high`: `low` where
    /// nothing more is known in time; and where stages may be that take little more, or less than `most` ms where activations take longer on
    /// their way.
    pub fn least(
        &self,
        (system, costs): (System, &CostSums<'_>),
        (low, high, most): (f64, f64, f64),
        deadline: &Deadline<'_>,
    ) -> (f64, Vec<Hint>) {
        let options = self.problem.options.clone();
        let problem = Problem { systems: vec![system], options, ..*self.problem };
        let cases = cases(&problem, &self.costs, &self.sequences);
        let mut partitioner = Partitioner::new(&self.costs, &cases);
        partitioner.dues = Dues::new(costs, &cases);
        let mut narrowed = Narrowed { partitioner, cases: &cases, low, high, divided: BTreeMap::new() };
        narrowed.narrow(deadline);
        let least = narrowed.low;
        let mut hints = narrowed.hints(&self.costs);
        if narrowed.partitioner.dues.is_some() {
            for ways in WAYS {
                if let Some(dues) = narrowed.partitioner.dues.as_mut() {
                    dues.ways = ways;
                }
                (narrowed.low, narrowed.high) = (least, most);
                narrowed.divided.clear();
                narrowed.narrow(deadline);
                hints.extend(narrowed.hints(&self.costs));
            }
        }
        (least, hints)
    }
}

/// The search for the least iteration that is not refused.
struct Narrowed<'n, 'f, 'a> {
    partitioner: Partitioner<'f, 'a>,
    cases: &'n [Subproblem],
    /// In ms: what is refused, and what is not, or not asked.
    low: f64,
    high: f64,
    /// By case, how often it was not refused, and how it was divided the last time.
    divided: BTreeMap<usize, (usize, Divided)>,
}

impl Narrowed<'_, '_, '_> {
    fn narrow(&mut self, deadline: &Deadline<'_>) {
        let mut active: Vec<usize> = (0..self.cases.len()).collect();
        // What takes much longer than what is refused takes long to find out, and says little.
        let mut rise = Some(RISE);
        while self.high > self.low * (1.0 + CLOSE) {
            let middle = match rise {
                Some(rise) => (self.low * (1.0 + rise)).min(self.high),
                None => (self.low * self.high).sqrt(),
            };
            let Some(found) = self.possible(&active, middle, deadline) else { break };
            if found.is_empty() {
                self.low = middle;
                rise = rise.map(|rise| 2.0 * rise);
            } else {
                (active, self.high) = (found.iter().map(|(case, _)| *case).collect(), middle);
                for (case, found) in found {
                    let times = self.divided.get(&case).map_or(0, |(times, _)| *times);
                    self.divided.insert(case, (times + 1, found));
                }
                rise = None;
            }
        }
    }

    /// Those of `active` that are not refused at a time; none where the deadline came before.
    fn possible(&self, active: &[usize], limit: f64, deadline: &Deadline<'_>) -> Option<Vec<(usize, Divided)>> {
        let cases: Vec<&Subproblem> = active.iter().map(|case| &self.cases[*case]).collect();
        let tested = self.partitioner.divide(&cases, (limit, Grain::ALL[0]), Some(deadline));
        let all: Option<Vec<Option<Divided>>> = tested.into_iter().collect();
        let found = |(case, divided): (&usize, Option<Divided>)| Some((*case, divided?));
        all.map(|all| active.iter().zip(all).filter_map(found).collect())
    }

    /// Those first that are refused last.
    fn hints(&self, costs: &CostSums<'_>) -> Vec<Hint> {
        let mut divided: Vec<(usize, &(usize, Divided))> =
            self.divided.iter().map(|(case, found)| (*case, found)).collect();
        divided.sort_by_key(|(case, (times, _))| (Reverse(*times), *case));
        let ways = self.partitioner.dues.as_ref().map_or(1.0, |dues| dues.ways);
        let hint = |(case, (_, divided)): &(usize, &(usize, Divided))| Hint {
            placement: self.cases[*case].placement(costs, &divided.partition),
            hosted: divided.hosted.clone(),
            iteration: self.high,
            ways,
        };
        divided.iter().take(MOST_HINTS).map(hint).collect()
    }
}
