//! What a stage may do that all share.

use crate::hosts::gpus;
use crate::hosts::socket;
use spipe_base::DeviceId;
use spipe_base::LayerRange;
use spipe_base::MemoryId;
use spipe_cost::Mode;
use spipe_plan::gathers;
use spipe_plan::{Context, Stage, System};

/// Where a stage's parameters and optimizer state are, and who steps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// All on the devices.
    Device,
    /// Parameters on the devices, optimizer state on the host.
    Stepped,
    /// All on the host.
    Host,
}

/// What a stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub home: Home,
    pub recomputed: bool,
}

impl Choice {
    /// Those of a system on so many devices, the ones that need least room first.
    pub fn of((system, shards): (System, usize), context: &Context<'_>) -> Vec<Self> {
        let training = context.workload().mode == Mode::Train;
        let hosts = near(context).is_some_and(|(_, host)| host.is_some());
        let stays = system != System::ZeroInfinity || shards > 1;
        let allowed = |home: &Home| match home {
            Home::Device => stays,
            Home::Stepped => stays && hosts && training,
            Home::Host => hosts && system == System::ZeroInfinity,
        };
        let homes = [Home::Host, Home::Stepped, Home::Device].into_iter().filter(allowed);
        let of_home = |home: Home| [true, false].map(|recomputed| Self { home, recomputed });
        homes.flat_map(of_home).filter(|choice| training || !choice.recomputed).collect()
    }

    /// The stage of these layers.
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

/// How many layers stages have. Where all are resident for a while, those at the beginning may have more: little is kept while they compute.
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

/// How many layers the stages of a run have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// As many each.
    Equal(usize),
    /// So many at its beginning, ever fewer, and about so many at its end.
    Tapered(usize, usize),
}

/// Those that make a difference.
pub(crate) fn lengths(runs: &[(usize, usize)]) -> impl Iterator<Item = Length> {
    let longest = runs.iter().map(|(_, count)| *count).max().unwrap_or_default();
    LENGTHS.into_iter().filter(move |length| match length {
        Length::Equal(most) => *most == 1 || *most <= longest,
        Length::Tapered(most, _) => *most < longest,
    })
}

/// A run in stages, the last of them with what is left.
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

/// How many GPUs may share: each has as many microbatches.
pub(crate) fn shares(context: &Context<'_>) -> impl Iterator<Item = usize> {
    let microbatches = context.workload().microbatches;
    (1..=gpus(context).len()).filter(move |shards| microbatches.is_multiple_of(*shards as u64))
}

/// How often each of these stages is gathered in an iteration of so many rounds, where so many are resident.
pub(crate) fn gathered(context: &Context<'_>, divided: &[LayerRange], (rounds, resident): (u64, usize)) -> Vec<u64> {
    let first = divided.iter().position(|layers| context.backward_of(*layers).is_some());
    gathers(divided.len(), first, (rounds, resident))
}

/// The first GPU, for which stages are named, with its host memory and socket.
pub(crate) fn near(context: &Context<'_>) -> Option<(DeviceId, Option<(MemoryId, DeviceId)>)> {
    let first = *gpus(context).first()?;
    Some((first, context.hardware.host_memory(first).zip(socket(context, first))))
}
