//! Graphs: work that is captured once and replayed as a whole (CUDA graphs).
//!
//! While a stream is captured, the launch path records each op's storages in the capture's
//! `GraphLog`. The log declares the storages of every replay. A replay is enqueued like any other
//! op: it waits for other streams' uses of these storages, and later uses wait for it. Captured
//! work never waits for work from before the capture.
//!
//! The graph keeps storages from outside its pool. If the captured work uses a storage that was made in another
//! capture, that capture's graph must have been replayed first.
//!
//! Tensors made in the capture lie in the graph's [`GraphPool`], unless the program routes their memory to a pool of
//! its own, and may be dropped during the capture. The graph's pool has one small storage with the seeds and offsets from
//! which random ops of a replay start (PyTorch's `PhiloxCudaState`). Each replay counts as a write of this storage, so
//! the replays of all graphs of the pool run one after another. When a tensor of the pool is dropped, this storage
//! takes over the uses of the tensor, so later replays wait for them.
//!
//! A captured conditional node has a body, which is a capture within the capture (`conditional.rs`). Its work is in the
//! same log (`bodies.rs`).
//!
//! `Storage` knows nothing of graphs: `memory.rs` chooses the memory during a capture, and
//! `storage/pool_membership.rs` ties a storage to its pool. Generators know nothing of launches:
//! `philox.rs` chooses where a random op starts.

mod bodies;
mod conditional;
mod log;
mod memory;
mod philox;
mod pool;

use std::panic::Location;
use std::sync::Arc;

use warpline_alloc::cuda::CudaBackend;
use warpline_alloc::{HostCapture, PoolRoute};
use warpline_cuda_sys_safe::GraphExecHandle;
use warpline_cuda_sys_safe::owned::{self, GraphExec};
use warpline_stream::{CaptureGuard, CaptureLog, CapturedChecks, Stream};
use warpline_sync::OnceLock;
use warpline_sync::atomic::{AtomicU64, Ordering};

use crate::captured_collectives;
use crate::launch::{GraphReplay, TOKEN};
use crate::storage::{Dependencies, ReplayUses, ReplayedFlag, ReplayedStorage};
use crate::{Device, Error, ErrorKind, Result, Runtime, Site, Storage, SyncPolicy, Target};
use log::{Draws, GraphStorage};

pub(crate) use conditional::CONDITION;
pub use conditional::{CapturingBody, check_condition};
pub(crate) use log::GraphLog;
pub(crate) use philox::PHILOX;
pub use philox::{PhiloxState, Position, Sequence};
pub use pool::GraphPool;

/// A capture in progress. Dropping it ends the capture and discards the captured work.
pub struct Capturing {
    runtime: Runtime,
    /// `None` after the end.
    capture: Option<CaptureGuard>,
    log: Arc<GraphLog>,
    keeps_graph: bool,
    // The next two fields are declared after `capture`, so that they are dropped after the driver's
    // capture has ended.
    /// Tells the allocator of the capture. Routes no requests, because `GraphLog::malloc` names the pool in each
    /// request.
    _memory: PoolRoute<CudaBackend>,
    _pinned: HostCapture<CudaBackend>,
}

