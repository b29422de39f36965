//! Graphs: a run of ops that is captured once and replayed at the cost of one launch.

use warpline_cuda_sys_safe::GraphExecHandle;
use warpline_runtime::graph::{Capturing, Graph};

use super::{CudaDeviceArg, Stream};
use crate::called::Called as _;
use crate::{Error, Result, runtime};

pub use warpline_runtime::graph::GraphPool;

/// Captured work (`torch.cuda.CUDAGraph`).
///
/// A replay runs the captured ops on the memory that they were captured with: write new values
/// into the inputs first ([`copy_`](crate::Tensor::copy_)), and find the results where the capture
/// left them. Inputs are kept for as long as the graph, whoever else drops them. What is made in
/// the capture lies in the graph's [pool](CudaGraph::pool) and holds nothing before the first
/// replay: using it before is [`ErrorKind::NotReplayed`].
///
/// A capture holds whatever is enqueued on its stream, and on streams that are made to wait for it;
/// all these are of one device. Work of the host is done at once and is no part of it. What cannot be captured is
/// [`ErrorKind::Capture`] or [`Error::Stream`] and names the op: whatever makes the host wait
/// (`item`, `to_vec`, `synchronize`, copies from and to memory that is not pinned), queries of
/// events and streams, and waits for work from before the capture, which replays see to themselves.
///
/// ```
/// use warpline::{cuda, full, ones, simulated, with_runtime};
///
/// with_runtime(&simulated(1)?, || {
///     let x = ones([4], "cuda")?;
///     let (graph, y) = cuda::graph(|| (&x * 2.0)? + 1.0)?;
///     graph.replay()?;
///     assert_eq!(y.to_vec::<f32>()?, [3.0; 4]);
///     x.copy_(&full([4], 10.0, "cuda")?, false)?;
///     graph.replay()?;
///     assert_eq!(y.to_vec::<f32>()?, [21.0; 4]);
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct CudaGraph {
    graph: Option<Graph>,
}

/// Captures what `f` enqueues, as [`CudaGraph::capture`], and returns the graph with `f`'s result
/// (`torch.cuda.graph`).
///
/// # Errors
/// As [`CudaGraph::capture`].
#[track_caller]
pub fn graph<R>(f: impl FnOnce() -> Result<R>) -> Result<(CudaGraph, R)> {
    let mut graph = CudaGraph::new();
    let result = graph.capture(f)?;
    Ok((graph, result))
}

/// An empty pool that graphs of the device can share (`torch.cuda.graph_pool_handle`).
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn graph_pool_handle(device: impl CudaDeviceArg) -> Result<GraphPool> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("graph_pool_handle")?;
    Ok(GraphPool::new(runtime.device(index)?))
}

/// Whether this thread's current stream is being captured.
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`].
#[track_caller]
pub fn is_current_stream_capturing() -> Result<bool> {
    Ok(super::current_stream(())?.is_capturing())
}

impl CudaGraph {
    /// A graph that holds nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Captures what `f` enqueues on the current device, in a pool of its own. It is captured on
    /// the current stream, or where that is the default one, which cannot be captured, on another
    /// that is current while `f` runs. What the graph held before is gone.
    ///
    /// # Errors
    /// What `f` fails with: the capture is then over, and the graph empty. After a panic of `f` too.
    #[track_caller]
    pub fn capture<R>(&mut self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.capture_with(&graph_pool_handle(())?, f)
    }

    /// [`CudaGraph::capture`] in a pool that other graphs use too. Such graphs are to be replayed
    /// in the order in which they were captured; results that are dropped give their memory to
    /// later captures.
    ///
    /// # Errors
    /// As [`CudaGraph::capture`]; [`ErrorKind::DeviceMismatch`] for a pool of another device.
    #[track_caller]
    pub fn capture_with<R>(
        &mut self,
        pool: &GraphPool,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.reset();
        let runtime = runtime();
        let mut stream = super::current_stream(())?;
        if stream.is_default() && pool.device() == stream.device_index() {
            stream = pool.stream(runtime.device(pool.device())?)?.clone();
        }
        let capturing = Capturing::begin(&runtime, &stream, pool)?;
        let result = super::with_stream(&stream, f)?;
        self.graph = Some(capturing.end()?);
        Ok(result)
    }

    #[track_caller]
    fn captured(&self, op: &'static str) -> Result<&Graph> {
        match &self.graph {
            Some(graph) => Ok(graph),
            None => Err(Error::invalid(op, "the graph holds nothing; capture something first")),
        }
    }

    /// Runs what was captured on the current stream of its device, in order with all other uses of
    /// its inputs, its results and its pool. Random ops go on in the device's sequence, as they
    /// would have without a graph.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an empty graph; [`ErrorKind::Capture`] while the current stream
    /// is captured; [`ErrorKind::Collective`] once a process group has failed whose calls it holds; otherwise
    /// what launching fails with.
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        let graph = self.captured("replay")?;
        graph.replay(&self.current_stream(graph)?)
    }

    /// The driver's handle of the executable graph (`CUDAGraph.raw_cuda_graph_exec`), for calls of the driver that Warpline
    /// does not make. It is valid until the graph is captured anew, reset or dropped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an empty graph.
    #[track_caller]
    pub fn raw_cuda_graph_exec(&self) -> Result<GraphExecHandle> {
        Ok(self.captured("raw_cuda_graph_exec")?.exec_handle())
    }

    #[track_caller]
    fn current_stream(&self, graph: &Graph) -> Result<Stream> {
        let devices = graph.runtime().devices()?;
        devices.current_stream(graph.pool().device())
    }

    /// Where it was captured, for other graphs to share.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an empty graph.
    #[track_caller]
    pub fn pool(&self) -> Result<GraphPool> {
        Ok(self.captured("pool")?.pool().clone())
    }

    /// Lets go of what was captured (`CUDAGraph.reset`). Results stay as they are.
    pub fn reset(&mut self) {
        self.graph = None;
    }
}
