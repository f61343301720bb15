//! The copies of the GPUs on one PCIe switch.

use crate::order::{Pass, Token, timing::Timing};
use spipe_base::SimTime;
use std::collections::BTreeMap;

/// A pass of an order, or a copy of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A pass.
    Pass(Token),
    /// The offload of the activation of this forward.
    Offload(Token),
    /// The reload of the activation of this forward, before its backward.
    Reload(Token),
}

/// An activation that a GPU may offload between the end of its forward and the deadline of its
/// reload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// The index of the GPU on the switch.
    pub seat: usize,
    /// The forward of the activation.
    pub forward: Token,
    /// The end of the forward.
    pub from: SimTime,
    /// The latest end of the reload.
    pub until: SimTime,
}

/// The offload and reload of an activation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    pub seat: usize,
    pub forward: Token,
    /// Start and end of the offload.
    pub out: (SimTime, SimTime),
    /// Start and end of the reload.
    pub back: (SimTime, SimTime),
}

/// The times of a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyTimes {
    /// While both directions of the switch are in use.
    pub shared: SimTime,
    /// Before the first reload.
    pub alone: SimTime,
}

/// The GPU that is preferred when copies compete for the switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preference {
    /// The index of the GPU.
    pub seat: usize,
    /// The advance of its copies in the ranking.
    pub by: SimTime,
}

/// The trips for which there is time. A GPU runs one copy at a time, and each direction of the
/// switch carries one copy at a time.
///
/// Reloads are placed from the last to the first, each as late as possible; then offloads from the
/// first to the last, each as early as possible (Wan et al., arXiv 2503.01328, section 4).
/// Activations whose offload would end after the start of their reload are not offloaded.
pub(super) fn place(wishes: &[Wish], seats: usize, times: CopyTimes, preference: Preference) -> Vec<Trip> {
    let mut lanes = vec![Busy::default(); seats];
    let (mut inward, mut outward) = (Busy::default(), Busy::default());
    let preferred = |wish: &Wish| wish.seat == preference.seat;
    let mut by_deadline: Vec<&Wish> = wishes.iter().collect();
    let deadline = |wish: &Wish| if preferred(wish) { wish.until + preference.by } else { wish.until };
    by_deadline.sort_by_key(|wish| (std::cmp::Reverse(deadline(wish)), !preferred(wish), wish.forward));
    let mut backs: BTreeMap<(usize, Token), (SimTime, SimTime)> = BTreeMap::new();
    for wish in by_deadline {
        let Some(back) = latest(wish.until, times.shared, [&lanes[wish.seat], &inward]) else { continue };
        if back.0 >= wish.from + times.alone {
            lanes[wish.seat].add(back);
            inward.add(back);
            backs.insert((wish.seat, wish.forward), back);
        }
    }
    let mut by_start: Vec<&Wish> =
        wishes.iter().filter(|wish| backs.contains_key(&(wish.seat, wish.forward))).collect();
    let start = |wish: &Wish| if preferred(wish) { wish.from } else { wish.from + preference.by };
    by_start.sort_by_key(|wish| (start(wish), !preferred(wish), wish.forward));
    let mut trips = Vec::new();
    for wish in by_start {
        let Some(back) = backs.get(&(wish.seat, wish.forward)).copied() else { continue };
        let first_back = inward.first();
        let busy = [&lanes[wish.seat], &outward];
        let alone = earliest(wish.from, times.alone, busy);
        let out = if alone.1 <= first_back { alone } else { earliest(wish.from, times.shared, busy) };
        if out.1 <= back.0 {
            lanes[wish.seat].add(out);
            outward.add(out);
            trips.push(Trip { seat: wish.seat, forward: wish.forward, out, back });
        } else {
            lanes[wish.seat].remove(back);
            inward.remove(back);
        }
    }
    trips
}

/// The peak of each GPU in activations. The starts of forwards and of reloads acquire one, the ends
/// of offloads and of backward-weights release one.
pub(super) fn peaks(devices: &[&[Token]], timing: &Timing<'_>, trips: &[Trip]) -> Vec<usize> {
    let held = |(seat, tokens): (usize, &&[Token])| {
        let [takes, gives] = changes(seat, tokens, timing, trips);
        let mut given = 0;
        let holding = takes.iter().enumerate().map(|(taken, (at, _))| {
            while gives.get(given).is_some_and(|(end, _)| end <= at) {
                given += 1;
            }
            taken + 1 - given
        });
        holding.max().unwrap_or(0)
    };
    devices.iter().enumerate().map(held).collect()
}

/// Steps with their times, sorted by time.
pub(super) type Timed = Vec<(SimTime, Step)>;

/// The steps of a GPU that acquire memory, by start, and those that release it, by end.
pub(super) fn changes(seat: usize, tokens: &[Token], timing: &Timing<'_>, trips: &[Trip]) -> [Timed; 2] {
    let (mut takes, mut gives) = (Vec::new(), Vec::new());
    for token in tokens {
        match token.pass {
            Pass::Forward => takes.push((timing.start(*token), Step::Pass(*token))),
            Pass::Backward | Pass::BackwardWeight => gives.push((timing.end(*token), Step::Pass(*token))),
            Pass::BackwardInput => {}
        }
    }
    for trip in trips.iter().filter(|trip| trip.seat == seat) {
        takes.push((trip.back.0, Step::Reload(trip.forward)));
        gives.push((trip.out.1, Step::Offload(trip.forward)));
    }
    takes.sort_unstable();
    gives.sort_unstable();
    [takes, gives]
}

/// Disjoint intervals, sorted by start.
#[derive(Clone, Debug, Default)]
struct Busy(Vec<(SimTime, SimTime)>);

impl Busy {
    fn first(&self) -> SimTime {
        self.0.first().map_or(SimTime::MAX, |(start, _)| *start)
    }

    fn add(&mut self, interval: (SimTime, SimTime)) {
        let at = self.0.partition_point(|other| other.0 < interval.0);
        self.0.insert(at, interval);
    }

    fn remove(&mut self, interval: (SimTime, SimTime)) {
        self.0.retain(|other| *other != interval);
    }

    /// The last interval that overlaps the given one.
    fn last_overlap(&self, (start, end): (SimTime, SimTime)) -> Option<(SimTime, SimTime)> {
        let at = self.0.partition_point(|other| other.0 < end);
        at.checked_sub(1).map(|at| self.0[at]).filter(|other| other.1 > start)
    }

    /// The first interval that overlaps the given one.
    fn first_overlap(&self, (start, end): (SimTime, SimTime)) -> Option<(SimTime, SimTime)> {
        let at = self.0.partition_point(|other| other.1 <= start);
        self.0.get(at).copied().filter(|other| other.0 < end)
    }
}

/// The latest interval of `length` that ends by `end` and overlaps none of `busy`, if there is one.
fn latest(end: SimTime, length: SimTime, busy: [&Busy; 2]) -> Option<(SimTime, SimTime)> {
    let mut end = end;
    loop {
        let interval = (SimTime::ns(end.as_ns().checked_sub(length.as_ns())?), end);
        match busy.iter().find_map(|busy| busy.last_overlap(interval)) {
            Some(other) => end = other.0,
            None => return Some(interval),
        }
    }
}

/// The earliest interval of `length` that starts at `start` or later and overlaps none of `busy`.
fn earliest(start: SimTime, length: SimTime, busy: [&Busy; 2]) -> (SimTime, SimTime) {
    let mut start = start;
    loop {
        let interval = (start, start + length);
        match busy.iter().find_map(|busy| busy.first_overlap(interval)) {
            Some(other) => start = other.1,
            None => return interval,
        }
    }
}
