//! The arguments that say how devices share a model and its batch.

use crate::Failure;
use clap::{Args as Group, ValueEnum};
use spipe_hardware::{Hardware, NetworkFile};
use spipe_model::Model;
use spipe_plan::{Knob, Sharding};
use spipe_search::Degrees;

/// The degrees of parallelism over GPUs. Those that are left out are searched once one is given.
#[derive(Debug, Default, Group)]
pub struct Mesh {
    /// GPUs that share each layer (tensor parallelism)
    #[arg(long, value_name = "N", visible_alias = "tp")]
    pub tensor_parallel: Option<u64>,
    /// Divide activations between products over the same GPUs, too; on where the tensor degree is searched
    #[arg(long)]
    pub sequence_parallel: bool,
    /// Groups of GPUs that have stages of their own (pipeline parallelism)
    #[arg(long, value_name = "N", visible_alias = "pp")]
    pub pipeline_parallel: Option<u64>,
    /// Replicas that share the batch (data parallelism)
    #[arg(long, value_name = "N", visible_alias = "dp")]
    pub data_parallel: Option<u64>,
    /// GPUs that divide the tokens of each sequence (context parallelism, ring attention). If left out, 1 unless no
    /// GPU holds a layer otherwise
    #[arg(long, value_name = "N", visible_alias = "cp")]
    pub context_parallel: Option<u64>,
    /// GPUs that divide the experts of each layer (expert parallelism), among those of replicas and contexts; 1 if left out
    #[arg(long, value_name = "N", visible_alias = "ep")]
    pub expert_parallel: Option<u64>,
    /// Equal computers, of which the profile describes one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes: Option<u32>,
    /// The network between them, by cards of a computer and their line rate, such as 4x200Gb; by default the profile's
    #[arg(long, value_name = "CARDS", requires = "nodes")]
    pub network: Option<String>,
    /// The state that is divided among replicas: nothing, the optimizer (ZeRO 1), also the gradients (ZeRO 2), or all with the
    /// parameters (ZeRO 3, FSDP)
    #[arg(long, value_enum)]
    pub sharding: Option<ShardingChoice>,
    /// GPUs of a group that has one copy of sharded parameters (HSDP): groups sum their gradients; all GPUs if left out
    #[arg(long, value_name = "N", requires = "sharding")]
    pub shard_group: Option<u64>,
}

/// The state that is divided among replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShardingChoice {
    /// Nothing: gradients are summed over replicas
    None,
    /// The optimizer's state and its steps
    Optimizer,
    /// Gradients and the optimizer's state, in systems that gather parameters: once in an iteration
    Gradients,
    /// Parameters, gradients and optimizer state, in systems that gather parameters
    Parameters,
}

/// Reads a network from the command line.
pub fn network(text: &str) -> Result<NetworkFile, Failure> {
    let wrong = |what: String| {
        Failure::argument(what, "give the cards of a computer and their line rate, such as `--network 4x200Gb`")
    };
    NetworkFile::parse(text).map_err(wrong)
}

impl Mesh {
    /// `hardware`, or as many such computers as are asked for.
    pub fn computers(&self, hardware: Hardware) -> Result<Hardware, Failure> {
        let Some(nodes) = self.nodes else { return Ok(hardware) };
        let network = self.network.as_deref().map(network).transpose()?;
        hardware.on_nodes(nodes, network).map_err(Failure::Arguments)
    }

    /// The pins of sharded parameters of `model`: stages that stay gathered, and groups that have a copy each.
    pub fn pins(&self, model: &Model) -> Result<Vec<String>, Failure> {
        // Where all stages stay gathered, parameters are as if they were not divided.
        let gathered = self.sharding == Some(ShardingChoice::Gradients);
        let gathered = gathered.then(|| format!("{}={}", Knob::Resident, model.layers().len()));
        let divides = matches!(self.sharding, Some(ShardingChoice::Gradients | ShardingChoice::Parameters));
        if self.shard_group.is_some() && !divides {
            let message = "`--shard-group` divides parameters, and this sharding leaves them whole";
            return Err(Failure::argument(message, "use `--sharding parameters` or `gradients`"));
        }
        let groups = self.shard_group.map(|size| format!("{}={size}", Knob::ShardGroup));
        Ok(gathered.into_iter().chain(groups).collect())
    }

    /// The degrees.
    pub const fn degrees(&self) -> Degrees {
        Degrees {
            tensor: self.tensor_parallel,
            pipeline: self.pipeline_parallel,
            data: self.data_parallel,
            context: self.context_parallel,
            expert: self.expert_parallel,
            sequence: self.sequence_parallel,
            sharding: match self.sharding {
                None => None,
                Some(ShardingChoice::None) => Some(Sharding::None),
                Some(ShardingChoice::Optimizer) => Some(Sharding::Optimizer),
                Some(ShardingChoice::Gradients | ShardingChoice::Parameters) => Some(Sharding::PARAMETERS),
            },
        }
    }
}
