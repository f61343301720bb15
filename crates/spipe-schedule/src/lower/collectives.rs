//! Collectives over replicas as flows: each device receives from the one before it in a ring.

use crate::{Flow, Share};
use spipe_base::{Bytes, BytesPerSecond, DeviceId, Diagnostic, LinkId, SimTime};
use spipe_cost::collectives::{hops, is_apart, latencies, measured, rings, route, steps};
use spipe_hardware::{CollectiveKind, Hardware, Route};
use spipe_plan::{Context, Team};
use std::{collections::BTreeMap, sync::Arc};

/// The ways by which a team receives in collectives over several devices, such as those of all replicas of a stage.
#[derive(Clone, Debug, Default)]
pub(super) struct Hops {
    /// Each with its channels, as often as copies pass them that run at the same time.
    ways: Vec<(Arc<[LinkId]>, Route)>,
    /// The devices of a group.
    count: usize,
    /// The rings of a group, which share its bytes.
    rings: usize,
    /// Whether they are in several computers.
    apart: bool,
}

impl Hops {
    /// The ways into the members of `team`, its lead first, in the rings of `groups`. In a program that has all teams, they
    /// are the hops into this one; in one where it stands for all, the slowest hop of the lead's group, beside all others.
    ///
    /// # Errors
    /// Two neighbours are not connected.
    pub fn of(context: &Context<'_>, (groups, team): (&[Team], &[DeviceId])) -> Result<Self, Diagnostic> {
        let (hardware, alone) = (context.hardware, context.cost.shows_all());
        let count = groups.first().map_or(0, Vec::len);
        let Some(lead) = team.first().filter(|_| count > 1) else { return Ok(Self::default()) };
        let mut passes: BTreeMap<([usize; 2], LinkId), usize> = BTreeMap::new();
        let (mut of_lead, mut shares, mut apart) = (Vec::new(), 1, false);
        for group in groups {
            let rings = rings(hardware, group);
            (shares, apart) = (rings.len(), is_apart(hardware, group));
            for (at, ring) in rings.iter().enumerate() {
                for [from, to] in hops(ring).filter(|[_, to]| !alone || team.contains(to)) {
                    // Those of one ring into one member run by themselves if all are shown, and beside all others if one is.
                    let place = group.iter().filter(|device| team.contains(device)).position(|device| *device == to);
                    let at = if alone { [at, place.unwrap_or(0)] } else { [0; 2] };
                    let way = way(hardware, [from, to])?;
                    way.links.iter().for_each(|link| *passes.entry((at, *link)).or_default() += 1);
                    of_lead.extend(group.contains(lead).then_some((at, way)));
                }
            }
        }
        let rate = |(at, route): &([usize; 2], &Route)| {
            let shared = |link: &LinkId| hardware.links()[*link].bandwidth.get() / passes[&(*at, *link)] as f64;
            route.links.iter().map(shared).chain(route.rate_cap.map(|cap| cap.get())).fold(f64::INFINITY, f64::min)
        };
        if !alone {
            let order = |one: &([usize; 2], &Route), other: &([usize; 2], &Route)| {
                rate(one).total_cmp(&rate(other)).then(other.1.latency.cmp(&one.1.latency))
            };
            of_lead = of_lead.into_iter().min_by(order).into_iter().collect();
        }
        let channels = |(at, route): ([usize; 2], &Route)| {
            let often = route.links.iter().flat_map(|link| std::iter::repeat_n(*link, passes[&(at, *link)]));
            (often.collect(), route.clone())
        };
        Ok(Self { ways: of_lead.into_iter().map(channels).collect(), count, rings: shares, apart })
    }

    /// The flows of a collective of `bytes` of each member; none where nothing moves.
    pub fn flows(&self, hardware: &Hardware, (kind, bytes): (CollectiveKind, Bytes)) -> Vec<Flow> {
        if bytes == Bytes::ZERO || self.ways.is_empty() {
            return Vec::new();
        }
        let moved = u128::from(bytes.get()) * u128::from(steps(kind, self.count)) / (self.count * self.rings) as u128;
        let moved = Bytes::new(moved as u64);
        let known = measured(hardware, (kind, self.count, self.apart), bytes);
        let known = known.and_then(|time| BytesPerSecond::new(moved.as_f64() / time.get()));
        let flow = |(channels, route): &(Arc<[LinkId]>, Route)| Flow {
            route: Arc::clone(channels),
            latency: match known {
                Some(_) => SimTime::ZERO,
                None => SimTime::from_seconds(route.latency * latencies(kind, self.count, self.apart)),
            },
            bytes: moved,
            rate_cap: known.or(route.rate_cap),
            share: Share::default(),
        };
        self.ways.iter().map(flow).collect()
    }
}

fn way(hardware: &Hardware, ends: [DeviceId; 2]) -> Result<&Route, Diagnostic> {
    route(hardware, ends).map_err(|error| Diagnostic::error(error.to_string()))
}
