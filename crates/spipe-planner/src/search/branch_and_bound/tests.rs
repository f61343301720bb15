//! How the search handles the solver's answers.

use crate::{
    common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
    problem::{Options, PlanError, Planner, Problem, Solution},
};
use crate::{
    formulation::solver::{Answer, Settings, solve},
    search::branch_and_bound::Ilp,
};
use good_lp::solvers::highs::HighsProblem;
use spipe_base::SimTime;
use spipe_cost::Mode;
use spipe_plan::{OutcomeStatus, Placement, System, check};
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// Four layers on a GPU and a socket.
fn instance() -> Instance {
    let layer = LayerText {
        count: 4,
        times: [10, 10, 10],
        slowdown: 5,
        parameters: 16_000_000,
        boundary: 16,
        saved: 16,
        workspace: 0,
    };
    let machine = MachineText { gpus: vec![(700, 20)], root: 20, sockets: vec![4000] };
    Instance::new(&model_text(&[layer]), &machine_text(&machine), &workload(4, Mode::Train))
}

/// Signals that a stand-in for the solver may set.
#[derive(Default)]
struct Signals {
    stop: AtomicBool,
    /// Whether placements run in simulation.
    run: AtomicBool,
}

impl Signals {
    /// Returns the real solver's answer. Placements run only from now on, so a plan can only be one
    /// of its solutions.
    fn really(&self, problem: HighsProblem) -> Answer {
        self.run.store(true, Ordering::Relaxed);
        solve(problem, &Settings::default())
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns the plan found with a solver that answers its n-th call by `answer`, and whether each
/// call was a second try.
fn plan(answer: impl Fn(usize, &Signals, HighsProblem) -> Answer + Sync) -> (Result<Solution, PlanError>, Vec<bool>) {
    let instance = instance();
    let (signals, second_tries) = (Signals::default(), Mutex::new(Vec::new()));
    let score = |_: &Placement| signals.run.load(Ordering::Relaxed).then(|| SimTime::ms(1000));
    let solver = |problem: HighsProblem, settings: &Settings| {
        let call = {
            let mut calls = second_tries.lock().unwrap();
            calls.push(settings.second_try);
            calls.len()
        };
        answer(call, &signals, problem)
    };
    let options = Options { gap: 0.0, host_help: false, candidates_per_case: 2, ..Options::default() };
    let systems = vec![System::OneForwardOneBackward];
    let problem = Problem { context: instance.context(), systems, options, evaluator: &score, stop: &signals.stop };
    let found = Ilp { solver: &solver }.plan(&problem);
    if let Ok(solution) = &found {
        assert_eq!(check(&instance.context(), &solution.placement), Ok(()));
    }
    (found, second_tries.into_inner().unwrap())
}

fn trouble() -> Answer {
    Answer::Trouble("it broke".into())
}

#[test]
fn after_trouble_the_solver_is_asked_once_more_with_other_settings() {
    let (found, second_tries) =
        plan(|call, signals, problem| if call == 1 { trouble() } else { signals.really(problem) });
    assert_eq!(second_tries[..2], [false, true]);
    assert_eq!(found.unwrap().simulated, SimTime::ms(1000));
}

#[test]
fn trouble_with_all_settings_is_an_error_that_names_the_devices() {
    let (found, second_tries) = plan(|_, _, _| trouble());
    assert_eq!(second_tries[..2], [false, true]);
    assert!(second_tries.len().is_multiple_of(2), "each case is tried twice: {second_tries:?}");
    let error = found.unwrap_err();
    let PlanError::Numerical { devices, what } = &error else { panic!("{error:?}") };
    assert!(devices.contains("gpu0") || devices.contains("cpu0"), "{devices}");
    assert_eq!(what, "it broke");
}

#[test]
fn trouble_in_one_place_does_not_hide_a_plan_from_another() {
    let (found, second_tries) =
        plan(|call, signals, problem| if call <= 2 { trouble() } else { signals.really(problem) });
    assert_eq!(second_tries[..3], [false, true, false]);
    assert_ne!(found.unwrap().status, OutcomeStatus::Optimal, "a case is left open");
}

#[test]
fn a_limit_that_strikes_in_the_solver_leaves_its_best_solution() {
    let (found, second_tries) = plan(|_, signals, problem| {
        signals.stop();
        match signals.really(problem) {
            Answer::Solved(solution) => Answer::Stopped(Some(solution)),
            other => other,
        }
    });
    assert_eq!((found.unwrap().status, second_tries), (OutcomeStatus::Stopped, vec![false]));
}

#[test]
fn a_limit_that_strikes_in_the_solver_before_there_is_a_solution_leaves_nothing() {
    let (found, second_tries) = plan(|_, signals, _| {
        signals.stop();
        Answer::Stopped(None)
    });
    assert!(matches!(found, Err(PlanError::StoppedWithoutPlan { .. })), "{found:?}");
    assert_eq!(second_tries, [false]);
}
