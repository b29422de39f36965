//! S38: captured ops are ordered with the former use of their memory, and change the versions of what they write.

use warpline::cuda::{self, Stream, graph_if};
use warpline::{DType, ErrorKind, Result, empty, full, ones, zeros};

use crate::common::World;
use crate::s41_bodies::LARGE;
use crate::s41_control_flow::{captured, values};

crate::rows! {
    schedules64(1) s38_new_memory_in_a_capture_is_ordered_with_its_former_use
        gpu_s38_new_memory_in_a_capture_is_ordered_with_its_former_use => new_memory;
    schedules64(1) s38_a_captured_write_invalidates_saved_tensors
        gpu_s38_a_captured_write_invalidates_saved_tensors => saved;
}

/// A stream that first uses new memory comes after the former use on the memory's stream.
fn new_memory(_: &World) -> Result<()> {
    let joined = Stream::new(())?;
    let [sum, a] = [zeros([LARGE], 0)?, full([LARGE], 2.0, 0)?];
    let (graph, kept) = captured(|| {
        joined.wait_stream(&cuda::current_stream(())?)?;
        let mut kept = Vec::new();
        for _ in 0..3 {
            sum.add_(&a.mul(1.0)?)?;
            let new = empty([LARGE], 0)?;
            cuda::with_stream(&joined, || new.fill_(300.0).map(drop))?;
            kept.push(new);
        }
        Ok(kept)
    })?;
    for replays in 1..4 {
        graph.replay()?;
        assert_eq!(values(&sum)?, [6.0 * replays as f32; LARGE]);
        for new in &kept {
            assert_eq!(values(new)?, [300.0; LARGE]);
        }
    }
    Ok(())
}

/// A captured backward pass whose saved tensors were changed in the capture fails, as it does eagerly.
fn saved(_: &World) -> Result<()> {
    let (w, x) = (ones([3], 0)?.requires_grad_(true)?, full([3], 2.0, 0)?);
    let condition = ones([1], (DType::Bool, 0))?;
    let changed = || {
        let y = w.mul(&x)?;
        x.add_(1.0)?;
        y.sum(())?.backward()
    };
    for answer in [
        changed(),
        captured(changed).map(drop),
        captured(|| graph_if(&condition, changed)).map(drop),
    ] {
        let error = answer.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Gradient { .. }), "{error}");
        assert!(error.to_string().contains("in-place"), "{error}");
    }
    assert!(w.grad().is_none());
    Ok(())
}
