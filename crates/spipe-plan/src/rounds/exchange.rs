//! Which parameters a device has that streams chunks: k units are resident, k′ are exchanged at a time.

use crate::{Placement, System};
use spipe_base::Bytes;
use std::ops::Range;

/// A pass of all microbatches through a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Visit {
    /// Which pass.
    pub backward: bool,
    /// The number of the chunk in it.
    pub chunk: usize,
}

/// How many units a device has at once, and how they are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanging {
    /// k.
    pub resident: usize,
    /// k′.
    pub swap: usize,
    /// Whether both passes have the same chunks: at the turn between them the last ones are there already.
    pub coupled: bool,
}

impl Exchanging {
    /// That of a placement.
    pub fn of(placement: &Placement) -> Self {
        let (units, knobs) = (placement.stages.len(), &placement.knobs);
        let most = |count: Option<u64>, unless: usize| count.map_or(unless, |count| count as usize).min(units);
        let (resident, swap) = match placement.system {
            System::Superpipeline => {
                let resident = most(knobs.resident, 2);
                (resident, most(knobs.swap, 1).min(resident))
            }
            System::NaiveSwap => {
                let resident = most(knobs.resident, 1);
                (resident, resident)
            }
            // Double buffering: one stage computes, the next one arrives.
            _ => (2, 1),
        };
        Self { resident, swap, coupled: placement.backward.is_empty() }
    }

    /// How many units there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.resident.max(self.swap)
    }
}

/// What comes to a device, in order. A unit is what is loaded once: for one visit, or for the last forward and the first backward of a
/// chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchanges {
    /// Of each exchange its units, and of each unit its visits, counted in the order in which the device makes them.
    pub units: Vec<Vec<Vec<usize>>>,
    /// The exchanges in the order in which they leave.
    pub leaving: Vec<usize>,
    /// What each exchange waits for.
    pub room: Vec<Room>,
}

/// What must have happened before there is room for an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The last of those that leave whose end is waited for.
    pub behind: usize,
    /// Whether that is the one of the iteration before.
    pub before: bool,
    /// Those that leave in whose place it comes: until then they keep their room.
    pub evicts: Range<usize>,
}

impl Exchanges {
    /// Of these visits, all of chunks that do not stay, in the order in which the device makes them.
    pub fn new(visits: &[Visit], exchanging: &Exchanging) -> Self {
        let units = units(visits, exchanging);
        let mut leaving: Vec<usize> = (0..units.len()).collect();
        leaving.sort_by_key(|exchange| last_visit(&units[*exchange]));
        let room = room(&units, &leaving, exchanging.capacity());
        Self { units, leaving, room }
    }

    /// The most that is there while the device makes each of so many visits. `streamed` has of each unit's visits its number among all of
    /// them, in order, with the bytes of its parameters. `renewed` says whether those that the next iteration begins with may have been stepped
    /// before a visit ends, so that they come during it.
    pub fn there(&self, visits: usize, streamed: &[(usize, Bytes)], renewed: &dyn Fn(usize) -> bool) -> Vec<Bytes> {
        let count = self.units.len();
        let size = |exchange: usize| self.units[exchange].iter().map(|unit| streamed[unit[0]].1).sum::<Bytes>();
        let used = |exchange: usize| self.units[exchange].iter().flatten().map(|visit| streamed[*visit].0);
        let last: Vec<Option<usize>> = (0..count).map(|exchange| used(exchange).max()).collect();
        let mut come_for = vec![0; visits];
        (0..count).for_each(|exchange| used(exchange).for_each(|visit| come_for[visit] = exchange + 1));
        // What is there once so many have come, of this iteration and of the next one.
        let mut come = vec![Bytes::ZERO];
        for exchange in 0..2 * count {
            let evicts = self.room.get(exchange).map_or(0..0, |room| room.evicts.clone());
            let left: Bytes = self.leaving[evicts].iter().map(|other| size(*other)).sum();
            come.push(come[exchange] + size(exchange % count) - left);
        }
        // Those that are not evicted are gone when they have been used for the last time.
        let evicted = self.room.iter().map(|room| room.evicts.end).max().unwrap_or(0);
        let (mut most, mut needed, mut left, mut gone) = (Vec::new(), 0, 0, Bytes::ZERO);
        for (visit, come_for) in come_for.into_iter().enumerate() {
            while let Some(exchange) = self.leaving.get(left).filter(|exchange| last[**exchange] < Some(visit)) {
                gone += if left >= evicted { size(*exchange) } else { Bytes::ZERO };
                left += 1;
            }
            needed = needed.max(come_for);
            let has_room = |exchange: &usize| {
                let Room { behind, before, .. } = self.room[exchange % count];
                let has_left = behind < left;
                if *exchange < count { before || has_left } else { before && has_left && renewed(visit) }
            };
            let allowed = needed + (needed..2 * count).take_while(has_room).count();
            let there = come[needed..=allowed].iter().max().copied().unwrap_or_default();
            most.push(there.saturating_sub(gone));
        }
        most
    }
}

