//! The processes of a mesh: pipeline × replica × tensor.
//!
//! ```text
//! ranks[row][replica][member]     row 0: [[0, 1], [4, 5]]      replicas 0 and 1, teams of two
//!                                 row 1: [[2, 3], [6, 7]]
//! ```
//!
//! Process groups of PyTorch have their processes in ascending order, whatever order a `DeviceMesh` has. Along each axis
//! the numbers of the processes therefore ascend.

use crate::{Modules, ranks::by_node};
use serde::Serialize;
use spipe_base::{DeviceId, Diagnostic, Faults};
use spipe_cost::Optimizer;
use spipe_model::{Architecture, Block, Norm, Transformer};
use spipe_plan::{Plan, Sharding, Team};

/// The places of the processes in a mesh, as the scripts read them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Places {
    /// Whether members of a team divide activations by tokens, too.
    sequence: bool,
    /// Whether each replica has a part of the optimizer's state.
    divides_optimizer: bool,
    /// The processes, by row, replica and member.
    ranks: Vec<Vec<Vec<usize>>>,
}

impl Places {
    /// The processes of a row, by replica and member.
    pub fn of_row(&self, row: usize) -> Vec<usize> {
        self.ranks[row].iter().flatten().copied().collect()
    }

    /// The mesh as a paragraph of Markdown.
    pub fn words(&self) -> String {
        let [rows, replicas, members] = [self.ranks.len(), self.ranks[0].len(), self.ranks[0][0].len()];
        let mut words = format!("The mesh is pipeline {rows} × replica {replicas} × tensor {members}");
        if self.sequence && members > 1 {
            words += ", with activations divided by tokens";
        }
        if self.divides_optimizer && replicas > 1 {
            words += ", and the optimizer's state divided among replicas (ZeRO 1)";
        }
        words + ".\n"
    }
}

/// The device of each process, and the places of all where a row has several.
///
/// # Errors
/// Numbers that do not ascend along an axis, because replicas use computers in different orders.
pub fn processes(plan: &Plan, rows: &[DeviceId]) -> Result<(Vec<DeviceId>, Option<Places>), Diagnostic> {
    let context = plan.context();
    let mesh = context.mesh();
    if mesh.is_single() {
        return Ok((rows.to_vec(), None));
    }
    let node = |device: DeviceId| context.hardware.devices()[device].node;
    let teams = |row: &DeviceId| -> Vec<Team> {
        mesh.peers(*row).map(|team| by_node(context.hardware, team.clone())).collect()
    };
    let mut grid: Vec<Vec<Team>> = rows.iter().map(teams).collect();
    let mut replicas: Vec<usize> = (0..mesh.data() as usize).collect();
    replicas.sort_by_key(|replica| node(grid[0][*replica][0]));
    for row in &mut grid {
        *row = replicas.iter().map(|replica| row[*replica].clone()).collect();
    }
    let devices = by_node(context.hardware, grid.iter().flatten().flatten().copied().collect());
    let rank = |device: &DeviceId| devices.iter().position(|other| other == device).unwrap_or_default();
    let ranks: Vec<Vec<Vec<usize>>> =
        grid.iter().map(|row| row.iter().map(|team| team.iter().map(rank).collect()).collect()).collect();
    if !ascends(&ranks) {
        let message =
            "replicas use the computers in different orders, and PyTorch's groups have one order of processes";
        return Err(Diagnostic::error(message).hint("give the teams of each replica in the order of the computers"));
    }
    let divides_optimizer = mesh.sharding == Sharding::Optimizer;
    Ok((devices, Some(Places { sequence: mesh.sequence, divides_optimizer, ranks })))
}

/// Whether numbers ascend along each of three axes.
fn ascends(ranks: &[Vec<Vec<usize>>]) -> bool {
    let along_rows = ranks.windows(2).all(|pair| {
        let both = pair[0].iter().flatten().zip(pair[1].iter().flatten());
        both.into_iter().all(|(one, next)| one < next)
    });
    let along_replicas = ranks.iter().flat_map(|row| row.windows(2)).all(|pair| {
        let both = pair[0].iter().zip(&pair[1]);
        both.into_iter().all(|(one, next)| one < next)
    });
    along_rows && along_replicas && ranks.iter().flatten().all(|team| team.is_sorted())
}

