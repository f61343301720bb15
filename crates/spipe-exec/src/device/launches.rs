//! The number of kernels that this process has launched on GPUs.

use burn_cubecl::cubecl::logging::{LaunchObservation, LaunchObserver};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

static COUNT: AtomicU64 = AtomicU64::new(0);
/// The launches of each kernel, while somebody asks for them.
static BY_NAME: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());
static NAMES_WANTED: AtomicBool = AtomicBool::new(false);

struct Counter;

impl LaunchObserver for Counter {
    fn launched(&self, kernel: &'static str) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        if NAMES_WANTED.load(Ordering::Relaxed) {
            *BY_NAME.lock().unwrap_or_else(PoisonError::into_inner).entry(kernel).or_default() += 1;
        }
    }
}

static ONCE: Once = Once::new();

/// Counts from now on.
pub(super) fn observe() {
    // For as long as the process lives.
    ONCE.call_once(|| std::mem::forget(LaunchObservation::new(Arc::new(Counter))));
}

/// Whether launches are counted.
pub(super) fn is_observing() -> bool {
    ONCE.is_completed()
}

/// Launches since the last call, those of the tuner included.
pub(super) fn take() -> u64 {
    COUNT.swap(0, Ordering::Relaxed)
}

/// The launches of `work` by kernel, and those of other threads meanwhile.
#[cfg(all(test, feature = "wgpu"))]
pub(crate) fn of(work: impl FnOnce()) -> BTreeMap<&'static str, u64> {
    NAMES_WANTED.store(true, Ordering::Relaxed);
    work();
    NAMES_WANTED.store(false, Ordering::Relaxed);
    std::mem::take(&mut *BY_NAME.lock().unwrap_or_else(PoisonError::into_inner))
}
