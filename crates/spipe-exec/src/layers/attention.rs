//! Self-attention: by a kernel of ours on CPU cores, elsewhere with as many passes over memory as Burn's operations need.

use super::{Feed, Matrix, Parameter, norm::NormUnit};
use crate::kernels::{self, Angles, Attention};
use burn::tensor::{Device, Tensor, TensorData, activation::softmax};
use spipe_model::{Block, Norm, Positions};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Projections, rotation, scores and mix.
#[derive(Clone, Debug)]
pub(crate) struct AttentionUnit {
    block: Block,
    /// Norms of queries and keys by head.
    head_norms: Option<NormUnit>,
    constants: Arc<Mutex<BTreeMap<ConstantKey, Constants>>>,
    kernels: Arc<Mutex<BTreeMap<(usize, usize), Attention>>>,
}

/// Sequences, tokens of each, and the device by its name.
type ConstantKey = (usize, usize, String);

/// What depends on shapes only.
#[derive(Clone, Debug)]
struct Constants {
    /// 0 where a query may see a key, −∞ elsewhere; none if it may see all.
    mask: Option<Tensor<4>>,
    /// Cosines and sines for each token, query heads and key heads, and the matrix that pairs channels.
    rotation: Option<Rotation>,
}

#[derive(Clone, Debug)]
struct Rotation {
    queries: [Matrix; 2],
    keys: [Matrix; 2],
    pairing: Matrix,
}

const BIASES: [&str; 3] = ["attention.query.bias", "attention.key.bias", "attention.value.bias"];

