//! The choice of a mesh: of measured runs of one model, batch and number of GPUs, the one that is predicted to be fastest.
//!
//! ```text
//! model × tokens × batch × GPUs ─► meshes with microbatch: measured, predicted ─► excess = measured(least predicted) ÷ least measured − 1
//! ```

use super::Made;
use spipe_base::{Seconds, readable::percent};
use spipe_fit::{Run, Work};
use std::collections::BTreeMap;

/// The properties that runs share whose meshes alone differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// The model.
    pub model: String,
    /// Tokens per sequence.
    pub seq_len: u64,
    /// GPUs.
    pub gpus: u64,
    /// Sequences per iteration.
    pub global_batch: u64,
}

/// The degrees of a mesh, and the sequences of a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tried {
    /// GPUs that share each layer.
    pub tensor: u64,
    /// Stages.
    pub pipeline: u64,
    /// Replicas.
    pub data: u64,
    /// Sequences of a microbatch.
    pub microbatch: u64,
}

impl std::fmt::Display for Tried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tensor, pipeline, data, microbatch } = self;
        write!(f, "tp {tensor}, pp {pipeline}, dp {data}, microbatch {microbatch}")
    }
}

/// Returns the case of a run, and its mesh; none for runs whose replicas hold different parameters.
pub fn tried(run: &Run) -> Option<(Case, Tried)> {
    match &run.work {
        Work::Planned(plan) if plan.placement().shards_parameters() => None,
        Work::Planned(plan) => {
            let context = plan.context();
            let (mesh, workload) = (context.mesh(), context.cost.whole_workload());
            let stages = if mesh.replicas.is_empty() { plan.devices().len() } else { mesh.leads().count() };
            let tried = Tried {
                tensor: mesh.members(),
                pipeline: stages as u64,
                data: mesh.data(),
                microbatch: workload.microbatch,
            };
            Some((case(context.model.name(), &workload, tried), tried))
        }
        Work::TensorData(work) => {
            let (tensor, data) = (work.spread.tensor, work.spread.data);
            let tried = Tried { tensor, pipeline: 1, data, microbatch: work.workload.microbatch };
            Some((case(work.model.name(), &work.workload, tried), tried))
        }
    }
}

fn case(model: &str, workload: &spipe_cost::Workload, tried: Tried) -> Case {
    Case {
        model: model.into(),
        seq_len: workload.seq_len,
        gpus: tried.tensor * tried.pipeline * tried.data,
        global_batch: workload.global_batch(),
    }
}

/// A case with at least two measured meshes.
pub struct Choice {
    /// The case.
    pub case: Case,
    /// The measured meshes with their microbatches.
    pub count: usize,
    /// The one that is predicted to be fastest, with its measured time.
    pub chosen: (Tried, Seconds),
    /// The fastest one.
    pub best: (Tried, Seconds),
}

impl Choice {
    /// Returns by how much the chosen one takes longer than the fastest, as a fraction.
    pub fn excess(&self) -> f64 {
        self.chosen.1.get() / self.best.1.get() - 1.0
    }
}

/// Returns the choices among the runs of some groups, without fitted constants, in the order of their cases. Runs that do
/// not count are left out; measured times of equal meshes are averaged.
pub fn choices<'a>(groups: impl Iterator<Item = &'a Made>) -> Vec<Choice> {
    let mut cases: BTreeMap<&Case, BTreeMap<Tried, Vec<[f64; 2]>>> = BTreeMap::new();
    for made in groups {
        for (run, tried) in made.shipped.iter().zip(&made.tried) {
            let (Some((case, tried)), Some(measured), None) = (tried, run.measured, &run.not_counted) else { continue };
            let times = [run.predicted.get(), measured.get()];
            cases.entry(case).or_default().entry(*tried).or_default().push(times);
        }
    }
    cases.into_iter().filter_map(|(case, all)| choice(case, &all)).collect()
}

fn choice(case: &Case, all: &BTreeMap<Tried, Vec<[f64; 2]>>) -> Option<Choice> {
    let mut meshes: Vec<[u64; 3]> = all.keys().map(|tried| [tried.tensor, tried.pipeline, tried.data]).collect();
    meshes.dedup();
    if meshes.len() < 2 {
        return None;
    }
    let mean = |times: &[[f64; 2]], at: usize| times.iter().map(|pair| pair[at]).sum::<f64>() / times.len() as f64;
    let least = |at: usize| {
        let by = all.iter().min_by(|one, other| mean(one.1, at).total_cmp(&mean(other.1, at)));
        by.map(|(tried, times)| (*tried, Seconds::s(mean(times, 1))))
    };
    Some(Choice { case: case.clone(), count: all.len(), chosen: least(0)?, best: least(1)? })
}

