//! Figures from Linux's `/proc`.

use super::ticks::Ticks;
use procfs::{
    Current, CurrentSI, KernelStats, Meminfo,
    process::{ClearRefs, Process, Status},
};
use spipe_base::Bytes;

/// All memory of the host.
pub(super) fn total_memory() -> Option<Bytes> {
    Some(Bytes::new(Meminfo::current().ok()?.mem_total))
}

/// Memory of the host that nothing needs.
pub(super) fn available_memory() -> Option<Bytes> {
    Meminfo::current().ok()?.mem_available.map(Bytes::new)
}

/// The number of this thread.
pub(super) fn thread() -> i32 {
    // SAFETY: a call without arguments that cannot fail.
    #[expect(unsafe_code, reason = "a call of the C library")]
    unsafe {
        libc::gettid()
    }
}

/// Minor page faults of a thread of this process; none if it has ended.
pub(super) fn faults(thread: i32) -> Option<u64> {
    Some(Process::myself().ok()?.task_from_tid(thread).ok()?.stat().ok()?.minflt)
}

/// The resident size of this process.
pub(super) fn resident() -> Option<Bytes> {
    status()?.vmrss.map(Bytes::kib)
}

/// The largest resident size of this process since it began, or since the last [`reset_peak`].
pub(super) fn peak_resident() -> Option<Bytes> {
    status()?.vmhwm.map(Bytes::kib)
}

/// Resets the peak, if the system permits it.
pub(super) fn reset_peak() {
    // Without a reset, the peak since the process began is an upper bound of that from now on.
    let _ = Process::myself().and_then(|process| process.clear_refs(ClearRefs::PeakRSS));
}

fn status() -> Option<Status> {
    Process::myself().ok()?.status().ok()
}

/// CPU time so far.
pub(super) fn ticks() -> Option<Ticks> {
    let machine = KernelStats::current().ok()?.total;
    let process = Process::myself().ok()?.stat().ok()?;
    let stolen = machine.steal?;
    let ended = u64::try_from(process.cutime + process.cstime).unwrap_or(0);
    let busy = machine.user + machine.nice + machine.system + machine.irq? + machine.softirq?;
    let all = busy + machine.idle + machine.iowait? + stolen;
    Some(Ticks { all, busy, stolen, own: process.utime + process.stime + ended })
}
