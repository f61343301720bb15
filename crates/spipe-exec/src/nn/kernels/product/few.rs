//! Products of few rows with a matrix that is read once, in place: the work of finding the next
//! token of a text.
//!
//! ```text
//!             columns of one task
//!           ┌─────────┬─────────┐
//! row ──────┤ 8 rows  │         │   sums += row[k] · matrix[k], k after k: eight streams are read side by side,
//!           │ 8 rows  │         │   and the sums stay in the first-level cache
//!           └─────────┴─────────┘
//! ```
//!
//! Packing pays if many rows use the packed matrix. Here each number is used once per row, and the
//! product takes as long as reading the matrix. Sums follow the inner dimension as in the tiles,
//! bit for bit, if the matrix is stored by rows. If it is stored by columns, each is a dot product
//! with 64 partial sums.

use super::{DEPTH, View, store};
use crate::device::simd::for_each_width;
use rayon::prelude::*;
use std::ops::Range;

/// Packing pays for more rows than this.
pub(super) const MOST: usize = 8;
/// Rows of the matrix that are read side by side.
const DEEP: usize = 8;
/// Rows of the result that are summed side by side.
const QUAD: usize = 4;
/// Columns per pass: eight rows of 4 KiB fit into the first-level cache.
const WIDEST: usize = 1024;
/// Bytes of the matrix per task at least: waking a thread pays from about 20 µs of reading.
const TASK: usize = 256 << 10;
/// Partial sums of a dot product: four vectors of AVX-512.
const LANES: usize = 64;
/// Numbers of a cache line.
const LINE: usize = 16;

/// Prefetches a line of the matrix: some columns are too short a stream for the processor's own
/// prefetcher.
#[inline(always)]
fn ask_for(line: *const f32) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the processor's own instruction")]
    // SAFETY: a hint, which has no effect on an address without memory.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

for_each_width! {
    /// Adds eight rows, each times its factor, to the sums of one row of the result. The next eight
    /// rows are `ahead` numbers further on.
    fn add_eight(factors: [f32; DEEP], rows: [&[f32]; DEEP], ahead: usize, sums: &mut [f32]) {
        let rows = rows.map(|row| row[..sums.len()].as_chunks::<LINE>());
        let (lines, rest) = sums.as_chunks_mut::<LINE>();
        for (index, sums) in lines.iter_mut().enumerate() {
            let mut found = *sums;
            for (factor, (row, _)) in factors.iter().zip(rows) {
                ask_for(row[index].as_ptr().wrapping_add(ahead));
                for (sum, number) in found.iter_mut().zip(&row[index]) {
                    *sum = factor.mul_add(*number, *sum);
                }
            }
            *sums = found;
        }
        for (column, sum) in rest.iter_mut().enumerate() {
            for (factor, (_, row)) in factors.iter().zip(rows) {
                *sum = factor.mul_add(row[column], *sum);
            }
        }
    }

    /// The same for four rows of the result.
    fn add_eight_to_four(
        factors: [[f32; DEEP]; QUAD],
        rows: [&[f32]; DEEP],
        ahead: usize,
        sums: [&mut [f32]; QUAD],
    ) {
        let columns = rows[0].len();
        let rows = rows.map(|row| row[..columns].as_chunks::<LINE>());
        let [a, b, c, d] = sums.map(|sums| sums[..columns].as_chunks_mut::<LINE>());
        for index in 0..columns / LINE {
            let mut found = [a.0[index], b.0[index], c.0[index], d.0[index]];
            for (depth, (row, _)) in rows.iter().enumerate() {
                ask_for(row[index].as_ptr().wrapping_add(ahead));
                for (sums, factors) in found.iter_mut().zip(&factors) {
                    for (sum, number) in sums.iter_mut().zip(&row[index]) {
                        *sum = factors[depth].mul_add(*number, *sum);
                    }
                }
            }
            [a.0[index], b.0[index], c.0[index], d.0[index]] = found;
        }
        for (sums, factors) in [a.1, b.1, c.1, d.1].into_iter().zip(&factors) {
            for (column, sum) in sums.iter_mut().enumerate() {
                for (factor, (_, row)) in factors.iter().zip(rows) {
                    *sum = factor.mul_add(row[column], *sum);
                }
            }
        }
    }

    fn add_one(factor: f32, row: &[f32], sums: &mut [f32]) {
        for (sum, number) in sums.iter_mut().zip(row) {
            *sum = factor.mul_add(*number, *sum);
        }
    }

    /// Dot products of `row` with each of `others`, which begin `step` numbers apart.
    fn dots(row: &[f32], others: &[f32], step: usize, to: &mut [f32]) {
        let (whole, rest) = row.split_at(row.len() / LANES * LANES);
        for (to, other) in to.iter_mut().zip(others.chunks(step)) {
            let other = &other[..row.len()];
            let mut sums = [0.0f32; LANES];
            for (row, other) in whole.chunks_exact(LANES).zip(other.chunks_exact(LANES)) {
                for ((sum, left), right) in sums.iter_mut().zip(row).zip(other) {
                    *sum = left.mul_add(*right, *sum);
                }
            }
            for ((sum, left), right) in sums.iter_mut().zip(rest).zip(&other[whole.len()..]) {
                *sum = left.mul_add(*right, *sum);
            }
            let mut width = LANES / 2;
            while width > 0 {
                for lane in 0..width {
                    sums[lane] += sums[lane + width];
                }
                width /= 2;
            }
            *to = sums[0];
        }
    }
}

