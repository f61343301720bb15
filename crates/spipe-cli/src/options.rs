//! Options beside the settings of the library: their spelling in messages, and their values.

use crate::args::Unknown;
use spipe_search::{Spelling, questions};

/// The spelling of settings as options: `--system auto`.
pub const OPTIONS: Spelling = Spelling::new(option);

fn option(setting: &str, value: &str) -> String {
    if value.is_empty() { format!("--{setting}") } else { format!("--{setting} {value}") }
}

impl From<Unknown> for questions::Unknown {
    fn from(unknown: Unknown) -> Self {
        match unknown {
            Unknown::Microbatch => Self::Microbatch,
            Unknown::SeqLen => Self::SeqLen,
            Unknown::Layers => Self::Layers,
            Unknown::GlobalBatch => Self::GlobalBatch,
            Unknown::Rank => Self::Rank,
        }
    }
}
