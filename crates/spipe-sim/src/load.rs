//! The load of channels over a steady iteration.

use crate::critical::Steady;
use spipe_base::{IdVec, LinkId, SimTime};
use spipe_schedule::Program;

/// The bytes that flows have moved over each channel, as a function of time that repeats with the
/// period. A flow counts as if it moved its bytes evenly over its action.
pub(crate) struct Loads {
    period: f64,
    channels: IdVec<LinkId, Curve>,
}

/// A sum of bytes that grows linearly between points.
#[derive(Clone, Default)]
struct Curve {
    /// Times in ns within the period, and the bytes before each.
    points: Vec<(f64, f64)>,
    /// The bytes of one period.
    total: f64,
}

impl Loads {
    pub fn new(program: &Program, steady: &Steady<'_, '_>, period: SimTime) -> Self {
        let period = (period.as_ns() as f64).max(1.0);
        // The change of the rate, in bytes per ns, at each time.
        let mut changes: IdVec<LinkId, Vec<(f64, f64)>> = program.channels().iter().map(|_| Vec::new()).collect();
        let mut totals: IdVec<LinkId, f64> = program.channels().iter().map(|_| 0.0).collect();
        for (id, action) in program.actions().enumerate().filter(|(id, _)| !steady.is_skipped(*id)) {
            let (start, end) = (steady.start((0, id)) as f64, steady.end((0, id)) as f64);
            for flow in program.flows(action).iter().filter(|_| end > start) {
                let rate = flow.bytes.as_f64() / (end - start);
                for link in flow.route.iter() {
                    totals[*link] += flow.bytes.as_f64();
                    wrapped((start, end), period, |from, to| changes[*link].extend([(from, rate), (to, -rate)]));
                }
            }
        }
        let curve = |(mut changes, total): (Vec<(f64, f64)>, f64)| {
            changes.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (mut rate, mut held, mut last, mut points) = (0.0, 0.0, 0.0, vec![(0.0, 0.0)]);
            for (time, change) in changes {
                held += rate * (time - last);
                points.push((time, held));
                (rate, last) = (rate + change, time);
            }
            points.push((period, total));
            Curve { points, total }
        };
        let all = changes.iter().cloned().zip(totals.iter().copied());
        Self { period, channels: all.map(curve).collect() }
    }

    /// The share of a channel's bandwidth in use between two times on the clock, in ns.
    pub fn share(&self, program: &Program, link: LinkId, (from, to): (i64, i64)) -> f64 {
        let curve = &self.channels[link];
        let bytes = curve.at(to as f64, self.period) - curve.at(from as f64, self.period);
        let room = program.channels()[link].bandwidth.get() * (to - from) as f64 / 1e9;
        if room > 0.0 { bytes / room } else { 0.0 }
    }
}

impl Curve {
    /// The bytes until `time`.
    fn at(&self, time: f64, period: f64) -> f64 {
        let (periods, within) = ((time / period).floor(), time.rem_euclid(period));
        let place = self.points.partition_point(|(point, _)| *point <= within);
        let (Some(before), next) = (place.checked_sub(1).map(|place| self.points[place]), self.points.get(place))
        else {
            return periods * self.total;
        };
        let part = next.map_or(0.0, |next| {
            let width = next.0 - before.0;
            if width > 0.0 { (next.1 - before.1) * (within - before.0) / width } else { 0.0 }
        });
        periods * self.total + before.1 + part
    }
}

/// Calls `add` with the parts of an interval within one period.
fn wrapped((start, end): (f64, f64), period: f64, mut add: impl FnMut(f64, f64)) {
    let shift = (start / period).floor() * period;
    let (mut from, mut left) = (start - shift, end - start);
    while left > 0.0 {
        let to = (from + left).min(period);
        if to <= from {
            return;
        }
        add(from, to);
        left -= to - from;
        from = 0.0;
    }
}
