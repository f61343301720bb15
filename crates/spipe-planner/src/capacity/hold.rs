//! What neighbouring layers on one device need of its host at least, in one stage or in several.

use super::{
    Case, Discipline, Figures, Help, Seat,
    cut::{self, Known, Part, least_for},
    hold_alike, rooms,
    way::{Choice, Found},
};
use crate::{
    deadline::Deadline,
    figures::{slots_in, slots_out},
};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// What layers need of the host, and in which stages.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub of_host: u64,
    pub stages: Vec<Choice>,
}

/// Layers that end somewhere: the first of them, and what they need of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub from: usize,
    /// No less than this.
    pub least: u64,
    /// This will do.
    pub found: Option<u64>,
    /// In several stages, which are found so.
    several: Option<Found>,
}

impl Entry {
    /// A bound.
    const fn bound(from: usize, least: u64) -> Self {
        Self { from, least, found: None, several: None }
    }

    /// What is needed in one stage.
    const fn whole(from: usize, of_host: u64) -> Self {
        Self { from, least: of_host, found: Some(of_host), several: None }
    }
}

/// By the layer behind the last, the shortest first.
type Table = Vec<Vec<Entry>>;

/// A device, microbatches in flight, and layers on it.
pub(super) type Place = (usize, Part);

/// What layers need on devices that hold alike.
pub(super) struct Holds {
    /// The first device that holds like each device.
    pub alike: Vec<usize>,
    /// By how many devices are behind.
    in_flight: Vec<u64>,
    /// By device and microbatches in flight.
    tables: BTreeMap<(usize, u64), Table>,
}

impl Holds {
    /// What layers need however they are cut: bounds, which take no search.
    pub fn bounds(figures: &Figures<'_>, (discipline, within): (Discipline, f64)) -> Self {
        let of = |(device, part): Place| Some(Entry::bound(part.from, bound(figures, device, part)?));
        Self::default_for(figures, discipline).filled((figures, within), &of)
    }

    /// What they need in one stage.
    pub fn whole(figures: &Figures<'_>, (discipline, within): (Discipline, f64)) -> Self {
        let of = |(device, part): Place| Some(Entry::whole(part.from, whole(figures, device, part)?.0));
        Self::default_for(figures, discipline).filled((figures, within), &of)
    }

