//! Cost sums over groups of layers.

use crate::costs::CostSums;
use crate::problem::pins::Pins;

impl CostSums<'_> {
    /// The costs of at most about `most` groups of consecutive layers, each of which counts as one
    /// layer. Memory and times of a stage of whole groups are the same; the stages that remain
    /// begin and end with a group and recompute whole groups.
    pub fn coarse(&self, pins: &Pins, most: usize) -> Self {
        let width = self.layers.div_ceil(most).max(1);
        let without = self.context.cost.without_backward();
        let mut borders = vec![0];
        for layer in 1..self.layers {
            let apart = !pins.same(layer - 1, layer) || layer == self.frozen || layer == without;
            if apart || layer - borders[borders.len() - 1] == width {
                borders.push(layer);
            }
        }
        borders.push(self.layers);
        let at = |layer: usize| borders.partition_point(|border| *border < layer);
        Self {
            layers: borders.len() - 1,
            devices: self.devices.iter().map(|device| device.coarse(&borders)).collect(),
            models: self.models.clone(),
            frozen: at(self.frozen),
            p2p_both_ways: self.p2p_both_ways.clone(),
            runs: self.coarse_runs(&borders),
            borders,
            ..*self
        }
    }

    /// Returns the runs of groups of the same length and cost, as first group and count.
    fn coarse_runs(&self, borders: &[usize]) -> Vec<(usize, usize)> {
        let run = |layer: usize| self.runs.partition_point(|(first, _)| *first <= layer);
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (group, ends) in borders.windows(2).enumerate() {
            let like =
                |before: &[usize]| before[1] - before[0] == ends[1] - ends[0] && run(before[0]) == run(ends[1] - 1);
            match runs.last_mut() {
                Some((_, count)) if like(&borders[group - 1..=group]) => *count += 1,
                _ => runs.push((group, 1)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests;
