//! Meshes: the replicas of a model, and what is divided among them.

use serde::{Deserialize, Serialize};
use spipe_base::DeviceId;
use spipe_hardware::Hardware;

/// The fewest gathered stages of a replica with sharded parameters: one that computes, and one that is
/// being gathered.
pub const FEWEST_RESIDENT: u64 = 2;

/// Devices that run a stage together, the lead first. Plans have teams of one device so far.
///
/// A stage names the team of the first replica by its lead ([`spipe_base::TeamId`]), so a stage on a team of
/// one device needs no mesh. The teams at the same place of the other replicas run the same stage.
pub type Team = Vec<DeviceId>;

/// The replicas of a model, and what is divided among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// By replica, its teams. Stages name the teams of the first replica. Empty for one replica on the devices of
    /// the stages.
    pub replicas: Vec<Vec<Team>>,
    /// The state that is divided among the replicas.
    pub sharding: Sharding,
}

/// The state that is divided among replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum Sharding {
    /// Nothing.
    #[default]
    None,
    /// Parameters, gradients and optimizer state: a replica gathers the parameters of a stage before it uses them.
    Parameters {
        /// The gathered stages of a replica, those used last and those being gathered: at least 2, 2 by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resident: Option<u64>,
    },
}

/// A mesh in plan files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MeshFile {
    /// The devices of each replica: `gpu0`, or teams such as `gpu0+gpu1 gpu2+gpu3`; by default one replica, or as many
    /// as the machine has GPUs if parameters are sharded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<String>,
    /// The state that is divided among the replicas.
    #[serde(default)]
    pub sharding: Sharding,
}

impl MeshFile {
    /// `mesh` under the names of `hardware`; none for one replica.
    pub(crate) fn of(mesh: &Mesh, hardware: &Hardware) -> Option<Self> {
        let name = |device: &DeviceId| hardware.devices()[*device].name.as_str();
        let team = |team: &Team| team.iter().map(name).collect::<Vec<_>>().join("+");
        let teams = |teams: &Vec<Team>| teams.iter().map(team).collect::<Vec<_>>().join(" ");
        let replicas = mesh.replicas.iter().map(teams).collect();
        (*mesh != Mesh::default()).then_some(Self { replicas, sharding: mesh.sharding })
    }

    /// The mesh on `hardware`; otherwise the name that no device has.
    pub(crate) fn resolve(&self, hardware: &Hardware) -> Result<Mesh, String> {
        let device = |name: &str| hardware.device(name).ok_or_else(|| name.to_owned());
        let team = |names: &str| names.split('+').map(device).collect::<Result<Team, _>>();
        let teams = |teams: &String| teams.split_whitespace().map(team).collect::<Result<Vec<_>, _>>();
        Ok(Mesh { replicas: self.replicas.iter().map(teams).collect::<Result<_, _>>()?, sharding: self.sharding })
    }
}
