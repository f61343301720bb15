//! Assignment program with whole layers: how many layers of each run go to which device class, at
//! which position of the chain, and in which mode.

use crate::formulation::assignment::{
    DeviceClass, LARGEST, chain, classes,
    columns::{AssignmentProgram, Column},
};
use crate::problem::bound::Bound;
use crate::problem::tolerances::{ASSIGNMENT_LOAD, PROGRAM};
use crate::{
    costs::CostSums,
    formulation::solver::{Minimum, Settings, minimise},
    space::rules::{SystemRules, Warmup},
};
use good_lp::{Constraint, Expression, ProblemVariables, Solution, Variable, constraint};
use spipe_plan::Activations;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// Value of each variable.
type Values = HashMap<Variable, f64>;

/// Limit on devices above which assigning classes to positions would take too long.
const FEW: usize = 12;

/// Relative gap at which the search may stop: that at which searches for plans end.
const GAP: f64 = 0.005;

/// Limit on the nodes of the search tree, so that the solver always stops at the same node.
const NODES: i32 = 200;

/// A number of layers of a run with one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub run: usize,
    pub layers: usize,
    /// Class of their devices, and position in the chain of devices.
    pub class: usize,
    pub place: usize,
    pub streams: bool,
    pub steps_on_host: bool,
    pub kept: Activations,
}

/// Assignment of all layers.
#[derive(Clone, Debug)]
pub(crate) struct LayerCounts {
    pub shares: Vec<Share>,
    /// Devices of each class.
    pub classes: Vec<Vec<usize>>,
}

/// Result of the program with whole layers.
#[derive(Clone, Debug)]
pub(crate) enum IntegralOutcome {
    /// The best assignment found, a lower bound of every placement, and whether only the gap is
    /// open.
    Found { counts: LayerCounts, least: Bound, closed: bool },
    /// No placement takes less than the limit.
    Never,
    /// No assignment was found in time; the bound holds nevertheless.
    Open { least: Bound },
}

impl IntegralOutcome {
    /// Returns the assignment, if one was found.
    pub fn counts(self) -> Option<LayerCounts> {
        match self {
            Self::Found { counts, .. } => Some(counts),
            Self::Never | Self::Open { .. } => None,
        }
    }
}

/// Limits of the program: bytes to leave free on each device, longest iteration, and solver time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SolveLimits<'l> {
    pub free: &'l [u64],
    /// Longest iteration of interest, in ms.
    pub most: f64,
    pub time: Duration,
}

/// Returns the assignment with the least lower bound of an iteration; among equals, the one with
/// the least total load of devices, links and sockets.
///
/// The objective is z = T + ε Σ w, with w for the load of each of p resources. No w exceeds T, so a
/// lower bound of z divided by 1 + ε p bounds T, wherever the search ends.
pub(crate) fn counts(costs: &CostSums<'_>, rules: &SystemRules, limits: SolveLimits<'_>) -> IntegralOutcome {
    let Some(program) = IntegralProgram::new((costs, rules), limits) else {
        return IntegralOutcome::Open { least: Bound::NONE };
    };
    let (vars, spread) = program.spread(true);
    let parts = spread.efforts.len() as f64;
    let objective = spread.busiest + spread.effort() * ASSIGNMENT_LOAD;
    let Minimum { values, bound, closed } = program.solve(vars, (spread.rows, objective), NODES);
    if bound == Bound::Infeasible {
        return IntegralOutcome::Never;
    }
    let least = bound.times(spread.unit * (1.0 - PROGRAM) / (1.0 + ASSIGNMENT_LOAD * parts));
    let Some(first) = values else { return IntegralOutcome::Open { least } };
    let again = program.with_least_effort(&first);
    let solution = again.as_ref().unwrap_or(&first);
    let share = |(run, class, choice, variable): &Column<'_>| Share {
        run: *run,
        layers: solution.value(*variable).round().max(0.0) as usize,
        class: *class,
        place: choice.place,
        streams: choice.streams,
        steps_on_host: choice.steps_on_host,
        kept: choice.kept,
    };
    let shares: Vec<Share> = spread.shares.iter().map(share).filter(|share| share.layers > 0).collect();
    // A solution of a stopped search may not round to all layers.
    let whole = costs.runs.iter().enumerate().all(|(run, (_, count))| {
        shares.iter().filter(|share| share.run == run).map(|share| share.layers).sum::<usize>() == *count
    });
    let classes = program.classes.iter().map(|class| class.members.clone()).collect();
    if !whole {
        return IntegralOutcome::Open { least };
    }
    IntegralOutcome::Found { counts: LayerCounts { shares, classes }, least, closed }
}

