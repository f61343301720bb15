//! The program with whole layers: how many of each run of equal layers are on devices of which class, at which place of their chain, and
//! what is chosen for them.

use crate::formulation::assignment::{Class, LARGEST, chain, classes, columns::Spread, unit};
use crate::{
    costs::CostSums,
    formulation::solver::{Minimum, Settings, minimise},
    space::rules::{SystemRules, Warmup},
};
use good_lp::{Constraint, Expression, ProblemVariables, Solution, Variable, constraint, variable, variables};
use spipe_plan::Activations;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// What each variable came to.
type Values = HashMap<Variable, f64>;

/// Beyond so many devices it would take too long to decide which class of them is at which place.
const FEW: usize = 12;

/// How far from the optimum the search may stop.
const GAP: f64 = 0.005;

/// How many nodes of its tree it visits at most.
const NODES: i32 = 200;

/// What the sum of all that is done counts beside what is done by the busiest.
const EFFORT: f64 = 1e-3;

/// So many layers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub run: usize,
    pub layers: usize,
    /// The class of their devices, and their place in the chain of devices.
    pub class: usize,
    pub place: usize,
    pub streams: bool,
    pub steps_on_host: bool,
    pub kept: Activations,
}

/// Where all layers are.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub shares: Vec<Share>,
    /// The devices of each class.
    pub classes: Vec<Vec<usize>>,
}

/// What the program with whole layers says.
#[derive(Clone, Debug)]
pub(crate) enum Whole {
    /// The best counts that were found, what no placement takes less than, in ms, and whether nothing is left open but the gap.
    Found { counts: Counts, least: f64, closed: bool },
    /// No placement takes less than the limit.
    Never,
    /// There is no answer, or none in time, but for a bound.
    Open { least: f64 },
}

impl Whole {
    /// What was found.
    pub fn counts(self) -> Option<Counts> {
        match self {
            Self::Found { counts, .. } => Some(counts),
            Self::Never | Self::Open { .. } => None,
        }
    }
}

/// What the program may leave free on each device, in bytes, and how far it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'l> {
    pub free: &'l [u64],
    /// No more than so many ms are of interest.
    pub most: f64,
    pub time: Duration,
}

/// The counts with the least lower bound of an iteration; of those that are equal, the one with which all devices, links and sockets
/// together do least.
///
/// Of z = T + ε Σ w, with w for what each of p devices, links and sockets does, a bound is known wherever the search ends. No w is more than T,
/// so that no placement takes less than that bound of z, divided by 1 + ε p.
pub(crate) fn counts(costs: &CostSums<'_>, rules: &SystemRules, limits: Limits<'_>) -> Whole {
    let Some(program) = Program::new((costs, rules), limits) else { return Whole::Open { least: 0.0 } };
    let (vars, mut spread) = program.spread(true);
    let parts = spread.efforts.len() as f64;
    let objective = spread.busiest + spread.effort() * EFFORT;
    let Minimum { values, bound, closed } = program.solve(vars, (std::mem::take(&mut spread.rows), objective), NODES);
    if bound == f64::INFINITY {
        return Whole::Never;
    }
    // The solver's tolerance is 10⁻⁷ of numbers around one.
    let least = (bound * unit(program.chain) * (1.0 - 1e-6) / (1.0 + EFFORT * parts)).max(0.0);
    let Some(first) = values else { return Whole::Open { least } };
    let again = program.with_least_effort(&first);
    let solution = again.as_ref().unwrap_or(&first);
    let share = |(run, class, choice, variable): &(
        usize,
        usize,
        crate::formulation::assignment::columns::Choice<'_>,
        Variable,
    )| Share {
        run: *run,
        layers: solution.value(*variable).round().max(0.0) as usize,
        class: *class,
        place: choice.place,
        streams: choice.streams,
        steps_on_host: choice.steps_on_host,
        kept: choice.kept,
    };
    let shares: Vec<Share> = spread.shares.iter().map(share).filter(|share| share.layers > 0).collect();
    // What was found when time was over may be rounded to something else.
    let whole = costs.runs.iter().enumerate().all(|(run, (_, count))| {
        shares.iter().filter(|share| share.run == run).map(|share| share.layers).sum::<usize>() == *count
    });
    let classes = program.classes.iter().map(|class| class.members.clone()).collect();
    if !whole {
        return Whole::Open { least };
    }
    Whole::Found { counts: Counts { shares, classes }, least, closed }
}

