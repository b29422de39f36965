//! S38: `make_graphed_callables` captures parts of a training step, which then equals an eager step bit for bit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline::amp::autocast;
use warpline::autograd::{BackwardOptions, checkpoint, no_grad};
use warpline::cuda::{self, Callable, GraphedCallable, GraphedOptions, graph_pool_handle};
use warpline::functional::{dropout, mse_loss};
use warpline::{
    DType, Device, Error, ErrorKind, Result, Tensor, arange, full, manual_seed, ones, zeros,
};

use crate::common::World;

crate::rows! {
    worlds(1) s38_graphed_steps_equal_eager_steps gpu_s38_graphed_steps_equal_eager_steps => hundred_steps;
    schedules64(1) s38_graphed_callables_are_ordered_with_other_work
        gpu_s38_graphed_callables_are_ordered_with_other_work => in_order;
    worlds(1) s38_several_callables_share_a_pool gpu_s38_several_callables_share_a_pool => several;
    worlds(1) s38_callables_captured_apart_may_share_a_pool
        gpu_s38_callables_captured_apart_may_share_a_pool => apart;
    worlds(1) s38_inputs_may_be_unused gpu_s38_inputs_may_be_unused => unused;
    worlds(1) s38_a_second_backward_pass_is_an_error gpu_s38_a_second_backward_pass_is_an_error => twice;
    worlds(1) s38_changes_of_tensors_that_a_graphed_pass_reads_are_errors
        gpu_s38_changes_of_tensors_that_a_graphed_pass_reads_are_errors => changed;
    worlds(1) s38_a_graphed_pass_calls_the_hooks_of_leaves_once
        gpu_s38_a_graphed_pass_calls_the_hooks_of_leaves_once => leaf_hooks;
    worlds(1) s38_a_region_may_surround_make_graphed_callables
        gpu_s38_a_region_may_surround_make_graphed_callables => in_a_region;
    worlds(1) s38_calls_that_do_not_fit_are_errors gpu_s38_calls_that_do_not_fit_are_errors => bad_calls;
    worlds(1) s38_functions_that_cannot_be_graphed_are_errors
        gpu_s38_functions_that_cannot_be_graphed_are_errors => bad_functions;
}