/// Returns a lower bound of every placement, with one class per position but fractional
/// layers in any order. This relaxation is solved sooner than [`counts`].
pub(crate) fn one_class_per_position(costs: &CostSums<'_>, rules: &SystemRules, limits: SolveLimits<'_>) -> Bound {
    let Some(program) = IntegralProgram::new((costs, rules), limits) else { return Bound::NONE };
    let (vars, spread) = program.spread(false);
    let Minimum { bound, .. } = program.solve(vars, (spread.rows, spread.busiest.into()), i32::MAX);
    // Infeasible where no placement is within `limits.most`.
    bound.times(spread.unit * (1.0 - PROGRAM)).min(Bound::of_limit(limits.most))
}

struct IntegralProgram<'p, 'a> {
    costs: &'p CostSums<'a>,
    rules: &'p SystemRules,
    limits: SolveLimits<'p>,
    classes: Vec<DeviceClass>,
    /// Least time of one microbatch, in ms.
    chain: f64,
    turn: Option<Warmup>,
}

impl<'p, 'a> IntegralProgram<'p, 'a> {
    /// Returns none where the program would be too large, or positions cannot be assigned.
    fn new((costs, rules): (&'p CostSums<'a>, &'p SystemRules), limits: SolveLimits<'p>) -> Option<Self> {
        let classes = classes(costs, rules);
        let chain = chain(costs, rules, &classes);
        let devices: usize = classes.iter().map(|class| class.count).sum();
        let turn = rules.turns(costs);
        let large = turn.is_some() && (devices > FEW || devices * classes.len() * costs.runs.len() > LARGEST);
        let open = classes.is_empty() || !chain.is_finite() || large || turn != rules.turn;
        (!open).then_some(Self { costs, rules, limits, classes, chain, turn })
    }

    /// Returns variables and rows, always in the same order: with whole layers in model order, or
    /// with fractions.
    fn spread(&self, whole: bool) -> (ProblemVariables, AssignmentProgram<'p, 'a>) {
        let free = whole.then_some(self.limits.free);
        let (mut vars, mut spread) =
            AssignmentProgram::new((self.costs, self.rules), &self.classes, (self.chain, self.turn), free);
        if self.turn.is_some() {
            spread.assign_classes(&self.classes, &mut vars);
            if whole {
                spread.in_order(&mut vars);
            }
        }
        if self.limits.most.is_finite() {
            spread.rows.push(constraint!(spread.busiest <= self.limits.most / spread.unit));
        }
        (vars, spread)
    }

    fn solve(&self, vars: ProblemVariables, program: (Vec<Constraint>, Expression), nodes: i32) -> Minimum {
        minimise(vars, program, &Settings { gap: GAP, time_limit: self.limits.time, nodes })
    }

    /// Minimises the total load with the layers of each run and position, and the iteration, fixed
    /// to those of `first`. The first search does not distinguish total loads below its gap.
    fn with_least_effort(&self, first: &Values) -> Option<Values> {
        let mut layers: BTreeMap<(usize, usize, usize), (Expression, f64)> = BTreeMap::new();
        let (vars, mut spread) = self.spread(true);
        for (run, class, choice, variable) in &spread.shares {
            let (sum, count) = layers.entry((*run, *class, choice.place)).or_default();
            *sum += *variable;
            *count += first.value(*variable);
        }
        spread.rows.extend(layers.into_values().map(|(sum, count)| constraint!(sum == count.round())));
        spread.rows.push(constraint!(spread.busiest <= first.value(spread.busiest) * (1.0 + PROGRAM)));
        let effort = spread.effort();
        self.solve(vars, (spread.rows, effort), NODES).values
    }
}
