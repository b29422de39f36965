//! Training of a classifier of images, on one device or on one of several ranks.

use std::time::Instant;

use warpline::data::{DataLoader, Dataset};
use warpline::functional::cross_entropy;
use warpline::{DType, Device, MemoryFormat, Result, Tensor};
use warpline_nn::optim::{Optimizer, SGD, SGDOptions};
use warpline_nn::{Forward, Module};

/// Device, dtype and memory format of the model and of its inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) device: Device,
    dtype: DType,
    format: MemoryFormat,
}

impl Placement {
    pub(crate) fn new(device: Device, dtype: &str) -> anyhow::Result<Self> {
        let dtype = match dtype {
            "f32" => DType::F32,
            "f16" => DType::F16,
            "bf16" => DType::BF16,
            other => anyhow::bail!("`{other}` is no dtype of this example: use f32, f16 or bf16"),
        };
        // On a GPU, convolutions of `float16` and `bfloat16` are fastest if the channels are the innermost
        // dimension in memory.
        let format = if device.is_cuda() && dtype != DType::F32 {
            MemoryFormat::ChannelsLast
        } else {
            MemoryFormat::Contiguous
        };
        Ok(Self { device, dtype, format })
    }

    pub(crate) fn place_model(self, net: &mut impl Module) -> Result<()> {
        net.to((self.dtype, self.device))?;
        net.to(self.format)?;
        Ok(())
    }

    pub(crate) fn place(self, images: &Tensor) -> Result<Tensor> {
        images.to_non_blocking(self.device)?.to(self.dtype)?.contiguous_in(self.format)
    }
}

/// Trains for a number of steps. `start_epoch` is called with the number of each epoch.
pub(crate) fn train<M, D>(
    net: &M,
    loader: &DataLoader<D>,
    placement: Placement,
    (steps, lr): (usize, f64),
    start_epoch: impl Fn(u64),
) -> anyhow::Result<()>
where
    M: Module + for<'a> Forward<&'a Tensor, Output = Tensor>,
    D: Dataset<Sample = (Tensor, i64)>,
{
    let options = SGDOptions::new().lr(lr).momentum(0.9).weight_decay(1e-4);
    let mut sgd = SGD::new(net.parameters(), options)?;
    anyhow::ensure!(!loader.is_empty(), "there are fewer images than one batch has");
    let (mut done, mut timed, mut since) = (0, 0, Instant::now());
    for epoch in 0.. {
        start_epoch(epoch);
        let mut last = None;
        for batch in loader.iter()?.take(steps - done) {
            let (images, labels) = batch?;
            let logits = net.forward(&placement.place(&images)?)?.to(DType::F32)?;
            let loss = cross_entropy(&logits, &labels.to_non_blocking(placement.device)?, ())?;
            sgd.zero_grad()?;
            loss.backward()?;
            sgd.step()?;
            done += 1;
            if done == 1 {
                // The first step loads code and chooses plans.
                loss.item::<f32>()?;
                since = Instant::now();
            } else {
                timed += labels.numel();
            }
            last = Some(loss);
        }
        let Some(loss) = last else { break };
        let (loss, seconds) = (loss.item::<f32>()?, since.elapsed().as_secs_f64());
        println!("step {done}: loss {loss:.4}, {:.0} images/s", timed as f64 / seconds);
    }
    Ok(())
}
