//! Collectives over replicas as flows: each device receives from the one before it in a ring.

use crate::{Flow, Share};
use spipe_base::{Bytes, BytesPerSecond, DeviceId, Diagnostic, LinkId, MemoryId, SimTime};
use spipe_hardware::{CollectiveKind, CollectiveRates, Constant, Route};
use spipe_plan::{Context, Team};
use std::collections::BTreeMap;

/// The flow by which the team of `lead` takes part in a collective over all replicas of `bytes` of each member; none where
/// nothing moves. It passes a channel as often as the hops that run at the same time: those of all rings or, in a program
/// that has all replicas, those of its own team.
///
/// A ring of n devices takes n − 1 steps to gather or to reduce and scatter, and twice as many to reduce and gather; each
/// step moves an n-th of the bytes. In a program with one replica that stands for all, the slowest hop counts.
///
/// # Errors
/// Two neighbours are not connected.
pub(super) fn hop(
    context: &Context<'_>,
    lead: DeviceId,
    (kind, bytes): (CollectiveKind, Bytes),
) -> Result<Option<Flow>, Diagnostic> {
    let teams: Vec<&Team> = context.mesh().peers(lead).collect();
    let count = teams.len();
    let Some(own) = teams.iter().position(|team| team[0] == lead).filter(|_| count > 1 && bytes > Bytes::ZERO) else {
        return Ok(None);
    };
    let hops =
        |from: usize| teams[from].iter().zip(teams[(from + 1) % count]).map(|(from, to)| way(context, [*from, *to]));
    let all = 0..count;
    let senders = if context.cost.shows_all() { vec![(own + count - 1) % count] } else { all.collect() };
    let routes: Vec<Vec<&Route>> = senders.into_iter().map(|from| hops(from).collect()).collect::<Result<_, _>>()?;
    let mut passes: BTreeMap<LinkId, usize> = BTreeMap::new();
    for link in routes.iter().flatten().flat_map(|route| &route.links) {
        *passes.entry(*link).or_default() += 1;
    }
    let rate = |route: &Route| {
        let shared = |link: &LinkId| context.hardware.links()[*link].bandwidth.get() / passes[link] as f64;
        route.links.iter().map(shared).chain(route.rate_cap.map(|cap| cap.get())).fold(f64::INFINITY, f64::min)
    };
    let leads = routes.iter().filter_map(|team| team.first().copied());
    let slowest = leads.min_by(|one, other| rate(one).total_cmp(&rate(other)).then(other.latency.cmp(&one.latency)));
    let steps = (count as u64 - 1) * if kind == CollectiveKind::AllReduce { 2 } else { 1 };
    Ok(slowest.map(|route| {
        let flow = Flow {
            route: route.links.iter().flat_map(|link| std::iter::repeat_n(*link, passes[link])).collect(),
            latency: SimTime::from_seconds(route.latency * steps as f64),
            bytes: Bytes::new((u128::from(bytes.get()) * u128::from(steps) / count as u128) as u64),
            rate_cap: route.rate_cap,
            share: Share::default(),
        };
        as_measured(context, flow, (kind, bytes, count))
    }))
}

/// The route between the memories of two devices.
fn way<'a>(context: &Context<'a>, ends: [DeviceId; 2]) -> Result<&'a Route, Diagnostic> {
    let hardware = context.hardware;
    let [from, to]: [MemoryId; 2] = ends.map(|device| hardware.devices()[device].memory);
    let name = |memory: MemoryId| &hardware.memories()[memory].name;
    let apart = || Diagnostic::error(format!("no link joins `{}` and `{}`", name(from), name(to)));
    hardware.route(from, to).ok_or_else(apart)
}

/// The flow at the rate at which the collective was measured, if it was and the runtime asks for it.
fn as_measured(context: &Context<'_>, flow: Flow, (kind, bytes, count): (CollectiveKind, Bytes, usize)) -> Flow {
    let runtime = context.hardware.runtime();
    let wanted = runtime.collectives() == CollectiveRates::Measured;
    let Some(measured) = context.hardware.collective(kind, count).filter(|_| wanted) else { return flow };
    let seconds = measured.time(bytes).get() / runtime.constant(Constant::Links);
    match BytesPerSecond::new(flow.bytes.as_f64() / seconds) {
        Some(rate) => Flow { latency: SimTime::ZERO, rate_cap: Some(rate), ..flow },
        None => flow,
    }
}
