//! The program with whole layers: how many of each run of equal layers are on devices of which class, at which place of their chain, and
//! what is chosen for them.

use super::{FEW, LARGEST, chain, classes, spread::Spread, unit};
use crate::{
    figures::Figures,
    freedom::{Freedom, Kept},
    ilp::solve::{Answer, Settings, solve},
};
use good_lp::{Expression, SolverModel, highs, variable, variables};
use std::time::Duration;

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
    pub kept: Kept,
}

/// Where all layers are.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub shares: Vec<Share>,
    /// The devices of each class.
    pub classes: Vec<Vec<usize>>,
}

/// The counts with the least lower bound of an iteration where so many bytes are free on each device; of those that are equal, the
/// one with which all devices, links and sockets together do least. None where there is no solution, or none in time.
pub(crate) fn counts(
    figures: &Figures<'_>,
    freedom: &Freedom,
    (free, time_limit): (&[u64], Duration),
) -> Option<Counts> {
    let classes = classes(figures, freedom);
    let chain = chain(figures, freedom, &classes);
    let devices: usize = classes.iter().map(|class| class.count).sum();
    let turn = freedom.turns(figures);
    let large = turn.is_some() && (devices > FEW || devices * classes.len() * figures.runs.len() > LARGEST);
    if classes.is_empty() || !chain.is_finite() || large || turn != freedom.turn {
        return None;
    }
    let mut vars = variables!();
    let busiest = vars.add(variable().min(0.0).name("busiest"));
    let spread = Spread::new((figures, freedom), (unit(chain), busiest), turn, &classes);
    let mut spread = spread.whole(free);
    spread.layers(&classes, &mut vars);
    spread.fill(&classes);
    if turn.is_some() {
        spread.seat(&classes, &mut vars);
        spread.in_order(&mut vars);
    }
    let objective: Expression = busiest + spread.effort * EFFORT;
    let mut problem = vars.minimise(objective).using(highs);
    for row in spread.rows {
        problem.add_constraint(row);
    }
    let settings = Settings { gap: GAP, time_limit, nodes: NODES, ..Settings::default() };
    let solution = match solve(problem, &settings) {
        Answer::Solved(solution) | Answer::Stopped(Some(solution)) => solution,
        _ => return None,
    };
    let share = |(run, class, choice, variable): &(usize, usize, super::spread::Choice<'_>, good_lp::Variable)| Share {
        run: *run,
        layers: good_lp::Solution::value(&solution, *variable).round().max(0.0) as usize,
        class: *class,
        place: choice.place,
        streams: choice.streams,
        steps_on_host: choice.steps_on_host,
        kept: choice.kept,
    };
    let shares: Vec<Share> = spread.shares.iter().map(share).filter(|share| share.layers > 0).collect();
    // What was found when time was over may be rounded to something else.
    let whole = figures.runs.iter().enumerate().all(|(run, (_, count))| {
        shares.iter().filter(|share| share.run == run).map(|share| share.layers).sum::<usize>() == *count
    });
    let classes = classes.into_iter().map(|class| class.members).collect();
    whole.then_some(Counts { shares, classes })
}
