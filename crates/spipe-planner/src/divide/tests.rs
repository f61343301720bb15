//! What is refused is refused for certain: no division of a case has a shorter period than the least for which it is possible.

use super::*;
use crate::{
    case::{Division, disciplines},
    common::{Instance, MachineText, frozen_instance_of, instance_of, layer, machine_text, model_text, workload},
    order::OrderGraph,
    sequence,
};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use spipe_cost::Mode;
use spipe_plan::check;

/// Every help for every stage of `case`.
fn decided(figures: &Figures<'_>, case: Case) -> Vec<Case> {
    match case.undecided() {
        None => vec![case],
        Some(stage) => case.decided(figures, stage).into_iter().flat_map(|case| decided(figures, case)).collect(),
    }
}

/// Every division of the layers into the stages of `case`.
fn divisions(figures: &Figures<'_>, case: &Case) -> Vec<Division> {
    let mut list = vec![Division { ends: Vec::new(), recomputed: Vec::new() }];
    for stage in 0..case.stages() {
        let last = stage + 1 == case.stages();
        let longer = |division: &Division| -> Vec<Division> {
            let from = division.ends.last().copied().unwrap_or(0);
            let ends = if last { figures.layers..=figures.layers } else { from + 1..=figures.layers };
            let choices = |to: usize| {
                (0..=if figures.training { to.saturating_sub(from) } else { 0 }).map(move |recomputed| (to, recomputed))
            };
            let with = |(to, recomputed): (usize, usize)| Division {
                ends: [division.ends.as_slice(), &[to]].concat(),
                recomputed: [division.recomputed.as_slice(), &[recomputed]].concat(),
            };
            ends.filter(|to| *to > from).flat_map(choices).map(with).collect()
        };
        list = list.iter().flat_map(longer).collect();
    }
    list
}

prop_compose! {
    /// Three GPUs, of which the last is near a socket of its own.
    fn near_two_sockets()(
        mut layers in prop::collection::vec(layer(1), 3..=4), gpu in (100u64..700, 2u32..30), microbatches in 1u64..6,
    ) -> Instance {
        layers.iter_mut().for_each(|layer| layer.parameters *= 4);
        let machine = MachineText { gpus: vec![gpu; 3], root: 20, sockets: vec![3000; 2] };
        let second = machine_text(&machine)
            .replace("[\"gpu2\", \"root0\"]", "[\"gpu2\", \"root1\"]")
            .replace("[\"root0\", \"dram1\"]", "[\"root1\", \"dram1\"]");
        let text = second + "[[link]]\nname = \"between\"\nbetween = [\"root0\", \"root1\"]\nbandwidth = \"20 GB/s\"\n";
        Instance::new(&model_text(&layers), &text, &workload(microbatches, Mode::Train))
    }
}

fn run(count: u32, on: impl Strategy<Value = Instance>, on_sockets: bool) {
    let config = Config { cases: count, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let on_instance = |instance: Instance| {
        let figures = Figures::new(instance.context(), &crate::Options::default());
        for devices in sequence::sequences(&figures, 1000, None).list {
            let has_cpu = devices.iter().any(|device| figures.devices[*device].is_cpu);
            for discipline in disciplines(&crate::SYSTEMS, has_cpu).into_iter().filter(|_| on_sockets || !has_cpu) {
                what_is_possible(
                    &instance,
                    &figures,
                    &Case::new(&figures, &devices, discipline).with_help(&figures, None),
                )?;
            }
        }
        Ok(())
    };
    if let Err(error) = runner.run(&on, on_instance) {
        panic!("{error}");
    }
}

#[test]
fn what_is_refused_does_not_exist() {
    run(60, instance_of(4), true);
}

#[test]
fn what_is_refused_of_frozen_layers_does_not_exist() {
    run(60, frozen_instance_of(4), true);
}

#[test]
fn what_is_refused_near_two_sockets_does_not_exist() {
    run(40, near_two_sockets(), false);
}

/// The least period of all divisions of `case` that fit is possible.
fn what_is_possible(instance: &Instance, figures: &Figures<'_>, case: &Case) -> Result<(), TestCaseError> {
    let mut partitioner = Partitioner::new(figures, std::slice::from_ref(case));
    let mut least = f64::INFINITY;
    for case in decided(figures, case.clone()) {
        let graph = OrderGraph::new(figures, &case);
        for division in divisions(figures, &case) {
            if check(&instance.context(), &case.placement(figures, &division)).is_ok() {
                let period = graph.period(&case.times(figures, &division)).0;
                least = least.min(streams(figures, &case, &division).fold(period, f64::max));
            }
        }
        partitioner.extend(&[case]);
    }
    for grain in Grain::ALL {
        let found = |limit: f64| partitioner.divide(&[case], (limit, grain), None)[0].clone().unwrap();
        if least.is_finite() {
            let possible = found(least * (1.0 + 1e-6)).is_some();
            prop_assert!(possible, "{grain:?}: {least} is refused for {case:?}");
        }
        if let Some(Divided { division, case: decided, .. }) = found(f64::INFINITY) {
            prop_assert!(decided.undecided().is_none() && division.ends.len() == case.stages());
        }
    }
    Ok(())
}

/// How long the ways to the host are busy, which is not in the order graph, in ms by stage.
fn streams(figures: &Figures<'_>, case: &Case, division: &Division) -> impl Iterator<Item = f64> {
    (0..case.stages()).map(|stage| {
        let (layers, recomputed) = (division.layers(stage), division.recomputed[stage]);
        case.device(figures, stage).link_time(case.help(stage), figures.microbatches, layers, recomputed)
    })
}
