//! The order of a placement.

use super::{
    Order, Pass, StageTimes, Token, automatic, gis, gpipe, in_flight, interleaved, one_forward_one_backward,
    turns::{expand, turn_times, turns},
    uniform, v_of_stages, zb_h1, zb_h2,
};
use spipe_base::{Bytes, Faults, StageId};
use spipe_plan::{Context, OrderKind, Placement, StageFootprint, footprint_with};

/// The order in which `placement` computes. Stages without a backward run only their forwards, as
/// all stages do in inference.
///
/// # Errors
/// The faults of the system's options, such as a group size out of range.
pub fn order_of(context: &Context<'_>, placement: &Placement) -> Result<Order, Faults> {
    choose(context, placement, |order| fits(context, placement, order))
}

/// The order of the placement's system: of its two candidates the preferred one, if `fits` accepts
/// it.
fn choose(context: &Context<'_>, placement: &Placement, fits: impl Fn(&Order) -> bool) -> Result<Order, Faults> {
    let trained = |order: Order| trained(context, placement, &order);
    let Candidates { preferred, fallback } = candidates(context, placement)?;
    Ok(preferred.map(trained).filter(fits).unwrap_or_else(|| trained(fallback)))
}

/// Whether everything that `order` holds at once fits in every memory.
fn fits(context: &Context<'_>, placement: &Placement, order: &Order) -> bool {
    let held = in_flight(context, placement, order);
    let needs = footprint_with(context, placement, &|stage| held[stage]);
    needs.into_iter().all(|(id, stages)| {
        let memory = &context.hardware.memories()[id];
        stages.values().map(StageFootprint::total).sum::<Bytes>() <= memory.usable()
    })
}

/// `order` without the backwards of stages that have none.
fn trained(context: &Context<'_>, placement: &Placement, order: &Order) -> Order {
    let computes = |token: &Token| {
        token.pass == Pass::Forward || context.backward_of(placement.stages[token.stage].layers).is_some()
    };
    let devices = order.devices().iter();
    Order::new(devices.map(|tokens| tokens.iter().copied().filter(&computes).collect()).collect())
}

/// The orders of a system, as if every layer had a backward.
struct Candidates {
    /// A faster order, if there is one. Only V-shaped systems have it, for stages that differ in
    /// time. Because stages differ in bytes as well, it may need more memory than the fallback.
    preferred: Option<Order>,
    fallback: Order,
}

fn candidates(context: &Context<'_>, placement: &Placement) -> Result<Candidates, Faults> {
    let microbatches = context.workload().microbatches as usize;
    let (devices, chunks) = (placement.devices().len(), placement.chunks());
    let fallback = match placement.order {
        OrderKind::Interleaved { group } => {
            interleaved(devices, chunks, microbatches, group.map(|group| group as usize))
        }
        OrderKind::Grouped { group, half } => {
            let default = if half { devices.div_ceil(2) } else { devices };
            gis(devices, chunks, microbatches, group.map_or(default, |group| group as usize))
        }
        OrderKind::Uniform => uniform(devices, chunks, microbatches),
        OrderKind::Vee { memory: shape } => {
            let each: Vec<Vec<StageId>> = placement.stages.ids().map(|id| vec![id]).collect();
            let times = turn_times(context, placement, &each);
            let (fallback, preferred) = v_of_stages(shape, &times, microbatches)?;
            return Ok(Candidates { preferred, fallback });
        }
        kind => one_turn_per_device(context, placement, (kind, microbatches)),
    };
    Ok(Candidates { preferred: None, fallback: fallback? })
}

/// The order of kind `kind` with one turn per device.
fn one_turn_per_device(
    context: &Context<'_>,
    placement: &Placement,
    (kind, microbatches): (OrderKind, usize),
) -> Result<Order, Faults> {
    let turns = turns(placement);
    let count = turns.len();
    let of_turns = match kind {
        OrderKind::Gpipe => gpipe(count, microbatches),
        OrderKind::ZbH1 => zb_h1(count, microbatches)?,
        OrderKind::ZbH2 => zb_h2(count, microbatches)?,
        OrderKind::Automatic { turns: default, memory_limit: limit } => {
            let most = StageTimes::UNIT * limit.unwrap_or(default * count as u64);
            automatic(&turn_times(context, placement, &turns), microbatches, most)?
        }
        OrderKind::OneForwardOneBackward { head_start } if head_start > 0 => {
            // The head start is that of the last turn on a CPU and of all turns before it.
            let last_cpu = placement.stages.enumerate().rfind(|(_, stage)| context.is_cpu(stage.lead()));
            let early = last_cpu.map_or(0, |(id, _)| turns.iter().filter(|turn| turn[0] <= id).count());
            one_forward_one_backward(count, microbatches, &vec![head_start as usize; early])
        }
        _ => one_forward_one_backward(count, microbatches, &[]),
    };
    Ok(expand(&of_turns, &turns))
}
