//! The attachment of adapters to a model.

use crate::adapters::{Adaptation, Adapted, Lora, Matrix, last_part};
use crate::{Block, Layer, LayerKind, Model};
use spipe_base::{Diagnostic, Faults, similar_word};
use std::collections::{BTreeMap, BTreeSet};

impl Model {
    /// Freezes all layers and gives adapters to those that were trained so far.
    ///
    /// # Errors
    /// Each target that no layer has, with the nearest name; a rank above a side of a matrix; nothing
    /// left to train.
    pub fn with_lora(self, lora: &Lora) -> Result<Self, Faults> {
        let frozen = self.frozen();
        let base = self.with_frozen(&frozen)?;
        let targets: Vec<&str> = lora.targets.iter().map(String::as_str).collect();
        let mut met: BTreeMap<&str, bool> = targets.iter().map(|target| (*target, false)).collect();
        let mut adaptations = Vec::new();
        let mut faults = Faults::new();
        for layer in base.layers().iter() {
            let adaptation = adaptation(layer, lora, &targets, &mut met);
            if let Some(fault) = too_wide(layer, &adaptation) {
                faults.push(fault);
            }
            adaptations.push(if layer.trains { adaptation } else { Adaptation::default() });
        }
        for target in met.iter().filter(|(_, met)| !**met).map(|(target, _)| *target) {
            faults.push(missing(&base, target, &targets));
        }
        if lora.embeddings && !adaptations.iter().any(|adaptation| adaptation.copy.is_some()) {
            let message = format!("`{}` has neither embedding nor head to train", base.name());
            faults.push(Diagnostic::error(message).hint("leave `embeddings` out, or fewer layers frozen"));
        }
        if !faults.is_empty() {
            // One fault for each kind: equal layers have equal faults.
            let mut once = Faults::new();
            let mut said = BTreeSet::new();
            faults.iter().filter(|fault| said.insert(fault.to_string())).for_each(|fault| once.push(fault.clone()));
            return Err(once);
        }
        if !adaptations.iter().any(Adaptation::trains) {
            let message = format!("all layers of `{}` that could have adapters are frozen", base.name());
            return Err(Diagnostic::error(message).hint("leave one of them unfrozen").into());
        }
        Ok(base.adapted(lora.clone(), frozen, adaptations))
    }

    /// Returns the largest rank that its adapters can have: the smallest side of their matrices.
    pub fn largest_rank(&self) -> u64 {
        let adapted = self.layers().iter().filter_map(|layer| layer.adaptation.as_ref());
        let sides = adapted.flat_map(|one| &one.matrices).map(|matrix| matrix.outputs.min(matrix.inputs));
        sides.min().unwrap_or(1)
    }

    /// Returns the matrices of all blocks that can have adapters, by name.
    pub fn adaptable(&self) -> BTreeSet<&'static str> {
        let blocks = self.layers().iter().filter_map(Layer::as_block);
        blocks
            .flat_map(|block| Matrix::OF_BLOCK.into_iter().filter(|matrix| block.has(*matrix)))
            .map(Matrix::name)
            .collect()
    }
}

