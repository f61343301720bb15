//! A placement and the checker that accepts it.
