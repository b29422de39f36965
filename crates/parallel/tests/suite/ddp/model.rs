//! A model and its training, in one process and in several.

use warpline::functional::mse_loss;
use warpline::{DType, Device, Result, Tensor, arange};
use warpline_nn::optim::{Optimizer, SGD, SGDOptions};
use warpline_nn::{Forward, Linear, Module};
use warpline_parallel::distributed::{DdpOptions, DistributedDataParallel, ProcessGroup, ReduceOp};

/// Three layers in double precision, whose parameters are functions of a seed.
#[derive(Clone, Debug, Module)]
pub(crate) struct Mlp {
    pub(crate) fc1: Linear,
    pub(crate) fc2: Linear,
    pub(crate) fc3: Linear,
}

impl Mlp {
    pub(crate) fn new(device: Device, seed: usize) -> Result<Self> {
        let mut net = Self {
            fc1: Linear::new(5, 7, ())?,
            fc2: Linear::new(7, 6, ())?,
            fc3: Linear::new(6, 2, ())?,
        };
        net.to((DType::F64, device))?;
        for (number, parameter) in net.parameters().iter().enumerate() {
            let values = waves(parameter.size(), seed + 10 * number, device)?;
            warpline::autograd::no_grad(|| parameter.copy_(&values, ()).map(drop))?;
        }
        Ok(net)
    }
}

impl Forward<Tensor> for Mlp {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = self.fc1.forward(&x)?.tanh()?;
        self.fc3.forward(&self.fc2.forward(&x)?.tanh()?)
    }
}

/// Returns values between -1 and 1 that depend on the seed.
pub(crate) fn waves(size: &[usize], seed: usize, device: Device) -> Result<Tensor> {
    let count: usize = size.iter().product();
    let numbers = arange(count as i64, (DType::F64, device))?;
    numbers.mul(0.37)?.add(0.11 + seed as f64)?.sin()?.reshape(size)
}

/// Number of samples of the whole batch.
const BATCH: usize = 24;

/// Returns a rank's part of the inputs and targets of a step.
pub(crate) fn batch(
    step: usize,
    (rank, ranks): (usize, usize),
    device: Device,
) -> Result<(Tensor, Tensor)> {
    let (x, y) =
        (waves(&[BATCH, 5], 1000 + step, device)?, waves(&[BATCH, 2], 2000 + step, device)?);
    let part = BATCH / ranks;
    Ok((x.narrow(0, rank * part, part)?, y.narrow(0, rank * part, part)?))
}

/// Losses of each step, and the parameters at the end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    pub(crate) weights: Vec<Vec<f64>>,
}

impl Trained {
    pub(crate) fn assert_close(&self, other: &Self, tolerance: f64) {
        let all = |run: &Self| -> Vec<f64> {
            run.losses.iter().chain(run.weights.iter().flatten()).copied().collect()
        };
        let (own, other) = (all(self), all(other));
        assert_eq!(own.len(), other.len());
        for (a, b) in own.iter().zip(&other) {
            assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{a} and {b}");
        }
    }
}

pub(crate) fn sgd(net: &impl Module) -> Result<SGD> {
    SGD::new(net.parameters(), SGDOptions::new().lr(0.2).momentum(0.9))
}

fn values(net: &impl Module) -> Result<Vec<Vec<f64>>> {
    net.parameters().iter().map(Tensor::to_vec).collect()
}

/// Trains on the whole batch in one process.
pub(crate) fn train_alone(steps: usize) -> Trained {
    let train = || -> Result<Trained> {
        let net = Mlp::new(Device::Cpu, 0)?;
        let mut optimizer = sgd(&net)?;
        let mut losses = Vec::new();
        for step in 0..steps {
            let (x, y) = batch(step, (0, 1), Device::Cpu)?;
            optimizer.zero_grad()?;
            let loss = mse_loss(&net.forward(x)?, &y, ())?;
            loss.backward()?;
            optimizer.step()?;
            losses.push(loss.item()?);
        }
        Ok(Trained { losses, weights: values(&net)? })
    };
    train().unwrap()
}

/// Trains on this rank's part of the batch. The losses are the means over the ranks.
pub(crate) fn train(group: &ProcessGroup, options: DdpOptions, steps: usize) -> Result<Trained> {
    train_with(group, options, steps, |_| {})
}

pub(crate) fn train_with(
    group: &ProcessGroup,
    options: DdpOptions,
    steps: usize,
    configure: impl FnOnce(&mut DistributedDataParallel<Mlp>),
) -> Result<Trained> {
    let device = group.device();
    // The constructor replaces the parameters of the other ranks.
    let net = Mlp::new(device, group.rank())?;
    let mut net = DistributedDataParallel::new(net, group.clone(), options)?;
    configure(&mut net);
    let mut optimizer = sgd(&net)?;
    let mut losses = Vec::new();
    for step in 0..steps {
        let (x, y) = batch(step, (group.rank(), group.world_size()), device)?;
        optimizer.zero_grad()?;
        let loss = mse_loss(&net.forward(x)?, &y, ())?;
        loss.backward()?;
        optimizer.step()?;
        let mean = loss.detach().copy()?;
        group.all_reduce(&mean, ReduceOp::Avg)?;
        losses.push(mean);
    }
    let losses = losses.iter().map(Tensor::item).collect::<Result<Vec<f64>>>()?;
    group.barrier()?;
    Ok(Trained { losses, weights: values(&net)? })
}

/// Options with a bucket for every one or two parameters.
pub(crate) fn small_buckets() -> DdpOptions {
    DdpOptions::new().bucket_cap_mb(100.0 / f64::from(1 << 20))
}
