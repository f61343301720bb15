//! The softmax of attention's scores, with its bound and its mask, and its gradient.

use super::{
    LOWEST, UNITS, addresses, blank, cubes, element, largest, matrix, own, rows_and_columns, total, units, view,
};
use burn::tensor::Tensor;
use burn_cubecl::cubecl::{
    self,
    ir::ElemType,
    prelude::*,
    std::tensor::layout::linear::{LinearView, LinearViewMut},
};

/// The softmax of rows of scores, one for each query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    /// The bound of scores: b tanh(s ÷ b).
    pub cap: Option<f32>,
    /// Rows of one head.
    pub queries: usize,
    /// Position of the first query, counted from the first key.
    pub first_query: usize,
    /// Number of keys up to its own that a query sees.
    pub window: usize,
    /// Whether it sees no later ones.
    pub causal: bool,
}

/// The parts of [`Softmax`] that a kernel gets.
#[derive(CubeType, CubeLaunch)]
struct Scores {
    cap: f32,
    queries: usize,
    first_query: usize,
    window: usize,
}

/// The first key that the query of a row sees, and the one after the last.
#[cube]
fn seen(row: usize, keys: usize, how: &Scores, #[comptime] causal: bool) -> (usize, usize) {
    let behind = row % how.queries + how.first_query + 1;
    let mut first = 0usize;
    if behind > how.window {
        first = behind - how.window;
    }
    let mut end = behind;
    if comptime!(!causal) {
        end = behind + how.window - 1;
    }
    if end > keys {
        end = keys;
    }
    (first, end)
}

/// A score after the bound.
#[cube]
fn score(raw: f32, cap: f32, #[comptime] capped: bool) -> f32 {
    let mut score = raw;
    if comptime!(capped) {
        score = cap * f32::tanh(score / cap);
    }
    score
}

/// The largest score of a row among those from the first seen one to the last, and Σ e^(s − largest).
#[cube]
pub(super) fn statistics<F: Float>(
    scores: &LinearView<'_, F>,
    start: usize,
    seen: (usize, usize),
    cap: f32,
    shared: &mut Shared<[f32]>,
    #[comptime] capped: bool,
) -> (f32, f32) {
    let (first, end) = seen;
    let mut best = f32::new(LOWEST);
    let mut key = first + UNIT_POS as usize;
    while key < end {
        let score = score(f32::cast_from(scores.read(start + key)), cap, capped);
        best = select(score > best, score, best);
        key += CUBE_DIM as usize;
    }
    let best = largest(shared, best);
    let mut sum = 0.0f32;
    let mut key = first + UNIT_POS as usize;
    while key < end {
        let score = score(f32::cast_from(scores.read(start + key)), cap, capped);
        sum += f32::exp(score - best);
        key += CUBE_DIM as usize;
    }
    (best, total(shared, sum))
}

#[cube(launch, address_type = "dynamic")]
fn forward<F: Float>(
    scores: LinearView<'_, F>,
    mut shares: LinearViewMut<'_, F>,
    rows: usize,
    keys: usize,
    how: Scores,
    #[comptime] capped: bool,
    #[comptime] causal: bool,
    #[define(F)] _width: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * keys;
    let (first, end) = seen(row, keys, &how, causal);
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    let (best, sum) = statistics::<F>(&scores, start, (first, end), how.cap, &mut shared, capped);
    let mut key = UNIT_POS as usize;
    while key < keys {
        let mut share = 0.0f32;
        if key >= first && key < end {
            share = f32::exp(score(f32::cast_from(scores.read(start + key)), how.cap, capped) - best) / sum;
        }
        shares.write(start + key, F::cast_from(share));
        key += CUBE_DIM as usize;
    }
}

/// With P the softmax: dS = P (dP − Σ dP P), times the slope of the bound; P is written too.
#[cube(launch, address_type = "dynamic")]
fn backward<F: Float>(
    scores: LinearView<'_, F>,
    of_shares: LinearView<'_, F>,
    mut shares: LinearViewMut<'_, F>,
    mut of_scores: LinearViewMut<'_, F>,
    rows: usize,
    keys: usize,
    how: Scores,
    #[comptime] capped: bool,
    #[comptime] causal: bool,
    #[define(F)] _width: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * keys;
    let (first, end) = seen(row, keys, &how, causal);
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    let (best, sum) = statistics::<F>(&scores, start, (first, end), how.cap, &mut shared, capped);
    let mut across = 0.0f32;
    let mut key = first + UNIT_POS as usize;
    while key < end {
        let share = f32::exp(score(f32::cast_from(scores.read(start + key)), how.cap, capped) - best) / sum;
        across += share * f32::cast_from(of_shares.read(start + key));
        key += CUBE_DIM as usize;
    }
    let across = total(&mut shared, across);
    let mut key = UNIT_POS as usize;
    while key < keys {
        let mut share = 0.0f32;
        let mut found = 0.0f32;
        if key >= first && key < end {
            let score = score(f32::cast_from(scores.read(start + key)), how.cap, capped);
            share = f32::exp(score - best) / sum;
            found = share * (f32::cast_from(of_shares.read(start + key)) - across);
            if comptime!(capped) {
                let bent = score / how.cap;
                found *= 1.0f32 - bent * bent;
            }
        }
        shares.write(start + key, F::cast_from(share));
        of_scores.write(start + key, F::cast_from(found));
        key += CUBE_DIM as usize;
    }
}

impl Softmax {
    fn launch(self) -> ScoresLaunch {
        let Self { cap, queries, first_query, window, .. } = self;
        ScoresLaunch::new(cap.unwrap_or(1.0), queries, first_query, window)
    }
}

/// The shares of the keys, of scores of sequences × heads × queries × keys; none on cores.
pub(crate) fn shares(how: Softmax, scores: &Tensor<4>) -> Option<Tensor<4>> {
    let scores = own(scores)?;
    let [rows, keys] = rows_and_columns(&scores);
    let found = blank(&scores, scores.meta.shape().clone(), scores.dtype);
    let client = &scores.client;
    let (dim, addresses, width) = (units(client), addresses([&scores]), element(scores.dtype));
    let [from, to] = [&scores, &found].map(view);
    let Softmax { cap, causal, .. } = how;
    forward::launch(
        client,
        cubes(rows),
        dim,
        addresses,
        from,
        to,
        rows,
        keys,
        how.launch(),
        cap.is_some(),
        causal,
        width,
    );
    Some(matrix(found))
}

/// The shares, and the gradient of the scores from that of the shares; none on cores.
pub(crate) fn score_gradients(how: Softmax, [scores, of_shares]: [&Tensor<4>; 2]) -> Option<[Tensor<4>; 2]> {
    let (scores, of_shares) = (own(scores)?, own(of_shares)?);
    let [rows, keys] = rows_and_columns(&scores);
    let [shares, found] = [(); 2].map(|()| blank(&scores, scores.meta.shape().clone(), scores.dtype));
    let client = &scores.client;
    let (dim, addresses, width) = (units(client), addresses([&scores]), element(scores.dtype));
    let [from, gradient, to, of] = [&scores, &of_shares, &shares, &found].map(view);
    let Softmax { cap, causal, .. } = how;
    backward::launch(
        client,
        cubes(rows),
        dim,
        addresses,
        from,
        gradient,
        to,
        of,
        rows,
        keys,
        how.launch(),
        cap.is_some(),
        causal,
        width,
    );
    Some([shares, found].map(matrix))
}
