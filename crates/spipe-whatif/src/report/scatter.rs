//! Cost against time, both logarithmic: intervals of the cost as bars, the front as a line, rented machines as
//! rings, the deadline as a rule.

use super::{Subject, money, svg::Svg};
use crate::{Row, amount::Hours};

/// The plot's inner size in points.
const SIZE: (f64, f64) = (760.0, 400.0);
const LEFT: f64 = 80.0;

/// A logarithmic axis over positive values.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let positive = values.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = positive.fold((f64::INFINITY, 0.0f64), |ends, value| (ends.0.min(value), ends.1.max(value)));
        (high > 0.0).then(|| Self { low: low / 1.15, high: high * 1.15 })
    }

    /// The place of a value, from 0 to 1.
    fn at(&self, value: f64) -> f64 {
        (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
    }

    /// Round values: 1, 2 and 5 times powers of ten; powers alone where those are many, others where they are few.
    fn ticks(&self) -> Vec<f64> {
        let steps: &[f64] = match self.high / self.low {
            ratio if ratio > 2000.0 => &[1.0],
            ratio if ratio > 12.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        };
        let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

/// Draws the plot; empty without machines.
pub(super) fn cost_against_time(subject: &Subject<'_>) -> Option<String> {
    let (rows, rented) = (&subject.table.machines, subject.rented);
    let hours = rows
        .iter()
        .map(|row| row.figures.hours)
        .chain(rented.iter().map(|one| one.hours))
        .chain(subject.job.deadline());
    let costs = rows.iter().map(|row| row.figures.cost_of_job).chain(rented.iter().map(|one| one.cost_of_job));
    let (across, up) = (Axis::of(hours)?, Axis::of(costs.flat_map(|cost| [cost.low, cost.typical, cost.high]))?);
    let notes = [
        format!("Bars: from the lowest to the highest cost, at prices known on {} and residual values.", subject.as_of),
        "Line: the front. Numbers: ranks. Rings: rented machines. Point at a mark for its machine.".to_owned(),
    ];
    let (mut svg, top) = Svg::new("Cost of the job against its time", &notes);
    let place = |hours: f64, cost: f64| (LEFT + across.at(hours) * SIZE.0, top + (1.0 - up.at(cost)) * SIZE.1);
    grid(&mut svg, (&across, &up), (top, &subject.currency()));
    if let Some(deadline) = subject.job.deadline() {
        let x = place(deadline, up.low).0;
        svg.line(((x, top), (x, top + SIZE.1)), ("#d55e00", 1.5));
        svg.text((x - 4.0, top + 26.0), ("end", 12, "#d55e00"), "deadline");
    }
    for row in rows {
        let colour = if row.front { "#9cc4de" } else { "#dddddd" };
        svg.line(
            (
                place(row.figures.hours, row.figures.cost_of_job.low),
                place(row.figures.hours, row.figures.cost_of_job.high),
            ),
            (colour, 3.0),
        );
    }
    let mut front: Vec<&Row> = rows.iter().filter(|row| row.front).collect();
    front.sort_by(|left, right| left.figures.hours.total_cmp(&right.figures.hours));
    for pair in front.windows(2) {
        let at = |row: &Row| place(row.figures.hours, row.figures.cost_of_job.typical);
        svg.line((at(pair[0]), at(pair[1])), ("#0072b2", 1.5));
    }
    for row in rows.iter().rev() {
        let at = place(row.figures.hours, row.figures.cost_of_job.typical);
        let tip = format!(
            "rank {} ({}): {}, {}, {} {} [{}–{}], {}",
            row.rank,
            row.tie,
            row.machine,
            Hours(row.figures.hours),
            money(row.figures.cost_of_job.typical),
            subject.currency(),
            money(row.figures.cost_of_job.low),
            money(row.figures.cost_of_job.high),
            row.system
        );
        svg.mark(at, (if row.front { "#0072b2" } else { "#777777" }, true), &tip);
        if row.front || row.rank <= 10 {
            svg.text((at.0 + 7.0, at.1 - 5.0), ("start", 12, "#222222"), &row.rank.to_string());
        }
    }
    for one in rented {
        let at = place(one.hours, one.cost_of_job.typical);
        let tip = format!("{} ({}): {}, {}", one.machine, one.kind, Hours(one.hours), money(one.cost_of_job.typical));
        svg.mark(at, ("#009e73", false), &tip);
    }
    Some(svg.finish((LEFT + SIZE.0 + 30.0, top + SIZE.1 + 50.0)))
}

/// The axes with their ticks.
fn grid(svg: &mut Svg, (across, up): (&Axis, &Axis), (top, currency): (f64, &str)) {
    let bottom = top + SIZE.1;
    for tick in across.ticks() {
        let x = LEFT + across.at(tick) * SIZE.0;
        svg.line(((x, top), (x, bottom)), ("#eeeeee", 1.0));
        svg.text((x, bottom + 16.0), ("middle", 12, "#444444"), &Hours(tick).to_string());
    }
    for tick in up.ticks() {
        let y = top + (1.0 - up.at(tick)) * SIZE.1;
        svg.line(((LEFT, y), (LEFT + SIZE.0, y)), ("#eeeeee", 1.0));
        svg.text((LEFT - 8.0, y + 4.0), ("end", 12, "#444444"), &money(tick));
    }
    svg.line(((LEFT, bottom), (LEFT + SIZE.0, bottom)), ("#444444", 1.0));
    svg.line(((LEFT, top), (LEFT, bottom)), ("#444444", 1.0));
    svg.text((LEFT + SIZE.0 / 2.0, bottom + 36.0), ("middle", 12, "#222222"), "time of the job");
    svg.text((LEFT + 6.0, top + 12.0), ("start", 12, "#222222"), &format!("cost of the job, {currency}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = Axis { low: 3.0, high: 120.0 };
        assert_eq!(axis.ticks().iter().map(|tick| tick.round() as u64).collect::<Vec<_>>(), [5, 10, 20, 50, 100]);
        assert!(axis.at(3.0).abs() < 1e-9 && (axis.at(120.0) - 1.0).abs() < 1e-9);
        assert!(Axis::of([0.0, f64::NAN].into_iter()).is_none());
    }
}
