//! Buckets, their order, accumulation and buffers.

use warpline::{Device, Result, Tensor, full, ones};
use warpline_nn::{Buffer, Forward, Linear, Module, Parameter};
use warpline_parallel::distributed::{DdpOptions, DistributedDataParallel, ProcessGroup};

use super::model::{Mlp, batch, small_buckets};
use crate::group_support::{Ranks, schedules};

fn backward(net: &DistributedDataParallel<Mlp>, step: usize) -> Result<()> {
    let (group, device) = (net.group(), net.group().device());
    let (x, y) = batch(step, (group.rank(), group.world_size()), device)?;
    (net.forward(x)? - y)?.square()?.mean(())?.backward()
}

fn grads(net: &impl Module) -> Result<Vec<Vec<f64>>> {
    let grad = |parameter: &Tensor| parameter.grad().expect("a gradient").to_vec();
    net.parameters().iter().map(grad).collect()
}

#[test]
fn buckets_are_rebuilt_once_in_the_order_in_which_gradients_arrived() {
    Ranks::cpu(2).run(|group| {
        let net = Mlp::new(Device::Cpu, 0)?;
        let net = DistributedDataParallel::new(net, group, small_buckets())?;
        let names = |text: &str| -> Vec<Vec<String>> {
            let bucket = |text: &str| text.split(' ').map(str::to_owned).collect();
            text.split(", ").map(bucket).collect()
        };
        let first = names("fc1.weight fc1.bias fc2.weight fc2.bias fc3.weight fc3.bias");
        assert_eq!(net.bucket_names(), first);
        backward(&net, 0)?;
        assert_eq!(net.bucket_names(), first);
        // A bucket is closed once it has 100 bytes. A bias gets its gradient before its weight.
        let rebuilt = names("fc3.bias fc3.weight, fc2.bias fc2.weight, fc1.bias fc1.weight");
        for step in 1..4 {
            backward(&net, step)?;
            assert_eq!(net.bucket_names(), rebuilt);
        }
        Ok(())
    });
}

#[test]
fn with_unused_parameters_the_first_buckets_have_the_capacity_and_stay() {
    Ranks::cpu(2).run(|group| {
        let options = small_buckets().find_unused_parameters(true);
        let net = DistributedDataParallel::new(Mlp::new(Device::Cpu, 0)?, group, options)?;
        let first = net.bucket_names();
        assert_eq!(first.concat().len(), 6);
        assert_eq!(first.len(), 4, "{first:?}");
        assert_eq!(first[3], ["fc1.weight"]);
        (0..3).try_for_each(|step| backward(&net, step))?;
        assert_eq!(net.bucket_names(), first);
        Ok(())
    });
}

/// Two branches. The order in which their gradients arrive depends on the rank.
#[derive(Debug, Module)]
struct Branches {
    left: Parameter,
    right: Parameter,
    #[module(skip)]
    swapped: bool,
}

impl Forward<Tensor> for Branches {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let branch = |parameter: &Parameter| (&x * parameter)?.sum(());
        if self.swapped {
            let right = branch(&self.right)?;
            branch(&self.left)? + right
        } else {
            let left = branch(&self.left)?;
            branch(&self.right)? + left
        }
    }
}

fn branches(group: &ProcessGroup) -> Result<Branches> {
    let parameter = |value: f64| Parameter::new(full([40], value, group.device())?);
    let swapped = group.rank() == 1;
    Ok(Branches { left: parameter(1.0)?, right: parameter(2.0)?, swapped })
}

/// If each rank reduced its gradients in the order of their arrival, the ranks would add gradients of different
/// parameters.
#[test]
fn reductions_are_in_the_order_of_buckets_whatever_arrives_first() {
    let check = |ranks: &Ranks| {
        let arrivals = ranks.run(|group| {
            let (rank, device) = (group.rank(), group.device());
            let net = branches(&group)?;
            let arrived = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            for (name, parameter) in net.named_parameters() {
                let arrived = arrived.clone();
                parameter.register_post_accumulate_grad_hook(move |_| {
                    arrived.lock().unwrap().push(name.clone());
                    Ok(())
                })?;
            }
            let net = DistributedDataParallel::new(net, group, small_buckets())?;
            for step in 0..3 {
                net.zero_grad()?;
                net.forward(full([40], (rank + step) as f64, device)?)?.backward()?;
                for parameter in net.parameters() {
                    let wanted = step as f32 + 0.5;
                    assert_eq!(parameter.grad().unwrap().to_vec::<f32>()?, [wanted; 40]);
                }
            }
            assert_eq!(net.bucket_names().len(), 2);
            let arrived = arrived.lock().unwrap();
            Ok((arrived[4].clone(), net.bucket_names()))
        });
        assert_ne!(arrivals[0].0, arrivals[1].0, "the orders of arrival do not differ");
        assert_eq!(arrivals[0].1, arrivals[1].1);
        assert_eq!(arrivals[0].1[0], [arrivals[0].0.clone()], "the order is not that of rank 0");
    };
    check(&Ranks::cpu(2));
    schedules(&[2], check);
}

