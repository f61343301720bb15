//! Load of one position in a chain of devices.

use good_lp::Expression;

/// Load of one position.
#[derive(Default)]
pub(crate) struct Position {
    /// Forward, backward and recompute of one microbatch.
    pub forward: Expression,
    pub backward: Expression,
    pub again: Expression,
    /// Forwards that remain when the first microbatch returns.
    pub following: Expression,
    /// Optimizer steps on the device, and billions of parameters that the host updates for it.
    pub stepped: Expression,
    pub stepped_by_host: Expression,
    /// GB copied in and out.
    pub copied: [Expression; 2],
    /// Layers by device class, and the time and memory of the device.
    pub layers: Vec<Expression>,
    pub busy: Expression,
    pub held: Expression,
}

impl Position {
    /// Creates an empty position that a device of one of `classes` classes may take.
    pub fn new(classes: usize) -> Self {
        Self { layers: vec![Expression::default(); classes], ..Self::default() }
    }

    /// Returns one microbatch's forward and backward, without recompute, which may run while the
    /// microbatch is away.
    pub fn pass(&self) -> Expression {
        self.forward.clone() + self.backward.clone()
    }
}