/// `out` ← a b. `a` has few rows; neither dimension of `b` is zero.
pub(super) fn multiply(threads: usize, a: View<'_>, b: View<'_>, out: &mut [f32]) {
    let at = |row: usize, place: usize| a.numbers[row * a.steps[0] + place * a.steps[1]];
    let left: Vec<f32> = (0..a.rows).flat_map(|row| (0..a.columns).map(move |place| at(row, place))).collect();
    let tasks = threads.min((4 * b.rows * b.columns).div_ceil(TASK));
    let width = b.columns.div_ceil(tasks).next_multiple_of(LANES);
    let part = |first: usize| {
        let columns = first..(first + width).min(b.columns);
        if b.steps[1] == 1 { sums(&left, b, columns) } else { products(&left, b, columns) }
    };
    let firsts = (0..b.columns).step_by(width);
    let parts: Vec<Vec<f32>> = match tasks {
        1 => firsts.map(part).collect(),
        _ => firsts.collect::<Vec<_>>().into_par_iter().with_max_len(1).map(part).collect(),
    };
    for (index, part) in parts.iter().enumerate() {
        let columns = part.len() / a.rows;
        for (to, from) in out.chunks_exact_mut(b.columns).zip(part.chunks_exact(columns)) {
            to[index * width..][..columns].copy_from_slice(from);
        }
    }
}

/// Some columns of the product with a matrix stored by rows.
fn sums(left: &[f32], b: View<'_>, columns: Range<usize>) -> Vec<f32> {
    let (rows, width) = (left.len() / b.rows, columns.len());
    let mut found = vec![0.0; rows * width];
    let mut sums = Vec::new();
    for first in columns.clone().step_by(WIDEST) {
        let across = WIDEST.min(columns.end - first);
        for depth in (0..b.rows).step_by(DEPTH) {
            sums.clear();
            sums.resize(rows * across, 0.0);
            let deep = depth..(depth + DEPTH).min(b.rows);
            add((left, b), (deep, first..first + across), &mut sums);
            for (to, sums) in found.chunks_exact_mut(width).zip(sums.chunks_exact(across)) {
                store(&mut to[first - columns.start..][..across], sums, depth > 0);
            }
        }
    }
    found
}

/// Adds some rows and columns of the matrix to the sums of all rows of the result.
fn add((left, b): (&[f32], View<'_>), (deep, columns): (Range<usize>, Range<usize>), sums: &mut [f32]) {
    let row = |depth: usize| &b.numbers[depth * b.steps[0]..][columns.clone()];
    let factor = |index: usize, depth: usize| left[index * b.rows + depth];
    let whole = deep.start + deep.len() / DEEP * DEEP;
    let ahead = DEEP * b.steps[0];
    for depth in (deep.start..whole).step_by(DEEP) {
        let rows: [&[f32]; DEEP] = std::array::from_fn(|place| row(depth + place));
        for (group, sums) in sums.chunks_mut(QUAD * columns.len()).enumerate() {
            let first = group * QUAD;
            let mut each = sums.chunks_exact_mut(columns.len());
            if each.len() < QUAD {
                for (index, sums) in (first..).zip(each) {
                    add_eight(std::array::from_fn(|place| factor(index, depth + place)), rows, ahead, sums);
                }
                continue;
            }
            let four = std::array::from_fn(|_| each.next().unwrap_or_default());
            let factors =
                std::array::from_fn(|index| std::array::from_fn(|place| factor(first + index, depth + place)));
            add_eight_to_four(factors, rows, ahead, four);
        }
    }
    for depth in whole..deep.end {
        for (index, sums) in sums.chunks_exact_mut(columns.len()).enumerate() {
            add_one(factor(index, depth), row(depth), sums);
        }
    }
}

/// Some columns of the product with a matrix stored by columns.
fn products(left: &[f32], b: View<'_>, columns: Range<usize>) -> Vec<f32> {
    let others = &b.numbers[columns.start * b.steps[1]..(columns.end - 1) * b.steps[1] + b.rows];
    let mut found = vec![0.0; left.len() / b.rows * columns.len()];
    for (row, to) in left.chunks_exact(b.rows).zip(found.chunks_exact_mut(columns.len())) {
        dots(row, others, b.steps[1], to);
    }
    found
}
