//! The specification of a placement.

use super::{Chunk, Links, Spec, StreamedLowering, Transfer, UpdateOrder, tied::Borrowed};
use crate::lower::{
    collectives::Hops,
    flows::{dram_flow, optimizer_step, read_for_norm, route},
    machine::machine,
};
use crate::{Flow, Program, work::StageWork};
use spipe_base::{Bytes, DeviceId, Faults, MemoryId, Seconds, SimTime};
use spipe_cost::{LayerMemory, Mode};
use spipe_hardware::CollectiveKind;
use spipe_plan::{
    Boundary, Context, ExchangePolicy, InFlight, Knob, Placement, Stage, Update, Weights, speculates, stage_footprint,
    undo_log,
};

/// Copies over the machine's routes.
struct Routes<'a>(&'a Context<'a>);

impl Links for Routes<'_> {
    fn copy(&self, from: MemoryId, to: MemoryId, bytes: Bytes) -> Result<Transfer, Faults> {
        Ok(Transfer { work: SimTime::ZERO, flows: vec![route(self.0, from, to, bytes)?] })
    }

    fn holders(&self) -> usize {
        if self.0.workload().mode == Mode::Train { self.0.mesh().holders() as usize } else { 1 }
    }

    fn collective(&self, device: DeviceId, what: (CollectiveKind, Bytes)) -> Result<Vec<Flow>, Faults> {
        let (context, mesh) = (self.0, self.0.mesh());
        let team = mesh.team(device).map_or(&[][..], Vec::as_slice);
        let hops = Hops::of(context, (&mesh.holders_of(device), team))?;
        Ok(hops.flows(context.hardware, what))
    }
}

/// The program of a streamed system: of one replica that stands for all, or of all of them.
pub(in crate::lower) fn lower(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    let specs: Vec<Spec> = shown(context, placement).iter().map(|one| spec(context, one)).collect();
    StreamedLowering::build(&specs, &Routes(context), machine(context, placement))
}

/// The placement of each replica that a program has.
fn shown(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    let on = |replica: usize| {
        let stage = |stage: &Stage| {
            let lead = context.mesh().peers(stage.lead()).nth(replica).map_or(stage.lead(), |team| team[0]);
            context.as_run_by(stage, lead)
        };
        let stages = placement.stages.iter().map(stage).collect();
        Placement { stages, backward: placement.backward.iter().map(stage).collect(), ..placement.clone() }
    };
    (0..context.shown_replicas()).map(on).collect()
}

/// The specification of one replica.
fn spec(context: &Context<'_>, placement: &Placement) -> Spec {
    let workload = context.workload();
    let training = workload.mode == Mode::Train;
    let set = |knob: Knob| knob.of(placement) == Some(1);
    let coupled = placement.backward.is_empty();
    let forward = placement.stages.iter().map(|stage| chunk(context, stage, (false, coupled))).collect();
    let backward = placement.backward_stages().iter().filter(|_| training);
    let updates = match placement.update {
        _ if !training => UpdateOrder::Never,
        Update::DuringBackward { .. } => UpdateOrder::Asynchronous,
        Update::NeededFirst => UpdateOrder::NeededFirst,
        _ => UpdateOrder::Serial,
    };
    let on = |device| placement.stages.iter().filter(|stage| stage.lead() == device).count();
    let most = placement.devices().into_iter().map(on).max().unwrap_or(0);
    let exchange = ExchangePolicy::of(placement);
    let (checks, speculates) = (workload.checks_gradients(), speculates(context, placement));
    Spec {
        microbatches: workload.microbatches as usize,
        forward,
        backward: backward.map(|stage| chunk(context, stage, (true, coupled))).collect(),
        exchange,
        preloaded: 0,
        sequential: set(Knob::Sequential),
        write_back: set(Knob::WriteBack),
        // In inference, parameters that fit at once are resident.
        streams: training || most > exchange.resident,
        updates,
        late_checkpoints: set(Knob::SynchronousCheckpoints),
        waits_for_norm: checks && !speculates,
        speculates,
        redoes: speculates && workload.clip_norm.is_some(),
        arithmetic_undo: set(Knob::ArithmeticUndo),
    }
}

