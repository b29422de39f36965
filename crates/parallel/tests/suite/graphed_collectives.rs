//! S38: graphed callables with collectives in their forward and backward passes, alone and within
//! DistributedDataParallel.

use warpline::autograd::{Context, Function, Gradients, ToSave};
use warpline::cuda::{self, Callable, GraphedCallable};
use warpline::functional::mse_loss;
use warpline::{Result, Tensor};
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

/// The two layers, as a graphed callable or not.
#[derive(Debug, Module)]
struct Net {
    w1: Parameter,
    w2: Parameter,
    #[module(skip)]
    group: ProcessGroup,
    #[module(skip)]
    graphed: Option<GraphedCallable>,
}

impl Net {
    fn new(group: &ProcessGroup, is_graphed: bool) -> Result<Self> {
        let device = group.device();
        let w1 = Parameter::new(waves(&[5, 7], 1, device)?)?;
        let w2 = Parameter::new(waves(&[7, 2], 2, device)?)?;
        let mut net = Self { w1, w2, group: group.clone(), graphed: None };
        if is_graphed {
            let (sample, _) = own_batch(group, 0)?;
            let weights = [&*net.w1, &*net.w2];
            let layers = |x: &[Tensor]| Ok(vec![layers(group, weights, &x[0])?]);
            let [graphed] = cuda::make_graphed_callables([Callable::new(layers, &[&sample])], ())?;
            net.graphed = Some(graphed);
        }
        Ok(net)
    }
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

fn own_batch(group: &ProcessGroup, step: usize) -> Result<(Tensor, Tensor)> {
    batch(step, (group.rank(), group.world_size()), group.device())
}

/// Trains a network for a few steps, and returns its weights.
fn train<N>(net: &N, group: &ProcessGroup) -> Result<Vec<Vec<f64>>>
where
    N: Module + Forward<Tensor, Output = Tensor>,
{
    let mut optimizer = SGD::new(net.parameters(), SGDOptions::new().lr(0.2))?;
    for step in 0..STEPS {
        let (x, y) = own_batch(group, step)?;
        optimizer.zero_grad()?;
        mse_loss(&net.forward(x)?, &y, ())?.backward()?;
        optimizer.step()?;
    }
    let values = net.parameters().iter().map(Tensor::to_vec).collect();
    group.barrier()?;
    values
}

/// Both passes of a graphed callable hold collectives. Its steps equal eager steps.
fn alone(ranks: &Ranks) {
    ranks.run(|group| {
        cuda::set_device(group.device())?;
        let run = |is_graphed| train(&Net::new(&group, is_graphed)?, &group);
        assert_eq!(run(false)?, run(true)?);
        Ok(())
    });
}

/// [`DistributedDataParallel`] wraps a module whose forward pass is a graphed callable. A step has reductions of
/// gradients, a replayed backward pass with a collective, and an optimizer.
fn within_ddp(ranks: &Ranks) {
    let all = ranks.run(|group| {
        cuda::set_device(group.device())?;
        let run = |is_graphed| {
            let net = Net::new(&group, is_graphed)?;
            let net = DistributedDataParallel::new(net, group.clone(), small_buckets())?;
            train(&net, &group)
        };
        let eager = run(false)?;
        assert_eq!(eager, run(true)?);
        Ok(eager)
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
