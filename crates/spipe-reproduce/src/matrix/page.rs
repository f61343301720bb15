//! The rows as a page: a summary, the speed of each model on each machine, and each plan beside the
//! baselines'.

use super::{BASELINES, MatrixRow, TIME, TIME_OF_GPU, TOKENS};
use spipe_base::readable::{count, grouped, percent};
use std::{collections::BTreeMap, fmt::Write as _};

/// A baseline slower by this factor computes on CPUs because its plans do not fit on the GPUs.
const FAR: f64 = 10.0;

/// Half of the last digit of a percentage with one decimal.
const ROUNDED: f64 = 0.0005;

/// The gaps up to which plans are counted.
const GAPS: [f64; 4] = [0.01, 0.02, 0.05, 0.1];

/// The page of all rows, in Markdown.
pub fn markdown(rows: &[MatrixRow]) -> String {
    let mut machines: Vec<&str> = rows.iter().map(|row| row.machine.as_str()).collect();
    machines.dedup();
    let mut text = method() + &summary(rows) + &speeds(rows, &machines);
    for machine in machines {
        let of_machine: Vec<&MatrixRow> = rows.iter().filter(|row| row.machine == machine).collect();
        text += &plans(machine, &of_machine);
    }
    text
}

fn method() -> String {
    format!(
        "# The planner beside its baselines\n\n\
         `spipe reproduce planner -o reports` plans every shipped model on every shipped machine: training, microbatches of one \
         sequence of at most {TOKENS} tokens, two microbatches per GPU and at least 8, bf16 where the GPUs have it, otherwise fp16, \
         {} s for each planner on one thread, or {} s for each GPU where that is more. All times are of simulated iterations. \
         All are planned under the runtime `spipe`, which adds nothing to the machine's rates, so that plans differ by their planner \
         alone.\n\n\
         - **gap**: (our iteration − the proven lower bound) ÷ our iteration. No placement of the systems considered, with any number \
         of stages on a device, is faster by more than that.\n\
         - **gain**: the iteration of the best baseline ÷ ours. *greedy* fills GPUs in order, *dp* balances stages by dynamic \
         programming, both of GPipe, 1F1B and the hybrid; *mobius-mip* is the partition MIP of Mobius.\n\
         - **why**: what our plan does elsewhere than that baseline's, and the cause of idle time that shrank most.\n\n",
        TIME.as_secs(),
        TIME_OF_GPU.as_secs_f64(),
    )
}

fn summary(rows: &[MatrixRow]) -> String {
    let planned: Vec<&MatrixRow> = rows.iter().filter(|row| row.iteration_ms.is_some()).collect();
    let mut gains: Vec<f64> = planned.iter().filter_map(|row| row.gain).collect();
    gains.sort_by(f64::total_cmp);
    let mut gaps: Vec<f64> = planned.iter().filter_map(|row| row.gap).collect();
    gaps.sort_by(f64::total_cmp);
    let worse = gains.iter().filter(|gain| **gain < 1.0 - 1e-9).count();
    let near: Vec<f64> = gains.iter().copied().filter(|gain| *gain < FAR).collect();
    let within = GAPS
        .map(|most| format!("{} within {}", gaps.iter().filter(|gap| **gap < most + ROUNDED).count(), percent(most)));
    format!(
        "{} pairs: {} have a plan, {} of them one of a baseline too. Worse than a baseline: {worse}. Median gain {:.2}×, geometric mean \
         {:.2}×; without the {} whose best baseline takes more than {FAR:.0} times as long, computing on CPUs what does not fit on the \
         GPUs, {:.2}×. Median gap {}: {} of {}.\n\n",
        rows.len(),
        planned.len(),
        gains.len(),
        median(&gains),
        mean(&gains),
        gains.len() - near.len(),
        mean(&near),
        percent(median(&gaps)),
        within.join(", "),
        gaps.len(),
    )
}

/// The speed of each model on each machine, models by size.
fn speeds(rows: &[MatrixRow], machines: &[&str]) -> String {
    let mut models: BTreeMap<(u64, &str), BTreeMap<&str, &MatrixRow>> = BTreeMap::new();
    for row in rows {
        models.entry((row.parameters, &row.model)).or_default().insert(&row.machine, row);
    }
    let mut text = format!(
        "## Speeds\n\nTokens per second, of models that read images images per second; – where nothing fits.\n\n\
         | model | parameters | {} |\n|---|--:|{}\n",
        machines.join(" | "),
        "--:|".repeat(machines.len())
    );
    for ((parameters, model), on) in models {
        let cells: Vec<String> = machines
            .iter()
            .map(|machine| on.get(machine).and_then(|row| row.per_second).map_or_else(|| "–".into(), short))
            .collect();
        let _ = writeln!(text, "| {model} | {} | {} |", count(parameters as f64), cells.join(" | "));
    }
    text
}

