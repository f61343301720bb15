//! Where memory is so scarce that all plans are far from what is possible: stages that fit at all, with ever less time for each device.

use super::{FAR, Search};
use crate::{case::judge, fits, relaxation::floor};
use spipe_plan::System;

/// How many hundredths of the time that is left may be taken.
const PERCENT: u32 = 20;

/// How many times as much time as before is given where nothing is known to fit, and how closely the least is looked for.
const STEP: f64 = 4.0;
const CLOSE: f64 = 1.05;

/// Beyond so many times what is possible at best nothing is looked for.
const MOST: f64 = 1e4;

impl Search<'_, '_> {
    /// Looks for stages that fit with as little time as possible for each device, where all plans are far from what is possible.
    pub(super) fn fit_in_time(&mut self, planned: &[System]) {
        let least = floor(&self.figures);
        let best = self.best().map_or(f64::INFINITY, |(time, _)| time.to_ms());
        if planned.is_empty() || !self.figures.training || best < FAR * least {
            return;
        }
        let until = self.deadline.percent(PERCENT);
        let coarse = self.figures.coarse(&self.problem.options.pins, fits::GROUPS);
        let (mut low, mut high) = (least, best);
        while high > CLOSE * low && low < MOST * least && !until.over() {
            let middle = if high.is_finite() { (low * high).sqrt() } else { STEP * low };
            let found = fits::in_time((self.problem, &coarse), planned, (middle, &until));
            match found.and_then(|placement| judge(self.problem, placement)) {
                Some(scored) => {
                    self.begun.push(scored);
                    high = middle;
                }
                None => low = middle,
            }
        }
    }
}
