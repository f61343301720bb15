//! What the busiest device does at least, because layers are whole: some device has the largest one, and of k of them for each of so many
//! devices and one more, some device has k + 1.

use crate::formulation::assignment::{
    Class,
    columns::{Spread, rate},
    solved, streaming_or_not,
};
use crate::{
    costs::CostSums,
    space::rules::{Permission, SystemRules},
};
use good_lp::{variable, variables};

/// Beyond so many kinds of layers, or ways to choose k + 1 of them, it is not asked what they hold.
const MOST_KINDS: usize = 4;
const MOST_CHOICES: usize = 48;

/// Beyond so many of the largest layers only every so manyth number of them is asked for.
const EACH: usize = 512;
const EVERY: usize = 32;

/// How often the range of times is halved.
const BISECTIONS: usize = 30;

/// How far from the optimum a program may stop.
const GAP: f64 = 1e-3;

/// The least time of the busiest device, in ms.
pub(crate) fn least(costs: &CostSums<'_>, rules: &SystemRules, (classes, chain): (&[Class], f64)) -> f64 {
    let parts = parts(costs, rules, classes);
    let counts: Vec<usize> = classes.iter().map(|class| class.count).collect();
    let computed = least_of_whole(&counts, &parts);
    match classes {
        [class] if rules.in_rounds && !rules.apart => {
            let layers: Vec<f64> = parts.iter().map(|part| part[0]).collect();
            computed.max(with_memory(costs, rules, (class, chain), &layers))
        }
        _ => computed,
    }
}

/// For how long each layer keeps a device of each class busy in an iteration, infinite where it cannot: with the gradients of its parameters,
/// and its recompute and step if these are certain to be there. Its forward and its backward are parts of their own where they may be
/// on different devices.
fn parts(costs: &CostSums<'_>, rules: &SystemRules, classes: &[Class]) -> Vec<Vec<f64>> {
    let microbatches = costs.microbatches as f64;
    let on = |layer: usize, class: &Class| {
        let device = &costs.devices[class.members[0]];
        let times = device.times[layer]?;
        let recomputes = costs.training && rules.recomputes == Permission::Required && device.returns(layer + 1);
        let again = if recomputes { times.forward } else { 0.0 };
        let step = if rules.steps_on_host == Permission::Forbidden { times.optimizer } else { 0.0 };
        Some([microbatches * times.forward, microbatches * (times.backward + again) + step])
    };
    let on_all = |layer: usize| -> Vec<[f64; 2]> {
        classes.iter().map(|class| on(layer, class).unwrap_or([f64::INFINITY; 2])).collect()
    };
    let layers = (0..costs.layers).map(on_all);
    if rules.apart {
        return layers.flat_map(|times| [0, 1].map(|part| times.iter().map(|time| time[part]).collect())).collect();
    }
    layers.map(|times| times.iter().map(|[forward, backward]| forward + backward).collect()).collect()
}

/// No way to share out whole `parts`, each with its time on a device of every class, over so many devices of each class takes less: of the k
/// largest, those that all devices have time for are at least k.
fn least_of_whole(counts: &[usize], parts: &[Vec<f64>]) -> f64 {
    let fastest = |part: &Vec<f64>| part.iter().copied().fold(f64::INFINITY, f64::min);
    let mut sorted: Vec<&Vec<f64>> = parts.iter().collect();
    sorted.sort_by(|one, other| fastest(other).total_cmp(&fastest(one)));
    let all: f64 = parts.iter().map(fastest).sum();
    if !all.is_finite() {
        return f64::INFINITY;
    }
    let suffices = |time: f64| {
        let mut taken: Vec<Vec<f64>> = vec![Vec::new(); counts.len()];
        sorted.iter().enumerate().all(|(before, part)| {
            let asked = before < EACH || before % EVERY == 0;
            let places = taken.iter_mut().zip(part.iter()).zip(counts).map(|((taken, part), count)| {
                taken.insert(taken.partition_point(|other| other < part), *part);
                let mut left = time;
                let in_time = |part: &&f64| {
                    left -= **part;
                    left >= 0.0
                };
                // What is not asked refuses nothing.
                if asked {
                    count * taken.iter().take_while(in_time).count()
                } else {
                    usize::from(*count > 0) * parts.len()
                }
            });
            places.sum::<usize>() > before
        })
    };
    let (mut least, mut enough) = (0.0, all);
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(least, enough);
        *(if suffices(middle) { &mut enough } else { &mut least }) = middle;
    }
    least
}

/// The same with what the layers hold on that device, for as many of the slowest layers as some device has one more of than all can have.
fn with_memory(costs: &CostSums<'_>, rules: &SystemRules, (class, chain): (&Class, f64), ways: &[f64]) -> f64 {
    let each = (costs.layers - 1) / class.count;
    let mut runs: Vec<(usize, usize)> = costs.runs.clone();
    runs.sort_by(|one, other| ways[other.0].total_cmp(&ways[one.0]));
    let mut left = each * class.count + 1;
    for (_, count) in &mut runs {
        *count = left.min(*count);
        left -= *count;
    }
    runs.retain(|(_, count)| *count > 0);
    let choices = if runs.len() <= MOST_KINDS { choices(&runs, each + 1) } else { Vec::new() };
    if each == 0 || choices.is_empty() || choices.len() > MOST_CHOICES {
        return 0.0;
    }
    let rates = [true, false]
        .map(|inbound| class.members.iter().map(|member| rate(costs, &[*member], inbound)).fold(0.0, f64::max));
    let parts = streaming_or_not(costs, rules, vec![Class { count: 1, rates, ..class.clone() }]);
    let of_choice = |choice: &Vec<(usize, usize)>| {
        parts.iter().map(|part| on_one(costs, rules, (part, chain), choice)).fold(f64::INFINITY, f64::min)
    };
    choices.iter().map(of_choice).fold(f64::INFINITY, f64::min)
}

