//! The plots of a page, each also as a file of its own.

use super::Subject;
use spipe_timeline::{Axis, DrawError, Plot, Scale, Series, plot_svg};
use std::collections::BTreeMap;

/// A plot.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Figure {
    /// The name of its file, without `.svg`.
    pub name: &'static str,
    /// The picture.
    pub svg: String,
}

/// Machines of the tornado and of the bars.
const MOST: usize = 20;

/// Draws all plots that have something to show.
///
/// # Errors
/// A figure that cannot be drawn.
pub fn plots(subject: &Subject<'_>) -> Result<Vec<Figure>, DrawError> {
    let all = [
        ("cost-against-time", cost_against_time(subject)),
        ("busy-shares", busy_shares(subject)),
        ("tornado", tornado(subject)),
        ("scaling", scaling(subject)),
        ("own-or-rent", own_or_rent(subject)),
        ("head-room", head_room(subject)),
        ("ladder", ladder(subject)),
    ];
    let drawn = all
        .into_iter()
        .filter(|(_, plot)| plot.series.iter().any(|series| series.points.len() + series.line.len() > 0));
    drawn.map(|(name, plot)| Ok(Figure { name, svg: plot_svg(&plot)? })).collect()
}

fn axis(label: impl Into<String>, scale: Scale) -> Axis {
    Axis { label: label.into(), scale }
}

/// Cost against time: each machine with its interval, and the front as a line.
fn cost_against_time(subject: &Subject<'_>) -> Plot {
    let rows = &subject.table.machines;
    let point = |row: &crate::Row| (row.hours, row.cost_of_job.typical);
    let mut front: Vec<(f64, f64)> = rows.iter().filter(|row| row.front).map(point).collect();
    front.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut series = vec![
        Series { name: "front".into(), line: front.clone(), points: front },
        Series {
            name: "other machines".into(),
            line: Vec::new(),
            points: rows.iter().filter(|row| !row.front).map(point).collect(),
        },
    ];
    let rented: Vec<(f64, f64)> =
        subject.rented.iter().map(|rented| (rented.hours, rented.cost_of_job.typical)).collect();
    if !rented.is_empty() {
        series.push(Series { name: "rented".into(), line: Vec::new(), points: rented });
    }
    if let Some(deadline) = subject.job.deadline() {
        let costs = rows.iter().flat_map(|row| [row.cost_of_job.low, row.cost_of_job.high]);
        let ends = costs.fold((f64::INFINITY, 0.0f64), |ends, cost| (ends.0.min(cost), ends.1.max(cost)));
        if ends.1 > 0.0 {
            series.push(Series {
                name: "deadline".into(),
                line: vec![(deadline, ends.0), (deadline, ends.1)],
                points: Vec::new(),
            });
        }
    }
    for row in rows.iter().take(MOST).filter(|row| row.front) {
        let interval = vec![(row.hours, row.cost_of_job.low), (row.hours, row.cost_of_job.high)];
        series.push(Series { name: format!("interval of rank {}", row.rank), line: interval, points: Vec::new() });
    }
    Plot {
        title: "Cost of the job against its time".into(),
        notes: vec![format!("prices known on {}; intervals are those of prices and residual values", subject.as_of)],
        x: axis("hours", Scale::Logarithmic),
        y: axis(format!("cost, {}", subject.currency()), Scale::Logarithmic),
        series,
        ..Plot::default()
    }
}

/// The busy share of each kind of lane by rank.
fn busy_shares(subject: &Subject<'_>) -> Plot {
    let mut kinds: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for row in subject.table.machines.iter().take(MOST) {
        let mut best: BTreeMap<String, f64> = BTreeMap::new();
        for (lane, share) in &row.shares {
            // `gpu0.compute` and `gpu1.compute` are one kind of lane.
            let kind: String = lane.chars().filter(|letter| !letter.is_ascii_digit()).collect();
            let most = best.entry(kind).or_default();
            *most = most.max(*share);
        }
        for (kind, share) in best {
            kinds.entry(kind).or_default().push((row.rank as f64, share * 100.0));
        }
    }
    Plot {
        title: "What limits whom: the busiest lane of each kind".into(),
        x: axis("rank", Scale::Linear),
        y: axis("busy share, %", Scale::Linear),
        series: kinds.into_iter().map(|(name, points)| Series { name, line: points.clone(), points }).collect(),
        ..Plot::default()
    }
}

