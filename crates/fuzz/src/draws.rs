//! Choices decoded from bytes, so that small changes of the bytes are small changes of the input.

/// Bytes that are read as choices; after the last one all choices are the first.
pub(crate) struct Draws<'a>(std::slice::Iter<'a, u8>);

impl<'a> Draws<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(data.iter())
    }

    /// A number below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % count.max(1)
    }

    /// One of `options`.
    pub(crate) fn one<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())]
    }

    /// A yes or a no.
    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 1
    }
}
