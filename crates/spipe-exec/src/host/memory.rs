//! Memory of the host and of this process.

use super::system;
use spipe_base::Bytes;

/// All memory of the host; 8 GiB if it is unknown.
pub fn host_memory() -> Bytes {
    system::total_memory().unwrap_or(Bytes::gib(8))
}

/// Memory of the host that nothing needs; none if it is unknown.
pub(crate) fn available_memory() -> Option<Bytes> {
    system::available_memory()
}

/// A measurement of how much this process grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    before: Option<Bytes>,
}

impl Growth {
    /// Starts a measurement.
    pub fn start() -> Self {
        system::reset_peak();
        Self { before: system::resident() }
    }

    /// The peak resident size since the start, less the resident size at the start.
    pub fn most(self) -> Option<Bytes> {
        system::peak_resident().zip(self.before).map(|(most, before)| most.saturating_sub(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_memory() {
        assert!(host_memory() > Bytes::mib(64));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_grows_by_what_it_touches() {
        let growth = Growth::start();
        let touched = std::hint::black_box(vec![1u8; 256 << 20]);
        // Other tests of this process may free memory meanwhile.
        assert!(growth.most().unwrap() >= Bytes::mib(128), "{:?}", growth.most());
        drop(touched);
    }
}