fn invalid(error: &Error, text: &str) {
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

fn gradient(error: &Error, text: &str) {
    assert!(matches!(error.kind(), ErrorKind::Gradient { .. }), "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

/// Values between -0.5 and 0.5.
fn values(sizes: [usize; 2], seed: usize, device: usize) -> Result<Tensor> {
    let x = arange((sizes[0] * sizes[1]) as i64, (DType::F32, device))?.mul(0.618_034)?;
    let x = x.add(0.377 * seed as f64)?;
    x.sub(&x.floor()?)?.sub(0.5)?.reshape(sizes)
}

fn parameters(device: usize) -> Result<[Tensor; 3]> {
    Ok([
        values([8, 32], 1, device)?.requires_grad_(true)?,
        values([1, 32], 2, device)?.requires_grad_(true)?,
        values([32, 4], 3, device)?.requires_grad_(true)?,
    ])
}

/// Two layers with dropout.
fn layers([w1, b1, w2]: &[Tensor; 3], x: &Tensor) -> Result<Tensor> {
    dropout(&x.matmul(w1)?.add(b1)?.relu()?, 0.25)?.matmul(w2)
}

fn bits(tensors: &[Tensor]) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for tensor in tensors {
        all.extend(tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits));
    }
    Ok(all)
}

/// Makes steps with a model, two backward passes each, and returns the parameters' bits after each step. The input of
/// the model also requires a gradient.
fn train(
    device: usize,
    steps: usize,
    parameters: &[Tensor; 3],
    model: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Vec<u32>>> {
    manual_seed(7);
    let scale = full([1, 8], 1.5, device)?.requires_grad_(true)?;
    let all: Vec<Tensor> = parameters.iter().chain([&scale]).cloned().collect();
    let mut after = Vec::new();
    for step in 0..steps {
        for part in 0..2 {
            let x = values([16, 8], 2 * step + part, device)?.mul(&scale)?;
            let target = values([16, 4], step + 5, device)?;
            mse_loss(&model(&x)?, &target, ())?.backward()?;
        }
        for parameter in &all {
            let grad = parameter.grad().expect("a gradient");
            no_grad(|| parameter.add_scaled_(&grad, -0.05).map(drop))?;
            parameter.set_grad(None)?;
        }
        after.push(bits(&all)?);
    }
    Ok(after)
}

/// Graphs a model of one input and one result.
fn graphed<M: Fn(&Tensor) -> Result<Tensor>>(
    model: M,
    sample: &Tensor,
) -> Result<impl Fn(&Tensor) -> Result<Tensor> + use<M>> {
    let callable = Callable::new(|x| Ok(vec![model(&x[0])?]), &[sample]);
    let [graphed] = cuda::make_graphed_callables([callable], ())?;
    Ok(move |x: &Tensor| Ok(graphed.call(&[x])?.remove(0)))
}

fn hundred_steps(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let sample = zeros([16, 8], device)?.requires_grad_(true)?;
        let (one, two) = (parameters(device)?, parameters(device)?);
        let eager = train(device, 100, &one, |x| layers(&one, x))?;
        let replayed = train(device, 100, &two, graphed(|x| layers(&two, x), &sample)?)?;
        assert!(eager == replayed);
        assert!(eager[0] != eager[99]);
        assert_eq!(sample.to_vec::<f32>()?, [0.0; 128], "the sample is not overwritten");

        let (one, two) = (parameters(device)?, parameters(device)?);
        let mixed = |p: &[Tensor; 3], x: &Tensor| {
            autocast("cuda", DType::BF16, || layers(p, x))?.to(DType::F32)
        };
        let eager = train(device, 100, &one, |x| mixed(&one, x))?;
        let replayed = train(device, 100, &two, graphed(|x| mixed(&two, x), &sample)?)?;
        assert!(eager == replayed, "with autocast");
    }
    Ok(())
}

/// Inputs come from, and results go to, other streams.
fn in_order(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let weight = full([4, 4], 2.0, device)?.requires_grad_(true)?;
        let sample = ones([2, 4], device)?.requires_grad_(true)?;
        let model = graphed(|x| x.mul(2.0)?.matmul(&weight), &sample)?;
        let streams =
            [cuda::Stream::new(device)?, cuda::Stream::new(device)?, cuda::Stream::new(device)?];
        for round in 1..4 {
            let [s, t, u] = &streams;
            let value = round as f32;
            let x = cuda::with_stream(s, || full([2, 4], value, device)?.requires_grad_(true))?;
            let y = cuda::with_stream(t, || model(&x))?;
            let loss = cuda::with_stream(u, || y.square()?.sum(()))?;
            loss.backward()?;
            let y = 16.0 * value;
            assert_eq!(loss.item::<f32>()?, 8.0 * y * y);
            assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [32.0 * y; 8]);
            assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [8.0 * value * y; 16]);
            weight.set_grad(None)?;
        }
        // Without gradients, a call only replays the forward pass.
        let y = no_grad(|| model(&full([2, 4], 0.5, device)?))?;
        assert!(!y.requires_grad());
        assert_eq!(y.to_vec::<f32>()?, [8.0; 8]);
    }
    Ok(())
}