fn last_visit(units: &[Vec<usize>]) -> Option<usize> {
    units.last().and_then(|unit| unit.last()).copied()
}

/// What is loaded, k′ units at a time, in order. At the turn from forward to backward the last exchanges that fit among k units
/// are there already.
fn units(visits: &[Visit], exchanging: &Exchanging) -> Vec<Vec<Vec<usize>>> {
    let turn = visits.iter().position(|visit| visit.backward).unwrap_or(visits.len());
    let size = exchanging.swap.max(1);
    let all: Vec<usize> = (0..visits.len()).collect();
    let (forward, backward) = all.split_at(turn);
    let exchange = |units: &[usize]| -> Vec<Vec<usize>> { units.iter().map(|visit| vec![*visit]).collect() };
    let mut exchanges: Vec<Vec<Vec<usize>>> = forward.chunks(size).map(exchange).collect();
    let mut stay = 0;
    for units in exchanges.iter_mut().rev().filter(|_| exchanging.coupled) {
        if stay + units.len() > exchanging.resident {
            break;
        }
        stay += units.len();
        for unit in units {
            let again = Visit { backward: true, chunk: visits[unit[0]].chunk };
            unit.extend(backward.iter().copied().find(|visit| visits[*visit] == again));
        }
    }
    exchanges.extend(backward[stay.min(backward.len())..].chunks(size).map(exchange));
    exchanges
}

/// No more than k units are there at a time: an exchange comes in once enough others have left, in this iteration or the one
/// before. What has been used keeps its room until something takes it.
fn room(units: &[Vec<Vec<usize>>], leaving: &[usize], capacity: usize) -> Vec<Room> {
    // How many units have left once the first so many exchanges have.
    let gone: Vec<usize> = leaving
        .iter()
        .scan(0, |sum, exchange| {
            *sum += units[*exchange].len();
            Some(*sum)
        })
        .collect();
    let total = gone.last().copied().unwrap_or(0);
    let (mut evicted, mut wanted) = (0, 0);
    let mut of_each = |exchange: &Vec<Vec<usize>>| {
        wanted += exchange.len();
        let before = wanted <= capacity;
        let must_leave = if before { (total + wanted).saturating_sub(capacity).max(wanted) } else { wanted - capacity };
        let behind = gone.partition_point(|gone| *gone < must_leave);
        let evicts = if !before && evicted <= behind { evicted..behind + 1 } else { 0..0 };
        evicted = evicted.max(evicts.end);
        Room { behind, before, evicts }
    };
    units.iter().map(&mut of_each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is there at most during the forward and the backward visits of chunks of so many bytes, on a device that makes all of them.
    fn there(bytes: &[u64], (resident, swap): (usize, usize), staying: &[usize]) -> Vec<u64> {
        let count = bytes.len();
        let forward = (0..count).map(|chunk| Visit { backward: false, chunk });
        let visits: Vec<Visit> = forward.chain((0..count).rev().map(|chunk| Visit { backward: true, chunk })).collect();
        let streamed = visits.iter().enumerate().filter(|(_, visit)| !staying.contains(&visit.chunk));
        let sizes: Vec<(usize, Bytes)> =
            streamed.clone().map(|(at, visit)| (at, Bytes::new(bytes[visit.chunk]))).collect();
        let visits_of_streamed: Vec<Visit> = streamed.map(|(_, visit)| *visit).collect();
        let exchanges = Exchanges::new(&visits_of_streamed, &Exchanging { resident, swap, coupled: true });
        exchanges.there(visits.len(), &sizes, &|_| true).into_iter().map(Bytes::get).collect()
    }

    #[test]
    fn neighbours_are_there_together() {
        assert_eq!(there(&[1, 2, 4], (1, 1), &[]), [1, 2, 4, 4, 2, 1]);
        // The next one comes while one computes, or has not come yet; the last two stay at the turn.
        assert_eq!(there(&[1, 2, 4], (2, 1), &[]), [3, 6, 6, 6, 6, 2]);
        assert_eq!(there(&[1, 2, 4], (3, 1), &[]), [7, 7, 7, 7, 4, 4]);
        // Two come and go together.
        assert_eq!(there(&[1, 2, 4, 8], (2, 2), &[]), [3, 3, 12, 12, 12, 12, 3, 3]);
        // What stays is not among it.
        assert_eq!(there(&[1, 2, 4], (1, 1), &[1]), [1, 4, 4, 4, 4, 1]);
    }
}
