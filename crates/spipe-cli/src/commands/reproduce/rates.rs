//! SPipe and Mobius from the shapes of models and the rates of a machine.
//!
//! ```text
//! forward stage   work ÷ FLOP/s of the model          + boundary ÷ link
//! backward stage  the same for its length, three times + boundary ÷ link
//! parameters in   bytes ÷ link, one stage ahead
//! ```
//!
//! Each pass ends with the exchange of its boundary with the neighbours. Checkpoints have a channel of their own, unless devices
//! cannot copy to each other directly: then they go where boundaries go, B/F of them behind each forward and one before each
//! backward. The rate of the link is one for all rows of a file, the rate of arithmetic one for each model; both are fitted on the GPU
//! parts of the rows marked so, the link only where rows do not state it.

use super::spipe::{Row, gpu_part};
use serde::Deserialize;
use spipe_base::Faults;
use spipe_schedule::RoundTimes;
use std::collections::BTreeMap;

/// Rates of the link that are tried, in GB/s: this many, from the first, each a fixed part of the one before.
const LINKS: (usize, f64, f64) = (10, 32.0, 0.6);
/// How often what is left between two of them is narrowed (golden section).
const NARROWINGS: usize = 4;
const GOLDEN: f64 = 0.618_033_988_749_894_8;
/// Squared errors of less tell links apart no more than times of whole nanoseconds do.
const NOISE: f64 = 1e-9;
/// Bytes of a 16-bit number.
const HALF: f64 = 2.0;

/// The shape of a model of equal blocks with SwiGLU, and its batch.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shape {
    layers: u64,
    hidden: u64,
    feed_forward: u64,
    pub seq_len: u64,
    microbatch: u64,
}

/// How checkpoints travel.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpoints {
    /// Beside everything else.
    #[default]
    OwnChannel,
    /// Between passes, like boundaries.
    BetweenPasses,
}

impl Shape {
    /// Whether nothing of it is zero.
    pub const fn is_whole(&self) -> bool {
        self.layers > 0 && self.hidden > 0 && self.feed_forward > 0 && self.seq_len > 0 && self.microbatch > 0
    }

    fn parameters(&self) -> f64 {
        (self.layers * (4 * self.hidden * self.hidden + 3 * self.hidden * self.feed_forward)) as f64
    }

    /// FLOP of a forward through all layers: two for each parameter and token, and 4·s·h for each token's scores and their use
    /// (Narayanan et al. 2021, arXiv 2104.04473, appendix).
    fn work(&self) -> f64 {
        let tokens = (self.microbatch * self.seq_len) as f64;
        tokens * (2.0 * self.parameters() + 4.0 * (self.layers * self.seq_len * self.hidden) as f64)
    }

    /// Bytes that a stage hands on.
    fn boundary(&self) -> f64 {
        HALF * (self.microbatch * self.seq_len * self.hidden) as f64
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Rates {
    /// Bytes per second.
    pub link: f64,
    /// FLOP per second, by model.
    pub work: BTreeMap<String, f64>,
    /// The sum of squared relative errors.
    cost: f64,
}

/// The times of a row's passes and loads.
pub fn times(row: &Row, shape: &Shape, (work, link): (f64, f64)) -> RoundTimes {
    let [forward, backward] = row.stages.map(|stages| stages as f64);
    let stages = row.devices as f64 * forward;
    let coupled = row.system == "mobius";
    let (sent, taken) = match row.checkpoints {
        Checkpoints::BetweenPasses if !coupled => (backward / forward, 1.0),
        _ => (0.0, 0.0),
    };
    let pass = shape.work() / stages / work;
    let exchange = shape.boundary() / link;
    RoundTimes {
        forward: super::spipe::time(1e3 * (pass + exchange * (1.0 + sent))),
        // Backward and recompute take about three forwards.
        backward: super::spipe::time(1e3 * (3.0 * pass * forward / backward + exchange * (1.0 + taken))),
        load: super::spipe::time(1e3 * HALF * shape.parameters() / stages / link),
        ..RoundTimes::default()
    }
}

/// The rates at which the GPU parts of `fitted` rows are met best, with the given link in bytes per second if there is one. Of links
/// that serve as well, the fastest is taken.
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

/// The rates of arithmetic that go best with one link. The GPU part is nearly linear in the time of a pass, so that two
/// simulations of each row tell the best.
fn with_link(
    models: &BTreeMap<&str, Vec<(&Row, Shape)>>,
    link: f64,
    start: &BTreeMap<String, f64>,
) -> Result<Rates, Faults> {
    let mut rates = Rates { link, work: BTreeMap::new(), cost: 0.0 };
    for (model, rows) in models {
        let guess = start.get(*model).map_or_else(|| bound(rows), |rate| 1.0 / rate);
        let near = 1.02 * guess;
        // Relative errors as lines in the seconds that a FLOP takes: at the guess, and their slope.
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

/// Seconds per FLOP if devices did nothing but compute all the time.
fn bound(rows: &[(&Row, Shape)]) -> f64 {
    let one = |(row, shape): &(&Row, Shape)| {
        row.published.gpu.0.get() * row.devices as f64 / (4.0 * shape.work() * row.microbatches as f64)
    };
    rows.iter().map(one).sum::<f64>() / rows.len() as f64
}
