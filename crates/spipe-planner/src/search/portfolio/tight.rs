//! Where memory is so scarce that all plans are far from what is possible: stages that fit at all, with ever less time for each device.

use crate::formulation::assignment::compute_bound::floor;
use crate::search::portfolio::{FAR, Search};
use crate::{score::judge::judge, search::fits};
use spipe_plan::System;

/// How many hundredths of the time that is left may be taken.
const PERCENT: u32 = 20;

/// How closely the least time is looked for.
const CLOSE: f64 = 1.05;

impl Search<'_, '_> {
    /// Looks for stages that fit with ever less time for each device, as long as all plans are far from what is possible.
    pub(crate) fn fit_in_time(&mut self, planned: &[System]) {
        let Some((best, _)) = self.best().filter(|_| self.costs.training && !planned.is_empty()) else { return };
        let (mut low, mut high) = (floor(&self.costs), best.to_ms());
        let far = FAR * low;
        if high < far {
            return;
        }
        let until = self.deadline.percent(PERCENT);
        let coarse = self.costs.coarse(&self.problem.options.pins, fits::GROUPS);
        while high > CLOSE * low && !until.over() {
            let middle = (low * high).sqrt();
            let found = fits::in_time((self.problem, &coarse), planned, (middle, &until));
            match found.and_then(|placement| judge(self.problem, placement)) {
                Some(scored) => {
                    let near = scored.0.to_ms() < far;
                    self.begun.push(scored);
                    if near {
                        break;
                    }
                    high = middle;
                }
                None => low = middle,
            }
        }
    }
}
