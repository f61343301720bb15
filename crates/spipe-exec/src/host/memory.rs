//! Memory of the host and of this process, from Linux's `/proc`.

use spipe_base::Bytes;

/// All memory of the host; 8 GiB if it is unknown.
pub fn host_memory() -> Bytes {
    figure("/proc/meminfo", "MemTotal").unwrap_or(Bytes::gib(8))
}

/// A measurement of how much this process grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    before: Option<Bytes>,
}

impl Growth {
    /// Starts a measurement.
    pub fn start() -> Self {
        // If the peak since the process began cannot be reset, it is an upper bound of the peak
        // from now on.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        Self { before: figure("/proc/self/status", "VmRSS") }
    }

    /// The peak resident size since the start, less the resident size at the start.
    pub fn most(self) -> Option<Bytes> {
        figure("/proc/self/status", "VmHWM").zip(self.before).map(|(most, before)| most.saturating_sub(before))
    }
}

fn figure(file: &str, key: &str) -> Option<Bytes> {
    kib(&std::fs::read_to_string(file).ok()?, key)
}

fn kib(text: &str, key: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(Bytes::kib(line.trim().strip_suffix("kB")?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_as_linux_writes_them() {
        assert_eq!(kib("MemTotal:       16384 kB\nMemFree: 1 kB\n", "MemTotal"), Some(Bytes::mib(16)));
        assert_eq!(kib("MemTotal:       16384 kB\nMemFree: 1 kB\n", "MemFree"), Some(Bytes::kib(1)));
        assert_eq!(kib("nothing", "MemTotal"), None);
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
