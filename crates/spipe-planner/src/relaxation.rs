//! A lower bound for every placement at once: layers may be cut into fractions.

use crate::{
    figures::Figures,
    ilp::solve::{Answer, Settings, solve},
};
use good_lp::{Expression, SolverModel, constraint, highs, variable, variables};
use spipe_base::Bytes;

/// The least iteration, in ms, if each run of layers could be spread over all devices: the time for which the busiest
/// device is busy. Every placement has T ≥ m (F_i + B_i) for each of its stages, and is one way to spread the layers. In
/// memory, a layer takes at least its state and what it saves for one microbatch, be that kept or recomputed.
///
/// In training, T is also at least one pass of one microbatch, forward and backward, on the fastest device of each layer.
/// Zero if the solver has no answer.
pub(crate) fn relaxation(figures: &Figures<'_>) -> f64 {
    let m = figures.microbatches as f64;
    let chain: f64 = (0..figures.layers).map(|layer| fastest(figures, layer)).sum();
    let chain = if figures.training { chain } else { 0.0 };
    let mut vars = variables!();
    let busiest = vars.add(variable().min(0.0).name("busiest"));
    let nothing = || vec![Expression::from(0.0); figures.devices.len()];
    let (mut loads, mut needs, mut rows) = (nothing(), nothing(), Vec::new());
    for (run, (first, count)) in figures.runs.iter().enumerate() {
        let mut total = Expression::from(0.0);
        for (index, device) in figures.devices.iter().enumerate() {
            if let Some(times) = device.times[*first] {
                let share = vars.add(variable().min(0.0).name(format!("share_{run}_{}", device.name)));
                loads[index].add_mul(m * times.busy() / unit(chain), share);
                let bytes = device.bytes[*first];
                needs[index].add_mul((bytes.state() + bytes.saved).to_gib(), share);
                total += share;
            }
        }
        rows.push(constraint!(total == *count as f64));
    }
    for ((load, need), device) in loads.into_iter().zip(needs).zip(&figures.devices) {
        rows.push(constraint!(load <= busiest));
        rows.push(constraint!(need <= Bytes::new(device.usable).to_gib()));
    }
    let mut problem = vars.minimise(busiest).using(highs);
    for row in rows {
        problem.add_constraint(row);
    }
    let spread = match solve(problem, &Settings::default()) {
        Answer::Solved(solution) => good_lp::Solution::value(&solution, busiest) * unit(chain),
        _ => 0.0,
    };
    // The solver's tolerance is 10⁻⁷ of numbers around one.
    chain.max(spread * (1.0 - 1e-6))
}

/// Brings the numbers near one.
fn unit(chain: f64) -> f64 {
    if chain > 0.0 { chain } else { 1.0 }
}

fn fastest(figures: &Figures<'_>, layer: usize) -> f64 {
    let times = figures.devices.iter().filter_map(|device| device.times[layer]);
    let least = times.map(|times| times.busy()).fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}
