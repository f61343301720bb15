//! The answer of a sweep: the first machines planned again with much effort, then tables and files.

use crate::{
    Failure, args, args::Format, options::OPTIONS, output, output::Target, report as reports, tables::dense_table,
};
use indicatif::ProgressBar;
use serde::Serialize;
use spipe_base::{Bytes, Diagnostic, readable::per_second};
use spipe_search::{
    Found,
    whatif::{JobPlanner, Look, Looked, Task, second_look},
};
use spipe_timeline::Picture;
use spipe_trace::Trace;
use spipe_whatif::{
    Objective, Run, Table,
    amount::Hours,
    report,
    report::{Linked, Rented, Subject},
};
use std::path::Path;

/// The lines of each list on the terminal.
const LINES: usize = 8;

/// The width of timelines on the page, in characters.
const WIDTH: usize = 100;

/// An answer to give.
pub struct Answerer<'a> {
    pub task: &'a Task,
    pub planner: &'a JobPlanner,
    pub bar: &'a ProgressBar,
    pub rent: &'a [String],
    pub output: &'a args::WhatifOutput,
    pub format: Format,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct AnswerOutput<'a> {
    format_version: u32,
    status: &'static str,
    question: String,
    answer: String,
    objective: Objective,
    currency: String,
    as_of: String,
    #[serde(flatten)]
    table: &'a Table,
    rented: &'a [Rented],
    formulas: Vec<&'static str>,
}

impl Answerer<'_> {
    /// Looks at the first machines again, ranks, prints and writes.
    pub fn answer(&self, run: Run, target: Option<Target>) -> Result<(), Failure> {
        let look = Look {
            lines: LINES,
            rent: self.rent,
            all_words: self.output.output.as_deref().is_some_and(|path| path.ends_with(".html")),
            describe: &described,
            spelling: OPTIONS,
        };
        let looked = second_look(self.task, self.planner, run, &look);
        self.bar.finish_and_clear();
        let Looked { table, rented, plans } = looked?;
        let subject = self.task.subject(&table, &rented);
        self.write(&subject, &plans, target)?;
        self.verdict(&subject)
    }

    fn write(&self, subject: &Subject<'_>, plans: &Linked, target: Option<Target>) -> Result<(), Failure> {
        let data = AnswerOutput {
            format_version: 1,
            status: status(subject),
            question: report::question(subject),
            answer: report::answer(subject),
            objective: subject.objective,
            currency: self.task.job.own.currency.to_string(),
            as_of: subject.as_of.to_string(),
            table: subject.table,
            rented: subject.rented,
            formulas: report::formulas().into(),
        };
        let figures =
            || report::plots(subject).map_err(|error| Failure::Bug(format!("a plot cannot be drawn: {error}")));
        if let Some(folder) = &self.output.plots {
            for figure in figures()? {
                Target::in_folder(Path::new(folder), &format!("{}.svg", figure.name))?.write(figure.svg.as_bytes())?;
            }
        }
        let to_stdout = matches!(target, Some(Target::Stdout));
        if let (Some(target), Some(path)) = (target, &self.output.output) {
            let content = match Path::new(path).extension().and_then(|end| end.to_str()) {
                Some("html") => report::page(subject, &figures()?, plans),
                Some("csv") => report::csv(subject.table),
                Some("svg") => figures()?.into_iter().next().map(|figure| figure.svg).unwrap_or_default(),
                _ => output::to_json(&data)?,
            };
            target.write(content.as_bytes())?;
        }
        if to_stdout {
            return Ok(());
        }
        output::report(self.format, &human(subject, &data, self.task.setup.rows), &data)
    }

    /// The exit code: nothing feasible, or nothing in time, is no success.
    fn verdict(&self, subject: &Subject<'_>) -> Result<(), Failure> {
        let counts = subject.table.counts;
        let Some(first) = subject.table.machines.first() else {
            if counts.left > 0 {
                let fault = Diagnostic::error("the sweep was stopped before a machine had a plan");
                return Err(Failure::Stopped(fault.hint("give it more time, or vary less")));
            }
            let fault = Diagnostic::error("no machine of the sweep has a plan");
            return Err(Failure::Infeasible(fault.hint("vary more memory, or more GPUs")));
        };
        if first.figures.meets_deadline == Some(false) {
            let deadline = self.task.job.deadline().unwrap_or_default();
            let message = format!(
                "no machine meets the deadline of {}: the closest takes {}",
                Hours(deadline),
                Hours(first.figures.hours)
            );
            return Err(Failure::Infeasible(
                Diagnostic::error(message).hint("vary faster or more GPUs, or allow more time"),
            ));
        }
        Ok(())
    }
}

