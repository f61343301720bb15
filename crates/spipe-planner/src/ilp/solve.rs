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
    /// The second try of a problem that made trouble goes without presolve and from another random seed.
    pub second_try: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { gap: 0.0, time_limit: Duration::from_secs(10), second_try: false }
    }
}

/// Solves on the calling thread alone, always with the same random seed, so that the same problem has the same answer.
pub(crate) fn solve(problem: HighsProblem, settings: &Settings) -> Answer {
    let problem = problem
        .set_option("parallel", "off")
        .set_option("threads", 1)
        .set_option("random_seed", if settings.second_try { 7 } else { 1 })
        .set_option("presolve", if settings.second_try { "off" } else { "choose" })
        .set_option("mip_rel_gap", settings.gap)
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
