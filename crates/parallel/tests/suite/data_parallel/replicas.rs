//! Parameters and buffers of replicas: their values, and the copies that each forward pass makes.

use warpline::autograd::no_grad;
use warpline::{Device, Tensor, cuda, full, ones, tensor};
use warpline_nn::{Buffer, Forward, Linear, Module, Parameter};
use warpline_parallel::DataParallel;

use super::nets::{Counts, Tied};
use super::world::{SimBox, TestResult, values};

crate::on_both! {
    Auto([2, 4]) s28_buffers_of_the_first_stay_and_others_are_lost
        gpu2_s28_buffers_of_the_first_stay_and_others_are_lost => buffers;
    Auto([2, 3]) s28_changes_are_seen gpu2_s28_changes_are_seen => changes;
    Auto([2, 8]) s28_tied_parameters_stay_tied gpu2_s28_tied_parameters_stay_tied => tied;
    Auto([2]) s28_tensors_kept_from_a_replica_stay_valid gpu2_s28_tensors_kept_from_a_replica_stay_valid => left;
}

/// Returns `[1, 10, 100, …]`, with one element per device.
fn powers(devices: usize) -> warpline::Result<Tensor> {
    let powers: Vec<f32> = (0..devices).map(|i| 10f32.powi(i as i32)).collect();
    tensor(powers, 0)
}

fn buffers(devices: usize) -> TestResult {
    let net = DataParallel::new(Counts::new(0)?, ())?;
    let x = powers(devices)?;
    for forward in 0..4 {
        let out = values(&net.forward(x.clone())?)?;
        for (i, out) in out.into_iter().enumerate() {
            // Only the additions on the first device persist.
            let own = 10f32.powi(i as i32);
            assert_eq!(out, 2.0 * own + own + forward as f32, "replica {i}, forward {forward}");
        }
        assert_eq!(values(&net.module().count)?, [forward as f32 + 1.0]);
    }
    Ok(())
}

fn changes(devices: usize) -> TestResult {
    let mut net = DataParallel::new(Counts::new(0)?, ())?;
    let x = ones([devices], 0)?;
    let check = |net: &DataParallel<Counts>, weight: f32, what: &str| -> TestResult {
        net.module().count.zero_()?;
        let out = values(&net.forward(x.clone())?)?;
        assert_eq!(out, vec![weight + 1.0; devices], "{what}");
        Ok(())
    };
    check(&net, 2.0, "as made")?;
    net.module().weight.fill_(3.0)?;
    check(&net, 3.0, "in place")?;
    net.module().weight.view([1, 1])?.add_(1.0)?;
    check(&net, 4.0, "through a view")?;
    let s = cuda::Stream::new(0)?;
    cuda::with_stream(&s, || net.module().weight.mul_(2.0).map(drop))?;
    check(&net, 8.0, "on another stream")?;
    net.module().weight.copy_(&full([], 5.0, ())?.pin_memory()?, true)?;
    check(&net, 5.0, "from the host")?;
    net.module_mut().weight.set(full([], 6.0, 0)?);
    check(&net, 6.0, "replaced")?;
    net.module_mut().weight.set(full([1], 7.0, 0)?);
    check(&net, 7.0, "replaced by a tensor of a different shape")?;
    let wide = full([2, 3], 8.0, 0)?;
    net.module_mut().weight.set(wide.select(1, 1)?.narrow(0, 1, 1)?);
    check(&net, 8.0, "replaced by a view")?;
    wide.fill_(9.0)?;
    check(&net, 9.0, "written through its base")?;
    wide.select(1, 2)?.fill_(4.0)?;
    check(&net, 9.0, "base written outside of the view")?;
    net.module_mut().weight.set(wide.select(1, 2)?.narrow(0, 1, 1)?);
    check(&net, 4.0, "replaced by another view of the same memory")?;
    let weight = net.module().weight.clone();
    weight.fill_(1.0)?;
    cuda::synchronize(0)?;
    let (graph, ()) = cuda::graph(|| weight.add_(10.0).map(drop))?;
    check(&net, 1.0, "captured, and not run")?;
    graph.replay()?;
    check(&net, 11.0, "by a graph")?;
    graph.replay()?;
    check(&net, 21.0, "by a graph again")
}

fn tied(devices: usize) -> TestResult {
    let net = DataParallel::new(Tied::new()?, ())?;
    let x = ones([devices, 4], 0)?;
    for _ in 0..3 {
        let out = net.forward(x.clone())?;
        let mut expected = vec![2.0; 4 * devices];
        // The replica on the first device does not add to its weight.
        expected[..4].fill(1.0);
        assert_eq!(values(&out)?, expected);
        for [a, b, c] in std::mem::take(&mut *net.module().left.lock().unwrap()) {
            assert!(a.storage().same_as(b.storage()) && !a.storage().same_as(c.storage()));
            let first = a.device() == Device::cuda(0);
            assert_eq!(a.storage().same_as(net.module().weights[0].storage()), first);
        }
    }
    Ok(())
}