impl Capturing {
    /// Captures the work enqueued on `stream` from now on, with memory from `pool`
    /// (`CUDAGraph.capture_begin`). Other streams of the device join when they wait for an event
    /// that was recorded in the capture.
    ///
    /// The driver's capture mode is relaxed: memory can be allocated and modules can be loaded. Operations that a
    /// capture does not allow fail with an error that names the op. They do not invalidate the capture, and neither do
    /// calls of other threads.
    ///
    /// # Errors
    /// - [`ErrorKind::Capture`] if the stream is captured already.
    /// - [`ErrorKind::CannotCapture`] if the stream is a default stream.
    /// - [`ErrorKind::DeviceMismatch`] if the pool is on another device.
    /// - [`ErrorKind::RuntimeMismatch`] if the stream or the pool belongs to another runtime.
    /// - [`ErrorKind::InvalidArgument`] if the stream is the twin of a captured stream.
    /// - [`ErrorKind::Alloc`] if memory for the pool's state cannot be allocated.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn begin(runtime: &Runtime, stream: &Stream, pool: &GraphPool) -> Result<Self> {
        runtime.check_stream(stream, "capture_begin")?;
        let device = runtime.device(stream.device_index())?;
        pool.check_runtime(device.device().devices_id(), "capture_begin")?;
        check_device("capture_begin", pool.device(), stream)?;
        if stream.is_capturing() {
            return Err(Error::capture("capture_begin", "the stream is captured already"));
        }
        let state = pool.philox_state(runtime, stream)?.clone();
        let log = Arc::new(GraphLog::new(pool.clone(), state));
        pool.add_log(&log);
        let memory = device.allocator().capture();
        let pinned = runtime.pinned_cache()?.capture();
        let capture = stream.begin_capture(Arc::clone(&log) as CaptureLog, TOKEN)?;
        Ok(Self {
            runtime: runtime.clone(),
            capture: Some(capture),
            log,
            keeps_graph: false,
            _memory: memory,
            _pinned: pinned,
        })
    }

    /// Sets whether the graph keeps the driver's graph. The executable graph is then made only when it is needed.
    /// Default: `false`.
    pub fn keep_graph(&mut self, keep: bool) {
        self.keeps_graph = keep;
    }

    /// Ends the capture and creates the graph (`CUDAGraph.capture_end`). Under [`SyncPolicy::Auto`]
    /// the program need not wait for the streams that joined.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the capture was invalidated or the graph cannot be instantiated,
    /// and under [`SyncPolicy::Manual`] if the program did not wait for a stream that joined.
    /// [`ErrorKind::Capture`] if the body of a conditional node failed.
    #[track_caller]
    pub fn end(mut self) -> Result<Graph> {
        let join = self.runtime.sync_policy() == SyncPolicy::Auto;
        let graph = self.capture.take().map(|capture| capture.end(join));
        let captured = self.log.take();
        let not_capturing = ErrorKind::NotCapturing.of("capture_end");
        let template = graph.ok_or(not_capturing)??;
        if let Some(op) = captured.broken {
            let reason = format!("the body of `{op}` failed, so the graph is incomplete");
            return Err(Error::capture("capture_end", reason));
        }
        let exec = OnceLock::new();
        let template = if self.keeps_graph {
            Some(template)
        } else {
            let _ = exec.set(instantiated(&template, "capture_end")?);
            None
        };
        let mut kept = Vec::new();
        // Every replay counts as a write of the pool's state.
        let state = &self.log.philox_state;
        let (storage, write) = (state.downgrade(), true);
        let mut members =
            vec![ReplayedStorage { storage, write, of_pool: false, captured_marks: None }];
        for (held, write, captured_marks) in captured.storages {
            let (storage, of_pool) = match held {
                GraphStorage::External(storage) if storage.same_as(state) => continue,
                GraphStorage::External(storage) => {
                    let weak = storage.downgrade();
                    kept.push((storage, write));
                    (weak, false)
                }
                GraphStorage::Pooled(storage) => (storage, true),
            };
            members.push(ReplayedStorage {
                storage,
                write,
                of_pool,
                captured_marks: Some(Arc::new(captured_marks)),
            });
        }
        let mut draws = captured.draws;
        draws.retain(|draws| draws.values > 0);
        // Concurrent replays lock their generators in one order.
        draws.sort_unstable_by_key(|draws| draws.generator.key());
        Ok(Graph {
            template,
            exec,
            pinned: kept.iter().filter(|(storage, _)| storage.is_pinned()).cloned().collect(),
            _kept: kept,
            uses: Arc::new(ReplayUses::new(members)),
            made: AtomicU64::new(0),
            needed: captured.needed,
            draws,
            checks: captured.checks,
            communicators: captured.communicators,
            runtime: self.runtime.clone(),
            log: Arc::clone(&self.log),
        })
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        if let Some(capture) = self.capture.take() {
            drop(capture);
            self.log.take();
        }
    }
}