/// The note's example: parts of a network that are graphed together, with eager code between them.
fn several(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let weights = || {
            (0..3)
                .map(|i| values([8, 8], i, device)?.requires_grad_(true))
                .collect::<Result<Vec<_>>>()
        };
        let (one, two) = (weights()?, weights()?);
        let part = |weight: &Tensor, x: &Tensor| x.matmul(weight)?.tanh();
        let sample = zeros([4, 8], device)?.requires_grad_(true)?;
        let pool = graph_pool_handle(device)?;
        let callables = [0, 1, 2].map(|i| {
            let weight = &two[i];
            Callable::new(move |x| Ok(vec![part(weight, &x[0])?]), &[&sample])
        });
        let [first, second, third] =
            cuda::make_graphed_callables(callables, GraphedOptions::new().pool(&pool))?;
        for step in 0..10 {
            let x = values([4, 8], step, device)?;
            // Data decides which part comes second.
            let odd = step % 2;
            let eager = part(&one[1 + odd], &part(&one[0], &x)?.mul(1.25)?)?.square()?.sum(())?;
            let y = first.call(&[&x])?.remove(0).mul(1.25)?;
            let y = [&second, &third][odd].call(&[&y])?.remove(0).square()?.sum(())?;
            for (loss, weights) in [(eager, &one), (y, &two)] {
                loss.backward()?;
                for weight in weights.iter().filter(|weight| weight.grad().is_some()) {
                    let grad = weight.grad().expect("a gradient");
                    no_grad(|| weight.add_scaled_(&grad, -0.1).map(drop))?;
                    weight.set_grad(None)?;
                }
            }
            assert!(bits(&one)? == bits(&two)?, "step {step}");
        }
        // The backward pass of the first part reuses memory of the second part's intermediate results.
        let x = values([4, 8], 1, device)?;
        let y = first.call(&[&x])?.remove(0);
        let z = second.call(&[&x])?.remove(0);
        y.sum(())?.backward()?;
        gradient(&z.sum(())?.backward().unwrap_err(), "in the reverse order of their calls");
        let y = first.call(&[&x])?.remove(0);
        let z = second.call(&[&x])?.remove(0);
        z.sum(())?.backward()?;
        y.sum(())?.backward()?;
        // The replay of the second part does not hide a change of the first part's result.
        let y = first.call(&[&x])?.remove(0);
        y.mul_(2.0)?;
        let z = second.call(&[&x])?.remove(0);
        z.sum(())?.backward()?;
        let text = "modified by an in-place operation";
        gradient(&y.sum(())?.backward().unwrap_err(), text);
        let y = first.call(&[&x])?.remove(0);
        let z = second.call(&[&x])?.remove(0);
        z.mul_(2.0)?;
        gradient(&z.sum(())?.backward().unwrap_err(), text);
        y.sum(())?.backward()?;
    }
    Ok(())
}

/// Two calls of `make_graphed_callables` with one pool. The second capture reuses the memory of the first.
fn apart(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let pool = graph_pool_handle(device)?;
        let weight = full([8, 8], 0.125, device)?.requires_grad_(true)?;
        let make = || -> Result<GraphedCallable> {
            let layer = |x: &[Tensor]| Ok(vec![x[0].matmul(&weight)?.exp()?.square()?.mul(0.5)?]);
            let callable = Callable::new(layer, &[&zeros([4, 8], device)?]);
            let [one] =
                cuda::make_graphed_callables([callable], GraphedOptions::new().pool(&pool))?;
            Ok(one)
        };
        let (first, second) = (make()?, make()?);
        let call = |callable: &GraphedCallable, x: f64| {
            callable.call(&[&full([4, 8], x, device)?])?.remove(0).sum(())
        };
        for [one, two] in [[&first, &second], [&second, &first]] {
            for x in [0.0, 0.5] {
                call(one, x)?.backward()?;
                let grad = bits(&[weight.grad().expect("a gradient")])?;
                weight.set_grad(None)?;
                call(two, x)?.backward()?;
                assert!(grad == bits(&[weight.grad().expect("a gradient")])?);
                weight.set_grad(None)?;
            }
            // Any pass of the other set may overwrite intermediate results.
            let y = call(one, 0.0)?;
            let z = call(two, 0.5)?;
            gradient(&y.backward().unwrap_err(), "overwritten by another pass");
            z.backward()?;
            weight.set_grad(None)?;
        }
    }
    Ok(())
}

fn unused(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let make = |options: GraphedOptions| -> Result<GraphedCallable> {
            let plain = ones([3], device)?;
            let (used, unused) =
                (plain.detach().requires_grad_(true)?, plain.detach().requires_grad_(true)?);
            let callable = Callable::new(
                |x| Ok(vec![x[0].mul(&x[1])?, x[1].add(1)?, x[1].gt(0)?]),
                &[&used, &plain, &unused],
            );
            Ok(cuda::make_graphed_callables([callable], options)?.into_iter().next().expect("one"))
        };
        invalid(&make(GraphedOptions::new()).unwrap_err(), "sample input 2 requires a gradient");
        let graphed = make(GraphedOptions::new().allow_unused_input(true).num_warmup_iters(0))?;
        let leaf = |value: f64| full([3], value, device)?.requires_grad_(true);
        let (x, unused) = (leaf(3.0)?, leaf(4.0)?);
        let factor = full([3], 5.0, device)?;
        let results = graphed.call(&[&x, &factor, &unused])?;
        assert_eq!(results[0].to_vec::<f32>()?, [15.0; 3]);
        assert_eq!(results[1].to_vec::<f32>()?, [6.0; 3]);
        assert_eq!(results[2].to_vec::<bool>()?, [true; 3]);
        results[0].sum(())?.backward()?;
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [5.0; 3]);
        assert!(unused.grad().is_none());
        // An input whose sample requires a gradient need not require one.
        let results = graphed.call(&[&x.detach(), &factor, &factor])?;
        assert!(!results[0].requires_grad());
        invalid(&graphed.call(&[&x, &x, &x]).unwrap_err(), "input 1 requires a gradient");
    }
    Ok(())
}

