//! Programs: orders, lowering, the checker, one builder per system.
