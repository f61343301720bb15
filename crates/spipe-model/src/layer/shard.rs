//! The part of a layer on one of several devices under tensor, context and expert parallelism.

use crate::{Block, Embedding, Experts, Head, Layer, LayerKind};

impl Layer {
    /// Returns the shard of each of `tensor` devices when the layer's matrices are split as in
    /// Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3). Heads and the inner width of
    /// the feed-forward network are split by device, the vocabulary of embedding and head by rows.
    /// Norms and the residual stream are replicated. `None` if the sizes are not divisible, for
    /// latent attention, and for other kinds of layers.
    ///
    /// With fewer key and value heads than devices, several devices hold the same head.
    pub fn shard(&self, tensor: u64) -> Option<Self> {
        if tensor == 1 {
            return Some(self.clone());
        }
        let part = |size: u64| (tensor > 0 && size.is_multiple_of(tensor)).then(|| size / tensor);
        let (kind, parameters) = match self.kind {
            LayerKind::Block(block) => {
                if block.latent.is_some() {
                    return None;
                }
                let kv_heads = if tensor.is_multiple_of(block.kv_heads) { Some(1) } else { part(block.kv_heads) };
                let (heads, intermediate) = (part(block.heads)?, part(block.intermediate)?);
                let shared =
                    block.experts.map(|experts| part(experts.shared).map(|shared| Experts { shared, ..experts }));
                let experts = shared.map_or(Some(None), |experts| experts.map(Some))?;
                let block = Block { heads, kv_heads: kv_heads?, intermediate, experts, ..block };
                (LayerKind::Block(block), block.parameters())
            }
            LayerKind::Embedding(embedding) => {
                let embedding = Embedding { vocabulary: embedding.vocabulary.div_ceil(tensor), ..embedding };
                (LayerKind::Embedding(embedding), embedding.parameters())
            }
            LayerKind::Head(head) => {
                let head = Head { classes: head.classes.div_ceil(tensor), ..head };
                (LayerKind::Head(head), head.parameters())
            }
            _ => return None,
        };
        let tied_parameters = self.tied_parameters.div_ceil(tensor);
        Some(Self { kind, parameters, tied_parameters, ..self.clone() })
    }

    /// Returns the layer of each of `parts` devices that divide the tokens of each sequence. They exchange keys and values,
    /// so that each query has those of the whole sequence (Liu et al. 2023, arXiv 2310.01889). `None` for layers
    /// other than those of decoders, whose tokens are alike.
    pub fn with_sequences_divided(&self, parts: u64) -> Option<Self> {
        let alike = match &self.kind {
            LayerKind::Embedding(_) | LayerKind::Block(_) => true,
            LayerKind::Head(head) => head.every_token,
            _ => false,
        };
        let divides = parts == 1 || (alike && parts > 0 && self.tokens.is_none());
        divides.then(|| Self { sequence_parts: parts, ..self.clone() })
    }

    /// Returns the layer of the busiest of `devices` that divide its experts (Lepikhin et al. 2020, GShard, arXiv
    /// 2006.16668, section 2; [`Experts::LOAD`]). Layers without experts stay. `None` if there are not as many experts for
    /// each device, and for experts with adapters.
    pub fn with_experts_divided(&self, devices: u64) -> Option<Self> {
        let LayerKind::Block(block @ Block { experts: Some(experts), .. }) = self.kind else {
            return Some(self.clone());
        };
        let divides = devices == 1 || (experts.count.is_multiple_of(devices) && self.adaptation.is_none());
        let devices = u32::try_from(devices).ok().filter(|devices| *devices > 0 && divides)?;
        let block = Block { experts: Some(Experts { devices, ..experts }), ..block };
        Some(Self { kind: LayerKind::Block(block), parameters: block.parameters(), ..self.clone() })
    }
}
