//! Flows: bytes over the routes of a machine, and the DRAM traffic of arithmetic.

use crate::{Access, Flow, Lifetime, Share};
use spipe_base::{Bytes, DeviceId, Diagnostic, LinkId, MemoryId, Seconds, SimTime};
use spipe_hardware::DeviceKind;
use spipe_model::Precision;
use spipe_plan::Context;
use std::sync::Arc;

/// The work and the flows of an action.
#[derive(Clone, Debug, Default)]
pub(super) struct Transfer {
    pub work: SimTime,
    pub flows: Vec<Flow>,
}

impl Transfer {
    /// The time before the first byte arrives.
    pub fn latency(&self) -> SimTime {
        self.work + self.flows.iter().map(|flow| flow.latency).max().unwrap_or(SimTime::ZERO)
    }
}

/// The latency of a single number between two memories: zero within a memory, and between memories
/// without a route, which no plan uses together.
pub(super) fn latency(context: &Context<'_>, from: MemoryId, to: MemoryId) -> SimTime {
    match context.hardware.route(from, to) {
        Some(route) if from != to => SimTime::from_seconds(route.latency),
        _ => SimTime::ZERO,
    }
}

/// An optimizer step of `parameters` parameters on `device`.
pub(super) fn optimizer_step(context: &Context<'_>, device: DeviceId, parameters: u64) -> Transfer {
    let time = context.cost.optimizer_time(parameters, device);
    let traffic = context.cost.optimizer_traffic(parameters, device);
    Transfer { work: SimTime::from_seconds(time), flows: dram_flow(context, device, time, traffic) }
}

/// The computation of the norm of `gradients` on `device`, which reads them once.
pub(super) fn read_for_norm(context: &Context<'_>, device: DeviceId, gradients: Bytes) -> Transfer {
    let time = context.cost.norm_time(gradients, device);
    Transfer { work: SimTime::from_seconds(time), flows: dram_flow(context, device, time, gradients) }
}

/// The flow of `bytes` between two memories. It passes a channel as often as the copies for which it stands: identical
/// devices copy at the same time, and share the channel evenly.
///
/// # Errors
/// No route joins the memories.
pub(super) fn route(context: &Context<'_>, from: MemoryId, to: MemoryId, bytes: Bytes) -> Result<Flow, Diagnostic> {
    let hardware = context.hardware;
    let name = |memory: MemoryId| &hardware.memories()[memory].name;
    let route = hardware
        .route(from, to)
        .ok_or_else(|| Diagnostic::error(format!("no link joins `{}` and `{}`", name(from), name(to))))?;
    let links = if context.mesh().is_single() { route.links.as_slice().into() } else { shared(context, [from, to]) };
    Ok(Flow {
        route: links,
        latency: SimTime::from_seconds(route.latency),
        bytes,
        rate_cap: route.rate_cap,
        share: Share::default(),
    })
}

/// The channels of a copy, each as often as the copies for which it stands pass it.
fn shared(context: &Context<'_>, ends: [MemoryId; 2]) -> Arc<[LinkId]> {
    let links = |[from, to]: [MemoryId; 2]| {
        let route = context.hardware.route(from, to).filter(|_| from != to);
        route.map(|route| route.links.clone()).unwrap_or_default()
    };
    let all: Vec<LinkId> = context.copies(ends).into_iter().flat_map(links).collect();
    let passed = |link: &LinkId| all.iter().filter(|other| *other == link).count();
    links(ends).iter().flat_map(|link| std::iter::repeat_n(*link, passed(link).max(1))).collect()
}

/// The flow of a copy with the given accesses. If it reads a buffer that it also writes, the bytes
/// that arrive are added to it. A host then reads both addends and writes the sum, so that the
/// channels of its DRAM carry the bytes three more times.
pub(super) fn copying(
    context: &Context<'_>,
    (from, to, bytes): (MemoryId, MemoryId, Bytes),
    (reads, writes): (&[Access], &[Access]),
) -> Result<Flow, Diagnostic> {
    let mut flow = route(context, from, to, bytes)?;
    let adds = reads.iter().any(|read| writes.iter().any(|write| write.buffer == read.buffer));
    if let Some(channels) = context.hardware.dram_channels(to).filter(|_| adds) {
        let copies = flow.route.iter().filter(|link| **link == channels).count().max(1);
        flow.route = flow.route.iter().copied().chain(std::iter::repeat_n(channels, 3 * copies)).collect();
    }
    Ok(flow)
}

/// The DRAM traffic of `time` of arithmetic on `device`, if it is a CPU. Its flow alone never takes
/// longer than `time`, which already includes the traffic; caches serve a part of it.
pub(super) fn dram_flow(context: &Context<'_>, device: DeviceId, time: Seconds, traffic: Bytes) -> Vec<Flow> {
    let hardware = context.hardware;
    let device = &hardware.devices()[device];
    let channels = match device.kind {
        DeviceKind::Socket { .. } => hardware.dram_channels(device.memory),
        DeviceKind::Gpu => None,
    };
    let flow = |channel| {
        let bandwidth = hardware.links()[channel].bandwidth;
        let most = (bandwidth.get() * time.get()).floor().max(0.0) as u64;
        Flow {
            route: [channel].into(),
            latency: SimTime::ZERO,
            bytes: traffic.min(Bytes::new(most)),
            rate_cap: None,
            share: Share::default(),
        }
    };
    channels.map(flow).into_iter().filter(|flow| flow.bytes > Bytes::ZERO).collect()
}

/// The lifetime of the host's copy of parameters whose optimizer step runs on the host. In f32 it
/// is the master copy, from which the next step starts; so are adapters, which are f32. Otherwise
/// the master copy is part of the optimizer state, and the updated parameters are held only until
/// they have been copied to the device.
pub(super) fn lifetime_of_updated(context: &Context<'_>, device: DeviceId) -> Lifetime {
    match context.cost.storage(device) {
        _ if context.model.lora().is_some() => Lifetime::Resident,
        Precision::Fp32 => Lifetime::Resident,
        _ => Lifetime::Transient,
    }
}