/// The plans of one machine, and the models without a plan there.
fn plans(machine: &str, rows: &[&MatrixRow]) -> String {
    let mut text = format!("\n## {machine}\n\n");
    let (some, none): (Vec<&MatrixRow>, Vec<&MatrixRow>) =
        rows.iter().copied().partition(|row| row.iteration_ms.is_some());
    if !some.is_empty() {
        let _ = write!(
            text,
            "| model | system | iteration | per second | gap | {} | gain | why |\n|---|---|--:|--:|--:|{}--:|---|\n",
            BASELINES.join(" | "),
            "--:|".repeat(BASELINES.len())
        );
    }
    for row in some {
        let baseline = |name: &&str| row.baselines.get(name).map_or_else(|| "–".into(), |time| duration(*time));
        let what = if row.images { "images" } else { "tokens" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} {what} | {} | {} | {} | {} |",
            row.model,
            row.system.map(|system| system.to_string()).unwrap_or_default(),
            row.iteration_ms.map(duration).unwrap_or_default(),
            row.per_second.map(short).unwrap_or_default(),
            row.gap.map(percent).unwrap_or_default(),
            BASELINES.iter().map(baseline).collect::<Vec<_>>().join(" | "),
            row.gain.map_or_else(|| "–".into(), |gain| format!("{gain:.2}×")),
            row.why
        );
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in none {
        reasons.entry(&row.why).or_default().push(&row.model);
    }
    for (reason, models) in reasons {
        let _ = write!(text, "\nWithout a plan, {reason}: {}.\n", models.join(", "));
    }
    text
}

/// Three significant digits below 100, whole numbers above: `7.26`, `58.5`, `14 200`.
fn short(number: f64) -> String {
    match number {
        small if small < 10.0 => format!("{small:.2}"),
        small if small < 100.0 => format!("{small:.1}"),
        large => grouped(large.round() as u64),
    }
}

/// A time given in milliseconds, in the unit that suits its size.
fn duration(ms: f64) -> String {
    match ms {
        _ if ms < 1e3 => format!("{} ms", short(ms)),
        _ if ms < 120e3 => format!("{} s", short(ms / 1e3)),
        _ if ms < 7200e3 => format!("{} min", short(ms / 60e3)),
        _ => format!("{} h", short(ms / 3600e3)),
    }
}

/// The median of sorted numbers; of an even number, the upper middle one.
fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(1.0)
}

/// The geometric mean.
fn mean(numbers: &[f64]) -> f64 {
    (numbers.iter().map(|number| number.ln()).sum::<f64>() / numbers.len().max(1) as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_plan::System;

    fn row(model: &str, parameters: u64, machine: &str, planned: Option<(f64, f64)>) -> MatrixRow {
        MatrixRow {
            model: model.into(),
            parameters,
            machine: machine.into(),
            system: planned.map(|_| System::Gpipe),
            iteration_ms: planned.map(|(ms, _)| ms),
            per_second: planned.map(|(ms, _)| 16384e3 / ms),
            images: model == "vit",
            gap: planned.map(|_| 0.010_005),
            baselines: planned.into_iter().map(|(_, other)| ("dp", other)).collect(),
            gain: planned.map(|(ms, other)| other / ms),
            why: if planned.is_some() { "other cuts than dp" } else { "nothing fits" }.into(),
        }
    }

    #[test]
    fn the_page_says_what_each_machine_reaches() {
        let rows = [
            row("large", 70_000_000_000, "one", None),
            row("small", 125_000_000, "one", Some((74.13, 88.956))),
            row("large", 70_000_000_000, "two", Some((1500.0, 7_200_000.0))),
            row("vit", 86_000_000, "two", Some((150_000.0, 150_000.0))),
        ];
        let page = markdown(&rows);
        let page = &page[page.find("4 pairs").unwrap()..];
        insta::assert_snapshot!(page, @r"
        4 pairs: 3 have a plan, 3 of them one of a baseline too. Worse than a baseline: 0. Median gain 1.20×, geometric mean 17.93×; without the 1 whose best baseline takes more than 10 times as long, computing on CPUs what does not fit on the GPUs, 1.10×. Median gap 1.0 %: 3 within 1.0 %, 3 within 2.0 %, 3 within 5.0 %, 3 within 10.0 % of 3.

        ## Speeds

        Tokens per second, of models that read images images per second; – where nothing fits.

        | model | parameters | one | two |
        |---|--:|--:|--:|
        | vit | 86.00 M | – | 109 |
        | small | 125.00 M | 221 017 | – |
        | large | 70.00 B | – | 10 923 |

        ## one

        | model | system | iteration | per second | gap | greedy | dp | mobius-mip | gain | why |
        |---|---|--:|--:|--:|--:|--:|--:|--:|---|
        | small | gpipe | 74.1 ms | 221 017 tokens | 1.0 % | – | 89.0 ms | – | 1.20× | other cuts than dp |

        Without a plan, nothing fits: large.

        ## two

        | model | system | iteration | per second | gap | greedy | dp | mobius-mip | gain | why |
        |---|---|--:|--:|--:|--:|--:|--:|--:|---|
        | large | gpipe | 1.50 s | 10 923 tokens | 1.0 % | – | 2.00 h | – | 4800.00× | other cuts than dp |
        | vit | gpipe | 2.50 min | 109 images | 1.0 % | – | 2.50 min | – | 1.00× | other cuts than dp |
        ");
    }
}
