//! Networks whose layers are described by measurements.

use super::Layers;
use crate::{Batch, LayerKind, ProfiledLayer};
use spipe_base::LayerId;
use std::collections::BTreeMap;

/// Layers described by measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Profiled {
    /// The microbatch size at which the figures were measured.
    pub measured_at: Batch,
    /// Runs of identical layers in model order.
    pub groups: Vec<ProfiledGroup>,
}

/// A run of identical consecutive layers.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledGroup {
    /// The figures of each layer. A single layer has the group's name; several are named `name.0`,
    /// `name.1` ….
    pub layer: ProfiledLayer,
    /// The number of layers.
    pub count: u64,
    /// The parameters of each layer.
    pub parameters: u64,
    /// Layers, or groups (meaning their last layer), whose output each of these layers reads beside
    /// that of its predecessor.
    pub inputs: Vec<String>,
    /// Whether the first of them reads its predecessor's output too.
    pub chain: bool,
}

impl ProfiledGroup {
    /// Returns the names of its layers.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        let single = (self.count == 1).then(|| self.layer.group.clone());
        let several = (self.count > 1).then(|| (0..self.count).map(|index| format!("{}.{index}", self.layer.group)));
        single.into_iter().chain(several.into_iter().flatten())
    }
}

impl Profiled {
    pub(super) fn build(&self, layers: &mut Layers) {
        let mut named: BTreeMap<String, LayerId> = BTreeMap::new();
        for group in &self.groups {
            let extra: Vec<LayerId> = group.inputs.iter().filter_map(|name| named.get(name).copied()).collect();
            if !group.chain {
                layers.previous = None;
            }
            for name in group.names() {
                let id = layers.add(name.clone(), LayerKind::Profiled(group.layer.clone()), group.parameters);
                let inputs = &mut layers.layers[id].inputs;
                inputs.extend(&extra);
                inputs.sort();
                inputs.dedup();
                named.insert(name, id);
                named.insert(group.layer.group.clone(), id);
            }
        }
    }
}