    /// What they need in one stage or in several, for those that matter if they need no more than is said.
    pub fn cut(
        figures: &Figures<'_>,
        (discipline, within): (Discipline, f64),
        (most, deadline): (&BTreeMap<Place, u64>, Option<&Deadline<'_>>),
    ) -> Self {
        let mut asked: BTreeMap<usize, BTreeMap<Part, u64>> = BTreeMap::new();
        for ((device, part), most) in most {
            let like = like(figures, *device, *part);
            let better = match whole(figures, *device, like) {
                Some((of_host, _)) => of_host.checked_sub(1).map(|better| better.min(*most)),
                None => Some(*most),
            };
            let bound = bound(figures, *device, like);
            if let Some(better) = better.filter(|better| bound.is_some_and(|bound| bound <= *better)) {
                let most = asked.entry(*device).or_default().entry(like).or_default();
                *most = better.max(*most);
            }
        }
        let of_device = |(device, parts): (&usize, &BTreeMap<Part, u64>)| {
            (*device, cut::known(figures, (*device, parts), deadline))
        };
        let known: BTreeMap<usize, BTreeMap<Part, Known>> = asked.iter().map(of_device).collect();
        let of = |(device, part): Place| {
            most.get(&(device, part))?;
            let like = like(figures, device, part);
            let whole = whole(figures, device, like).map(|(of_host, _)| of_host);
            let known = known.get(&device).and_then(|parts| parts.get(&like));
            let least = known.map(|known| known.least).into_iter().chain(whole).min()?;
            let several = known.and_then(|known| known.found);
            let found = several.map(|several| several.of_host).or(whole);
            let entry = Entry { from: part.from, least, found, several };
            (least < u64::MAX).then_some(entry)
        };
        Self::default_for(figures, discipline).filled((figures, within), &of)
    }

    fn default_for(figures: &Figures<'_>, discipline: Discipline) -> Self {
        let all: Vec<usize> = (0..figures.devices.len()).collect();
        let seats = Case::new(figures, &all, discipline).seats;
        let in_flight: Vec<u64> = seats.iter().rev().map(|seat| seat.in_flight).collect();
        let like = |device: &usize| (0..*device).find(|other| hold_alike(figures, *other, *device)).unwrap_or(*device);
        let alike: Vec<usize> = all.iter().map(like).collect();
        Self { alike, in_flight, tables: BTreeMap::new() }
    }

    /// The same with an entry for all layers that may fit a device, and whose passes take it no longer than so many ms.
    fn filled(mut self, (figures, within): (&Figures<'_>, f64), of: &(dyn Fn(Place) -> Option<Entry> + Sync)) -> Self {
        let firsts = (0..self.alike.len()).filter(|device| self.alike[*device] == *device);
        let keys = firsts.flat_map(|device| self.in_flight.iter().map(move |in_flight| (device, *in_flight)));
        let mut keys: Vec<(usize, u64)> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        let table = |(device, in_flight): (usize, u64)| -> Table {
            let own = &figures.devices[device];
            let ending = |to: usize| {
                let may = |from: &usize| {
                    own.able(*from, to)
                        && own.state(*from, to, None) <= own.usable
                        && figures.microbatches as f64 * own.pass((*from, to), figures.training) <= within
                };
                let entry = |from: usize| of((device, Part { from, to, in_flight }));
                (0..to).rev().take_while(may).filter_map(entry).collect()
            };
            (0..=figures.layers).map(ending).collect()
        };
        self.tables = keys.into_par_iter().map(|key| (key, table(key))).collect();
        self
    }

    /// Whether what is found is the least everywhere.
    pub fn exact(&self) -> bool {
        self.tables.values().flatten().flatten().all(|entry| entry.found == Some(entry.least))
    }

    /// The layers that end before layer `to` and fit a device with so many devices behind.
    pub fn ending(&self, device: usize, behind: usize, to: usize) -> &[Entry] {
        &self.tables[&(self.alike[device], self.in_flight[behind])][to]
    }

    /// Layers on a device with so many devices behind.
    pub fn at(&self, (device, behind): (usize, usize), (from, to): (usize, usize)) -> Place {
        (self.alike[device], Part { from, to, in_flight: self.in_flight[behind] })
    }

    /// What was found for layers `from..to`, and in which stages.
    pub fn hold(&self, figures: &Figures<'_>, seat: (usize, usize), layers: (usize, usize)) -> Option<Hold> {
        let entry = self.ending(seat.0, seat.1, layers.1).iter().find(|entry| entry.from == layers.0)?;
        let (of_host, (device, part)) = (entry.found?, self.at(seat, layers));
        let like = like(figures, device, part);
        let mut stages = match entry.several {
            Some(found) => cut::stages(figures, device, like, found)?,
            None => vec![whole(figures, device, like)?.1],
        };
        stages.iter_mut().for_each(|stage| stage.to += part.from - like.from);
        Some(Hold { of_host, stages })
    }
}

/// The first part that needs as much: equal layers behind the second of their run.
fn like(figures: &Figures<'_>, device: usize, part: Part) -> Part {
    let (run, _) = run(figures, part.from);
    let (from, device) = (run + 1, &figures.devices[device]);
    let Some(shift) = part.from.checked_sub(from).filter(|_| same(figures, part.from, part.to)) else { return part };
    let moved = Part { from, to: part.to - shift, ..part };
    let alike = part.to < figures.layers
        && device.returns(moved.from) == device.returns(part.from)
        && device.returns(moved.to) == device.returns(part.to)
        && device.returns(moved.from) == device.returns(moved.to);
    if alike { moved } else { part }
}

/// The run of equal layers that a layer is in: the first, and how many.
fn run(figures: &Figures<'_>, layer: usize) -> (usize, usize) {
    figures.runs[figures.runs.partition_point(|(first, _)| *first <= layer) - 1]
}

/// Whether layers `from..to` are all equal.
pub(super) fn same(figures: &Figures<'_>, from: usize, to: usize) -> bool {
    let (first, count) = run(figures, from);
    to <= first + count
}

/// No less than what a part needs of the host, in however many stages; none if it does not fit the device.
fn bound(figures: &Figures<'_>, index: usize, Part { from, to, in_flight }: Part) -> Option<u64> {
    let device = &figures.devices[index];
    // The first stage keeps its input, and what is copied to other devices and from them has its slots.
    let seat = Seat { in_flight, first: from == 0, last: to == figures.layers, ..Seat::alone(index) };
    let arriving = if seat.first { 0 } else { device.input(from) * slots_in(device.returns(from)) };
    let leaving = if seat.last { 0 } else { device.bytes[to - 1].boundary.get() * slots_out(device.returns(to)) };
    let inputs = device.input(from) * if device.returns(from + 1) { in_flight } else { 1 };
    let state = device.state(from, to, Some(Help::NONE));
    let need = state + device.shared(seat) + inputs + arriving + leaving + device.workspace(from, to);
    if need <= device.usable {
        return Some(if device.is_cpu { need } else { 0 });
    }
    let stepped = device.state(from, to, Some(Help::STEP));
    let room = rooms(figures, index).into_iter().reduce(u64::saturating_add)?;
    let enough = need - (state - stepped) <= device.usable;
    least_for(figures, (index, in_flight), need - device.usable).filter(|least| enough && *least <= room)
}

/// What a part needs of the host at least in one stage, and how; a socket's own need is of its host. None if it does not fit the
/// device.
///
/// Beyond the first, each recomputed layer lessens all needs, so that only the fewest and the most matter.
fn whole(figures: &Figures<'_>, index: usize, Part { from, to, in_flight }: Part) -> Option<(u64, Choice)> {
    let device = &figures.devices[index];
    let (fewest, most) = device.recomputes(figures.training, from, to)?;
    let room = rooms(figures, index).into_iter().max().unwrap_or(u64::MAX);
    let mut best: Option<(u64, Choice)> = None;
    for help in figures.kinds_of_help(index) {
        for recomputed in [fewest, most] {
            let seat =
                Seat { device: index, in_flight, first: from == 0, last: to == figures.layers, help: Some(*help) };
            let need = device.need(seat, (from, to), recomputed);
            let of_host = if device.is_cpu { need } else { device.need_of_host(seat, *help, (from, to), recomputed) };
            if need <= device.usable && of_host <= room && best.is_none_or(|(least, _)| of_host < least) {
                best = Some((of_host, Choice { to, help: *help, recomputed }));
            }
        }
    }
    best
}
