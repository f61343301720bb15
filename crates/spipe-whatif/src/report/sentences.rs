//! The question and the answer, each as a sentence.

use super::{Subject, money};
use crate::{Objective, amount::Hours};
use spipe_base::readable::per_second;

/// Returns the question as a sentence.
pub fn question(subject: &Subject<'_>) -> String {
    let job = subject.job;
    let train = |train: &crate::TrainFile| {
        let seq_len = train.seq_len.map(|length| format!(", sequences of {length}")).unwrap_or_default();
        let precision = train.precision.map_or_else(|| "bf16".to_owned(), |precision| precision.to_string());
        let often = train
            .jobs_per_year
            .filter(|jobs| (jobs - 1.0).abs() > 1e-9)
            .map(|jobs| format!(", {jobs} times a year"))
            .unwrap_or_default();
        let batch = train.global_batch.unwrap_or(crate::GLOBAL_BATCH);
        let runtime = train.runtime.as_ref().map(|runtime| format!(", {runtime}")).unwrap_or_default();
        format!("{}, {} tokens{seq_len}, batch {batch}, {precision}{runtime}{often}", train.model, train.tokens.0)
    };
    let mut parts: Vec<String> = job.file.train.iter().map(train).collect();
    parts.extend(job.deadline().map(|hours| format!("within {}", Hours(hours))));
    parts.extend(job.budget.map(|budget| format!("at most {} {}", money(budget), subject.currency())));
    parts.extend(job.file.limits.wall_power.map(|power| format!("at most {} at the wall", power.0)));
    let own = &job.own;
    parts.push(format!("{:.0} years at {:.0} % use", own.years, own.utilisation * 100.0));
    parts.push(format!("{} {} per kWh", own.kilowatt_hour, subject.currency()));
    parts.push(format!("prices known on {}", subject.as_of));
    parts.join("; ") + "."
}

/// Returns the answer as a sentence: the first machine, or the cheapest of those that tie with it, with the
/// reason.
pub fn answer(subject: &Subject<'_>) -> String {
    let Some(first) = subject.table.machines.first() else {
        let left = subject.table.counts.left;
        if left > 0 {
            return format!("The time was up before a machine had a plan, with {left} machines left.");
        }
        return "No machine of the sweep has a plan. Below is what they lack, with the cheapest repair.".into();
    };
    let currency = subject.currency();
    let tied: Vec<_> = subject.table.machines.iter().filter(|row| row.tie == first.tie).collect();
    let pick = tied.iter().min_by(|left, right| left.price.typical.total_cmp(&right.price.typical)).unwrap_or(&tied[0]);
    if first.figures.meets_deadline == Some(false) {
        let deadline = subject.job.deadline().unwrap_or_default();
        return format!(
            "No machine meets the deadline of {}. The closest is {}: {}.",
            Hours(deadline),
            first.machine.replace('_', " "),
            Hours(first.figures.hours)
        );
    }
    let facts = format!(
        "{} for {} {currency} [{}–{}]: {} at {} tokens/s, {} {currency} for the job [{}–{}]",
        pick.machine.replace('_', " "),
        money(pick.price.typical),
        money(pick.price.low),
        money(pick.price.high),
        Hours(pick.figures.hours),
        per_second(pick.figures.tokens_per_second),
        money(pick.figures.cost_of_job.typical),
        money(pick.figures.cost_of_job.low),
        money(pick.figures.cost_of_job.high),
    );
    let why = match subject.objective {
        Objective::Cost | Objective::TokensPerEuro => "cost",
        Objective::Time => "time",
        Objective::Energy => "energy",
    };
    let stable = format!("It is first in {:.0} % of the draws of prices", first.first_share * 100.0);
    let unstable = if first.first_share < 0.5 { ": the order is not stable" } else { "" };
    let outside = if pick.outside.is_empty() { String::new() } else { format!(" Mind: {}.", pick.outside.join("; ")) };
    let counts = subject.table.counts;
    let outside = match counts.left {
        0 => outside,
        left => {
            let known = counts.solved + counts.shared + counts.bounded;
            format!(
                "{outside} The time was up with {known} of {} machines decided: another may be better.",
                known + left
            )
        }
    };
    if tied.len() == 1 {
        return format!("Buy {facts}. {stable}{unstable}.{outside}");
    }
    format!(
        "{} machines cannot be told apart by {why} (within {:.0} %); the cheapest of them to buy is {facts}. The one of rank 1 is \
         first in {:.0} % of the draws of prices{unstable}.{outside}",
        tied.len(),
        crate::NOISE.max(first.error) * 100.0,
        first.first_share * 100.0,
    )
}

/// Returns the formulas of the figures.
pub const fn formulas() -> [&'static str; 6] {
    [
        "hours = tokens ÷ tokens per second ÷ 3,600; over all trainings of a year where there are several",
        "hour of an owned machine = price · (1 + tax) · (1 − residual) ÷ (years · 8,766 h · use) + W ÷ 1,000 · PUE · price per kWh",
        "cost of the job = hours · that; the lowest has the lowest price and the highest residual value",
        "W = base + Σ GPU (idle + busy share · (training share · board power − idle)) + busy share of the cores · (CPU power − idle)",
        "hour of a rented machine = its rate; break-even = where a year of both costs the same",
        "next euro = relative gain in tokens per second ÷ difference of the typical price, for one changed kind of part",
    ]
}
