//! Elementary functions without branches and table look-ups, so that the compiler vectorises loops
//! over them.

/// eˣ within 2 units in the last place; e⁻⁸⁷ below −87, e⁸⁸ above 88. x is split into n ln 2 + r,
/// and eʳ is a polynomial (Cephes, `expf.c`).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 · 2²³ rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts, the first of which has few digits.
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let square = r * r;
    let polynomial =
        ((((1.987_569_2e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_5e-1) * r
            + 5.0e-1;
    let power = f32::from_bits(((n + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23);
    (polynomial * square + r + 1.0) * power
}

/// 1 ÷ (1 + e⁻ˣ).
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The error function within 2·10⁻⁷ (Abramowitz, Stegun 7.1.26), and e^(−x²).
#[inline(always)]
pub(super) fn erf(x: f32) -> (f32, f32) {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let bell = exp(-x * x);
    let polynomial = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t + 0.254_829_6) * t;
    ((1.0 - polynomial * bell).copysign(x), bell)
}

/// Partial sums.
const LANES: usize = 16;

/// Σ f(i) for i < `count`, in 16 partial sums, an order that vectors can follow.
#[inline(always)]
pub(super) fn sum(count: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let whole = count / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += f(start + lane);
        }
    }
    for (lane, index) in (whole..count).enumerate() {
        sums[lane] += f(index);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

/// The largest number.
#[inline(always)]
pub(super) fn largest(numbers: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let chunks = numbers.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (best, number) in best.iter_mut().zip(chunk) {
            *best = if *number > *best { *number } else { *best };
        }
    }
    rest.iter().chain(&best[..]).copied().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_as_exact_as_they_say() {
        for step in -870_000..880_000 {
            let x = step as f32 * 1e-4;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) - exact).abs() <= 2.4e-7 * exact, "{x}: {} {exact}", exp(x));
        }
        assert!(exp(-1e30) > 0.0 && exp(-1e30) < 1e-37 && exp(f32::NEG_INFINITY) < 1e-37 && exp(100.0) < 2e38);
        assert!(exp(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        // ∫ of the bell from 0 to 1, and 2 ÷ √π.
        assert!((erf(1.0).0 - 0.842_700_8).abs() < 2e-7 && (erf(-2.0).0 + 0.995_322_3).abs() < 2e-7);
        assert!((erf(0.5).0 - 0.520_499_9).abs() < 2e-7 && erf(0.0).0.abs() < 2e-7);
    }

    #[test]
    fn sums_and_maxima() {
        let numbers: Vec<f32> = (0..37).map(|index| (index * 7 % 37) as f32).collect();
        assert!((sum(37, |index| numbers[index]) - 666.0).abs() < 1e-3);
        assert!((largest(&numbers) - 36.0).abs() < 1e-6 && (largest(&numbers[..3]) - 14.0).abs() < 1e-6);
    }
}
