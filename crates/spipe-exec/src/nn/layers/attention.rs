//! Self-attention: by this crate's kernel on CPU cores, elsewhere by Burn's operations.

use super::{
    Matrix, Parameter, PassContext,
    activation::biased,
    cast, float,
    norm::NormUnit,
    replay::replayed,
    scaled_dot_product::{ScaledDotProduct, Span},
    wide,
};
#[cfg(feature = "cube")]
use super::{
    replay::{LinearFunction, linear_on_gpu},
    scaled_dot_product::Seen,
};
#[cfg(feature = "cube")]
use crate::nn::fused;
use crate::nn::kernels::{self, Angles, Attention, Rope};
use burn::tensor::{Device, Tensor, TensorData};
use spipe_model::{Block, Matrix as MatrixPlace, Positions, QkNorm, RotaryFrequencies, RotaryScaling};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// Projections, rotation, scores and weighted sum.
#[derive(Clone, Debug)]
pub(crate) struct AttentionUnit {
    block: Block,
    /// Norms of queries and keys.
    norms: Option<[NormUnit; 2]>,
    constants: Arc<Mutex<BTreeMap<ConstantKey, Constants>>>,
    kernels: Arc<Mutex<BTreeMap<(usize, usize), Attention>>>,
    /// The angles of the positions asked for last; all microbatches of an iteration ask for the
    /// same.
    last_angles: Arc<Mutex<Option<PlacedAngles>>>,
    /// Their tables on the GPU that asked last.
    #[cfg(feature = "cube")]
    last_tables: Arc<Mutex<Option<((Range<usize>, String), fused::Rotation)>>>,
}

/// Positions and their rotation angles.
type PlacedAngles = (Range<usize>, Angles);

/// Sequences, tokens of each, and the device by its name.
type ConstantKey = (usize, usize, String);

