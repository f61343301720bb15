//! Rented machines beside the owned ones.

use super::task::Task;
use crate::{error::SearchError, request::spelling::Spelling};
use spipe_base::Diagnostic;
use spipe_hardware::Hardware;
use spipe_market::{RentPart, compose_rented, job_cost, rent_hour};
use spipe_whatif::{Answer, Judge, report::Rented};

/// The rented machines that were asked for: `all`, a kind, or a name.
fn asked<'a>(task: &'a Task, wanted: &[String]) -> Result<Vec<&'a RentPart>, SearchError> {
    let rents = &task.catalogue.rents;
    let is = |rent: &RentPart, word: &str| word == "all" || rent.kind.name() == word || rent.name == word;
    for word in wanted {
        if !rents.iter().any(|rent| is(rent, word)) {
            let hint = "use all, list, spot or marketplace, or a name that `command catalogue list` prints under `option kind rent`";
            return Err(SearchError::request(format!("no rented machine is `{word}`"), hint));
        }
    }
    Ok(rents.iter().filter(|rent| wanted.iter().any(|word| is(rent, word))).collect())
}

/// The offers with the numbers of machines that the job varies; several where the offer has a network.
///
/// # Errors
/// An offer that is named, and cannot be had in any of these numbers.
fn offers<'a>(task: &'a Task, wanted: &[String]) -> Result<Vec<(&'a RentPart, u32)>, SearchError> {
    let nodes = task.job.file.vary.nodes.clone().unwrap_or_else(|| vec![1]);
    let mut all = Vec::new();
    for rent in asked(task, wanted)? {
        let joined = nodes.iter().filter(|nodes| **nodes == 1 || rent.network.is_some());
        let before = all.len();
        all.extend(joined.map(|nodes| (rent, *nodes)));
        if all.len() == before && wanted.contains(&rent.name) {
            let message = format!("`{}` has no network that joins several of them", rent.name);
            return Err(SearchError::request(message, "vary `nodes` over 1 too, or name an offer with a network"));
        }
    }
    Ok(all)
}

/// Plans rented machines with low effort, and prices the job on them.
pub fn rented(
    task: &Task,
    judge: &impl Judge,
    wanted: &[String],
    spelling: Spelling,
) -> Result<Vec<Rented>, SearchError> {
    let mut all = Vec::new();
    for (rent, nodes) in offers(task, wanted)? {
        let machine = compose_rented(&task.catalogue, rent, nodes)
            .map_err(|error| SearchError::Input(error.diagnostic().into()))?;
        let hardware = Hardware::from_file(&machine.name, machine.hardware.clone())?;
        let hour = rent_hour((rent, nodes), task.setup.as_of, &task.job.rates).map_err(|error| {
            SearchError::Input(
                Diagnostic::error(error.to_string())
                    .hint(format!("state a rate, as {}", spelling.bare("rate", "USD=0.90")))
                    .into(),
            )
        })?;
        let (mut hours, mut tokens) = (0.0, 0.0);
        let mut fits = true;
        for (index, train) in task.job.file.train.iter().enumerate() {
            let Some(Answer::Planned(plan)) = judge.plan(&hardware, index) else {
                fits = false;
                break;
            };
            let jobs = task.job.times(train);
            hours += train.tokens.0.0 / plan.tokens_per_second / 3600.0 * jobs;
            tokens += train.tokens.0.0 * jobs;
        }
        if fits {
            all.push(Rented {
                machine: machine.name.clone(),
                nodes,
                kind: rent.kind.name().into(),
                hour,
                tokens_per_second: tokens / hours / 3600.0,
                hours,
                cost_of_job: job_cost(hours, hour),
                break_even_jobs_per_year: None,
            });
        }
    }
    all.sort_by(|left, right| left.cost_of_job.typical.total_cmp(&right.cost_of_job.typical));
    Ok(all)
}
