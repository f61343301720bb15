//! Matrix products in f32, for processors with fused multiply-add.
//!
//! The result is computed in tiles of 6 rows and 64 columns, so that the sums of a tile fill the 32
//! vector registers of AVX-512 (Goto, van de Geijn 2008); AVX2 computes a tile in quarters. Each
//! sum is one chain of fused multiply-adds along the inner dimension, in its order: the result
//! depends neither on the number of threads nor on the width of vectors, as training on any number
//! of cores must give the same bits. Products of few rows skip packing ([`few`]).

mod few;

use crate::device::simd;
use rayon::prelude::*;

/// Rows of a tile.
const ROWS: usize = 6;
/// Columns of a tile: four vectors of AVX-512.
const COLUMNS: usize = 64;
/// Inner positions per pass: a panel of 128 KiB stays in the second-level cache.
const DEPTH: usize = 512;
/// Inner positions per pass of a transposition.
const STRIP: usize = 16;

/// A matrix in memory, row by row or column by column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    numbers: &'a [f32],
    rows: usize,
    columns: usize,
    /// Distance of vertical neighbours, and of horizontal ones.
    steps: [usize; 2],
}

impl<'a> View<'a> {
    /// A matrix of `rows` × `columns`, row by row.
    ///
    /// # Panics
    /// If there are not as many numbers.
    pub fn new(numbers: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        assert_eq!(numbers.len(), rows * columns, "a matrix of another size");
        Self { numbers, rows, columns, steps: [columns, 1] }
    }

    /// A matrix of `rows` × `columns`, whose rows begin `step` numbers apart.
    ///
    /// # Panics
    /// If there are not enough numbers.
    pub fn strided(numbers: &'a [f32], [rows, columns]: [usize; 2], step: usize) -> Self {
        assert!(rows == 0 || (step >= columns && (rows - 1) * step + columns <= numbers.len()), "a smaller matrix");
        Self { numbers, rows, columns, steps: [step, 1] }
    }

    /// The transposed matrix.
    pub fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, steps: [self.steps[1], self.steps[0]], ..self }
    }
}

/// The destination of a product: an array, different places of which different threads write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    start: *mut f32,
    steps: [usize; 2],
}

#[expect(unsafe_code, reason = "tasks of one product write disjoint places of one array")]
// SAFETY: only `Target::put` writes, and its callers name every place once.
unsafe impl Sync for Target {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl Send for Target {}

impl Target {
    const fn transposed(self) -> Self {
        Self { steps: [self.steps[1], self.steps[0]], ..self }
    }

    /// Writes or adds the first `rows` and `columns` of a tile.
    ///
    /// # Safety
    /// The places must be within the array, and no other thread may use them.
    #[expect(unsafe_code, reason = "see above")]
    unsafe fn put(self, tile: &Tile, at: [usize; 2], [rows, columns]: [usize; 2], adds: bool) {
        let start = self.start.wrapping_add(at[0] * self.steps[0] + at[1] * self.steps[1]);
        // Neighbours in one of the two directions are adjacent in memory.
        let (lines, length) = if self.steps[1] == 1 { (rows, columns) } else { (columns, rows) };
        for line in 0..lines {
            let place = start.wrapping_add(line * self.steps[0].max(self.steps[1]));
            // SAFETY: promised by the caller.
            let to = unsafe { std::slice::from_raw_parts_mut(place, length) };
            if self.steps[1] == 1 {
                store(to, &tile.0[line][..length], adds);
            } else {
                let turned: [f32; ROWS] = std::array::from_fn(|row| tile.0[row][line]);
                store(to, &turned[..length], adds);
            }
        }
    }
}

#[inline(always)]
fn store(to: &mut [f32], from: &[f32], adds: bool) {
    if adds {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
    } else {
        to.copy_from_slice(from);
    }
}

/// The sums of a tile.
#[repr(C, align(64))]
struct Tile([[f32; COLUMNS]; ROWS]);

/// `out` ← a b, on all threads of the pool. `out` has a.rows × b.columns numbers, row by row.
///
/// # Panics
/// If shapes do not fit, or on a processor without fused multiply-add.
pub(crate) fn multiply(a: View<'_>, b: View<'_>, out: &mut [f32]) {
    multiply_on(rayon::current_num_threads(), a, b, out);
}

/// The same as [`multiply`], on this thread.
///
/// # Panics
/// As [`multiply`].
pub(crate) fn multiply_here(a: View<'_>, b: View<'_>, out: &mut [f32]) {
    multiply_on(1, a, b, out);
}

fn multiply_on(threads: usize, a: View<'_>, b: View<'_>, out: &mut [f32]) {
    assert!(simd::has_fma(), "a processor without fused multiply-add");
    assert_eq!(a.columns, b.rows, "the inner dimensions differ");
    assert_eq!(out.len(), a.rows * b.columns, "a result of another size");
    if out.is_empty() {
        return;
    }
    if a.columns == 0 {
        return out.fill(0.0);
    }
    if a.rows <= few::MOST {
        return few::multiply(threads, a, b, out);
    }
    packed(threads, a, b, out);
}

/// The product by tiles.
fn packed(threads: usize, a: View<'_>, b: View<'_>, out: &mut [f32]) {
    let target = Target { start: out.as_mut_ptr(), steps: [b.columns, 1] };
    // The right factor is packed again for every group of rows, which is cheap if its rows are
    // contiguous.
    if b.steps[1] > b.steps[0] {
        Product { a: b.transposed(), b: a.transposed(), target: target.transposed(), threads }.compute();
    } else {
        Product { a, b, target, threads }.compute();
    }
}

struct Product<'a> {
    a: View<'a>,
    b: View<'a>,
    target: Target,
    threads: usize,
}

