//! Meshes in plan files.

use crate::{Knob, Placement};
use serde::{Deserialize, Serialize};
use spipe_base::{DeviceId, NodeId};
use spipe_cost::{Mesh, Sharding, Team};
use spipe_hardware::Hardware;
use std::collections::BTreeSet;

/// A mesh in plan files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MeshFile {
    /// The devices of each replica: `gpu0`, or teams such as `gpu0+gpu1 gpu2+gpu3`; by default one replica, or as many
    /// as the machine has GPUs if parameters are sharded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<String>,
    /// The state that is divided among the replicas: `none`, `optimizer`, `gradients` or `parameters`. Older files have a
    /// table.
    #[serde(default)]
    pub sharding: ShardingFile,
    /// The gathered stages of a replica with sharded parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<u64>,
    /// The replicas of a group that has one copy of sharded parameters; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_group: Option<u64>,
    /// Whether the members of a team divide activations by tokens, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sequence: bool,
    /// The members of a team that divide the tokens of each sequence, each with those that share its matrices.
    #[serde(default = "one")]
    pub context: u64,
    /// The devices with the same part of the same stages that divide the experts of each layer.
    #[serde(default = "one")]
    pub expert: u64,
    /// The number of replicas. For information only, like the three that follow: they follow from replicas and stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<u64>,
    /// The devices of a team that share matrices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<u64>,
    /// The teams of a replica that have stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<u64>,
    /// The computers whose devices compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
}

/// The state that is divided among replicas, in plan files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum ShardingFile {
    /// Its name.
    Named(ShardingName),
    /// A table, as in older files.
    Table(Sharding),
}

/// The state that is divided among replicas, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShardingName {
    /// Nothing.
    #[default]
    None,
    /// The optimizer's state and its steps.
    Optimizer,
    /// Gradients and the optimizer's state: parameters are gathered once in an iteration.
    Gradients,
    /// Parameters, gradients and optimizer state.
    Parameters,
}

/// A degree of parallelism that is left out.
const fn one() -> u64 {
    1
}

impl Default for ShardingFile {
    fn default() -> Self {
        Self::Named(ShardingName::None)
    }
}

impl MeshFile {
    /// The mesh of `placement` under the names of `hardware`.
    pub(crate) fn of(placement: &Placement, hardware: &Hardware) -> Self {
        let mesh = &placement.mesh;
        let name = |device: &DeviceId| hardware.devices()[*device].name.as_str();
        let team = |team: &Team| team.iter().map(name).collect::<Vec<_>>().join("+");
        let teams = |teams: &Vec<Team>| teams.iter().map(team).collect::<Vec<_>>().join(" ");
        let replicas = mesh.replicas.iter().map(teams).collect();
        let stages = placement.devices();
        let computing = stages.iter().copied().chain(mesh.devices());
        let nodes: BTreeSet<NodeId> = computing.map(|device| hardware.devices()[device].node).collect();
        let (name, resident, shard_group) = match mesh.sharding {
            Sharding::None => (ShardingName::None, None, None),
            Sharding::Optimizer => (ShardingName::Optimizer, None, None),
            Sharding::Parameters { resident, group } if placement.gathers_once() => {
                (ShardingName::Gradients, resident, group)
            }
            Sharding::Parameters { resident, group } => (ShardingName::Parameters, resident, group),
        };
        Self {
            replicas,
            sharding: ShardingFile::Named(name),
            resident,
            shard_group,
            sequence: mesh.sequence,
            context: mesh.context,
            expert: mesh.expert,
            data: Some(mesh.data()),
            tensor: Some(mesh.tensor()),
            pipeline: Some(stages.len() as u64),
            nodes: Some(nodes.len() as u64),
        }
    }

    /// The mesh on `hardware`; otherwise the name that no device has.
    pub(crate) fn resolve(&self, hardware: &Hardware) -> Result<Mesh, String> {
        let device = |name: &str| hardware.device(name).ok_or_else(|| name.to_owned());
        let team = |names: &str| names.split('+').map(device).collect::<Result<Team, _>>();
        let teams = |teams: &String| teams.split_whitespace().map(team).collect::<Result<Vec<_>, _>>();
        let replicas = self.replicas.iter().map(teams).collect::<Result<_, _>>()?;
        let group = self.shard_group;
        let sharding = match self.sharding {
            ShardingFile::Named(ShardingName::None) => Sharding::None,
            ShardingFile::Named(ShardingName::Optimizer) => Sharding::Optimizer,
            ShardingFile::Named(ShardingName::Gradients) => {
                Sharding::Parameters { resident: self.resident.or(Some(Knob::LARGEST)), group }
            }
            ShardingFile::Named(ShardingName::Parameters) => Sharding::Parameters { resident: self.resident, group },
            ShardingFile::Table(sharding) => sharding,
        };
        Ok(Mesh { replicas, sharding, sequence: self.sequence, context: self.context, expert: self.expert })
    }
}