impl AttentionUnit {
    pub fn new(block: &Block) -> Result<Self, &'static str> {
        if matches!(block.positions, Positions::Alibi) {
            return Err("ALiBi is not computed");
        }
        let head_norms = block.qk_norm.then(|| NormUnit::new(Norm::RmsNorm, block.norm_epsilon, block.head_dim));
        Ok(Self { block: *block, head_norms, constants: Arc::default(), kernels: Arc::default() })
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        let block = &self.block;
        let (queries, keys) = (block.query_width(), block.kv_width());
        let mut all = vec![
            Parameter::weight("attention.query.weight", block.hidden, queries),
            Parameter::weight("attention.key.weight", block.hidden, keys),
            Parameter::weight("attention.value.weight", block.hidden, keys),
        ];
        if block.qkv_bias {
            all.extend(BIASES.iter().zip([queries, keys, keys]).map(|(name, width)| Parameter::bias(name, width)));
        }
        if let Some(norm) = &self.head_norms {
            all.extend(norm.parameters(["attention.query-norm.weight", ""]));
            all.extend(norm.parameters(["attention.key-norm.weight", ""]));
        }
        all.push(Parameter::weight("attention.output.weight", queries, block.hidden));
        if block.output_bias {
            all.push(Parameter::bias("attention.output.bias", block.hidden));
        }
        all
    }

    pub fn forward(&self, parameters: &[Matrix], input: Matrix, feed: &Feed) -> Matrix {
        let block = &self.block;
        let (sequences, seq_len) = feed.batch;
        let [heads, kv_heads, width] = [block.heads, block.kv_heads, block.head_dim].map(|number| number as usize);
        let tokens = sequences * seq_len;
        let mut rest = parameters.iter().cloned();
        let mut next = || rest.next().expect("as many parameters as `parameters` lists");
        let weights = [next(), next(), next()];
        let mut projected = weights.map(|weight| feed.multiply(input.clone(), weight));
        if block.qkv_bias {
            projected = projected.map(|projection| projection + next());
        }
        let [mut queries, mut keys, values] = projected;
        if let Some(norm) = &self.head_norms {
            let by_head = |matrix: Matrix, heads| matrix.reshape([tokens * heads, width]);
            queries = norm.forward(&[next()], by_head(queries, heads)).reshape([tokens, heads * width]);
            keys = norm.forward(&[next()], by_head(keys, kv_heads)).reshape([tokens, kv_heads * width]);
        }
        let mixed = kernels::apply(self.kernel(feed.batch), [&queries, &keys, &values])
            .unwrap_or_else(|| self.mix(feed.batch, [queries, keys, values]));
        let output = feed.multiply(mixed, next());
        if block.output_bias { output + next() } else { output }
    }

    /// What the kernel does, by Burn's operations.
    fn mix(&self, batch: (usize, usize), [queries, keys, values]: [Matrix; 3]) -> Matrix {
        let block = &self.block;
        let (sequences, seq_len) = batch;
        let [heads, kv_heads, width] = [block.heads, block.kv_heads, block.head_dim].map(|number| number as usize);
        let tokens = sequences * seq_len;
        let constants = self.constants(batch, &queries.device().without_autodiff());
        let mut queries = queries.reshape([tokens * heads, width]);
        let mut keys = keys.reshape([tokens * kv_heads, width]);
        if let Some(rotation) = &constants.rotation {
            queries = rotate(queries, &rotation.queries, &rotation.pairing);
            keys = rotate(keys, &rotation.keys, &rotation.pairing);
        }
        let queries = queries * (1.0 / (width as f64).sqrt());
        let by_head =
            |matrix: Matrix, heads| -> Tensor<4> { matrix.reshape([sequences, seq_len, heads, width]).swap_dims(1, 2) };
        let queries = by_head(queries, heads);
        let keys = self.for_each_query_head(by_head(keys, kv_heads));
        let values = self.for_each_query_head(by_head(values.reshape([tokens * kv_heads, width]), kv_heads));
        let mut scores = queries.matmul(keys.swap_dims(2, 3));
        if let Some(mask) = constants.mask {
            scores = scores + mask;
        }
        softmax(scores, 3).matmul(values).swap_dims(1, 2).reshape([tokens, heads * width])
    }

    fn kernel(&self, batch: (usize, usize)) -> Attention {
        let mut known = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let block = &self.block;
        let make = || Attention {
            batch,
            heads: block.heads as usize,
            key_heads: block.kv_heads as usize,
            width: block.head_dim as usize,
            angles: self.angles(batch.1),
            sees: (0..batch.1).map(|query| self.sees(query, batch.1)).collect(),
        };
        known.entry(batch).or_insert_with(make).clone()
    }

    /// The first key that a query sees, and the one after the last.
    fn sees(&self, query: usize, seq_len: usize) -> (usize, usize) {
        let window = self.block.keys(seq_len as u64) as usize;
        let end = if self.block.causal { query + 1 } else { (query + window).min(seq_len) };
        ((query + 1).saturating_sub(window), end)
    }

    /// RoPE in the half-split form of Llama: channel i turns with channel i + d/2 by the angle position × base^(−2i/d)
    /// (Su et al. 2021), as far as channels turn at all.
    fn angles(&self, seq_len: usize) -> Option<Angles> {
        let Positions::Rotary { base, fraction } = self.block.positions else { return None };
        let turned = ((self.block.head_dim as f64 * fraction) as usize) / 2 * 2;
        let channels = || 0..turned / 2;
        let angle =
            |position: usize, channel: usize| position as f64 * base.powf(-2.0 * channel as f64 / turned as f64);
        let table = |of: fn(f64) -> f64| {
            (0..seq_len)
                .flat_map(|position| channels().map(move |channel| of(angle(position, channel)) as f32))
                .collect()
        };
        Some(Angles { cosines: table(f64::cos), sines: table(f64::sin), turned })
    }

    /// Key or value heads, each repeated for the query heads that share it.
    fn for_each_query_head(&self, heads: Tensor<4>) -> Tensor<4> {
        let share = (self.block.heads / self.block.kv_heads) as usize;
        if share == 1 {
            return heads;
        }
        let [sequences, count, seq_len, width] = heads.dims();
        heads
            .reshape([sequences, count, 1, seq_len, width])
            .expand([sequences, count, share, seq_len, width])
            .reshape([sequences, count * share, seq_len, width])
    }

    fn constants(&self, batch: (usize, usize), device: &Device) -> Constants {
        let key = (batch.0, batch.1, format!("{device:?}"));
        let mut known = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .entry(key)
            .or_insert_with(|| Constants { mask: self.mask(batch.1, device), rotation: self.rotation(batch, device) })
            .clone()
    }

    fn mask(&self, seq_len: usize, device: &Device) -> Option<Tensor<4>> {
        let window = self.block.keys(seq_len as u64) as usize;
        if !self.block.causal && window == seq_len {
            return None;
        }
        let sees = |query: usize, key: usize| {
            let (first, end) = self.sees(query, seq_len);
            (first..end).contains(&key)
        };
        let places = (0..seq_len).flat_map(|query| (0..seq_len).map(move |key| (query, key)));
        let numbers = places.map(|(query, key)| if sees(query, key) { 0.0f32 } else { f32::NEG_INFINITY }).collect();
        Some(Tensor::from_data(TensorData::new::<f32, _>(numbers, [1, 1, seq_len, seq_len]), device))
    }

    /// The tables of [`Self::angles`] for every head and both halves, with the angle 0 for channels that do not turn.
    fn rotation(&self, (sequences, seq_len): (usize, usize), device: &Device) -> Option<Rotation> {
        let Angles { cosines, sines, turned } = self.angles(seq_len)?;
        let (width, half) = (self.block.head_dim as usize, turned / 2);
        let table = |heads: usize, numbers: &[f32], still: f32| {
            let at = |place: usize, channel: usize| {
                if channel < turned { numbers[place * half + channel % half] } else { still }
            };
            let rows =
                (0..sequences).flat_map(|_| (0..seq_len).flat_map(move |place| std::iter::repeat_n(place, heads)));
            let numbers: Vec<f32> = rows.flat_map(|place| (0..width).map(move |channel| at(place, channel))).collect();
            Tensor::from_data(TensorData::new(numbers, [sequences * seq_len * heads, width]), device)
        };
        let tables = |heads: u64| [table(heads as usize, &cosines, 1.0), table(heads as usize, &sines, 0.0)];
        let mut pairing = vec![0.0f32; width * width];
        for channel in 0..half {
            pairing[(channel + half) * width + channel] = -1.0;
            pairing[channel * width + channel + half] = 1.0;
        }
        Some(Rotation {
            queries: tables(self.block.heads),
            keys: tables(self.block.kv_heads),
            pairing: Tensor::from_data(TensorData::new(pairing, [width, width]), device),
        })
    }

    /// Numbers that its graph keeps beside its input.
    pub fn kept(&self, sequences: u64, seq_len: u64) -> u64 {
        let block = &self.block;
        let (queries, keys) = (block.query_width(), block.kv_width());
        let repeated = if block.heads == block.kv_heads { 0 } else { 2 * queries };
        let rotary = matches!(block.positions, Positions::Rotary { .. });
        let rotated = if rotary { queries + keys } else { 0 };
        let vectors = 2 * queries + 2 * keys + repeated + rotated;
        // Softmax keeps its result; Burn's composite form also keeps the exponentials.
        sequences * seq_len * vectors + 2 * sequences * block.heads * seq_len * seq_len
    }
}

/// x cos + x P sin, where P moves each channel to its partner with its sign.
fn rotate(heads: Matrix, [cosines, sines]: &[Matrix; 2], pairing: &Matrix) -> Matrix {
    heads.clone() * cosines.clone() + heads.matmul(pairing.clone()) * sines.clone()
}
