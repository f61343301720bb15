//! Meshes: the replicas of a model, and what is divided among them.

use crate::Placement;
use serde::{Deserialize, Serialize};
use spipe_base::DeviceId;
use spipe_hardware::Hardware;

/// The fewest gathered stages of a replica with sharded parameters: one that computes, and one that is
/// being gathered.
pub const FEWEST_RESIDENT: u64 = 2;

/// A group of devices that runs a stage together. The lists of today have one member.
pub type Team = Vec<DeviceId>;

/// The replicas of a model, and what is divided among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// By replica, its teams. Stages name the devices of the first replica. Empty for one replica on the devices of
    /// the stages.
    pub replicas: Vec<Vec<Team>>,
    /// What is divided among the replicas.
    pub sharding: Sharding,
}

/// What is divided among replicas.
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
    /// By replica, its teams, and by team the names of its devices; by default one replica, or as many as the machine
    /// has GPUs if parameters are sharded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<Vec<Vec<String>>>,
    /// What is divided among the replicas.
    #[serde(default)]
    pub sharding: Sharding,
}

impl MeshFile {
    /// `mesh` under the names of `hardware`; none for one replica.
    pub(crate) fn of(mesh: &Mesh, hardware: &Hardware) -> Option<Self> {
        let name = |device: &DeviceId| hardware.devices()[*device].name.clone();
        let team = |team: &Team| team.iter().map(name).collect();
        let replicas = mesh.replicas.iter().map(|teams| teams.iter().map(team).collect()).collect();
        (*mesh != Mesh::default()).then_some(Self { replicas, sharding: mesh.sharding })
    }

    /// The mesh on `hardware`; otherwise the name that no device has.
    pub(crate) fn resolve(&self, hardware: &Hardware) -> Result<Mesh, String> {
        let device = |name: &String| hardware.device(name).ok_or_else(|| name.clone());
        let team = |names: &Vec<String>| names.iter().map(device).collect::<Result<Team, _>>();
        let teams = |teams: &Vec<Vec<String>>| teams.iter().map(team).collect::<Result<Vec<_>, _>>();
        Ok(Mesh { replicas: self.replicas.iter().map(teams).collect::<Result<_, _>>()?, sharding: self.sharding })
    }
}

impl Placement {
    /// Whether parameters are divided among replicas, each of which runs all layers.
    pub const fn shards_parameters(&self) -> bool {
        matches!(self.mesh.sharding, Sharding::Parameters { .. })
    }

    /// The devices among which parameters are divided, one for each replica.
    pub fn replicas(&self) -> Vec<DeviceId> {
        self.mesh.replicas.iter().flatten().flatten().copied().collect()
    }

    /// The gathered stages of a replica with sharded parameters.
    pub fn resident_stages(&self) -> usize {
        match self.mesh.sharding {
            Sharding::Parameters { resident: Some(resident) } => resident as usize,
            _ => FEWEST_RESIDENT as usize,
        }
    }

    /// The same placement with a replica on each of these devices.
    pub fn over(self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        let replicas = devices.into_iter().map(|device| vec![vec![device]]).collect();
        let sharding = self.mesh.sharding;
        Self { mesh: Mesh { replicas, sharding }, ..self }
    }

    /// The same placement with a replica on each of the machine's first `count` GPUs, or on all of them.
    pub fn over_gpus(self, hardware: &Hardware, count: Option<u64>) -> Self {
        let gpus = hardware.devices().enumerate().filter(|(_, device)| device.is_gpu()).map(|(id, _)| id);
        self.over(gpus.take(count.map_or(usize::MAX, |count| count as usize)))
    }

    /// The devices that compute: those of the stages, or of all replicas.
    pub fn computing(&self) -> Vec<DeviceId> {
        if self.shards_parameters() { self.replicas() } else { self.devices() }
    }

    /// Whether parameters stay on the device of their stage, and microbatches flow through the stages.
    pub const fn is_pipeline(&self) -> bool {
        self.order.is_pipeline() && !self.shards_parameters()
    }
}
