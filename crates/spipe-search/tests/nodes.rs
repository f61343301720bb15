//! Sweeps over computers with a network: plans on the meshes of each machine, and bounds that hold for all of them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use spipe_hardware::Hardware;
use spipe_market::Catalogue;
use spipe_model::Model;
use spipe_search::{
    Spelling,
    whatif::{Clock, JobPlanner, Task, Training},
};
use spipe_whatif::{Answer, JobFile, Judge, Objective, Plans, Ranking, Setup, Shard, Table, rank, run};
use std::sync::Arc;

const JOB: &str = r#"
format-version = 1
[[train]]
model = "gpt2"
tokens = "1 G"
seq-len = 512
global-batch = 32
[vary]
gpu = ["rtx3090"]
gpus = [1, 2]
platform = ["epyc-7713p"]
dram = ["128 GiB"]
condition = ["new"]
nodes = [1, 2, 4]
"#;

fn task(objective: Objective) -> Task {
    of_job(JOB, objective)
}

fn of_job(text: &str, objective: Objective) -> Task {
    let job = JobFile::from_toml("job.toml", text).unwrap();
    let as_of = "2026-11-27".parse().unwrap();
    let setup = Setup { job, catalogues: Vec::new(), objective, rows: 2, as_of, own: Vec::new() };
    Task::new(setup, Catalogue::shipped().unwrap()).unwrap()
}

fn planner(task: &Task) -> JobPlanner {
    let (_, text) = spipe_model::shipped().iter().find(|(name, _)| *name == "gpt2").unwrap();
    let model = Model::from_toml("gpt2", text).unwrap();
    let training = Training::new(&task.job.file.train[0], model, None, Spelling::default()).unwrap();
    let engines = Box::new(|_: &_, _: &_| Vec::new());
    JobPlanner::new(vec![training], Clock::new(None, Arc::default()), (Box::new(|_, _| ()), engines))
}

fn table(task: &Task, planner: &JobPlanner, bounds: bool, known: Plans) -> (Table, Plans) {
    let found = run(&task.question(Shard::WHOLE, bounds), planner, known).unwrap();
    let ranking = Ranking {
        objective: task.setup.objective,
        rows: task.setup.rows,
        error: 0.1,
        as_of: task.setup.as_of,
        own: None,
    };
    (rank((&task.job, &task.sweep), &found, ranking), found.plans)
}

/// One, two and four nodes are planned and ranked; more nodes are faster, no plan is faster than its bounds, and bounds
/// change no table.
#[test]
fn nodes_are_planned_bounded_and_ranked() {
    let task = task(Objective::Time);
    let planner = planner(&task);
    assert_eq!(task.sweep.candidates.len(), 6);
    let mut rates = Vec::new();
    for candidate in &task.sweep.candidates {
        let hardware = Hardware::from_file("machine", candidate.machine.hardware.clone()).unwrap();
        let Some(Answer::Planned(plan)) = planner.plan(&hardware, 0) else { panic!("{}", candidate.name()) };
        let rate = plan.tokens_per_second;
        // Iterations are whole nanoseconds.
        let (most, closest) =
            (planner.most_tokens_per_second(&hardware, 0), planner.closest_tokens_per_second(&hardware, 0, rate));
        assert!(rate <= most * (1.0 + 1e-6), "{}: {rate} and {most}", candidate.name());
        assert!(rate <= closest * (1.0 + 1e-6), "{}: {rate} and {closest}", candidate.name());
        assert!(plan.gpu_share > 0.05 && plan.gpu_share <= 1.0, "{}: {}", candidate.name(), plan.gpu_share);
        let gpus = candidate.machine.nodes * candidate.machine.choice.gpus;
        rates.push((gpus, candidate.machine.nodes, rate));
    }
    let rate = |gpus: u32, nodes: u32| rates.iter().find(|one| (one.0, one.1) == (gpus, nodes)).unwrap().2;
    assert!(rate(2, 2) > 1.2 * rate(1, 1) && rate(4, 4) > 1.2 * rate(2, 2), "replicas share the batch: {rates:?}");
    for objective in [Objective::Time, Objective::Cost] {
        let task = self::task(objective);
        let (all, plans) = table(&task, &planner, false, Plans::new());
        let (bounded, _) = table(&task, &planner, true, Plans::new());
        assert_eq!(all.machines, bounded.machines);
        assert_eq!(plans.len(), 6);
        if objective == Objective::Time {
            assert_eq!((all.machines[0].nodes, all.baselines.len()), (4, 0), "plans are ranked, and nothing else");
        }
    }
}

/// Replicas cannot share an iteration of one sequence. Four GPUs are still faster than one, and bounds hold.
#[test]
fn bounds_hold_where_replicas_share_nothing() {
    let job = JOB.replace("rtx3090", "a100-80-sxm").replace("[1, 2]", "[4]").replace("[1, 2, 4]", "[1]");
    let job = job.replace("epyc-7713p", "epyc-7763").replace("128 GiB", "512 GiB").replace("= 32", "= 1");
    let task = of_job(&job, Objective::Time);
    let planner = planner(&task);
    let machine = &task.sweep.candidates[0].machine;
    let rate = |gpus: u32| {
        let mut file = machine.hardware.clone();
        file.gpu[0].name = if gpus == 1 { "gpu0".into() } else { file.gpu[0].name.clone() };
        file.link.retain(|link| gpus > 1 || !link.name.starts_with("nvlink"));
        if gpus == 1 {
            file.link.retain(|link| link.name != "pcie{2..3}");
            let pcie = file.link.iter_mut().find(|link| link.name == "pcie{0..1}").unwrap();
            (pcie.name, pcie.between[0]) = ("pcie0".into(), "gpu0".into());
        }
        let hardware = Hardware::from_file("machine", file).unwrap();
        let Some(Answer::Planned(plan)) = planner.plan(&hardware, 0) else { panic!("{gpus} GPUs") };
        let closest = planner.closest_tokens_per_second(&hardware, 0, plan.tokens_per_second);
        assert!(plan.tokens_per_second <= closest * (1.0 + 1e-6), "{gpus}: {} and {closest}", plan.tokens_per_second);
        assert!(plan.tokens_per_second <= planner.most_tokens_per_second(&hardware, 0) * (1.0 + 1e-6), "{gpus}");
        plan.tokens_per_second
    };
    let (one, four) = (rate(1), rate(4));
    assert!(four > 1.2 * one, "four GPUs: {four}, one: {one}");
}