/// Changes of the cost of rank 1 by one assumption at a time.
fn tornado(subject: &Subject<'_>) -> Plot {
    let job = subject.job;
    let mut series = Vec::new();
    if let Some(first) = subject.table.machines.first() {
        let cost = |price: f64, residual: f64, power: f64, utilisation: f64, speed: f64| {
            let own = spipe_market::Ownership {
                utilisation: (job.own.utilisation * utilisation).min(1.0),
                residual: spipe_market::Range::exactly((job.own.residual.typical * residual).min(0.99)),
                kilowatt_hour: job.own.kilowatt_hour * power,
                ..job.own.clone()
            };
            let price = spipe_market::Range::exactly(first.price.typical * price * (1.0 + job.tax));
            own.hour(price, spipe_market::Watts::new(first.watts)).typical * first.hours / speed
        };
        let base = cost(1.0, 1.0, 1.0, 1.0, 1.0);
        let cases = [
            ("price ± 20 %", cost(0.8, 1.0, 1.0, 1.0, 1.0), cost(1.2, 1.0, 1.0, 1.0, 1.0)),
            ("residual value ± 20 %", cost(1.0, 1.2, 1.0, 1.0, 1.0), cost(1.0, 0.8, 1.0, 1.0, 1.0)),
            ("electricity ± 20 %", cost(1.0, 1.0, 0.8, 1.0, 1.0), cost(1.0, 1.0, 1.2, 1.0, 1.0)),
            ("use ± 20 %", cost(1.0, 1.0, 1.0, 1.2, 1.0), cost(1.0, 1.0, 1.0, 0.8, 1.0)),
            ("tokens/s ± 10 %", cost(1.0, 1.0, 1.0, 1.0, 1.1), cost(1.0, 1.0, 1.0, 1.0, 0.9)),
        ];
        let percent = |cost: f64| (cost / base - 1.0) * 100.0;
        for (index, (name, low, high)) in cases.into_iter().enumerate() {
            let height = (cases.len() - index) as f64;
            let line = vec![(percent(low), height), (percent(high), height)];
            series.push(Series { name: name.into(), points: line.clone(), line });
        }
    }
    let ahead = subject.table.machines.iter().find(|row| row.tie != subject.table.machines[0].tie);
    let notes = match (subject.table.machines.first(), ahead) {
        (Some(first), Some(next)) => {
            let lead = (next.cost_of_job.typical / first.cost_of_job.typical - 1.0) * 100.0;
            vec![format!(
                "the first machine outside of its tie costs {lead:+.0} %: a larger change of rank 1 alone would cost it its rank"
            )]
        }
        _ => Vec::new(),
    };
    Plot {
        title: "What changes the cost of rank 1".into(),
        notes,
        x: axis("change of the cost, %", Scale::Linear),
        y: axis("assumption", Scale::Linear),
        series,
        ..Plot::default()
    }
}

/// Tokens per second by number of GPUs, for each kind of GPU and CPU.
fn scaling(subject: &Subject<'_>) -> Plot {
    let mut kinds: BTreeMap<String, BTreeMap<u32, f64>> = BTreeMap::new();
    for row in &subject.table.machines {
        let choice = &subject.sweep.candidates[row.index].machine.choice;
        let Some(gpu) = &choice.gpu else { continue };
        let best = kinds.entry(format!("{gpu}, {}", choice.platform)).or_default().entry(choice.gpus).or_default();
        *best = best.max(row.tokens_per_second);
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
        let most = 8766.0 / first.hours;
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
    (fixed, own.energy(spipe_market::Watts::new(row.watts)) * row.hours)
}

/// Returns the number of times a year from which owning is cheaper than renting at `cost` each time.
pub fn break_even(subject: &Subject<'_>, row: &crate::Row, cost: f64) -> Option<f64> {
    let (fixed, each) = yearly(subject, row);
    (cost > each).then(|| fixed / (cost - each)).filter(|jobs| jobs * row.hours <= spipe_market::HOURS_PER_YEAR)
}

/// The free memory of each kind by rank.
fn head_room(subject: &Subject<'_>) -> Plot {
    let mut kinds: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in subject.table.machines.iter().take(MOST) {
        for kind in ["gpu", "dram", "nvme"] {
            let own =
                row.head_room_bytes.iter().filter(|(name, _)| name.starts_with(kind) && !name.contains("pageable"));
            if let Some(least) = own.map(|(_, bytes)| *bytes).min() {
                kinds.entry(kind).or_default().push((row.rank as f64, least as f64 / (1u64 << 30) as f64));
            }
        }
    }
    Plot {
        title: "Head-room: the free bytes of the fullest memory of each kind".into(),
        x: axis("rank", Scale::Linear),
        y: axis("GiB", Scale::Linear),
        series: kinds
            .into_iter()
            .map(|(name, points)| Series { name: name.into(), line: points.clone(), points })
            .collect(),
        ..Plot::default()
    }
}

/// The ladder of upgrades: the gain of each single change against its price.
fn ladder(subject: &Subject<'_>) -> Plot {
    let series = subject.table.next.iter().take(MOST).map(|change| {
        let point = (change.price, change.gain.unwrap_or(0.0) * 100.0);
        Series { name: change.change.clone(), line: vec![(0.0, 0.0), point], points: vec![point] }
    });
    Plot {
        title: "The next part: gain of single changes of rank 1".into(),
        x: axis(format!("price, {}", subject.currency()), Scale::Linear),
        y: axis("gain in tokens/s, %", Scale::Linear),
        series: series.collect(),
        ..Plot::default()
    }
}
