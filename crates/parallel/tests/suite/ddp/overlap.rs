//! Reductions overlap with the backward pass, and a whole step can be captured.

use std::sync::{Arc, Mutex};

use warpline::Result;
use warpline::cuda::{self, CudaGraph};
use warpline::functional::mse_loss;
use warpline_nn::Module;
use warpline_nn::optim::{Optimizer, SGD, SGDOptions};
use warpline_parallel::distributed::ddp::{BucketReduction, GradBucket};
use warpline_parallel::distributed::{DistributedDataParallel, ReduceOptions};

use super::model::{Mlp, batch, small_buckets};
use crate::group_support::{Ranks, gpu_spec, schedules};

/// The first reductions are launched before the last gradients are computed, on a different stream than the gradients.
#[test]
fn reductions_are_launched_while_the_backward_pass_goes_on() {
    for spec in ["sim:2,lazy", "sim:2,seed=1"] {
        Ranks::new(spec, 2).run(|group| {
            let (device, part) = (group.device(), (group.rank(), group.world_size()));
            let net = Mlp::new(device, 0)?;
            let events = Arc::new(Mutex::new(Vec::new()));
            for (name, parameter) in net.named_parameters() {
                let events = events.clone();
                parameter.register_post_accumulate_grad_hook(move |_| {
                    events.lock().unwrap().push(name.clone());
                    Ok(())
                })?;
            }
            let mut net = DistributedDataParallel::new(net, group.clone(), small_buckets())?;
            let (launched, own) = (events.clone(), cuda::current_stream(device)?);
            net.register_comm_hook(move |bucket: &GradBucket| {
                let before = own.last_op();
                let work = bucket
                    .group()
                    .all_reduce(bucket.buffer(), ReduceOptions::new().async_op(true))?;
                assert_eq!(
                    own.last_op(),
                    before,
                    "the reduction is on the stream of the gradients"
                );
                launched.lock().unwrap().push(format!("bucket {}", bucket.index()));
                Ok(BucketReduction::after(work, bucket.buffer().clone()))
            });
            for step in 0..3 {
                events.lock().unwrap().clear();
                let (x, y) = batch(step, part, device)?;
                (net.forward(x)? - y)?.square()?.mean(())?.backward()?;
            }
            let events = events.lock().unwrap().clone();
            let at = |name: &str| events.iter().position(|event| event == name).expect("an event");
            assert!(at("bucket 0") < at("fc2.weight"), "{events:?}");
            assert!(at("bucket 1") < at("fc1.weight"), "{events:?}");
            group.barrier()
        });
    }
}

/// A captured step of forward pass, backward pass, reductions and optimizer gives the same parameters as steps that are
/// not captured.
fn captured_steps_equal_uncaptured_steps(ranks: &Ranks) {
    const WARM_UP: usize = 3;
    const STEPS: usize = 4;
    let all = ranks.run(|group| {
        let (device, part) = (group.device(), (group.rank(), group.world_size()));
        cuda::set_device(device)?;
        let mut results = Vec::new();
        for captures in [false, true] {
            let net =
                DistributedDataParallel::new(Mlp::new(device, 0)?, group.clone(), small_buckets())?;
            let mut optimizer = SGD::new(net.parameters(), SGDOptions::new().lr(0.2))?;
            let (x, y) = batch(0, part, device)?;
            let (x, y) = (x.copy()?, y.copy()?);
            let load = |step: usize| -> Result<()> {
                let (next_x, next_y) = batch(step, part, device)?;
                x.copy_(&next_x, true)?;
                y.copy_(&next_y, true).map(drop)
            };
            let mut step = || -> Result<()> {
                optimizer.zero_grad()?;
                mse_loss(&net.forward(x.clone())?, &y, ())?.backward()?;
                optimizer.step()
            };
            let side = cuda::Stream::new(device)?;
            let mut graph = CudaGraph::new();
            cuda::with_stream(&side, || {
                for number in 0..WARM_UP {
                    load(number)?;
                    step()?;
                }
                // The capture does not run the step.
                if captures {
                    graph.capture(&mut step)?;
                }
                for number in WARM_UP..WARM_UP + STEPS {
                    load(number)?;
                    if captures { graph.replay()? } else { step()? }
                }
                Ok::<_, warpline::Error>(())
            })?;
            let values = net.parameters().into_iter().map(|parameter| parameter.to_vec::<f64>());
            results.push(values.collect::<Result<Vec<_>>>()?);
            group.barrier()?;
        }
        assert_eq!(results[0], results[1]);
        Ok(results.swap_remove(0))
    });
    assert_eq!(all[0], all[1]);
}

#[test]
fn a_whole_step_can_be_captured() {
    schedules(&[2], captured_steps_equal_uncaptured_steps);
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_whole_ddp_step_can_be_captured() {
    captured_steps_equal_uncaptured_steps(&Ranks::new(&gpu_spec(), 2));
}
