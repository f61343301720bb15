//! The planner's errors as failures of the command: their exit codes, and the options that would
//! help.

use crate::Failure;
use spipe_base::Diagnostic;
use spipe_planner::PlanError;

/// The failure that an error of the planner is.
pub fn failure(error: &PlanError) -> Failure {
    let diagnostic = hint(error).into_iter().fold(Diagnostic::error(error.to_string()), Diagnostic::hint);
    match error {
        PlanError::Infeasible { .. } | PlanError::NothingRuns { .. } | PlanError::NothingBetter { .. } => {
            Failure::Infeasible(diagnostic)
        }
        PlanError::StoppedWithoutPlan { .. } => Failure::Stopped(diagnostic),
        PlanError::TooLarge { .. } | PlanError::NoSystem => Failure::Arguments(diagnostic.into()),
        PlanError::Threads { .. } => Failure::Bug(error.to_string()),
    }
}

/// The remedy, where one is known.
pub fn hint(error: &PlanError) -> Option<&str> {
    match error {
        PlanError::Infeasible { hint, .. } => Some(hint),
        PlanError::StoppedWithoutPlan { .. } => Some("allow more time with `--time-limit`"),
        PlanError::TooLarge { .. } => Some("use `--planner ilp`"),
        PlanError::NoSystem => Some("allow `gpipe` or `1f1b`, or use `--system auto`"),
        PlanError::NothingRuns { .. } => {
            Some("an iteration may take at most 100 days: look for a rate of the machine that is far too small")
        }
        PlanError::NothingBetter { .. } | PlanError::Threads { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_base::SimTime;

    #[test]
    fn every_error_has_its_exit_code() {
        let infeasible =
            PlanError::Infeasible { reason: String::new(), hint: String::new(), missing: None, certain: false };
        for (error, code) in [
            (infeasible, 4),
            (PlanError::NothingRuns { examined: 1 }, 4),
            (PlanError::NothingBetter { bound: SimTime::ZERO, examined: 1, stopped: true }, 4),
            (PlanError::StoppedWithoutPlan { examined: 1 }, 5),
            (PlanError::TooLarge { placements: 2, limit: 1 }, 2),
            (PlanError::NoSystem, 2),
            (PlanError::Threads { threads: 1, what: String::new() }, 1),
        ] {
            assert_eq!(failure(&error).exit_code(), code, "{error:?}");
        }
    }
}