/// The chunk of a stage in one pass.
fn chunk(context: &Context<'_>, stage: &Stage, (backward, coupled): (bool, bool)) -> Chunk {
    let layers = stage.layers;
    let plain = Stage { offload: None, optimizer: None, weights: Weights::Resident, ..*stage };
    let need = stage_footprint(context, &plain, InFlight(1), [Boundary::End; 2]);
    let of = |layer| context.cost.memory(layer, stage.lead());
    let sum = |part: fn(&LayerMemory) -> Bytes| layers.iter().map(|layer| part(of(layer))).sum::<Bytes>();
    let again: Bytes = stage.recomputed_layers().iter().flat_map(|run| run.iter()).map(|layer| of(layer).saved).sum();
    let work = StageWork::of(context, stage);
    let input = layers.first().index().checked_sub(1).map_or(Bytes::ZERO, |before| of(before.into()).boundary);
    let home = match stage.weights {
        Weights::Streamed(home) => context.host_of(stage).unwrap_or(home),
        Weights::Resident => context.hardware.devices()[stage.lead()].memory,
    };
    let stays = matches!(stage.weights, Weights::Resident);
    let socket = stage.optimizer.or_else(|| owner(context, home));
    let parameters: u64 = layers.iter().map(|layer| context.cost.trained_parameters(layer)).sum();
    let steps_on = if stays { Some(stage.lead()) } else { socket };
    // Devices for which this one stands step on the same host, one after the other.
    let sharers = steps_on.map_or(1, |device| context.steps_on_one_host(stage.lead(), device));
    let step = steps_on.map_or_else(Transfer::default, |device| optimizer_step(context, device, parameters * sharers));
    let lent = context.model.lends(layers).map(|tie| context.cost.memory(tie.user, stage.lead()).tied_gradients);
    let gradients = sum(|memory| memory.gradients);
    let norm = steps_on.map_or_else(Transfer::default, |device| read_for_norm(context, device, gradients * sharers));
    let accumulate = lent.zip(steps_on).map_or_else(Transfer::default, |(bytes, device)| {
        let bytes = bytes * sharers;
        let time = context.cost.accumulate_time(bytes, device);
        Transfer { work: SimTime::from_seconds(time), flows: dram_flow(context, device, time, bytes * 3) }
    });
    let borrowed = context.model.borrows(layers).map(|tie| {
        let bytes = of(tie.user);
        Borrowed { tie, parameters: bytes.tied_parameters, gradients: bytes.tied_gradients }
    });
    let (pass, recompute) =
        if backward { (work.backward().0, work.recompute.0) } else { (work.forward.0, Seconds::ZERO) };
    Chunk {
        device: stage.lead(),
        layers,
        returns: context.backward_of(layers),
        passes_gradient: context.passes_gradient(layers),
        recomputed: stage.recomputed_layers(),
        work: SimTime::from_seconds(pass),
        recompute: SimTime::from_seconds(recompute),
        weights: layers.iter().map(|layer| of(layer).parameters).collect(),
        streamed: layers.iter().map(|layer| of(layer).streamed).collect(),
        gradients,
        trains: parameters > 0,
        cache: sum(|memory| memory.cache),
        stays,
        input,
        output: of(layers.last()).boundary,
        saved: if coupled { need.per_microbatch.saturating_sub(input) } else { Bytes::ZERO },
        again,
        workspace: need.transient - again,
        home,
        shelf: context.drive_of(stage),
        socket,
        state: sum(|memory| memory.optimizer),
        drive: stage.state,
        undo: undo_log(context, stage),
        step,
        borrowed,
        accumulate,
        norm,
    }
}

/// The socket to which `memory` belongs.
fn owner(context: &Context<'_>, memory: MemoryId) -> Option<DeviceId> {
    let pool = context.hardware.pool(memory);
    let mut devices = context.hardware.devices().enumerate().filter(|(id, _)| context.is_cpu(*id));
    devices.find(|(_, device)| device.memory == pool).map(|(id, _)| id)
}
