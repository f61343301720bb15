//! The choices of sharded stages: their modes and their lengths.

use crate::hosts::gpus;
use crate::hosts::socket;
use crate::problem::pins::Pins;
use crate::space::rules::{Permission, SystemRules};
use spipe_base::{DeviceId, LayerRange, MemoryId};
use spipe_cost::Mode;
use spipe_plan::{Context, Knob, Stage, System, gathers};

/// The home of a stage's parameters and optimizer state. The optimizer step runs where its state
/// is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// Both on the devices.
    Device,
    /// Parameters on the devices, optimizer state on the host.
    Stepped,
    /// Both on the host.
    Host,
}

/// The mode of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardedMode {
    pub home: Home,
    pub recomputed: bool,
}

impl ShardedMode {
    /// The modes of a system on groups of `shards` devices, in ascending order of the memory that they need
    /// on the devices.
    pub fn of((system, shards): (System, usize), context: &Context<'_>) -> Vec<Self> {
        let training = context.workload().mode == Mode::Train;
        let hosts = near(context).is_some_and(|(_, host)| host.is_some());
        let streams = SystemRules::of(system).streams != Permission::Forbidden;
        let stays = !streams || shards > 1;
        let allowed = |home: &Home| match home {
            Home::Device => stays,
            Home::Stepped => stays && hosts && training,
            Home::Host => hosts && streams,
        };
        let homes = [Home::Host, Home::Stepped, Home::Device].into_iter().filter(allowed);
        let of_home = |home: Home| [true, false].map(|recomputed| Self { home, recomputed });
        homes.flat_map(of_home).filter(|choice| training || !choice.recomputed).collect()
    }

    /// The stage of `layers` in this mode, named for the first GPU; `None` without a host that the
    /// mode needs.
    pub fn stage(self, context: &Context<'_>, layers: LayerRange) -> Option<Stage> {
        let (first, host) = near(context)?;
        let stage = Stage::new(first, layers);
        let stage = if self.recomputed { stage.with_everything_recomputed() } else { stage };
        Some(match (self.home, host) {
            (Home::Device, _) => stage,
            (Home::Stepped, Some((_, socket))) => stage.with_optimizer_on(socket),
            (Home::Host, Some((home, socket))) => stage.with_weights_in(home).with_optimizer_on(socket),
            (_, None) => return None,
        })
    }
}

/// The stage lengths that are tried. Tapered lengths suit several resident stages: little is saved
/// while the stages at the front compute, so that these may be longer.
const LENGTHS: [Length; 9] = [
    Length::Equal(1),
    Length::Equal(2),
    Length::Equal(4),
    Length::Equal(8),
    Length::Tapered(4, 1),
    Length::Tapered(8, 1),
    Length::Tapered(8, 4),
    Length::Tapered(16, 1),
    Length::Tapered(16, 4),
];

/// The lengths of the stages of a run, in layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// The same length everywhere.
    Equal(usize),
    /// Decreasing from the first length to about the second one.
    Tapered(usize, usize),
}

/// The lengths that make a difference for these runs.
pub(crate) fn lengths(runs: &[(usize, usize)]) -> impl Iterator<Item = Length> {
    let longest = runs.iter().map(|(_, count)| *count).max().unwrap_or_default();
    LENGTHS.into_iter().filter(move |length| match length {
        Length::Equal(most) => *most == 1 || *most <= longest,
        Length::Tapered(most, _) => *most < longest,
    })
}

/// The stages of a run; the last one has the remaining layers.
pub(crate) fn units((first, count): (usize, usize), length: Length) -> Vec<LayerRange> {
    let mut units = Vec::new();
    let (mut from, end) = (first, first + count);
    while from < end {
        let next = match length {
            Length::Equal(most) => most,
            Length::Tapered(most, least) => (most * (end - from) + least * (from - first)).div_ceil(count),
        };
        let next = (from + next).min(end);
        units.extend(LayerRange::new(from.into(), (next - 1).into()));
        from = next;
    }
    units
}

/// The numbers of GPUs that may share stages: divisors of the number of microbatches.
pub(crate) fn shares(context: &Context<'_>) -> impl DoubleEndedIterator<Item = usize> {
    let microbatches = context.workload().microbatches;
    (1..=gpus(context).len()).filter(move |shards| microbatches.is_multiple_of(*shards as u64))
}

/// The same in groups of the pinned size.
pub(crate) fn grouped_shares(context: &Context<'_>, pins: &Pins) -> impl DoubleEndedIterator<Item = usize> {
    let group = pins.knob(Knob::ShardGroup).map_or(1, |size| size.max(1) as usize);
    shares(context).filter(move |shards| shards.is_multiple_of(group))
}

/// The number of times that each stage is gathered in an iteration of `rounds` microbatches per
/// device, with `resident` gathered stages.
pub(crate) fn gathered(context: &Context<'_>, divided: &[LayerRange], (rounds, resident): (u64, usize)) -> Vec<u64> {
    let first = divided.iter().position(|layers| context.backward_of(*layers).is_some());
    gathers(divided.len(), first, (rounds, resident))
}

/// The first GPU, for which stages are named, with its host memory and socket.
pub(crate) fn near(context: &Context<'_>) -> Option<(DeviceId, Option<(MemoryId, DeviceId)>)> {
    let first = *gpus(context).first()?;
    Some((first, context.hardware.host_memory(first).zip(socket(context, first))))
}