fn left(_: usize) -> TestResult {
    let net = DataParallel::new(Tied::new()?, ())?;
    let x = ones([2, 4], 0)?;
    net.forward(x.clone())?;
    let find = |left: &[[Tensor; 3]]| {
        left.iter().find(|[a, ..]| a.device() == Device::cuda(1)).cloned().expect("replica 1's")
    };
    let kept = find(&net.module().left.lock().unwrap().split_off(0));
    net.module().weights[0].fill_(40.0)?;
    net.module().weights[2].fill_(50.0)?;
    net.forward(x)?;
    let new = find(&net.module().left.lock().unwrap());
    assert_eq!((values(&kept[0])?, values(&kept[2])?), (vec![2.0; 4], vec![3.0; 4]));
    assert_eq!((values(&new[0])?, values(&new[2])?), (vec![41.0; 4], vec![50.0; 4]));
    Ok(())
}

#[test]
fn only_changed_tensors_are_copied() {
    let world = SimBox::lazy(3);
    world.enter(|| {
        let net = DataParallel::new(Counts::new(0)?, ())?;
        let x = ones([3], 0)?;
        let copies = |f: &dyn Fn() -> TestResult| -> anyhow::Result<u64> {
            let before = world.copies();
            f()?;
            Ok(world.copies() - before)
        };
        let forward = || -> TestResult {
            drop(net.forward(x.clone())?);
            Ok(())
        };
        // The copies are the output of the first device and, for each of the two other devices, the input, the output
        // and the stale tensors. `count` is always stale, because every forward pass changes it.
        assert_eq!(copies(&forward)?, 1 + 2 * (2 + 2));
        assert_eq!(copies(&forward)?, 1 + 2 * (2 + 1));
        assert_eq!(copies(&forward)?, 1 + 2 * (2 + 1));
        no_grad(|| net.module().weight.add_(1.0).map(drop))?;
        assert_eq!(copies(&forward)?, 1 + 2 * (2 + 2));
        assert_eq!(copies(&forward)?, 1 + 2 * (2 + 1));
        // A forward pass of this module changes no tensor.
        let net = DataParallel::new(Linear::new(1, 1, "cuda:0")?, ())?;
        let x = ones([3, 1], 0)?;
        let forward = || -> TestResult {
            drop(net.forward(x.clone())?);
            Ok(())
        };
        assert_eq!(copies(&forward)?, 1 + 2 * (2 + 2));
        let allocated = [1, 2].map(|d| cuda::memory_allocated(d).unwrap());
        for _ in 0..3 {
            assert_eq!(copies(&forward)?, 1 + 2 * 2);
        }
        assert_eq!([1, 2].map(|d| cuda::memory_allocated(d).unwrap()), allocated);
        // The copies of a device without a chunk are not renewed.
        no_grad(|| net.module().weight.add_(1.0).map(drop))?;
        let few = x.narrow(0, 0, 2)?;
        let with_few = || -> TestResult {
            drop(net.forward(few.clone())?);
            Ok(())
        };
        assert_eq!(copies(&with_few)?, 1 + 2 + 1);
        assert_eq!(copies(&forward)?, 1 + 2 * 2 + 1);
        Ok(())
    });
}

/// A view with the same memory and sizes but other strides is a different tensor.
#[test]
fn a_transposed_parameter_is_copied_anew() {
    SimBox::lazy(2).enter(|| {
        let mut net = DataParallel::new(Linear::new(2, 2, "cuda:0")?, ())?;
        let visit = |net: &mut DataParallel<Linear>,
                     f: &dyn Fn(&Tensor) -> warpline::Result<Tensor>| {
            let new = f(&net.module().weight)?;
            net.module_mut().weight.set_data(new)
        };
        if let Some(bias) = &net.module().bias {
            no_grad(|| bias.zero_().map(drop))?;
        }
        visit(&mut net, &|_| tensor([1f32, 2.0, 3.0, 4.0], 0)?.view([2, 2]))?;
        let x = tensor([1f32, 0.0, 1.0, 0.0], 0)?.view([2, 2])?;
        assert_eq!(values(&net.forward(x.clone())?)?, [1.0, 3.0, 1.0, 3.0]);
        visit(&mut net, &|weight| weight.transpose(0, 1))?;
        assert_eq!(values(&net.forward(x)?)?, [1.0, 2.0, 1.0, 2.0]);
        Ok(())
    });
}

/// Tensors that share memory are different members, with gradients of their own.
#[test]
fn parameters_and_buffers_over_one_memory_stay_apart() {
    #[derive(Clone, Module)]
    struct Shares {
        before: Buffer,
        first: Parameter,
        second: Parameter,
    }

    impl Forward<Tensor> for Shares {
        type Output = Tensor;

        fn forward(&self, x: Tensor) -> warpline::Result<Tensor> {
            x.mul(&self.first)?.add(&x.mul(&self.second)?)?.add(&self.before)
        }
    }

    SimBox::lazy(2).enter(|| {
        let memory = ones([], 0)?;
        let net = Shares {
            before: Buffer::new(memory.clone()),
            first: Parameter::new(memory.clone())?,
            second: Parameter::new(memory)?,
        };
        let net = DataParallel::new(net, ())?;
        net.forward(ones([4], 0)?)?.sum(())?.backward()?;
        let grads = [&net.module().first, &net.module().second].map(|p| p.grad());
        for grad in grads {
            assert_eq!(values(&grad.expect("a gradient"))?, [4.0]);
        }
        Ok(())
    });
}
