//! The streamed parameters on a device: k units are resident, and k′ are exchanged at a time.

use crate::{OrderKind, Placement};
use spipe_base::Bytes;
use std::ops::Range;

/// A pass of all microbatches through a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Visit {
    /// Whether the pass is the backward.
    pub backward: bool,
    /// The index of the chunk in its pass.
    pub chunk: usize,
}

/// The number of units on a device, and how they are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangePolicy {
    /// k, the resident units.
    pub resident: usize,
    /// k′, the units of one exchange.
    pub swap: usize,
    /// Whether both passes have the same chunks. Then the last chunks of the forward are still
    /// resident when the backward begins.
    pub coupled: bool,
}

impl ExchangePolicy {
    /// The policy of a placement.
    pub fn of(placement: &Placement) -> Self {
        let units = placement.stages.len();
        let most = |count: Option<u64>, unless: usize| count.map_or(unless, |count| count as usize).min(units);
        let (resident, swap) = match placement.order {
            OrderKind::Rounds(exchange) if exchange.without_overlap => {
                let resident = most(exchange.resident, 1);
                (resident, resident)
            }
            // By default double buffering: one stage computes while the next one arrives.
            OrderKind::Rounds(exchange) => {
                let resident = most(exchange.resident, 2);
                (resident, most(exchange.swap, 1).min(resident))
            }
            _ => (2, 1),
        };
        Self { resident, swap, coupled: placement.backward.is_empty() }
    }

    /// The number of units for which there is room.
    pub(crate) fn capacity(&self) -> usize {
        self.resident.max(self.swap)
    }
}

/// The exchanges of a device, in order. A unit is the parameters that are loaded once: for one
/// visit, or for both visits of a chunk that stays between the last forward and the first backward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchanges {
    /// By exchange its units, and by unit its visits, numbered in execution order.
    pub units: Vec<Vec<Vec<usize>>>,
    /// The exchanges in the order in which they leave.
    pub leaving: Vec<usize>,
    /// The condition under which each exchange has room.
    pub room: Vec<Room>,
}

/// The condition under which an exchange has room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The exchange that must have left, as an index into [`Exchanges::leaving`].
    pub behind: usize,
    /// Whether that exchange is one of the iteration before.
    pub before: bool,
    /// The exchanges that it replaces, as indices into [`Exchanges::leaving`]. They hold their
    /// memory until then.
    pub evicts: Range<usize>,
}

impl Exchanges {
    /// The exchanges for `visits`, all of streamed chunks, in execution order.
    pub fn new(visits: &[Visit], policy: &ExchangePolicy) -> Self {
        let units = units(visits, policy);
        let mut leaving: Vec<usize> = (0..units.len()).collect();
        leaving.sort_by_key(|exchange| last_visit(&units[*exchange]));
        let room = room(&units, &leaving, policy.capacity());
        Self { units, leaving, room }
    }

    /// The most bytes of streamed parameters on the device during each of its `visits` visits.
    ///
    /// `streamed` lists the visits of streamed chunks in order: the number of each among all
    /// visits, and the bytes of its parameters. `updated` tells whether the first parameters of the
    /// next iteration may have been updated before a visit ends, so that they can arrive during it.
    pub fn bytes_held(
        &self,
        visits: usize,
        streamed: &[(usize, Bytes)],
        updated: &dyn Fn(usize) -> bool,
    ) -> Vec<Bytes> {
        let count = self.units.len();
        let size = |exchange: usize| self.units[exchange].iter().map(|unit| streamed[unit[0]].1).sum::<Bytes>();
        let used = |exchange: usize| self.units[exchange].iter().flatten().map(|visit| streamed[*visit].0);
        let last: Vec<Option<usize>> = (0..count).map(|exchange| used(exchange).max()).collect();
        let mut come_for = vec![0; visits];
        (0..count).for_each(|exchange| used(exchange).for_each(|visit| come_for[visit] = exchange + 1));
        // The bytes held after each arrival, over the exchanges of this iteration and of the next
        // one.
        let mut come = vec![Bytes::ZERO];
        for exchange in 0..2 * count {
            let evicts = self.room.get(exchange).map_or(0..0, |room| room.evicts.clone());
            let left: Bytes = self.leaving[evicts].iter().map(|other| size(*other)).sum();
            come.push(come[exchange] + size(exchange % count) - left);
        }
        // Exchanges that are never replaced are dropped after their last use.
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
                if *exchange < count { before || has_left } else { before && has_left && updated(visit) }
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

/// The exchanges of k′ units each, in order. When the backward begins, the last exchanges of the
/// forward that fit among k units are still resident.
fn units(visits: &[Visit], policy: &ExchangePolicy) -> Vec<Vec<Vec<usize>>> {
    let turn = visits.iter().position(|visit| visit.backward).unwrap_or(visits.len());
    let size = policy.swap.max(1);
    let all: Vec<usize> = (0..visits.len()).collect();
    let (forward, backward) = all.split_at(turn);
    let exchange = |units: &[usize]| -> Vec<Vec<usize>> { units.iter().map(|visit| vec![*visit]).collect() };
    let mut exchanges: Vec<Vec<Vec<usize>>> = forward.chunks(size).map(exchange).collect();
    let mut stay = 0;
    for units in exchanges.iter_mut().rev().filter(|_| policy.coupled) {
        if stay + units.len() > policy.resident {
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

/// The room of each exchange. At most `capacity` units are resident, so that an exchange waits
/// until enough others have left, in this iteration or the one before. Used units hold their memory
/// until an exchange replaces them.
fn room(units: &[Vec<Vec<usize>>], leaving: &[usize], capacity: usize) -> Vec<Room> {
    // The number of units that have left with each exchange of `leaving`.
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

    /// The most bytes held during the forward and backward visits of chunks of the given bytes on a
    /// single device.
    fn held(bytes: &[u64], (resident, swap): (usize, usize), staying: &[usize]) -> Vec<u64> {
        let count = bytes.len();
        let forward = (0..count).map(|chunk| Visit { backward: false, chunk });
        let visits: Vec<Visit> = forward.chain((0..count).rev().map(|chunk| Visit { backward: true, chunk })).collect();
        let streamed = visits.iter().enumerate().filter(|(_, visit)| !staying.contains(&visit.chunk));
        let sizes: Vec<(usize, Bytes)> =
            streamed.clone().map(|(at, visit)| (at, Bytes::new(bytes[visit.chunk]))).collect();
        let visits_of_streamed: Vec<Visit> = streamed.map(|(_, visit)| *visit).collect();
        let exchanges = Exchanges::new(&visits_of_streamed, &ExchangePolicy { resident, swap, coupled: true });
        exchanges.bytes_held(visits.len(), &sizes, &|_| true).into_iter().map(Bytes::get).collect()
    }

    #[test]
    fn neighbours_are_resident_together() {
        assert_eq!(held(&[1, 2, 4], (1, 1), &[]), [1, 2, 4, 4, 2, 1]);
        // The next chunk arrives while one computes; the last two stay when the backward begins.
        assert_eq!(held(&[1, 2, 4], (2, 1), &[]), [3, 6, 6, 6, 6, 2]);
        assert_eq!(held(&[1, 2, 4], (3, 1), &[]), [7, 7, 7, 7, 4, 4]);
        // Exchanges of two chunks.
        assert_eq!(held(&[1, 2, 4, 8], (2, 2), &[]), [3, 3, 12, 12, 12, 12, 3, 3]);
        // Resident chunks are not counted.
        assert_eq!(held(&[1, 2, 4], (1, 1), &[1]), [1, 4, 4, 4, 4, 1]);
    }
}
