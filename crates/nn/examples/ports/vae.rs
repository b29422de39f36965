//! `vae/main.py`: a variational autoencoder of digits. PyTorch's program also writes images.
//!
//! PyTorch's program has 106 lines without blanks and comments.

use warpline::autograd::{ModeGuard, no_grad};
use warpline::data::{DataLoader, Dataset, TensorDataset};
use warpline::functional::{Reduction, binary_cross_entropy, relu, sigmoid};
use warpline::{Device, Result, Tensor, expr, randn};
use warpline_nn::optim::{Adam, AdamOptions, Optimizer};
use warpline_nn::{Linear, Module};

use crate::digits;

const BATCH_SIZE: usize = 128;
const EPOCHS: usize = 10;
const LOG_INTERVAL: usize = 10;

#[allow(clippy::upper_case_acronyms)] // PyTorch's name
#[derive(Module)]
struct VAE {
    fc1: Linear,
    fc21: Linear,
    fc22: Linear,
    fc3: Linear,
    fc4: Linear,
}

impl VAE {
    fn new() -> Result<Self> {
        Ok(Self {
            fc1: Linear::new(784, 400, ())?,
            fc21: Linear::new(400, 20, ())?,
            fc22: Linear::new(400, 20, ())?,
            fc3: Linear::new(20, 400, ())?,
            fc4: Linear::new(400, 784, ())?,
        })
    }

    fn encode(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let h1 = relu(&self.fc1.forward(x)?)?;
        Ok((self.fc21.forward(&h1)?, self.fc22.forward(&h1)?))
    }

    fn reparameterize(mu: &Tensor, logvar: &Tensor) -> Result<Tensor> {
        let std = expr!((0.5 * logvar).exp())?;
        let eps = std.randn_like(())?;
        expr!(mu + eps * std)
    }

    fn decode(&self, z: &Tensor) -> Result<Tensor> {
        let h3 = relu(&self.fc3.forward(z)?)?;
        sigmoid(&self.fc4.forward(&h3)?)
    }

    fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let (mu, logvar) = self.encode(&x.view((-1, 784))?)?;
        let z = Self::reparameterize(&mu, &logvar)?;
        Ok((self.decode(&z)?, mu, logvar))
    }
}

/// Reconstruction and KL divergence losses summed over all elements and the batch.
fn loss_function(recon_x: &Tensor, x: &Tensor, mu: &Tensor, logvar: &Tensor) -> Result<Tensor> {
    let bce = binary_cross_entropy(recon_x, &x.view((-1, 784))?, Reduction::Sum)?;

    // See Appendix B of the VAE paper: Kingma and Welling, Auto-Encoding Variational Bayes, ICLR 2014,
    // https://arxiv.org/abs/1312.6114: 0.5 * sum(1 + log(sigma^2) - mu^2 - sigma^2)
    let kld = expr!(-0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(()))?;

    expr!(bce + kld)
}

type Loader = DataLoader<TensorDataset>;

fn train(
    model: &mut VAE,
    device: Device,
    train_loader: &Loader,
    optimizer: &mut Adam,
    (epoch, steps): (usize, usize),
) -> Result<()> {
    model.train();
    let mut train_loss = 0.0;
    let mut seen = 0;
    for (batch_idx, batch) in train_loader.iter()?.take(steps).enumerate() {
        let (data, _) = batch?;
        let data = data.to(device)?;
        optimizer.zero_grad()?;
        let (recon_batch, mu, logvar) = model.forward(&data)?;
        let loss = loss_function(&recon_batch, &data, &mu, &logvar)?;
        loss.backward()?;
        let loss = loss.item::<f32>()?;
        train_loss += loss;
        seen += data.size()[0];
        optimizer.step()?;
        if batch_idx % LOG_INTERVAL == 0 {
            println!(
                "Train Epoch: {epoch} [{}/{} ({:.0}%)]\tLoss: {:.6}",
                batch_idx * data.size()[0],
                train_loader.dataset().len(),
                100.0 * batch_idx as f32 / train_loader.len() as f32,
                loss / data.size()[0] as f32
            );
        }
    }
    println!("====> Epoch: {epoch} Average loss: {:.4}", train_loss / seen as f32);
    Ok(())
}

fn test(model: &mut VAE, device: Device, test_loader: &Loader) -> Result<()> {
    model.eval();
    let mut test_loss = 0.0;
    let _guard = ModeGuard::no_grad();
    for batch in test_loader.iter()? {
        let (data, _) = batch?;
        let data = data.to(device)?;
        let (recon_batch, mu, logvar) = model.forward(&data)?;
        test_loss += loss_function(&recon_batch, &data, &mu, &logvar)?.item::<f32>()?;
    }
    println!("====> Test set loss: {:.4}", test_loss / test_loader.dataset().len() as f32);
    Ok(())
}

/// Trains for `steps` batches, rounded up to whole epochs if they need more than one epoch.
pub(crate) fn run(device: Device, steps: Option<usize>, _small: bool) -> anyhow::Result<()> {
    let steps = steps.unwrap_or(usize::MAX);
    warpline::manual_seed(1);
    let (train_set, test_set) = digits::load(28, 0.0, 1.0)?;
    let train_loader = DataLoader::new(train_set).batch_size(BATCH_SIZE)?.shuffle(true);
    let test_loader = DataLoader::new(test_set).batch_size(BATCH_SIZE)?;

    let mut model = VAE::new()?;
    model.to(device)?;
    let mut optimizer = Adam::new(model.parameters(), AdamOptions::new().lr(1e-3))?;
    for epoch in 1..=EPOCHS.min(steps.div_ceil(train_loader.len())) {
        train(&mut model, device, &train_loader, &mut optimizer, (epoch, steps))?;
        test(&mut model, device, &test_loader)?;
        let sample = no_grad(|| model.decode(&randn([64, 20], device)?))?;
        println!("Mean of 64 samples: {:.4}", sample.mean(())?.item::<f32>()?);
    }
    Ok(())
}
