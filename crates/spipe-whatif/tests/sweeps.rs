//! Sharing and bounds never change a table, and shards join to the whole.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use spipe_base::Bytes;
use spipe_hardware::{Hardware, MemoryKind};
use spipe_market::{Catalogue, Date};
use spipe_whatif::{
    Answer, Job, JobFile, Judge, Objective, Planned, Plans, Question, Ranking, Run, Setup, Shard, State, Sweep, Table,
    merge, rank, run, sweep,
};
use std::collections::BTreeMap;

/// Operations per token of a model of eight billion parameters.
const OPERATIONS: f64 = 5e10;

/// A planner by formula: a share of the peak that depends on the machine, and a need of memory.
struct Formula {
    seed: u64,
}

impl Judge for Formula {
    fn plan(&self, hardware: &Hardware, train: usize) -> Option<Answer> {
        let devices = hardware.devices();
        let text =
            format!("{:?}", devices.iter().map(|device| (&device.peak, device.memory_bandwidth)).collect::<Vec<_>>());
        let mut random = fastrand(self.seed ^ train as u64, &text);
        // These searches leave drives out.
        let held = hardware.memories().iter().filter(|memory| memory.kind != MemoryKind::Nvme);
        let all: u64 = held.map(|memory| memory.capacity.get()).sum();
        if random() < 0.1 {
            return Some(Answer::Failed("the solver gave up".into()));
        }
        if Bytes::new(all) < Bytes::gib(100) {
            return Some(Answer::Infeasible("it needs 100 GiB".into()));
        }
        let reached = 0.05 + 0.9 * random();
        let rate = reached * most(hardware);
        Some(Answer::Planned(Planned {
            tokens_per_second: rate,
            iteration_ms: 1.0,
            system: "formula".into(),
            gap: None,
            shares: BTreeMap::from([("gpu0.compute".into(), reached)]),
            gpu_share: reached,
            core_share: 1.0 - reached,
            head_room_bytes: BTreeMap::new(),
            peak_bytes: BTreeMap::new(),
            engines: None,
            runtime: None,
            estimate: false,
        }))
    }

    fn most_tokens_per_second(&self, hardware: &Hardware, _: usize) -> f64 {
        most(hardware)
    }

