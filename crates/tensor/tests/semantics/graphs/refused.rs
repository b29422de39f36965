//! Tests that calls that cannot be captured return an error that names the op, and that the capture
//! continues.

use warpline::cuda::{self, CudaGraph, Event, Stream};
use warpline::{Error, ErrorKind, Result, full, ones, tensor, zeros};
use warpline_alloc::AllocError;
use warpline_cuda_sys_safe::owned::LaunchToken;

use super::{captured, values};
use crate::common::World;

rows! {
    schedules(1) graphs_refuse_calls_that_wait_by_name gpu_graphs_refuse_calls_that_wait_by_name => waits;
    schedules(1) graphs_do_not_depend_on_work_outside gpu_graphs_do_not_depend_on_work_outside => outside;
    schedules(1) graphs_captures_do_not_mix gpu_graphs_captures_do_not_mix => mixed;
    schedules(1) graphs_survive_want_of_memory gpu_graphs_survive_want_of_memory => memory;
}

/// Asserts that a call was refused because of a capture, and that the error names the op.
#[track_caller]
fn refused<R: std::fmt::Debug, E: Into<Error> + std::fmt::Debug>(op: &str, answer: Result<R, E>) {
    let error = answer.expect_err(op).into();
    let text = error.to_string();
    assert!(text.starts_with(op), "{text}, not {op}");
    assert!(text.contains("captur"), "{text}");
    let refusals = matches!(
        error.kind(),
        ErrorKind::Capture { .. }
            | ErrorKind::CannotCapture { .. }
            | ErrorKind::Capturing
            | ErrorKind::NotCapturing
            | ErrorKind::OutsideCapture
            | ErrorKind::CapturedEvent
    );
    assert!(refusals, "{error:?}");
}

fn waits(_: &World) -> Result<()> {
    let x = ones([100], 0)?;
    let one = ones([1], 0)?;
    let pinned = zeros([100], ())?.pin_memory()?;
    let (before, inside) = (Event::default(), Event::default());
    let stream = cuda::Stream::new(())?;
    before.record(&stream)?;
    let mut graph = CudaGraph::new();
    let y = captured(&mut graph, &stream, || {
        let y = (&x + 1.0)?;
        refused("item", one.item::<f32>());
        refused("to_vec", x.to_vec::<f32>());
        refused("cpu", x.cpu());
        refused("tensor", tensor([1f32], 0));
        refused("copy_", pinned.copy_(&x, ()));
        refused("copy_", x.copy_(&zeros([100], ())?, true));
        refused("synchronize", stream.synchronize());
        refused("synchronize", cuda::synchronize(()));
        refused("query", stream.query());
        inside.record(&stream)?;
        refused("query", inside.query());
        refused("synchronize", inside.synchronize());
        refused("capture_begin", CudaGraph::new().capture(|| Ok(())));
        // Queries of earlier events and waits for other streams are allowed.
        assert!(matches!(before.query()?, true | false));
        cuda::default_stream(())?.synchronize()?;
        &y * 2.0
    })?;
    refused("query", inside.query());
    graph.replay()?;
    assert_eq!(values(&y)?, vec![4.0; 100]);
    Ok(())
}

fn outside(_: &World) -> Result<()> {
    let (main, side) = (cuda::Stream::new(())?, cuda::Stream::new(())?);
    let x = ones([100], 0)?;
    let slow = cuda::with_stream(&side, || full([1 << 16], 3.0, 0))?;
    let event = side.record_event(None)?;
    let inside = Event::default();
    let mut graph = CudaGraph::new();
    let y = captured(&mut graph, &main, || {
        refused("wait_event", main.wait_event(&event));
        refused("wait_stream", main.wait_stream(&side));
        inside.record(&main)?;
        // Each replay waits for the other stream; the capture contains no such wait.
        (&slow.narrow(0, 0, 100)? + &x)? + 0.0
    })?;
    refused("wait_event", side.wait_event(&inside));
    graph.replay()?;
    assert_eq!(values(&y)?, vec![4.0; 100]);
    // After a new record, the event can be waited for again.
    inside.record(&main)?;
    side.wait_event(&inside)?;
    side.synchronize()?;
    assert!(inside.query()?);
    Ok(())
}

fn mixed(_: &World) -> Result<()> {
    let (one, two) = (cuda::Stream::new(())?, cuda::Stream::new(())?);
    let x = ones([100], 0)?;
    let ready = CudaGraph::new();
    assert!(ready.replay().is_err());
    let (done, d) = cuda::graph(|| &x * 5.0)?;
    let (mut outer, mut inner) = (CudaGraph::new(), CudaGraph::new());
    let (y, z) = captured(&mut outer, &one, || {
        let y = (&x + 1.0)?;
        // Another stream can be captured at the same time. The two captures stay separate.
        let z = captured(&mut inner, &two, || {
            let stays: &Stream = &one;
            refused("wait_stream", two.wait_stream(stays));
            &x + 2.0
        })?;
        refused("replay", done.replay());
        // A replay on another stream is not captured.
        cuda::with_stream(&two, || done.replay())?;
        Ok(((&y * 2.0)?, z))
    })?;
    outer.replay()?;
    inner.replay()?;
    assert_eq!((values(&y)?, values(&z)?), (vec![4.0; 100], vec![3.0; 100]));
    assert_eq!(values(&d)?, vec![5.0; 100]);
    let default = cuda::default_stream(())?;
    // SAFETY: the token is passed only to `begin_capture` on the default stream, which refuses it,
    // so no work is enqueued with it.
    let token = unsafe { LaunchToken::new() };
    let error = default.begin_capture(std::sync::Arc::new(()), token).expect_err("default");
    assert!(error.to_string().contains("default stream"), "{error}");
    Ok(())
}

fn memory(_: &World) -> Result<()> {
    let x = ones([100], 0)?;
    let stream = cuda::Stream::new(())?;
    let mut graph = CudaGraph::new();
    let y = captured(&mut graph, &stream, || {
        let y = (&x + 1.0)?;
        let error = zeros([1 << 45], 0).expect_err("no device has as much");
        assert!(error.find().is_some_and(AllocError::is_out_of_memory), "{error}");
        cuda::empty_cache();
        &y * 2.0
    })?;
    graph.replay()?;
    assert_eq!(values(&y)?, vec![4.0; 100]);
    Ok(())
}
