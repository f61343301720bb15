//! Changes of a placement that make it satisfy pins, as its system permits.

use crate::{
    hosts::{on_device, on_socket, socket, socket_of, sockets},
    problem::pins::Pins,
    space::rules::{Permission, SystemRules},
};
use spipe_base::DeviceId;
use spipe_cost::Mode;
use spipe_plan::{Context, Knob, Placement, Stage, Weights};

impl Pins {
    /// `placement` with devices exchanged for others of their kind, other choices for stages with
    /// pinned layers, and pinned knobs.
    pub(crate) fn hold(&self, context: &Context<'_>, placement: &Placement) -> Placement {
        let mut held = placement.clone();
        if self.is_empty() {
            return held;
        }
        self.exchange(context, &mut held);
        let rules = SystemRules::of(placement.system);
        for stage in held.stages.iter_mut().chain(held.backward.iter_mut()) {
            self.choose(context, &rules, stage);
        }
        for (knob, value) in self.knobs.iter().filter(|(knob, _)| knob.is_of(placement.system)) {
            held = match knob {
                Knob::Shards => held.over_gpus(context.hardware, Some(*value)),
                _ => held.with(*knob, *value),
            };
        }
        held
    }

    /// Exchanges devices for others of their kind, so that pinned layers and stages are on allowed
    /// devices.
    fn exchange(&self, context: &Context<'_>, held: &mut Placement) {
        let layers = self.layers.iter().map(|(layer, devices)| (Err(*layer), devices));
        for (pinned, devices) in layers.chain(self.stages.iter().map(|(stage, devices)| (Ok(*stage), devices))) {
            let is = |(index, stage): &(usize, &Stage)| match pinned {
                Ok(pinned) => *index == pinned,
                Err(layer) => stage.layers.contains(layer.into()),
            };
            let Some((_, stage)) = held.stages.iter().enumerate().find(is) else { continue };
            let here = stage.lead();
            let alike = |device: &DeviceId| context.is_cpu(*device) == context.is_cpu(here);
            let there = devices.iter().map(|device| DeviceId::from(*device)).find(alike);
            if let Some(there) = there.filter(|_| !devices.contains(&here.index())) {
                for stage in held.stages.iter_mut().chain(held.backward.iter_mut()) {
                    *stage = match stage.lead() {
                        device if device == here => on_device(context, stage, there),
                        device if device == there => on_device(context, stage, here),
                        _ => *stage,
                    };
                }
            }
        }
    }

    /// Sets the choices of a stage as the pins of its layers demand. If these conflict, the last
    /// layer wins.
    fn choose(&self, context: &Context<'_>, rules: &SystemRules, stage: &mut Stage) {
        let training = context.workload().mode == Mode::Train;
        // The host data of a sharded stage is near each device.
        let near = if rules.shared {
            socket(context, stage.lead()).into_iter().collect()
        } else {
            sockets(context, stage.lead())
        };
        let may = |when: Permission| when == Permission::Free && !near.is_empty();
        for layer in stage.layers.iter().map(|layer| layer.index()) {
            let allowed = near.iter().copied().filter(|socket| self.allows_host(layer, socket.index()));
            let host = socket_of(context, stage).or_else(|| allowed.clone().next());
            let home = host.map(|host| context.hardware.devices()[host].memory);
            if let Some(wanted) = self.streamed_together(context, (rules, stage.lead(), &near), layer) {
                let streamed = home.filter(|_| wanted).map_or(Weights::Resident, Weights::Streamed);
                *stage = Stage { weights: streamed, optimizer: host.filter(|_| wanted && training), ..*stage };
            }
            if let Some(wanted) = self.offload(layer).filter(|_| may(rules.offloads) && training) {
                stage.offload = home.filter(|_| wanted);
            }
            if !self.allows_step(layer, context.steps(stage).index()) && training {
                let own = self.allows_step(layer, stage.lead().index()) && may(rules.steps_on_host);
                let socket = allowed.clone().find(|socket| self.allows_step(layer, socket.index()));
                match socket.filter(|_| !own && rules.steps_on_host != Permission::Forbidden) {
                    Some(socket) if matches!(stage.weights, Weights::Streamed(_)) => {
                        *stage = on_socket(context, &stage.with_optimizer_on(socket), socket);
                    }
                    Some(socket) => stage.optimizer = Some(socket),
                    None if own => stage.optimizer = None,
                    None => {}
                }
            }
            if let Some(there) =
                allowed.clone().next().filter(|_| host.is_some_and(|host| !self.allows_host(layer, host.index())))
            {
                *stage = on_socket(context, stage, there);
            }
        }
        if training && rules.recomputes == Permission::Free {
            self.recompute_in_front(stage);
        }
    }

    /// Whether pins demand that a layer, or one that shares its parameters, is streamed (`true`) or
    /// stays (`false`); `None` without a demand and where streaming is not a choice. Pins of the
    /// optimizer count too: streamed parameters are updated on the host, and resident ones on their
    /// device if all stages of a device take turns.
    fn streamed_together(
        &self,
        context: &Context<'_>,
        (rules, device, near): (&SystemRules, DeviceId, &[DeviceId]),
        layer: usize,
    ) -> Option<bool> {
        if rules.streams != Permission::Free || near.is_empty() {
            return None;
        }
        let training = context.workload().mode == Mode::Train;
        let wanted = |layer: usize| {
            let hosted = near.iter().any(|socket| self.allows_step(layer, socket.index()));
            let stays = training && !hosted;
            let leaves = training && hosted && rules.in_rounds && !self.allows_step(layer, device.index());
            self.streamed(layer).or((stays || leaves).then_some(leaves))
        };
        let groups = context.model.tied().into_iter().filter(|group| group.contains(&layer.into()));
        wanted(layer).or_else(|| groups.flatten().find_map(|other| wanted(other.index())))
    }

    /// Recomputes more or fewer layers at the front of a stage, as pins demand.
    fn recompute_in_front(&self, stage: &mut Stage) {
        let wanted: Vec<Option<bool>> = stage.layers.iter().map(|layer| self.recompute(layer.index())).collect();
        let least = wanted.iter().rposition(|wanted| *wanted == Some(true)).map_or(0, |last| last + 1);
        let most = wanted.iter().position(|wanted| *wanted == Some(false)).unwrap_or(wanted.len());
        *stage = stage.with_recomputed(stage.recomputed.max(least).min(most.max(least)));
    }
}