impl std::fmt::Debug for Capturing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capturing").field("capture", &self.capture).finish_non_exhaustive()
    }
}

/// Captured work (`torch.cuda.CUDAGraph`). A graph keeps the memory of its pool and the storages from outside the
/// pool that its work uses. A replay in progress completes even if the graph is dropped.
pub struct Graph {
    /// The driver's graph, if it is kept.
    template: Option<owned::Graph>,
    /// Set at the end of the capture if `template` is `None`, otherwise when it is first needed.
    exec: OnceLock<GraphExec>,
    /// Storages from outside the pool. The flag is set if replays write the storage.
    _kept: Vec<(Storage, bool)>,
    /// The page-locked storages of `_kept`. The flag is set if replays write the storage.
    pinned: Vec<(Storage, bool)>,
    /// The uses of storages by replays.
    uses: Arc<ReplayUses>,
    /// Number of storages that had been made in the pool before the last replay.
    made: AtomicU64,
    /// Replay flags of other graphs: this graph uses storages that were made in their captures.
    needed: Vec<ReplayedFlag>,
    /// The draws of the graph's random ops, one entry per generator. All graphs list their generators in one order.
    draws: Vec<Draws>,
    /// Reports of failed index checks by the graph's kernels.
    checks: Arc<CapturedChecks>,
    /// Communicators that replays use.
    communicators: Vec<captured_collectives::CapturedCommunicator>,
    runtime: Runtime,
    log: Arc<GraphLog>,
}

impl Graph {
    /// Returns the runtime that the graph belongs to.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the pool that the graph was captured with.
    #[must_use]
    pub fn pool(&self) -> &GraphPool {
        &self.log.pool
    }

    /// Returns the driver's graph, for the call `op`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the graph was not kept.
    #[track_caller]
    pub fn template(&self, op: &'static str) -> Result<&owned::Graph> {
        let reason = "the driver's graph was not kept; capture it with `keep_graph`";
        match &self.template {
            Some(template) => Ok(template),
            None => Err(Error::invalid(op, reason)),
        }
    }

    /// Makes the executable graph from the kept graph, and replaces an earlier executable graph. A replay in progress
    /// completes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the graph was not kept. [`ErrorKind::Driver`] if the driver call fails.
    #[track_caller]
    pub fn instantiate(&mut self) -> Result<()> {
        const OP: &str = "instantiate";
        let new = instantiated(self.template(OP)?, OP)?;
        self.exec = OnceLock::new();
        let _ = self.exec.set(new);
        Ok(())
    }

    /// Returns the driver's handle of the executable graph, valid until the graph is instantiated again or dropped.
    /// `None` if a kept graph was not instantiated yet.
    #[must_use]
    pub fn exec_handle(&self) -> Option<GraphExecHandle> {
        self.exec.get().map(GraphExec::handle)
    }

    /// Returns the executable graph, which is made now if the graph was kept and not instantiated yet.
    #[inline]
    #[track_caller]
    fn exec(&self, op: &'static str) -> Result<&GraphExec> {
        if let Some(exec) = self.exec.get() {
            return Ok(exec);
        }
        let new = instantiated(self.template(op)?, op)?;
        Ok(self.exec.get_or_init(|| new))
    }

