//! Diffusion: the amount of noise after each step, and its removal.

use crate::data::{ImageBatch, hash, normals};
use spipe_model::Condition;

/// Steps of the diffusion, and the first and last variance of the noise: the scaled linear schedule
/// of latent diffusion (Rombach et al. 2022, appendix E; its published configuration files).
const STEPS: u64 = 1000;
const VARIANCES: (f64, f64) = (0.00085, 0.012);
/// The longest wavelength of the sinusoids (Vaswani et al. 2017, section 3.5).
const LONGEST: f64 = 10_000.0;

/// Images with noise, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Noisy {
    /// The step of each image.
    pub steps: Vec<u64>,
    pub pixels: Vec<f32>,
    /// The noise in them.
    pub noise: Vec<f32>,
}

/// The share of an image's variance that is left after `step` (Ho et al. 2020, equation 4).
fn signal(step: u64) -> f64 {
    let (first, last) = (VARIANCES.0.sqrt(), VARIANCES.1.sqrt());
    let variance = |step: u64| (first + (last - first) * step as f64 / (STEPS - 1) as f64).powi(2);
    (0..=step).map(|step| 1.0 - variance(step)).product()
}

fn each(batch: &ImageBatch) -> usize {
    (batch.pixels.len() / batch.classes.len().max(1)).max(1)
}

/// Images at the diffusion steps that `step` returns for their keys: x ← √ᾱ x + √(1 − ᾱ) ε (Ho et
/// al. 2020, equation 4).
fn at(batch: &ImageBatch, step: impl Fn(u64) -> u64) -> Noisy {
    let mut noisy = Noisy { steps: Vec::new(), pixels: Vec::new(), noise: Vec::new() };
    for (key, pixels) in batch.keys.iter().copied().zip(batch.pixels.chunks(each(batch))) {
        let step = step(key);
        let left = signal(step);
        noisy.steps.push(step);
        for (pixel, number) in pixels.iter().zip(normals(key)) {
            noisy.pixels.push((left.sqrt() * f64::from(*pixel) + (1.0 - left).sqrt() * number) as f32);
            noisy.noise.push(number as f32);
        }
    }
    noisy
}

/// Images at random steps of the diffusion.
pub(crate) fn at_random(batch: &ImageBatch) -> Noisy {
    at(batch, |key| hash(&[key, 1]) % STEPS)
}

/// The diffusion step at which the `index`th of `count` denoising steps starts: evenly spaced, from
/// the last one down.
fn spaced(index: u32, count: u32) -> u64 {
    STEPS - 1 - u64::from(index) * (STEPS - 1) / u64::from(count.max(1))
}

/// Images before the first of `count` denoising steps.
pub(crate) fn begin(batch: &ImageBatch, count: u32) -> Noisy {
    at(batch, |_| spaced(0, count))
}

/// Images before the `index`th of `count` denoising steps, with their noise relative to the
/// original images.
pub(crate) fn go_on(batch: &ImageBatch, pixels: Vec<f32>, index: u32, count: u32) -> Noisy {
    let step = spaced(index, count);
    let left = signal(step);
    let noise = |(noisy, image): (&f32, &f32)| {
        ((f64::from(*noisy) - left.sqrt() * f64::from(*image)) / (1.0 - left).sqrt()) as f32
    };
    let noise = pixels.iter().zip(&batch.pixels).map(noise).collect();
    Noisy { steps: vec![step; batch.classes.len()], pixels, noise }
}

/// The images after the `index`th of `count` denoising steps, which predicts `noise` in `pixels`;
/// the last step leaves no noise. The step is deterministic: x ← √ᾱ′ (x − √(1 − ᾱ) ε) ÷ √ᾱ + √(1 −
/// ᾱ′) ε (Song et al. 2021, equation 12 with σ = 0).
pub(crate) fn denoised(pixels: &[f32], noise: &[f32], index: u32, count: u32) -> Vec<f32> {
    let left = signal(spaced(index, count));
    let after = if index + 1 < count { signal(spaced(index + 1, count)) } else { 1.0 };
    let pixel = |(pixel, noise): (&f32, &f32)| {
        let (pixel, noise) = (f64::from(*pixel), f64::from(*noise));
        let image = (pixel - (1.0 - left).sqrt() * noise) / left.sqrt();
        (after.sqrt() * image + (1.0 - after).sqrt() * noise) as f32
    };
    pixels.iter().zip(noise).map(pixel).collect()
}

/// Sinusoids of the step of each image.
pub(crate) fn sinusoids(steps: &[u64], condition: &Condition) -> Vec<f32> {
    let half = condition.sinusoids as usize / 2;
    let mut sinusoids = Vec::new();
    for step in steps {
        let angle = |wave: usize| *step as f64 * LONGEST.powf(-(wave as f64) / half.max(1) as f64);
        sinusoids.extend((0..half).map(|wave| angle(wave).cos() as f32));
        sinusoids.extend((half..condition.sinusoids as usize).map(|wave| angle(wave - half).sin() as f32));
    }
    sinusoids
}

/// A vector for each token of a text, derived from the class of each image.
pub(crate) fn text(batch: &ImageBatch, condition: &Condition) -> Vec<f32> {
    let words = condition.text_tokens * condition.text_width;
    let of = |class: &i32| {
        normals(hash(&[u64::from(class.unsigned_abs()), 2])).take(words as usize).map(|number| number as f32)
    };
    batch.classes.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_takes_over_step_by_step() {
        // The end of the schedule: Rombach et al.'s own products of the same variances.
        assert!((signal(0) - (1.0 - VARIANCES.0)).abs() < 1e-12);
        assert!((signal(STEPS - 1) - 0.00466).abs() < 1e-5, "{}", signal(STEPS - 1));
        assert!((1..STEPS).all(|step| signal(step) < signal(step - 1)));
    }

    /// Exact predictions at every step lead back to the images.
    #[test]
    fn what_is_noise_can_be_taken_away() {
        let pixels: Vec<f32> = (0..12).map(|index| (index as f32 * 0.7).sin()).collect();
        let batch = ImageBatch { pixels: pixels.clone(), classes: vec![1, 2], keys: vec![5, 6] };
        for count in [1, 2, 7] {
            let mut now = begin(&batch, count);
            assert_eq!(now.steps, [STEPS - 1; 2]);
            for index in 0..count {
                let after = denoised(&now.pixels, &now.noise, index, count);
                now = go_on(&batch, after, (index + 1).min(count - 1), count);
            }
            let apart = now.pixels.iter().zip(&pixels).map(|(found, image)| (found - image).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-4, "{count}: {apart}");
        }
    }
}
