//! Tables of the least host bytes of consecutive layers on a device, in one stage or in several.

use crate::{
    costs::{slots_in, slots_out},
    feasibility::capacity::{
        CostSums, HostOffload, ScheduleKind, StageSlot, Subproblem,
        cut::{self, CutNeeds, CutStage, LayerRangeNeeds},
        equal_layers::{run, same},
        hold_alike, rooms,
    },
    problem::Deadline,
};
use rayon::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The host bytes of layers, and the stages in which they need these.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub of_host: u64,
    pub stages: Vec<CutStage>,
}

/// A table entry for layers with a given end: their first one, and their host bytes.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub from: usize,
    /// A lower bound.
    pub least: u64,
    /// An amount that suffices.
    pub found: Option<u64>,
    /// The stages of that amount, if there are several; layers count from the first like these.
    several: Option<Arc<[CutStage]>>,
}

impl Entry {
    /// An entry with a bound alone.
    const fn bound(from: usize, least: u64) -> Self {
        Self { from, least, found: None, several: None }
    }

    /// An entry for one stage.
    const fn whole(from: usize, of_host: u64) -> Self {
        Self { from, least: of_host, found: Some(of_host), several: None }
    }
}

/// Entries by the layer after the last, the shortest first.
type Table = Vec<Vec<Entry>>;

/// A device, and layers on it with microbatches in flight.
pub(crate) type HeldStage = (usize, LayerRangeNeeds);

/// The host bytes of layers on each device.
pub(crate) struct Holds {
    /// The first device that holds like each device.
    pub alike: Vec<usize>,
    /// The microbatches in flight, by the number of devices behind.
    in_flight: Vec<u64>,
    /// By device and microbatches in flight.
    tables: BTreeMap<(usize, u64), Table>,
}

impl Holds {
    /// Bounds that hold for every cut into stages and take no search.
    pub fn bounds(costs: &CostSums<'_>, schedule: ScheduleKind) -> Self {
        let of = |(device, part): HeldStage| Some(Entry::bound(part.from, bound(costs, device, part)?));
        Self::default_for(costs, schedule).filled(costs, &of)
    }

    /// The host bytes in one stage.
    pub fn whole(costs: &CostSums<'_>, schedule: ScheduleKind) -> Self {
        let of = |(device, part): HeldStage| Some(Entry::whole(part.from, whole(costs, device, part)?.0));
        Self::default_for(costs, schedule).filled(costs, &of)
    }

