//! What Linux says of memory; elsewhere there is nothing to ask.

use spipe_base::Bytes;

/// All of the host's memory; 8 GiB where nobody says.
pub fn host_memory() -> Bytes {
    figure("/proc/meminfo", "MemTotal").unwrap_or(Bytes::gib(8))
}

/// How much this process grew while something ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    before: Option<Bytes>,
}

impl Growth {
    /// From now on.
    pub fn start() -> Self {
        // Where the largest size since the process began cannot be forgotten, it still bounds that from now on.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        Self { before: figure("/proc/self/status", "VmRSS") }
    }

    /// The largest resident size since then over that at the start.
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
        // Other tests of this process may give memory back meanwhile.
        assert!(growth.most().unwrap() >= Bytes::mib(128), "{:?}", growth.most());
        drop(touched);
    }
}