/// All ways to take so many layers of `runs`.
fn choices(runs: &[(usize, usize)], count: usize) -> Vec<Vec<(usize, usize)>> {
    let Some(((first, most), others)) = runs.split_first() else {
        return if count == 0 { vec![Vec::new()] } else { Vec::new() };
    };
    let with = |taken: usize| {
        let own = Some((*first, taken)).filter(|(_, taken)| *taken > 0);
        choices(others, count - taken).into_iter().map(move |rest| own.into_iter().chain(rest).collect())
    };
    (0..=count.min(*most)).flat_map(with).collect()
}

/// The least time of a device with these layers, by integer program: what they hold fits. Infinite if it never does, zero if the solver
/// has no answer.
fn on_one(costs: &CostSums<'_>, rules: &SystemRules, (class, unit): (&[Class], f64), layers: &[(usize, usize)]) -> f64 {
    let mut vars = variables!();
    let busiest = vars.add(variable().min(0.0).name("busiest"));
    let (unit, nothing) = (crate::formulation::assignment::unit(unit), vec![0; costs.devices.len()]);
    let mut spread = Spread::new((costs, rules), (unit, busiest), None, class).whole(&nothing).only(layers);
    spread.layers(class, &mut vars);
    solved(spread, vars, (Some(GAP), costs.program_time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
        problem::Options,
    };
    use spipe_cost::Mode;
    use spipe_plan::System;

    /// The bound for five layers of 0.1 ms forward and 0.2 ms backward on two GPUs of so many MiB, with four microbatches; and how long
    /// a GPU steps a layer.
    fn of_five(memory: u64, system: System) -> (f64, f64) {
        // 128 MiB of state and 32 MiB of activations per layer.
        let equal = LayerText {
            count: 5,
            times: [1, 2, 0],
            slowdown: 9,
            parameters: 8 << 20,
            boundary: 1,
            saved: 32,
            workspace: 0,
        };
        let machine = MachineText { gpus: vec![(memory, 20), (memory, 20)], root: 20, sockets: vec![8000] };
        let instance = Instance::new(&model_text(&[equal]), &machine_text(&machine), &workload(4, Mode::Train));
        let costs = CostSums::new(instance.context(), &Options::default());
        let rules = SystemRules::of(system);
        let classes = crate::formulation::assignment::classes(&costs, &rules);
        let step = costs.devices[classes[0].members[0]].times[0].unwrap().optimizer;
        (least(&costs, &rules, (&classes, 1.5)), step)
    }

    #[test]
    fn some_device_has_one_layer_more() {
        let (least, step) = of_five(4000, System::Interleaved);
        assert!(step > 0.0 && (least - 3.0 * (4.0 * 0.3 + step)).abs() < 1e-6, "{least}");
        // A backward may be on another device than its forward, and recomputes: of ten parts three of the larger five are on one.
        assert!((of_five(4000, System::Spipe).0 - 3.0 * 4.0 * 0.3).abs() < 1e-6);
    }

    #[test]
    fn the_largest_layer_is_on_one_device() {
        let equal = LayerText {
            count: 2,
            times: [1, 2, 0],
            slowdown: 9,
            parameters: 1 << 20,
            boundary: 1,
            saved: 1,
            workspace: 0,
        };
        let large = LayerText { count: 1, times: [10, 20, 0], ..equal };
        let machine = MachineText { gpus: vec![(4000, 20); 3], root: 20, sockets: vec![8000] };
        let instance = Instance::new(&model_text(&[equal, large]), &machine_text(&machine), &workload(4, Mode::Train));
        let costs = CostSums::new(instance.context(), &Options::default());
        let of = |system: System| {
            let rules = SystemRules::of(system);
            least(&costs, &rules, (&crate::formulation::assignment::classes(&costs, &rules), 4.5))
        };
        assert!(of(System::ZbH1) > 4.0 * 3.0);
        // Its backward alone, with the recompute.
        assert!((of(System::Spipe) - 4.0 * 3.0).abs() < 1e-6);
        assert!(of(System::Mobius) > 4.0 * 4.0 - 1e-6);
    }

    #[test]
    fn what_three_layers_hold_fits_or_is_computed_again() {
        // Beside what is computed the device steps its layers, or the host does, which takes longer.
        let all = [4000, 600, 450].map(|memory| of_five(memory, System::Superpipeline).0);
        assert!(all[0] > 3.6 && all[1] > 1.05 * all[0] && all[2] > 1.05 * all[1], "{all:?}");
    }

    #[test]
    fn devices_that_are_slower_take_what_they_have_time_for() {
        // Four parts on one fast device and two slow ones, which take one each if there is time, and more than one only later.
        let parts = vec![vec![1.0, 3.5]; 4];
        assert!((least_of_whole(&[1, 2], &parts) - 3.5).abs() < 1e-6);
        assert!((least_of_whole(&[1, 0], &parts) - 4.0).abs() < 1e-6);
        // What the slow ones do fast does not help with what they do not.
        let parts: Vec<Vec<f64>> = [vec![vec![1.0, 99.0]; 3], vec![vec![0.1, 0.1]; 9]].concat();
        assert!((least_of_whole(&[2, 9], &parts) - 2.0).abs() < 1e-6);
        assert!(least_of_whole(&[2], &[vec![f64::INFINITY]]).is_infinite());
    }

    #[test]
    fn layers_are_chosen_in_every_way() {
        assert_eq!(choices(&[(0, 2), (5, 1)], 2), [vec![(0, 1), (5, 1)], vec![(0, 2)]]);
        assert!(choices(&[(0, 1)], 2).is_empty());
    }
}
