//! The options that were written on the command line, not left to their defaults.

use clap::{ArgMatches, parser::ValueSource};
use std::collections::BTreeSet;

/// The names of these options, such as `seq-len`.
#[derive(Debug, Default)]
pub struct Given(BTreeSet<String>);

impl Given {
    /// The options of the innermost command.
    pub fn of(matches: &ArgMatches) -> Self {
        let innermost = std::iter::successors(Some(matches), |matches| Some(matches.subcommand()?.1)).last();
        let matches = innermost.unwrap_or(matches);
        let written = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        Self(matches.ids().map(clap::Id::as_str).filter(written).map(|id| id.replace('_', "-")).collect())
    }

    /// Whether an option was written.
    pub fn has(&self, option: &str) -> bool {
        self.0.contains(option)
    }
}
