//! Checks of a network's sizes and options. They run while a file is read, so that every fault has
//! its position.

mod unet;

use crate::{
    Block, Encoder, EncoderEnd, Latent, Linear, NormPlaces, PatchEmbedding, Positions, QkNorm, RotaryScaling,
    TextTower, Transformer, TwoTowers, Vision, VisionEnd,
};
use spipe_base::{Diagnostic, Faults, Position};

/// The largest size that a file may state: products of a few sizes fit in 64 bits.
pub(crate) const LARGEST: u64 = 1 << 24;
/// The largest number of layers; no network has more.
pub(crate) const MOST_LAYERS: u64 = 1 << 16;
/// The largest number of parameters: a thousand times the largest networks of 2026.
pub(crate) const MOST_PARAMETERS: f64 = 1e16;

/// A collector for the faults of one table of a file, each located at its key.
pub(crate) struct Check<'a> {
    /// Returns the position of a key, given as a path from the root of the file.
    pub locate: &'a dyn Fn(&str) -> Option<Position>,
    /// The path to the table with a trailing dot; empty at the root.
    pub prefix: String,
    /// The faults found.
    pub faults: Faults,
}

impl<'a> Check<'a> {
    pub(crate) fn new(locate: &'a dyn Fn(&str) -> Option<Position>) -> Self {
        Self { locate, prefix: String::new(), faults: Faults::new() }
    }

    /// Runs `check` on the subtable `key`.
    pub(crate) fn within<T>(&mut self, key: &str, check: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.prefix.clone();
        self.prefix = format!("{outer}{key}.");
        let result = check(self);
        self.prefix = outer;
        result
    }

    /// Adds an error or a warning at `key`.
    pub(crate) fn add(&mut self, key: &str, mut diagnostic: Diagnostic) {
        diagnostic.position = (self.locate)(&format!("{}{key}", self.prefix));
        self.faults.push(diagnostic);
    }

    pub(crate) fn error(&mut self, key: &str, message: String) {
        self.add(key, Diagnostic::error(message));
    }

    /// Refuses sizes that are zero or exceed [`LARGEST`].
    pub(crate) fn sizes(&mut self, sizes: &[(&str, u64)]) {
        for (key, size) in sizes {
            self.size(key, *size, LARGEST);
        }
    }

    pub(crate) fn layers(&mut self, layers: u64) {
        self.size("layers", layers, MOST_LAYERS);
    }

    pub(crate) fn size(&mut self, key: &str, size: u64, largest: u64) {
        if size == 0 {
            self.error(key, format!("`{key}` is zero"));
        } else if size > largest {
            self.error(key, format!("`{key}` is {size}, more than the {largest} that are supported"));
        }
    }

    /// Refuses `size` if `divisor` does not divide it.
    fn divides(&mut self, (key, size): (&str, u64), (divisor_key, divisor): (&str, u64)) {
        if divisor > 0 && !size.is_multiple_of(divisor) {
            self.error(key, format!("`{key}` = {size} is not divisible by `{divisor_key}` = {divisor}"));
        }
    }

    /// Checks the sizes of a block, then its options.
    fn block(&mut self, block: &Block) {
        self.sizes(&[
            ("hidden", block.hidden),
            ("heads", block.heads),
            ("kv-heads", block.kv_heads),
            ("head-dim", block.head_dim),
            ("intermediate", block.intermediate),
        ]);
        if let Some(window) = block.sliding_window {
            self.size("sliding-window", window, LARGEST);
        }
        if block.heads > 0 {
            self.divides(("heads", block.heads), ("kv-heads", block.kv_heads));
        }
        if !(block.norm_epsilon.is_finite() && block.norm_epsilon > 0.0) {
            self.error("norm-epsilon", format!("`norm-epsilon` is {}, not a positive number", block.norm_epsilon));
        }
        if let Some(experts) = block.experts {
            self.sizes(&[("experts", experts.count), ("experts-per-token", experts.per_token)]);
            if experts.shared > LARGEST {
                self.size("shared-experts-intermediate", experts.shared, LARGEST);
            }
            if experts.per_token > experts.count {
                let message = format!("each token uses {} of {} experts", experts.per_token, experts.count);
                self.error("experts-per-token", message);
            }
        }
        if let Some(modulation) = block.modulation {
            self.size("modulation-classes", modulation.classes, LARGEST);
        }
        if let Some(latent) = block.latent {
            self.latent(block, latent);
        }
        for (key, number) in [("score-cap", block.score_cap), ("score-scale", block.score_scale)] {
            self.positive(key, number);
        }
        if (block.norms == NormPlaces::Shared) && !block.parallel_residual {
            self.error("norm-places", "`norm-places = \"shared\"` needs `parallel-residual`".into());
        }
        self.positions(block);
    }

    /// Refuses a stated number that is not positive.
    fn positive(&mut self, key: &str, number: Option<f64>) {
        if let Some(number) = number.filter(|number| !(number.is_finite() && *number > 0.0)) {
            self.error(key, format!("`{key}` is {number}, not a positive number"));
        }
    }

