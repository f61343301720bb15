//! Searches that count steps instead of seconds.

/// The extent of a search, in steps: the plan is the same on any machine, under any load and with
/// any number of threads.
///
/// | step | low | high |
/// |---|---|---|
/// | greedy stages | yes | yes |
/// | linear programs that bound a system of stages | one | all |
/// | integer programs for candidates, Mobius' programs, balanced stages | no | yes |
/// | simulated candidates of one system | 3 to 8 | all |
/// | … estimated at this factor above the best plan, at most | 1.02 | any |
/// | simulated neighbours of one placement | 4 to 24 | 16 to 400 |
/// | bounds of sharded systems | with fractions of layers | with whole layers |
/// | improved placements | the fastest | all |
/// | branch and bound over device orders, programs for several stages per device, enumeration | no | no |
///
/// Where a range is given, the number falls with the size of the programs that are simulated: layers
/// × microbatches × devices. The ranges and sizes were found by trial on the shipped pairs of models
/// and machines: twice as many neighbours and all nearly as fast placements, instead of the fastest
/// alone, gain 0.1 % in the geometric mean of iterations and take half as long again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A plan at once.
    Low,
    /// A plan in seconds.
    High,
}

impl Effort {
    /// The most candidates of one system that are simulated, where programs have `size`.
    pub(crate) fn candidates(self, size: u64) -> usize {
        match self {
            Self::Low => within((1 << 18) / size.max(1), 3, 8),
            Self::High => usize::MAX,
        }
    }

    /// The factor above the best plan up to which candidates are simulated, by their estimated time.
    pub(crate) const fn promising(self) -> f64 {
        match self {
            Self::Low => 1.02,
            Self::High => f64::INFINITY,
        }
    }

    /// The most neighbours of one placement that local search simulates, where programs have `size`.
    pub(crate) fn refinements(self, size: u64) -> usize {
        match self {
            Self::Low => within((1 << 18) / size.max(1), 4, 24),
            Self::High => within((1 << 23) / size.max(1), 16, 400),
        }
    }

    /// Whether only the fastest placement is improved.
    pub(crate) const fn improves_the_best_alone(self) -> bool {
        matches!(self, Self::Low)
    }

    /// Whether integer programs yield candidates.
    pub(crate) const fn has_programs(self) -> bool {
        matches!(self, Self::High)
    }
}

fn within(number: u64, least: u64, most: u64) -> usize {
    number.clamp(least, most) as usize
}
