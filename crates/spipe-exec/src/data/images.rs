//! Images with classes, read or synthetic.

use super::{DataError, Draw, ImageShape, choice, hash, normals, uniform};
use std::f64::consts::TAU;

/// Images of one shape, each with a class.
#[derive(Clone, Debug)]
pub struct Images {
    channels: u64,
    side: u64,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// Bytes of each image, channel by channel and row by row, and its class.
    Read { pixels: Vec<Vec<u8>>, classes: Vec<u32>, count: u64 },
    /// Waves with noise; direction and length depend on the class.
    Synthetic { classes: u64 },
}

/// The images of one microbatch.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageBatch {
    /// Image by image, channel by channel, row by row; from −1 to 1 if read from bytes.
    pub pixels: Vec<f32>,
    /// The class of each.
    pub classes: Vec<i32>,
    /// The seed of everything else that is drawn for each.
    pub keys: Vec<u64>,
}

/// Largest number of classes of synthetic images.
const MOST_CLASSES: u64 = 1000;
/// Standard deviation of the noise in synthetic images, whose waves have amplitude 1.
const NOISE: f64 = 0.25;

impl Images {
    /// Images from bytes, channel by channel and row by row, with their classes.
    ///
    /// # Errors
    /// No images, or one that does not have `channels` × `side` × `side` bytes.
    pub fn new(channels: u64, side: u64, images: Vec<(Vec<u8>, u32)>) -> Result<Self, DataError> {
        let wanted = channels * side * side;
        if images.is_empty() {
            return Err(DataError::NoImages);
        }
        if let Some((image, found)) = (0..).zip(&images).find(|(_, (pixels, _))| pixels.len() as u64 != wanted) {
            return Err(DataError::Pixels { image, found: found.0.len(), wanted, channels, side });
        }
        let count = images.iter().map(|(_, class)| u64::from(*class) + 1).max().unwrap_or(0);
        let (pixels, classes) = images.into_iter().unzip();
        Ok(Self { channels, side, source: Source::Read { pixels, classes, count } })
    }

    /// Synthetic images of that shape, of at most a thousand classes.
    pub fn synthetic(shape: ImageShape) -> Self {
        let classes = shape.classes.unwrap_or(MOST_CLASSES).clamp(1, MOST_CLASSES);
        Self { channels: shape.channels, side: shape.side, source: Source::Synthetic { classes } }
    }

    /// Adds everything that identifies these images.
    pub(super) fn sum(&self, sum: &mut crc32fast::Hasher) {
        sum.update(&[self.channels, self.side].map(u64::to_le_bytes).concat());
        match &self.source {
            Source::Read { pixels, classes, .. } => {
                pixels.iter().for_each(|pixels| sum.update(pixels));
                classes.iter().for_each(|class| sum.update(&class.to_le_bytes()));
            }
            Source::Synthetic { classes } => sum.update(&classes.to_le_bytes()),
        }
    }

    /// Channels of a pixel.
    pub const fn channels(&self) -> u64 {
        self.channels
    }

    /// Height and width.
    pub const fn side(&self) -> u64 {
        self.side
    }

    /// Number of classes.
    pub const fn classes(&self) -> u64 {
        match &self.source {
            Source::Read { count, .. } => *count,
            Source::Synthetic { classes } => *classes,
        }
    }

    /// The images of `draw`.
    pub fn batch(&self, draw: Draw, images: usize) -> ImageBatch {
        let mut batch = ImageBatch { pixels: Vec::new(), classes: Vec::new(), keys: Vec::new() };
        for key in (0..images).map(|image| draw.key(image, images)) {
            self.add(choice(key, self.sorts()), key, &mut batch);
        }
        batch
    }

    /// Images in their order from the `first` on, cyclically.
    pub(crate) fn in_order(&self, seed: u64, first: u64, images: usize) -> ImageBatch {
        let mut batch = ImageBatch { pixels: Vec::new(), classes: Vec::new(), keys: Vec::new() };
        for index in first..first + images as u64 {
            self.add(index % self.sorts(), hash(&[seed, index]), &mut batch);
        }
        batch
    }

    /// Number of things to choose from: images that were read, or synthetic classes.
    const fn sorts(&self) -> u64 {
        match &self.source {
            Source::Read { pixels, .. } => pixels.len() as u64,
            Source::Synthetic { classes } => *classes,
        }
    }

