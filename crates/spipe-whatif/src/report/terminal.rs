//! The answer on a terminal, beside its tables: the front as characters, and remarks.

use super::{Subject, amount, money};
use crate::amount::Hours;

/// The size of the front in characters.
const SIZE: (usize, usize) = (60, 16);

/// Draws cost against time, both logarithmic: `●` on the front, `·` elsewhere.
pub fn front_plot(subject: &Subject<'_>) -> String {
    let points: Vec<(f64, f64, bool)> = subject
        .table
        .machines
        .iter()
        .map(|row| (row.figures.hours.ln(), row.figures.cost_of_job.typical.max(1e-9).ln(), row.front))
        .collect();
    let range = |of: fn(&(f64, f64, bool)) -> f64| {
        let low = points.iter().map(of).fold(f64::INFINITY, f64::min);
        let high = points.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
        (low, (high - low).max(1e-9))
    };
    if points.len() < 2 {
        return String::new();
    }
    let (across, up) = (range(|point| point.0), range(|point| point.1));
    let mut cells = vec![vec![' '; SIZE.0]; SIZE.1];
    // Points of the front are drawn last.
    for wanted in [false, true] {
        for (x, y, front) in points.iter().filter(|point| point.2 == wanted) {
            let column = ((x - across.0) / across.1 * (SIZE.0 - 1) as f64).round() as usize;
            let line = ((y - up.0) / up.1 * (SIZE.1 - 1) as f64).round() as usize;
            cells[SIZE.1 - 1 - line][column] = if *front { '●' } else { '·' };
        }
    }
    let mut text =
        format!("cost of the job, {} to {} {}\n", money(up.0.exp()), money((up.0 + up.1).exp()), subject.currency());
    for line in cells {
        text += &format!("│{}\n", line.into_iter().collect::<String>().trim_end());
    }
    text += &format!("└{}\n", "─".repeat(SIZE.0));
    text + &format!("time, {} to {}; ● on the front\n", Hours(across.0.exp()), Hours((across.0 + across.1).exp()))
}

/// Returns what is infeasible, the next euro, and what was left out, as lines.
pub fn lines(subject: &Subject<'_>, most: usize) -> String {
    let (table, currency) = (subject.table, subject.currency());
    let mut text = String::new();
    for machine in table.infeasible.iter().take(most) {
        let repair = match &machine.repair {
            Some(repair) => {
                let most = if machine.repair_is_cheapest { "" } else { "at most " };
                let price = format!("{most}{}{} {currency}", sign(repair.price), money(repair.price));
                format!("; cheapest repair: {} ({price})", repair.change)
            }
            None if machine.repair_is_cheapest => "; no change of one kind of part mends it".to_owned(),
            None => String::new(),
        };
        text += &format!("no plan  {}: {}{repair}\n", machine.machine.replace('_', " "), machine.lacks);
    }
    if table.infeasible.len() > most {
        text += &format!("no plan  {} more machines\n", table.infeasible.len() - most);
    }
    for machine in table.failed.iter().take(most) {
        text += &format!("failed   {}: {}\n", machine.machine, machine.lacks);
    }
    for swing in
        table.tornado.iter().flat_map(|tornado| &tornado.inputs).filter(|swing| swing.turn.is_some()).take(most)
    {
        let (low, high) = (amount(swing.low.value), amount(swing.high.value));
        if let Some(turn) = &swing.turn {
            let (value, first) = (amount(turn.value), turn.first.replace('_', " "));
            let (input, unit) = (&swing.input, &swing.unit);
            text += &format!("rank 1   {input} (from {low} to {high} {unit}): from {value} on it is {first}\n");
        }
    }
    for change in table.next.iter().take(most) {
        let gain = change.gain.unwrap_or(0.0) * 100.0;
        text += &format!(
            "next     {}: {gain:+.1} % for {}{} {currency}\n",
            change.change,
            sign(change.price),
            money(change.price)
        );
    }
    for rented in subject.rented.iter().take(most) {
        let even = match rented.break_even_jobs_per_year {
            Some(jobs) if jobs >= 10.0 => format!("owning is cheaper from {jobs:.0} times a year"),
            Some(jobs) => format!("owning is cheaper from {jobs:.1} times a year"),
            None => "renting is always cheaper".to_owned(),
        };
        text += &format!(
            "rent     {} ({}): {} for {} {currency}; {even}\n",
            rented.machine,
            rented.kind,
            Hours(rented.hours),
            money(rented.cost_of_job.typical)
        );
    }
    for skipped in &table.skipped {
        text += &format!("skipped  {} by `{}`, such as: {}\n", skipped.count, skipped.rule, skipped.example);
    }
    let counts = table.counts;
    text += &format!("{} planned, {} shared, {} bounded", counts.solved, counts.shared, counts.bounded);
    if counts.left > 0 {
        text += &format!(", {} left out when the time was up: give more with `option time-limit`", counts.left);
    }
    text + "\n"
}

/// The sign of an amount.
const fn sign(amount: f64) -> &'static str {
    if amount < 0.0 { "−" } else { "+" }
}
