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
    /// A sequence would not be two chunks of as many tokens on each device.
    #[error("{seq_len} tokens cannot be divided evenly among {context} devices, in two chunks for each")]
    Sequence {
        /// The tokens of a sequence.
        seq_len: u64,
        /// The devices that divide them.
        context: u64,
    },
    /// The tokens of a layer are not divided.
    #[error("the tokens of layer `{layer}` cannot be divided among {context} devices")]
    Tokens {
        /// The layer's name.
        layer: String,
        /// The devices that divide them.
        context: u64,
    },
    /// Only training divides sequences.
    #[error("sequences are divided among devices in training alone")]
    NoTraining,
    /// Devices cannot share the experts of a layer.
    #[error("the experts of layer `{layer}` cannot be divided evenly among {expert} devices")]
    Experts {
        /// The layer's name.
        layer: String,
        /// The devices that divide them.
        expert: u64,
    },
    /// There are no experts to divide.
    #[error("`{model}` has no experts to divide among {expert} devices")]
    NoExperts {
        /// The model's name.
        model: String,
        /// The devices that would divide them.
        expert: u64,
    },
    /// The devices that hold the same layers are not as many groups.
    #[error("{holders} devices that hold the same layers are no groups of {expert} that divide experts")]
    ExpertGroups {
        /// The devices that hold the same layers.
        holders: u64,
        /// The devices of a group.
        expert: u64,
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
