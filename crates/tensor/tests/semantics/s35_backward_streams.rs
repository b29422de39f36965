//! Tests of row S35: a backward op runs on the stream of its forward op, and `backward()` is
//! ordered like any other op.

use warpline::cuda::{self, Callable, Stream};
use warpline::{DType, Result, RuntimeConfig, Tensor, full, ones, tensor, with_runtime, zeros};

use crate::common::World;

crate::rows! {
    schedules(1) s35_backward_ops_run_on_their_streams gpu_s35_backward_ops_run_on_their_streams => streams;
    manual(1) s35_the_notes_examples_race_only_where_it_says_unsafe gpu_s35_the_notes_examples_race_only_where_it_says_unsafe => examples;
    manual(1) s35_gradients_from_several_streams_are_summed_in_order gpu_s35_gradients_from_several_streams_are_summed_in_order => meet;
    manual(1) s35_a_loss_on_the_cpu_orders_the_streams_of_its_leaves gpu_s35_a_loss_on_the_cpu_orders_the_streams_of_its_leaves => loss_on_the_cpu;
    manual(2) s35_devices_without_a_root_are_ordered_too gpu2_s35_devices_without_a_root_are_ordered_too => leaf_on_another_device;
    worlds(1) s35_a_pass_captured_alone_is_replayed gpu_s35_a_pass_captured_alone_is_replayed => captured_alone;
    worlds(1) s35_graphed_callables_may_use_several_streams gpu_s35_graphed_callables_may_use_several_streams => graphed;
    schedules(2) s35_gradients_cross_devices gpu2_s35_gradients_cross_devices => devices;
}

/// A pass that is captured without the forward pass computes its gradients anew in each replay.
fn captured_alone(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let _on = cuda::device(device)?;
        for stream in [cuda::current_stream(())?, Stream::new(())?] {
            let (w, x) = (full([2], 2.0, device)?.requires_grad_(true)?, ones([2], device)?);
            let start = ones([2], device)?;
            let y = cuda::with_stream(&stream, || w.mul(&x))?;
            cuda::synchronize(())?;
            let (graph, ()) = cuda::graph(|| y.backward_with(&start))?;
            for (factor, by) in [(5.0, 2.0), (7.0, 3.0)] {
                x.fill_(factor)?;
                start.fill_(by)?;
                graph.replay()?;
                assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [(factor * by) as f32; 2]);
            }
        }
    }
    Ok(())
}

/// A graphed callable whose forward pass uses a stream of its own has the gradients of eager calls.
fn graphed(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let _on = cuda::device(device)?;
        let side = Stream::new(())?;
        let (w, x) = (full([2], 0.5, device)?.requires_grad_(true)?, full([2], 3.0, device)?);
        let on_side = |f: &dyn Fn() -> Result<Tensor>| -> Result<Tensor> {
            let main = cuda::current_stream(())?;
            side.wait_stream(&main)?;
            let y = cuda::with_stream(&side, f)?;
            main.wait_stream(&side)?;
            y.record_stream(&main)?;
            Ok(y)
        };
        type Layer<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
        let layers: [Layer<'_>; 3] = [
            &|x| on_side(&|| x.mul(&w)?.exp()),
            &|x| {
                let y = x.mul(&w)?;
                on_side(&|| y.mul(2.0))
            },
            &|x| on_side(&|| x.mul(&w))?.exp()?.add(&w),
        ];
        for layer in layers {
            let mut grads = Vec::new();
            let callable = Callable::new(|x| Ok(vec![layer(&x[0])?]), &[&x]);
            let [graphed] = cuda::make_graphed_callables([callable], ())?;
            for by in [1.0, 3.0] {
                let eager: &dyn Fn() -> Result<Tensor> = &|| layer(&x);
                for call in [eager, &|| Ok(graphed.call(&[&x])?.remove(0))] {
                    w.set_grad(None)?;
                    call()?.mul(by)?.sum(())?.backward()?;
                    cuda::synchronize(())?;
                    grads.push(w.grad().unwrap().to_vec::<f32>()?);
                }
            }
            assert_eq!([&grads[0], &grads[2]], [&grads[1], &grads[3]]);
        }
    }
    Ok(())
}