    fn closest_tokens_per_second(&self, hardware: &Hardware, train: usize, _: f64) -> f64 {
        let most = self.most_tokens_per_second(hardware, train);
        match self.plan(hardware, train) {
            Some(Answer::Planned(plan)) => f64::midpoint(plan.tokens_per_second, most),
            _ => f64::INFINITY,
        }
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

/// The rate at which a machine reaches the peaks of its devices.
fn most(hardware: &Hardware) -> f64 {
    let peak = |device: &spipe_hardware::Device| {
        let kind = spipe_cost::compute_type(device, spipe_model::Precision::Bf16);
        device.peak.get(&kind).map_or(0.0, |rate| rate.get())
    };
    hardware.devices().iter().map(peak).sum::<f64>() / OPERATIONS
}

/// Numbers from 0 to 1 that follow from a seed and a text (FNV-1a and xorshift).
fn fastrand(seed: u64, text: &str) -> impl FnMut() -> f64 + use<> {
    let mut state = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325 ^ seed, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn day() -> Date {
    "2026-11-27".parse().unwrap()
}

fn job(text: &str) -> Job {
    let head = "format-version = 1\n[[train]]\nmodel = \"llama3-8b\"\ntokens = \"1 G\"\n";
    JobFile::from_toml("job.toml", &format!("{head}{text}")).unwrap().check().unwrap()
}

/// Up to 60 machines from a random part of the catalogue, at random prices.
fn machines(job: &Job, seed: u64) -> Sweep {
    let mut random = fastrand(seed, "catalogue");
    let mut catalogue = Catalogue::shipped().unwrap();
    catalogue.gpus.retain(|_| random() < 0.3);
    for price in catalogue.gpus.iter_mut().flat_map(|gpu| &mut gpu.price) {
        let factor = 0.3 + 2.0 * random();
        (price.low, price.typical, price.high) = (price.low * factor, price.typical * factor, price.high * factor);
    }
    let mut sweep = sweep(&catalogue, job, day()).unwrap();
    let keep = 60.0 / sweep.candidates.len().max(1) as f64;
    sweep.candidates.retain(|_| random() < keep);
    sweep.candidates.iter_mut().enumerate().for_each(|(index, candidate)| candidate.index = index);
    sweep
}

const OBJECTIVES: [Objective; 3] = [Objective::Cost, Objective::Time, Objective::Energy];

fn ranked((job, sweep): (&Job, &Sweep), run: &Run, (objective, rows): (Objective, usize)) -> Table {
    rank((job, sweep), run, Ranking { objective, rows, error: 0.1, as_of: day(), own: None })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// The table equals that of planning each machine alone.
    #[test]
    fn bounds_and_sharing_change_no_table(
        seed in any::<u64>(), rows in 1usize..8, objective in 0usize..3, deadline in prop::option::of(1u32..200), shards in 1usize..5,
    ) {
        let objective = OBJECTIVES[objective];
        let limits = deadline.map(|days| format!("[limits]\ndeadline = \"{days} d\"\n")).unwrap_or_default();
        let job = job(&format!("{limits}[vary]\nnvme = [0, 1]\n"));
        let sweep = machines(&job, seed);
        let judge = Formula { seed };
        let ask = |shard, bounds| Question { job: &job, sweep: &sweep, objective, rows, shard, bounds };
        let alone = run(&ask(Shard::WHOLE, false), &judge, Plans::new()).unwrap();
        let bounded = run(&ask(Shard::WHOLE, true), &judge, Plans::new()).unwrap();
        let (wanted, found) = (ranked((&job, &sweep), &alone, (objective, rows)), ranked((&job, &sweep), &bounded, (objective, rows)));
        prop_assert_eq!(&wanted.machines, &found.machines);
        let counts = bounded.counts;
        prop_assert_eq!(counts.solved + counts.shared + counts.bounded, sweep.candidates.len());
        // Each machine alone, without sharing.
        for candidate in &sweep.candidates {
            let hardware = Hardware::from_file("alone", candidate.machine.hardware.clone()).unwrap();
            let answer = judge.plan(&hardware, 0).unwrap();
            prop_assert_eq!(alone.answers[candidate.index].as_ref(), Some(&vec![answer]), "{}", candidate.name());
        }
        // Shards join to the same table.
        let setup = Setup { job: job.file.clone(), catalogues: vec![], objective, rows, as_of: day(), own: vec![] };
        let parts = (1..=shards).map(|part| {
            let shard = Shard { part, of: shards };
            let found = run(&ask(shard, true), &judge, Plans::new()).unwrap();
            (format!("part-{part}"), State::new(setup.clone(), shard, found.counts, found.plans))
        });
        let whole = merge(parts.collect()).unwrap();
        let answers = sweep.candidates.iter().map(|candidate| whole.plans.get(&candidate.key).cloned()).collect();
        let joined = Run { plans: whole.plans, answers, counts: whole.counts };
        prop_assert_eq!(&wanted.machines, &ranked((&job, &sweep), &joined, (objective, rows)).machines);
        // A resumed sweep plans nothing again.
        let again = run(&ask(Shard::WHOLE, true), &judge, bounded.plans.clone()).unwrap();
        prop_assert_eq!(again.counts.solved, 0);
    }
}

/// The run of all machines without bounds, ranked with all of them in the table.
fn whole(job: &Job, sweep: &Sweep, seed: u64) -> Table {
    let ask = Question { job, sweep, objective: Objective::Cost, rows: 60, shard: Shard::WHOLE, bounds: false };
    ranked((job, sweep), &run(&ask, &Formula { seed }, Plans::new()).unwrap(), (Objective::Cost, 60))
}

/// The ends of the tornado are the answers of jobs that state these values, and its turn is where they change.
#[test]
fn a_tornado_is_what_other_jobs_answer() {
    let text = |electricity: f64, using: f64, years: f64, days: f64| {
        format!(
            "[limits]\ndeadline = \"{days} d\"\n[cost]\nelectricity = \"{electricity} USD/kWh\"\nuse = {using}\nownership = \"{years} years\"\n"
        )
    };
    let (mut turns, mut looked_at) = (0, 0);
    for seed in 0..12 {
        let base = job(&text(0.3, 0.5, 3.0, 20.0));
        let sweep = machines(&base, seed);
        let table = whole(&base, &sweep, seed);
        let tornado = table.tornado.unwrap();
        let (first, others) = table.machines.split_first().unwrap();
        assert_eq!((&tornado.machine, &tornado.other), (&first.machine, &others[0].machine));
        if first.figures.meets_deadline == others[0].figures.meets_deadline
            && first.figures.meets_deadline == Some(true)
        {
            let margin = others[0].figures.cost_of_job.typical / first.figures.cost_of_job.typical - 1.0;
            assert!((tornado.margin.unwrap() - margin).abs() < 1e-9, "{tornado:?}");
        }
        for swing in &tornado.inputs {
            let at = |value: f64| match swing.input.as_str() {
                "electricity" => Some(text(value, 0.5, 3.0, 20.0)),
                "use" => Some(text(0.3, value, 3.0, 20.0)),
                "ownership" => Some(text(0.3, 0.5, value, 20.0)),
                "deadline" => Some(text(0.3, 0.5, 3.0, value / 24.0)),
                _ => None,
            };
            let first_at = |value: f64| Some(whole(&job(&at(value)?), &sweep, seed).machines[0].clone());
            for end in [&swing.low, &swing.high] {
                let Some(row) = first_at(end.value) else { continue };
                assert_eq!(row.machine, end.first, "{}", swing.input);
                if row.machine == tornado.machine {
                    assert!((row.figures.cost_of_job.typical / end.cost - 1.0).abs() < 1e-6, "{}", swing.input);
                }
                looked_at += 1;
            }
            let Some(turn) = &swing.turn else { continue };
            assert_ne!(turn.first, tornado.machine);
            if let Some(row) = first_at(turn.value) {
                assert_eq!(row.machine, turn.first, "{}", swing.input);
                let before = turn.value + (swing.typical - turn.value) * 1e-3;
                assert_eq!(first_at(before).unwrap().machine, tornado.machine, "{}", swing.input);
                turns += 1;
            }
        }
    }
    assert!(looked_at >= 90 && turns >= 1, "{looked_at} ends, {turns} turns");
}

/// Ranges of the catalogue move the price of a part in every machine that has it.
#[test]
fn a_part_that_all_machines_have_changes_both_sides() {
    let base = job(
        "[vary]\ngpu = [\"rtx3090\", \"rtx4090\"]\ngpus = [1]\nplatform = [\"epyc-7713p\"]\ndram = [\"128 GiB\"]\ncondition = [\"used\"]\n",
    );
    let sweep = sweep(&Catalogue::shipped().unwrap(), &base, day()).unwrap();
    let table = whole(&base, &sweep, 1);
    let tornado = table.tornado.unwrap();
    let named: Vec<&str> = tornado.inputs.iter().map(|swing| swing.input.as_str()).collect();
    for wanted in [
        "price of rtx3090",
        "price of rtx4090",
        "price of epyc-7713p",
        "residual value",
        "electricity",
        "rate of rank 1",
    ] {
        assert!(named.contains(&wanted), "{wanted}: {named:?}");
    }
    let swing = |name: &str| tornado.inputs.iter().find(|swing| swing.input == name).unwrap();
    let gpu = |machine: &str| if machine.contains("rtx3090") { "price of rtx3090" } else { "price of rtx4090" };
    let (own, other) = (swing(gpu(&tornado.machine)), swing(gpu(&tornado.other)));
    assert!(own.low.margin > own.high.margin && other.low.margin < other.high.margin, "{own:?} {other:?}");
    let item = &sweep.candidates.iter().find(|one| one.name() == tornado.machine).unwrap().price.items;
    let price = item.iter().find(|(item, _)| own.input.ends_with(&item.name)).unwrap().1;
    assert!((own.low.value - price.low).abs() < 1e-9 && (own.high.value - price.high).abs() < 1e-9);
}

#[test]
fn threads_change_nothing() {
    let job = job("[limits]\ndeadline = \"30 d\"\n");
    let sweep = machines(&job, 7);
    let question =
        Question { job: &job, sweep: &sweep, objective: Objective::Cost, rows: 5, shard: Shard::WHOLE, bounds: true };
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let run = pool.install(|| run(&question, &Formula { seed: 7 }, Plans::new()).unwrap());
        (run.counts, ranked((&job, &sweep), &run, (Objective::Cost, 5)))
    };
    assert_eq!(with(1), with(4));
}

#[test]
fn parts_of_another_sweep_are_refused() {
    let job = job("");
    let setup = Setup {
        job: job.file.clone(),
        catalogues: vec![],
        objective: Objective::Cost,
        rows: 20,
        as_of: day(),
        own: vec![],
    };
    let part = |part, of| {
        (format!("p{part}"), State::new(setup.clone(), Shard { part, of }, Default::default(), Plans::new()))
    };
    let said = |parts: Vec<(String, State)>| merge(parts).unwrap_err().to_string();
    assert_eq!(said(vec![part(1, 3), part(3, 3)]), "the parts 2 are missing");
    assert_eq!(said(vec![part(1, 2), part(1, 2)]), "part 1 is there twice");
    assert_eq!(said(vec![part(1, 2), part(2, 3)]), "`p2` is one of 3 parts, the first file is one of 2");
    let mut other = part(2, 2);
    other.1.setup.rows = 5;
    assert_eq!(said(vec![part(1, 2), other]), "`p2` is a part of another job");
    let mut stopped = part(2, 2);
    stopped.1.counts.left = 3;
    assert_eq!(said(vec![part(1, 2), stopped]), "`p2` was stopped with 3 machines left");
    assert_eq!(said(vec![]), "there is no part to merge");
    let state = part(1, 1).1;
    let json = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state);
    assert_eq!(state.check(), Ok(()));
    let old = State { format_version: 1, ..state }.check().unwrap_err();
    assert_eq!(old.to_string(), "its plans have format version 1, and version 3 is read");
}

#[test]
fn bad_jobs_are_refused() {
    let said = |text: &str| {
        let head = "format-version = 1\n";
        let read = JobFile::from_toml("job.toml", &format!("{head}{text}"));
        read.and_then(JobFile::check).map(|_| String::new()).unwrap_or_else(|faults| faults.to_string())
    };
    let train = "[[train]]\nmodel = \"llama3-8b\"\ntokens = \"1 G\"\n";
    assert_eq!(said(train), "");
    for (text, wanted) in [
        ("", "the job trains nothing"),
        ("[[train]]\nmodel = \"x\"\ntokens = \"some\"\n", "not a number of tokens"),
        ("[[train]]\nmodel = \"x\"\ntokens = \"1 G\"\nglobal-batch = 0\n", "empty batch"),
        (&format!("{train}[limits]\nbudget = \"12000\"\n"), "not an amount of money"),
        (&format!("{train}[limits]\nbudget = \"12000 EUR\"\n[cost]\ncurrency = \"USD\"\n"), "no rate from EUR to USD"),
        (&format!("{train}[cost]\nuse = 0.0\n"), "the use is out of range"),
        (&format!("{train}[cost]\nresidual = {{ low = 0.5, typical = 0.3, high = 0.1 }}\n"), "the residual value"),
        (&format!("{train}[vary]\ngpu = []\n"), "varies over nothing"),
        (&format!("{train}[vary]\ngpu = [\"l4\"]\ngpus = [0]\n"), "their number is 0"),
        (&format!("{train}[vary]\nbridge = [true]\ngpus = [1]\n"), "there is one card"),
        (&format!("{train}[vary]\nnodes = []\n"), "`nodes` varies over nothing"),
        (&format!("{train}[vary]\nnodes = [1, 0]\n"), "a machine of 0 nodes"),
        (&format!("{train}[vary]\nnodes = [5000]\n"), "a machine of 5000 nodes"),
        (&format!("{train}[vary]\nnetwork = [\"connectx7-400g\"]\nnodes = [1]\n"), "there is one node"),
        (&format!("{train}[vary]\nnetwork = [\"connectx7-400g\"]\n"), "there is one node"),
        (&format!("{train}[skip]\nrules = [\"colour = red\"]\n"), "is not a condition"),
        (&format!("{train}speed = 3\n"), "unknown field"),
    ] {
        assert!(said(text).contains(wanted), "{text}: {}", said(text));
    }
}

#[test]
fn skipped_combinations_say_why() {
    let job = job(
        "[limits]\nbudget = \"9000 USD\"\n[vary]\ngpu = [\"rtx3090\", \"h100-sxm\"]\ngpus = [1, 4]\nplatform = [\"ryzen-9950x\", \"epyc-7713p\"]\n\
         dram = [\"64 GiB\"]\ncondition = [\"used\"]\n[skip]\nrules = [\"gpus = 1 and platform = ryzen-9950x\"]\n",
    );
    let sweep = sweep(&Catalogue::shipped().unwrap(), &job, day()).unwrap();
    let names: Vec<String> = sweep.candidates.iter().map(|one| one.machine.name.clone()).collect();
    assert_eq!(names, ["1xrtx3090_epyc-7713p_8xddr4-rdimm-16g", "4xrtx3090_epyc-7713p_8xddr4-rdimm-16g"]);
    let rules: Vec<(&str, usize)> = sweep.skipped.iter().map(|one| (one.rule.as_str(), one.count)).collect();
    assert!(rules.contains(&("skip", 2)), "{rules:?}");
    assert!(rules.iter().any(|(rule, _)| *rule == "mounting" || *rule == "socket"), "{rules:?}");
    let unknown = job_of_unknown();
    let said = spipe_whatif::sweep(&Catalogue::shipped().unwrap(), &unknown, day()).unwrap_err().to_string();
    assert!(said.contains("no gpu `rtx309`") && said.contains("did you mean `rtx3090`"), "{said}");
}

const ON_NODES: &str = "[vary]\ngpu = [\"rtx3090\"]\ngpus = [2]\nplatform = [\"epyc-7713p\"]\ndram = [\"128 GiB\"]\ncondition = [\"new\"]\n";

#[test]
fn nodes_vary_with_the_network_that_joins_them() {
    let catalogue = Catalogue::shipped().unwrap();
    let found = |text: &str| sweep(&catalogue, &job(&format!("{ON_NODES}{text}")), day()).unwrap();
    let names = |sweep: &Sweep| sweep.candidates.iter().map(|one| one.machine.name.clone()).collect::<Vec<_>>();
    let all = found("nodes = [1, 2, 4]\n");
    let one = "2xrtx3090_epyc-7713p_8xddr4-rdimm-16g";
    let of = |nodes: u32| format!("{nodes}-nodes-of-{one}_2xconnectx6dx-100g");
    assert_eq!(names(&all), [one.to_owned(), of(2), of(4)]);
    let keys: Vec<&str> = all.candidates.iter().map(|one| one.key.as_str()).collect();
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && !keys[1].contains("data sheet"), "{}", keys[1]);
    // Two cards of 850 and a supply that costs 100 more for each node, a switch of 13,000, a cable of 200 for each card.
    let typical = |index: usize| all.candidates[index].price.range.typical;
    assert!(
        (typical(2) - (4.0 * (typical(0) + 100.0) + 8.0 * (850.0 + 200.0) + 13_000.0)).abs() < 1e-6,
        "{}",
        typical(2)
    );
    assert_eq!(spipe_whatif::neighbours(&all, 1), [0, 2], "the number of nodes is one change");
    let change = |from: usize, to: usize| spipe_whatif::change_of(&all.candidates[from], &all.candidates[to]);
    assert_eq!(change(0, 2).as_deref(), Some("1 → 4 nodes"));
    // One node has no network, whatever the card.
    let cards = found("nodes = [1, 2]\nnetwork = [\"connectx6dx-100g\", \"connectx6-200g\"]\n");
    assert_eq!(names(&cards), [one.to_owned(), of(2), of(2).replace("6dx-100g", "6-200g")]);
    let change = spipe_whatif::change_of(&cards.candidates[1], &cards.candidates[2]);
    assert_eq!(change.as_deref(), Some("connectx6dx-100g → connectx6-200g in each node"));
    // Rules and budgets count them.
    let skipped =
        found("nodes = [1, 2, 4]\n[skip]\nrules = [\"nodes = 4 and gpus = 2\", \"network = connectx7-400g\"]\n");
    assert_eq!(names(&skipped), [one.to_owned(), of(2)]);
    assert_eq!((skipped.skipped[0].rule.as_str(), skipped.skipped[0].count), ("skip", 1));
    let cheap = found("nodes = [1, 2]\n[limits]\nbudget = \"20000 USD\"\n");
    assert_eq!((names(&cheap), cheap.skipped[0].rule.as_str()), (vec![one.to_owned()], "budget"));
}

