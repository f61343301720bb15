//! Machines with their plans.

use super::order::front_of;
use crate::{Answer, Candidate, Figures, Job, Planned};
use std::collections::BTreeSet;

/// A machine with its plans.
pub(super) struct Solved<'a> {
    pub candidate: &'a Candidate,
    pub plans: Vec<&'a Planned>,
    pub figures: Figures,
}

/// The plans of a machine, or what it lacks, with true if a search failed.
pub(super) fn verdict<'a>(
    job: &Job,
    candidate: &'a Candidate,
    answers: &'a [Answer],
) -> Result<Solved<'a>, (String, bool)> {
    let mut plans = Vec::new();
    for (answer, train) in answers.iter().zip(&job.file.train) {
        let of = if job.file.train.len() > 1 { format!("{}: ", train.model) } else { String::new() };
        match answer {
            Answer::Planned(plan) => plans.push(plan),
            Answer::Infeasible(lacks) => return Err((format!("{of}{lacks}"), false)),
            Answer::Failed(message) => return Err((format!("{of}{message}"), true)),
        }
    }
    let figures =
        Figures::of_answers(job, candidate, answers).ok_or_else(|| ("a training has no plan".to_owned(), true))?;
    Ok(Solved { candidate, plans, figures })
}

/// The positions of machines that no other one beats or equals in hours and cost.
pub(super) fn front(solved: &[Solved<'_>]) -> BTreeSet<usize> {
    let figures: Vec<(f64, f64)> = solved.iter().map(|one| (one.figures.hours, one.figures.cost.typical)).collect();
    front_of(&figures)
}
