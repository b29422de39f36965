//! Images with labels, from a folder or generated.

use std::path::{Path, PathBuf};

use anyhow::Context;
use image::imageops::FilterType;
use warpline::data::Dataset;
use warpline::{Error, Result, Tensor, tensor};

/// Mean of each colour over ImageNet. Torchvision's weights expect images that are normalized with this mean.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// Standard deviation of each colour over ImageNet. Torchvision's weights expect images that are normalized with it.
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// The images of a folder that has a folder for each class. Classes are numbered in the order of their names.
pub(crate) struct ImageFolder {
    /// The files with their classes.
    files: Vec<(PathBuf, i64)>,
    classes: usize,
    size: usize,
    /// Seed of the random crop and mirroring of each image. `None`: the middle of each image, not mirrored.
    augment: Option<u64>,
}

impl ImageFolder {
    pub(crate) fn open(folder: &Path, size: usize, augment: Option<u64>) -> anyhow::Result<Self> {
        let entries = |folder: &Path| -> anyhow::Result<Vec<PathBuf>> {
            let read = std::fs::read_dir(folder)
                .with_context(|| format!("cannot read the folder {}", folder.display()))?;
            let mut all =
                read.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
            all.sort();
            Ok(all)
        };
        let classes: Vec<PathBuf> =
            entries(folder)?.into_iter().filter(|path| path.is_dir()).collect();
        let mut files = Vec::new();
        for (class, folder) in (0..).zip(&classes) {
            files.extend(entries(folder)?.into_iter().map(|path| (path, class)));
        }
        anyhow::ensure!(!files.is_empty(), "{} has no folder with images", folder.display());
        Ok(Self { files, classes: classes.len(), size, augment })
    }

    pub(crate) fn classes(&self) -> usize {
        self.classes
    }
}

impl Dataset for ImageFolder {
    type Sample = (Tensor, i64);

    fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns an image, `[3, size, size]`, and its class. The shorter side is scaled to 8/7 of the size, and a square
    /// is cut out.
    fn get(&self, index: usize) -> Result<Self::Sample> {
        let (path, class) = &self.files[index];
        let fail = |error: image::ImageError| {
            Error::invalid("ImageFolder", format!("cannot read {}: {error}", path.display()))
        };
        let image = image::open(path).map_err(fail)?.to_rgb8();
        let (width, height, size) = (image.width(), image.height(), self.size as u32);
        let short = width.min(height).max(1);
        let scaled = |side: u32| (side * (size * 8 / 7) / short).max(size);
        let image =
            image::imageops::resize(&image, scaled(width), scaled(height), FilterType::Triangle);
        let rest = [image.width() - size, image.height() - size];
        let (corner, mirror) = match self.augment {
            None => (rest.map(|n| n / 2), false),
            Some(seed) => {
                let bits = scrambled(seed ^ index as u64);
                let part = |n: u32, bits: u64| (bits % u64::from(n + 1)) as u32;
                ([part(rest[0], bits >> 8), part(rest[1], bits >> 32)], bits & 1 == 1)
            }
        };
        let mut values = Vec::with_capacity(3 * self.size * self.size);
        for colour in 0..3 {
            for y in 0..size {
                for x in 0..size {
                    let x = if mirror { size - 1 - x } else { x };
                    let pixel = image.get_pixel(corner[0] + x, corner[1] + y)[colour];
                    values.push((f32::from(pixel) / 255.0 - MEAN[colour]) / DEVIATION[colour]);
                }
            }
        }
        let side = self.size as isize;
        Ok((tensor(values, ())?.view([3, side, side])?, *class))
    }
}

/// Random images. The mean of an image depends on its class, so that a network can learn the classes.
pub(crate) struct MadeUp {
    pub(crate) size: usize,
    pub(crate) images: usize,
}

impl Dataset for MadeUp {
    type Sample = (Tensor, i64);

    fn len(&self) -> usize {
        self.images
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        let class = index % 2;
        let count = 3 * self.size * self.size;
        let value = |i: usize| {
            let bits = scrambled((index * count + i) as u64);
            (bits >> 40) as f32 / (1 << 24) as f32 + class as f32 - 1.0
        };
        let side = self.size as isize;
        let values: Vec<f32> = (0..count).map(value).collect();
        Ok((tensor(values, ())?.view([3, side, side])?, class as i64))
    }
}

/// Returns 64 bits that look random (SplitMix64).
fn scrambled(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
