//! Searches that count steps instead of seconds.

use crate::problem::Problem;

/// The extent of a search, counted in steps, so that the plan does not depend on the speed of the
/// machine, its load, or the number of threads.
///
/// | step | low | high |
/// |---|---|---|
/// | greedy stages | yes | yes |
/// | linear programs that bound a system of stages | one | all |
/// | balanced stages | on all GPUs | on all device orders |
/// | integer programs for candidates, Mobius' programs | no | yes |
/// | simulated candidates of one system | 3 to 5 | all |
/// | … their estimated time, as a multiple of the best plan's, at most | 1.01 | any |
/// | simulated neighbours of one placement | 4 to 8 | 16 to 400 |
/// | bounds of sharded systems | with fractions of layers | with whole layers |
/// | placements that local search improves | the fastest | all |
/// | branch and bound over device orders, programs for several stages per device, enumeration | no | no |
///
/// In a range, the number falls as the simulated programs grow: from the most for small ones to the
/// least for large ones. Their size is layers × microbatches × devices.
///
/// The first pass of a search with a time limit is a low one of more steps: up to 8 candidates within
/// 1.02, and 8 to 48 neighbours.
///
/// The numbers were found by trial on the shipped pairs of models and machines. A search of low effort
/// with up to 8 candidates within 1.02 and 24 neighbours takes up to twice as long, and its iterations
/// are 0.3 % shorter in the geometric mean, and 8 % at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A plan at once.
    Low,
    /// A plan in seconds.
    High,
}

impl Problem<'_> {
    /// Returns `steps` per size of the simulated programs, in actions of one kind, within limits.
    fn per_size(&self, steps: u64, (least, most): (u64, u64)) -> usize {
        let (cost, microbatches) = (self.context.cost, self.context.workload().microbatches);
        let size = cost.layers().len() as u64 * microbatches * cost.devices().len() as u64;
        (steps / size.max(1)).clamp(least, most) as usize
    }

    /// Returns the most candidates of one system that are simulated.
    pub(crate) fn most_candidates(&self) -> usize {
        match self.options.effort {
            Some(Effort::Low) => self.per_size(1 << 18, (3, if self.options.is_limited() { 8 } else { 5 })),
            Some(Effort::High) | None => usize::MAX,
        }
    }

    /// Returns the factor above the best plan up to which candidates are simulated, by their
    /// estimated time.
    pub(crate) fn promising(&self) -> f64 {
        match self.options.effort {
            Some(Effort::Low) if self.options.is_limited() => 1.02,
            Some(Effort::Low) => 1.01,
            Some(Effort::High) | None => f64::INFINITY,
        }
    }

    /// Returns the most neighbours of one placement that local search estimates: eight for each that
    /// it may simulate.
    pub(crate) fn most_neighbours(&self) -> usize {
        if self.options.effort.is_some() { 8 * self.most_refinements() } else { usize::MAX }
    }

    /// Returns the most neighbours of one placement that local search simulates.
    pub(crate) fn most_refinements(&self) -> usize {
        let most = match self.options.effort {
            // This pass of a search with a time limit has a plan from which the search goes on.
            Some(Effort::Low) if self.options.is_limited() => self.per_size(1 << 19, (8, 48)),
            Some(Effort::Low) => self.per_size(1 << 18, (4, 8)),
            Some(Effort::High) => self.per_size(1 << 23, (16, 400)),
            None => return self.options.refinements,
        };
        most.min(self.options.refinements)
    }
}
