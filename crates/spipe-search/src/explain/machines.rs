//! Machines that differ in one thing.

use spipe_base::{Bytes, BytesPerSecond, MemoryId, Text};
use spipe_hardware::{Constant, Hardware, HardwareFile, LinkFile, MemoryKind};
use std::collections::BTreeSet;

/// A bandwidth that never limits, in multiples of the real one.
const BOUNDLESS: f64 = 1e4;

/// The addition to a memory that is tried.
pub const MORE_MEMORY: f64 = 0.25;

/// The kinds of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Between a GPU and a switch, root complex or socket, or between these.
    Host,
    /// Between two GPUs.
    Peer,
    /// Between two sockets.
    Sockets,
}

/// The kind of a link of an expanded file.
pub fn kind(file: &HardwareFile, link: &LinkFile) -> LinkKind {
    let gpus: BTreeSet<&str> = file.gpu.iter().map(|gpu| gpu.name.as_str()).collect();
    let sockets: BTreeSet<&str> =
        file.socket.iter().flat_map(|socket| [socket.name.as_str(), socket.dram.name.as_str()]).collect();
    let both = |names: &BTreeSet<&str>| link.between.iter().all(|end| names.contains(end.as_str()));
    match (both(&gpus), both(&sockets)) {
        (true, _) => LinkKind::Peer,
        (_, true) => LinkKind::Sockets,
        _ => LinkKind::Host,
    }
}

fn times(rate: &mut Text<BytesPerSecond>, factor: f64) {
    rate.0 = BytesPerSecond::new(rate.0.get() * factor).unwrap_or(rate.0);
}

fn edited(hardware: &Hardware, edit: impl FnOnce(&mut HardwareFile)) -> Option<Hardware> {
    let mut file = hardware.expanded();
    edit(&mut file);
    hardware.changed(file).ok()
}

/// The machine with the links of one kind `factor` times as fast; `None` if it has none.
fn with_links(hardware: &Hardware, of: LinkKind, (factor, latency): (f64, f64)) -> Option<Hardware> {
    let file = hardware.expanded();
    let names: BTreeSet<String> =
        file.link.iter().filter(|link| kind(&file, link) == of).map(|link| link.name.clone()).collect();
    if names.is_empty() {
        return None;
    }
    edited(hardware, |file| {
        for link in file.link.iter_mut().filter(|link| names.contains(&link.name)) {
            for rate in [&mut link.up, &mut link.down, &mut link.bandwidth, &mut link.both].into_iter().flatten() {
                times(rate, factor);
            }
            link.latency = link.latency.map(|time| Text(time.0 * latency));
        }
    })
}

/// The machine with the next generation of a kind of links: twice the bandwidth.
pub fn next_generation(hardware: &Hardware, of: LinkKind) -> Option<Hardware> {
    with_links(hardware, of, (2.0, 1.0))
}

/// The machine with links of a kind that never limit.
pub fn boundless(hardware: &Hardware, of: LinkKind) -> Option<Hardware> {
    with_links(hardware, of, (BOUNDLESS, 0.0))
}

/// The machine whose directions do not share a limit; `None` if none of them do.
pub fn with_independent_directions(hardware: &Hardware) -> Option<Hardware> {
    let file = hardware.expanded();
    let limited = file.link.iter().any(|link| link.both.is_some()) || file.copy.iter().any(|copy| copy.both.is_some());
    let freed = |file: &mut HardwareFile| {
        file.link.iter_mut().for_each(|link| link.both = None);
        file.copy.iter_mut().for_each(|copy| copy.both = None);
    };
    limited.then(|| edited(hardware, freed)).flatten()
}

/// The machine with 25 % more of a memory; `None` for drives and pageable views.
pub fn larger(hardware: &Hardware, memory: MemoryId) -> Option<Hardware> {
    let this = &hardware.memories()[memory];
    let real = this.pageable_view_of.is_none() && this.kind != MemoryKind::Nvme;
    let more = Bytes::new((this.capacity.as_f64() * MORE_MEMORY) as u64);
    real.then(|| hardware.with_larger(&[memory], more).ok()).flatten()
}

/// The machine whose GPUs read each other's memory; `None` if they already do.
pub fn with_peer_access(hardware: &Hardware) -> Option<Hardware> {
    let closed = hardware.expanded().gpu.iter().any(|gpu| gpu.peer_access == Some(false));
    let open = |file: &mut HardwareFile| file.gpu.iter_mut().for_each(|gpu| gpu.peer_access = Some(true));
    closed.then(|| edited(hardware, open)).flatten()
}

/// The machine whose sockets compute as fast as its first GPU; `None` without GPUs and sockets.
pub fn with_fast_sockets(hardware: &Hardware) -> Option<Hardware> {
    let gpu = hardware.expanded().gpu.into_iter().next()?;
    edited(hardware, |file| {
        for socket in &mut file.socket {
            socket.peak.clone_from(&gpu.peak);
            socket.matmul.clone_from(&gpu.matmul);
            socket.elementwise.clone_from(&gpu.elementwise);
            socket.matvec.clone_from(&gpu.matvec);
            socket.efficiency.clone_from(&gpu.efficiency);
            socket.launch_floor = gpu.launch_floor;
            socket.layer_time.clear();
            socket.vector_extensions.push(spipe_hardware::VectorExtension::AmxBf16);
            let fast = socket.dram.bandwidth.0.get().max(gpu.memory_bandwidth.0.get());
            socket.dram.bandwidth = Text(BytesPerSecond::new(fast).unwrap_or(socket.dram.bandwidth.0));
        }
    })
}

/// The machine whose host launches kernels at once; `None` if its runtime counts no time for that.
pub fn with_instant_launches(hardware: &Hardware) -> Option<Hardware> {
    const INSTANT: f64 = 1e-12;
    let runtime = hardware.runtime();
    (runtime.constant(Constant::Launch) > INSTANT)
        .then(|| runtime.with_constant(Constant::Launch, INSTANT).ok())
        .flatten()
        .map(|runtime| hardware.clone().under(runtime))
}

/// The links of a kind, with the slower direction of each.
pub fn links(hardware: &Hardware, of: LinkKind) -> Vec<(String, BytesPerSecond)> {
    let file = hardware.expanded();
    let slowest =
        |link: &LinkFile| [&link.up, &link.down, &link.bandwidth].into_iter().flatten().map(|rate| rate.0).min();
    let of_kind = file.link.iter().filter(|link| kind(&file, link) == of);
    of_kind.filter_map(|link| Some((link.name.clone(), slowest(link)?))).collect()
}
