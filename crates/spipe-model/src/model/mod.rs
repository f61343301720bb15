//! The checked, immutable model.

mod adapters;

use crate::{Adaptation, Architecture, Batch, Layer, Lora, Positions, Precision};
use spipe_base::{Bytes, Diagnostic, Faults, IdVec, LayerId, LayerRange};
use std::collections::BTreeMap;

/// A network whose sizes have all been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    name: String,
    source: Option<String>,
    architecture: Architecture,
    layers: IdVec<LayerId, Layer>,
    /// For each layer, the last layer that reads its output.
    last_readers: IdVec<LayerId, Option<LayerId>>,
    /// Sorted by their users.
    ties: Vec<Tie>,
    /// The adapters, with the layers that were frozen before they came.
    lora: Option<(Lora, Vec<LayerRange>)>,
}

/// Two layers that use the same parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The layer whose parameter count includes them.
    pub owner: LayerId,
    /// The other layer that uses them.
    pub user: LayerId,
}

/// A model converted from a foreign file, with warnings about what could not be converted.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The model.
    pub model: Model,
    /// Settings that the model ignores.
    pub warnings: Faults,
}

impl Model {
    /// Creates a model from checked sizes.
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
        Self { name, source, architecture, layers, last_readers, ties, lora: None }
    }

    /// The model of which each of `tensor` devices has a part of every layer ([`Layer::shard`]).
    ///
    /// # Errors
    /// The first layer that cannot be divided.
    pub fn shard(&self, tensor: u64) -> Result<Self, LayerId> {
        self.each_layer(|layer| layer.shard(tensor))
    }

    /// The model of which each of `parts` devices has a part of every sequence ([`Layer::with_sequences_divided`]).
    ///
    /// # Errors
    /// The first layer whose tokens cannot be divided.
    pub fn with_sequences_divided(&self, parts: u64) -> Result<Self, LayerId> {
        self.each_layer(|layer| layer.with_sequences_divided(parts))
    }

    /// The model of which each of `devices` has as many experts of every layer that has some
    /// ([`Layer::with_experts_divided`]).
    ///
    /// # Errors
    /// The first layer whose experts cannot be divided.
    pub fn with_experts_divided(&self, devices: u64) -> Result<Self, LayerId> {
        self.each_layer(|layer| layer.with_experts_divided(devices))
    }

    fn each_layer(&self, change: impl Fn(&Layer) -> Option<Layer>) -> Result<Self, LayerId> {
        let changed = |(id, layer): (LayerId, &Layer)| change(layer).ok_or(id);
        let layers = self.layers.enumerate().map(changed).collect::<Result<_, _>>()?;
        Ok(Self { layers, ..self.clone() })
    }

    /// Returns the largest number of experts of a layer; 0 without experts.
    pub fn experts(&self) -> u64 {
        self.layers.iter().filter_map(Layer::experts).map(|experts| experts.count).max().unwrap_or(0)
    }

    /// Returns the model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the source of its numbers.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Returns the layers in model order: each comes after those that it reads.
    pub fn layers(&self) -> &IdVec<LayerId, Layer> {
        &self.layers
    }

    /// Returns the exact number of parameters; tied ones count once.
    pub fn parameters(&self) -> u64 {
        self.layers.iter().map(|layer| layer.parameters).sum()
    }

    /// Returns the default sequence length; for an image encoder, the tokens of an image.
    pub fn seq_len(&self) -> u64 {
        self.architecture.seq_len()
    }

    /// Returns the longest sequence that it can read, in tokens, if it has learned positions.
    pub fn places(&self) -> Option<u64> {
        let positions = match &self.architecture {
            Architecture::Transformer(transformer) => transformer.block.positions,
            Architecture::Encoder(encoder) => encoder.block.positions,
            Architecture::TwoTowers(towers) => towers.text.block.positions,
            _ => return None,
        };
        match positions {
            Positions::Learned { places } => Some(places),
            _ => None,
        }
    }

    /// Returns the kind of network with its sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Freezes exactly these layers, and takes adapters away. Frozen layers have neither gradients nor
    /// optimizer state. A backward runs only through layers that train or that read, directly or
    /// indirectly, one that does.
    ///
    /// # Errors
    /// One fault for each range that ends after the last layer.
    pub fn with_frozen(mut self, frozen: &[LayerRange]) -> Result<Self, Faults> {
        let count = self.layers.len();
        let mut faults = Faults::new();
        for range in frozen.iter().filter(|range| range.last().index() >= count) {
            let fault =
                Diagnostic::error(format!("layers `{range}` are to be frozen, but the model has {count} layers"));
            faults.push(fault.hint(format!("layers are counted from 0 to {}", count.saturating_sub(1))));
        }
        faults.or(())?;
        for id in self.layers.ids() {
            let layer = &mut self.layers[id];
            layer.trains = !frozen.iter().any(|range| range.contains(id));
            layer.adaptation = None;
        }
        self.lora = None;
        self.find_backwards();
        Ok(self)
    }

    /// Freezes all layers and gives them these adaptations. `frozen` are the layers that were frozen
    /// before.
    pub(crate) fn adapted(mut self, lora: Lora, frozen: Vec<LayerRange>, adaptations: Vec<Adaptation>) -> Self {
        for (id, adaptation) in self.layers.ids().zip(adaptations) {
            let layer = &mut self.layers[id];
            layer.trains = false;
            layer.adaptation = Some(adaptation);
        }
        self.lora = Some((lora, frozen));
        self.find_backwards();
        self
    }

    /// Returns the adapters, if it has some.
    pub fn lora(&self) -> Option<&Lora> {
        self.lora.as_ref().map(|(lora, _)| lora)
    }

    /// Finds the layers through which a backward runs.
    fn find_backwards(&mut self) {
        for id in self.layers.ids() {
            let learns = self.layers[id].learns();
            let inputs = &self.layers[id].inputs;
            // A source reads data; the layer itself decides whether to compute the gradient of its
            // input.
            let passes =
                if inputs.is_empty() { learns } else { inputs.iter().any(|input| self.layers[*input].needs_backward) };
            let layer = &mut self.layers[id];
            (layer.passes_gradient, layer.needs_backward) = (passes, learns || passes);
        }
    }

    /// Returns the frozen layers as the fewest ranges; with adapters, those that are without any
    /// because they were frozen before.
    pub fn frozen(&self) -> Vec<LayerRange> {
        if let Some((_, frozen)) = &self.lora {
            return frozen.clone();
        }
        let mut ranges: Vec<LayerRange> = Vec::new();
        for (id, _) in self.layers.enumerate().filter(|(_, layer)| !layer.trains) {
            let longer = ranges.pop_if(|range| range.last().index() + 1 == id.index()).map(LayerRange::first);
            ranges.extend(LayerRange::new(longer.unwrap_or(id), id));
        }
        ranges
    }

    /// Returns the number of parameters that each token uses, which is less than all where it passes
    /// through some experts of several.
    pub fn active_parameters(&self) -> u64 {
        let active = |layer: &Layer| layer.as_block().map_or(layer.parameters, crate::Block::active_parameters);
        self.layers.iter().map(active).sum()
    }

    /// Returns the parameters of modules that predict further tokens, which are neither among
    /// [`Self::parameters`] nor planned; 0 without.
    pub fn mtp_parameters(&self) -> u64 {
        match &self.architecture {
            Architecture::Transformer(transformer) => transformer.mtp_parameters(),
            _ => 0,
        }
    }

    /// Returns the number of trained parameters.
    pub fn trained_parameters(&self) -> u64 {
        self.layers.iter().map(Layer::trained_parameters).sum()
    }

    /// Parses a range of layers: `3`, `0..3`, `head`, `block.0..block.3`, both ends included.
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

    /// Returns the layers up to `after` whose output crosses a cut after `after`, in ascending
    /// order. After the last layer, it is that layer itself.
    pub fn crossing(&self, after: LayerId) -> impl Iterator<Item = LayerId> + '_ {
        let is_last = after.index() + 1 == self.layers.len();
        let live = self.last_readers.enumerate().take(after.index() + 1);
        live.filter(move |(id, reader)| reader.is_some_and(|reader| reader > after) || (is_last && *id == after))
            .map(|(id, _)| id)
    }

    /// Returns the bytes of one microbatch that cross a cut after layer `after`: the outputs of all
    /// earlier layers that later ones read, skip connections included.
    pub fn cut_bytes(&self, after: LayerId, batch: Batch, precision: Precision) -> Bytes {
        self.crossing(after).map(|layer| self.layers[layer].boundary(batch, precision)).sum()
    }

    /// Returns the groups of layers with shared parameters, in the order of their owners. Every
    /// device with a layer of a group needs these parameters.
    pub fn tied(&self) -> Vec<Vec<LayerId>> {
        let mut groups: BTreeMap<LayerId, Vec<LayerId>> = BTreeMap::new();
        for tie in &self.ties {
            groups.entry(tie.owner).or_insert_with(|| vec![tie.owner]).push(tie.user);
        }
        groups.into_values().collect()
    }

    /// Returns the first tie whose user is in `layers` and whose owner is not.
    pub fn borrows(&self, layers: LayerRange) -> Option<Tie> {
        self.ties.iter().copied().find(|tie| layers.contains(tie.user) && !layers.contains(tie.owner))
    }

    /// Returns the first tie whose owner is in `layers` and whose user is not.
    pub fn lends(&self, layers: LayerRange) -> Option<Tie> {
        self.ties.iter().copied().find(|tie| layers.contains(tie.owner) && !layers.contains(tie.user))
    }

    /// Returns the layer with this name.
    pub fn layer(&self, name: &str) -> Option<LayerId> {
        self.layers.enumerate().find(|(_, layer)| layer.name == name).map(|(id, _)| id)
    }

    /// Returns the longest runs of consecutive interchangeable layers: equal in all costs, each
    /// reading its predecessor, and read by the same layers outside the run. Every layer is in
    /// exactly one run.
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

    /// For each layer, the layers that read its output, except the next one, and those that share
    /// its parameters.
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
            && before.adaptation == after.adaptation
            && (before.trains, before.needs_backward, before.passes_gradient)
                == (after.trains, after.needs_backward, after.passes_gradient)
            && after.inputs.contains(&last)
            && others(last) == others(next)
            && readers[last] == readers[next]
            && self.crossing(last).filter(|id| *id != last).eq(self.crossing(next).filter(|id| *id != next))
    }
}
