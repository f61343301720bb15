//! Whether anything fits: the memory that stages need at least, and what is missing where they do not fit.

pub(crate) mod capacity;
pub(crate) mod closest;
pub(crate) mod shortage;
