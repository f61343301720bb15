//! Adafactor: gradients divided by the roots of averages over rows and columns.

use super::{
    Numbers, Rule, To, convert,
    half::{Wide, on_numbers},
    state::{Extent, Slot, TensorState},
};
use crate::device::simd::for_each_width;
use rayon::prelude::*;

/// Adafactor (Shazeer, Stern, arXiv 1804.04235, algorithms 4 and 5) without momentum, as
/// `torch.optim.Adafactor` has it: the learning rate is a bound of the relative step, which decays with
/// the number of steps, and weight decay is decoupled.
///
/// A step needs sums over the whole tensor, and cannot be inverted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Adafactor {
    pub weight_decay: f64,
}

/// The exponent of the decay of averages.
const DECAY: f64 = -0.8;
/// The least root of an average: the rounding unit of f32.
const LEAST_ROOT: f32 = f32::EPSILON;
/// The least size of a parameter, as the root of its mean square.
const LEAST_SIZE: f64 = 1e-3;
/// The size of an update from which it is scaled down.
const MOST_UPDATE: f64 = 1.0;
/// Partial sums over the columns of a matrix, by ranges of rows.
const RANGES: usize = 64;
/// Numbers per range at least.
const LEAST_RANGE: usize = 1 << 13;
/// Partial sums in f32 of one row or range, so that loops are vectorised.
const LANES: usize = 16;
/// Numbers that are summed in f32 before the sum goes on in f64.
const BLOCK: usize = 1 << 10;

impl Rule for Adafactor {
    /// Averages over rows and over columns of a matrix, or of each number of a vector.
    fn slots(&self, tensor: &Extent) -> Vec<Slot> {
        let [rows, columns] = tensor.shape;
        match rows.min(columns) {
            0 | 1 => vec![Slot::per_number("variance", tensor)],
            _ => vec![Slot::of("row-variance", rows), Slot::of("column-variance", columns)],
        }
    }

    fn step(&self, lr: f64, parameters: &mut [f32], (gradients, factor): (Numbers<'_>, f32), (state, weights): To<'_>) {
        state.steps += 1;
        let job = Job { lr, keep: (1.0 - lr * self.weight_decay) as f32, factor, steps: state.steps };
        on_numbers!(gradients, gradients => job.run(parameters, gradients, state));
        weights.into_iter().for_each(|weights| convert(Numbers::F32(parameters), weights.into()));
    }

    fn needs_whole_tensors(&self) -> bool {
        true
    }
}

/// One step.
struct Job {
    lr: f64,
    keep: f32,
    factor: f32,
    steps: u32,
}

/// The estimate of a number's second moment: `rows` × `columns`, or `columns` alone for a vector.
#[derive(Clone, Copy)]
struct Estimate<'a> {
    rows: Option<&'a [f32]>,
    columns: &'a [f32],
    width: usize,
}

/// The sums of a range of rows.
struct Sums {
    columns: Vec<f32>,
    parameters: f64,
}

impl Job {
    fn run<G: Wide>(&self, parameters: &mut [f32], gradients: &[G], state: &mut TensorState) {
        assert_eq!(parameters.len(), gradients.len(), "parameters and gradients differ in length");
        if parameters.is_empty() {
            return;
        }
        let weight = f64::from(self.steps).powf(DECAY) as f32;
        if state.buffers.len() == 2 {
            let [rows, columns] = state.numbers_mut();
            assert_eq!(rows.len() * columns.len(), gradients.len(), "the state is another tensor's");
            let squares = self.averages(parameters, gradients, (&mut *rows, &mut *columns), weight);
            // The row factor also divides by the mean of all rows.
            let mean = rows.iter().map(|row| f64::from(*row)).sum::<f64>() / rows.len() as f64;
            let scale = (1.0 / mean.max(f64::from(LEAST_ROOT))) as f32;
            let rows: Vec<f32> = rows.iter().map(|row| row * scale).collect();
            let estimate = Estimate { rows: Some(&rows), columns, width: columns.len() };
            self.apply(parameters, gradients, (estimate, squares));
            return;
        }
        let [variances] = state.numbers_mut();
        let factor = self.factor;
        let width = range(gradients.len());
        let parts = parameters.par_chunks(width).zip(gradients.par_chunks(width)).zip(variances.par_chunks_mut(width));
        let squares: Vec<f64> = parts
            .map(|((parameters, gradients), variances)| {
                let mut squares = 0.0;
                average(variances, gradients, (factor, weight));
                sum_squares(parameters, &mut squares);
                squares
            })
            .collect();
        let estimate = Estimate { rows: None, columns: variances, width };
        self.apply(parameters, gradients, (estimate, squares.iter().sum()));
    }

