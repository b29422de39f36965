//! S38: graphed callables with collectives in their forward and backward passes, alone and within
//! DistributedDataParallel.

use warpline::autograd::{Context, Function, Gradients, ToSave};
use warpline::cuda::{self, Callable, GraphedCallable};
use warpline::functional::mse_loss;
use warpline::{Device, Result, Tensor};
use warpline_nn::optim::{Optimizer, SGD, SGDOptions};
use warpline_nn::{Forward, Module, Parameter};
use warpline_parallel::distributed::{DistributedDataParallel, ProcessGroup};

use crate::ddp::model::{batch, small_buckets, waves};
use crate::group_support::{Ranks, gpu_spec, schedules};

const STEPS: usize = 5;

/// The sum over the ranks, whose gradient is the sum of the ranks' gradients.
struct SumOfRanks(ProcessGroup);

impl SumOfRanks {
    fn sum(&self, x: &Tensor) -> Result<Tensor> {
        let sum = x.copy()?;
        self.0.all_reduce(&sum, ())?;
        Ok(sum)
    }
}

impl Function for SumOfRanks {
    const NAME: &'static str = "sum_of_ranks";

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.sum(inputs[0])?])
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        grads.iter().map(|grad| grad.as_ref().map(|grad| self.sum(grad)).transpose()).collect()
    }
}

/// Two layers, centred between them by the mean of all ranks.
fn layers(group: &ProcessGroup, [w1, w2]: [&Tensor; 2], x: &Tensor) -> Result<Tensor> {
    let hidden = x.matmul(w1)?.tanh()?;
    let mean = SumOfRanks(group.clone()).apply(&[&hidden.mean(0)?])?.remove(0);
    hidden.sub(&mean.div(group.world_size() as f64)?)?.matmul(w2)
}

fn weights(device: Device) -> Result<[Tensor; 2]> {
    Ok([
        waves(&[5, 7], 1, device)?.requires_grad_(true)?,
        waves(&[7, 2], 2, device)?.requires_grad_(true)?,
    ])
}

fn graphed(group: &ProcessGroup, weights: [&Tensor; 2], samples: usize) -> Result<GraphedCallable> {
    let sample = waves(&[samples, 5], 3, group.device())?;
    let callable = Callable::new(|x| Ok(vec![layers(group, weights, &x[0])?]), &[&sample]);
    let [graphed] = cuda::make_graphed_callables([callable], ())?;
    Ok(graphed)
}

/// Both passes of a graphed callable hold collectives. Its steps equal eager steps.
fn alone(ranks: &Ranks) {
    let all = ranks.run(|group| {
        let (device, part) = (group.device(), (group.rank(), group.world_size()));
        cuda::set_device(device)?;
        let mut results = Vec::new();
        for captures in [false, true] {
            let [w1, w2] = weights(device)?;
            let samples = batch(0, part, device)?.0.size()[0];
            let graphed = if captures { Some(graphed(&group, [&w1, &w2], samples)?) } else { None };
            let mut optimizer = SGD::new(vec![w1.clone(), w2.clone()], SGDOptions::new().lr(0.2))?;
            for step in 0..STEPS {
                let (x, y) = batch(step, part, device)?;
                let out = match &graphed {
                    Some(graphed) => graphed.call(&[&x])?.remove(0),
                    None => layers(&group, [&w1, &w2], &x)?,
                };
                optimizer.zero_grad()?;
                mse_loss(&out, &y, ())?.backward()?;
                optimizer.step()?;
            }
            results.push([w1.to_vec::<f64>()?, w2.to_vec()?]);
            group.barrier()?;
        }
        assert_eq!(results[0], results[1]);
        Ok(())
    });
    drop(all);
}

/// A module whose forward pass is a graphed callable, made before [`DistributedDataParallel`] wraps it.
#[derive(Debug, Module)]
struct Net {
    w1: Parameter,
    w2: Parameter,
    #[module(skip)]
    group: ProcessGroup,
    #[module(skip)]
    graphed: Option<GraphedCallable>,
}

impl Forward<Tensor> for Net {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        match &self.graphed {
            Some(graphed) => Ok(graphed.call(&[&x])?.remove(0)),
            None => layers(&self.group, [&self.w1, &self.w2], &x),
        }
    }
}

/// Reductions of gradients, a replayed backward pass with a collective, and an optimizer.
fn within_ddp(ranks: &Ranks) {
    let all = ranks.run(|group| {
        let (device, part) = (group.device(), (group.rank(), group.world_size()));
        cuda::set_device(device)?;
        let mut results = Vec::new();
        for captures in [false, true] {
            let [w1, w2] = weights(device)?;
            let (w1, w2) = (Parameter::new(w1.detach())?, Parameter::new(w2.detach())?);
            let mut net = Net { w1, w2, group: group.clone(), graphed: None };
            if captures {
                let samples = batch(0, part, device)?.0.size()[0];
                net.graphed = Some(graphed(&group, [&net.w1, &net.w2], samples)?);
            }
            let net = DistributedDataParallel::new(net, group.clone(), small_buckets())?;
            let mut optimizer = SGD::new(net.parameters(), SGDOptions::new().lr(0.2))?;
            for step in 0..STEPS {
                let (x, y) = batch(step, part, device)?;
                optimizer.zero_grad()?;
                mse_loss(&net.forward(x)?, &y, ())?.backward()?;
                optimizer.step()?;
            }
            let values = net.parameters().into_iter().map(|weight| weight.to_vec::<f64>());
            results.push(values.collect::<Result<Vec<_>>>()?);
            group.barrier()?;
        }
        assert_eq!(results[0], results[1]);
        Ok(results.swap_remove(0))
    });
    assert_eq!(all[0], all[1]);
}

#[test]
fn s38_graphed_callables_hold_collectives() {
    schedules(&[2], alone);
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_s38_graphed_callables_hold_collectives() {
    alone(&Ranks::new(&gpu_spec(), 2));
}

#[test]
fn s38_ddp_wraps_graphed_callables_with_collectives() {
    schedules(&[2], within_ddp);
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_s38_ddp_wraps_graphed_callables_with_collectives() {
    within_ddp(&Ranks::new(&gpu_spec(), 2));
}
