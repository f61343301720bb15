//! Shapes of trained or stored tensors.

use crate::work::product;

/// `count` trained or stored tensors of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Rows; outputs of a matrix.
    pub rows: u64,
    /// Columns; inputs of a matrix, 1 for a vector.
    pub columns: u64,
    /// The number of such tensors.
    pub count: u64,
}

impl Tensor {
    /// Returns the number of elements of all of them; saturates.
    pub fn elements(&self) -> u64 {
        product(&[self.rows, self.columns, self.count])
    }
}