/// Tests that a hook of a gradient runs on the stream of the forward op.
fn streams(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let (s, t) = (Stream::new(device)?, Stream::new(device)?);
        let x = ones([4], device)?.requires_grad_(true)?;
        let y = cuda::with_stream(&s, || x.mul(2.0))?;
        let z = cuda::with_stream(&t, || y.mul(3.0))?;
        for (tensor, stream) in [(&y, &s), (&z, &t)] {
            let stream = stream.clone();
            tensor.register_hook(move |_| {
                assert_eq!(cuda::current_stream(device)?, stream);
                Ok(None)
            })?;
        }
        let before = cuda::current_stream(device)?;
        z.sum(())?.backward()?;
        assert_eq!(cuda::current_stream(device)?, before);
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [6.0; 4]);
    }
    Ok(())
}

/// Tests the examples of PyTorch's note on streams of backward passes.
fn examples(world: &World) -> Result<()> {
    for device in 0..world.devices {
        // The forward pass runs on `s`, so the gradient is computed on `s`.
        let s = Stream::new(device)?;
        let forward = || {
            cuda::with_stream(&s, || {
                let x = ones([64], device)?.requires_grad_(true)?;
                let loss = x.square()?.sum(())?;
                Ok((x, loss))
            })
        };
        let settle = || {
            cuda::synchronize(device)?;
            Ok::<_, warpline::Error>(cuda::take_races())
        };

        // Safe: the gradient is used on the stream on which `backward` was called.
        let (x, loss) = forward()?;
        cuda::with_stream(&s, || {
            loss.backward()?;
            x.grad().unwrap().mul(2.0).map(drop)
        })?;
        assert!(settle()?.is_empty());

        // Unsafe: the gradient is used on another stream.
        let (x, loss) = forward()?;
        cuda::with_stream(&s, || loss.backward())?;
        let grad = x.grad().unwrap();
        let used = grad.mul(2.0)?;
        let races = settle()?;
        assert!(!races.is_empty(), "the gradient was not waited for");
        drop((used, grad));

        // Safe: the other stream waits first.
        let (x, loss) = forward()?;
        cuda::with_stream(&s, || loss.backward())?;
        cuda::current_stream(device)?.wait_stream(&s)?;
        let grad = x.grad().unwrap();
        grad.record_stream(&cuda::current_stream(device)?)?;
        drop(grad.mul(2.0)?);
        assert!(settle()?.is_empty());

        // Safe: `backward` is called on the stream that uses the gradient, and orders that stream
        // after the pass.
        let (x, loss) = forward()?;
        loss.backward()?;
        let grad = x.grad().unwrap();
        grad.record_stream(&cuda::current_stream(device)?)?;
        drop(grad.mul(2.0)?);
        assert!(settle()?.is_empty(), "{:?}", settle()?);

        // Unsafe: the initial gradient is made on another stream.
        let (_x, loss) = forward()?;
        let initial = zeros((), device)?.add(1.0)?;
        cuda::with_stream(&s, || loss.backward_with(&initial))?;
        assert!(!settle()?.is_empty(), "the first gradient was not waited for");

        // Safe: `s` waits for the initial gradient.
        let (_x, loss) = forward()?;
        let initial = zeros((), device)?.add(1.0)?;
        s.wait_stream(&cuda::current_stream(device)?)?;
        initial.record_stream(&s)?;
        cuda::with_stream(&s, || loss.backward_with(&initial))?;
        assert!(settle()?.is_empty());
    }
    Ok(())
}

/// Tests that, under `SyncPolicy::Manual`, a backward pass orders its own work on several streams.
fn meet(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let own = cuda::current_stream(device)?;
        let x = ones([256], device)?.requires_grad_(true)?;
        let mut parts = Vec::new();
        for i in 0..4 {
            let s = Stream::new(device)?;
            s.wait_stream(&own)?;
            x.record_stream(&s)?;
            parts.push(cuda::with_stream(&s, || x.mul(f64::from(i))?.exp())?);
            own.wait_stream(&s)?;
            parts[i as usize].record_stream(&own)?;
        }
        let mut sum = parts[0].clone();
        for part in &parts[1..] {
            sum = sum.add(part)?;
        }
        sum.sum(())?.backward()?;
        let expected: f64 = (0..4).map(|i| f64::from(i) * f64::from(i).exp()).sum();
        let grad = x.grad().unwrap().to_vec::<f32>()?;
        assert!(grad.iter().all(|g| (f64::from(*g) - expected).abs() < 1e-3), "{:?}", &grad[..4]);
        cuda::synchronize(device)?;
        let races = cuda::take_races();
        assert!(races.is_empty(), "{races:#?}");
    }
    Ok(())
}

