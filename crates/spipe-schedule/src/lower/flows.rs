//! Flows: bytes over the routes of a machine, and arithmetic that draws on the channels of a DRAM.

use crate::{Access, Flow, Lifetime, Share};
use spipe_base::{Bytes, DeviceId, Diagnostic, MemoryId, Seconds, SimTime};
use spipe_hardware::DeviceKind;
use spipe_model::Precision;
use spipe_plan::Context;

/// Work and flows of something that is not arithmetic of the model.
#[derive(Clone, Debug, Default)]
pub(super) struct Transfer {
    pub work: SimTime,
    pub flows: Vec<Flow>,
}

impl Transfer {
    /// The time before anything arrives.
    pub fn latency(&self) -> SimTime {
        self.work + self.flows.iter().map(|flow| flow.latency).max().unwrap_or(SimTime::ZERO)
    }
}

/// The time that a number takes between two memories; none that no link joins are used together.
pub(super) fn latency(context: &Context<'_>, from: MemoryId, to: MemoryId) -> SimTime {
    match context.hardware.route(from, to) {
        Some(route) if from != to => SimTime::from_seconds(route.latency),
        _ => SimTime::ZERO,
    }
}

/// What a device takes to step so many parameters.
pub(super) fn stepping(context: &Context<'_>, device: DeviceId, parameters: u64) -> Transfer {
    let time = context.cost.optimizer_time(parameters, device);
    let traffic = context.cost.optimizer_traffic(parameters, device);
    Transfer { work: SimTime::from_seconds(time), flows: dram_flow(context, device, time, traffic) }
}

/// What the device that steps gradients takes to read them for their norm.
pub(super) fn read_for_norm(context: &Context<'_>, device: DeviceId, gradients: Bytes) -> Transfer {
    let time = context.cost.norm_time(gradients, device);
    Transfer { work: SimTime::from_seconds(time), flows: dram_flow(context, device, time, gradients) }
}

/// The flow of `bytes` between two memories, if a route joins them.
pub(super) fn route(context: &Context<'_>, from: MemoryId, to: MemoryId, bytes: Bytes) -> Result<Flow, Diagnostic> {
    let hardware = context.hardware;
    let name = |memory: MemoryId| &hardware.memories()[memory].name;
    let route = hardware
        .route(from, to)
        .ok_or_else(|| Diagnostic::error(format!("no link joins `{}` and `{}`", name(from), name(to))))?;
    Ok(Flow {
        route: route.links.as_slice().into(),
        latency: SimTime::from_seconds(route.latency),
        bytes,
        rate_cap: route.rate_cap,
        share: Share::default(),
    })
}

/// The flow of a copy that reads and writes those. Where it reads some of what it writes, what arrives is added to what is there: a host
/// then reads both and writes the sum, so that its channels carry it three times more.
pub(super) fn copying(
    context: &Context<'_>,
    (from, to, bytes): (MemoryId, MemoryId, Bytes),
    (reads, writes): (&[Access], &[Access]),
) -> Result<Flow, Diagnostic> {
    let mut flow = route(context, from, to, bytes)?;
    let adds = reads.iter().any(|read| writes.iter().any(|write| write.buffer == read.buffer));
    if let Some(channels) = context.hardware.dram_channels(to).filter(|_| adds) {
        flow.route = flow.route.iter().copied().chain([channels; 3]).collect();
    }
    Ok(flow)
}

/// Arithmetic on a CPU draws on the channels of its DRAM, but alone it is never slowed by them: the figure for its time
/// already holds its own traffic, part of which caches serve.
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

/// How long the parameters of a device are held where they are stepped away from it: in f32 they are the master copy that the
/// next step starts from; otherwise that is part of the optimizer's state, and they are there only until they have left.
pub(super) fn kept_by_its_step(context: &Context<'_>, device: DeviceId) -> Lifetime {
    match context.cost.storage(device) {
        Precision::Fp32 => Lifetime::Resident,
        _ => Lifetime::Transient,
    }
}