    fn latent(&mut self, block: &Block, latent: Latent) {
        let Latent { query_rank, kv_rank, rotary, value_dim } = latent;
        self.sizes(&[("kv-rank", kv_rank), ("rotary-channels", rotary), ("value-dim", value_dim)]);
        if let Some(rank) = query_rank {
            self.size("query-rank", rank, LARGEST);
        }
        if rotary >= block.head_dim {
            let message = format!("{rotary} rotated channels leave none of a head's {} for the rest", block.head_dim);
            self.error("rotary-channels", message);
        }
        if block.kv_heads != block.heads {
            self.error("kv-heads", "with `kv-rank`, every query head has keys and values of its own".into());
        }
        if block.qk_norm != QkNorm::None {
            self.error("qk-norm", "`qk-norm` has no effect with `kv-rank`".into());
        }
    }

    fn positions(&mut self, block: &Block) {
        match block.positions {
            Positions::Rotary { base, fraction, scaling } => {
                if !(base.is_finite() && base > 0.0) {
                    self.error("rotary-base", format!("`rotary-base` is {base}, not a positive number"));
                }
                let turned = block.latent.map_or((fraction * block.head_dim as f64) as u64, |latent| latent.rotary);
                if !(fraction > 0.0 && fraction <= 1.0) {
                    self.error("rotary-fraction", format!("`rotary-fraction` is {fraction}, not in 0..1"));
                } else if !turned.is_multiple_of(2) || turned == 0 {
                    let message =
                        format!("rotary positions rotate {turned} channels of each head, not a positive even number");
                    self.add("head-dim", Diagnostic::error(message).hint("channels are rotated in pairs"));
                }
                if let Some(scaling) = scaling {
                    self.within("rotary-scaling", |check| check.rotary_scaling(scaling, (base, turned)));
                }
            }
            Positions::Learned { places } => self.size("places", places, LARGEST),
            Positions::Alibi | Positions::None => {}
        }
    }

    /// Checks the scaling of `turned` channels that rotate with `base`.
    fn rotary_scaling(&mut self, scaling: RotaryScaling, (base, turned): (f64, u64)) {
        match scaling {
            RotaryScaling::Linear { factor } => self.positive("factor", Some(factor)),
            RotaryScaling::Dynamic { factor, original } => {
                self.positive("factor", Some(factor));
                self.size("original-places", original, LARGEST);
                if turned <= 2 {
                    self.error("type", "the scaling `dynamic` needs more than 2 rotating channels".into());
                }
            }
            RotaryScaling::Yarn(yarn) => {
                self.size("original-places", yarn.original, LARGEST);
                for (key, number) in [
                    ("factor", Some(yarn.factor)),
                    ("beta-fast", Some(yarn.beta_fast)),
                    ("beta-slow", Some(yarn.beta_slow)),
                    ("attention-factor", yarn.attention_factor),
                ] {
                    self.positive(key, number);
                }
                for (key, number) in [("mscale", yarn.mscale), ("mscale-all-dim", yarn.mscale_all_dim)] {
                    if number.is_some_and(|number| !(number.is_finite() && number >= 0.0)) {
                        self.error(
                            key,
                            format!("`{key}` is {}, a negative number or none", number.unwrap_or_default()),
                        );
                    }
                }
                if yarn.beta_fast < yarn.beta_slow {
                    let message =
                        format!("`beta-fast` is {}, less than `beta-slow` = {}", yarn.beta_fast, yarn.beta_slow);
                    self.error("beta-fast", message);
                }
                if base <= 1.0 {
                    self.error("type", format!("the scaling `yarn` needs a base of rotation above 1, not {base}"));
                }
            }
            RotaryScaling::Llama3 { factor, original, low, high } => {
                self.size("original-places", original, LARGEST);
                for (key, number) in
                    [("factor", factor), ("low-frequency-factor", low), ("high-frequency-factor", high)]
                {
                    self.positive(key, Some(number));
                }
                if low >= high {
                    let message =
                        format!("`high-frequency-factor` is {high}, not above `low-frequency-factor` = {low}");
                    self.error("high-frequency-factor", message);
                }
            }
            RotaryScaling::Longrope => {}
        }
    }

    /// Refuses sequences longer than the table of positions.
    fn sequence(&mut self, seq_len: u64, block: &Block) {
        self.size("seq-len", seq_len, LARGEST);
        if let Positions::Learned { places } = block.positions
            && seq_len > places
        {
            let message = format!("`seq-len` is {seq_len}, but there are learned positions for {places} tokens");
            self.error("seq-len", message);
        }
    }

    /// Refuses more than [`MOST_PARAMETERS`], which also keeps the exact count within 64 bits.
    fn parameters(&mut self, block: &Block, layers: u64, rest: f64) {
        if !self.faults.is_harmless() {
            // Products of these sizes may exceed 64 bits.
            return;
        }
        let size = |linear: &Linear| linear.inputs as f64 * linear.outputs as f64 * linear.copies as f64;
        let matrices: f64 = block.linears().iter().map(size).sum();
        let total = layers as f64 * matrices + rest;
        if total > MOST_PARAMETERS {
            self.error("hidden", format!("these sizes make {total:.1e} parameters, more than {MOST_PARAMETERS:.0e}"));
        }
    }