    /// Enqueues all captured work on `stream` (`CUDAGraph.replay`), in order with all other uses of
    /// its storages and with other graphs of the same pool. Inputs are read at the addresses of the
    /// capture, so copy new values there first. Random ops continue the device's sequence.
    ///
    /// # Errors
    /// - [`ErrorKind::Capture`] if `stream` is captured.
    /// - [`ErrorKind::NotReplayed`] if the graph uses results of a graph that was not replayed yet.
    /// - [`ErrorKind::DeviceMismatch`] if `stream` is on a different device than the graph.
    /// - [`ErrorKind::RuntimeMismatch`] if `stream` belongs to another runtime.
    /// - [`ErrorKind::Collective`] if the graph holds calls of a process group that has failed.
    /// - The errors of [`Kernel::launch`](crate::launch::Kernel::launch).
    #[track_caller]
    pub fn replay(&self, stream: &Stream) -> Result<()> {
        const OP: &str = "replay";
        let location = Location::caller();
        if stream.is_capturing() {
            let reason = "a graph cannot be replayed on a stream that is being captured";
            return Err(Error::capture(OP, reason));
        }
        self.runtime.check_stream(stream, OP)?;
        check_device(OP, self.pool().device(), stream)?;
        if !self.needed.iter().all(|needed| needed.replayed.load(Ordering::Relaxed)) {
            return Err(ErrorKind::NotReplayed.of(OP));
        }
        // A graph with collectives must not wait here: other ranks may wait for work that this
        // thread enqueues next.
        if self.communicators.is_empty() && self.checks.has_failed() {
            // Every replay counts as a write of the state, so a wait for a host write of the state
            // waits for all replays.
            self.log.philox_state.wait_for_host(true)?;
        }
        let site = Site { op: OP, location };
        captured_collectives::replay_watched(
            &self.communicators,
            stream,
            site,
            &mut Dependencies::new(),
            &mut |numbers| self.enqueue(stream, site, numbers),
        )
    }

    /// Enqueues a replay. `numbers` are the replay's call numbers on its communicators.
    #[track_caller]
    fn enqueue(&self, stream: &Stream, site: Site, numbers: &Dependencies) -> Result<()> {
        let device = self.runtime.device(stream.device_index())?;
        let exec = self.exec(site.op)?;
        let state = &self.log.philox_state;
        // Hold the generators until the replay is enqueued, so that the order of draws is the order
        // of launches.
        let mut generators = Vec::new();
        for Draws { generator, index, values } in &self.draws {
            let target = Target::Cuda(&self.runtime, device, stream);
            let mut held = generator.lock();
            philox::set_state(target, state, *index, &mut held, *values, site.location)?;
            generators.push(held);
        }
        // Storages of the pool may reuse each other's memory, so a replay may write the memory of any of them.
        let (made, new) = self.pool().made_since(self.made.load(Ordering::Relaxed));
        if let Some(new) = new {
            self.uses.add(new);
            self.made.store(made, Ordering::Relaxed);
        }
        let replay = GraphReplay {
            runtime: &self.runtime,
            exec,
            uses: &self.uses,
            pinned: &self.pinned,
            checks: &self.checks,
            communicators: &self.communicators,
            numbers,
        };
        // SAFETY: `GraphLog` has recorded all storages and communicators of the captured work. The graph keeps
        // the storages from outside the pool, the pool, the communicators, and the runtime, which keeps the
        // modules.
        unsafe { replay.enqueue(stream, site) }?;
        self.log.replayed.replayed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // In a forked child, a lock that another thread held during the fork stays locked.
        if self.runtime.is_own_process() {
            self.uses.detach_all();
        }
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph")
            .field("exec", &self.exec)
            .field("pool", &self.pool().id())
            .field("draws", &self.draws)
            .finish_non_exhaustive()
    }
}

#[track_caller]
fn instantiated(template: &owned::Graph, op: &'static str) -> Result<GraphExec> {
    template.instantiate().map_err(|error| Error::driver(op, error))
}

#[track_caller]
fn check_device(op: &'static str, device: usize, stream: &Stream) -> Result<()> {
    if stream.device_index() == device {
        return Ok(());
    }
    let (first, second) = (Device::cuda(device), Device::cuda(stream.device_index()));
    Err(ErrorKind::device_mismatch(first, second).of(op))
}
