//! A model: frozen and checked.

use crate::{Architecture, Layer};
use spipe_base::{Faults, IdVec, LayerId, LayerRange};

/// A network whose every number has been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    name: String,
    source: Option<String>,
    architecture: Architecture,
    layers: IdVec<LayerId, Layer>,
}

/// A model read from somebody else's file, and what could not be taken over from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The model.
    pub model: Model,
    /// Settings that the model leaves out.
    pub warnings: Faults,
}

impl Model {
    /// From numbers that have been checked.
    pub(crate) fn freeze(name: String, source: Option<String>, architecture: Architecture) -> Self {
        let layers = architecture.layers();
        Self { name, source, architecture, layers }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its numbers are from.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// The layers in model order: each comes after those that it reads.
    pub fn layers(&self) -> &IdVec<LayerId, Layer> {
        &self.layers
    }

    /// The exact number of parameters, tied ones counted once.
    pub fn parameters(&self) -> u64 {
        self.layers.iter().map(|layer| layer.parameters).sum()
    }

    /// The sequence length to use when nothing else is asked for; of an image encoder, the tokens of an image.
    pub fn seq_len(&self) -> u64 {
        self.architecture.seq_len()
    }

    /// The kind of network with its numbers.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// The layer with that name.
    pub fn layer(&self, name: &str) -> Option<LayerId> {
        self.layers.enumerate().find(|(_, layer)| layer.name == name).map(|(id, _)| id)
    }

    /// The longest runs of consecutive layers that are interchangeable: equal in everything that costs, each reading the
    /// one before it, and read by the same layers outside the run. Every layer is in exactly one run.
    pub fn runs(&self) -> Vec<LayerRange> {
        let readers = self.readers();
        let mut runs: Vec<LayerRange> = Vec::new();
        for id in self.layers.ids() {
            let longer = runs.last().filter(|run| self.continues(run.last(), id, &readers)).map(|run| run.first());
            if longer.is_some() {
                runs.pop();
            }
            runs.extend(LayerRange::new(longer.unwrap_or(id), id));
        }
        runs
    }

    /// By layer, the layers that read its output, the next one left out, and those that share its parameters.
    fn readers(&self) -> IdVec<LayerId, Vec<LayerId>> {
        let mut readers: IdVec<LayerId, Vec<LayerId>> = self.layers.iter().map(|_| Vec::new()).collect();
        for (id, layer) in self.layers.enumerate() {
            for source in layer.inputs.iter().chain(&layer.tied_to).filter(|source| source.index() + 1 != id.index()) {
                readers[*source].push(id);
            }
        }
        readers
    }

    fn continues(&self, last: LayerId, next: LayerId, readers: &IdVec<LayerId, Vec<LayerId>>) -> bool {
        let (before, after) = (&self.layers[last], &self.layers[next]);
        let others = |id: LayerId| {
            let inputs = self.layers[id].inputs.iter().copied();
            inputs.filter(move |input| input.index() + 1 != id.index()).collect::<Vec<_>>()
        };
        before.kind == after.kind
            && before.parameters == after.parameters
            && before.tokens == after.tokens
            && before.tied_to == after.tied_to
            && after.inputs.contains(&last)
            && others(last) == others(next)
            && readers[last] == readers[next]
    }
}
