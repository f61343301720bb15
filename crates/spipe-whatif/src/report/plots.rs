//! The plots of a page, each also as a file of its own.

use super::{
    Subject,
    scatter::cost_against_time,
    svg::{Cell, Grid},
    tornado::tornado,
};
use spipe_timeline::{Axis, DrawError, Plot, Scale, Series, plot_svg};
use std::collections::{BTreeMap, BTreeSet};

/// A plot.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Figure {
    /// The name of its file, without `.svg`.
    pub name: &'static str,
    /// The picture.
    pub svg: String,
}

/// Machines of the bars, and changes of the ladder.
const MOST: usize = 20;

/// Draws all plots that have something to show.
///
/// # Errors
/// A figure that cannot be drawn.
pub fn plots(subject: &Subject<'_>) -> Result<Vec<Figure>, DrawError> {
    let mut figures = Vec::new();
    figures.extend(cost_against_time(subject).map(|svg| Figure { name: "cost-against-time", svg }));
    figures.extend(tornado(subject).map(|svg| Figure { name: "tornado", svg }));
    let grids = [("busy-shares", busy_shares(subject)), ("head-room", head_room(subject)), ("ladder", ladder(subject))];
    let filled = grids.into_iter().filter(|(_, grid)| !grid.rows.is_empty());
    figures.extend(filled.map(|(name, grid)| Figure { name, svg: grid.svg() }));
    for (name, plot) in [("scaling", scaling(subject)), ("own-or-rent", own_or_rent(subject))] {
        if plot.series.iter().any(|series| series.points.len() + series.line.len() > 0) {
            figures.push(Figure { name, svg: plot_svg(&plot)? });
        }
    }
    Ok(figures)
}

fn axis(label: impl Into<String>, scale: Scale) -> Axis {
    Axis { label: label.into(), scale }
}

