//! The resources that placements load, and the time of copies on links.

use spipe_base::{DeviceId, LinkId, MemoryId};
use spipe_hardware::Hardware;

/// A resource with a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// The passes of a device, and the scatter and gather of the first layer between the passes of
    /// two iterations.
    Passes(DeviceId),
    /// The passes and optimizer steps of a device, or the optimizer steps of a socket.
    Compute(DeviceId),
    /// The optimizer steps of a socket, and the passes that cannot run beside them. A step comes
    /// after the device's last gradients of the stage and before its parameters are used again. So
    /// no step runs beside
    ///
    /// - all rounds but one, and of that one the passes of the last stage: there are no gradients
    ///   before its backward, and whichever stage is updated last, its forward is yet to come;
    /// - where gradients are checked, also the backwards of that round that the norm waits for,
    ///   since steps come after it;
    /// - where steps are a phase of their own, all rounds, since steps come before the first
    ///   forward.
    Stepping(DeviceId),
    /// The ring, by the device that receives.
    Collecting(DeviceId),
    /// The sums over groups, by the device that receives.
    Summing(DeviceId),
    Link(LinkId),
}

/// The time of `bytes` on each link from one memory to another, in ms.
pub(crate) fn link_times(hardware: &Hardware, (from, to): (MemoryId, MemoryId), bytes: f64) -> Vec<(LinkId, f64)> {
    let route = hardware.route(from, to).filter(|_| from != to);
    let time = |link: &LinkId| (*link, 1e3 * bytes / hardware.links()[*link].bandwidth.get());
    route.map_or_else(Vec::new, |route| route.links.iter().map(time).collect())
}
