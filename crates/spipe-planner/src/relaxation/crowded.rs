//! What the busiest device does at least, because layers are whole: of k of them for each of so many devices and one more, some device has
//! k + 1.

use super::{
    Class,
    spread::{Spread, rate},
    streaming_or_not, ways,
};
use crate::{
    figures::Figures,
    freedom::Freedom,
    ilp::solve::{Answer, Settings, solve},
};
use good_lp::{SolverModel, highs, variable, variables};

/// Beyond so many kinds of layers, or ways to choose k + 1 of them, it is not asked what they hold.
const MOST_KINDS: usize = 4;
const MOST_CHOICES: usize = 48;

/// How far from the optimum a program may stop.
const GAP: f64 = 1e-3;

/// The least time of the busiest device, in ms; nothing is known where forward and backward of a layer may be on different devices.
pub(super) fn least(figures: &Figures<'_>, freedom: &Freedom, (classes, chain): (&[Class], f64)) -> f64 {
    if freedom.apart {
        return 0.0;
    }
    let devices: usize = classes.iter().map(|class| class.count).sum();
    let ways = ways(figures, freedom, classes);
    let mut sorted = ways.clone();
    sorted.sort_by(|one, other| other.total_cmp(one));
    let of_one = (1..).map_while(|each| Some(sorted.get(each * devices - each..=each * devices)?.iter().sum::<f64>()));
    let computed = of_one.fold(0.0, f64::max) * figures.microbatches as f64;
    match classes {
        [class] if freedom.in_rounds => computed.max(with_memory(figures, freedom, (class, chain), &ways)),
        _ => computed,
    }
}

/// The same with what the layers hold on that device, for as many of the slowest layers as some device has one more of than all can have.
fn with_memory(figures: &Figures<'_>, freedom: &Freedom, (class, chain): (&Class, f64), ways: &[f64]) -> f64 {
    let each = (figures.layers - 1) / class.count;
    let mut runs: Vec<(usize, usize)> = figures.runs.clone();
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
        .map(|inbound| class.members.iter().map(|member| rate(figures, &[*member], inbound)).fold(0.0, f64::max));
    let parts = streaming_or_not(figures, freedom, vec![Class { count: 1, rates, ..class.clone() }]);
    let of_choice = |choice: &Vec<(usize, usize)>| {
        parts.iter().map(|part| on_one(figures, freedom, (part, chain), choice)).fold(f64::INFINITY, f64::min)
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
fn on_one(figures: &Figures<'_>, freedom: &Freedom, (class, unit): (&[Class], f64), layers: &[(usize, usize)]) -> f64 {
    let mut vars = variables!();
    let busiest = vars.add(variable().min(0.0).name("busiest"));
    let (unit, nothing) = (super::unit(unit), vec![0; figures.devices.len()]);
    let mut spread = Spread::new((figures, freedom), (unit, busiest), None, class).whole(&nothing).only(layers);
    spread.layers(class, &mut vars);
    let mut problem = vars.minimise(busiest).using(highs);
    for row in spread.rows {
        problem.add_constraint(row);
    }
    match solve(problem, &Settings { gap: GAP, ..Settings::default() }) {
        Answer::Solved(solution) => good_lp::Solution::value(&solution, busiest) * unit * (1.0 - 2.0 * GAP),
        Answer::Infeasible => f64::INFINITY,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Options,
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
    };
    use spipe_cost::Mode;
    use spipe_plan::System;

    /// The bound for five layers of 0.1 ms forward and 0.2 ms backward on two GPUs of so many MiB, with four microbatches.
    fn of_five(memory: u64, system: System) -> f64 {
        // 128 MiB of state and 32 MiB of activations per layer.
        let equal = LayerText { count: 5, times: [1, 2, 0], slowdown: 9, parameters: 8 << 20, boundary: 1, saved: 32 };
        let machine = MachineText { gpus: vec![(memory, 20), (memory, 20)], root: 20, sockets: vec![8000] };
        let instance = Instance::new(&model_text(&[equal]), &machine_text(&machine), &workload(4, Mode::Train));
        let figures = Figures::new(instance.context(), &Options::default());
        let freedom = Freedom::of(system).unwrap();
        let classes = super::super::classes(&figures, &freedom);
        least(&figures, &freedom, (&classes, 1.5))
    }

    #[test]
    fn some_device_has_one_layer_more() {
        assert!((of_five(4000, System::Interleaved) - 3.0 * 4.0 * 0.3).abs() < 1e-9);
        // A backward may be on another device than its forward.
        assert!(of_five(4000, System::Spipe) < f64::EPSILON);
    }

    #[test]
    fn what_three_layers_hold_fits_or_is_computed_again() {
        // Beside what is computed the device steps its layers, or the host does, which takes longer.
        let all = [4000, 700, 500].map(|memory| of_five(memory, System::Superpipeline));
        assert!(all[0] > 3.6 && all[1] > 1.05 * all[0] && all[2] > 1.05 * all[1], "{all:?}");
    }

    #[test]
    fn layers_are_chosen_in_every_way() {
        assert_eq!(choices(&[(0, 2), (5, 1)], 2), [vec![(0, 1), (5, 1)], vec![(0, 2)]]);
        assert!(choices(&[(0, 1)], 2).is_empty());
    }
}
