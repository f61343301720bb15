//! Meshes: the replicas of a model, the teams that share its layers, and what is divided among them.
//!
//! ```text
//! replica 0   team gpu0+gpu1   team gpu4+gpu5        a team shares the matrices of each layer (tensor parallelism)
//! replica 1   team gpu2+gpu3   team gpu6+gpu7        teams at the same place run the same stage (data parallelism)
//! ```
//!
//! The members of a team may also divide sequences (context parallelism), and the devices that hold the same part of the
//! same stages may divide experts among them (expert parallelism):
//!
//! ```text
//! team  gpu0 gpu1 | gpu2 gpu3      gpu0 and gpu1 share matrices and have the first tokens, gpu2 and gpu3 the others
//! holders  gpu0, gpu2 of each replica, and gpu1, gpu3 of each: they reduce gradients, and consecutive ones divide experts
//! ```
//!
//! Plans name a team by its lead, the first of its devices, and place stages on the teams of the first replica. The
//! time, memory and state of a lead in a [`CostTable`](crate::CostTable) of a mesh are those of each of its members.

use crate::{CostError, Mode, Workload};
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, DeviceId};
use spipe_model::Model;

/// Devices that run a stage together, the lead first; those that share matrices follow each other.
pub type Team = Vec<DeviceId>;

/// The replicas of a model, and what is divided among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// By replica, its teams. Stages name the teams of the first replica. Empty for one replica on the devices of
    /// the stages.
    pub replicas: Vec<Vec<Team>>,
    /// The state that is divided among the replicas.
    pub sharding: Sharding,
    /// Whether the members of a team also divide the activations between its products by tokens (sequence
    /// parallelism, Korthikanti et al. 2022, arXiv 2205.05198).
    pub sequence: bool,
    /// The members of a team that divide the tokens of each sequence, each with those that share its matrices: 1 or more
    /// (context parallelism, Liu et al. 2023, arXiv 2310.01889).
    pub context: u64,
    /// The holders of the same parameters that divide the experts of each layer: 1 or more (expert parallelism, Lepikhin
    /// et al. 2020, arXiv 2006.16668).
    pub expert: u64,
}

impl Default for Mesh {
    fn default() -> Self {
        Self { replicas: Vec::new(), sharding: Sharding::None, sequence: false, context: 1, expert: 1 }
    }
}

/// The state that is divided among replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum Sharding {
    /// Nothing.
    #[default]
    None,
    /// The optimizer's state and its steps (ZeRO stage 1): gradients are reduced and scattered, and updated parameters
    /// are gathered.
    Optimizer,
    /// Parameters, gradients and optimizer state: a replica gathers the parameters of a stage before it uses them.
    Parameters {
        /// The gathered stages of a replica, those used last and those being gathered: at least 2, 2 by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resident: Option<u64>,
        /// The replicas of a group, which have one copy of everything among them; all by default. Groups add up their
        /// gradients (hybrid sharding, Zhao et al. 2023, arXiv 2304.11277, section 3.2.2).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<u64>,
    },
}

impl Sharding {
    /// Parameters, gradients and optimizer state of all replicas, with the fewest gathered stages.
    pub const PARAMETERS: Self = Self::Parameters { resident: None, group: None };

    /// The name in plan files and options.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Optimizer => "optimizer",
            Self::Parameters { .. } => "parameters",
        }
    }
}

/// The degrees, such as `tp 2, pp 4, dp 8`, with those of contexts and experts that are divided.
impl std::fmt::Display for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tp {}, pp {}, dp {}", self.tensor(), self.leads().count().max(1), self.data())?;
        let more = [("cp", self.context), ("ep", self.expert)];
        more.iter().filter(|(_, degree)| *degree > 1).try_for_each(|(name, degree)| write!(f, ", {name} {degree}"))
    }
}

impl Mesh {
    /// The replicas.
    pub fn data(&self) -> u64 {
        self.replicas.len().max(1) as u64
    }

    /// The members of a team.
    pub fn members(&self) -> u64 {
        self.replicas.iter().flatten().next().map_or(1, Vec::len) as u64
    }

    /// The members of a team that share matrices.
    pub fn tensor(&self) -> u64 {
        (self.members() / self.context.max(1)).max(1)
    }

    /// The devices that hold the same part of the same stages, and reduce its gradients: those of all replicas that have
    /// other tokens.
    pub fn holders(&self) -> u64 {
        self.data() * self.context
    }

    /// Whether one replica runs on teams of one device.
    pub fn is_single(&self) -> bool {
        self.data() == 1 && self.members() == 1
    }

    /// The parts of the optimizer's state, of which each holder has one.
    pub fn state_parts(&self) -> u64 {
        if self.sharding == Sharding::Optimizer { self.holders() } else { 1 }
    }

    /// One part of the bytes of all parameters but experts and of those of experts, where the devices that hold the same
    /// ones divide them.
    pub fn holders_part(&self, [rest, experts]: [Bytes; 2]) -> Bytes {
        let holders = self.holders();
        Bytes::new(rest.get().div_ceil(holders) + experts.get().div_ceil((holders / self.expert).max(1)))
    }

