//! Options that would do nothing are refused: somebody expects an effect of them.

use crate::{Failure, args::Given};
use spipe_base::{Diagnostic, Faults};

/// Collects the options of a command line that would do nothing.
pub struct Idle<'a> {
    given: &'a Given,
    faults: Faults,
}

impl<'a> Idle<'a> {
    /// None so far.
    pub fn among(given: &'a Given) -> Self {
        Self { given, faults: Faults::new() }
    }

    /// Adds those of `options` that were given: they do nothing `where_`, such as "in inference".
    pub fn options(mut self, options: &[&str], where_: &str, hint: &str) -> Self {
        for option in options.iter().filter(|option| self.given.has(option)) {
            self.faults.push(Diagnostic::error(format!("`--{option}` does nothing {where_}")).hint(hint));
        }
        self
    }

    /// The same if `condition` holds.
    pub fn options_if(self, condition: bool, options: &[&str], where_: &str, hint: &str) -> Self {
        if condition { self.options(options, where_, hint) } else { self }
    }

    /// Refuses the command line if it has such options.
    pub fn refuse(self) -> Result<(), Failure> {
        self.faults.or(()).map_err(Failure::Arguments)
    }
}
