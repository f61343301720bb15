//! A model: frozen and checked.

use crate::{Architecture, Batch, Layer, Positions, Precision};
use spipe_base::{Bytes, Diagnostic, Faults, IdVec, LayerId, LayerRange};
use std::collections::BTreeMap;

/// A network whose every number has been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    name: String,
    source: Option<String>,
    architecture: Architecture,
    layers: IdVec<LayerId, Layer>,
    /// Its value for each layer: the last layer that reads its output.
    last_readers: IdVec<LayerId, Option<LayerId>>,
    /// In the order of their users.
    ties: Vec<Tie>,
}

/// Two layers that use the same parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The layer that counts them.
    pub owner: LayerId,
    /// The one that uses them as well.
    pub user: LayerId,
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
        let mut last_readers: IdVec<LayerId, Option<LayerId>> = layers.iter().map(|_| None).collect();
        for (id, layer) in layers.enumerate() {
            for input in &layer.inputs {
                last_readers[*input] = Some(id);
            }
        }
        let tie = |(user, layer): (LayerId, &Layer)| layer.tied_to.map(|owner| Tie { owner, user });
        let ties = layers.enumerate().filter_map(tie).collect();
        Self { name, source, architecture, layers, last_readers, ties }
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

    /// The tokens of the longest sequence that it can read, where it has learned positions.
    pub fn places(&self) -> Option<u64> {
        let positions = match &self.architecture {
            Architecture::Transformer(transformer) => transformer.block.positions,
            Architecture::TwoTowers(towers) => towers.text.block.positions,
            _ => return None,
        };
        match positions {
            Positions::Learned { places } => Some(places),
            _ => None,
        }
    }

    /// The kind of network with its numbers.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// The same network with these layers frozen and no others: they have neither gradients nor optimizer state, and a
    /// backward runs only through layers that train or read, directly or through others, one that does.
    ///
    /// # Errors
    /// A fault for each range that ends behind the last layer.
    pub fn with_frozen(mut self, frozen: &[LayerRange]) -> Result<Self, Faults> {
        let count = self.layers.len();
        let mut faults = Faults::new();
        for range in frozen.iter().filter(|range| range.last().index() >= count) {
            let fault = Diagnostic::error(format!("layers `{range}` are to be frozen, but there are {count} layers"));
            faults.push(fault.hint(format!("layers are counted from 0 to {}", count.saturating_sub(1))));
        }
        faults.or(())?;
        for id in self.layers.ids() {
            let trains = !frozen.iter().any(|range| range.contains(id));
            let inputs = &self.layers[id].inputs;
            // What a source reads is data; whether its gradient is computed is the layer's own affair.
            let passes =
                if inputs.is_empty() { trains } else { inputs.iter().any(|input| self.layers[*input].needs_backward) };
            let layer = &mut self.layers[id];
            (layer.trains, layer.passes_gradient, layer.needs_backward) = (trains, passes, trains || passes);
        }
        Ok(self)
    }

    /// The layers that are frozen, as the fewest ranges.
    pub fn frozen(&self) -> Vec<LayerRange> {
        let mut ranges: Vec<LayerRange> = Vec::new();
        for (id, _) in self.layers.enumerate().filter(|(_, layer)| !layer.trains) {
            let longer = ranges.pop_if(|range| range.last().index() + 1 == id.index()).map(LayerRange::first);
            ranges.extend(LayerRange::new(longer.unwrap_or(id), id));
        }
        ranges
    }

    /// The parameters that are trained.
    pub fn trained_parameters(&self) -> u64 {
        self.layers.iter().filter(|layer| layer.trains).map(|layer| layer.parameters).sum()
    }

    /// The layers that `text` means: `3`, `0..3`, `head`, `block.0..block.3`, both ends included.
    ///
    /// ```
    /// # use spipe_model::{Model, shipped};
    /// # let text = shipped().iter().find(|(name, _)| *name == "gpt2").unwrap().1;
    /// let model = Model::from_toml("gpt2.toml", text)?;
    /// assert_eq!(model.layer_range("embedding..block.3").map(|range| range.count()), Some(5));
    /// assert_eq!(model.layer_range("block.12"), None, "there are twelve, counted from 0");
    /// # Ok::<(), spipe_base::Faults>(())
    /// ```
    pub fn layer_range(&self, text: &str) -> Option<LayerRange> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let layer = |end: &str| match end.trim().parse::<usize>() {
            Ok(index) => Some(LayerId::from(index)).filter(|id| id.index() < self.layers.len()),
            Err(_) => self.layer(end.trim()),
        };
        LayerRange::new(layer(first)?, layer(last)?)
    }

    /// The layers up to `after` whose output is read behind it, ascending: what crosses a cut there. Of the last layer, itself.
    pub fn crossing(&self, after: LayerId) -> impl Iterator<Item = LayerId> + '_ {
        let is_last = after.index() + 1 == self.layers.len();
        let live = self.last_readers.enumerate().take(after.index() + 1);
        live.filter(move |(id, reader)| reader.is_some_and(|reader| reader > after) || (is_last && *id == after))
            .map(|(id, _)| id)
    }

    /// Bytes of one microbatch that cross a cut behind layer `after`: the outputs of all layers before it that are read behind
    /// it, skip connections included.
    pub fn cut_bytes(&self, after: LayerId, batch: Batch, precision: Precision) -> Bytes {
        self.crossing(after).map(|layer| self.layers[layer].boundary(batch, precision)).sum()
    }

    /// The layers that use the same parameters, by the layer that counts them: what must be there on every device that has one
    /// of the group.
    pub fn tied(&self) -> Vec<Vec<LayerId>> {
        let mut groups: BTreeMap<LayerId, Vec<LayerId>> = BTreeMap::new();
        for tie in &self.ties {
            groups.entry(tie.owner).or_insert_with(|| vec![tie.owner]).push(tie.user);
        }
        groups.into_values().collect()
    }

    /// The layer of `layers` that uses parameters of one outside of them, and that one.
    pub fn borrows(&self, layers: LayerRange) -> Option<Tie> {
        self.ties.iter().copied().find(|tie| layers.contains(tie.user) && !layers.contains(tie.owner))
    }

    /// The layer outside of `layers` that uses parameters of one of them, and that one.
    pub fn lends(&self, layers: LayerRange) -> Option<Tie> {
        self.ties.iter().copied().find(|tie| layers.contains(tie.owner) && !layers.contains(tie.user))
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
            && (before.trains, before.needs_backward, before.passes_gradient)
                == (after.trains, after.needs_backward, after.passes_gradient)
            && after.inputs.contains(&last)
            && others(last) == others(next)
            && readers[last] == readers[next]
            && self.crossing(last).filter(|id| *id != last).eq(self.crossing(next).filter(|id| *id != next))
    }
}