    /// The host bytes in one stage or in several. `most` names the layers that matter, with the
    /// most host bytes at which they do.
    pub fn cut(
        costs: &CostSums<'_>,
        schedule: ScheduleKind,
        (most, deadline): (&BTreeMap<HeldStage, u64>, &Deadline<'_>),
    ) -> Self {
        let mut asked: BTreeMap<usize, BTreeMap<LayerRangeNeeds, u64>> = BTreeMap::new();
        for ((device, part), most) in most {
            let like = like(costs, *device, *part);
            let better = match whole(costs, *device, like) {
                Some((of_host, _)) => of_host.checked_sub(1).map(|better| better.min(*most)),
                None => Some(*most),
            };
            let bound = bound(costs, *device, like);
            if let Some(better) = better.filter(|better| bound.is_some_and(|bound| bound <= *better)) {
                let most = asked.entry(*device).or_default().entry(like).or_default();
                *most = better.max(*most);
            }
        }
        let of_device = |(device, parts): (&usize, &BTreeMap<LayerRangeNeeds, u64>)| {
            (*device, cut::known(costs, (*device, parts), deadline))
        };
        let known: BTreeMap<usize, BTreeMap<LayerRangeNeeds, CutNeeds>> = asked.iter().map(of_device).collect();
        let of = |(device, part): HeldStage| {
            most.get(&(device, part))?;
            let like = like(costs, device, part);
            let whole = whole(costs, device, like).map(|(of_host, _)| of_host);
            let known = known.get(&device).and_then(|parts| parts.get(&like));
            let several = known.and_then(|known| known.found.as_ref());
            let found = several.map(|(of_host, _)| *of_host).or(whole);
            let open = known.filter(|known| !known.exact).and_then(|_| bound(costs, device, like));
            let least = open.into_iter().chain(found).min()?;
            Some(Entry { from: part.from, least, found, several: several.map(|(_, stages)| stages.as_slice().into()) })
        };
        Self::default_for(costs, schedule).filled(costs, &of)
    }

    fn default_for(costs: &CostSums<'_>, schedule: ScheduleKind) -> Self {
        let all: Vec<usize> = (0..costs.devices.len()).collect();
        let stage_slots = Subproblem::new(costs, &all, schedule).stage_slots;
        let in_flight: Vec<u64> = stage_slots.iter().rev().map(|stage_slot| stage_slot.in_flight).collect();
        let like = |device: &usize| (0..*device).find(|other| hold_alike(costs, *other, *device)).unwrap_or(*device);
        let alike: Vec<usize> = all.iter().map(like).collect();
        Self { alike, in_flight, tables: BTreeMap::new() }
    }

    /// Fills the tables with an entry for all layers that may fit a device.
    fn filled(mut self, costs: &CostSums<'_>, of: &(dyn Fn(HeldStage) -> Option<Entry> + Sync)) -> Self {
        let firsts = (0..self.alike.len()).filter(|device| self.alike[*device] == *device);
        let of_device = |device| self.in_flight.iter().map(move |in_flight| (device, *in_flight));
        let keys: BTreeSet<(usize, u64)> = firsts.flat_map(of_device).collect();
        let table = |(device, in_flight): (usize, u64)| -> Table {
            let own = &costs.devices[device];
            let ending = |to: usize| {
                let may = |from: &usize| own.able(*from, to) && own.state(*from, to, None) <= own.usable;
                let entry = |from: usize| of((device, LayerRangeNeeds { from, to, in_flight }));
                (0..to).rev().take_while(may).filter_map(entry).collect()
            };
            (0..=costs.layers).map(ending).collect()
        };
        self.tables = keys.into_par_iter().map(|key| (key, table(key))).collect();
        self
    }

    /// Whether all bounds are reached.
    pub fn exact(&self) -> bool {
        self.tables.values().flatten().flatten().all(|entry| entry.found == Some(entry.least))
    }

    /// The entries of layers that end before layer `to` and fit a device with `behind` devices
    /// behind.
    pub fn ending(&self, device: usize, behind: usize, to: usize) -> &[Entry] {
        &self.tables[&(self.alike[device], self.in_flight[behind])][to]
    }

    /// The key of layers on a device with `behind` devices behind.
    pub fn at(&self, (device, behind): (usize, usize), (from, to): (usize, usize)) -> HeldStage {
        (self.alike[device], LayerRangeNeeds { from, to, in_flight: self.in_flight[behind] })
    }

    /// The host bytes and the stages found for layers `from..to`.
    pub fn hold(&self, costs: &CostSums<'_>, stage_slot: (usize, usize), layers: (usize, usize)) -> Option<Hold> {
        let entry = self.ending(stage_slot.0, stage_slot.1, layers.1).iter().find(|entry| entry.from == layers.0)?;
        let (of_host, (device, part)) = (entry.found?, self.at(stage_slot, layers));
        let like = like(costs, device, part);
        let mut stages = match &entry.several {
            Some(stages) => stages.to_vec(),
            None => vec![whole(costs, device, like)?.1],
        };
        stages.iter_mut().for_each(|stage| stage.to += part.from - like.from);
        Some(Hold { of_host, stages })
    }
}

/// Returns the first part with the same needs: equal layers from the second one of their run.
fn like(costs: &CostSums<'_>, device: usize, part: LayerRangeNeeds) -> LayerRangeNeeds {
    let (run, _) = run(costs, part.from);
    let (from, device) = (run + 1, &costs.devices[device]);
    let Some(shift) = part.from.checked_sub(from).filter(|_| same(costs, part.from, part.to)) else { return part };
    let moved = LayerRangeNeeds { from, to: part.to - shift, ..part };
    let alike = part.to < costs.layers
        && device.returns(moved.from) == device.returns(part.from)
        && device.returns(moved.to) == device.returns(part.to)
        && device.returns(moved.from) == device.returns(moved.to);
    if alike { moved } else { part }
}

/// Returns a lower bound on the host bytes of a part, in any number of stages; `None` if it does
/// not fit the device.
fn bound(costs: &CostSums<'_>, index: usize, LayerRangeNeeds { from, to, in_flight }: LayerRangeNeeds) -> Option<u64> {
    let device = &costs.devices[index];
    // The first stage keeps its input, and copies to and from other devices have their slots.
    let stage_slot = StageSlot { in_flight, first: from == 0, last: to == costs.layers, ..StageSlot::alone(index) };
    let arriving = if stage_slot.first { 0 } else { device.input(from) * slots_in(device.returns(from)) };
    let leaving = if stage_slot.last { 0 } else { device.bytes[to - 1].boundary.get() * slots_out(device.returns(to)) };
    let inputs = device.input(from) * if device.returns(from + 1) { in_flight } else { 1 };
    let state = device.state(from, to, Some(HostOffload::NONE));
    let need = state + device.shared(stage_slot) + inputs + arriving + leaving + device.workspace(from, to);
    if need <= device.usable {
        return Some(if device.is_cpu { need } else { 0 });
    }
    let stepped = device.state(from, to, Some(HostOffload::STEP));
    let room = rooms(costs, index).into_iter().reduce(u64::saturating_add)?;
    let enough = need - (state - stepped) <= device.usable;
    least_for(costs, (index, in_flight), need - device.usable).filter(|least| enough && *least <= room)
}

/// Returns the least host bytes of a part in one stage, and that stage; `None` if it does not fit
/// the device. On a socket all bytes are host bytes.
///
/// Beyond the first, each recomputed layer lessens all needs, so that only the fewest and the most
/// matter.
fn whole(
    costs: &CostSums<'_>,
    index: usize,
    LayerRangeNeeds { from, to, in_flight }: LayerRangeNeeds,
) -> Option<(u64, CutStage)> {
    let device = &costs.devices[index];
    let (fewest, most) = device.recomputes(costs.training, from, to)?;
    let room = rooms(costs, index).into_iter().max().unwrap_or(u64::MAX);
    let mut best: Option<(u64, CutStage)> = None;
    for host_offload in costs.kinds_of_host_offload(index) {
        for recomputed in [fewest, most] {
            let stage_slot = StageSlot {
                device: index,
                in_flight,
                first: from == 0,
                last: to == costs.layers,
                host_offload: Some(*host_offload),
            };
            let need = device.need(stage_slot, (from, to), recomputed);
            let of_host = if device.is_cpu {
                need
            } else {
                device.need_of_host(stage_slot, *host_offload, (from, to), recomputed)
            };
            if need <= device.usable && of_host <= room && best.is_none_or(|(least, _)| of_host < least) {
                best = Some((of_host, CutStage { to, host_offload: *host_offload, recomputed }));
            }
        }
    }
    best
}

/// Returns the least host bytes with which `excess` bytes leave a device; `None` if none can.
fn least_for(costs: &CostSums<'_>, (index, in_flight): (usize, u64), excess: u64) -> Option<u64> {
    costs.hosts(index).next()?;
    let stepped = costs.devices[index].bytes.iter().filter(|bytes| bytes.optimizer.get() > 0);
    let of_layer =
        stepped.map(|bytes| ((bytes.optimizer + bytes.gradients + bytes.updated).get(), bytes.optimizer.get()));
    // Beside stages that offload more, a stage needs no slot of its own.
    let saved = (in_flight > 0).then_some((1, 1));
    let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
    let cheaper = |one: &(u64, u64), other: &(u64, u64)| product(one.0, other.1).cmp(&product(other.0, one.1));
    let (of_host, freed) = of_layer.chain(saved).min_by(cheaper)?;
    u64::try_from(product(excess, of_host).div_ceil(u128::from(freed))).ok()
}