/// Returns the adapters of a layer, and marks the targets that it has.
fn adaptation<'a>(layer: &Layer, lora: &Lora, targets: &[&'a str], met: &mut BTreeMap<&'a str, bool>) -> Adaptation {
    let mut found = BTreeSet::new();
    for target in targets {
        let matrices = match &layer.kind {
            LayerKind::Block(block) => of_block(block, target, targets),
            LayerKind::Embedding(_) => of_end(Matrix::Table, target),
            LayerKind::Head(_) => of_end(Matrix::Head, target),
            _ => Vec::new(),
        };
        if !matrices.is_empty() {
            met.insert(target, true);
        }
        found.extend(matrices);
    }
    // A matrix that holds several gets one adapter.
    let inside = |part: Matrix, whole: &[Matrix]| whole.contains(&part);
    if found.contains(&Matrix::QueryKeyValue) {
        found.retain(|matrix| !inside(*matrix, &[Matrix::Query, Matrix::Key, Matrix::Value]));
    }
    if found.contains(&Matrix::GateUp) {
        found.retain(|matrix| !inside(*matrix, &[Matrix::Gate, Matrix::Up]));
    }
    let matrices = found.into_iter().map(|matrix| {
        let [outputs, inputs, count] = match &layer.kind {
            LayerKind::Block(block) => block.shape(matrix),
            LayerKind::Embedding(embedding) => [embedding.hidden, embedding.vocabulary, 1],
            LayerKind::Head(head) => [head.classes, head.hidden, 1],
            _ => [0; 3],
        };
        Adapted { matrix, outputs, inputs, count }
    });
    let copy = match &layer.kind {
        LayerKind::Embedding(embedding) if lora.embeddings => Some([embedding.vocabulary, embedding.hidden]),
        LayerKind::Head(head) if lora.embeddings && !head.tied => Some([head.classes, head.hidden]),
        _ => None,
    };
    Adaptation { rank: lora.rank, matrices: matrices.collect(), copy, dora: lora.dora, dropout: lora.dropout > 0.0 }
}

fn of_block(block: &Block, target: &str, targets: &[&str]) -> Vec<Matrix> {
    let named = Matrix::named(target, block, targets).unwrap_or_default();
    let mut here: Vec<Matrix> = named.into_iter().filter(|matrix| block.has(*matrix)).collect();
    let attends = |matrix: &Matrix| matches!(matrix, Matrix::Query | Matrix::Key | Matrix::Value);
    if block.packs_attention() && here.iter().any(attends) {
        here.retain(|matrix| !attends(matrix));
        here.push(Matrix::QueryKeyValue);
    }
    // `dense` is each of the three in an encoder.
    if !block.causal && last_part(target) == "dense" && target == "dense" {
        here = vec![Matrix::Output, Matrix::Up, Matrix::Down];
    }
    here
}

fn of_end(end: Matrix, target: &str) -> Vec<Matrix> {
    let names = match end {
        Matrix::Table => ["embed_tokens", "embed_in", "wte"].as_slice(),
        _ => ["lm_head", "embed_out"].as_slice(),
    };
    if names.contains(&last_part(target)) { vec![end] } else { Vec::new() }
}

/// The fault of a rank above a side of a matrix.
fn too_wide(layer: &Layer, adaptation: &Adaptation) -> Option<Diagnostic> {
    let narrow = adaptation.matrices.iter().min_by_key(|adapted| adapted.outputs.min(adapted.inputs))?;
    let side = narrow.outputs.min(narrow.inputs);
    let (rank, matrix) = (adaptation.rank, narrow.matrix.name());
    (layer.trains && rank > side).then(|| {
        let (outputs, inputs) = (narrow.outputs, narrow.inputs);
        let message = format!("rank {rank} is above a side of the matrix `{matrix}`, which is {outputs} × {inputs}");
        Diagnostic::error(message).hint(format!("a rank of {side} already trains all of it; use less"))
    })
}

/// The fault of a target that no layer has.
fn missing(model: &Model, target: &str, targets: &[&str]) -> Diagnostic {
    let fault = Diagnostic::error(format!("no layer of `{}` has a matrix `{target}`", model.name()));
    let has = |name: &&str| {
        let of = |layer: &Layer| match &layer.kind {
            LayerKind::Block(block) => !of_block(block, name, targets).is_empty(),
            LayerKind::Embedding(_) => !of_end(Matrix::Table, name).is_empty(),
            LayerKind::Head(_) => !of_end(Matrix::Head, name).is_empty(),
            _ => false,
        };
        model.layers().iter().any(of)
    };
    let names: Vec<&str> = model.adaptable().into_iter().collect();
    if names.is_empty() {
        return fault.hint("adapters need blocks of attention and a feed-forward network");
    }
    let all = format!("its matrices: {}", names.join(", "));
    match similar_word(last_part(target), Matrix::known().filter(has)) {
        Some(near) => fault.hint(format!("the nearest is `{near}`; {all}")),
        None => fault.hint(all),
    }
}
