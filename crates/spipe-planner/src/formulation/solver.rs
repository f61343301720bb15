//! Adapter of the HiGHS solver: all integer and linear programs are solved here.

use crate::problem::bound::Bound;
use good_lp::{
    Constraint, Expression, ProblemVariables, SolverModel, Variable,
    solvers::highs::{HighsOptionValue, highs},
};
use highs::{HighsModelStatus, HighsSolutionStatus, Model};
use std::{collections::HashMap, time::Duration};

/// Settings of one solve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Relative gap, (objective − bound) ÷ objective, at which the solver stops.
    pub gap: f64,
    pub time_limit: Duration,
    /// Limit on the nodes of the search tree. Unlike a time limit, it always stops at the same
    /// node.
    pub nodes: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { gap: 0.0, time_limit: Duration::from_secs(10), nodes: i32::MAX }
    }
}

impl Settings {
    /// The HiGHS options that correspond to these settings, for a program with or without integer variables.
    fn options(&self, integers: bool) -> [(&'static str, HighsOptionValue); 8] {
        // Presolving a linear program of this size takes longer than solving it.
        let presolve = if integers { "choose" } else { "off" };
        [
            ("presolve", presolve.into()),
            ("parallel", "off".into()),
            ("threads", 1.into()),
            ("random_seed", 1.into()),
            // On small problems this heuristic takes longer than the rest of the solve, and the
            // first relaxation finds the same solutions.
            ("mip_heuristic_run_feasibility_jump", false.into()),
            ("mip_rel_gap", self.gap.into()),
            ("mip_max_nodes", self.nodes.into()),
            ("time_limit", self.time_limit.as_secs_f64().into()),
        ]
    }
}

/// Result of a minimisation, whether or not it reached the optimum.
#[derive(Debug)]
pub(crate) struct Minimum {
    /// Values of the best solution found.
    pub values: Option<HashMap<Variable, f64>>,
    /// Proven lower bound of the objective, which is not negative.
    pub bound: Bound,
    /// Whether the search finished within the requested gap.
    pub closed: bool,
}

impl Minimum {
    /// No solution and no bound.
    const OPEN: Self = Self { values: None, bound: Bound::NONE, closed: false };
}

/// Minimises `objective` over `vars` subject to `rows`, on the calling thread and with a fixed
/// random seed, so that equal problems get equal answers. Returns the proven bound even if a limit
/// was reached.
pub(crate) fn minimise(
    vars: ProblemVariables,
    (rows, objective): (Vec<Constraint>, Expression),
    settings: &Settings,
) -> Minimum {
    let variables: Vec<Variable> = vars.iter_variables_with_def().map(|(variable, _)| variable).collect();
    let integers = vars.iter_variables_with_def().any(|(_, definition)| definition.is_integer());
    let mut problem = vars.minimise(objective).using(highs);
    for row in rows {
        problem.add_constraint(row);
    }
    let Ok(mut model) = problem.try_into_inner() else { return Minimum::OPEN };
    if !settings.options(integers).into_iter().all(|(name, value)| set(&mut model, name, value)) {
        return Minimum::OPEN;
    }
    let Ok(solved) = model.try_solve() else { return Minimum::OPEN };
    let closed = match solved.status() {
        HighsModelStatus::Infeasible => return Minimum { bound: Bound::Infeasible, closed: true, ..Minimum::OPEN },
        HighsModelStatus::Optimal => true,
        HighsModelStatus::ReachedTimeLimit | HighsModelStatus::ReachedSolutionLimit => false,
        _ => return Minimum::OPEN,
    };
    let found = solved.primal_solution_status() == HighsSolutionStatus::Feasible;
    let values = found.then(|| variables.into_iter().zip(solved.get_solution().columns().iter().copied()).collect());
    // A program without integer variables has no search tree: its optimum is the bound.
    let bound = match solved.double_info_value(c"mip_dual_bound") {
        Ok(bound) if solved.mip_gap().is_finite() || !closed => bound,
        _ if closed => solved.objective_value(),
        _ => 0.0,
    };
    let bound = Bound::AtLeast(bound.max(0.0));
    Minimum { values, bound, closed }
}

/// Sets an option; returns whether the solver accepted it.
fn set(model: &mut Model, name: &str, value: HighsOptionValue) -> bool {
    let taken = match value {
        HighsOptionValue::String(value) => model.try_set_option(name, value.as_str()),
        HighsOptionValue::Bool(value) => model.try_set_option(name, value),
        HighsOptionValue::Int(value) => model.try_set_option(name, value),
        HighsOptionValue::Float(value) => model.try_set_option(name, value),
    };
    taken.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use good_lp::{Expression, constraint, variable, variables};

    /// Minimises the weight of items that are worth at least `worth`.
    fn burden(worth: f64, settings: &Settings) -> Minimum {
        let mut vars = variables!();
        let items: Vec<_> = (0..40u32).map(|_| vars.add(variable().binary())).collect();
        let sum = |of: fn(u32) -> f64| -> Expression {
            (0..40u32).zip(&items).map(|(index, item)| of(index * 37 % 101) * *item).sum()
        };
        let (value, weight) = (sum(|seed| 1.3 + f64::from(seed)), sum(|seed| 2.7 + f64::from(seed * 53 % 97)));
        minimise(vars, (vec![constraint!(value >= worth)], weight), settings)
    }

    #[test]
    fn what_is_proven_is_known_wherever_the_search_ends() {
        let best = burden(900.0, &Settings::default());
        assert!(best.closed && best.values.is_some(), "{best:?}");
        let early = burden(900.0, &Settings { nodes: 1, ..Settings::default() });
        assert!(early.bound > 0.0 && early.bound <= best.bound.ms_or(0.0) + 1e-6, "{early:?} but {best:?}");
        let none = burden(900.0, &Settings { time_limit: Duration::ZERO, ..Settings::default() });
        assert!(!none.closed && none.bound <= best.bound.ms_or(0.0), "{none:?}");
        let never = burden(1e9, &Settings::default());
        assert!(never.closed && never.values.is_none() && !never.bound.is_feasible(), "{never:?}");
    }
}
