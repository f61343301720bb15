//! Placements that stream parameters: SPipe, Mobius, Superpipeline and naive swap. Where memory
//! allows, some stages keep their parameters.

use crate::{
    candidates::{
        cuts::{self, Weight},
        first_fit,
        merge::merged,
        residency,
    },
    hosts::{fits, gpus, socket},
    problem::tolerances::TIE,
    space::{
        distinct,
        rules::{Streaming, SystemSpec},
    },
};
use spipe_base::{Bytes, DeviceId, LayerRange};
use spipe_cost::Mode;
use spipe_plan::{Context, Knob, Placement, Stage, System};
use std::collections::BTreeSet;

/// Limit on GPUs above which the mapping of stages to GPUs is not searched: it tries all 8! = 40,320
/// orders.
const MOST_MAPPED: usize = 8;

/// Limit on SPipe's forward chunks per GPU, unless only more of them fit.
const MOST_CHUNKS: usize = 3;

/// Limit on Mobius' stages per GPU, unless only more of them fit.
const MOST_TURNS: usize = 6;

/// Stages per GPU that are tried where some stages are kept, at most a factor of two apart.
const TURNS: [usize; 5] = [1, 2, 3, 4, 6];

/// Limit on stages per GPU up to which every number is tried; beyond it, powers of two.
const MANY_TURNS: usize = 64;

/// Values of k and k′ that are tried, up to the number of layers and at most a factor of two apart.
const RESIDENT: [u64; 11] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48];

/// Returns placements on all GPUs. If none fits, also those without the GPUs of the smallest
/// memory, repeatedly.
pub(crate) fn candidates(context: &Context<'_>, system: System) -> Option<Vec<Placement>> {
    let mut gpus = gpus(context);
    let mut list = on(context, (&gpus, system))?;
    while gpus.len() > 1 && !any_fits(context, &list) {
        let smallest = gpus.iter().map(|gpu| room_of(context, *gpu)).min();
        let largest: Vec<DeviceId> =
            gpus.iter().copied().filter(|gpu| Some(room_of(context, *gpu)) > smallest).collect();
        // Fewer equal GPUs may help: transient boundaries between devices need memory as well.
        gpus = if largest.is_empty() { gpus[..1].to_vec() } else { largest };
        list.extend(on(context, (&gpus, system))?);
    }
    Some(list)
}

fn any_fits(context: &Context<'_>, placements: &[Placement]) -> bool {
    placements.iter().any(|placement| fits(context, placement))
}

fn room_of(context: &Context<'_>, gpu: DeviceId) -> Bytes {
    context.hardware.memories()[context.hardware.devices()[gpu].memory].usable()
}

fn on(context: &Context<'_>, (gpus, system): (&[DeviceId], System)) -> Option<Vec<Placement>> {
    match SystemSpec::of(system).streaming {
        Some(Streaming::Apart) => Some(spipe(context, gpus)),
        Some(Streaming::RoundRobin) => mobius(context, gpus),
        Some(Streaming::Mixed) if gpus.len() > 1 => in_turns(context, gpus),
        _ => {
            let orders = gpu_orders(context, gpus);
            let firsts: BTreeSet<DeviceId> = orders.iter().filter_map(|order| order.first().copied()).collect();
            let of_gpus: Option<Vec<_>> = firsts.into_iter().map(|gpu| units((context, gpu), system)).collect();
            of_gpus.map(|placements| placements.concat())
        }
    }
}

/// Truncates `gpus` to the number of microbatches and of layers.
fn with_work(context: &Context<'_>, mut gpus: Vec<DeviceId>) -> Vec<DeviceId> {
    let most = context.model.layers().len().min(usize::try_from(context.workload().microbatches).unwrap_or(usize::MAX));
    gpus.truncate(most);
    gpus
}