#[test]
fn nodes_need_a_network_card_of_the_catalogue() {
    let mut catalogue = Catalogue::shipped().unwrap();
    let said = |catalogue: &Catalogue, text: &str| {
        let job = job(&format!("{ON_NODES}{text}"));
        sweep(catalogue, &job, day()).map(|_| String::new()).unwrap_or_else(|faults| faults.to_string())
    };
    let unknown = said(&catalogue, "nodes = [2]\nnetwork = [\"connectx7-400\"]\n");
    assert!(unknown.contains("no network-card `connectx7-400`") && unknown.contains("`connectx7-400g`"), "{unknown}");
    catalogue.network_cards.clear();
    let none = said(&catalogue, "nodes = [1, 2]\n");
    assert!(none.contains("several nodes need a network") && none.contains("[[network-card]]"), "{none}");
    assert_eq!(said(&catalogue, "nodes = [1]\n"), "");
}

#[test]
fn nodes_are_set_with_the_other_keys() {
    let (mut file, mut given) = (JobFile::empty(), Vec::new());
    file.vary("nodes=1,2,4", &mut given).unwrap();
    file.vary("network=connectx7-400g", &mut given).unwrap();
    assert_eq!(file.vary.nodes, Some(vec![1, 2, 4]));
    let fault = file.vary("nodes=two", &mut Vec::new()).unwrap_err();
    assert_eq!(fault.message, "`two` is not a number");
}

fn job_of_unknown() -> Job {
    job("[vary]\ngpu = [\"rtx309\"]\n")
}
