//! Graphs: ops that are captured once and replayed at the cost of one launch.

use std::ffi::CString;
use std::path::Path;

use warpline_cuda_sys_safe::{GraphExecHandle, GraphHandle};
use warpline_runtime::graph::{Capturing, Graph};

use super::{CudaDeviceArg, Stream};
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::CaptureCasts;
use crate::called::Called as _;
use crate::{Error, IntoOptions, Result, runtime};

pub use warpline_runtime::graph::GraphPool;

/// Captured work (`torch.cuda.CUDAGraph`).
///
/// A replay runs the captured ops on the memory with which they were captured. Write new values to the inputs before
/// the replay ([`copy_`](crate::Tensor::copy_)), and read the results from the tensors of the capture. The graph keeps
/// its inputs alive. Tensors made in the capture lie in the graph's [pool](CudaGraph::pool), or in the
/// [`MemPool`](super::MemPool) that is in use. These tensors have no values before the first replay; until then, their
/// use fails with [`ErrorKind::NotReplayed`].
///
/// A capture records all work that is enqueued on its stream, and on streams of the same device that wait for its
/// stream. Work of the host runs at once and is not recorded.
///
/// Some calls cannot be captured. They fail with [`ErrorKind::Capture`], [`ErrorKind::Capturing`] or
/// [`ErrorKind::OutsideCapture`], and the error names the op:
///
/// - calls for which the host waits: `item`, `to_vec`, `synchronize`, and copies from and to memory that is not
///   pinned;
/// - queries of events and streams;
/// - waits for work from before the capture. A replay waits for such work by itself.
///
/// ```
/// use warpline::{cuda, full, ones, simulated, with_runtime};
///
/// with_runtime(&simulated(1)?, || {
///     let x = ones([4], "cuda")?;
///     let (graph, y) = cuda::graph(|| (&x * 2.0)? + 1.0)?;
///     graph.replay()?;
///     assert_eq!(y.to_vec::<f32>()?, [3.0; 4]);
///     x.copy_(&full([4], 10.0, "cuda")?, ())?;
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

crate::__options! {
    /// Options of [`CudaGraph::capture_with`]. A reference to a [`GraphPool`] converts into options with that `pool`.
    #[derive(Clone, Debug)]
    CaptureOptions [] [] {
        /// Sets a pool that other graphs also use. Graphs that share a pool must be replayed in the order in which they
        /// were captured, because later captures reuse the memory of dropped results. Default: a new pool.
        pool: Option<GraphPool> = None, &GraphPool => |pool: &GraphPool| Some(pool.clone());
        /// Sets whether to keep the driver's graph for [`CudaGraph::instantiate`], [`CudaGraph::raw_cuda_graph`] and
        /// [`CudaGraph::debug_dump`] (`keep_graph` and `enable_debug_mode` of `torch.cuda.CUDAGraph`). The executable
        /// graph is then made by `instantiate` or by the first replay, not by the capture. Default: `false`.
        keep_graph: bool = false, bool;
    }
}

impl From<&GraphPool> for CaptureOptions {
    fn from(pool: &GraphPool) -> Self {
        Self::new().pool(pool)
    }
}

/// Captures the work that `f` enqueues, like [`CudaGraph::capture`], and returns the graph with the result of
/// `f` (`torch.cuda.graph`).
///
/// # Errors
/// The same as [`CudaGraph::capture`].
#[track_caller]
pub fn graph<R>(f: impl FnOnce() -> Result<R>) -> Result<(CudaGraph, R)> {
    let mut graph = CudaGraph::new();
    let result = graph.capture(f)?;
    Ok((graph, result))
}

/// Makes an empty pool that graphs of the device can share (`torch.cuda.graph_pool_handle`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn graph_pool_handle(device: impl CudaDeviceArg) -> Result<GraphPool> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("graph_pool_handle")?;
    Ok(GraphPool::new(runtime.device(index)?))
}

/// Returns whether this thread's current stream is being captured (`torch.cuda.is_current_stream_capturing`).
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn is_current_stream_capturing() -> Result<bool> {
    Ok(super::current_stream(())?.is_capturing())
}

#[track_caller]
fn empty(op: &'static str) -> Error {
    Error::invalid(op, "the graph is empty; capture work first")
}

impl CudaGraph {
    /// Creates an empty graph.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Captures the work that `f` enqueues on the current device, in a new pool. The current stream is
    /// captured. If it is the default stream, which cannot be captured, another stream is captured, and is
    /// current while `f` runs. The former contents of the graph are dropped.
    ///
    /// # Errors
    /// Errors of `f`. [`ErrorKind::Capture`] if the current stream is captured already.
    /// [`ErrorKind::Driver`] if the driver invalidates the capture, or if under
    /// [`SyncPolicy::Manual`](crate::SyncPolicy::Manual) a stream joined the capture and the captured stream
    /// did not wait for it at the end. [`ErrorKind::Alloc`] if there is no memory for the pool's state.
    /// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be used.
    /// After an error of `f` or of the driver, and after a panic of `f`, the capture is over and the graph is empty.
    #[track_caller]
    pub fn capture<R>(&mut self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.capture_with((), f)
    }