/// Uses a gradient on the current stream, after a pass whose leaf is on another stream of device
/// `leaf` and whose loss is on the device `loss`.
fn use_after_pass(leaf: usize, loss: &str) -> Result<()> {
    let s = Stream::new(leaf)?;
    let (x, loss) = cuda::with_stream(&s, || {
        let x = ones([64], leaf)?.requires_grad_(true)?;
        let loss = x.square()?.to(loss)?.sum(())?;
        Ok::<_, warpline::Error>((x, loss))
    })?;
    loss.backward()?;
    let grad = x.grad().unwrap();
    let own = cuda::current_stream(leaf)?;
    assert_ne!(own, s);
    grad.record_stream(&own)?;
    assert_eq!(grad.mul(2.0)?.to_vec::<f32>()?, [4.0; 64]);
    cuda::synchronize(leaf)?;
    let races = cuda::take_races();
    assert!(races.is_empty(), "{races:#?}");
    Ok(())
}

fn loss_on_the_cpu(_: &World) -> Result<()> {
    use_after_pass(0, "cpu")
}

fn leaf_on_another_device(_: &World) -> Result<()> {
    use_after_pass(1, "cuda:0")
}

fn devices(world: &World) -> Result<()> {
    let x = tensor([1f64, 2.0], 0)?.requires_grad_(true)?;
    let mut y = x.mul(3.0)?;
    for device in 1..world.devices {
        y = y.to(device)?.mul(2.0)?;
    }
    let z = y.to("cpu")?.square()?.sum(())?;
    z.backward()?;
    let times = 3.0 * 2f64.powi(world.devices as i32 - 1);
    let grad = x.grad().unwrap();
    assert_eq!(grad.device(), x.device());
    assert_eq!(grad.to_vec::<f64>()?, [2.0 * times * times, 4.0 * times * times]);
    Ok(())
}

/// Runs random ops on several streams and devices. The seed determines the program.
fn program(seed: u64, streams: &[Stream], places: &[usize]) -> Result<Vec<Vec<f64>>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let leaf = |i: usize| {
        let values = [0.5 + 0.25 * i as f64, -0.75, 0.125];
        let device = places.first().map_or("cpu".to_string(), |i| format!("cuda:{i}"));
        tensor(values, device)?.requires_grad_(true)
    };
    let leaves = (0..3).map(leaf).collect::<Result<Vec<Tensor>>>()?;
    let mut all = leaves.clone();
    for _ in 0..12 {
        let (a, b) = (all[draw(all.len())].clone(), all[draw(all.len())].clone());
        let (what, place, stream) = (draw(6), draw(2), draw(4));
        let op = || {
            let a = match places.get(place) {
                Some(&device) => a.to(device)?,
                None => a.clone(),
            };
            let b = b.to(a.device())?;
            match what {
                0 => a.mul(&b),
                1 => a.add(&b)?.tanh(),
                2 => a.sub(&b)?.sigmoid(),
                3 => warpline::cat(&[&a, &b], 0)?.narrow(0, 2, 3)?.sin(),
                4 => {
                    let c = a.mul(0.5)?;
                    c.narrow(0, 1, 2)?.mul_(&b.narrow(0, 0, 2)?)?;
                    Ok(c)
                }
                _ => a.unsqueeze(1)?.mul(&b)?.mean(1),
            }
        };
        all.push(match streams.get(stream) {
            Some(stream) => cuda::with_stream(stream, op)?,
            None => op()?,
        });
    }
    let mut total = all[3].sum(())?;
    for tensor in &all[4..] {
        total = total.add(&tensor.to(total.device())?.sum(())?)?;
    }
    total.backward()?;
    let grad = |leaf: &Tensor| match leaf.grad() {
        Some(grad) => grad.to_vec::<f64>(),
        None => Ok(vec![0.0; 3]),
    };
    leaves.iter().map(grad).collect()
}

/// Gradients do not depend on the order in which a device runs its streams.
#[test]
fn s35_random_programs_have_one_streams_gradients() {
    let config = RuntimeConfig::default();
    for seed in 0..64 {
        let expected = program(seed, &[], &[]).expect("on the host");
        let spec = if seed == 0 { "sim:2,lazy".to_string() } else { format!("sim:2,seed={seed}") };
        let runtime = warpline::open(&spec, &config).expect("a box");
        let found = with_runtime(&runtime, || {
            let streams = (0..4).map(|i| Stream::new(i % 2)).collect::<Result<Vec<_>>>()?;
            program(seed, &streams, &[0, 1])
        });
        let found = found.unwrap_or_else(|e| panic!("{spec}: {e}"));
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{spec}");
        }
        let plain = with_runtime(&runtime, || zeros([1], (DType::F32, 0))).expect("still usable");
        drop(plain);
    }
}