    /// Moves the averages over rows and columns towards the gradients' squares by `weight`; returns the
    /// sum of the squares of the parameters.
    fn averages<G: Wide>(
        &self,
        parameters: &[f32],
        gradients: &[G],
        (rows, columns): (&mut [f32], &mut [f32]),
        weight: f32,
    ) -> f64 {
        let width = columns.len();
        let tall = rows_per_range(rows.len(), width);
        let (parameters, gradients) = (parameters.par_chunks(tall * width), gradients.par_chunks(tall * width));
        let ranges = parameters.zip(gradients).zip(rows.par_chunks_mut(tall));
        let sums: Vec<Sums> = ranges
            .map(|((parameters, gradients), rows)| {
                let mut sums = Sums { columns: vec![0.0; width], parameters: 0.0 };
                sum_squares(parameters, &mut sums.parameters);
                for (row, gradients) in rows.iter_mut().zip(gradients.chunks(width)) {
                    let mut sum = 0.0;
                    add_row(gradients, self.factor, &mut sums.columns, &mut sum);
                    *row += weight * ((sum / width as f64) as f32 - *row);
                }
                sums
            })
            .collect();
        let mut all = vec![0.0f32; width];
        for sums in &sums {
            all.iter_mut().zip(&sums.columns).for_each(|(all, sum)| *all += sum);
        }
        for (column, sum) in columns.iter_mut().zip(all) {
            *column += weight * (sum / rows.len() as f32 - *column);
        }
        sums.iter().map(|sums| sums.parameters).sum()
    }

