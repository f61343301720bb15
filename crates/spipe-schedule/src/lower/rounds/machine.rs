//! Rounds of a placement on a machine.

use super::{Borrowed, Chunk, Links, Rounds, Spec, Stepping, Transfer};
use crate::Program;
use crate::lower::flows::{dram_flow, read_for_norm, route, stepping};
use crate::lower::{machine, pipeline::times};
use spipe_base::{Bytes, DeviceId, Faults, MemoryId, SimTime};
use spipe_cost::{LayerMemory, Mode};
use spipe_plan::{
    Boundary, Context, Exchanging, InFlight, Placement, Stage, System, Weights, stage_footprint, trusts_steps, undo_log,
};

/// Copies over the machine's routes.
struct Routes<'a>(&'a Context<'a>);

impl Links for Routes<'_> {
    fn copy(&self, from: MemoryId, to: MemoryId, bytes: Bytes) -> Result<Transfer, Faults> {
        Ok(Transfer { work: SimTime::ZERO, flows: vec![route(self.0, from, to, bytes)?] })
    }
}

/// The program of one iteration of `placement`.
pub(in crate::lower) fn lower_rounds(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    let workload = context.workload();
    let training = workload.mode == Mode::Train;
    let knobs = &placement.knobs;
    let coupled = placement.backward.is_empty();
    let forward = placement.stages.iter().map(|stage| chunk(context, stage, (false, coupled))).collect();
    let backward = placement.backward_stages().iter().filter(|_| training);
    let stepping = match placement.system {
        _ if !training => Stepping::Never,
        System::Spipe if !knobs.synchronous_optimizer => Stepping::Asynchronous,
        System::Superpipeline => Stepping::NeededFirst,
        _ => Stepping::Serial,
    };
    let on = |device| placement.stages.iter().filter(|stage| stage.device == device).count();
    let most = placement.devices().into_iter().map(on).max().unwrap_or(0);
    let exchanging = Exchanging::of(placement);
    let (checks, trusts) = (workload.checks_gradients(), trusts_steps(context, placement));
    let spec = Spec {
        microbatches: workload.microbatches as usize,
        forward,
        backward: backward.map(|stage| chunk(context, stage, (true, coupled))).collect(),
        exchanging,
        there: 0,
        sequential: knobs.sequential,
        write_back: knobs.write_back,
        // Where all fit at once and nothing steps them, they stay.
        streams: training || most > exchanging.resident,
        stepping,
        late_checkpoints: knobs.synchronous_checkpoints,
        waits_for_norm: checks && !trusts,
        speculates: trusts,
        redoes: trusts && workload.clip_norm.is_some(),
        arithmetic_undo: knobs.arithmetic_undo,
    };
    Rounds::build(&spec, &Routes(context), machine(context, placement))
}

fn chunk(context: &Context<'_>, stage: &Stage, (backward, coupled): (bool, bool)) -> Chunk {
    let layers = stage.layers;
    let plain = Stage { offload: None, optimizer: None, weights: Weights::Resident, ..*stage };
    let need = stage_footprint(context, &plain, InFlight(1), [Boundary::End; 2]);
    let of = |layer| context.cost.memory(layer, stage.device);
    let sum = |part: fn(&LayerMemory) -> Bytes| layers.iter().map(|layer| part(of(layer))).sum::<Bytes>();
    let again: Bytes = stage.recomputed_layers().iter().flat_map(|run| run.iter()).map(|layer| of(layer).saved).sum();
    let times = times(context, stage);
    let input = layers.first().index().checked_sub(1).map_or(Bytes::ZERO, |before| of(before.into()).boundary);
    let home = match stage.weights {
        Weights::Streamed(home) => home,
        Weights::Resident => context.hardware.devices()[stage.device].memory,
    };
    let stays = matches!(stage.weights, Weights::Resident);
    let socket = stage.optimizer.or_else(|| owner(context, home));
    let parameters: u64 = layers.iter().map(|layer| context.cost.trained_parameters(layer)).sum();
    let stepper = if stays { Some(stage.device) } else { socket };
    let step = stepper.map_or_else(Transfer::default, |stepper| stepping(context, stepper, parameters));
    let lent = context.model.lends(layers).map(|tie| context.cost.memory(tie.user, stage.device).tied_gradients);
    let gradients = sum(|memory| memory.gradients);
    let norm = stepper.map_or_else(Transfer::default, |stepper| read_for_norm(context, stepper, gradients));
    let accumulate = lent.zip(stepper).map_or_else(Transfer::default, |(bytes, stepper)| {
        let time = context.cost.accumulate_time(bytes, stepper);
        Transfer { work: SimTime::from_seconds(time), flows: dram_flow(context, stepper, time, bytes * 3) }
    });
    let borrowed = context.model.borrows(layers).map(|tie| {
        let bytes = of(tie.user);
        Borrowed { tie, parameters: bytes.tied_parameters, gradients: bytes.tied_gradients }
    });
    let (work, recompute) =
        if backward { (times.backward().0, times.recompute.0) } else { (times.forward.0, times.recompute.0) };
    Chunk {
        device: stage.device,
        layers,
        returns: context.backward_of(layers),
        passes_gradient: context.passes_gradient(layers),
        recomputed: stage.recomputed_layers(),
        work: SimTime::from_seconds(work),
        recompute: if backward { SimTime::from_seconds(recompute) } else { SimTime::ZERO },
        weights: layers.iter().map(|layer| of(layer).parameters).collect(),
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
        socket,
        state: sum(|memory| memory.optimizer),
        undo: undo_log(context, stage),
        step,
        borrowed,
        accumulate,
        norm,
    }
}

/// The socket whose memory this is.
fn owner(context: &Context<'_>, memory: MemoryId) -> Option<DeviceId> {
    let pool = context.hardware.pool(memory);
    let mut devices = context.hardware.devices().enumerate().filter(|(id, _)| context.is_cpu(*id));
    devices.find(|(_, device)| device.memory == pool).map(|(id, _)| id)
}
