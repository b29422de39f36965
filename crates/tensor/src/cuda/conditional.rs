//! Control flow that depends on a value on the device: `graph_if` and `graph_while`.
//!
//! In a capture, both functions capture the body once, into a conditional node
//! (`warpline_runtime`'s `graph/conditional.rs`). Elsewhere they read the value on the host and call
//! the body. Only the current stream of the current device decides which: this is the stream that
//! [`CudaGraph::capture`](super::CudaGraph::capture) captures.

use warpline_runtime::graph::{CapturingBody, check_condition};
use warpline_stream::driver::ConditionalKind;

#[cfg(doc)]
use super::CudaGraph;
use super::Stream;
use crate::called::Called as _;
use crate::{CallScope, Result, Tensor, runtime};
#[cfg(doc)]
use crate::{Error, ErrorKind};

/// Runs `body` if `condition` is true.
///
/// In a [capture](CudaGraph::capture), `body` is called once, and its work is captured whether or not the condition is
/// true. Each replay tests the condition on the GPU when it comes to this point, and runs the captured body or skips it.
/// The host takes no part in the decision. Outside captures the host waits for the condition and calls `body` if it is
/// true, as PyTorch's `torch.cond` does.
///
/// `condition` is one bool or integer. An integer is true unless it is 0. For the opposite case, pass
/// `condition.logical_not()`.
///
/// # Bodies in captures
///
/// - Results are passed on by ops in place, such as [`copy_`](Tensor::copy_), on tensors from outside the body. A tensor
///   that is made in the body can only be used there, because a replay may skip the body.
/// - Only the captured work runs again or is skipped. What `body` does on the host, such as counting, ops on CPU tensors
///   or [`set_grad`](Tensor::set_grad), happens once.
/// - A body may contain kernels, copies, and further calls of [`graph_if`] and [`graph_while`] up to 32 deep; a driver
///   may refuse fewer. It cannot contain calls of process groups.
/// - The body is captured on a stream of its own, which is the current stream while `body` runs. Streams of the
///   enclosing capture cannot be used in the body.
/// - Gradients: an op of a body is differentiated in the same body, because a replay may skip it. A leaf without a
///   gradient gets one that is made in the body, anew in each run. For gradients that add up or are used outside, create
///   them before, for example with `set_grad(Some(&zeros))`.
/// - Random ops of a body advance the generators in each replay, also if the body is skipped or runs several times.
/// - The driver must support CUDA 12.3 (version 545 or newer).
///
/// ```
/// use warpline::{cuda, ones, simulated, tensor, with_runtime};
///
/// with_runtime(&simulated(1)?, || {
///     let (x, positive) = (ones([2], "cuda")?, tensor(true, "cuda")?);
///     let (graph, ()) = cuda::graph(|| {
///         positive.copy_(&x.sum(())?.gt(0.0)?, ())?;
///         cuda::graph_if(&positive, || x.mul_(-3.0).map(drop))
///     })?;
///     graph.replay()?;
///     graph.replay()?; // the sum is negative now
///     assert_eq!(x.to_vec::<f32>()?, [-3.0; 2]);
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// Errors of `body`. In a capture, the capture then also fails at its end, even if the program ignores the error.
/// [`ErrorKind::UnsupportedDType`] if the condition is a float. [`ErrorKind::InvalidArgument`] if the condition does not
/// have one element. [`ErrorKind::DeviceMismatch`] in a capture if the condition is on another device.
/// [`ErrorKind::Capture`] if bodies are nested too deep, or if another body of the same capture is being captured.
/// [`ErrorKind::Driver`] if the driver refuses the node; the message names CUDA 12.3 if the driver is older. Under
/// [`SyncPolicy::Manual`](crate::SyncPolicy::Manual) also if the body's stream does not wait for a stream that joined it.
/// Errors of [every op](Tensor#errors-of-every-op). Ops in the body fail with [`ErrorKind::Capture`] on a stream of the
/// enclosing capture, and with [`ErrorKind::OutsideCapture`] if they need work of such a stream that the body does not
/// come after.
#[track_caller]
pub fn graph_if(condition: &Tensor, body: impl FnOnce() -> Result<()>) -> Result<()> {
    const OP: &str = "graph_if";
    match captured_body(condition, ConditionalKind::If, OP)? {
        Some((capturing, stream)) => {
            super::with_stream(&stream, body)?;
            capturing.end()
        }
        None if holds(condition, OP)? => body(),
        None => Ok(()),
    }
}

/// Runs `body` again and again while `condition` is true. The condition is tested before each run, so `body` must change
/// it in place, for example by [`copy_`](Tensor::copy_).
///
/// In a [capture](CudaGraph::capture), `body` is called once, and its work is captured. Each replay runs the captured
/// body until the condition is false, without the host. Outside captures the host reads the condition before each call
/// of `body`.
///
/// The condition is of the same kind as that of [`graph_if`], and bodies in captures obey the same rules. In addition,
/// the body of a loop cannot draw random numbers, because each run of it would draw the same numbers.
///
/// ```
/// use warpline::{cuda, ones, simulated, tensor, with_runtime};
///
/// with_runtime(&simulated(1)?, || {
///     let (x, more) = (ones([1], "cuda")?, tensor([true], "cuda")?);
///     let (graph, ()) = cuda::graph(|| {
///         more.copy_(&x.lt(100.0)?, ())?;
///         cuda::graph_while(&more, || {
///             x.mul_(2.0)?;
///             more.copy_(&x.lt(100.0)?, ()).map(drop)
///         })
///     })?;
///     graph.replay()?; // doubles `x` seven times
///     assert_eq!(x.to_vec::<f32>()?, [128.0]);
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// A loop that never ends blocks the GPU. A simulated GPU fails after 100,000 runs of the body.
///
/// # Errors
/// The same as [`graph_if`]. [`ErrorKind::Capture`] in a capture if the body draws random numbers.
#[track_caller]
pub fn graph_while(condition: &Tensor, mut body: impl FnMut() -> Result<()>) -> Result<()> {
    const OP: &str = "graph_while";
    if let Some((capturing, stream)) = captured_body(condition, ConditionalKind::While, OP)? {
        super::with_stream(&stream, body)?;
        return capturing.end();
    }
    while holds(condition, OP)? {
        body()?;
    }
    Ok(())
}

/// Begins a body if this thread's current stream is captured, and returns the body with its stream.
#[track_caller]
fn captured_body(
    condition: &Tensor,
    kind: ConditionalKind,
    op: &'static str,
) -> Result<Option<(CapturingBody, Stream)>> {
    check_condition(condition.dtype(), condition.numel(), op)?;
    let runtime = runtime();
    // Without a device, no stream is captured.
    let Ok(devices) = runtime.devices() else { return Ok(None) };
    let stream = devices.current_stream(devices.current_device()).of(op)?;
    if !stream.is_capturing() {
        return Ok(None);
    }
    let _call = CallScope::enter(op);
    let body = CapturingBody::begin(&runtime, &stream, condition.as_view(), kind, op).of(op)?;
    let stream = body.stream()?.clone();
    Ok(Some((body, stream)))
}

/// Reads a condition on the host.
#[track_caller]
fn holds(condition: &Tensor, op: &'static str) -> Result<bool> {
    let _call = CallScope::enter(op);
    condition.ne(0)?.item::<bool>()
}