#[test]
fn no_sync_accumulates_and_the_next_pass_reduces_the_sum() {
    for options in [small_buckets(), small_buckets().gradient_as_bucket_view(true)] {
        let all = Ranks::cpu(2).run(|group| {
            let net = Mlp::new(Device::Cpu, 0)?;
            let net = DistributedDataParallel::new(net, group.clone(), options.clone())?;
            backward(&net, 0)?; // the first iteration, before the buckets are rebuilt
            net.zero_grad()?;
            net.no_sync(|| backward(&net, 1))?;
            let local = grads(&net)?;
            backward(&net, 2)?;
            let reduced = grads(&net)?;
            // Compute the same gradients without no_sync, as the means of each step.
            net.zero_grad()?;
            backward(&net, 1)?;
            let first = grads(&net)?;
            net.zero_grad()?;
            backward(&net, 2)?;
            let second = grads(&net)?;
            for ((sum, a), b) in reduced.concat().iter().zip(first.concat()).zip(second.concat()) {
                assert!((sum - (a + b)).abs() < 1e-12, "{sum}, {a}, {b}");
            }
            Ok((local, reduced))
        });
        assert_ne!(all[0].0, all[1].0, "gradients within no_sync were reduced");
        assert_eq!(all[0].1, all[1].1);
    }
}

#[test]
fn gradients_are_views_of_buckets_if_requested() {
    for view in [false, true] {
        Ranks::cpu(2).run(|group| {
            let options = DdpOptions::new().gradient_as_bucket_view(view);
            let net = DistributedDataParallel::new(Mlp::new(Device::Cpu, 0)?, group, options)?;
            for step in 0..3 {
                backward(&net, step)?;
                let grads: Vec<_> = net.parameters().iter().filter_map(Tensor::grad).collect();
                let shared = grads.iter().filter(|grad| grad.storage().same_as(grads[0].storage()));
                assert_eq!(shared.count(), if view { 6 } else { 1 });
            }
            Ok(())
        });
    }
}

/// A linear layer with a buffer to which each forward pass adds the sum of its input.
#[derive(Debug, Module)]
struct Counter {
    linear: Linear,
    count: Buffer,
}

impl Forward<Tensor> for Counter {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.count.add_(&x.sum(())?)?;
        self.linear.forward(&x)
    }
}

#[test]
fn buffers_are_those_of_rank_0_before_each_synchronized_forward_pass() {
    // Rank 1 begins its second pass with the 1 of rank 0 if buffers are broadcast, and with its own 2.5 otherwise.
    for (broadcasts, wanted) in [(true, [2.0, 3.5]), (false, [2.0, 5.0])] {
        let counts = Ranks::cpu(2).run(|group| {
            let rank = group.rank();
            let linear = Linear::new(1, 1, ())?;
            let net = Counter { linear, count: Buffer::new(full([], rank as f64, ())?) };
            let options = DdpOptions::new().broadcast_buffers(broadcasts);
            let net = DistributedDataParallel::new(net, group, options)?;
            // The constructor copies the buffers in any case.
            assert_eq!(net.module().count.item::<f32>()?, 0.0);
            for _ in 0..2 {
                let input = full([1, 1], 1.0 + 1.5 * rank as f64, ())?;
                net.forward(input)?.sum(())?.backward()?;
            }
            net.module().count.item::<f32>()
        });
        assert_eq!(counts, wanted);
    }
}

#[test]
fn the_module_is_visible_with_pytorchs_names_and_its_hooks_end_with_the_wrapper() {
    Ranks::cpu(2).run(|group| {
        let module = Linear::new(2, 1, ())?;
        let weight = module.weight.clone();
        let net = DistributedDataParallel::new(module, group.clone(), ())?;
        let names: Vec<_> = net.named_parameters().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["module.weight", "module.bias"]);
        drop(net);
        // Without the wrapper, gradients are not reduced.
        let x = full([1, 2], group.rank() as f64, ())?;
        x.matmul(&weight.t()?)?.sum(())?.backward()?;
        assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [group.rank() as f32; 2]);
        group.barrier()
    });
}

#[test]
fn forward_passes_without_gradients_reduce_nothing() {
    Ranks::cpu(2).run(|group| {
        let net = DistributedDataParallel::new(Linear::new(2, 1, ())?, group.clone(), ())?;
        warpline::autograd::no_grad(|| net.forward(ones([1, 2], ())?).map(drop))?;
        for _ in 0..2 {
            net.forward(full([1, 2], group.rank() as f64, ())?)?.sum(())?.backward()?;
            let grad = net.module().weight.grad().unwrap().to_vec::<f32>()?;
            assert_eq!(grad, [0.5; 2]);
            net.zero_grad()?;
        }
        Ok(())
    });
}
