//! The state of a training run and its step.

use warpline::amp::autocast;
use warpline::data::{Batches, DataLoader};
use warpline::functional::cross_entropy;
use warpline::{DType, Device, Generator, Result, Tensor};
use warpline_nn::amp::{GradScaler, GradScalerOptions};
use warpline_nn::optim::{
    AdamW, AdamWOptions, CosineAnnealingLR, Optimizer, Scheduler, clip_grad_norm_,
};
use warpline_nn::{Forward, Module};

use super::model::Gpt;
use super::text::Pieces;

/// Settings of a training run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) batch_size: usize,
    /// Number of steps in which the learning rate falls to its minimum.
    pub(crate) steps: u32,
    pub(crate) lr: f64,
    pub(crate) seed: u64,
    /// Dtype of the regions of autocast that compute the losses. With `float16`, the losses are scaled.
    pub(crate) autocast: Option<DType>,
}

/// A training run with its complete state. The model computes logits from tokens.
#[derive(Debug)]
pub(crate) struct Training<M = Gpt> {
    pub(crate) model: M,
    pub(crate) optimizer: AdamW,
    pub(crate) scheduler: CosineAnnealingLR,
    pub(crate) scaler: GradScaler,
    autocast: Option<DType>,
    pub(crate) device: Device,
    pub(crate) step: u32,
    loader: DataLoader<Pieces>,
    /// Generator of the order of the samples.
    pub(crate) generator: Generator,
    /// State of the generator at the start of this epoch.
    pub(crate) epoch: Tensor,
    batches: Batches<Pieces>,
    /// Number of batches taken from this epoch.
    pub(crate) taken: usize,
}

impl<M: Module + Forward<Tensor, Output = Tensor>> Training<M> {
    /// Starts a run. `model` makes the model, after the generators are seeded.
    pub(crate) fn new(
        pieces: Pieces,
        model: impl FnOnce() -> Result<M>,
        settings: &Settings,
        device: Device,
    ) -> Result<Self> {
        warpline::manual_seed(settings.seed);
        let model = model()?;
        let options = AdamWOptions::new().lr(settings.lr).betas((0.9, 0.95));
        let mut optimizer = AdamW::new(model.parameters(), options)?;
        let scheduler =
            CosineAnnealingLR::new(&mut optimizer, settings.steps.max(1), settings.lr / 10.0)?;
        let is_scaled = settings.autocast == Some(DType::F16);
        let scaler = GradScaler::new(GradScalerOptions::new().enabled(is_scaled))?;
        let generator = Generator::new();
        generator.manual_seed(settings.seed);
        let loader = DataLoader::new(pieces)
            .batch_size(settings.batch_size)?
            .shuffle(true)
            .drop_last(true)
            .pin_memory(device.is_cuda())
            .generator(&generator)?;
        let (epoch, batches) = (generator.get_state()?, loader.iter()?);
        Ok(Self {
            model,
            optimizer,
            scheduler,
            scaler,
            autocast: settings.autocast,
            device,
            step: 0,
            loader,
            generator,
            epoch,
            batches,
            taken: 0,
        })
    }

    /// Continues at batch `taken` of the epoch at whose start the generator had the state `epoch`.
    pub(crate) fn seek(&mut self, epoch: Tensor, taken: usize) -> Result<()> {
        self.generator.set_state(&epoch)?;
        self.batches = self.loader.iter_from(taken)?;
        (self.epoch, self.taken) = (epoch, taken);
        Ok(())
    }

    fn next_batch(&mut self) -> Result<(Tensor, Tensor)> {
        if self.taken == self.loader.len() {
            self.seek(self.generator.get_state()?, 0)?;
        }
        let Some(batch) = self.batches.next() else {
            let reason = "the text is shorter than a batch of pieces".to_owned();
            return Err(warpline::Error::invalid("train_gpt", reason));
        };
        self.taken += 1;
        let (inputs, targets) = batch?;
        Ok((inputs.to_non_blocking(self.device)?, targets.to_non_blocking(self.device)?))
    }

    /// Runs one step. Returns the loss as a tensor, so that the host does not wait.
    pub(crate) fn step(&mut self) -> Result<Tensor> {
        let (inputs, targets) = self.next_batch()?;
        self.optimizer.zero_grad()?;
        let loss = || {
            let logits = self.model.forward(inputs)?.flatten((0, 1))?;
            cross_entropy(&logits, &targets.flatten((0, 1))?, ())
        };
        let loss = match self.autocast {
            Some(dtype) => autocast(self.device, dtype, loss)?,
            None => loss()?,
        };
        self.scaler.scale(&loss)?.backward()?;
        self.scaler.unscale_(&self.optimizer)?;
        clip_grad_norm_(&self.model.parameters(), 1.0, ())?;
        self.scaler.step(&mut self.optimizer)?;
        self.scaler.update()?;
        self.scheduler.step(&mut self.optimizer)?;
        self.step += 1;
        Ok(loss.detach())
    }
}