impl Product<'_> {
    fn compute(&self) {
        let panels = self.b.columns.div_ceil(COLUMNS);
        let tiles = self.a.rows.div_ceil(ROWS);
        // Two tasks per thread, but at least 16 tiles for each packing.
        let wanted = (2 * self.threads).div_ceil(panels);
        let groups = if self.threads == 1 { 1 } else { wanted.min(tiles / 16).max(1) };
        let task = |buffer: &mut Vec<f32>, index: usize| {
            let (panel, group) = (index / groups, index % groups);
            let rows = (tiles * group / groups * ROWS)..(tiles * (group + 1) / groups * ROWS).min(self.a.rows);
            self.panel(panel, rows, buffer);
        };
        if panels * groups == 1 || self.threads == 1 {
            let mut buffer = Vec::new();
            (0..panels * groups).for_each(|index| task(&mut buffer, index));
        } else {
            (0..panels * groups).into_par_iter().with_max_len(1).for_each_init(Vec::new, task);
        }
    }

    /// Computes some rows of one panel of columns.
    fn panel(&self, panel: usize, rows: std::ops::Range<usize>, buffer: &mut Vec<f32>) {
        let column = panel * COLUMNS;
        let columns = COLUMNS.min(self.b.columns - column);
        let mut tile = Tile([[0.0; COLUMNS]; ROWS]);
        for depth in (0..self.a.columns).step_by(DEPTH) {
            let deep = depth..(depth + DEPTH).min(self.a.columns);
            buffer.resize(DEPTH * COLUMNS, 0.0);
            self.pack(deep.clone(), (column, columns), buffer);
            for row in rows.clone().step_by(ROWS) {
                self.tile(row, deep.clone(), buffer, &mut tile);
                self.put(&tile, row, (column, columns), depth > 0);
            }
        }
    }

    fn put(&self, tile: &Tile, row: usize, (column, columns): (usize, usize), adds: bool) {
        let rows = ROWS.min(self.a.rows - row);
        #[expect(unsafe_code, reason = "tasks write disjoint tiles")]
        // SAFETY: `multiply_on` checked the size of the array; rows and columns are cut to the
        // matrix.
        unsafe {
            self.target.put(tile, [row, column], [rows, columns], adds);
        }
    }

    /// Copies some columns of the right factor into rows of 64, with zeros beyond its edge.
    fn pack(&self, deep: std::ops::Range<usize>, (column, columns): (usize, usize), buffer: &mut [f32]) {
        let [down, right] = self.b.steps;
        let b = self.b.numbers;
        if right == 1 {
            for (to, depth) in buffer.chunks_exact_mut(COLUMNS).zip(deep) {
                let start = depth * down + column;
                to[..columns].copy_from_slice(&b[start..start + columns]);
                to[columns..].fill(0.0);
            }
            return;
        }
        // Here the numbers of one column are contiguous.
        for strip in deep.clone().step_by(STRIP) {
            let deep_here = STRIP.min(deep.end - strip);
            let to = &mut buffer[(strip - deep.start) * COLUMNS..][..deep_here * COLUMNS];
            for place in 0..columns {
                let from = &b[(column + place) * right + strip..][..deep_here];
                for (to, from) in to.chunks_exact_mut(COLUMNS).zip(from) {
                    to[place] = *from;
                }
            }
            to.chunks_exact_mut(COLUMNS).for_each(|to| to[columns..].fill(0.0));
        }
    }

    /// Computes the sums of one tile. Rows beyond the edge repeat the last one.
    fn tile(&self, row: usize, deep: std::ops::Range<usize>, packed: &[f32], tile: &mut Tile) {
        let [down, right] = self.a.steps;
        let last = self.a.rows - 1;
        let starts: [usize; ROWS] = std::array::from_fn(|index| (row + index).min(last) * down + deep.start * right);
        let ends = starts.map(|start| start + (deep.len() - 1) * right);
        assert!(ends.iter().all(|end| *end < self.a.numbers.len()) && packed.len() >= deep.len() * COLUMNS);
        let rows = starts.map(|start| self.a.numbers[start..].as_ptr());
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "vectors are read without a look at the bounds of every one")]
        // SAFETY: the bounds were checked above, and `multiply_on` refuses processors without the
        // features.
        unsafe {
            if is_x86_feature_detected!("avx512f") {
                x86::tile_avx512((deep.len(), right), rows, packed.as_ptr(), tile);
            } else {
                x86::tile_avx2((deep.len(), right), rows, packed.as_ptr(), tile);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("refused before: {tile:p} {rows:?}");
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the compiler's own vectors do not stay in registers here")]
mod x86 {
    use super::{COLUMNS, ROWS, Tile};
    use std::arch::x86_64::{
        _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps, _mm512_fmadd_ps,
        _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
    };

    /// # Safety
    /// `depth` numbers at distances of `right` from each of `rows`, and as many rows of `packed`,
    /// must be readable.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn tile_avx512(
        (depth, right): (usize, usize),
        rows: [*const f32; ROWS],
        packed: *const f32,
        tile: &mut Tile,
    ) {
        let mut sums = [[_mm512_setzero_ps(); 4]; ROWS];
        let (mut at, mut packed) = (0, packed);
        for _ in 0..depth {
            // SAFETY: promised by the caller.
            unsafe {
                let right: [_; 4] = std::array::from_fn(|part| _mm512_loadu_ps(packed.add(16 * part)));
                for (sums, row) in sums.iter_mut().zip(rows) {
                    let left = _mm512_set1_ps(*row.add(at));
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = _mm512_fmadd_ps(left, right, *sum);
                    }
                }
                packed = packed.add(COLUMNS);
            }
            at = at.wrapping_add(right);
        }
        for (to, sums) in tile.0.iter_mut().zip(sums) {
            for (part, sum) in sums.into_iter().enumerate() {
                // SAFETY: four times 16 are 64.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(16 * part), sum) };
            }
        }
    }

    /// # Safety
    /// As above.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn tile_avx2(
        (depth, right): (usize, usize),
        rows: [*const f32; ROWS],
        packed: *const f32,
        tile: &mut Tile,
    ) {
        for quarter in (0..COLUMNS).step_by(16) {
            let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
            let (mut at, mut packed) = (0, packed.wrapping_add(quarter));
            for _ in 0..depth {
                // SAFETY: promised by the caller.
                unsafe {
                    let right = [_mm256_loadu_ps(packed), _mm256_loadu_ps(packed.add(8))];
                    for (sums, row) in sums.iter_mut().zip(rows) {
                        let left = _mm256_set1_ps(*row.add(at));
                        for (sum, right) in sums.iter_mut().zip(right) {
                            *sum = _mm256_fmadd_ps(left, right, *sum);
                        }
                    }
                }
                packed = packed.wrapping_add(COLUMNS);
                at = at.wrapping_add(right);
            }
            for (to, sums) in tile.0.iter_mut().zip(sums) {
                for (part, sum) in sums.into_iter().enumerate() {
                    // SAFETY: a quarter are two times 8.
                    unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(quarter + 8 * part), sum) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|index| ((index * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5).collect()
    }

    proptest! {
        #[test]
        fn products_are_sums_of_products(
            (rows, inner, columns) in (1usize..150, 0usize..40, 1usize..150),
            deep in prop::bool::weighted(0.1),
            turned in any::<[bool; 2]>(),
        ) {
            let inner = if deep { inner + 700 } else { inner };
            let (a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            let view = |numbers, [rows, columns]: [usize; 2], turned| {
                if turned { View::new(numbers, [columns, rows]).transposed() } else { View::new(numbers, [rows, columns]) }
            };
            let (left, right) = (view(&a, [rows, inner], turned[0]), view(&b, [inner, columns], turned[1]));
            let mut out = vec![f32::NAN; rows * columns];
            multiply_here(left, right, &mut out);
            for (index, found) in out.iter().enumerate() {
                let at = |view: View<'_>, row: usize, column: usize| {
                    f64::from(view.numbers[row * view.steps[0] + column * view.steps[1]])
                };
                let exact: f64 =
                    (0..inner).map(|place| at(left, index / columns, place) * at(right, place, index % columns)).sum();
                prop_assert!((exact - f64::from(*found)).abs() < 1e-6 * (inner + 1) as f64, "{index}: {found} {exact}");
            }
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            let mut shared = vec![f32::NAN; rows * columns];
            pool.install(|| multiply(left, right, &mut shared));
            prop_assert_eq!(out, shared);
        }
    }

    proptest! {
        /// The bits of a row do not depend on the number of rows if the right factor is stored by
        /// rows; if it is stored by columns, they differ by rounding.
        #[test]
        fn few_rows_are_those_of_many(
            (rows, inner, columns) in (1usize..=few::MOST, 1usize..1200, 1usize..300),
            turned in any::<[bool; 2]>(),
        ) {
            let (a, b) = (numbers(rows * inner, 5), numbers(inner * columns, 6));
            let view = |numbers, [rows, columns]: [usize; 2], turned| {
                if turned { View::new(numbers, [columns, rows]).transposed() } else { View::new(numbers, [rows, columns]) }
            };
            let (left, right) = (view(&a, [rows, inner], turned[0]), view(&b, [inner, columns], turned[1]));
            let mut out = [vec![f32::NAN; rows * columns], vec![f32::NAN; rows * columns]];
            few::multiply(1, left, right, &mut out[0]);
            packed(1, left, right, &mut out[1]);
            let [few, many] = out;
            if !turned[1] {
                prop_assert_eq!(&few, &many);
            }
            for (few, many) in few.iter().zip(&many) {
                prop_assert!((few - many).abs() < 1e-7 * inner as f32 + 1e-6, "{few} {many}");
            }
        }
    }

    #[test]
    fn parts_of_rows_are_matrices_too() {
        let all = numbers(20 * 50, 7);
        let many: Vec<f32> = (0..20).flat_map(|row| all[row * 50 + 3..][..30].to_vec()).collect();
        for rows in [2, 20] {
            let left = numbers(rows * 30, 8);
            let (whole, left) = (View::new(&many, [20, 30]), View::new(&left, [rows, 30]));
            let strided = View::strided(&all[3..], [20, 30], 50);
            let product = |left: View<'_>, right: View<'_>| {
                let mut out = vec![f32::NAN; left.rows * right.columns];
                multiply_here(left, right, &mut out);
                out
            };
            assert_eq!(product(left, whole.transposed()), product(left, strided.transposed()));
            let weights = numbers(rows * 20, 9);
            let weights = View::new(&weights, [rows, 20]);
            assert_eq!(product(weights, whole), product(weights, strided));
            assert_eq!(product(strided, left.transposed()), product(whole, left.transposed()));
        }
    }

    /// Holds every version that the processor has to a scalar chain of fused multiply-adds.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_version_gives_the_bits_of_a_scalar_chain() {
        let (a, b) = (numbers(6 * 33, 3), numbers(33 * COLUMNS, 4));
        let rows: [*const f32; ROWS] = std::array::from_fn(|row| a[row * 33..].as_ptr());
        let at = |row: usize, column: usize| {
            (0..33).fold(0.0f32, |sum, depth| a[row * 33 + depth].mul_add(b[depth * COLUMNS + column], sum))
        };
        let expected: [[f32; COLUMNS]; ROWS] = std::array::from_fn(|row| std::array::from_fn(|column| at(row, column)));
        type Version = unsafe fn((usize, usize), [*const f32; ROWS], *const f32, &mut Tile);
        let versions: [(&str, bool, Version); 2] = [
            ("AVX2", simd::has_fma(), x86::tile_avx2),
            ("AVX-512", is_x86_feature_detected!("avx512f"), x86::tile_avx512),
        ];
        for (name, is_here, version) in versions {
            if !is_here {
                // Written past the harness, which would hide it.
                writeln!(std::io::stderr(), "not tested, since this processor lacks it: {name}").unwrap();
                continue;
            }
            let mut tile = Tile([[0.0; COLUMNS]; ROWS]);
            #[expect(unsafe_code, reason = "each version is called by itself")]
            // SAFETY: each row has 33 consecutive numbers, and the feature was detected.
            unsafe {
                version((33, 1), rows, b.as_ptr(), &mut tile);
            }
            assert!(tile.0 == expected, "{name}");
        }
    }
}
