//! The library as a front end other than the command calls it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_base::SimTime;
use spipe_cost::Workload;
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_planner::Effort;
use spipe_search::{
    Conditions, Progress, Request, SearchError, Setting, Spelling, Watch, Words, conditions, questions, search,
    systems, workloads,
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

fn text(all: &[(&'static str, &'static str)], name: &str) -> &'static str {
    all.iter().find(|(known, _)| *known == name).unwrap().1
}

fn model(name: &str) -> Model {
    Model::from_toml(name, text(spipe_model::shipped(), name)).unwrap()
}

fn machine(name: &str) -> Hardware {
    Hardware::from_toml(name, text(spipe_hardware::shipped(), name)).unwrap()
}

/// A request that is answered at once.
fn request() -> Request {
    let workloads = workloads(Workload { seq_len: 1024, ..Workload::PLAIN }, 8, "4").unwrap();
    let systems = systems("gpu-only,checkpointing,1f1b").unwrap();
    let effort = Some(Effort::Low);
    Request { systems, effort, ..Request::new(model("gpt2"), machine("one-gpu"), workloads) }
}

struct Told(Arc<AtomicUsize>, Arc<Mutex<Option<SimTime>>>);

impl Progress for Told {
    fn improved(&self, best: Option<SimTime>, _: SimTime) {
        self.0.fetch_add(1, Ordering::Relaxed);
        *self.1.lock().unwrap() = best;
    }
}

#[test]
fn a_search_tells_its_course_and_is_repeated() {
    let (calls, best) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
    let watch = Arc::new(Watch::start(Some(Box::new(Told(Arc::clone(&calls), Arc::clone(&best))))));
    let found = search(&Request { watch: Some(Arc::clone(&watch)), ..request() }).unwrap();
    assert!(calls.load(Ordering::Relaxed) > 1 && best.lock().unwrap().unwrap() <= found.solution.simulated);
    let again = search(&Request { watch: Some(Arc::new(Watch::start(None))), threads: 2, ..request() }).unwrap();
    assert_eq!(found.solution.placement, again.solution.placement, "the number of threads changes no plan");
    let recorded =
        questions::recorded(&found, &watch, (&questions::least(&request(), &found, watch.elapsed()), Vec::new()));
    assert!(!recorded.outcome().unwrap().search.incumbents.is_empty());
}

#[test]
fn a_plan_takes_the_time_that_its_setting_simulates() {
    let (request, found) = (request(), search(&request()).unwrap());
    let setting = Setting::new(
        &request.model,
        request.machine.of(found.solution.placement.system),
        found.plan.context().workload(),
    )
    .unwrap();
    let time = setting.evaluator().checked_iteration(&found.solution.placement);
    assert_eq!(time, Some(found.solution.simulated));
}

/// Messages name settings in the words of their front end.
#[test]
fn settings_are_spelled_by_the_front_end() {
    let (model, machine, pins) = (model("gpt2"), machine("one-gpu"), ["system=gpipe".to_owned()]);
    let words = Words { pins: &pins, system: "1f1b", microbatch: "auto" };
    let asked = Conditions { layout: None, words, devices: &[] };
    let said = |spelling| {
        let refused = conditions(&asked, (&model, &machine), &Workload::PLAIN, spelling).unwrap_err();
        assert!(matches!(refused, SearchError::Request(_)));
        refused.to_string()
    };
    assert!(said(Spelling::default()).contains("`system = 1f1b` and `system=gpipe` contradict each other"));
    let options = Spelling::new(|setting, value| format!("--{setting} {value}"));
    assert!(said(options).contains("`--system 1f1b` and `system=gpipe` contradict each other"));
}

#[test]
fn a_refusal_has_remedies_where_they_are_asked_for() {
    let workloads = workloads(Workload { seq_len: 4096, ..Workload::PLAIN }, 8, "auto").unwrap();
    let systems = systems("gpu-only").unwrap();
    let plain = Request { systems, ..Request::new(model("llama2-7b"), machine("one-gpu"), workloads) };
    for hint in [false, true] {
        match search(&Request { hint, ..plain.clone() }) {
            Err(SearchError::Infeasible(diagnostic)) => {
                assert_eq!(diagnostic.hint.is_some(), hint);
                assert!(!diagnostic.hint.unwrap_or_default().contains("--"), "a library has no options");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("seven billion parameters do not fit one GPU"),
        }
    }
}
