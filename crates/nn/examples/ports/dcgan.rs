//! `dcgan/main.py`: a generator of images of digits, and a discriminator. PyTorch's program also writes images.
//!
//! PyTorch's program has 216 lines without blanks and comments, 45 of them for options and other data sets.

use warpline::data::DataLoader;
use warpline::{Device, Result, Tensor, expr, full, randn};
use warpline_nn::init::{normal_, zeros_};
use warpline_nn::optim::{Adam, AdamOptions, Optimizer};
use warpline_nn::{
    BCELoss, BatchNorm2d, Conv2d, ConvOptions, ConvTranspose2d, ConvTransposeOptions, LeakyReLU,
    Module, ReLU, Sequential, Sigmoid, Tanh, save_file,
};

use crate::digits;

const BATCH_SIZE: usize = 64;
const IMAGE_SIZE: usize = 64;
const NITER: usize = 25;
const LR: f64 = 0.0002;
const BETA1: f64 = 0.5;
/// Number of channels of an image.
const NC: usize = 1;
/// Size of the latent vector.
const NZ: usize = 100;

/// Custom initialization of weights, called on both networks.
fn weights_init(m: &mut dyn Module) -> Result<()> {
    if let Some(m) = m.downcast_ref::<Conv2d>() {
        normal_(&m.weight, (0.0, 0.02))?;
    } else if let Some(m) = m.downcast_ref::<ConvTranspose2d>() {
        normal_(&m.weight, (0.0, 0.02))?;
    } else if m.is::<BatchNorm2d>()
        && let [weight, bias] = &m.parameters()[..]
    {
        normal_(weight, (1.0, 0.02))?;
        zeros_(bias)?;
    }
    Ok(())
}

#[derive(Module)]
struct Generator {
    main: Sequential,
}

impl Generator {
    fn new(ngf: usize) -> Result<Self> {
        let first = || ConvTransposeOptions::new().bias(false);
        let twice = || first().stride(2).padding(1);
        let main = Sequential::new()
            // The input is Z, going into a convolution.
            .with(ConvTranspose2d::new(NZ, ngf * 8, 4, first())?)
            .with(BatchNorm2d::new(ngf * 8, ())?)
            .with(ReLU)
            // (ngf * 8) x 4 x 4
            .with(ConvTranspose2d::new(ngf * 8, ngf * 4, 4, twice())?)
            .with(BatchNorm2d::new(ngf * 4, ())?)
            .with(ReLU)
            // (ngf * 4) x 8 x 8
            .with(ConvTranspose2d::new(ngf * 4, ngf * 2, 4, twice())?)
            .with(BatchNorm2d::new(ngf * 2, ())?)
            .with(ReLU)
            // (ngf * 2) x 16 x 16
            .with(ConvTranspose2d::new(ngf * 2, ngf, 4, twice())?)
            .with(BatchNorm2d::new(ngf, ())?)
            .with(ReLU)
            // ngf x 32 x 32
            .with(ConvTranspose2d::new(ngf, NC, 4, twice())?)
            .with(Tanh);
        // NC x 64 x 64
        Ok(Self { main })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.main.forward(input)
    }
}

#[derive(Module)]
struct Discriminator {
    main: Sequential,
}

impl Discriminator {
    fn new(ndf: usize) -> Result<Self> {
        let last = || ConvOptions::new().bias(false);
        let half = || last().stride(2).padding(1);
        let main = Sequential::new()
            // NC x 64 x 64
            .with(Conv2d::new(NC, ndf, 4, half())?)
            .with(LeakyReLU::new(0.2))
            // ndf x 32 x 32
            .with(Conv2d::new(ndf, ndf * 2, 4, half())?)
            .with(BatchNorm2d::new(ndf * 2, ())?)
            .with(LeakyReLU::new(0.2))
            // (ndf * 2) x 16 x 16
            .with(Conv2d::new(ndf * 2, ndf * 4, 4, half())?)
            .with(BatchNorm2d::new(ndf * 4, ())?)
            .with(LeakyReLU::new(0.2))
            // (ndf * 4) x 8 x 8
            .with(Conv2d::new(ndf * 4, ndf * 8, 4, half())?)
            .with(BatchNorm2d::new(ndf * 8, ())?)
            .with(LeakyReLU::new(0.2))
            // (ndf * 8) x 4 x 4
            .with(Conv2d::new(ndf * 8, 1, 4, last())?)
            .with(Sigmoid);
        Ok(Self { main })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.main.forward(input)?.view((-1, 1))?.squeeze(1)
    }
}

