//! The runner of property tests.

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, RngSeed, TestCaseResult, TestRng, TestRunner},
};
use std::hash::{BuildHasher, RandomState};

/// Checks `property` for `cases` random values of `strategy`.
///
/// `PROPTEST_RNG_SEED` determines the values. Without it they differ from run to run, and the panic
/// of a failed run names the seed that draws them again.
pub fn for_all<S: Strategy>(cases: u32, strategy: &S, property: impl Fn(S::Value) -> TestCaseResult) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(cases),
    };
    // Seed 1 stands for the values that proptest calls deterministic: the thresholds of the tests
    // were set on them.
    let mut runner = if seed == 1 {
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
    } else {
        TestRunner::new(Config { rng_seed: RngSeed::Fixed(seed), ..config })
    };
    if let Err(error) = runner.run(strategy, property) {
        panic!("{error}\nPROPTEST_RNG_SEED={seed} draws these values again");
    }
}
