//! Collectives over replicas as flows: each device receives from the one before it in a ring.

use crate::{Flow, Share};
use spipe_base::{Bytes, BytesPerSecond, DeviceId, Diagnostic, LinkId, SimTime};
use spipe_cost::collectives::{is_apart, latencies, measured, rings, route, steps};
use spipe_hardware::{CollectiveKind, Hardware, Route};
use spipe_plan::{Context, Team};
use std::collections::BTreeMap;

/// The flow by which the team of `lead` takes part in a collective over all replicas of `bytes` of each member; none where
/// nothing moves. It passes a channel as often as the hops that run at the same time: those of all rings or, in a program
/// that has all replicas, those of its own team.
///
/// In a program with one replica that stands for all, the slowest hop counts.
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
    let groups = (0..teams[own].len()).map(|member| teams.iter().map(|team| team[member]).collect::<Vec<_>>());
    let mut passes: BTreeMap<LinkId, usize> = BTreeMap::new();
    let (mut of_lead, mut shares, mut apart) = (Vec::new(), 1, false);
    for (member, group) in groups.enumerate() {
        let rings = rings(context.hardware, &group);
        (shares, apart) = (rings.len(), is_apart(context.hardware, &group));
        for [from, to] in hops(&rings) {
            if !context.cost.shows_all() || into(context.hardware, [from, to], (group[own], shares)) {
                let way = way(context.hardware, [from, to])?;
                way.links.iter().for_each(|link| *passes.entry(*link).or_default() += 1);
                of_lead.extend((member == 0).then_some(way));
            }
        }
    }
    let rate = |route: &Route| {
        let shared = |link: &LinkId| context.hardware.links()[*link].bandwidth.get() / passes[link] as f64;
        route.links.iter().map(shared).chain(route.rate_cap.map(|cap| cap.get())).fold(f64::INFINITY, f64::min)
    };
    let slower = |one: &&Route, other: &&Route| rate(one).total_cmp(&rate(other)).then(other.latency.cmp(&one.latency));
    let moved = u128::from(bytes.get()) * u128::from(steps(kind, count)) / (count * shares) as u128;
    Ok(of_lead.into_iter().min_by(slower).map(|route| {
        let flow = Flow {
            route: route.links.iter().flat_map(|link| std::iter::repeat_n(*link, passes[link])).collect(),
            latency: SimTime::from_seconds(route.latency * latencies(kind, count, apart)),
            bytes: Bytes::new(moved as u64),
            rate_cap: route.rate_cap,
            share: Share::default(),
        };
        let known = measured(context.hardware, (kind, count, apart), bytes);
        let rate = known.and_then(|time| BytesPerSecond::new(flow.bytes.as_f64() / time.get()));
        match rate {
            Some(rate) => Flow { latency: SimTime::ZERO, rate_cap: Some(rate), ..flow },
            None => flow,
        }
    }))
}

/// The pairs of neighbours of all rings.
fn hops(rings: &[Vec<DeviceId>]) -> impl Iterator<Item = [DeviceId; 2]> + '_ {
    rings.iter().flat_map(|ring| ring.iter().zip(ring.iter().cycle().skip(1)).map(|(from, to)| [*from, *to]))
}

/// Whether a hop is the one by which `device` receives: its only one or, of several rings, that from another computer.
fn into(hardware: &Hardware, [from, to]: [DeviceId; 2], (device, rings): (DeviceId, usize)) -> bool {
    to == device && (rings == 1 || is_apart(hardware, &[from, to]))
}

fn way(hardware: &Hardware, ends: [DeviceId; 2]) -> Result<&Route, Diagnostic> {
    route(hardware, ends).map_err(|error| Diagnostic::error(error.to_string()))
}