fn twice(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let weight = full([2, 2], 3.0, device)?.requires_grad_(true)?;
        let model = graphed(|x| x.matmul(&weight)?.exp(), &ones([2, 2], device)?)?;
        let x = zeros([2, 2], device)?;
        let retain = BackwardOptions::new().retain_graph(true);

        let loss = model(&x)?.sum(())?;
        loss.backward_with(retain)?;
        gradient(&loss.backward_with(retain).unwrap_err(), "once for each call");

        let former = model(&x)?.sum(())?;
        model(&x)?.sum(())?.backward()?;
        let error = former.backward().unwrap_err();
        gradient(&error, "overwritten by another pass");
        assert!(error.location().is_some_and(|at| at.file() == file!()), "{error}");

        let create = BackwardOptions::new().create_graph(true);
        let loss = model(&x)?.sum(())?;
        gradient(&loss.backward_with(create).unwrap_err(), "no gradients of gradients");

        // A result that a gradient needs was overwritten by the next call.
        let former = model(&x)?.square()?.sum(())?;
        model(&x)?;
        gradient(&former.backward().unwrap_err(), "modified by an in-place operation");
    }
    Ok(())
}

/// A graphed callable reports the changes that eager code reports, and no others.
fn changed(world: &World) -> Result<()> {
    type Model<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
    let text = "modified by an in-place operation";
    for device in 0..world.devices {
        let weight = full([2, 2], 0.5, device)?.requires_grad_(true)?;
        let bias = full([2], 0.25, device)?.requires_grad_(true)?;
        let mask = full([2], 2.0, device)?;
        let sample = zeros([2, 2], device)?.requires_grad_(true)?;
        let exp = |x: &Tensor| x.matmul(&weight)?.exp();
        let linear = |x: &Tensor| x.matmul(&weight)?.add(&bias);
        let masked = |x: &Tensor| x.mul(&mask)?.add(&bias);
        let (graphed_exp, graphed_linear) = (graphed(exp, &sample)?, graphed(linear, &sample)?);
        let graphed_masked = graphed(masked, &sample)?;
        let x = || ones([2, 2], device)?.requires_grad_(true);

        for exp in [&exp as Model<'_>, &graphed_exp] {
            let y = exp(&x()?)?;
            y.mul_(2.0)?;
            gradient(&y.sum(())?.backward().unwrap_err(), text);
            let y = exp(&x()?)?;
            no_grad(|| y.detach().select(0, 1)?.zero_().map(drop))?;
            gradient(&y.sum(())?.backward().unwrap_err(), text);
            let y = exp(&x()?)?;
            no_grad(|| weight.add_(1.0).map(drop))?;
            gradient(&y.sum(())?.backward().unwrap_err(), text);
            no_grad(|| weight.add_(-1.0).map(drop))?;
        }
        for masked in [&masked as Model<'_>, &graphed_masked] {
            let y = masked(&x()?)?;
            mask.add_(1.0)?;
            gradient(&y.sum(())?.backward().unwrap_err(), text);
        }
        // The backward pass reads neither the result nor the bias.
        for linear in [&linear as Model<'_>, &graphed_linear] {
            let x = x()?;
            let y = linear(&x)?;
            y.mul_(2.0)?;
            no_grad(|| bias.add_(1.0).map(drop))?;
            y.sum(())?.backward()?;
            assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [2.0; 4]);
        }
        // A call copies its input, so the program may change the input.
        weight.set_grad(None)?;
        let input = full([2, 2], 3.0, device)?;
        let y = graphed_linear(&input)?;
        input.zero_()?;
        y.sum(())?.backward()?;
        assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [6.0; 4]);
    }
    Ok(())
}