/// The first machines, with their ranks.
fn ranked<'a>(subject: &Subject<'a>) -> impl Iterator<Item = (String, &'a crate::Row)> + use<'a> {
    let name = |row: &crate::Row| format!("{} {}", row.rank, row.machine.replace('_', " "));
    subject.table.machines.iter().take(MOST).map(move |row| (name(row), row))
}

/// The busy share of each kind of lane: the busiest lane of the kind.
fn busy_shares(subject: &Subject<'_>) -> Grid {
    // `gpu0.compute` and `gpu1.compute` are one kind of lane.
    let kind = |lane: &str| {
        let (device, role) = lane.split_once('.').map_or((lane, ""), |(device, role)| (device, role));
        format!("{} {role}", device.trim_end_matches(|letter: char| letter.is_ascii_digit())).trim_end().to_owned()
    };
    let kinds: BTreeSet<String> =
        ranked(subject).flat_map(|(_, row)| row.shares.keys()).map(|lane| kind(lane)).collect();
    let rows = ranked(subject).map(|(name, row)| {
        let cell = |wanted: &String| {
            let shares = row.shares.iter().filter(|(lane, _)| kind(lane) == *wanted).map(|(_, share)| *share);
            shares.reduce(f64::max).map(|share| Cell { from: 0.0, to: share, text: format!("{:.0} %", share * 100.0) })
        };
        (name, kinds.iter().map(cell).collect())
    });
    Grid {
        title: "What limits whom".into(),
        notes: vec!["The busy share of the busiest lane of each kind; the rest of the iteration it idles.".into()],
        rows: rows.collect(),
        columns: kinds.into_iter().collect(),
        whole: Some(1.0),
    }
}

/// Tokens per second by number of GPUs, for each kind of GPU and CPU.
fn scaling(subject: &Subject<'_>) -> Plot {
    let mut kinds: BTreeMap<String, BTreeMap<u32, f64>> = BTreeMap::new();
    for row in &subject.table.machines {
        let machine = &subject.sweep.candidates[row.index].machine;
        let Some(gpu) = &machine.choice.gpu else { continue };
        let counts = kinds.entry(format!("{gpu}, {}", machine.choice.platform)).or_default();
        let best = counts.entry(machine.choice.gpus * machine.nodes).or_default();
        *best = best.max(row.figures.tokens_per_second);
    }
    let series = kinds.into_iter().filter(|(_, counts)| counts.len() > 1).map(|(name, counts)| {
        let line: Vec<(f64, f64)> = counts.into_iter().map(|(count, rate)| (f64::from(count), rate)).collect();
        Series { name, points: line.clone(), line }
    });
    Plot {
        title: "Tokens per second by number of GPUs".into(),
        x: axis("GPUs", Scale::Linear),
        y: axis("tokens/s", Scale::Linear),
        series: series.take(MOST).collect(),
        ..Plot::default()
    }
}

/// The cost of a year against the number of times that the trainings run in it.
fn own_or_rent(subject: &Subject<'_>) -> Plot {
    let mut series = Vec::new();
    if let (Some(first), false) = (subject.table.machines.first(), subject.rented.is_empty()) {
        let (fixed, each) = yearly(subject, first);
        let most = 8766.0 / first.figures.hours;
        let end =
            subject.rented.iter().filter_map(|rented| rented.break_even_jobs_per_year).fold(most / 10.0, f64::max);
        let end = (2.0 * end).min(most);
        series.push(Series {
            name: format!("own {}", first.machine),
            line: vec![(0.0, fixed), (end, fixed + each * end)],
            points: Vec::new(),
        });
        for rented in subject.rented.iter().take(MOST) {
            let line = vec![(0.0, 0.0), (end, rented.cost_of_job.typical * end)];
            let even = rented.break_even_jobs_per_year.filter(|jobs| *jobs <= end);
            let points = even.map(|jobs| (jobs, rented.cost_of_job.typical * jobs)).into_iter().collect();
            series.push(Series { name: format!("rent {}", rented.machine), line, points });
        }
    }
    Plot {
        title: "Own or rent".into(),
        notes: vec!["points are where both cost the same".into()],
        x: axis("times a year", Scale::Linear),
        y: axis(format!("cost of a year, {}", subject.currency()), Scale::Linear),
        series,
        ..Plot::default()
    }
}

/// The cost of a year of an owned machine, and of the energy of one year's trainings.
fn yearly(subject: &Subject<'_>, row: &crate::Row) -> (f64, f64) {
    let own = &subject.job.own;
    let fixed = row.price.typical * (1.0 + subject.job.tax) * (1.0 - own.residual.typical) / own.years;
    (fixed, own.energy(spipe_market::Watts::new(row.figures.watts)) * row.figures.hours)
}

/// Returns the number of times a year from which owning is cheaper than renting at `cost` each time.
pub fn break_even(subject: &Subject<'_>, row: &crate::Row, cost: f64) -> Option<f64> {
    let (fixed, each) = yearly(subject, row);
    (cost > each).then(|| fixed / (cost - each)).filter(|jobs| jobs * row.figures.hours <= spipe_market::HOURS_PER_YEAR)
}

/// The free bytes of the fullest memory of each kind.
fn head_room(subject: &Subject<'_>) -> Grid {
    let kinds = ["gpu", "dram", "nvme"];
    let rows = ranked(subject).map(|(name, row)| {
        let cell = |kind: &&str| {
            let own =
                row.head_room_bytes.iter().filter(|(name, _)| name.starts_with(kind) && !name.contains("pageable"));
            let gib = own.map(|(_, bytes)| *bytes).min()? as f64 / (1u64 << 30) as f64;
            Some(Cell { from: 0.0, to: gib, text: format!("{gib:.1} GiB") })
        };
        (name, kinds.iter().map(cell).collect())
    });
    Grid {
        title: "Head-room".into(),
        notes: vec!["What the plan leaves free at its peak in the fullest memory of each kind.".into()],
        columns: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        whole: None,
        rows: rows.collect(),
    }
    .without_empty_columns()
}

/// The ladder of upgrades: what each single change of a machine costs and gains.
fn ladder(subject: &Subject<'_>) -> Grid {
    let bar = |value: f64, text: String| Some(Cell { from: 0.0, to: value, text });
    let rows = subject.table.next.iter().take(MOST).map(|change| {
        let (gain, price) = (change.gain.unwrap_or(0.0) * 100.0, change.price);
        let each = if price > 0.0 { format!("{:.2} %", gain / price * 100.0) } else { "free".into() };
        let cells = vec![
            bar(gain, format!("{gain:+.1} %")),
            bar(price, format!("{price:.0}")),
            bar(if price > 0.0 { gain / price * 100.0 } else { 0.0 }, each),
        ];
        (change.change.clone(), cells)
    });
    let currency = subject.currency();
    Grid {
        title: "The next part".into(),
        notes: vec!["Single changes, the one that gains the most per money first.".into()],
        columns: vec!["tokens/s".into(), format!("price, {currency}"), format!("gain for 100 {currency}")],
        whole: None,
        rows: rows.collect(),
    }
}