    pub(crate) fn transformer(&mut self, transformer: &Transformer) {
        let block = &transformer.block;
        self.size("vocabulary", transformer.vocabulary, LARGEST);
        self.layers(transformer.layers);
        self.block(block);
        self.sequence(transformer.seq_len, block);
        if transformer.full_attention_layers > transformer.layers {
            let message = format!(
                "{} layers are to ignore the sliding window, but the model has only {}",
                transformer.full_attention_layers, transformer.layers
            );
            self.error("full-attention-layers", message);
        }
        self.dense(transformer);
        self.full_attention(transformer);
        self.size("embedding-width", transformer.embedding_width, LARGEST);
        self.positive("embedding-scale", Some(transformer.embedding_scale));
        self.positive("logit-cap", transformer.logit_cap);
        self.size("mtp-layers", transformer.mtp_layers.max(1), MOST_LAYERS);
        let layers = transformer.layers.saturating_add(transformer.mtp_layers);
        let widest = transformer.embedding_width.max(block.hidden) as f64;
        self.parameters(block, layers, 2.0 * (transformer.vocabulary as f64 + block.hidden as f64) * widest);
    }

    /// Checks the list of blocks without the sliding window.
    fn full_attention(&mut self, transformer: &Transformer) {
        let full = &transformer.full_attention;
        if full.is_empty() {
            return;
        }
        if transformer.block.sliding_window.is_none() {
            self.error("full-attention", "`full-attention` has no effect without `sliding-window`".into());
        }
        self.blocks("full-attention", full, transformer.layers);
    }

    /// Refuses a list of blocks that is not in ascending order, or names a block that does not exist.
    fn blocks(&mut self, key: &str, listed: &[u64], layers: u64) {
        if let Some(beyond) = listed.iter().find(|index| **index >= layers) {
            self.error(key, format!("`{key}` names block {beyond}, but the model has {layers} blocks"));
        }
        if listed.windows(2).any(|pair| pair[0] >= pair[1]) {
            self.error(key, format!("`{key}` is not in ascending order"));
        }
    }

    pub(crate) fn encoder(&mut self, encoder: &Encoder) {
        let block = &encoder.block;
        self.sizes(&[("vocabulary", encoder.vocabulary)]);
        if encoder.token_types > LARGEST {
            self.size("token-types", encoder.token_types, LARGEST);
        }
        match encoder.end {
            EncoderEnd::Vocabulary => {}
            EncoderEnd::Tokens(classes) => self.size("token-classes", classes, LARGEST),
            EncoderEnd::Classes(classes) => self.size("classes", classes, LARGEST),
        }
        self.layers(encoder.layers);
        self.block(block);
        self.sequence(encoder.seq_len, block);
        self.parameters(block, encoder.layers, 2.0 * encoder.vocabulary as f64 * block.hidden as f64);
    }

    /// Checks the blocks without experts.
    fn dense(&mut self, transformer: &Transformer) {
        let dense = &transformer.dense_layers;
        if dense.is_empty() {
            return;
        }
        self.size("dense-intermediate", transformer.dense_intermediate, LARGEST);
        if transformer.block.experts.is_none() {
            self.error("dense-layers", "`dense-layers` has no effect without `experts`".into());
        }
        self.blocks("dense-layers", dense, transformer.layers);
        let widest = Block { experts: None, intermediate: transformer.dense_intermediate, ..transformer.block };
        self.parameters(&widest, dense.len() as u64, 0.0);
    }

    pub(crate) fn vision(&mut self, vision: &Vision) {
        let PatchEmbedding { image, patch, channels, .. } = vision.embedding;
        self.sizes(&[("patch", patch), ("channels", channels)]);
        // The number of tokens is the square of the patches per side; a patch's width grows with
        // the square of its side.
        self.size("image", image, 1 << 12);
        self.divides(("image", image), ("patch", patch));
        self.layers(vision.layers);
        self.block(&vision.block);
        self.parameters(&vision.block, vision.layers, 0.0);
    }

    pub(crate) fn vision_end(&mut self, end: VisionEnd) {
        match end {
            VisionEnd::Classes(classes) | VisionEnd::JoinedClasses(classes) => self.size("classes", classes, LARGEST),
            VisionEnd::Projection(outputs) => self.size("projection", outputs, LARGEST),
            VisionEnd::Features => {}
            VisionEnd::Patches(outputs) => self.size("values-per-patch", outputs, LARGEST),
        }
    }

    pub(crate) fn two_towers(&mut self, towers: &TwoTowers) {
        let TextTower { vocabulary, layers, block, seq_len, projection } = &towers.text;
        self.size("projection", *projection, LARGEST);
        self.within("text", |check| {
            check.size("vocabulary", *vocabulary, LARGEST);
            check.layers(*layers);
            check.block(block);
            check.sequence(*seq_len, block);
            check.parameters(block, *layers, *vocabulary as f64 * block.hidden as f64);
        });
        self.within("vision", |check| check.vision(&towers.vision));
    }
}
