//! The answer as one self-contained HTML page.
//!
//! | part | file |
//! |---|---|
//! | words, table, plots | `page.html`, a minijinja template |
//! | looks in light, dark and print | `page.css` |
//! | sorting of the table | `page.js` |
//!
//! The page's content security policy forbids network access; plots are inline SVG.

use super::{BASELINES, Figure, Rented, Subject, amount, answer, formulas, money, question, signed_percent};
use crate::{Baseline, Table, amount::Hours};
use minijinja::Environment;
use serde::Serialize;
use std::collections::BTreeMap;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The text that each machine opens: its plan in words.
pub type Linked = BTreeMap<usize, String>;

#[derive(Serialize)]
struct Page<'a> {
    title: String,
    question: String,
    answer: String,
    table: &'a Table,
    rows: Vec<Words>,
    inputs: Vec<Moved>,
    baselines: Vec<Estimated>,
    baselines_are: &'static str,
    rented: &'a [Rented],
    figures: &'a [Figure],
    formulas: Vec<&'static str>,
    currency: String,
    as_of: String,
    style: &'static str,
    script: &'static str,
}

/// The figures of a row in words, with the numbers to sort by.
#[derive(Serialize)]
struct Words {
    hours: String,
    /// Typical, and from lowest to highest.
    price: [String; 2],
    cost: [String; 2],
    rate: String,
    per_million: String,
    plan: String,
    memory: Vec<String>,
    provenance: String,
}

/// A baseline in words.
#[derive(Serialize)]
struct Estimated {
    machine: String,
    system: String,
    rate: String,
    hours: String,
    cost: [String; 2],
    per_million: String,
    memory: String,
}

impl Estimated {
    fn of(baseline: &Baseline) -> Self {
        Self {
            machine: baseline.machine.replace('_', " "),
            system: baseline.system.clone(),
            rate: spipe_base::readable::per_second(baseline.figures.tokens_per_second),
            hours: Hours(baseline.figures.hours).to_string(),
            cost: interval(&baseline.figures.cost_of_job),
            per_million: three_digits(baseline.figures.cost_per_million_tokens),
            memory: spipe_base::Bytes::new(baseline.gpu_memory_bytes).to_string(),
        }
    }
}

/// An input of the tornado in words.
#[derive(Serialize)]
struct Moved {
    input: String,
    source: &'static str,
    /// The least, the typical and the largest value.
    values: [String; 3],
    unit: String,
    /// The margins at the least and at the largest value.
    margins: [String; 2],
    /// The costs of the job on rank 1 at these values.
    costs: [String; 2],
    /// The value from which another machine is first, and that machine.
    turn: String,
}

impl Moved {
    fn of(swing: &crate::Swing) -> Self {
        let ends = [&swing.low, &swing.high];
        let turn = swing.turn.as_ref();
        Self {
            input: swing.input.clone(),
            source: swing.source,
            values: [swing.low.value, swing.typical, swing.high.value].map(amount),
            unit: swing.unit.clone(),
            margins: ends.map(|end| end.margin.map_or_else(|| "–".into(), signed_percent)),
            costs: ends.map(|end| money(end.cost)),
            turn: turn.map_or_else(
                || "stays".into(),
                |turn| format!("at {}: {}", amount(turn.value), turn.first.replace('_', " ")),
            ),
        }
    }
}

/// A typical amount, and its range.
fn interval(range: &spipe_market::Range) -> [String; 2] {
    [money(range.typical), format!("{}–{}", money(range.low), money(range.high))]
}

/// A number to three significant digits.
fn three_digits(number: f64) -> String {
    let digits = if number > 0.0 { (2.0 - number.log10().floor()).clamp(0.0, 9.0) } else { 0.0 };
    format!("{number:.0$}", digits as usize)
}

/// Renders the page. `plans` are the plans of machines by their place in the sweep.
pub fn page(subject: &Subject<'_>, figures: &[Figure], plans: &Linked) -> String {
    let rows = subject.table.machines.iter().map(|row| {
        let candidate = &subject.sweep.candidates[row.index];
        let (gpu, platform) = (&candidate.machine.hardware.gpu, &candidate.machine.hardware.socket);
        let sources = gpu
            .iter()
            .filter_map(|gpu| gpu.source.clone())
            .chain(platform.iter().filter_map(|socket| socket.source.clone()));
        Words {
            hours: Hours(row.figures.hours).to_string(),
            price: interval(&row.price),
            cost: interval(&row.figures.cost_of_job),
            rate: spipe_base::readable::per_second(row.figures.tokens_per_second),
            per_million: three_digits(row.figures.cost_per_million_tokens),
            plan: plans.get(&row.index).cloned().unwrap_or_default(),
            memory: row
                .head_room_bytes
                .iter()
                .map(|(name, bytes)| format!("{name}: {} free", spipe_base::Bytes::new(*bytes)))
                .collect(),
            provenance: sources.collect::<Vec<_>>().join(" · "),
        }
    });
    let page = Page {
        title: subject.job.file.name.clone().unwrap_or_else(|| "What to buy".into()),
        question: question(subject),
        answer: answer(subject),
        table: subject.table,
        rows: rows.collect(),
        inputs: subject.table.tornado.iter().flat_map(|tornado| &tornado.inputs).map(Moved::of).collect(),
        baselines: subject.table.baselines.iter().map(Estimated::of).collect(),
        baselines_are: BASELINES,
        rented: subject.rented,
        figures,
        formulas: formulas().into(),
        currency: subject.currency(),
        as_of: subject.as_of.to_string(),
        style: STYLE,
        script: SCRIPT,
    };
    let mut environment = Environment::new();
    // minijinja escapes inserted text because of the name's extension.
    let rendered =
        environment.add_template("page.html", PAGE).and_then(|()| environment.get_template("page.html")?.render(page));
    match rendered {
        Ok(page) => page,
        Err(error) => unreachable!("the template is part of this crate and its context has every name: {error}"),
    }
}