    /// Adds an image, or one of a class.
    fn add(&self, sort: u64, key: u64, batch: &mut ImageBatch) {
        batch.keys.push(hash(&[key, 1]));
        match &self.source {
            Source::Read { pixels, classes, .. } => {
                let place = sort as usize;
                batch.pixels.extend(pixels[place].iter().map(|byte| f32::from(*byte) / 127.5 - 1.0));
                batch.classes.push(classes[place].cast_signed());
            }
            Source::Synthetic { .. } => {
                self.draw(sort, key, &mut batch.pixels);
                batch.classes.push(sort as i32);
            }
        }
    }

    /// A wave in the direction of the class, shifted by channel, with noise.
    fn draw(&self, class: u64, key: u64, pixels: &mut Vec<f32>) {
        let class = hash(&[class, 3]);
        // Up to four waves across the image in either direction.
        let [across, down] = [0, 1].map(|index| (8.0 * uniform(class, index) - 4.0) / self.side as f64);
        let mut noise = normals(key);
        for channel in 0..self.channels {
            let shift = uniform(class, 2 + channel);
            for (row, column) in (0..self.side).flat_map(|row| (0..self.side).map(move |column| (row, column))) {
                let wave = (TAU * (column as f64 * across + row as f64 * down + shift)).sin();
                pixels.push((wave + NOISE * noise.next().unwrap_or(0.0)) as f32);
            }
        }
    }

    /// Checks that a model that reads images of that shape can read these.
    pub(super) fn check(&self, model: &str, shape: ImageShape) -> Result<(), DataError> {
        let ImageShape { channels, side, classes } = shape;
        if (self.channels, self.side) != (channels, side) {
            let (found_channels, found) = (self.channels, self.side);
            return Err(DataError::Shape { model: model.into(), found_channels, found, channels, side });
        }
        match classes.filter(|classes| self.classes() > *classes) {
            Some(classes) => Err(DataError::Classes { model: model.into(), found: self.classes(), classes }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(step: u32) -> Draw {
        Draw { seed: 5, step, microbatch: 1 }
    }

    #[test]
    fn images_are_drawn_evenly_and_repeat() {
        let bytes = |class: u32| vec![(class * 51) as u8; 12];
        let images = Images::new(3, 2, (0..6).map(|class| (bytes(class), class)).collect()).unwrap();
        assert_eq!((images.channels(), images.side(), images.classes()), (3, 2, 6));
        let batch = images.batch(draw(0), 600);
        assert_eq!(batch, images.batch(draw(0), 600));
        assert_ne!(batch, images.batch(draw(1), 600));
        let halves = [2, 3].map(|microbatch| images.batch(Draw { microbatch, ..draw(0) }, 300));
        assert_eq!(batch.keys, halves.map(|half| half.keys).concat());
        for class in 0..6 {
            assert!(batch.classes.iter().filter(|other| **other == class).count() > 60, "{class}");
        }
        for (pixels, class) in batch.pixels.chunks(12).zip(&batch.classes) {
            assert!(
                pixels.iter().all(|pixel| (pixel - (*class as f32 * 0.4 - 1.0)).abs() < 1e-6),
                "{pixels:?} {class}"
            );
        }
    }

    #[test]
    fn synthetic_images_of_a_class_are_alike() {
        let images = Images::synthetic(ImageShape { channels: 2, side: 8, classes: Some(3) });
        let batch = images.batch(draw(0), 40);
        let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / 128.0;
        let all: Vec<(&[f32], i32)> = batch.pixels.chunks(128).zip(batch.classes.iter().copied()).collect();
        for (pixels, class) in &all[1..] {
            let far = distance(all[0].0, pixels);
            assert!(if *class == all[0].1 { far < 0.2 } else { far > 0.3 }, "{far} {class} {}", all[0].1);
        }
    }

    #[test]
    fn shapes_are_checked() {
        assert_eq!(Images::new(1, 2, Vec::new()).err(), Some(DataError::NoImages));
        let short = Images::new(1, 2, vec![(vec![0; 4], 0), (vec![0; 3], 1)]).unwrap_err().to_string();
        assert_eq!(short, "image 1 has 3 numbers, 1 channels of 2 × 2 pixels are 4");
        let images = Images::new(1, 2, vec![(vec![0; 4], 7)]).unwrap();
        let shape = ImageShape { channels: 1, side: 2, classes: Some(8) };
        assert_eq!(images.check("m", shape), Ok(()));
        let few = images.check("m", ImageShape { classes: Some(7), ..shape }).unwrap_err().to_string();
        assert_eq!(few, "the images have 8 classes, `m` tells 7 apart");
        let other = images.check("m", ImageShape { channels: 3, side: 4, ..shape }).unwrap_err().to_string();
        assert_eq!(other, "the images have 1 channels of 2 × 2 pixels, `m` reads 3 of 4 × 4");
    }
}
