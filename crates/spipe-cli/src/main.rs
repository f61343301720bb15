//! spipe.
fn main() {}