/// A plan of the page in words, with its timeline.
fn described(found: &Found, trace: &Trace) -> String {
    let timeline = spipe_timeline::text(&Picture { trace, second: None, title: None }, WIDTH);
    format!("{}\n{timeline}", reports::plan::human(found, ("", &[]), None))
}

fn status(subject: &Subject<'_>) -> &'static str {
    match subject.table.machines.first() {
        _ if subject.table.counts.left > 0 => "stopped",
        None => "infeasible",
        Some(first) if first.figures.meets_deadline == Some(false) => "late",
        Some(_) => "ok",
    }
}

/// The meaning of the mark of systems.
const ESTIMATES: &str = " *: runs of the system were not measured under the runtime that predicts it.";

fn human(subject: &Subject<'_>, data: &AnswerOutput<'_>, rows: usize) -> String {
    let currency = &data.currency;
    let cost = format!("{currency} a job");
    let headings = ["", "tie", "machine", currency.as_str(), "tokens/s", "time", &cost, "plan, busiest lane", "front"];
    let mut table = dense_table(&headings, &[0, 3, 4, 5, 6, 8]);
    for row in subject.table.machines.iter().take(rows) {
        let mark = match row.figures.meets_deadline {
            Some(true) => " ✓",
            Some(false) => " ✗",
            None => "",
        };
        let busiest = row
            .bottleneck
            .as_ref()
            .map(|busy| format!("\n{} {:.0} %", busy.lane, busy.share * 100.0))
            .unwrap_or_default();
        let range = |range: &spipe_market::Range| {
            format!("{}\n{}–{}", report::money(range.typical), report::money(range.low), report::money(range.high))
        };
        table.add_row(vec![
            row.rank.to_string(),
            row.tie.clone(),
            two_lines(&row.machine),
            range(&row.price),
            per_second(row.figures.tokens_per_second),
            format!("{}{mark}", Hours(row.figures.hours)),
            range(&row.figures.cost_of_job),
            format!(
                "{}{}{busiest}{}",
                row.system,
                if row.estimate { " *" } else { "" },
                if row.engines.as_deref() == Some(&[]) { "\nno engine runs it" } else { "" }
            ),
            format!("{}{:.0} %", if row.front { "● " } else { "" }, row.front_share * 100.0),
        ]);
    }
    let error = subject.table.machines.first().map_or(0.0, |row| row.error);
    let remark = format!(
        "Predictions: ± {:.0} % where nothing was fitted to the machine, an estimate. Prices: ranges of data sheets, listings and estimates; \
         `spipe catalogue show PART` has each with its source.{}",
        error * 100.0,
        if subject.table.machines.iter().take(rows).any(|row| row.estimate) { ESTIMATES } else { "" },
    );
    let table = if table.is_empty() { String::new() } else { format!("{table}\n{remark}\n\n") };
    format!(
        "{}\n\n{}\n\n{table}{}{}\n{}",
        data.question,
        data.answer,
        baselines(subject.table, &cost),
        report::front_plot(subject),
        report::lines(subject, LINES)
    )
}

/// The baselines, a row each; `cost` is the heading of the costs.
fn baselines(table: &Table, cost: &str) -> String {
    let mut rows = dense_table(&["machine", "baseline", "tokens/s", "time", cost, "GPU memory"], &[2, 3, 4, 5]);
    for one in table.baselines.iter().take(LINES) {
        rows.add_row(vec![
            two_lines(&one.machine),
            one.system.clone(),
            per_second(one.figures.tokens_per_second),
            Hours(one.figures.hours).to_string(),
            report::money(one.figures.cost_of_job.typical),
            Bytes::new(one.gpu_memory_bytes).to_string(),
        ]);
    }
    let more = match table.baselines.len().saturating_sub(LINES) {
        0 => String::new(),
        more => format!("… and of {more} more machines\n"),
    };
    if rows.is_empty() { String::new() } else { format!("Baselines: {}\n\n{rows}\n{more}\n", report::BASELINES) }
}

/// The name of a machine with its memory and its condition on a second line.
fn two_lines(name: &str) -> String {
    let mut parts = name.splitn(3, '_');
    let first: Vec<&str> = parts.by_ref().take(2).collect();
    let rest = parts.next().map(|rest| format!("\n{}", rest.replace('_', " "))).unwrap_or_default();
    first.join(" ") + &rest
}
