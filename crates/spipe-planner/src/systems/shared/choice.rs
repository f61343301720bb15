//! What a stage may do that all share.

use super::near;
use spipe_base::LayerRange;
use spipe_cost::Mode;
use spipe_plan::{Context, Stage, System};

/// Where a stage's parameters and optimizer state are, and who steps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// All on the devices.
    Device,
    /// Parameters on the devices, optimizer state on the host.
    Stepped,
    /// All on the host.
    Host,
}

/// What a stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
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
