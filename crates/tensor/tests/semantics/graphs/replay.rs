//! Tests of the results of replays, and of the state after them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use warpline::cuda::{self, CudaGraph};
use warpline::{DType, ErrorKind, Result, Tensor, arange, empty, full, ones, rand, zeros};

use super::{captured, values};
use crate::common::World;

rows! {
    schedules(1) graphs_replay_equals_eager gpu_graphs_replay_equals_eager => equals_eager;
    schedules(1) graphs_inputs_are_updated_in_place gpu_graphs_inputs_are_updated_in_place => inputs;
    schedules(1) graphs_keep_the_memory_that_they_use gpu_graphs_keep_the_memory_that_they_use => keeps;
    schedules(1) graphs_hold_nothing_before_the_first_replay
        gpu_graphs_hold_nothing_before_the_first_replay => unreplayed;
    schedules(1) graphs_a_failing_closure_ends_the_capture
        gpu_graphs_a_failing_closure_ends_the_capture => failing;
    schedules(1) graphs_a_panic_ends_the_capture gpu_graphs_a_panic_ends_the_capture => panics;
    schedules(1) graphs_may_be_dropped_while_they_run gpu_graphs_may_be_dropped_while_they_run => dropped;
    schedules(1) graphs_fork_and_join gpu_graphs_fork_and_join => forks;
    schedules(1) graphs_are_captured_again_and_reset gpu_graphs_are_captured_again_and_reset => again;
    schedules(2) graphs_are_of_one_device gpu2_graphs_are_of_one_device => one_device;
}

/// Runs ops of several kinds: views, reductions, products, conversions, in-place ops.
fn program(x: &Tensor, w: &Tensor) -> Result<Vec<Tensor>> {
    let y = ((x * 2.0)? + 1.0)?.matmul(&w.t()?)?;
    y.relu()?;
    let z = (&y - &y.mean_keepdim(1)?)?.softmax(1)?;
    let kept = zeros([4, 8], x.device())?;
    kept.copy_(&z, ())?;
    kept.narrow(0, 1, 2)?.fill_(0.25)?;
    let sum = (&kept + x)?.sum(())?;
    Ok(vec![y, z, kept, sum, x.to(DType::I64)?.to(DType::F32)?])
}

fn input(device: usize) -> Result<Tensor> {
    arange(32.0f32, device)?.view([4, 8])
}

fn equals_eager(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let _on = cuda::device(device)?;
        let (x, w) = (input(device)?, rand([8, 8], device)?);
        let eager: Vec<_> = program(&x, &w)?.iter().map(values).collect::<Result<_>>()?;
        let (graph, outputs) = cuda::graph(|| program(&x, &w))?;
        for _ in 0..3 {
            graph.replay()?;
            for (output, expected) in outputs.iter().zip(&eager) {
                assert_eq!(&values(output)?, expected);
            }
            outputs[0].fill_(-1.0)?;
        }
    }
    Ok(())
}

fn inputs(_: &World) -> Result<()> {
    let x = zeros([1000], 0)?;
    let (graph, y) = cuda::graph(|| (&x + 1.0)? * 3.0)?;
    let side = cuda::Stream::new(())?;
    for round in 0..4 {
        let new = full([1000], round as f32, 0)?;
        // Write on one stream, replay on another, read on the first.
        x.copy_(&new, ())?;
        cuda::with_stream(&side, || graph.replay())?;
        assert_eq!(values(&y)?, vec![3.0 * (round as f32 + 1.0); 1000]);
    }
    // Copies from and to page-locked memory are part of the graph.
    let from = ones([64], ())?.pin_memory()?;
    let to = zeros([64], ())?.pin_memory()?;
    let device = zeros([64], 0)?;
    let (graph, ()) = cuda::graph(|| {
        device.copy_(&from, true)?;
        to.copy_(&(&device * 2.0)?, true)?;
        Ok(())
    })?;
    for round in 0..4 {
        // The write on the host waits for the replay that reads `from`, and the read on the host
        // for the replay that writes `to`.
        from.fill_(round)?;
        graph.replay()?;
        assert_eq!(values(&to)?, vec![2.0 * round as f32; 64]);
    }
    Ok(())
}

fn keeps(_: &World) -> Result<()> {
    let (x, pinned) = (full([1000], 5.0, 0)?, full([1000], 2.0, ())?.pin_memory()?);
    let addresses = [x.data_ptr(), pinned.data_ptr()];
    let (graph, y) = cuda::graph(|| {
        let other = empty([1000], 0)?;
        other.copy_(&pinned, true)?;
        &x + &other
    })?;
    drop((x, pinned));
    // No other tensor receives the graph's memory, on the device or on the host.
    let others = [full([1000], 9.0, 0)?, full([1000], 9.0, ())?.pin_memory()?];
    for (other, address) in others.iter().zip(addresses) {
        assert_ne!(other.data_ptr(), address);
    }
    graph.replay()?;
    assert_eq!(values(&y)?, vec![7.0; 1000]);
    drop(graph);
    let freed = full([1000], 9.0, 0)?;
    assert_eq!(freed.data_ptr(), addresses[0], "now they are free");
    Ok(())
}

