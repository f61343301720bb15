//! The second look at a sweep that was run: machines near the first one, repairs of those without a plan, much effort for
//! the first ten, and rented machines and baselines beside them.

use super::{
    baselines::baselines,
    neighbours::Neighbours,
    planner::JobPlanner,
    rented,
    repairs::Repairs,
    task::Task,
    with_effort::{Again, Describe},
};
use crate::{error::SearchError, request::spelling::Spelling};
use spipe_whatif::{
    Ranking, Run, Table, UNFITTED_ERROR, rank, report,
    report::{Linked, Rented},
};

/// The shares of the time that is left which go to neighbours and repairs, and then to much effort for the first
/// machines; the rest is for rented machines.
const NEIGHBOURS: f64 = 0.3;
const EFFORT: f64 = 0.8;

/// The extent of a second look.
pub struct Look<'a> {
    /// The lines of each list that is shown.
    pub lines: usize,
    /// The rented machines to plan: `all`, a kind, or names.
    pub rent: &'a [String],
    /// Whether every plan of the table is wanted in words.
    pub all_words: bool,
    /// The words for a plan.
    pub describe: Describe<'a>,
    /// The words for settings in messages.
    pub spelling: Spelling,
}

/// The result of a second look.
pub struct Looked {
    /// The ranked machines.
    pub table: Table,
    /// The rented machines, the cheapest first.
    pub rented: Vec<Rented>,
    /// Plans in words, by place of their machine.
    pub plans: Linked,
}

/// Looks at the first machines of a run again, and ranks all.
///
/// # Errors
/// A machine is invalid, or no rented machine has a name that was asked for.
pub fn second_look(task: &Task, planner: &JobPlanner, mut run: Run, look: &Look<'_>) -> Result<Looked, SearchError> {
    let ranking = Ranking {
        objective: task.setup.objective,
        rows: task.setup.rows,
        error: UNFITTED_ERROR,
        as_of: task.setup.as_of,
        own: task.own,
    };
    let ranked = |run: &Run| rank((&task.job, &task.sweep), run, ranking);
    let low = ranked(&run);
    planner.begin(NEIGHBOURS);
    if let Some(first) = low.machines.first() {
        let near = Neighbours { task, planner, lines: look.lines };
        near.look(&mut run, task.own.unwrap_or(first.index))?;
    }
    let repairs = Repairs::of(task, planner).look(&mut run, &low, look.lines)?;
    planner.begin(EFFORT);
    let again = Again { task, planner, describe: look.describe };
    let mut plans = Linked::new();
    let efforts = again.with_effort(&mut run, &low, &mut plans)?;
    let mut table = ranked(&run);
    table.machines.iter_mut().for_each(|row| row.effort = efforts.get(&row.index).copied());
    for machine in &mut table.infeasible {
        if let Some(repair) = repairs.get(&machine.index) {
            machine.repair.clone_from(repair);
            machine.repair_is_cheapest = true;
        }
    }
    table.baselines = baselines(task, planner, &table)?;
    planner.begin(1.0);
    let mut rented = rented::rented(task, planner, look.rent, look.spelling)?;
    if look.all_words {
        again.words(&run, &table, &mut plans)?;
    }
    if let Some(first) = table.machines.first() {
        for one in &mut rented {
            let even = report::break_even(&task.subject(&table, &[]), first, one.cost_of_job.typical);
            one.break_even_jobs_per_year = even;
        }
    }
    Ok(Looked { table, rented, plans })
}
