//! Communication hooks.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use warpline::autograd::enable_grad;
use warpline::{Result, Tensor, full};
use warpline_nn::{Forward, Module, Parameter};
use warpline_parallel::distributed::ddp::{
    BucketReduction, GradBucket, allreduce_hook, bf16_compress_hook, fp16_compress_hook,
};
use warpline_parallel::distributed::{DdpError, DistributedDataParallel, ReduceOp};

use super::model::{small_buckets, train, train_with};
use crate::group_support::{Ranks, schedules};

#[derive(Debug, Module)]
struct Scale(Parameter);

impl Forward<Tensor> for Scale {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        (&x * &self.0)?.sum(())
    }
}

/// Returns the gradient of a scale on rank 0 for inputs that differ by rank.
fn reduced(
    ranks: &Ranks,
    inputs: [f64; 2],
    hook: impl Fn(&GradBucket) -> Result<BucketReduction> + Send + Sync + Copy + 'static,
) -> f32 {
    let grads = ranks.run(|group| {
        let (rank, device) = (group.rank(), group.device());
        let scale = Scale(Parameter::new(full([1], 1.0, device)?)?);
        let mut net = DistributedDataParallel::new(scale, group, ())?;
        net.register_comm_hook(hook);
        net.forward(full([1], inputs[rank], device)?)?.backward()?;
        net.module().0.grad().unwrap().item::<f32>()
    });
    assert_eq!(grads[0], grads[1]);
    grads[0]
}

#[test]
fn compression_rounds_to_its_dtype_and_divides_before_it_sums() {
    let check = |ranks: &Ranks| {
        // f16 can represent 257, but bf16 cannot.
        assert_eq!(reduced(ranks, [257.0, 1.0], allreduce_hook), 129.0);
        assert_eq!(reduced(ranks, [257.0, 0.0], bf16_compress_hook), 128.0);
        assert_eq!(reduced(ranks, [257.0, 1.0], fp16_compress_hook), 129.0);
        // 65504 is the largest number of f16: the sum of the two inputs is infinite, but their mean is not.
        assert_eq!(reduced(ranks, [65504.0, 65504.0], fp16_compress_hook), 65504.0);
    };
    check(&Ranks::cpu(2));
    schedules(&[2], check);
}

#[test]
fn a_hook_sees_the_buckets_in_order_and_replaces_the_reduction() {
    let twice_the_mean = |bucket: &GradBucket| {
        let parameters: usize = bucket.parameters().iter().map(Tensor::numel).sum();
        assert_eq!(bucket.buffer().numel(), parameters);
        let double = bucket.buffer().mul(2.0 / bucket.group().world_size() as f64)?;
        let work = bucket.all_reduce(&double, ReduceOp::Sum)?;
        Ok(BucketReduction::after(work, double))
    };
    let all = Ranks::cpu(2).run(|group| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = seen.clone();
        let hook = move |bucket: &GradBucket| {
            record.lock().unwrap().push((bucket.index(), bucket.is_last()));
            twice_the_mean(bucket)
        };
        let hooked = train_with(&group, small_buckets(), 3, |net| net.register_comm_hook(hook))?;
        let plain = train(&group, small_buckets(), 3)?;
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        Ok((seen, hooked, plain))
    });
    for (seen, hooked, plain) in all {
        // The first iteration has one bucket; the other two iterations have the rebuilt buckets.
        let rebuilt = seen.len() / 2;
        assert!(rebuilt > 2, "{seen:?}");
        assert_eq!(seen[0], (0, true));
        let wanted: Vec<_> = (0..rebuilt).map(|i| (i, i + 1 == rebuilt)).collect();
        assert_eq!(seen[1..=rebuilt], wanted);
        assert_eq!(hooked.losses[0], plain.losses[0]);
        assert_ne!(hooked.losses[1], plain.losses[1]);
    }
}

#[test]
fn the_mean_hook_gives_the_same_bits_as_no_hook() {
    Ranks::cpu(3).run(|group| {
        let hooked =
            train_with(&group, small_buckets(), 3, |net| net.register_comm_hook(allreduce_hook))?;
        assert_eq!(hooked, train(&group, small_buckets(), 3)?);
        Ok(())
    });
}

#[test]
fn a_hook_that_returns_another_size_is_an_error_that_names_the_bucket() {
    let errors = Ranks::cpu(2).run(|group| {
        let scale = Scale(Parameter::new(full([3], 1.0, ())?)?);
        let mut net = DistributedDataParallel::new(scale, group, ())?;
        net.register_comm_hook(|_| Ok(full([2], 0.0, ())?.into()));
        Ok(net.forward(full([3], 1.0, ())?)?.backward().unwrap_err())
    });
    for error in errors {
        let found = error.find::<DdpError>();
        assert!(
            matches!(found, Some(DdpError::HookResult { expected: 3, found: 2, .. })),
            "{error}"
        );
        assert!(error.to_string().contains("bucket 0 of 1, gradients of 0"), "{error}");
    }
}

/// A hook may own another `DistributedDataParallel`, with a hook of its own.
#[test]
fn chains_of_hooks_are_dropped_without_recursion() {
    Ranks::cpu(1).run(|group| {
        // A drop that recursed would need more than this stack.
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let chain = small.spawn(move || -> Result<()> {
            let net = || {
                let scale = Scale(Parameter::new(full([1], 1.0, ())?)?);
                DistributedDataParallel::new(scale, group.clone(), ())
            };
            let mut chain = net()?;
            for _ in 0..4_000 {
                let former = std::mem::replace(&mut chain, net()?);
                chain.register_comm_hook(move |bucket| {
                    let _owned = &former;
                    allreduce_hook(bucket)
                });
            }
            drop(chain);
            Ok(())
        });
        chain.expect("a thread").join().expect("no overflow")
    });
}

/// Calls a `DistributedDataParallel` when it is dropped. The call needs the lock of the reducer.
#[derive(Clone, Debug, Default)]
struct CallsOnDrop {
    net: Arc<OnceLock<Weak<DistributedDataParallel<Scale>>>>,
    calls: Arc<Mutex<usize>>,
}

impl Drop for CallsOnDrop {
    fn drop(&mut self) {
        if let Some(net) = self.net.get().and_then(Weak::upgrade) {
            assert_eq!(net.bucket_names().len(), 1);
            *self.calls.lock().unwrap() += 1;
        }
    }
}

#[test]
fn a_value_in_the_graph_of_a_reduced_tensor_is_dropped_outside_the_lock() {
    Ranks::cpu(1).run(|group| {
        let value = CallsOnDrop::default();
        let (net, calls) = (Arc::clone(&value.net), Arc::clone(&value.calls));
        let scale = Scale(Parameter::new(full([1], 1.0, ())?)?);
        let mut module = DistributedDataParallel::new(scale, group, ())?;
        module.register_comm_hook(move |bucket| {
            let factor = full([1], 1.0, ())?.requires_grad_(true)?;
            let reduced = enable_grad(|| bucket.buffer().mul(&factor))?;
            let value = value.clone();
            reduced.register_hook(move |_| {
                let _owned = &value;
                Ok(None)
            })?;
            Ok(reduced.into())
        });
        let module = Arc::new(module);
        net.set(Arc::downgrade(&module)).expect("it is set once");
        for _ in 0..2 {
            module.forward(full([1], 1.0, ())?)?.backward()?;
        }
        // The hook still owns `value` itself.
        assert_eq!(*calls.lock().unwrap(), 2);
        Ok(())
    });
}
