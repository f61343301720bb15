//! A system that is not asked for any figures.

use super::ticks::Ticks;
use spipe_base::Bytes;

pub(super) const fn total_memory() -> Option<Bytes> {
    None
}

pub(super) const fn resident() -> Option<Bytes> {
    None
}

pub(super) const fn peak_resident() -> Option<Bytes> {
    None
}

pub(super) const fn reset_peak() {}

pub(super) const fn ticks() -> Option<Ticks> {
    None
}
