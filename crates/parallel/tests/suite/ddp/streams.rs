//! Gradients that are computed on several streams.

use warpline::cuda::{self, Stream};
use warpline::functional::mse_loss;
use warpline::{DType, Device, Result, Tensor};
use warpline_nn::{Linear, Module};
use warpline_parallel::distributed::{DdpOptions, DistributedDataParallel};

use super::model::{batch, waves};
use crate::group_support::{Ranks, number};

/// Two layers that do not depend on each other.
#[derive(Clone, Debug, Module)]
struct Branches {
    left: Linear,
    right: Linear,
}

impl Branches {
    fn new(device: Device) -> Result<Self> {
        let mut net = Self { left: Linear::new(5, 2, ())?, right: Linear::new(5, 2, ())? };
        net.to((DType::F64, device))?;
        for (seed, parameter) in net.parameters().iter().enumerate() {
            let values = waves(parameter.size(), seed, device)?;
            warpline::autograd::no_grad(|| parameter.copy_(&values, false).map(drop))?;
        }
        Ok(net)
    }

    /// Runs each layer on a stream of its own. Returns the sum and the layers' outputs.
    fn forward(&self, x: &Tensor, streams: &[Stream]) -> Result<(Tensor, [Tensor; 2])> {
        let current = cuda::current_stream(x.device())?;
        let branch = |stream: &Stream, layer: &Linear| {
            stream.wait_stream(&current)?;
            cuda::with_stream(stream, || layer.forward(x)?.tanh())
        };
        let outputs = [branch(&streams[0], &self.left)?, branch(&streams[1], &self.right)?];
        streams.iter().try_for_each(|stream| current.wait_stream(stream))?;
        Ok((outputs[0].add(&outputs[1])?, outputs))
    }
}

fn gradients(net: &Branches) -> Result<Vec<Vec<f64>>> {
    let gradients = net.parameters().into_iter().filter_map(|parameter| parameter.grad());
    gradients.map(|gradient| gradient.to_vec()).collect()
}

/// A bucket whose gradients come from two streams is reduced after all of them. Under `SyncPolicy::Manual` only the
/// waits of the reducer order the reduction and the streams.
#[test]
fn a_bucket_waits_for_the_stream_of_each_of_its_gradients() {
    let expected = || -> Result<_> {
        let net = Branches::new(Device::Cpu)?;
        let (x, y) = batch(0, (0, 1), Device::Cpu)?;
        let out = net.left.forward(&x)?.tanh()?.add(&net.right.forward(&x)?.tanh()?)?;
        mse_loss(&out, &y, ())?.backward()?;
        gradients(&net)
    };
    let expected = expected().unwrap();
    let seeds = (0..number("WARPLINE_SCHEDULES", 8)).map(|seed| format!("sim:2,seed={seed}"));
    for spec in std::iter::once("sim:2,lazy".to_owned()).chain(seeds) {
        for views in [false, true] {
            let found = Ranks::manual(&spec, 2).run(|group| {
                let (device, part) = (group.device(), (group.rank(), group.world_size()));
                cuda::set_device(device)?;
                let options = DdpOptions::new().gradient_as_bucket_view(views);
                let net = DistributedDataParallel::new(Branches::new(device)?, group, options)?;
                let streams = [Stream::new(device)?, Stream::new(device)?];
                let (x, y) = batch(0, part, device)?;
                cuda::synchronize(device)?;
                let mut all = Vec::new();
                for _ in 0..2 {
                    net.parameters().iter().try_for_each(|parameter| parameter.set_grad(None))?;
                    let (out, outputs) = net.call(|net| {
                        let (out, outputs) = net.forward(&x, &streams)?;
                        Ok((out, outputs.to_vec()))
                    })?;
                    mse_loss(&out, &y, ())?.backward()?;
                    cuda::synchronize(device)?;
                    drop(outputs);
                    all.push(gradients(net.module())?);
                }
                Ok(all)
            });
            for gradients in found.iter().flatten() {
                for (found, expected) in gradients.iter().zip(&expected) {
                    for (found, expected) in found.iter().zip(expected) {
                        assert!((found - expected).abs() < 1e-12, "{spec}: {found}, {expected}");
                    }
                }
                assert_eq!(gradients.len(), expected.len());
            }
        }
    }
}
