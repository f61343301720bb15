//! The independent answers of a placement: its order, the time of its optimizer steps, and the turns of its offloads.
//!
//! Lowering, simulation, execution and export read these, never the name of a system.

/// The order in which devices compute, with the options of that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// All forwards, then all backwards.
    Gpipe,
    /// One forward, one backward.
    OneForwardOneBackward {
        /// Additional warm-up forwards of the last CPU stage and of the stages before it.
        head_start: u64,
    },
    /// 1F1B with several stages per device, assigned round-robin.
    Interleaved,
    /// Split backwards at the memory of 1F1B.
    ZbH1,
    /// Split backwards at about twice the memory of 1F1B.
    ZbH2,
    /// The automatic schedule of Zero Bubble.
    Automatic {
        /// The most activations that a device holds by default, as a multiple of the number of devices.
        turns: u64,
        /// The most activations that a device holds, in microbatches of one stage, if another number is given.
        limit: Option<u64>,
    },
    /// Two stages per device in the shape of a V.
    Vee(Vee),
    /// The generalised interleaved schedule.
    Grouped {
        /// The number of microbatches that pass through one chunk before the next: by default that of the devices, or
        /// half of it.
        group: Option<u64>,
        /// Whether the default is half the number of devices.
        half: bool,
    },
    /// The uniform building block of the generalised interleaved schedule.
    Uniform,
    /// A device runs all microbatches of a stage before its next stage.
    Rounds,
    /// Every device runs all layers on microbatches of its own.
    Replicas,
}

/// The building block of a V-shaped order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vee {
    /// Without bubbles, at the memory of 1F1B.
    Full,
    /// At about half the memory of 1F1B.
    Half,
    /// At about a third of the memory of 1F1B.
    Least,
}

/// The time of optimizer steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// A stage is updated as soon as its gradients are complete. The next iteration waits for the steps of the
    /// parameters that it uses.
    AsReady,
    /// All steps wait for the end of the backward, and the next iteration for all steps.
    Phase,
    /// Steps follow the backward, one after the other.
    AfterBackward,
    /// Steps follow the backward in the order in which the next iteration needs their parameters.
    NeededFirst,
    /// Steps run during the backward, before the global check.
    DuringBackward,
    /// Steps run during the next iteration, whose gradients they do not use.
    Delayed,
}
