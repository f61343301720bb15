//! Attention between projections: rotation, scores, softmax and weighted sum, head by head.
//!
//! Only the probabilities are kept for the derivative, once.

use super::{
    Array, Kernel, KernelOutput,
    exponential::{exp, largest, sum},
    product::{View, multiply_here},
};
use crate::device::simd::for_each_width;
use rayon::prelude::*;
use std::sync::Arc;

/// Cosines and sines of the angles by which channels i and i + d/2 rotate, positions × channels of
/// half a head.
#[derive(Clone, Debug)]
pub(crate) struct Angles {
    pub cosines: Arc<[f32]>,
    pub sines: Arc<[f32]>,
    /// Number of channels that rotate; the others stay.
    pub turned: usize,
}

/// Inputs: queries of tokens × (heads · width), keys and values of tokens × (key heads · width).
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    /// Sequences, and queries of each.
    pub batch: (usize, usize),
    /// Keys and values per sequence. There are more than queries if some belong to earlier tokens.
    pub keys: usize,
    pub heads: usize,
    /// Heads of keys and values; each is shared by `heads / key_heads` query heads.
    pub key_heads: usize,
    pub width: usize,
    pub angles: Option<Angles>,
    /// For each query, the first key that it sees, and the one after the last.
    pub sees: Arc<[(usize, usize)]>,
}

/// Multiplications per task at least: waking a thread pays from about 20 µs of work.
const TASK: usize = 1 << 18;
/// Rows per task of a copy.
const ROWS: usize = 16;

/// A head of one sequence, positions × channels.
type Head = Vec<f32>;

for_each_width! {
    /// Rotates pairs of channels in place: x cos − y sin, y cos + x sin. `direction` is −1 for the
    /// inverse.
    fn turn(head: &mut [f32], width: usize, angles: &Angles, direction: f32) {
        let half = angles.turned / 2;
        let tables = angles.cosines.chunks_exact(half).zip(angles.sines.chunks_exact(half));
        for (row, (cosines, sines)) in head.chunks_exact_mut(width).zip(tables) {
            let (first, second) = row[..2 * half].split_at_mut(half);
            for (((x, y), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                let sine = direction * sine;
                (*x, *y) = (*x * cosine - *y * sine, *y * cosine + *x * sine);
            }
        }
    }

    /// Replaces the visible part of each row by its softmax, and the rest by zero.
    fn softmax(scores: &mut [f32], keys: usize, sees: &[(usize, usize)]) {
        for (row, (first, end)) in scores.chunks_exact_mut(keys).zip(sees) {
            row[..*first].fill(0.0);
            row[*end..].fill(0.0);
            let row = &mut row[*first..*end];
            let top = largest(row);
            for number in row.iter_mut() {
                *number = exp(*number - top);
            }
            let total = 1.0 / sum(row.len(), |index| row[index]);
            for number in row {
                *number *= total;
            }
        }
    }

    /// p (g − Σ p g) for each row, in place of g.
    fn softmax_backward(probabilities: &[f32], gradients: &mut [f32], keys: usize) {
        for (row, gradients) in probabilities.chunks_exact(keys).zip(gradients.chunks_exact_mut(keys)) {
            let along = sum(keys, |index| row[index] * gradients[index]);
            for (gradient, probability) in gradients.iter_mut().zip(row) {
                *gradient = probability * (*gradient - along);
            }
        }
    }

    fn scale(numbers: &mut [f32], factor: f32) {
        for number in numbers {
            *number *= factor;
        }
    }

    fn add(to: &mut [f32], more: &[f32]) {
        for (to, more) in to.iter_mut().zip(more) {
            *to += more;
        }
    }
}

impl Attention {
    fn tokens(&self) -> usize {
        self.batch.1
    }

    /// Number of heads, and of rows per sequence: for queries, and for keys and values.
    const fn of_queries(&self) -> (usize, usize) {
        (self.heads, self.batch.1)
    }

    const fn of_keys(&self) -> (usize, usize) {
        (self.key_heads, self.keys)
    }

    /// Query heads per key head.
    fn share(&self) -> usize {
        self.heads / self.key_heads
    }

    fn factor(&self) -> f32 {
        (1.0 / (self.width as f64).sqrt()) as f32
    }

    /// Copies one head of a sequence out of rows of `heads` heads.
    fn head(&self, numbers: &[f32], (heads, tokens): (usize, usize), (sequence, head): (usize, usize)) -> Head {
        let mut found = Vec::with_capacity(tokens * self.width);
        let rows = numbers.chunks_exact(heads * self.width).skip(sequence * tokens).take(tokens);
        rows.for_each(|row| found.extend_from_slice(&row[head * self.width..(head + 1) * self.width]));
        found
    }

    /// The same head in place.
    fn part<'a>(&self, numbers: &'a [f32], (heads, tokens): (usize, usize), at: (usize, usize)) -> View<'a> {
        let step = heads * self.width;
        View::strided(&numbers[at.0 * tokens * step + at.1 * self.width..], [tokens, self.width], step)
    }

    /// Joins heads, in the order of (sequence, head), to rows of all heads.
    fn rows(&self, (heads, tokens): (usize, usize), parts: &[Head]) -> Vec<f32> {
        let mut rows = vec![0.0; self.batch.0 * tokens * heads * self.width];
        rows.par_chunks_exact_mut(heads * self.width).with_min_len(ROWS).enumerate().for_each(|(token, row)| {
            let (sequence, position) = (token / tokens, token % tokens);
            for (head, to) in row.chunks_exact_mut(self.width).enumerate() {
                let from = &parts[sequence * heads + head];
                to.copy_from_slice(&from[position * self.width..(position + 1) * self.width]);
            }
        });
        rows
    }

    /// A head of queries, rotated and scaled.
    fn queries(&self, numbers: &[f32], sequence: usize, head: usize) -> Head {
        let mut queries = self.head(numbers, self.of_queries(), (sequence, head));
        self.turn(&mut queries, 1.0);
        scale(&mut queries, self.factor());
        queries
    }

    fn keys(&self, numbers: &[f32], sequence: usize, head: usize) -> Head {
        let mut keys = self.head(numbers, self.of_keys(), (sequence, head));
        self.turn(&mut keys, 1.0);
        keys
    }

    fn turn(&self, head: &mut [f32], direction: f32) {
        if let Some(angles) = self.angles.as_ref().filter(|angles| angles.turned > 0) {
            turn(head, self.width, angles, direction);
        }
    }

    /// A head as a matrix.
    fn view<'a>(&self, head: &'a [f32]) -> View<'a> {
        View::new(head, [head.len() / self.width, self.width])
    }

    /// Queries × keys.
    fn scores<'a>(&self, numbers: &'a [f32]) -> View<'a> {
        View::new(numbers, [self.tokens(), self.keys])
    }

    /// Sequence and head of each task.
    fn tasks(&self, heads: usize) -> impl IndexedParallelIterator<Item = (usize, usize)> {
        let count = self.batch.0 * heads;
        let each = 2 * self.tokens() * self.keys * self.width * self.heads / heads;
        let together = if each * count < TASK { count } else { 1 };
        (0..count)
            .into_par_iter()
            .with_min_len(together)
            .with_max_len(together.max(1))
            .map(move |task| (task / heads, task % heads))
    }

    /// Gradients of the query heads of a group, and of the keys and values that they share.
    fn group_backward(
        &self,
        [queries, keys, values]: [Array<'_>; 3],
        kept: &[Head],
        gradient: &[f32],
        (sequence, group): (usize, usize),
    ) -> (Vec<Head>, [Head; 2]) {
        let keys = self.keys(keys.numbers, sequence, group);
        let values = self.head(values.numbers, self.of_keys(), (sequence, group));
        let (tokens, width) = (self.tokens(), self.width);
        let mut sums = [vec![0.0; keys.len()], vec![0.0; keys.len()]];
        let heads = group * self.share()..(group + 1) * self.share();
        let queries = heads
            .map(|head| {
                let probabilities = &kept[sequence * self.heads + head];
                let queries = self.queries(queries.numbers, sequence, head);
                let gradient = self.head(gradient, self.of_queries(), (sequence, head));
                let of_values =
                    product(self.scores(probabilities).transposed(), self.view(&gradient), [self.keys, width]);
                let mut scores = product(self.view(&gradient), self.view(&values).transposed(), [tokens, self.keys]);
                softmax_backward(probabilities, &mut scores, self.keys);
                let of_keys = product(self.scores(&scores).transposed(), self.view(&queries), [self.keys, width]);
                add(&mut sums[0], &of_keys);
                add(&mut sums[1], &of_values);
                let mut of_queries = product(self.scores(&scores), self.view(&keys), [tokens, width]);
                self.turn(&mut of_queries, -1.0);
                scale(&mut of_queries, self.factor());
                of_queries
            })
            .collect();
        self.turn(&mut sums[0], -1.0);
        (queries, sums)
    }
}

