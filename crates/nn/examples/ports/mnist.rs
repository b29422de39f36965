//! `mnist/main.py`: a convolutional network reads digits.
//!
//! PyTorch's program has 119 lines without blanks and comments.

use warpline::autograd::ModeGuard;
use warpline::data::{DataLoader, Dataset, TensorDataset};
use warpline::functional::{Reduction, log_softmax, max_pool2d, nll_loss, relu};
use warpline::{Device, Result, Tensor};
use warpline_nn::optim::{Adadelta, AdadeltaOptions, Optimizer, Scheduler, StepLR, StepLROptions};
use warpline_nn::{Conv2d, Dropout, Linear, Module};

use crate::digits;

const BATCH_SIZE: usize = 64;
const TEST_BATCH_SIZE: usize = 1000;
const EPOCHS: usize = 14;
const LR: f64 = 1.0;
const GAMMA: f64 = 0.7;
const LOG_INTERVAL: usize = 10;

#[derive(Module)]
struct Net {
    conv1: Conv2d,
    conv2: Conv2d,
    dropout1: Dropout,
    dropout2: Dropout,
    fc1: Linear,
    fc2: Linear,
}

impl Net {
    fn new() -> Result<Self> {
        Ok(Self {
            conv1: Conv2d::new(1, 32, 3, ())?,
            conv2: Conv2d::new(32, 64, 3, ())?,
            dropout1: Dropout::new(0.25)?,
            dropout2: Dropout::new(0.5)?,
            fc1: Linear::new(9216, 128, ())?,
            fc2: Linear::new(128, 10, ())?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.conv1.forward(x)?;
        let x = relu(&x)?;
        let x = self.conv2.forward(&x)?;
        let x = relu(&x)?;
        let x = max_pool2d(&x, 2, ())?;
        let x = self.dropout1.forward(&x)?;
        let x = x.flatten(1)?;
        let x = self.fc1.forward(&x)?;
        let x = relu(&x)?;
        let x = self.dropout2.forward(&x)?;
        let x = self.fc2.forward(&x)?;
        log_softmax(&x, 1)
    }
}

type Loader = DataLoader<TensorDataset>;

fn train(
    model: &mut Net,
    device: Device,
    train_loader: &Loader,
    optimizer: &mut Adadelta,
    (epoch, steps): (usize, usize),
) -> Result<()> {
    model.train();
    for (batch_idx, batch) in train_loader.iter()?.take(steps).enumerate() {
        let (data, target) = batch?;
        let (data, target) = (data.to(device)?, target.to(device)?);
        optimizer.zero_grad()?;
        let output = model.forward(&data)?;
        let loss = nll_loss(&output, &target, ())?;
        loss.backward()?;
        optimizer.step()?;
        if batch_idx % LOG_INTERVAL == 0 {
            println!(
                "Train Epoch: {epoch} [{}/{} ({:.0}%)]\tLoss: {:.6}",
                batch_idx * data.size()[0],
                train_loader.dataset().len(),
                100.0 * batch_idx as f32 / train_loader.len() as f32,
                loss.item::<f32>()?
            );
        }
    }
    Ok(())
}

fn test(model: &mut Net, device: Device, test_loader: &Loader) -> Result<()> {
    model.eval();
    let mut test_loss = 0.0;
    let mut correct = 0;
    let _guard = ModeGuard::no_grad();
    for batch in test_loader.iter()? {
        let (data, target) = batch?;
        let (data, target) = (data.to(device)?, target.to(device)?);
        let output = model.forward(&data)?;
        test_loss += nll_loss(&output, &target, Reduction::Sum)?.item::<f32>()?;
        let pred = output.argmax_keepdim(1)?;
        correct += pred.eq(&target.view(pred.size())?)?.sum(())?.item::<i64>()?;
    }
    let count = test_loader.dataset().len();
    println!(
        "\nTest set: Average loss: {:.4}, Accuracy: {correct}/{count} ({:.0}%)\n",
        test_loss / count as f32,
        100.0 * correct as f32 / count as f32
    );
    Ok(())
}

/// Trains for `steps` batches, rounded up to whole epochs if they need more than one epoch. `small` has
/// smaller batches.
pub(crate) fn run(device: Device, steps: Option<usize>, small: bool) -> anyhow::Result<()> {
    let steps = steps.unwrap_or(usize::MAX);
    warpline::manual_seed(1);
    let (dataset1, dataset2) = digits::load(28, 0.3053, 0.3760)?;
    let train_loader = DataLoader::new(dataset1)
        .batch_size(if small { 8 } else { BATCH_SIZE })?
        .shuffle(true)
        .pin_memory(device.is_cuda());
    let test_loader = DataLoader::new(dataset2).batch_size(TEST_BATCH_SIZE)?;

    let mut model = Net::new()?;
    model.to(device)?;
    let mut optimizer = Adadelta::new(model.parameters(), AdadeltaOptions::new().lr(LR))?;

    let options = StepLROptions::new().gamma(GAMMA);
    let mut scheduler = StepLR::new(&mut optimizer, 1, options)?;
    for epoch in 1..=EPOCHS.min(steps.div_ceil(train_loader.len())) {
        train(&mut model, device, &train_loader, &mut optimizer, (epoch, steps))?;
        test(&mut model, device, &test_loader)?;
        scheduler.step(&mut optimizer)?;
    }
    Ok(())
}
