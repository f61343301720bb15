//! The error of costs that cannot be computed.

/// The error of a table that cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CostError {
    /// A size is zero.
    #[error("{what} is zero")]
    Zero {
        /// The size.
        what: &'static str,
    },
    /// A size is too large.
    #[error("{what} is more than {most}")]
    TooLarge {
        /// The size.
        what: &'static str,
        /// The largest allowed value.
        most: u64,
    },
    /// No device can run a layer.
    #[error("layer `{layer}` has no time on any device of `{hardware}`")]
    Nowhere {
        /// The layer's name.
        layer: String,
        /// The machine's name.
        hardware: String,
    },
    /// The replicas of a mesh would differ in microbatches.
    #[error("{microbatches} microbatches cannot be divided evenly among {data} replicas")]
    Replicas {
        /// The microbatches of the iteration.
        microbatches: u64,
        /// The replicas.
        data: u64,
    },
    /// A team cannot share a layer.
    #[error("layer `{layer}` cannot be divided among {tensor} devices")]
    Team {
        /// The layer's name.
        layer: String,
        /// The members of a team.
        tensor: u64,
    },
    /// Two devices that exchange data have no route between them.
    #[error("`{from}` and `{to}` are not connected")]
    Apart {
        /// One end.
        from: String,
        /// The other.
        to: String,
    },
}
