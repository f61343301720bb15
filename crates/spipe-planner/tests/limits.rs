//! Answers of planners when nothing fits, when they are stopped, and when the space is too large.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must say so")]

mod common;

use common::{
    instances::{Instance, LayerText, MachineText, machine_text, model_text, workload},
    schedule::simulate,
};
use spipe_base::SimTime;
use spipe_cost::Mode;
use spipe_plan::{OutcomeStatus, Placement, System};
use spipe_planner::{Evaluator, Options, PLANNERS, PlanError, Problem, Solution, planner};
use std::{sync::atomic::AtomicBool, time::Duration};

/// Four equal layers of 16 million parameters each: 244 MiB of training state on a GPU, 16 MiB of
/// boundary and 32 MiB saved.
fn four_layers(gpu: u64, dram: u64) -> Instance {
    let layer = LayerText {
        count: 4,
        times: [10, 10, 10],
        slowdown: 5,
        parameters: 16_000_000,
        boundary: 16,
        saved: 16,
        workspace: 0,
    };
    let machine = MachineText { gpus: vec![(gpu, 20)], root: 20, sockets: vec![dram] };
    Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(4, Mode::Train))
}

fn plan_with(instance: &Instance, name: &str, options: Options, stop: bool) -> Result<Solution, PlanError> {
    let context = instance.context();
    let score = |placement: &Placement| simulate(&context, placement, 12);
    plan_scored(instance, name, (options, stop), &score)
}

fn plan_scored(
    instance: &Instance,
    name: &str,
    (options, stop): (Options, bool),
    score: &dyn Evaluator,
) -> Result<Solution, PlanError> {
    let stop = AtomicBool::new(stop);
    // The list schedule cannot simulate help of the host.
    let options = Options { host_help: false, ..options };
    let problem =
        Problem { context: instance.context(), systems: System::ALL.to_vec(), options, evaluator: score, stop: &stop };
    planner(name).unwrap().plan(&problem)
}

fn infeasible(instance: &Instance, name: &str) -> (String, String) {
    match plan_with(instance, name, Options::default(), false) {
        Err(PlanError::Infeasible { reason, hint, .. }) => (reason, hint),
        other => panic!("`{name}`: {other:?}"),
    }
}

/// The planners that search stages.
const OF_STAGES: [&str; 4] = ["ilp", "dp", "greedy", "exhaustive"];

#[test]
fn names_find_planners() {
    for known in &PLANNERS {
        assert_eq!(planner(known.name).unwrap().claim, known.claim);
    }
    assert!(planner("oracle").is_none());
}

#[test]
fn a_model_that_all_memories_together_cannot_hold_says_how_much_is_missing() {
    for name in OF_STAGES {
        let (reason, hint) = infeasible(&four_layers(350, 500), name);
        assert_eq!(
            reason,
            "the model needs at least 976.6 MiB of parameters, gradients and optimizer state, and `gpu0` and `dram0` \
             together have 850.0 MiB: 126.6 MiB more are needed",
            "`{name}`"
        );
        assert_eq!(hint, "add memory or devices, use a smaller model, or train in a narrower precision");
    }
}

#[test]
fn a_layer_that_fits_nowhere_is_named() {
    for name in OF_STAGES {
        let (reason, _) = infeasible(&four_layers(100, 200), name);
        assert_eq!(
            reason, "layer `part0.0` needs at least 276.1 MiB, and the largest memory, `dram0`, has 200.0 MiB",
            "`{name}`"
        );
    }
}

#[test]
fn a_refusal_of_partitions_names_the_closest() {
    let (reason, _) = infeasible(&four_layers(520, 520), "ilp");
    assert!(reason.starts_with("no placement fits: the closest one, system `1f1b` on"), "{reason}");
    assert!(reason.contains(" more in "), "{reason}");
}

#[test]
fn without_time_the_ilp_returns_a_heuristic_plan_and_says_so() {
    let options = Options { time_limit: Duration::ZERO, ..Options::default() };
    let instance = four_layers(700, 4000);
    let solution = plan_with(&instance, "ilp", options, false).unwrap();
    assert!(matches!(solution.status, OutcomeStatus::Stopped | OutcomeStatus::Optimal), "{solution:?}");
    assert!(spipe_plan::check(&instance.context(), &solution.placement).is_ok());
    assert!(solution.bound <= solution.simulated);
}

#[test]
fn the_stop_signal_ends_every_planner() {
    for name in PLANNERS.each_ref().map(|planner| planner.name) {
        let stopped = plan_with(&four_layers(700, 4000), name, Options::default(), true);
        assert_eq!(stopped, Err(PlanError::StoppedWithoutPlan { examined: 0 }), "`{name}`");
    }
}

#[test]
fn exhaustive_search_refuses_large_spaces_with_a_count() {
    let options = Options { exhaustive_limit: 100, ..Options::default() };
    let refused = plan_with(&four_layers(700, 4000), "exhaustive", options, false);
    // One device: 2 × 5 recompute choices; two: 2 × (2·4 + 3·3 + 4·2); under gpipe, 1f1b and hybrid
    // with H = 1, 2.
    assert_eq!(refused, Err(PlanError::TooLarge { placements: 240, limit: 100 }));
}

#[test]
fn no_systems_and_no_running_plans_are_errors() {
    let instance = four_layers(700, 4000);
    let context = instance.context();
    let (score, stop) = (|_: &Placement| Some(SimTime::ms(1)), AtomicBool::new(false));
    for name in PLANNERS.each_ref().map(|planner| planner.name) {
        let problem = Problem { context, systems: vec![], options: Options::default(), evaluator: &score, stop: &stop };
        assert_eq!(planner(name).unwrap().plan(&problem), Err(PlanError::NoSystem), "`{name}`");
        if name == "mobius-mip" {
            continue;
        }
        let broken = plan_scored(&instance, name, (Options::default(), false), &|_: &Placement| None);
        assert!(matches!(broken, Err(PlanError::NothingRuns { .. })), "`{name}`: {broken:?}");
    }
}

#[test]
fn recompute_is_chosen_where_only_that_fits() {
    let layer = LayerText {
        count: 4,
        times: [10, 10, 10],
        slowdown: 50,
        parameters: 1_000_000,
        boundary: 2,
        saved: 200,
        workspace: 0,
    };
    let machine = MachineText { gpus: vec![(520, 20), (520, 20)], root: 20, sockets: vec![100] };
    let instance = Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(4, Mode::Train));
    for name in ["ilp", "dp", "exhaustive"] {
        let solution = plan_with(&instance, name, Options::default(), false);
        let Ok(solution) = solution else { panic!("`{name}`: {solution:?}") };
        assert!(solution.placement.stages.iter().any(|stage| stage.recomputed > 0), "`{name}`: {solution:?}");
    }
}