    /// Scales and adds the update, after the weight decay.
    fn apply<G: Wide>(&self, parameters: &mut [f32], gradients: &[G], (estimate, squares): (Estimate<'_>, f64)) {
        let count = gradients.len();
        let tall = match estimate.rows {
            Some(rows) => rows_per_range(rows.len(), estimate.width),
            None => 1,
        };
        let range = tall * estimate.width;
        let updates: Vec<f64> = gradients
            .par_chunks(range)
            .enumerate()
            .map(|(place, gradients)| {
                let mut sum = 0.0;
                for (gradients, (row, columns)) in gradients.chunks(estimate.width).zip(estimate.lines(place, tall)) {
                    add_updates(gradients, self.factor, row, columns, &mut sum);
                }
                sum
            })
            .collect();
        let root = |sum: f64| (sum / count as f64).sqrt();
        let relative = self.lr.min(1.0 / f64::from(self.steps).sqrt());
        let step = root(squares).max(LEAST_SIZE) * relative / (root(updates.iter().sum()) / MOST_UPDATE).max(1.0);
        let scalars = (self.factor, self.keep, -step as f32);
        parameters.par_chunks_mut(range).zip(gradients.par_chunks(range)).enumerate().for_each(
            |(place, (parameters, gradients))| {
                let lines = parameters.chunks_mut(estimate.width).zip(gradients.chunks(estimate.width));
                for ((parameters, gradients), (row, columns)) in lines.zip(estimate.lines(place, tall)) {
                    update(parameters, gradients, scalars, row, columns);
                }
            },
        );
    }
}

impl<'a> Estimate<'a> {
    /// The factors of the lines of range `place` of `tall` lines.
    fn lines(self, place: usize, tall: usize) -> impl Iterator<Item = (f32, &'a [f32])> {
        (place * tall..(place + 1) * tall).map(move |line| match self.rows {
            Some(rows) => (rows.get(line).copied().unwrap_or_default(), self.columns),
            None => (1.0, self.columns.chunks(self.width).nth(line).unwrap_or_default()),
        })
    }
}

/// Numbers of a vector that one task takes; independent of the number of threads.
fn range(count: usize) -> usize {
    count.div_ceil(RANGES).max(LEAST_RANGE)
}

/// Rows of a matrix that one task takes.
fn rows_per_range(rows: usize, columns: usize) -> usize {
    rows.div_ceil(RANGES).max(LEAST_RANGE.div_ceil(columns)).min(rows)
}

/// 1 ÷ √max(row × column, ε²) of an estimate.
#[inline(always)]
fn inverse_root(row: f32, column: f32) -> f32 {
    1.0 / (row * column).max(LEAST_ROOT * LEAST_ROOT).sqrt()
}

for_each_width! {
    /// Moves averages of a vector towards the squares of gradients.
    fn average<G: Wide>(variances: &mut [f32], gradients: &[G], scalars: (f32, f32)) {
        let (factor, weight) = scalars;
        for (variance, gradient) in variances.iter_mut().zip(gradients) {
            let gradient = gradient.wide() * factor;
            *variance += weight * (gradient * gradient - *variance);
        }
    }

    fn sum_squares(numbers: &[f32], sum: &mut f64) {
        for block in numbers.chunks(BLOCK) {
            let mut lanes = [0.0f32; LANES];
            let (full, rest) = block.as_chunks::<LANES>();
            for numbers in full {
                for (lane, number) in lanes.iter_mut().zip(numbers) {
                    *lane += number * number;
                }
            }
            for (lane, number) in lanes.iter_mut().zip(rest) {
                *lane += number * number;
            }
            *sum += f64::from(lanes.iter().sum::<f32>());
        }
    }

    /// Adds the squares of a row of gradients to the sums of the columns and of the row.
    fn add_row<G: Wide>(gradients: &[G], factor: f32, columns: &mut [f32], sum: &mut f64) {
        for (gradients, columns) in gradients.chunks(BLOCK).zip(columns.chunks_mut(BLOCK)) {
            let mut lanes = [0.0f32; LANES];
            let (full, rest) = gradients.as_chunks::<LANES>();
            let (full_columns, rest_columns) = columns.as_chunks_mut::<LANES>();
            for (gradients, columns) in full.iter().zip(full_columns) {
                for ((lane, gradient), column) in lanes.iter_mut().zip(gradients).zip(columns) {
                    let gradient = gradient.wide() * factor;
                    *lane += gradient * gradient;
                    *column += gradient * gradient;
                }
            }
            for ((lane, gradient), column) in lanes.iter_mut().zip(rest).zip(rest_columns) {
                let gradient = gradient.wide() * factor;
                *lane += gradient * gradient;
                *column += gradient * gradient;
            }
            *sum += f64::from(lanes.iter().sum::<f32>());
        }
    }

    /// Adds the squares of the updates of a line.
    fn add_updates<G: Wide>(gradients: &[G], factor: f32, row: f32, columns: &[f32], sum: &mut f64) {
        for (gradients, columns) in gradients.chunks(BLOCK).zip(columns.chunks(BLOCK)) {
            let mut lanes = [0.0f32; LANES];
            let (full, rest) = gradients.as_chunks::<LANES>();
            let (full_columns, rest_columns) = columns.as_chunks::<LANES>();
            for (gradients, columns) in full.iter().zip(full_columns) {
                for ((lane, gradient), column) in lanes.iter_mut().zip(gradients).zip(columns) {
                    let gradient = gradient.wide() * factor;
                    *lane += gradient * gradient / (row * column).max(LEAST_ROOT * LEAST_ROOT);
                }
            }
            for ((lane, gradient), column) in lanes.iter_mut().zip(rest).zip(rest_columns) {
                let gradient = gradient.wide() * factor;
                *lane += gradient * gradient / (row * column).max(LEAST_ROOT * LEAST_ROOT);
            }
            *sum += f64::from(lanes.iter().sum::<f32>());
        }
    }

    fn update<G: Wide>(parameters: &mut [f32], gradients: &[G], scalars: (f32, f32, f32), row: f32, columns: &[f32]) {
        let (factor, keep, step) = scalars;
        for ((parameter, gradient), column) in parameters.iter_mut().zip(gradients).zip(columns) {
            let gradient = gradient.wide() * factor;
            *parameter = *parameter * keep + step * (gradient * inverse_root(row, *column));
        }
    }
}
