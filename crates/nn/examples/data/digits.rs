//! The handwritten digits and the network of the `train_digits` programs.

use std::path::PathBuf;

use warpline::autograd::no_grad;
use warpline::{DType, Device, Result, Tensor, tensor};
use warpline_nn::{
    BatchNorm2d, Conv2d, ConvOptions, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential,
    load_file,
};

/// Images, `[n, 1, 8, 8]`, with values from 0 to 1, and their digits, `[n]`.
pub(crate) type Digits = (Tensor, Tensor);

/// Returns the training set and the test set, which is every fifth image.
pub(crate) fn digits() -> anyhow::Result<(Digits, Digits)> {
    // Prefer the folder at run time, because the checkout may have moved since the build.
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let path = package.join("../nn/examples/data/digits.safetensors");
    let file = load_file(&path, "cpu")?;
    let (Some(images), Some(labels)) = (file.get("images"), file.get("labels")) else {
        anyhow::bail!("{} has no images and labels", path.display());
    };
    let images = images.to(DType::F32)?.div(16.0)?.unsqueeze(1)?;
    let labels = labels.to(DType::I64)?;
    let (held_out, learned): (Vec<i64>, Vec<i64>) =
        (0..labels.numel() as i64).partition(|i| i % 5 == 0);
    let of = |index: Vec<i64>| -> Result<Digits> {
        let index = tensor(index, ())?;
        Ok((images.index_select(0, &index)?, labels.index_select(0, &index)?))
    };
    Ok((of(learned)?, of(held_out)?))
}

pub(crate) fn network(device: Device) -> Result<Sequential> {
    let same = || ConvOptions::new().padding(1);
    let mut net = Sequential::new()
        .with(Conv2d::new(1, 16, 3, same())?)
        .with(BatchNorm2d::new(16, ())?)
        .with(ReLU)
        .with(Conv2d::new(16, 32, 3, same())?)
        .with(BatchNorm2d::new(32, ())?)
        .with(ReLU)
        .with(MaxPool2d::new(2, ()))
        .with(Conv2d::new(32, 64, 3, same())?)
        .with(BatchNorm2d::new(64, ())?)
        .with(ReLU)
        .with(MaxPool2d::new(2, ()))
        .with(Flatten::new(()))
        .with(Linear::new(64 * 2 * 2, 10, ())?);
    net.to(device)?;
    Ok(net)
}

/// Returns the fraction of images that the network classifies correctly, in evaluation mode.
pub(crate) fn accuracy(
    net: &mut Sequential,
    (images, labels): &Digits,
    device: Device,
) -> Result<f32> {
    net.eval();
    let right = no_grad(|| {
        let read = net.forward(&images.to(device)?)?.argmax(1)?;
        read.eq(&labels.to(device)?)?.to(DType::F32)?.mean(())?.item()
    });
    net.train();
    right
}