/// Trains for `steps` batches, rounded up to whole epochs if they need more than one epoch. `small` has
/// smaller batches and fewer channels.
pub(crate) fn run(device: Device, steps: Option<usize>, small: bool) -> anyhow::Result<()> {
    let steps = steps.unwrap_or(usize::MAX);
    warpline::manual_seed(1);
    let outf = std::env::temp_dir().join("dcgan");
    std::fs::create_dir_all(&outf)?;
    let (batch_size, ngf, ndf) = if small { (16, 8, 8) } else { (BATCH_SIZE, 64, 64) };
    let (dataset, _) = digits::load(IMAGE_SIZE, 0.5, 0.5)?;
    let dataloader = DataLoader::new(dataset).batch_size(batch_size)?.shuffle(true);

    let mut net_g = Generator::new(ngf)?;
    net_g.to(device)?;
    net_g.apply(weights_init)?;
    println!("{net_g}");
    let mut net_d = Discriminator::new(ndf)?;
    net_d.to(device)?;
    net_d.apply(weights_init)?;
    println!("{net_d}");

    let criterion = BCELoss::new(());
    let (real_label, fake_label) = (1.0, 0.0);

    let options = || AdamOptions::new().lr(LR).betas((BETA1, 0.999));
    let mut optimizer_d = Adam::new(net_d.parameters(), options())?;
    let mut optimizer_g = Adam::new(net_g.parameters(), options())?;

    for epoch in 0..NITER.min(steps.div_ceil(dataloader.len())) {
        for (i, data) in dataloader.iter()?.take(steps).enumerate() {
            // (1) Update D network: maximize log(D(x)) + log(1 - D(G(z))).
            // Train with real images.
            net_d.zero_grad()?;
            let real = data?.0.to(device)?;
            let batch_size = real.size()[0];
            let label = full([batch_size], real_label, (real.dtype(), device))?;

            let output = net_d.forward(&real)?;
            let err_d_real = criterion.forward(&output, &label)?;
            err_d_real.backward()?;
            let d_x = output.mean(())?.item::<f32>()?;

            // Train with fake images.
            let noise = randn([batch_size, NZ, 1, 1], device)?;
            let fake = net_g.forward(&noise)?;
            label.fill_(fake_label)?;
            let output = net_d.forward(&fake.detach())?;
            let err_d_fake = criterion.forward(&output, &label)?;
            err_d_fake.backward()?;
            let d_g_z1 = output.mean(())?.item::<f32>()?;
            let err_d = expr!(err_d_real + err_d_fake)?;
            optimizer_d.step()?;

            // (2) Update G network: maximize log(D(G(z))).
            net_g.zero_grad()?;
            label.fill_(real_label)?; // fake labels are real for the generator's cost
            let output = net_d.forward(&fake)?;
            let err_g = criterion.forward(&output, &label)?;
            err_g.backward()?;
            let d_g_z2 = output.mean(())?.item::<f32>()?;
            optimizer_g.step()?;

            println!(
                "[{epoch}/{NITER}][{i}/{}] Loss_D: {:.4} Loss_G: {:.4} \
                 D(x): {d_x:.4} D(G(z)): {d_g_z1:.4} / {d_g_z2:.4}",
                dataloader.len(),
                err_d.item::<f32>()?,
                err_g.item::<f32>()?
            );
        }
        // Save checkpoints.
        save_file(&net_g.state_dict(), outf.join(format!("netG_epoch_{epoch}.safetensors")), ())?;
        save_file(&net_d.state_dict(), outf.join(format!("netD_epoch_{epoch}.safetensors")), ())?;
    }
    Ok(())
}
