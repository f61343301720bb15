//! The operations of a block whose outputs can be recomputed in the backward instead of saved.

use serde::{Deserialize, Serialize};
use spipe_base::similar_word;
use std::{fmt, str::FromStr};

/// An operation of a block, named for the output that is not saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// The attention between its projections, with the scores if they are materialised.
    Attention,
    /// The norms before the branches and inside the attention.
    Norms,
    /// The activation function.
    Activation,
    /// The feed-forward network before its last product, or all experts with their router.
    Mlp,
    /// The projections of queries, keys and values.
    Qkv,
    /// The projection after the attention, with the sum that it enters.
    Output,
    /// The product that the activation function is applied to, if there are two.
    Gate,
    /// The other product before the activation function, or the only one.
    Up,
    /// The whole block: only its input is saved, as by a checkpoint around each block.
    Block,
}

/// Names with their operations; the first of each is the one that is printed, the others are those of
/// Megatron-LM's `--recompute-modules`.
const NAMES: [(&str, Operation); 15] = [
    ("attention", Operation::Attention),
    ("norms", Operation::Norms),
    ("activation", Operation::Activation),
    ("mlp", Operation::Mlp),
    ("qkv", Operation::Qkv),
    ("output", Operation::Output),
    ("gate", Operation::Gate),
    ("up", Operation::Up),
    ("block", Operation::Block),
    ("core_attn", Operation::Attention),
    ("layernorm", Operation::Norms),
    ("norm", Operation::Norms),
    ("moe_act", Operation::Activation),
    ("moe", Operation::Mlp),
    ("experts", Operation::Mlp),
];

/// The names among them that are printed.
const OWN: usize = 9;

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(NAMES.iter().find(|(_, operation)| operation == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = NAMES.iter().find(|(name, _)| *name == word);
        known.map(|(_, operation)| *operation).ok_or_else(|| {
            let own = NAMES.map(|(name, _)| name);
            let near = similar_word(word, own).map_or(String::new(), |near| format!("; did you mean `{near}`"));
            format!("unknown operation `{word}` (known: {}){near}", own[..OWN].join(", "))
        })
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(from = "Vec<Operation>", into = "Vec<Operation>")]
#[schemars(with = "Vec<Operation>")]
pub struct Operations(u16);

impl Operations {
    /// No operation.
    pub const NONE: Self = Self(0);

    const fn bit(operation: Operation) -> u16 {
        1 << operation as u16
    }

    /// Returns the set of these operations.
    pub fn of(operations: &[Operation]) -> Self {
        Self(operations.iter().fold(0, |set, operation| set | Self::bit(*operation)))
    }

    /// Whether the set has no operation.
    pub const fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// Whether the set has `operation`. A whole feed-forward network includes its parts, and a block everything.
    pub const fn has(self, operation: Operation) -> bool {
        let own = self.0 & (Self::bit(operation) | Self::bit(Operation::Block)) != 0;
        let part = matches!(operation, Operation::Activation | Operation::Gate | Operation::Up);
        own || part && self.0 & Self::bit(Operation::Mlp) != 0
    }

    /// Returns the operations that both sets have.
    #[must_use]
    pub fn shared(self, other: Self) -> Self {
        let both = NAMES.iter().filter(|(_, operation)| self.has(*operation) && other.has(*operation));
        Self(both.fold(0, |set, (_, operation)| set | Self::bit(*operation)))
    }

    /// Returns the operations that `other` does not have.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl From<Vec<Operation>> for Operations {
    fn from(operations: Vec<Operation>) -> Self {
        Self::of(&operations)
    }
}

impl From<Operations> for Vec<Operation> {
    fn from(set: Operations) -> Self {
        let own = NAMES[..OWN].iter().map(|(_, operation)| *operation);
        own.filter(|operation| set.0 & Operations::bit(*operation) != 0).collect()
    }
}

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = Vec::from(*self).iter().map(Operation::to_string).collect();
        f.pad(&names.join(","))
    }
}

impl FromStr for Operations {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let operations: Result<Vec<Operation>, String> = text.split(',').map(|word| word.trim().parse()).collect();
        Ok(Self::of(&operations?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_megatron_are_read_and_unknown_ones_are_refused_with_the_nearest() {
        let set: Operations = "core_attn,layernorm,activation".parse().unwrap();
        assert_eq!(set.to_string(), "attention,norms,activation");
        assert_eq!(set.to_string().parse(), Ok(set));
        let fault = "atention".parse::<Operations>().unwrap_err();
        assert!(fault.contains("did you mean `attention`"), "{fault}");
        assert!("".parse::<Operations>().is_err());
    }

    #[test]
    fn a_whole_network_includes_its_parts() {
        let (mlp, some) = (Operations::of(&[Operation::Mlp]), "norms,activation".parse::<Operations>().unwrap());
        assert!(mlp.has(Operation::Up) && mlp.has(Operation::Activation) && !mlp.has(Operation::Norms));
        assert_eq!(mlp.shared(some).to_string(), "activation");
        assert_eq!(some.without(mlp.shared(some)).to_string(), "norms");
        assert_eq!(Operations::of(&[Operation::Block]).shared(some), some);
    }
}
