//! The mean of f32 in the order in which PyTorch adds on one thread of an x86 processor
//! (`cascade_sum` in its `SumKernel.cpp`).
//!
//! ```text
//! vectors of 8, in 4 columns:   row 0   row 1   … ─► level 0 ─every 16 rows─► level 1 ─every 256─► level 2 …
//! ```

/// The numbers of a vector: 256 bits, also where wider ones exist.
const LANES: usize = 8;
/// The sums that are formed side by side.
const COLUMNS: usize = 4;
/// The levels of sums of sums.
const LEVELS: usize = 4;

type Vector = [f32; LANES];

/// The mean; zero of nothing.
pub(super) fn mean(numbers: &[f32]) -> f32 {
    if numbers.is_empty() { 0.0 } else { sum(numbers) / numbers.len() as f32 }
}

fn sum(numbers: &[f32]) -> f32 {
    let (vectors, rest) = numbers.as_chunks::<LANES>();
    let (rows, single) = vectors.as_chunks::<COLUMNS>();
    let [mut total, second, third, fourth] = rows_sum(rows);
    for vector in single.iter().chain([&second, &third, &fourth]) {
        add(&mut total, vector);
    }
    // The numbers of the last vector that is not full come first.
    rest.iter().chain(&total).fold(0.0, |sum, number| sum + number)
}

fn add(sum: &mut Vector, more: &Vector) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// The sums of all columns.
fn rows_sum(rows: &[[Vector; COLUMNS]]) -> [Vector; COLUMNS] {
    // The largest power of two that is not above a quarter of the levels' share, but at least 16 rows.
    let power = (rows.len().max(1).next_power_of_two().trailing_zeros() as usize / LEVELS).max(4);
    let step = 1 << power;
    let mut sums = [[[0.0; LANES]; COLUMNS]; LEVELS];
    let (full, rest) = rows.split_at(rows.len() / step * step);
    for (index, rows) in full.chunks_exact(step).enumerate() {
        add_rows(&mut sums[0], rows);
        let done = (index + 1) * step;
        for level in 1..LEVELS {
            let below = std::mem::take(&mut sums[level - 1]);
            add_rows(&mut sums[level], &[below]);
            if done & ((step - 1) << (level * power)) != 0 {
                break;
            }
        }
    }
    add_rows(&mut sums[0], rest);
    let [mut total, above @ ..] = sums;
    add_rows(&mut total, &above);
    total
}

fn add_rows(sums: &mut [Vector; COLUMNS], rows: &[[Vector; COLUMNS]]) {
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, vector)| add(sum, vector));
    }
}