/// What no placement takes less than, in ms, with a class of devices at each place, but fractions of layers in any order: this is known
/// sooner. Nothing where the time is too short even for that.
pub(crate) fn seated(costs: &CostSums<'_>, rules: &SystemRules, limits: Limits<'_>) -> f64 {
    let Some(program) = Program::new((costs, rules), limits) else { return 0.0 };
    let (vars, spread) = program.spread(false);
    let Minimum { bound, .. } = program.solve(vars, (spread.rows, spread.busiest.into()), i32::MAX);
    // Infinite where nothing takes less than what is of interest.
    (bound * unit(program.chain) * (1.0 - 1e-6)).clamp(0.0, limits.most)
}

struct Program<'p, 'a> {
    costs: &'p CostSums<'a>,
    rules: &'p SystemRules,
    limits: Limits<'p>,
    classes: Vec<Class>,
    /// What one microbatch takes at least, in ms.
    chain: f64,
    turn: Option<Warmup>,
}

impl<'p, 'a> Program<'p, 'a> {
    /// None where it would be too large, or could not tell where devices are.
    fn new((costs, rules): (&'p CostSums<'a>, &'p SystemRules), limits: Limits<'p>) -> Option<Self> {
        let classes = classes(costs, rules);
        let chain = chain(costs, rules, &classes);
        let devices: usize = classes.iter().map(|class| class.count).sum();
        let turn = rules.turns(costs);
        let large = turn.is_some() && (devices > FEW || devices * classes.len() * costs.runs.len() > LARGEST);
        let open = classes.is_empty() || !chain.is_finite() || large || turn != rules.turn;
        (!open).then_some(Self { costs, rules, limits, classes, chain, turn })
    }

    /// Its variables and rows, always in the same order; with whole layers in the order of the model or with fractions.
    fn spread(&self, whole: bool) -> (ProblemVariables, Spread<'p, 'a>) {
        let mut vars = variables!();
        let busiest = vars.add(variable().min(0.0).name("busiest"));
        let unit = unit(self.chain);
        let spread = Spread::new((self.costs, self.rules), (unit, busiest), self.turn, &self.classes);
        let mut spread = if whole { spread.whole(self.limits.free) } else { spread };
        spread.layers(&self.classes, &mut vars);
        spread.fill(&self.classes);
        if self.turn.is_some() {
            spread.seat(&self.classes, &mut vars);
            if whole {
                spread.in_order(&mut vars);
            }
        }
        if self.limits.most.is_finite() {
            spread.rows.push(constraint!(busiest <= self.limits.most / unit));
        }
        (vars, spread)
    }

    fn solve(&self, vars: ProblemVariables, program: (Vec<Constraint>, Expression), nodes: i32) -> Minimum {
        minimise(vars, program, &Settings { gap: GAP, time_limit: self.limits.time, nodes, ..Settings::default() })
    }

    /// The same layers on the same devices in the same time, chosen so that all devices, links and sockets together do least: below the gap
    /// the first search does not tell that from anything else.
    fn with_least_effort(&self, first: &Values) -> Option<Values> {
        let mut layers: BTreeMap<(usize, usize, usize), (Expression, f64)> = BTreeMap::new();
        let (vars, mut spread) = self.spread(true);
        for (run, class, choice, variable) in &spread.shares {
            let (sum, count) = layers.entry((*run, *class, choice.place)).or_default();
            *sum += *variable;
            *count += first.value(*variable);
        }
        spread.rows.extend(layers.into_values().map(|(sum, count)| constraint!(sum == count.round())));
        spread.rows.push(constraint!(spread.busiest <= first.value(spread.busiest) * (1.0 + 1e-6)));
        let effort = spread.effort();
        self.solve(vars, (spread.rows, effort), NODES).values
    }
}