/// Returns SPipe's placements with F forward and B backward chunks per GPU: forward chunk i·N + r
/// is on GPU r, and backward chunk j·N + r on GPU N − 1 − r. If none with few chunks fits, the
/// smallest number of chunks balanced in bytes that does.
fn spipe(context: &Context<'_>, gpus: &[DeviceId]) -> Vec<Placement> {
    let orders: Vec<Vec<DeviceId>> =
        gpu_orders(context, gpus).into_iter().map(|gpus| with_work(context, gpus)).collect();
    let of = |weight: Weight, forward: usize| -> Vec<Placement> {
        let backward = [forward, 2 * forward, 3 * forward];
        let on = |gpus: &Vec<DeviceId>| {
            backward.iter().filter_map(|backward| spipe_on(context, gpus, (weight, [forward, *backward]))).collect()
        };
        orders.iter().flat_map(|gpus| -> Vec<Placement> { on(gpus) }).collect()
    };
    let few: Vec<Placement> = (1..=MOST_CHUNKS).flat_map(|forward| of(Weight::Time, forward)).collect();
    if any_fits(context, &few) {
        return few;
    }
    let most = context.model.layers().len() / orders.first().map_or(1, |gpus| gpus.len().max(1));
    let more = (1..usize::BITS).map(|power| 1 << power).take_while(|forward| *forward < most).chain([most]);
    let lean = more.map(|forward| of(Weight::Bytes, forward)).find(|lean| any_fits(context, lean));
    // If nothing fits, the finest chunks lack least.
    [few, lean.unwrap_or_else(|| of(Weight::Bytes, most))].concat()
}

fn spipe_on(context: &Context<'_>, gpus: &[DeviceId], (weight, chunks): (Weight, [usize; 2])) -> Option<Placement> {
    let (count, first) = (gpus.len(), *gpus.first()?);
    let [ahead, back] = chunks.map(|chunks| cuts::balanced_in(context, (first, weight), chunks * count));
    let ahead = stages(context, &ahead?, &|chunk| gpus[chunk % count], true)?;
    let back = stages(context, &back?, &|chunk| gpus[count - 1 - chunk % count], true)?;
    Some(Placement::new(System::Spipe, ahead).with_backward(back))
}

/// Returns Mobius' placements: stages round robin on GPUs, whose order puts neighbours under
/// different root complexes.
fn mobius(context: &Context<'_>, gpus: &[DeviceId]) -> Option<Vec<Placement>> {
    let gpus = cross_mapping(context, &with_work(context, gpus.to_vec()));
    let first = *gpus.first()?;
    let pieces = (1..=MOST_TURNS).filter_map(|turns| cuts::balanced(context, first, turns * gpus.len()));
    let mut streamed: Vec<Placement> = pieces.filter_map(|pieces| in_turn(context, &gpus, &pieces)).collect();
    if !any_fits(context, &streamed) {
        // Buffers are as large as the largest stage.
        let most = context.model.layers().len() / gpus.len();
        let lean = |turns: usize| cuts::balanced_in(context, (first, Weight::Bytes), turns * gpus.len());
        let doubled = (1..usize::BITS).map(|power| MANY_TURNS << power).take_while(|turns| *turns < most);
        let turns = (1..=most.min(MANY_TURNS)).chain(doubled).chain((most > MANY_TURNS).then_some(most));
        let mut lean = turns.filter_map(|turns| in_turn(context, &gpus, &lean(turns)?));
        // If the host cannot hold all stages, some may stay on their GPUs.
        let fits = |placement: &Placement| {
            fits(context, placement) || !residency::as_many_as_fit(context, placement).is_empty()
        };
        streamed.extend(lean.find(fits));
        // More of the smaller stages may stay.
        streamed.extend(lean.last().filter(fits));
    }
    let kept: Vec<Placement> = streamed.iter().flat_map(|one| residency::as_many_as_fit(context, one)).collect();
    Some([streamed, kept].concat())
}

