//! What the layers of one stage need of its host at least.

use super::{Case, Discipline, Figures, Help, Seat};
use std::collections::BTreeMap;

/// What a stage needs of its host at least, and with which help and recompute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub of_host: u64,
    pub help: Help,
    pub recomputed: usize,
}

/// By the last layer of a stage: its first layer and what it needs of its host, for all that fit, the shortest first.
type Table = Vec<Vec<(usize, u64)>>;

/// What the stages need on the first device of each kind.
pub(super) struct Holds {
    devices: Vec<usize>,
    /// By how many stages are behind.
    in_flight: Vec<u64>,
    /// Whether the host helps.
    help: bool,
    /// By device and microbatches in flight.
    tables: BTreeMap<(usize, u64), Table>,
}

impl Holds {
    pub fn new(figures: &Figures<'_>, discipline: Discipline, devices: &[usize], help: bool) -> Self {
        let all: Vec<usize> = (0..figures.devices.len()).collect();
        let in_flight: Vec<u64> =
            Case::new(figures, &all, discipline).seats.iter().rev().map(|seat| seat.in_flight).collect();
        let mut holds = Self { devices: devices.to_vec(), in_flight, help, tables: BTreeMap::new() };
        let mut tables = BTreeMap::new();
        for device in devices {
            for in_flight in &holds.in_flight {
                tables.entry((*device, *in_flight)).or_insert_with(|| holds.table(figures, *device, *in_flight));
            }
        }
        holds.tables = tables;
        holds
    }

    fn table(&self, figures: &Figures<'_>, device: usize, in_flight: u64) -> Table {
        let figures_of = &figures.devices[device];
        let ending = |to: usize| {
            let may =
                |from: &usize| figures_of.able(*from, to) && figures_of.state(*from, to, None) <= figures_of.usable;
            let of = |from: usize| Some((from, self.least(figures, (device, in_flight), (from, to))?.of_host));
            (0..to).rev().take_while(may).filter_map(of).collect()
        };
        (0..=figures.layers).map(ending).collect()
    }

    /// The stages that end before layer `to` on a device of a kind with so many stages behind; none unless asked for.
    pub fn ending(&self, kind: usize, behind: usize, to: usize, asked: bool) -> impl Iterator<Item = (usize, u64)> {
        let key = (self.devices[kind], self.in_flight[behind]);
        let list = self.tables.get(&key).filter(|_| asked).map(|table| table[to].as_slice());
        list.unwrap_or_default().iter().copied()
    }

    /// The same with how.
    pub fn hold(&self, figures: &Figures<'_>, (kind, behind): (usize, usize), layers: (usize, usize)) -> Option<Hold> {
        self.least(figures, (self.devices[kind], self.in_flight[behind]), layers)
    }

    /// What layers `from..to` need of the host at least; a socket's own need is of its host. None if they do not fit the device.
    ///
    /// Beyond the first, each recomputed layer lessens all needs, so that only the fewest and the most matter.
    fn least(
        &self,
        figures: &Figures<'_>,
        (index, in_flight): (usize, u64),
        (from, to): (usize, usize),
    ) -> Option<Hold> {
        let device = &figures.devices[index];
        let (fewest, most) = device.recomputes(figures.training, from, to)?;
        let helps = if self.help { figures.helps(index) } else { &Help::ALL[..1] };
        let mut best: Option<Hold> = None;
        for help in helps {
            for recomputed in [fewest, most] {
                let seat =
                    Seat { device: index, in_flight, first: from == 0, last: to == figures.layers, help: Some(*help) };
                let need = device.need(seat, (from, to), recomputed);
                let of_host =
                    if device.is_cpu { need } else { device.need_of_host(seat, *help, (from, to), recomputed) };
                let room = figures.helper(index).map_or(u64::MAX, |host| figures.devices[host.socket.index()].usable);
                if need <= device.usable && of_host <= room && best.is_none_or(|best| of_host < best.of_host) {
                    best = Some(Hold { of_host, help: *help, recomputed });
                }
            }
        }
        best
    }
}