    /// Captures as [`CudaGraph::capture`] does. `options` is a pool that other graphs also use, or [`CaptureOptions`].
    ///
    /// # Errors
    /// The same as [`CudaGraph::capture`]. [`ErrorKind::DeviceMismatch`] if the pool belongs to another device,
    /// and [`ErrorKind::RuntimeMismatch`] if it belongs to another runtime.
    #[track_caller]
    pub fn capture_with<R>(
        &mut self,
        options: impl IntoOptions<CaptureOptions>,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let CaptureOptions { pool, keep_graph } = options.into_options();
        self.reset();
        let pool = &match pool {
            Some(pool) => pool,
            None => graph_pool_handle(())?,
        };
        let runtime = runtime();
        let mut stream = super::current_stream(())?;
        if stream.is_default() && pool.device() == stream.device_index() {
            stream = pool.stream(runtime.device(pool.device())?)?.clone();
        }
        // Dropped after `capturing`, which ends the capture.
        let _casts = CaptureCasts;
        let mut capturing = Capturing::begin(&runtime, &stream, pool)?;
        capturing.keep_graph(keep_graph);
        let result = super::with_stream(&stream, f)?;
        self.graph = Some(capturing.end()?);
        Ok(result)
    }

    #[track_caller]
    fn captured(&self, op: &'static str) -> Result<&Graph> {
        match &self.graph {
            Some(graph) => Ok(graph),
            None => Err(empty(op)),
        }
    }

    /// Runs the captured work on the current stream of the graph's device (`CUDAGraph.replay`), in order with
    /// all other uses of its inputs, its results and its pool. Random ops continue the device's sequence, as
    /// they would without a graph.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the graph is empty. [`ErrorKind::Capture`] if the current stream is
    /// captured. [`ErrorKind::NotReplayed`] if the graph uses results of another graph that was not replayed.
    /// [`ErrorKind::Collective`] if the graph contains calls of a process group that has failed. Errors of
    /// [every op](crate::Tensor#errors-of-every-op).
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        let graph = self.captured("replay")?;
        graph.replay(&self.current_stream(graph)?)
    }

    /// Makes the executable graph from the kept graph, for example after changes through
    /// [`raw_cuda_graph`](CudaGraph::raw_cuda_graph) (`CUDAGraph.instantiate`). Replaces an earlier executable graph. The
    /// first replay calls `instantiate` if the program has not.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the graph is empty, or was captured without
    /// [`keep_graph`](CaptureOptions::keep_graph). [`ErrorKind::Driver`] if the driver refuses the graph.
    #[track_caller]
    pub fn instantiate(&mut self) -> Result<()> {
        match &mut self.graph {
            Some(graph) => graph.instantiate(),
            None => Err(empty("instantiate")),
        }
    }

    /// Returns the driver's handle of the kept graph (`CUDAGraph.raw_cuda_graph`), for driver calls that Warpline does
    /// not make. The handle is valid until the graph is captured again, reset or dropped. Nodes that the program adds are
    /// not ordered with other uses of their memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the graph is empty, or was captured without
    /// [`keep_graph`](CaptureOptions::keep_graph).
    #[track_caller]
    pub fn raw_cuda_graph(&self) -> Result<GraphHandle> {
        const OP: &str = "raw_cuda_graph";
        Ok(self.captured(OP)?.template(OP)?.handle())
    }

    /// Returns the driver's handle of the executable graph (`CUDAGraph.raw_cuda_graph_exec`), for driver calls
    /// that Warpline does not make. The handle is valid until the graph is instantiated or captured again, reset or
    /// dropped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the graph is empty, or was captured with
    /// [`keep_graph`](CaptureOptions::keep_graph) and neither instantiated nor replayed.
    #[track_caller]
    pub fn raw_cuda_graph_exec(&self) -> Result<GraphExecHandle> {
        const OP: &str = "raw_cuda_graph_exec";
        let not_yet = || Error::invalid(OP, "the graph is not executable yet; call `instantiate`");
        self.captured(OP)?.exec_handle().ok_or_else(not_yet)
    }

    /// Describes the kept graph in the DOT language of Graphviz, in a file that is created or replaced
    /// (`CUDAGraph.debug_dump`). The driver chooses the details.
    ///
    /// ```
    /// use warpline::cuda::{CaptureOptions, CudaGraph};
    /// use warpline::{ones, simulated, with_runtime};
    ///
    /// let path = std::env::temp_dir().join(format!("graph-{}.dot", std::process::id()));
    /// with_runtime(&simulated(1)?, || {
    ///     let x = ones([4], "cuda")?;
    ///     let mut graph = CudaGraph::new();
    ///     graph.capture_with(CaptureOptions::new().keep_graph(true), || x.add_(1.0).map(drop))?;
    ///     graph.debug_dump(&path)
    /// })?;
    /// assert!(std::fs::read_to_string(&path)?.starts_with("digraph"));
    /// std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the graph is empty, was captured without
    /// [`keep_graph`](CaptureOptions::keep_graph), or the path contains a zero byte. [`ErrorKind::Driver`] if the file
    /// cannot be written.
    #[track_caller]
    pub fn debug_dump(&self, path: impl AsRef<Path>) -> Result<()> {
        const OP: &str = "debug_dump";
        let (graph, path) = (self.captured(OP)?.template(OP)?, path.as_ref());
        let Ok(path) = CString::new(path.as_os_str().as_encoded_bytes()) else {
            return Err(Error::invalid(OP, format!("the path {path:?} contains a zero byte")));
        };
        let dumped = graph.debug_dot_print(&path);
        dumped.map_err(|error| Error::driver(OP, error)).of(OP)
    }

    #[track_caller]
    fn current_stream(&self, graph: &Graph) -> Result<Stream> {
        let devices = graph.runtime().devices()?;
        devices.current_stream(graph.pool().device())
    }

    /// Returns the pool in which the graph was captured, for other graphs to share (`CUDAGraph.pool`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the graph is empty.
    #[track_caller]
    pub fn pool(&self) -> Result<GraphPool> {
        Ok(self.captured("pool")?.pool().clone())
    }

    /// Drops the captured work (`CUDAGraph.reset`). Its results keep their values.
    pub fn reset(&mut self) {
        self.graph = None;
    }
}