/// Refuses what the scripts cannot do on a mesh.
///
/// # Errors
/// One fault for each reason, with the nearest plan that can be exported.
pub fn check(plan: &Plan, modules: Modules) -> Result<(), Faults> {
    let (context, placement) = (plan.context(), plan.placement());
    let mesh = context.mesh();
    let mut faults = Faults::new();
    if mesh.is_single() {
        return Ok(());
    }
    let mut refuse = |reason: &str, nearest: &str| {
        let message = format!("this plan of `{}` cannot be exported with its mesh: {reason}", placement.name());
        faults.push(Diagnostic::error(message).hint(nearest));
    };
    let workload = context.workload();
    if !matches!(workload.optimizer, Optimizer::Adamw | Optimizer::Sgd | Optimizer::Lion) {
        refuse(
            &format!("a step of `{}` wants whole matrices, and a process has parts of them", workload.optimizer),
            "plan with `option optimizer adamw`, `lion` or `sgd`",
        );
    }
    if placement.stages.iter().any(|stage| context.steps(stage) != stage.lead()) {
        refuse("a stage steps on a host", "nearest: `option system 1f1b` with `option sharding optimizer`");
    }
    let devices = context.hardware.devices();
    if mesh.devices().any(|device| devices[device].is_gpu() != devices[mesh.replicas[0][0][0]].is_gpu()) {
        refuse("some of its devices are GPUs, and others CPU sockets", "plan with `option devices` of GPUs alone");
    }
    if mesh.tensor() > 1 {
        if modules == Modules::Transformers {
            refuse(
                "teams divide layers by the names of the folder's own modules",
                "leave `option modules` out, or plan with `option tensor-parallel 1`",
            );
        }
        if let Architecture::Transformer(transformer) = context.model.architecture()
            && let Some(reason) = indivisible(transformer, mesh.tensor(), (mesh.sequence, workload.seq_len))
        {
            refuse(&reason, "plan with another `option tensor-parallel`, or use `command export megatron`");
        }
    }
    faults.or(())
}

/// The first reason why members of a team cannot have equal parts of each layer and, with `sequence`, of its tokens.
fn indivisible(model: &Transformer, tensor: u64, (sequence, tokens): (bool, u64)) -> Option<String> {
    let block = &model.block;
    if matches!(block.norm, Norm::LayerNorm) {
        return Some("one matrix of GPT-2 has queries, keys and values side by side".into());
    }
    let tokens = if sequence { tokens } else { 0 };
    unequal(block, tensor, [("entries of the vocabulary", model.vocabulary), ("tokens of a sequence", tokens)])
}

/// The first size of a block, or of `more` by name, that `tensor` members of a team cannot share equally.
pub fn unequal(block: &Block, tensor: u64, more: impl IntoIterator<Item = (&'static str, u64)>) -> Option<String> {
    let own =
        [("heads", block.heads), ("heads of keys and values", block.kv_heads), ("inner channels", block.intermediate)];
    let (what, size) = own.into_iter().chain(more).find(|(_, size)| !size.is_multiple_of(tensor))?;
    Some(format!("{tensor} members of a team cannot share {size} {what} equally"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_along_each_axis() {
        assert!(ascends(&[vec![vec![0, 1], vec![4, 5]], vec![vec![2, 3], vec![6, 7]]]));
        assert!(!ascends(&[vec![vec![0, 1], vec![6, 7]], vec![vec![2, 3], vec![4, 5]]]), "rows of the second replica");
        assert!(!ascends(&[vec![vec![4], vec![0]]]), "replicas");
        assert!(!ascends(&[vec![vec![1, 0]]]), "members");
    }

    #[test]
    fn a_paragraph_says_the_mesh() {
        let places = Places { sequence: true, divides_optimizer: true, ranks: vec![vec![vec![0, 1], vec![2, 3]]] };
        let words = "The mesh is pipeline 1 × replica 2 × tensor 2, with activations divided by tokens, and the optimizer's \
                     state divided among replicas (ZeRO 1).\n";
        assert_eq!(places.words(), words);
        assert_eq!(places.of_row(0), [0, 1, 2, 3]);
    }
}