/// Constants of a shape.
#[derive(Clone, Debug)]
struct Constants {
    /// 0 where a query sees a key, −∞ elsewhere; none if every query sees every key.
    mask: Option<Tensor<4>>,
    /// Cosines and sines for each token, for query heads and key heads, and the matrix that pairs
    /// channels.
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
        if block.latent.is_some() {
            return Err("latent attention is not computed");
        }
        if block.sinks {
            return Err("sinks of the attention are not computed");
        }
        if let Positions::Rotary { scaling, .. } = block.positions
            && let Some(refusal) = scaling.and_then(RotaryScaling::refusal)
        {
            return Err(refusal);
        }
        let norms = |widths: [u64; 2]| Some(widths.map(|width| NormUnit::new(block.norm, block.norm_epsilon, width)));
        let norms = match block.qk_norm {
            QkNorm::None => None,
            QkNorm::Head => norms([block.head_dim; 2]),
            QkNorm::All => norms([block.query_width(), block.kv_width()]),
            QkNorm::EachHead => return Err("norms of heads with weights of their own are not computed"),
        };
        let (constants, kernels, last_angles) = Default::default();
        Ok(Self {
            block: *block,
            norms,
            constants,
            kernels,
            last_angles,
            #[cfg(feature = "cube")]
            last_tables: Arc::default(),
        })
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
        if let Some([queries, keys]) = &self.norms {
            all.extend(queries.parameters(["attention.query-norm.weight", "attention.query-norm.bias"]));
            all.extend(keys.parameters(["attention.key-norm.weight", "attention.key-norm.bias"]));
        }
        all.push(Parameter::weight("attention.output.weight", queries, block.hidden));
        if block.output_bias {
            all.push(Parameter::bias("attention.output.bias", block.hidden));
        }
        all
    }

    pub fn forward(&self, parameters: &[Matrix], input: Matrix, pass: &PassContext) -> Matrix {
        let block = &self.block;
        let (sequences, seq_len) = pass.batch;
        let mut rest = parameters.iter().cloned();
        let mut next = || rest.next().expect("as many parameters as `parameters` lists");
        let weights = [next(), next(), next()];
        let projected = weights.map(|weight| pass.multiply(input.clone(), weight));
        let places = ([MatrixPlace::Query, MatrixPlace::Key, MatrixPlace::Value], Some(MatrixPlace::QueryKeyValue));
        let mut projected = pass.adapted(&input, places, projected);
        if block.qkv_bias {
            projected = projected.map(|projection| biased(projection, next()));
        }
        let [mut queries, mut keys, values] = projected;
        if let Some([of_queries, of_keys]) = &self.norms {
            queries = normed(of_queries, queries, &mut next);
            keys = normed(of_keys, keys, &mut next);
        }
        if let Some(scale) = block.score_scale {
            // Scores are divided by √head_dim later.
            queries = queries * (block.head_dim as f64 / scale).sqrt();
        }
        let mixed = match pass.cache() {
            None => self
                .applied(|| self.kernel(pass.batch), [&queries, &keys, &values])
                .unwrap_or_else(|| self.mix(pass.batch, [queries, keys, values])),
            Some(cache) => {
                let positions = cache.past..cache.past + seq_len;
                let queries = self.turned(queries, (sequences, &positions));
                let keys = self.turned(keys, (sequences, &positions));
                let window = block.keys(positions.end as u64) as usize;
                let [keys, values] = cache.join(sequences, window, [keys, values]);
                let first = positions.end - keys.dims()[0] / sequences;
                let span = Span { sequences, keys: first..positions.end, queries: positions };
                self.applied(|| self.plain_kernel(&span), [&queries, &keys, &values])
                    .unwrap_or_else(|| self.mix_turned(&span, [queries, keys, values]))
            }
        };
        let output = pass.multiply(mixed.clone(), next());
        let [output] = pass.adapted(&mixed, ([MatrixPlace::Output], None), [output]);
        if block.output_bias { biased(output, next()) } else { output }
    }

    /// The output of this crate's kernel, where it runs; it has no bound of scores.
    fn applied(&self, kernel: impl Fn() -> Attention, inputs: [&Matrix; 3]) -> Option<Matrix> {
        self.block.score_cap.is_none().then(|| kernels::apply(kernel(), inputs)).flatten()
    }

    /// The value of the kernel, by Burn's operations.
    fn mix(&self, batch: (usize, usize), [queries, keys, values]: [Matrix; 3]) -> Matrix {
        #[cfg(feature = "cube")]
        if fused::is_on_gpu(&queries) {
            let [queries, keys] = [queries, keys].map(|rows| self.turned(rows, (batch.0, &(0..batch.1))));
            return self.mix_heads(&Span::whole(batch), [queries, keys, values], None);
        }
        let block = &self.block;
        let [heads, kv_heads, width] = [block.heads, block.kv_heads, block.head_dim].map(|number| number as usize);
        let tokens = batch.0 * batch.1;
        let constants = self.constants(batch, &queries.device().without_autodiff());
        let mut queries = queries.reshape([tokens * heads, width]);
        let mut keys = keys.reshape([tokens * kv_heads, width]);
        if let Some(rotation) = &constants.rotation {
            queries = rotate(queries, &rotation.queries, &rotation.pairing);
            keys = rotate(keys, &rotation.keys, &rotation.pairing);
        }
        self.mix_heads(&Span::whole(batch), [queries, keys, values], constants.mask)
    }

    /// The same for queries and keys that are already rotated.
    fn mix_turned(&self, span: &Span, inputs: [Matrix; 3]) -> Matrix {
        #[cfg(feature = "cube")]
        if fused::is_on_gpu(&inputs[0]) {
            return self.mix_heads(span, inputs, None);
        }
        let mask = self.mask(span, &inputs[0].device().without_autodiff());
        self.mix_heads(span, inputs, mask)
    }

    /// Scores, softmax and weighted sum of values.
    fn mix_heads(&self, span: &Span, inputs: [Matrix; 3], mask: Option<Tensor<4>>) -> Matrix {
        let Block { heads, kv_heads, head_dim, .. } = self.block;
        let [heads, key_heads, width] = [heads, kv_heads, head_dim].map(|number| number as usize);
        let function = ScaledDotProduct {
            span: span.clone(),
            heads,
            key_heads,
            width,
            cap: self.block.score_cap,
            #[cfg(feature = "cube")]
            seen: Seen { causal: self.block.causal, window: self.block.keys(span.keys.end as u64) as usize },
            mask,
        };
        replayed(&function, inputs)
    }

    /// Rows of queries or keys, rotated by the positions of their tokens.
    fn turned(&self, rows: Matrix, (sequences, positions): (usize, &Range<usize>)) -> Matrix {
        let Some(angles) = self.angles(positions.clone()) else { return rows };
        let width = self.block.head_dim as usize;
        if let Some(turned) = kernels::apply(Rope { angles, width }, [&rows]) {
            return turned;
        }
        #[cfg(feature = "cube")]
        if let Some(turned) = self.turned_on_gpu(&rows, positions) {
            return turned;
        }
        let [tokens, columns] = rows.dims();
        let heads = columns / width;
        let device = rows.device().without_autodiff();
        match self.tables(sequences, positions.clone(), heads, &device).zip(self.pairing(&device)) {
            Some((tables, pairing)) => {
                rotate(rows.reshape([tokens * heads, width]), &tables, &pairing).reshape([tokens, columns])
            }
            None => rows,
        }
    }

    /// The same by a kernel of a GPU; none elsewhere.
    #[cfg(feature = "cube")]
    fn turned_on_gpu(&self, rows: &Matrix, positions: &Range<usize>) -> Option<Matrix> {
        if !fused::is_on_gpu(rows) {
            return None;
        }
        let device = rows.device().without_autodiff();
        let key = (positions.clone(), format!("{device:?}"));
        let mut last = self.last_tables.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.take().filter(|(of, _)| *of == key).map(|(_, rotation)| rotation);
        let make = || {
            let Angles { cosines, sines, turned } = self.angles(positions.clone())?;
            let table = |numbers: &[f32]| {
                let numbers = TensorData::new(numbers.to_vec(), [positions.len(), turned / 2]);
                Tensor::from_data(numbers, &device)
            };
            let (tables, width) = ([table(&cosines), table(&sines)], self.block.head_dim as usize);
            Some(fused::Rotation { tables, width })
        };
        let rotation = known.or_else(make)?;
        *last = Some((key, rotation.clone()));
        linear_on_gpu(&rotation, [rows])
    }

    fn kernel(&self, batch: (usize, usize)) -> Attention {
        let mut known = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Attention { angles: self.angles(0..batch.1), ..self.plain_kernel(&Span::whole(batch)) };
        known.entry(batch).or_insert_with(make).clone()
    }

    /// The kernel for queries and keys that are already rotated.
    fn plain_kernel(&self, span: &Span) -> Attention {
        Attention {
            batch: (span.sequences, span.queries.len()),
            keys: span.keys.len(),
            heads: self.block.heads as usize,
            key_heads: self.block.kv_heads as usize,
            width: self.block.head_dim as usize,
            angles: None,
            sees: span.queries.clone().map(|query| self.sees(query, &span.keys)).collect(),
        }
    }

    /// The first key that a query sees, and the one after the last, counted from the first of
    /// `keys`.
    fn sees(&self, query: usize, keys: &Range<usize>) -> (usize, usize) {
        let window = self.block.keys(keys.end as u64) as usize;
        let end = if self.block.causal { query + 1 } else { (query + window).min(keys.end) };
        ((query + 1).saturating_sub(window).saturating_sub(keys.start), end - keys.start)
    }

    /// The rotation angles of some positions; none without rotary embedding.
    fn angles(&self, positions: Range<usize>) -> Option<Angles> {
        let Positions::Rotary { base, fraction, scaling } = self.block.positions else { return None };
        let mut last = self.last_angles.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.take().filter(|(of, _)| *of == positions);
        let turned = (self.block.head_dim as f64 * fraction) as u64 / 2 * 2;
        let make = || RotaryFrequencies::new(base, turned, scaling, positions.end as u64);
        let (_, angles) = last.insert(known.unwrap_or_else(|| (positions.clone(), rotary(positions.clone(), &make()))));
        Some(angles.clone())
    }

    fn constants(&self, batch: (usize, usize), device: &Device) -> Constants {
        let key = (batch.0, batch.1, format!("{device:?}"));
        let mut known = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .entry(key)
            .or_insert_with(|| Constants {
                mask: self.mask(&Span::whole(batch), device),
                rotation: self.rotation(batch, device),
            })
            .clone()
    }

    /// None if every query sees every key.
    fn mask(&self, span: &Span, device: &Device) -> Option<Tensor<4>> {
        let keys = span.keys.len();
        let seen: Vec<(usize, usize)> = span.queries.clone().map(|query| self.sees(query, &span.keys)).collect();
        if seen.iter().all(|seen| *seen == (0, keys)) {
            return None;
        }
        let row = |(first, end): &(usize, usize)| {
            let seen = *first..*end;
            (0..keys).map(move |key| if seen.contains(&key) { 0.0f32 } else { f32::NEG_INFINITY })
        };
        let numbers: Vec<f32> = seen.iter().flat_map(row).collect();
        Some(Tensor::from_data(TensorData::new(numbers, [1, 1, seen.len(), keys]), device))
    }

    fn rotation(&self, (sequences, seq_len): (usize, usize), device: &Device) -> Option<Rotation> {
        let tables = |heads: u64| self.tables(sequences, 0..seq_len, heads as usize, device);
        Some(Rotation {
            queries: tables(self.block.heads)?,
            keys: tables(self.block.kv_heads)?,
            pairing: self.pairing(device)?,
        })
    }

    /// The tables of [`Self::angles`] for every head and both halves, with the angle 0 for channels
    /// that do not rotate.
    fn tables(&self, sequences: usize, positions: Range<usize>, heads: usize, device: &Device) -> Option<[Matrix; 2]> {
        let seq_len = positions.len();
        let Angles { cosines, sines, turned } = self.angles(positions)?;
        let (width, half) = (self.block.head_dim as usize, turned / 2);
        let table = |numbers: &[f32], still: f32| {
            let at = |place: usize, channel: usize| {
                if channel < turned { numbers[place * half + channel % half] } else { still }
            };
            let rows =
                (0..sequences).flat_map(|_| (0..seq_len).flat_map(move |place| std::iter::repeat_n(place, heads)));
            let numbers: Vec<f32> = rows.flat_map(|place| (0..width).map(move |channel| at(place, channel))).collect();
            Tensor::from_data(TensorData::new(numbers, [sequences * seq_len * heads, width]), device)
        };
        Some([table(&cosines, 1.0), table(&sines, 0.0)])
    }

    /// The matrix that moves each channel to its partner, with its sign.
    fn pairing(&self, device: &Device) -> Option<Matrix> {
        let Positions::Rotary { fraction, .. } = self.block.positions else { return None };
        let width = self.block.head_dim as usize;
        let half = (self.block.head_dim as f64 * fraction) as usize / 2;
        let mut pairing = vec![0.0f32; width * width];
        for channel in 0..half {
            pairing[(channel + half) * width + channel] = -1.0;
            pairing[channel * width + channel + half] = 1.0;
        }
        Some(Tensor::from_data(TensorData::new(pairing, [width, width]), device))
    }

    /// Count of numbers that its graph keeps beside its input: queries, keys, values and the
    /// output; with `ours`, this crate's kernel, also the probabilities once.
    pub const fn saved(&self, sequences: u64, seq_len: u64, ours: bool) -> u64 {
        let block = &self.block;
        let scores = if ours { sequences * block.heads * seq_len * seq_len } else { 0 };
        sequences * seq_len * 2 * (block.query_width() + block.kv_width()) + scores
    }
}

