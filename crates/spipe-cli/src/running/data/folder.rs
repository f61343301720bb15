//! Labelled images from a folder.

use super::{SYNTHETIC, placed};
use crate::{Failure, output};
use image::imageops::FilterType;
use rayon::prelude::*;
use spipe_base::{Diagnostic, Faults, Position};
use spipe_exec::{ImageShape, Images, RunError};
use std::path::{Path, PathBuf};

/// The images of a folder with a folder for each class. Classes and images are in the order of
/// their names.
pub fn images(path: &str, shape: ImageShape) -> Result<Images, Failure> {
    if !Path::new(path).is_dir() {
        let hint = format!("name a folder with a folder of images for each class, or `{SYNTHETIC}`");
        return Err(Failure::input(Diagnostic::error(format!("`{path}` is not a folder of images")).hint(hint)));
    }
    let (classes, others): (Vec<PathBuf>, Vec<PathBuf>) =
        entries(Path::new(path))?.into_iter().partition(|entry| entry.is_dir());
    if classes.is_empty() && others.iter().any(|file| is_image(file)) {
        let message = format!("the images of `{path}` are in no class");
        return Err(Failure::input(Diagnostic::error(message).hint("put them into a folder for each class there")));
    }
    let loose = others.iter().filter(|file| is_image(file)).count();
    if loose > 0 {
        output::talk(&format!("warning: {loose} images of `{path}` are in no class, and are left out"));
    }
    let (mut files, mut unread): (Vec<(PathBuf, u32)>, usize) = (Vec::new(), 0);
    let mut faults = Faults::new();
    for (class, folder) in (0..).zip(&classes) {
        let (images, rest): (Vec<PathBuf>, Vec<PathBuf>) =
            entries(folder)?.into_iter().partition(|file| is_image(file));
        unread += rest.iter().filter(|file| is_one_of(file, &UNREAD)).count();
        if images.is_empty() {
            let fault = Diagnostic::error(format!("class `{}` has no images", folder.display()));
            faults.push(fault.hint(format!("images are {}; remove folders that are no classes", READ.join(", "))));
        }
        files.extend(images.into_iter().map(|file| (file, class)));
    }
    faults.or(())?;
    if unread > 0 {
        let kinds = READ.join(", ");
        output::talk(&format!("warning: {unread} images of `{path}` are left out: {kinds} are read"));
    }
    let read: Vec<Result<(Vec<u8>, u32), Diagnostic>> =
        files.par_iter().map(|(file, class)| decode(file, shape).map(|pixels| (pixels, *class))).collect();
    let mut faults = Faults::new();
    let images = read.into_iter().filter_map(|image| image.map_err(|fault| faults.push(fault)).ok()).collect();
    faults.or(())?;
    let start = Position { file: path.into(), line: 1, column: 1 };
    Images::new(shape.channels, shape.side, images).map_err(|error| placed(&start, RunError::from(error).into()))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let shown = folder.display().to_string();
    let fail = |error: std::io::Error| Failure::file(&shown, "read", &error);
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        entries.push(entry.map_err(fail)?.path());
    }
    let is_hidden = |entry: &PathBuf| entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    entries.retain(|entry| !is_hidden(entry));
    entries.sort();
    Ok(entries)
}

/// The extensions of images that are read.
const READ: [&str; 3] = ["png", "jpg", "jpeg"];
/// The extensions of other images, which are left out with a warning.
const UNREAD: [&str; 7] = ["webp", "bmp", "gif", "tif", "tiff", "avif", "heic"];

fn is_image(file: &Path) -> bool {
    is_one_of(file, &READ)
}

fn is_one_of(file: &Path, kinds: &[&str]) -> bool {
    let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    kinds.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// The largest square in the middle of an image, at the size that the model reads, channel by
/// channel.
fn decode(file: &Path, shape: ImageShape) -> Result<Vec<u8>, Diagnostic> {
    let shown = file.display().to_string();
    let fail = |what: String| {
        let position = Position { file: shown.clone(), line: 1, column: 1 };
        Diagnostic::error(format!("`{shown}` cannot be read as an image: {what}")).at(position)
    };
    let image = image::open(file).map_err(|error| fail(error.to_string()))?;
    let square = image.width().min(image.height());
    let (left, top) = ((image.width() - square) / 2, (image.height() - square) / 2);
    let side = u32::try_from(shape.side).map_err(|_| fail("it would be too large".into()))?;
    let image = image.crop_imm(left, top, square, square).resize_exact(side, side, FilterType::Triangle);
    let (bytes, channels) = match shape.channels {
        1 => (image.to_luma8().into_raw(), 1),
        3 => (image.to_rgb8().into_raw(), 3),
        4 => (image.to_rgba8().into_raw(), 4),
        other => return Err(fail(format!("the model reads {other} channels, images have 1, 3 or 4"))),
    };
    Ok((0..channels).flat_map(|channel| bytes.iter().skip(channel).step_by(channels).copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_classes() {
        let folder = tempfile::tempdir().unwrap();
        let (cats, dogs) = (folder.path().join("cats"), folder.path().join("dogs"));
        std::fs::create_dir(&cats).unwrap();
        std::fs::create_dir(&dogs).unwrap();
        image::RgbImage::from_pixel(6, 4, image::Rgb([255, 0, 0])).save(dogs.join("a.png")).unwrap();
        image::RgbImage::from_pixel(4, 4, image::Rgb([0, 255, 0])).save(cats.join("b.jpg")).unwrap();
        std::fs::write(cats.join("notes.txt"), "no image").unwrap();
        let path = folder.path().display().to_string();
        let shape = ImageShape { channels: 3, side: 2, classes: Some(2) };
        let images = super::images(&path, shape).unwrap();
        assert_eq!((images.channels(), images.side(), images.classes()), (3, 2, 2));
        let red = decode(&dogs.join("a.png"), shape).unwrap();
        assert_eq!(red, [255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]);
        // A hidden folder is no class.
        std::fs::create_dir(folder.path().join(".checkpoints")).unwrap();
        assert_eq!(super::images(&path, shape).unwrap().classes(), 2);
        let birds = folder.path().join("birds");
        std::fs::create_dir(&birds).unwrap();
        std::fs::write(birds.join("a.webp"), "").unwrap();
        let empty = super::images(&path, shape).unwrap_err().to_string();
        assert!(empty.contains("birds` has no images\nhint: images are png, jpg, jpeg"), "{empty}");
        std::fs::remove_dir_all(birds).unwrap();
        std::fs::write(cats.join("c.png"), "broken").unwrap();
        std::fs::write(cats.join("d.png"), "broken").unwrap();
        let broken = super::images(&path, shape).unwrap_err().to_string();
        assert!(broken.contains("c.png` cannot be read as an image") && broken.contains("d.png"), "{broken}");
    }

    #[test]
    fn other_things_are_no_folders() {
        let shape = ImageShape { channels: 3, side: 2, classes: None };
        let missing = super::images("missing", shape).unwrap_err().to_string();
        assert!(missing.contains("`missing` is not a folder of images\nhint: name a folder"), "{missing}");
        let empty = tempfile::tempdir().unwrap();
        let none = super::images(&empty.path().display().to_string(), shape).unwrap_err().to_string();
        assert!(none.contains("there are no images"), "{none}");
        image::RgbImage::new(2, 2).save(empty.path().join("a.png")).unwrap();
        let loose = super::images(&empty.path().display().to_string(), shape).unwrap_err().to_string();
        assert!(loose.contains("are in no class\nhint: put them into a folder for each class"), "{loose}");
    }
}