/// The excesses of choices, as fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excess {
    /// Their number.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// That of nine in ten at most.
    pub nine_tenths: f64,
    /// The largest.
    pub largest: f64,
}

impl Excess {
    /// Returns the excesses of `choices`; none without any.
    pub fn of(choices: &[Choice]) -> Option<Self> {
        let mut all: Vec<f64> = choices.iter().map(Choice::excess).collect();
        all.sort_by(f64::total_cmp);
        let largest = *all.last()?;
        let nine_tenths = all[(all.len() * 9).div_ceil(10) - 1];
        Some(Self { count: all.len(), mean: all.iter().sum::<f64>() / all.len() as f64, nine_tenths, largest })
    }
}

/// The groups that choices are shown for: a name, and the groups of runs.
pub const SHOWN: &[(&str, &[&str])] = &[
    ("one node of A100", &["megatron-pipeline", "megatron-tensor-data", "megatron-mixed"]),
    ("64 to 512 A100", &["megatron-clusters"]),
    ("384 A100", &["bigscience"]),
];

/// Returns the section of the page.
pub fn section(groups: &[Made]) -> String {
    let mut text = String::from(HEAD);
    let mut tables = String::new();
    for (name, members) in SHOWN {
        let choices = choices(groups.iter().filter(|made| members.contains(&made.name)));
        let Some(excess) = Excess::of(&choices) else { continue };
        let [mean, nine_tenths, largest] = [excess.mean, excess.nine_tenths, excess.largest].map(percent);
        text += &format!("| {name} | {} | {mean} | {nine_tenths} | {largest} |\n", excess.count);
        tables += &format!(
            "\n{name}:\n\n| model, tokens | GPUs | batch | meshes | chosen | best | excess |\n|---|---:|---:|---:|---|---|---:|\n"
        );
        for choice in &choices {
            let Case { model, seq_len, gpus, global_batch } = &choice.case;
            let [chosen, best] =
                [choice.chosen, choice.best].map(|(tried, time)| format!("{tried}: {:.1} ms", time.to_ms()));
            let excess = percent(choice.excess());
            tables += &format!(
                "| {model}, {seq_len} | {gpus} | {global_batch} | {} | {chosen} | {best} | {excess} |\n",
                choice.count
            );
        }
    }
    text + &tables
}

/// The beginning of the section.
const HEAD: &str = "\n<a id=\"choice\"></a>\n## Choice of a mesh\n\nOf the measured meshes and microbatches of one model, batch and number of GPUs, the one that is \
                    predicted to be fastest without a fit. The excess is its measured time over that of the best, less one.\n\n\
                    | runs | cases | mean excess | nine of ten at most | largest |\n|---|---:|---:|---:|---:|\n";

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: fn() -> Case = || Case { model: "gpt2".into(), seq_len: 1024, gpus: 8, global_batch: 16 };

    fn tried(tensor: u64, microbatch: u64) -> Tried {
        Tried { tensor, pipeline: 1, data: 8 / tensor, microbatch }
    }

    #[test]
    fn the_chosen_mesh_is_predicted_to_be_fastest_and_judged_by_its_measured_time() {
        // Predicted and measured; the second mesh was measured twice.
        let all = [
            (tried(1, 2), vec![[9.0, 11.0]]),
            (tried(2, 2), vec![[10.0, 9.0], [10.0, 11.0]]),
            (tried(2, 1), vec![[11.0, 30.0]]),
        ];
        let found = choice(&CASE(), &all.into()).unwrap();
        assert_eq!((found.chosen.0, found.best.0, found.count), (tried(1, 2), tried(2, 2), 3));
        assert!((found.excess() - 0.1).abs() < 1e-12);
        let excess = Excess::of(&[found]).unwrap();
        assert_eq!((excess.count, excess.mean, excess.nine_tenths), (1, excess.largest, excess.largest));
    }

    #[test]
    fn microbatches_of_one_mesh_are_no_choice() {
        let all = [(tried(1, 1), vec![[1.0, 1.0]]), (tried(1, 2), vec![[2.0, 2.0]])];
        assert!(choice(&CASE(), &all.into()).is_none());
    }
}