fn product(left: View<'_>, right: View<'_>, [rows, columns]: [usize; 2]) -> Vec<f32> {
    let mut numbers = vec![0.0; rows * columns];
    multiply_here(left, right, &mut numbers);
    numbers
}

impl Kernel<3> for Attention {
    /// Probabilities of each sequence and head.
    type Saved = Arc<[Head]>;

    fn forward(&self, [queries, keys, values]: [Array<'_>; 3]) -> (KernelOutput, Self::Saved) {
        let head = |(sequence, head): (usize, usize)| {
            let group = head / self.share();
            let queries = self.queries(queries.numbers, sequence, head);
            let (tokens, width) = (self.tokens(), self.width);
            let part = |numbers| self.part(numbers, self.of_keys(), (sequence, group));
            let turned = self.angles.is_some().then(|| self.keys(keys.numbers, sequence, group));
            let keys = turned.as_ref().map_or_else(|| part(keys.numbers), |turned| self.view(turned));
            let mut scores = product(self.view(&queries), keys.transposed(), [tokens, self.keys]);
            softmax(&mut scores, self.keys, &self.sees);
            let mixed = product(self.scores(&scores), part(values.numbers), [tokens, width]);
            (mixed, scores)
        };
        let (mixed, kept): (Vec<Head>, Vec<Head>) = self.tasks(self.heads).map(head).unzip();
        let shape = [self.batch.0 * self.tokens(), self.heads * self.width];
        (KernelOutput { numbers: self.rows(self.of_queries(), &mixed), shape }, kept.into())
    }

    fn backward(
        &self,
        inputs: [Array<'_>; 3],
        kept: &Self::Saved,
        gradient: &[f32],
        wanted: [bool; 3],
    ) -> [Option<Vec<f32>>; 3] {
        let group = |task| self.group_backward(inputs, kept, gradient, task);
        let found: Vec<(Vec<Head>, [Head; 2])> = self.tasks(self.key_heads).map(group).collect();
        let (queries, shared): (Vec<Vec<Head>>, Vec<[Head; 2]>) = found.into_iter().unzip();
        let queries: Vec<Head> = queries.into_iter().flatten().collect();
        let (keys, values): (Vec<Head>, Vec<Head>) = shared.into_iter().map(<(Head, Head)>::from).unzip();
        [
            wanted[0].then(|| self.rows(self.of_queries(), &queries)),
            wanted[1].then(|| self.rows(self.of_keys(), &keys)),
            wanted[2].then(|| self.rows(self.of_keys(), &values)),
        ]
    }
}