/// Returns the stages of `pieces` on `gpus`, round robin.
pub(crate) fn in_turn(context: &Context<'_>, gpus: &[DeviceId], pieces: &[LayerRange]) -> Option<Placement> {
    let recompute = context.workload().mode == Mode::Train;
    let stages = stages(context, pieces, &|chunk| gpus[chunk % gpus.len()], recompute);
    stages.map(|stages| Placement::new(System::Mobius, stages))
}

/// Returns the order of GPUs that minimises Σ_{i<j} shared(i, j) ÷ (j − i), where shared counts the
/// GPUs under a common root complex. The transfers of neighbouring stages coincide, and then load
/// different root complexes (Feng et al., Mobius, 2023).
pub(crate) fn cross_mapping(context: &Context<'_>, gpus: &[DeviceId]) -> Vec<DeviceId> {
    if gpus.len() > MOST_MAPPED {
        return gpus.to_vec();
    }
    let under = |a: DeviceId, b: DeviceId| context.hardware.shared_root(a, b);
    let sharers = |a: DeviceId| gpus.iter().filter(|other| under(a, **other)).count() as f64;
    let shared = |a: DeviceId| gpus.iter().map(|b| if under(a, *b) { sharers(a) } else { 0.0 }).collect();
    let shared: Vec<Vec<f64>> = gpus.iter().map(|a| shared(*a)).collect();
    let cost = |order: &[usize]| -> f64 {
        (0..order.len())
            .flat_map(|i| (i + 1..order.len()).map(move |j| (i, j)))
            .map(|(i, j)| shared[order[i]][order[j]] / (j - i) as f64)
            .sum()
    };
    let mut order: Vec<usize> = (0..gpus.len()).collect();
    let mut best = (cost(&order), order.clone());
    permute(&mut order, 0, &mut |order| {
        let cost = cost(order);
        if cost < best.0 - TIE {
            best = (cost, order.to_vec());
        }
    });
    best.1.into_iter().map(|index| gpus[index]).collect()
}

fn permute(order: &mut Vec<usize>, from: usize, visit: &mut dyn FnMut(&[usize])) {
    if from == order.len() {
        visit(order);
        return;
    }
    for index in from..order.len() {
        order.swap(from, index);
        permute(order, from + 1, visit);
        order.swap(from, index);
    }
}