    /// The devices that share matrices, of all teams.
    pub fn tensor_groups(&self) -> Vec<Team> {
        let of = |team: &Team| team.chunks(self.tensor() as usize).map(<[DeviceId]>::to_vec).collect::<Vec<_>>();
        self.replicas.iter().flatten().flat_map(of).collect()
    }

    /// The devices that divide sequences, of all teams.
    pub fn context_groups(&self) -> Vec<Team> {
        self.replicas.iter().flatten().flat_map(|team| self.by_tokens(team)).collect()
    }

    /// The devices that divide experts, of all stages.
    pub fn expert_groups(&self) -> Vec<Team> {
        let of = |group: Team| group.chunks(self.expert as usize).map(<[DeviceId]>::to_vec).collect::<Vec<_>>();
        self.leads().flat_map(|lead| self.holders_of(lead)).flat_map(of).collect()
    }

    /// The members of a team that have the same part of the matrices, by that part.
    fn by_tokens(&self, team: &Team) -> Vec<Team> {
        let tensor = self.tensor() as usize;
        (0..tensor).map(|part| team.iter().skip(part).step_by(tensor).copied().collect()).collect()
    }

    /// The devices that hold the same part of the stages of the team of `lead`, by replica and then by tokens; a group for
    /// each part of the matrices.
    pub fn holders_of(&self, lead: DeviceId) -> Vec<Team> {
        let mut groups = vec![Vec::new(); self.tensor() as usize];
        for team in self.peers(lead) {
            groups.iter_mut().zip(self.by_tokens(team)).for_each(|(group, members)| group.extend(members));
        }
        groups
    }

    /// The devices among [`Self::holders_of`] that hold the same experts.
    pub fn expert_holders_of(&self, lead: DeviceId) -> Vec<Team> {
        let parts = self.expert as usize;
        let of = |group: Team| (0..parts).map(move |part| group.iter().skip(part).step_by(parts).copied().collect());
        self.holders_of(lead).into_iter().flat_map(of).collect()
    }

    /// Checks that a device has two chunks of each sequence, all of as many tokens: one from either end, so that causal
    /// masks leave all devices with the same work (as in Megatron Core).
    ///
    /// # Errors
    /// Sequences that are not divisible, or none that are trained.
    pub fn check_sequences(&self, workload: &Workload) -> Result<(), CostError> {
        let (seq_len, context) = (workload.seq_len, self.context);
        match context {
            1 => Ok(()),
            _ if workload.mode != Mode::Train => Err(CostError::NoTraining),
            _ if context == 0 || !seq_len.is_multiple_of(2 * context) => Err(CostError::Sequence { seq_len, context }),
            _ => Ok(()),
        }
    }

    /// Checks that `model` has experts, if they are to be divided, and that the holders of each stage are groups that
    /// divide them.
    ///
    /// # Errors
    /// No experts, or no such groups.
    pub fn check_experts(&self, model: &Model) -> Result<(), CostError> {
        let (holders, expert) = (self.holders(), self.expert);
        match expert {
            1 => Ok(()),
            _ if model.experts() == 0 => Err(CostError::NoExperts { model: model.name().into(), expert }),
            _ if expert == 0 || !holders.is_multiple_of(expert) => Err(CostError::ExpertGroups { holders, expert }),
            _ => Ok(()),
        }
    }

    /// The team of `lead`, if it leads one.
    pub fn team(&self, lead: DeviceId) -> Option<&Team> {
        self.replicas.iter().flatten().find(|team| team.first() == Some(&lead))
    }

    /// The teams that run the stages of the team of `lead`, one in each replica; empty if it leads none.
    pub fn peers(&self, lead: DeviceId) -> impl Iterator<Item = &Team> {
        let place = |teams: &Vec<Team>| teams.iter().position(|team| team.first() == Some(&lead));
        let place = self.replicas.iter().find_map(place);
        self.replicas.iter().filter_map(move |teams| teams.get(place?))
    }

    /// The devices in the order of replicas and teams.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.replicas.iter().flatten().flatten().copied()
    }

    /// The leads of the first replica's teams.
    pub fn leads(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.replicas.iter().take(1).flatten().filter_map(|team| team.first().copied())
    }

    /// The mesh of a machine whose devices are `devices` of this one: the leads of the first replica, each alone. The other
    /// replicas are elsewhere: they have no teams there.
    pub(crate) fn of_leads(&self, devices: &[DeviceId]) -> Self {
        let here = |lead: DeviceId| devices.iter().position(|device| *device == lead).map(|at| vec![at.into()]);
        let leads: Vec<Team> = self.leads().filter_map(here).collect();
        let elsewhere = self.replicas.iter().skip(1).map(|_| Vec::new());
        Self { replicas: std::iter::once(leads).chain(elsewhere).collect(), ..self.clone() }
    }

    /// The microbatches of one replica.
    ///
    /// # Errors
    /// Replicas would differ in microbatches.
    pub fn microbatches_of_each(&self, microbatches: u64) -> Result<u64, CostError> {
        let data = self.data();
        let each = microbatches.is_multiple_of(data).then_some(microbatches / data);
        each.filter(|each| *each > 0).ok_or(CostError::Replicas { microbatches, data })
    }
}
