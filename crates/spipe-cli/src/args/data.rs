//! The arguments that say what sequences look like, and what blocks recompute.

use clap::Args as Group;
use spipe_model::Operations;

/// The shape of the data, and operations that are recomputed.
#[derive(Debug, Default, Group)]
pub struct Data {
    /// Join documents, so that sequences are full; with --lengths, attention stays within documents
    #[arg(long)]
    pub packing: bool,
    /// Put documents of like length into a microbatch, so that few tokens are padding
    #[arg(long)]
    pub bucketing: bool,
    /// Share of the tokens that are padding, such as 30%: they are computed and do not count
    #[arg(long, value_name = "SHARE")]
    pub padding: Option<String>,
    /// Lengths of documents with their weights, such as 512:3,2048:1, or a file with one in each line;
    /// each microbatch is padded to its longest, unless packed or bucketed
    #[arg(long, value_name = "LENGTHS|FILE")]
    pub lengths: Option<String>,
    /// Operations of blocks whose outputs are recomputed in the backward and not saved: attention, norms,
    /// activation, mlp, qkv, output, gate, up, separated by commas
    #[arg(long, value_name = "OPERATIONS")]
    pub recompute_ops: Option<Operations>,
}