/// Hooks of leaves change gradients once, whenever they were registered.
fn leaf_hooks(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let leaf = |value: f64| full([2], value, device)?.requires_grad_(true);
        let (weight, x) = (leaf(3.0)?, leaf(5.0)?);
        let calls = Arc::new(AtomicUsize::new(0));
        let tenfold = |leaf: &Tensor| {
            let calls = Arc::clone(&calls);
            leaf.register_hook(move |grad| {
                calls.fetch_add(1, Ordering::Relaxed);
                grad.mul(10).map(Some)
            })
        };
        tenfold(&weight)?;
        tenfold(&x)?;
        let product = |x: &Tensor| x.mul(&weight)?.add(&x.mul(&weight)?);
        let graphed = graphed(product, &x)?;
        assert_eq!(calls.load(Ordering::Relaxed), 0, "no hook is captured");
        for product in [&product as &dyn Fn(&Tensor) -> Result<Tensor>, &graphed] {
            product(&x)?.sum(())?.backward()?;
            assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [100.0; 2]);
            assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [60.0; 2]);
            assert_eq!(calls.swap(0, Ordering::Relaxed), 2);
            weight.set_grad(None)?;
            x.set_grad(None)?;
        }
        tenfold(&weight)?;
        graphed(&x)?.sum(())?.backward()?;
        assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [1000.0; 2]);
    }
    Ok(())
}

/// The captures use no conversion that the region has made before.
fn in_a_region(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let weight = full([2, 2], 2.0, device)?.requires_grad_(true)?;
        let x = ones([1, 2], device)?;
        let (eager, graphed) = autocast("cuda", DType::F16, || {
            let eager = x.matmul(&weight)?;
            Ok((eager, graphed(|x| x.matmul(&weight)?.to(DType::F32), &x)?))
        })?;
        eager.to(DType::F32)?.sum(())?.backward()?;
        no_grad(|| weight.fill_(3.0).map(drop))?;
        let y = graphed(&x)?;
        assert_eq!(y.to_vec::<f32>()?, [6.0; 2]);
        y.sum(())?.backward()?;
        assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [2.0; 4]);
    }
    Ok(())
}

fn bad_calls(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let model = {
            let sample = ones([2, 3], device)?;
            let callable = Callable::new(|x| Ok(vec![x[0].add(&x[1])?]), &[&sample, &sample]);
            let [model] = cuda::make_graphed_callables([callable], ())?;
            model
        };
        let x = ones([2, 3], device)?;
        invalid(&model.call(&[&x]).unwrap_err(), "there are 1 inputs, but the sample has 2");
        let refused = |other: Tensor| model.call(&[&x, &other]).unwrap_err();
        invalid(&refused(ones([3], device)?), "input 1 is of shape [3], torch.float32");
        invalid(&refused(ones([2, 3], (DType::F64, device))?), "float64");
        invalid(&refused(ones([2, 3], Device::Cpu)?), "on cpu");
        let _on = cuda::device(device)?;
        let error = cuda::graph(|| model.call(&[&x, &x])).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Capture { .. }), "{error}");
        assert_eq!(model.call(&[&x, &x])?[0].to_vec::<f32>()?, [2.0; 6], "still usable");
    }
    Ok(())
}

fn bad_functions(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let make = |f: &dyn Fn(&Tensor) -> Result<Tensor>, sample: &Tensor| {
            graphed(f, sample).map(drop).unwrap_err()
        };
        let sample = ones([2], device)?.requires_grad_(true)?;
        invalid(&make(&|x| x.add(1), &ones([2], Device::Cpu)?), "on the CPU");
        let host = ones([2], Device::Cpu)?;
        invalid(&make(&|_| Ok(host.clone()), &sample), "result 0 is on cpu");
        let error = make(&|x| x.mul(x.sum(())?.item::<f64>()?), &sample);
        assert!(
            matches!(error.kind(), ErrorKind::Capture { .. } | ErrorKind::Capturing),
            "{error}"
        );
        let recomputed = |x: &Tensor| Ok(checkpoint(|x| Ok(vec![x[0].exp()?]), &[x])?.remove(0));
        invalid(&make(&recomputed, &sample), "uses a checkpoint");
        let leaf = ones([2, 1], device)?.requires_grad_(true)?;
        for outside in [leaf.squeeze(1)?, leaf.exp()?] {
            let (error, line) = (make(&|x| x.mul(&outside), &sample), line!() - 1);
            invalid(&error, &format!("at {}:{line}", file!()));
        }
        // An error of the function names its own call.
        let error = make(&|x| x.reshape([3]), &sample);
        assert_eq!(error.op(), "reshape", "{error}");
        assert!(error.location().is_some_and(|at| at.file() == file!()), "{error}");
    }
    Ok(())
}
