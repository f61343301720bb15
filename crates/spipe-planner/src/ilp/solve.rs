//! The one place where the solver is called and its words are translated.

use good_lp::{
    ResolutionError, Solution, SolutionStatus, SolverModel,
    solvers::highs::{HighsProblem, HighsSolution},
};
use std::time::Duration;

/// What came back.
pub(crate) enum Answer {
    /// Optimal, within the gap that was asked for.
    Solved(HighsSolution),
    /// The time limit struck; there may be a solution.
    Stopped(Option<HighsSolution>),
    /// No solution exists.
    Infeasible,
    /// Anything else, in the solver's words.
    Trouble(String),
}

/// How to solve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    /// (objective − bound) ÷ objective at which to stop.
    pub gap: f64,
    pub time_limit: Duration,
    /// How many nodes of the search tree are visited at most: unlike a limit on time, it stops always at the same place.
    pub nodes: i32,
    /// The second try of a problem that made trouble goes without presolve and from another random seed.
    pub second_try: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { gap: 0.0, time_limit: Duration::from_secs(10), nodes: i32::MAX, second_try: false }
    }
}

/// What solves integer programs: [`solve`], but for tests of what is done about its answers.
pub(crate) type Solver<'a> = dyn Fn(HighsProblem, &Settings) -> Answer + Sync + 'a;

/// Solves on the calling thread alone, always with the same random seed, so that the same problem has the same answer.
pub(crate) fn solve(problem: HighsProblem, settings: &Settings) -> Answer {
    let problem = problem
        .set_option("parallel", "off")
        .set_option("threads", 1)
        .set_option("random_seed", if settings.second_try { 7 } else { 1 })
        .set_option("presolve", if settings.second_try { "off" } else { "choose" })
        .set_option("mip_rel_gap", settings.gap)
        .set_option("mip_max_nodes", settings.nodes)
        .set_option("time_limit", settings.time_limit.as_secs_f64());
    match problem.solve() {
        Ok(solution) => match solution.status() {
            SolutionStatus::Optimal | SolutionStatus::GapLimit => Answer::Solved(solution),
            SolutionStatus::TimeLimit => Answer::Stopped(Some(solution)),
        },
        Err(error) => translate(error),
    }
}

fn translate(error: ResolutionError) -> Answer {
    match error {
        ResolutionError::Infeasible => Answer::Infeasible,
        // The adapter's word for a limit that struck before there was any solution.
        ResolutionError::Other("NoSolutionFound") => Answer::Stopped(None),
        ResolutionError::Unbounded => Answer::Trouble("the problem is unbounded".into()),
        ResolutionError::Other(what) => Answer::Trouble(what.into()),
        ResolutionError::Str(what) => Answer::Trouble(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use good_lp::{Expression, constraint, highs, variable, variables};

    /// Maximises the value of `count` items in a sack, with constraints from `extra`.
    fn sack(count: u32, room: f64) -> HighsProblem {
        let mut vars = variables!();
        let items: Vec<_> = (0..count).map(|_| vars.add(variable().binary())).collect();
        let sum = |of: fn(u32) -> f64| -> Expression {
            (0..count).zip(&items).map(|(index, item)| of(index * 37 % 101) * *item).sum()
        };
        let (value, weight) = (sum(|seed| 1.3 + f64::from(seed)), sum(|seed| 2.7 + f64::from(seed * 53 % 97)));
        vars.maximise(value).using(highs).with(constraint!(weight <= room))
    }

    #[test]
    fn words_of_the_solver_are_translated() {
        assert!(matches!(solve(sack(20, 300.0), &Settings::default()), Answer::Solved(_)));
        let coarse = Settings { gap: 0.5, ..Settings::default() };
        assert!(matches!(solve(sack(40, 300.0), &coarse), Answer::Solved(_)), "the gap is reached");
        assert!(matches!(solve(sack(5, -1.0), &Settings::default()), Answer::Infeasible));
        let second = Settings { second_try: true, ..Settings::default() };
        assert!(matches!(solve(sack(20, 300.0), &second), Answer::Solved(_)));
    }

    #[test]
    fn a_time_limit_strikes_with_and_without_a_solution() {
        let none = Settings { time_limit: Duration::ZERO, ..Settings::default() };
        let mut vars = variables!();
        let x = vars.add(variable().clamp(0, 2));
        let y = vars.add(variable().clamp(1, 3));
        let linear = vars.maximise(x + y).using(highs).with(constraint!(2 * x + y <= 4));
        assert!(matches!(solve(linear, &none), Answer::Stopped(Some(_))));
        let mut vars = variables!();
        let x = vars.add(variable().min(0.0));
        let y = vars.add(variable().min(0.0));
        let problem =
            vars.minimise(x + y).using(highs).with(constraint!(x + 2 * y >= 3)).with(constraint!(3 * x + y >= 4));
        assert!(matches!(solve(problem, &none), Answer::Stopped(None)));
    }

    #[test]
    fn what_makes_no_sense_is_trouble() {
        let mut vars = variables!();
        let x = vars.add(variable().min(0.0));
        let unbounded = vars.maximise(x).using(highs);
        assert!(matches!(solve(unbounded, &Settings::default()), Answer::Trouble(_)));
        for word in [ResolutionError::Other("SolveError"), ResolutionError::Str("it broke".into())] {
            assert!(matches!(translate(word), Answer::Trouble(_)));
        }
    }
}
