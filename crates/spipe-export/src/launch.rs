//! The commands that start the processes of an export: on one computer, on several, and under Slurm.

use crate::{Modules, folder::filled, ranks::Rank};
use std::collections::BTreeMap;

/// Steps of the commands where the export has no tokens.
const STEPS: u32 = 100;
/// The files of whole checkpoints, of the scripts with checkpoints of our own.
pub const MANIFESTS: &str = "step-*/manifest.json";

/// The parts of a folder beside the scripts of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The steps whose tokens are in the folder, if they are.
    pub steps: Option<u32>,
    /// The classes of the layers.
    pub modules: Modules,
}

/// The processes of each computer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The ranks of each computer, in the order of the ranks.
    counts: Vec<usize>,
    /// The GPUs that the computer with the most of them needs.
    gpus: usize,
    beside: Beside,
    /// The drives for which the script wants folders.
    drives: Vec<String>,
}

impl Launch {
    /// The launch of `ranks`, which are neighbours where they are of one computer.
    pub fn of(ranks: &[Rank], beside: Beside) -> Self {
        let (mut counts, mut gpus) = (BTreeMap::new(), BTreeMap::new());
        for rank in ranks {
            *counts.entry(rank.node).or_default() += 1;
            *gpus.entry(rank.node).or_default() += usize::from(rank.is_gpu());
        }
        Self {
            counts: counts.into_values().collect(),
            gpus: gpus.into_values().max().unwrap_or_default(),
            beside,
            drives: Vec::new(),
        }
    }

    /// The same with drives.
    #[must_use]
    pub fn with_drives(self, drives: Vec<String>) -> Self {
        Self { drives, ..self }
    }

    /// The script with its data and steps.
    fn script(&self) -> String {
        let data = if self.beside.steps.is_some() { "" } else { " --data text.txt" };
        let drive = |name: &String| format!(" --drive {name}=/mnt/{name}");
        let drives: String = self.drives.iter().map(drive).collect();
        format!("train.py{data} --steps {}{drives}", self.beside.steps.unwrap_or(STEPS))
    }

    /// The commands for one computer or each of several, as Markdown.
    pub fn commands(&self) -> String {
        let script = self.script();
        let block = |lines: &str| format!("```sh\n{lines}```\n");
        if let [count] = self.counts[..] {
            return "One machine:\n\n".to_owned()
                + &block(&format!("torchrun --standalone --nproc-per-node {count} {script}\n"));
        }
        let nodes = self.counts.len();
        let line = |node: &str, count: usize| {
            format!(
                "torchrun --nnodes {nodes} --node-rank {node} --nproc-per-node {count} --master-addr FIRST \
                 --master-port 29500 {script}\n"
            )
        };
        let equal = self.counts.windows(2).all(|pair| pair[0] == pair[1]);
        let (how, lines) = if equal {
            ("on each, with its own number `$NODE` from 0 on", line("$NODE", self.counts[0]))
        } else {
            let each = self.counts.iter().enumerate().map(|(node, count)| line(&node.to_string(), *count));
            ("one line on each, in this order", each.collect())
        };
        format!("{nodes} machines: {how}; `FIRST` is the name of the first.\n\n{}", block(&lines))
    }

    /// The command that traces a step on one computer.
    pub fn traced(&self) -> String {
        let count: usize = self.counts.iter().sum();
        format!("torchrun --standalone --nproc-per-node {count} {} --trace trace", self.script())
    }

    /// The batch script of Slurm. `whole` is the pattern of the file that a whole checkpoint has.
    pub fn sbatch(&self, name: &str, whole: &str) -> String {
        let counts: Vec<String> = self.counts.iter().map(usize::to_string).collect();
        let gpus = if self.gpus > 0 { format!("#SBATCH --gpus-per-node={}\n", self.gpus) } else { String::new() };
        let plain = |letter: char| if letter.is_ascii_alphanumeric() || "-._".contains(letter) { letter } else { '-' };
        let name: String = name.chars().map(plain).collect();
        filled(
            include_str!("../templates/common/train.sbatch"),
            &[
                ("name", name),
                ("nodes", self.counts.len().to_string()),
                ("gpus", gpus),
                ("counts", counts.join(" ")),
                ("whole", whole.into()),
                ("script", self.script()),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(counts: &[usize], steps: Option<u32>) -> Launch {
        let beside = Beside { steps, ..Beside::default() };
        Launch { counts: counts.to_vec(), gpus: 4, beside, drives: Vec::new() }
    }

    #[test]
    fn commands_follow_the_computers() {
        let one = launch(&[5], Some(7)).commands();
        assert!(one.contains("torchrun --standalone --nproc-per-node 5 train.py --steps 7\n"), "{one}");
        let drive = launch(&[1], None).with_drives(vec!["nvme0".into()]).commands();
        assert!(drive.contains(" train.py --data text.txt --steps 100 --drive nvme0=/mnt/nvme0\n"), "{drive}");
        let equal = launch(&[8, 8], None).commands();
        let line = "torchrun --nnodes 2 --node-rank $NODE --nproc-per-node 8 --master-addr FIRST --master-port 29500 \
                    train.py --data text.txt --steps 100\n";
        assert!(equal.contains(line), "{equal}");
        let uneven = launch(&[5, 4], None).commands();
        for line in ["--node-rank 0 --nproc-per-node 5 ", "--node-rank 1 --nproc-per-node 4 "] {
            assert!(uneven.contains(line), "{uneven}");
        }
    }

    #[test]
    fn batch_scripts_ask_for_the_computers() {
        let text = launch(&[5, 4], Some(7)).sbatch("a model", "step-*/manifest.json");
        for line in
            ["#SBATCH --job-name=a-model\n", "#SBATCH --nodes=2\n", "#SBATCH --gpus-per-node=4\n", "COUNTS=\"5 4\"\n"]
        {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("{{"), "{text}");
    }
}