#[cfg(feature = "cube")]
impl LinearFunction<1> for fused::Rotation {
    fn value(&self, [rows]: [Matrix; 1]) -> Matrix {
        fused::turned(self, &rows, 1.0).expect("rows are on a GPU")
    }

    /// The transpose of a rotation is the inverse one.
    fn gradients(&self, gradient: Matrix) -> [Matrix; 1] {
        [fused::turned(self, &gradient, -1.0).expect("a gradient is on the device of its value")]
    }
}

/// Rows of `input`, as wide as the norm, normalised each with the norm's parameters.
fn normed(norm: &NormUnit, input: Matrix, next: &mut impl FnMut() -> Matrix) -> Matrix {
    let [rows, columns] = input.dims();
    let parameters: Vec<Matrix> = (0..norm.count()).map(|_| next()).collect();
    let width = norm.width();
    norm.forward(&parameters, input.reshape([rows * columns / width, width])).reshape([rows, columns])
}

/// x cos + x P sin, where P moves each channel to its partner with its sign, which is exact in any
/// width.
fn rotate(heads: Matrix, [cosines, sines]: &[Matrix; 2], pairing: &Matrix) -> Matrix {
    let width = float(heads.dtype());
    let partners = wide(heads.clone().matmul(cast(pairing.clone(), width)));
    cast(wide(heads) * cosines.clone() + partners * sines.clone(), width)
}

/// RoPE in the half-split form of Llama: channels i and i + d/2 rotate by the angle position ×
/// frequency of i, for d rotating channels (Su et al. 2021); scaled ones may be longer or shorter.
fn rotary(positions: Range<usize>, RotaryFrequencies { frequencies, attention_factor }: &RotaryFrequencies) -> Angles {
    let table = |of: fn(f64) -> f64| {
        let row = |position: usize| {
            frequencies.iter().map(move |frequency| (attention_factor * of(position as f64 * frequency)) as f32)
        };
        positions.clone().flat_map(row).collect()
    };
    Angles { cosines: table(f64::cos), sines: table(f64::sin), turned: 2 * frequencies.len() }
}