fn unreplayed(_: &World) -> Result<()> {
    let x = ones([10], 0)?;
    let (graph, y) = cuda::graph(|| &x + 1.0)?;
    for error in [(&y + 1.0).unwrap_err(), y.fill_(0.0).unwrap_err(), values(&y).unwrap_err()] {
        assert!(matches!(error.kind(), ErrorKind::NotReplayed), "{error}");
    }
    // Tensors from before the capture keep their values.
    assert_eq!(values(&x)?, [1.0; 10]);
    // Another capture may read the result before the first replay.
    let (second, z) = cuda::graph(|| &y * 10.0)?;
    graph.replay()?;
    second.replay()?;
    assert_eq!((values(&y)?, values(&z)?), (vec![2.0; 10], vec![20.0; 10]));
    Ok(())
}

fn failing(_: &World) -> Result<()> {
    let x = ones([10], 0)?;
    let stream = cuda::Stream::new(())?;
    let mut graph = CudaGraph::new();
    let mut made = None;
    let error = captured(&mut graph, &stream, || {
        made = Some((&x + 1.0)?);
        assert!(cuda::is_current_stream_capturing()?);
        x.matmul(&ones([3, 3], 0)?)
    });
    let error = error.expect_err("shapes differ");
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
    assert!(!stream.is_capturing());
    let error = graph.replay().expect_err("nothing was captured");
    assert!(error.to_string().contains("capture work first"), "{error}");
    let lost = (&made.expect("it was made") + 1.0).expect_err("never to be replayed");
    assert!(matches!(lost.kind(), ErrorKind::NotReplayed), "{lost}");
    // The stream runs eagerly again, and can be captured.
    let y = cuda::with_stream(&stream, || &x * 4.0)?;
    assert_eq!(values(&y)?, [4.0; 10]);
    let z = captured(&mut graph, &stream, || &y + 1.0)?;
    graph.replay()?;
    assert_eq!(values(&z)?, [5.0; 10]);
    cuda::synchronize(())
}

fn panics(_: &World) -> Result<()> {
    let x = ones([10], 0)?;
    let stream = cuda::Stream::new(())?;
    let mut graph = CudaGraph::new();
    let result = catch_unwind(AssertUnwindSafe(|| {
        captured(&mut graph, &stream, || -> Result<()> {
            let _lost = (&x + 1.0)?;
            panic!("as a program may")
        })
    }));
    assert!(result.is_err());
    assert!(!stream.is_capturing());
    let y = captured(&mut graph, &stream, || &x + 1.0)?;
    graph.replay()?;
    assert_eq!(values(&y)?, [2.0; 10]);
    cuda::empty_cache();
    cuda::synchronize(())
}

fn dropped(_: &World) -> Result<()> {
    let x = ones([1 << 16], 0)?;
    let streams = [cuda::Stream::new(())?, cuda::Stream::new(())?];
    for (round, stream) in streams.iter().cycle().take(6).enumerate() {
        let (graph, y) = cuda::graph(|| {
            let mut y = x.copy()?;
            for _ in 0..10 {
                y = (&y + &x)?;
            }
            Ok(y)
        })?;
        cuda::with_stream(stream, || graph.replay())?;
        drop(graph);
        if round % 2 == 0 {
            cuda::empty_cache();
        }
        let other = full([1 << 16], 100.0, 0)?;
        assert_eq!(values(&y)?, vec![11.0; 1 << 16]);
        assert_eq!(values(&other)?, vec![100.0; 1 << 16]);
    }
    Ok(())
}

fn forks(_: &World) -> Result<()> {
    let x = ones([1000], 0)?;
    let (main, side) = (cuda::Stream::new(())?, cuda::Stream::new(())?);
    for join in [true, false] {
        let mut graph = CudaGraph::new();
        let (y, z) = captured(&mut graph, &main, || {
            let y = (&x + 1.0)?;
            // The side stream joins through an event, as in PyTorch.
            let forked = main.record_event(None)?;
            side.wait_event(&forked)?;
            assert!(side.is_capturing());
            let z = cuda::with_stream(&side, || {
                // Allocate and free memory on the side stream.
                let t = (&y * 10.0)?;
                let u = (&t + 1.0)?;
                drop(t);
                &u + 1.0
            })?;
            if join {
                main.wait_stream(&side)?;
            }
            Ok((y, z))
        })?;
        assert!(!side.is_capturing());
        for round in 1..4 {
            x.fill_(round)?;
            graph.replay()?;
            assert_eq!(values(&y)?, vec![round as f32 + 1.0; 1000]);
            assert_eq!(values(&z)?, vec![10.0 * (round as f32 + 1.0) + 2.0; 1000]);
        }
        x.fill_(1.0)?;
    }
    Ok(())
}

fn again(_: &World) -> Result<()> {
    let x = ones([10], 0)?;
    let mut graph = CudaGraph::new();
    let first = graph.capture(|| &x + 1.0)?;
    graph.replay()?;
    let second = graph.capture(|| &x + 2.0)?;
    graph.replay()?;
    assert_eq!((values(&first)?, values(&second)?), (vec![2.0; 10], vec![3.0; 10]));
    graph.reset();
    assert!(graph.replay().is_err() && graph.pool().is_err());
    assert_eq!(values(&second)?, [3.0; 10]);
    Ok(())
}

fn one_device(_: &World) -> Result<()> {
    let x = ones([10], 0)?;
    let (graph, y) = cuda::graph(|| &x + 1.0)?;
    // A replay uses the current stream of the graph's device, even if another device is current.
    cuda::with_device(1, || graph.replay())?;
    assert_eq!(values(&y)?, [2.0; 10]);
    let pool = graph.pool()?;
    let error = cuda::with_device(1, || CudaGraph::new().capture_with(&pool, || Ok(())));
    let error = error.expect_err("a pool of another device");
    assert!(error.to_string().contains("cuda:0"), "{error}");
    Ok(())
}
