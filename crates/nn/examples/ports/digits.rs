//! Images of handwritten digits, which replace `torchvision.datasets.MNIST`.

use std::path::PathBuf;

use warpline::data::TensorDataset;
use warpline::functional::{InterpolateMode, InterpolateOptions, interpolate};
use warpline::{DType, expr};
use warpline_nn::load_file;

/// Returns the training set and the test set, which is every fifth image. Images are `[1, size, size]` (`Resize`), and
/// values from 0 to 1 are normalized to `(value - mean) / std` (`Normalize`).
pub(crate) fn load(
    size: usize,
    mean: f64,
    std: f64,
) -> anyhow::Result<(TensorDataset, TensorDataset)> {
    // Prefer the folder at run time, because the checkout may have moved since the build.
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let path = package.join("examples/data/digits.safetensors");
    let file = load_file(&path, "cpu")?;
    let (Some(images), Some(labels)) = (file.get("images"), file.get("labels")) else {
        anyhow::bail!("{} has no images and labels", path.display());
    };
    let images = expr!(images.to(DType::F32).unsqueeze(1) / 16)?;
    let resize = InterpolateOptions::new().size([size, size]).mode(InterpolateMode::Bilinear);
    let images = expr!((interpolate(&images, resize) - mean) / std)?;
    let labels = labels.to(DType::I64)?;
    let of = |test: bool| {
        let index = (0..labels.numel() as i64).filter(|i| (i % 5 == 0) == test);
        let index = warpline::tensor(index.collect::<Vec<_>>(), ())?;
        TensorDataset::new(images.index_select(0, &index)?, labels.index_select(0, &index)?)
    };
    Ok((of(false)?, of(true)?))
}