/// Returns placements with one stage per layer on one GPU: all (k, k′) of the grid, and where
/// stages may be kept, several numbers of kept stages with the least recompute that fits.
fn units((context, gpu): (&Context<'_>, DeviceId), system: System) -> Option<Vec<Placement>> {
    let layers = cuts::single(context);
    let count = layers.len() as u64;
    let grid: Vec<u64> = RESIDENT.into_iter().filter(|resident| *resident < count).chain([count]).collect();
    let recomputes: &[bool] = if context.workload().mode == Mode::Train { &[false, true] } else { &[false] };
    let mixed = SystemSpec::of(system).streaming == Some(Streaming::Mixed);
    let mut placements = Vec::new();
    for recompute in recomputes {
        let stages = stages(context, &layers, &|_| gpu, *recompute)?;
        for resident in &grid {
            let smaller = grid.iter().filter(|swap| *swap <= resident).map(|swap| Some(*swap));
            let swaps: Vec<Option<u64>> = if mixed { smaller.collect() } else { vec![None] };
            for swap in swaps {
                let placement = Placement::new(system, stages.clone()).with(Knob::Resident, *resident);
                placements.push(placement.with_option(Knob::Swap, swap));
            }
        }
    }
    if mixed {
        let mixed = residency::mixed(context, &superpipeline(context, (&[gpu], &layers), false)?);
        placements.extend(mixed.iter().flat_map(|mixed| merged(context, mixed)));
        placements.extend(mixed);
    }
    if !any_fits(context, &placements) {
        placements.extend(coarser((context, gpu), system));
    }
    Some(placements)
}

/// Returns the placement with the most stages of several layers that fits: a device keeps the input
/// of every stage.
fn coarser((context, gpu): (&Context<'_>, DeviceId), system: System) -> Option<Placement> {
    let counts = std::iter::successors(Some(context.model.layers().len()), |count| Some(count - count.div_ceil(8)));
    let of_count = |count: usize| {
        let pieces = cuts::balanced_in(context, (gpu, Weight::Bytes), count)?;
        let stages = stages(context, &pieces, &|_| gpu, context.workload().mode == Mode::Train)?;
        let mixed = SystemSpec::of(system).streaming == Some(Streaming::Mixed);
        let swap = Some(1).filter(|_| mixed);
        let of = Placement::new(system, stages.clone()).with_option(Knob::Swap, swap);
        let all = [2, 1].map(|resident| of.clone().with(Knob::Resident, resident));
        // If the host cannot hold all stages, some may stay.
        let kept = all.clone().into_iter().filter(|_| mixed);
        let kept = kept.flat_map(|placement| residency::as_many_as_fit(context, &placement));
        all.into_iter().chain(kept).find(|placement| fits(context, placement))
    };
    counts.take_while(|count| *count > 0).find_map(of_count)
}

/// Returns Superpipeline's placements on the first GPU or round robin on all: two stages resident,
/// and as many kept as fit, or fewer. If none can be kept, all are streamed. If nothing fits,
/// stages are placed first fit; if that fails too, the same with one resident stage.
fn in_turns(context: &Context<'_>, gpus: &[DeviceId]) -> Option<Vec<Placement>> {
    let shapes = shapes(context, gpus);
    let mut placements = Vec::new();
    for resident in [2, 1] {
        let mut all_streamed = Vec::new();
        for (gpus, pieces) in &shapes {
            let options = [(Knob::Resident, resident), (Knob::Swap, 1)];
            let of = |recompute: bool| {
                superpipeline(context, (gpus, pieces), recompute).map(|placement| placement.with_options(&options))
            };
            let mixed = residency::mixed(context, &of(false)?);
            if mixed.is_empty() {
                placements.extend([of(false)?, of(true)?]);
            }
            placements.extend(mixed);
            if gpus.len() > 1 {
                all_streamed.extend(of(context.workload().mode == Mode::Train));
            }
        }
        if !any_fits(context, &placements) {
            placements.extend(all_streamed.iter().filter_map(|streamed| first_fit::dealt(context, streamed)));
        }
        if any_fits(context, &placements) {
            break;
        }
    }
    Some(placements)
}

/// Returns the divisions of the layers into stages, with the GPUs that take them round robin:
///
/// - on all GPUs, from one stage each up to the most possible, because small stages have small
///   buffers; also with the last layer, for example a large head, as a stage of its own on the
///   first GPU;
/// - one stage per layer, on all GPUs and on the first one.
///
/// GPUs come in each of their [`gpu_orders`].
pub(crate) fn shapes(context: &Context<'_>, gpus: &[DeviceId]) -> Vec<(Vec<DeviceId>, Vec<LayerRange>)> {
    distinct(gpu_orders(context, gpus).iter().flat_map(|gpus| shapes_of(context, gpus)))
}

/// Returns orders of GPUs: the machine's, and where GPUs differ, those sorted by compute time,
/// memory, and rate from the host.
pub(crate) fn gpu_orders(context: &Context<'_>, gpus: &[DeviceId]) -> Vec<Vec<DeviceId>> {
    let hardware = context.hardware;
    let time = |gpu: DeviceId| -> f64 {
        let times = context.cost.layers().map(|layer| context.cost.time(layer, gpu));
        times.map(|time| time.map_or(f64::INFINITY, |time| (time.forward + time.backward()).get())).sum()
    };
    let memory = |gpu: DeviceId| -room_of(context, gpu).as_f64();
    let way = |gpu: DeviceId| {
        let route = hardware.host_memory(gpu).and_then(|host| hardware.route(host, hardware.devices()[gpu].memory));
        let rates = route.iter().flat_map(|route| &route.links).map(|link| hardware.links()[*link].bandwidth.get());
        -rates.fold(f64::INFINITY, f64::min)
    };
    let sorted = |key: &dyn Fn(DeviceId) -> f64| {
        let mut order = gpus.to_vec();
        order.sort_by(|one, other| key(*one).total_cmp(&key(*other)));
        order
    };
    distinct([gpus.to_vec(), sorted(&time), sorted(&memory), sorted(&way)])
}

fn shapes_of(context: &Context<'_>, gpus: &[DeviceId]) -> Vec<(Vec<DeviceId>, Vec<LayerRange>)> {
    let Some(first) = gpus.first().copied() else { return Vec::new() };
    let finest = context.model.layers().len() / gpus.len();
    let finest = Some(finest).filter(|finest| !TURNS.contains(finest));
    let turns = TURNS.into_iter().chain(finest).filter(|_| gpus.len() > 1);
    let cut = |turns: usize| {
        let pieces = cuts::balanced(context, first, turns * gpus.len());
        pieces.into_iter().chain(cuts::with_the_last_alone(context, first, turns * gpus.len()))
    };
    let pieces = turns.flat_map(cut);
    let mut shapes: Vec<(Vec<DeviceId>, Vec<LayerRange>)> = pieces.map(|pieces| (gpus.to_vec(), pieces)).collect();
    let single = cuts::single(context);
    if !shapes.iter().any(|(_, pieces)| *pieces == single) {
        shapes.push((gpus.to_vec(), single.clone()));
    }
    shapes.push((vec![first], single));
    shapes
}

/// Returns the stages of `pieces` on `gpus`, round robin, all streamed, two of them resident.
pub(crate) fn superpipeline(
    context: &Context<'_>,
    (gpus, pieces): (&[DeviceId], &[LayerRange]),
    recompute: bool,
) -> Option<Placement> {
    let options = [(Knob::Resident, 2), (Knob::Swap, 1)];
    let stages = stages(context, pieces, &|chunk| gpus[chunk % gpus.len()], recompute)?;
    Some(Placement::new(System::Superpipeline, stages).with_options(&options))
}

fn stages(
    context: &Context<'_>,
    pieces: &[LayerRange],
    device: &dyn Fn(usize) -> DeviceId,
    recompute: bool,
) -> Option<Vec<Stage>> {
    let stage = |(index, layers): (usize, &LayerRange)| {
        let here = device(index);
        let stage = Stage::new(here, *layers).with_weights_in(context.hardware.host_memory(here)?);
        let stage = stage.with_optimizer_on(socket(context, here)?);
        Some(if recompute { stage.with_everything_recomputed() } else { stage })
    };
    pieces.iter().enumerate().map(stage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Instance, LayerText, model_text, workload};

    /// Two GPUs under each of two root complexes: neighbours are under different ones.
    #[test]
    fn neighbours_are_below_different_root_complexes() {
        let profile = "rtx3090-x4-two-sockets";
        let (_, machine) = spipe_hardware::shipped().iter().find(|(name, _)| *name == profile).unwrap();
        let layer =
            LayerText { count: 8, times: [1, 1, 1], slowdown: 2, parameters: 0, boundary: 1, saved: 0, workspace: 0 };
        let instance = Instance::new(&model_text(&[layer]), machine, &workload(4, Mode::Train));
        let context = instance.context();
        let order = cross_mapping(&context, &gpus(&context));
        let below = |a: usize, b: usize| context.hardware.shared_root(order[a], order[b]);
        assert_eq!(order.len(), 4);
        assert!(!below(0, 1) && !below(1, 2) && !below(2, 3), "{order:?}");
        assert!(below(0, 2) && below(1, 3));
    }
}
