//! SPipe and Mobius from the shapes of models and the rates of a machine: the times of passes, and
//! the fit of the rates.
//!
//! ```text
//! forward stage   work ÷ FLOP/s of the model          + boundary ÷ link
//! backward stage  the same for its length, three times + boundary ÷ link
//! parameters in   bytes ÷ link, one stage ahead
//! ```
//!
//! Each pass ends with the exchange of its boundary with the neighbours. With peer access, cards have channels
//! between them, of which checkpoints have their own. Without it, all copies of a card go through the host on one
//! channel:
//!
//! - a forward of SPipe also sends its checkpoints, B/F of them for F forward and B backward stages per device, before
//!   the next pass. Those that arrive wait in the host for their backward: their receives are posted ahead;
//! - while parameters of the next stage are under way, an exchange has half of the channel (max–min fair shares of two
//!   flows).
//!
//! There is one link rate for all rows of a file and one rate of arithmetic for each model. Both
//! are fitted on the GPU parts of the rows marked so, the link only where rows do not state it.

use super::passes::{HALF, Row, Shape, gpu_part, time};
use spipe_base::Faults;
use spipe_schedule::StreamedTimes;
use std::collections::BTreeMap;

/// The grid of link rates: their number, the first in GB/s, and the ratio of each to the one
/// before.
const LINKS: (usize, f64, f64) = (10, 32.0, 0.6);
/// Steps of the golden-section search between two grid points.
const NARROWINGS: usize = 4;
const GOLDEN: f64 = 0.618_033_988_749_894_8;
/// Differences of summed squared errors below this are rounding of times to whole nanoseconds.
const NOISE: f64 = 1e-9;

/// Fitted rates.
#[derive(Clone, Debug)]
pub struct Rates {
    /// The link, in bytes per second.
    pub link: f64,
    /// Arithmetic in FLOP per second, by model.
    pub work: BTreeMap<String, f64>,
    /// The sum of squared relative errors.
    cost: f64,
}

/// The times of a row's passes and loads at these rates (FLOP/s, bytes/s).
pub fn times(row: &Row, shape: &Shape, (work, link): (f64, f64)) -> StreamedTimes {
    let [forward, backward] = row.stages.map(|stages| stages as f64);
    let stages = row.devices as f64 * forward;
    let load = HALF * shape.parameters() / stages / link;
    let boundary = shape.boundary() / link;
    let pass = shape.work() / stages / work;
    // A backward with its recompute takes about three forwards.
    let back = 3.0 * pass * forward / backward;
    let decoupled = row.system != "mobius";
    let sent = if decoupled && !row.peer_access { boundary * (1.0 + backward / forward) } else { boundary };
    let exchanged = |pass: f64, exchange: f64, load: f64| {
        if row.peer_access {
            exchange
        } else {
            exchange * (1.0 + shared(pass, exchange, load / row.microbatches as f64))
        }
    };
    StreamedTimes {
        forward: time(1e3 * (pass + exchanged(pass, sent, load))),
        backward: time(1e3 * (back + exchanged(back, boundary, load * forward / backward))),
        load: time(1e3 * load),
        ..StreamedTimes::default()
    }
}

/// The share φ of a stage in which the next one's parameters are under way, from the times of a pass, of its exchange
/// alone and of the load per pass, in s: φ·τ = load with τ = pass + exchange·(1 + φ), at most 1.
fn shared(pass: f64, exchange: f64, load: f64) -> f64 {
    let alone = pass + exchange;
    let share = (-alone + (alone * alone + 4.0 * exchange * load).sqrt()) / (2.0 * exchange);
    share.min(1.0)
}

/// The rates that minimise the squared errors of the GPU parts of `fitted` rows, with `link` in
/// bytes per second if it is given. Among links with equal errors, the fastest one.
pub fn fit(fitted: &[(&Row, Shape)], link: Option<f64>) -> Result<Rates, Faults> {
    let mut models: BTreeMap<&str, Vec<(&Row, Shape)>> = BTreeMap::new();
    for (row, shape) in fitted {
        models.entry(&row.model).or_default().push((row, *shape));
    }
    if let Some(link) = link {
        let guess = with_link(&models, link, &BTreeMap::new())?;
        return with_link(&models, link, &guess.work);
    }
    let (count, first, part) = LINKS;
    let mut tried: Vec<Rates> = Vec::new();
    let mut start = BTreeMap::new();
    for index in 0..count {
        let found = with_link(&models, 1e9 * first * part.powi(index as i32), &start)?;
        start.clone_from(&found.work);
        tried.push(found);
    }
    let better = |other: usize, best: usize| tried[other].cost < 0.999 * tried[best].cost - NOISE;
    let least = (0..count).reduce(|best, other| if better(other, best) { other } else { best });
    let best = least.unwrap_or(0);
    if best == 0 {
        return Ok(tried.swap_remove(0));
    }
    let (mut low, mut high) = (tried[(best + 1).min(count - 1)].link, tried[best - 1].link);
    let mut found = tried.swap_remove(best);
    for _ in 0..NARROWINGS {
        let inner = |share: f64| low * (high / low).powf(share);
        let (below, above) = (inner(1.0 - GOLDEN), inner(GOLDEN));
        let (left, right) = (with_link(&models, below, &found.work)?, with_link(&models, above, &found.work)?);
        if left.cost < right.cost {
            high = above
        } else {
            low = below
        }
        found = [left, right].into_iter().fold(found, |best, other| if other.cost < best.cost { other } else { best });
    }
    Ok(found)
}

/// The best rates of arithmetic for one link. The GPU part is nearly linear in the time of a pass,
/// so two simulations of each row suffice.
fn with_link(
    models: &BTreeMap<&str, Vec<(&Row, Shape)>>,
    link: f64,
    start: &BTreeMap<String, f64>,
) -> Result<Rates, Faults> {
    let mut rates = Rates { link, work: BTreeMap::new(), cost: 0.0 };
    for (model, rows) in models {
        let guess = start.get(*model).map_or_else(|| bound(rows), |rate| 1.0 / rate);
        let near = 1.02 * guess;
        // The relative error of each row is taken as linear in seconds per FLOP: its value at the
        // guess, and its slope.
        let mut lines = Vec::new();
        for (row, shape) in rows {
            let error = |per_flop: f64| -> Result<f64, Faults> {
                Ok(gpu_part(row, &times(row, shape, (1.0 / per_flop, link)))? / row.published.gpu.0.to_ms() - 1.0)
            };
            let here = error(guess)?;
            lines.push((here, (error(near)? - here) / (near - guess)));
        }
        let steep: f64 = lines.iter().map(|(_, slope)| slope * slope).sum();
        let step: f64 = -lines.iter().map(|(error, slope)| error * slope).sum::<f64>() / steep.max(f64::MIN_POSITIVE);
        let best = (guess + step).max(0.1 * guess);
        rates.cost += lines.iter().map(|(error, slope)| (error + slope * (best - guess)).powi(2)).sum::<f64>();
        rates.work.insert((*model).to_owned(), 1.0 / best);
    }
    Ok(rates)
}

/// Seconds per FLOP if devices computed all the time.
fn bound(rows: &[(&Row, Shape)]) -> f64 {
    let one = |(row, shape): &(&Row, Shape)| {
        row.published.gpu.0.get() * row.devices as f64 / (4.0 * shape.work() * row.microbatches as f64)
    };
    rows.iter().map(one).sum::<f64>() / rows.len() as f64
}
