//! Process groups: one rank's handle, and the launch of its calls.
//!
//! `ProcessGroup::launch` gives a call its sequence number. In debug mode it compares the call with the other ranks'
//! calls through the store (`check.rs`; a send is compared with the receive that has the same number between the two
//! ranks). Then the group's `Transport` carries out the call. With NCCL, the call is one launch of one NCCL group, on
//! the current stream, or with `async_op` on the group's own stream; the flight recorder keeps the completion event of
//! the operation (`OpEvent`), which can be queried without the stream's lock. On the CPU (`cpu.rs`), the call exchanges
//! the bytes through the store, and is done when the function returns.
//!
//! Invariant: a host wait on a group's work ends. The wait alternately checks whether the work is done and whether the
//! group has failed. The failure is set before the communicator is aborted, so aborted work is never taken for
//! completed work.
//!
//! Lock order: `launching`, then the locks of a launch, then the driver's lock. A graph with several groups locks their
//! `launching` in the order of their communicators. The recorder is locked briefly, and only the driver's lock is taken
//! under it. The watchdog takes neither `launching` nor the lock of a storage or stream: a call that hangs in NCCL
//! holds these locks, and the watchdog must be able to abort the call.

mod collectives;
mod cpu;
mod leave;
mod lists;
mod pairs;
mod replays;
mod subgroups;
mod transport;

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use warpline::cuda::Stream;
use warpline::{Device, Runtime, Tensor};
use warpline_kernels::collective::{self, CollectiveOp, TrackedCommunicator};
use warpline_runtime::{CollectiveWatcher, Target};
use warpline_stream::OpEvent;

use super::flight_recorder::{CallState, FlightRecorder};
use super::signature::Signature;
use super::store::Deadline;
use super::work::{CallTensors, CompletionPoint};
use super::{Error, GroupError, Result, Store, Work, check, watchdog};

pub use collectives::ReduceOptions;
pub use lists::AllToAllOptions;
pub use pairs::P2p;
pub use transport::Backend;
pub(super) use transport::Transport;

/// A rank's handle of a process group (`torch.distributed.ProcessGroup`), over NCCL, or between CPU tensors
/// ([`Backend`]).
/// [`init_process_group`](super::init_process_group) forms groups and has an example.
///
/// All ranks must make the same calls in the same order, each with tensors on its own device. A call returns before the
/// collective is done. Without `async_op`, which is the default, the collective is enqueued on the current stream, like
/// any op. With `async_op` it is enqueued on the group's own stream, after the earlier work on the current stream.
/// [`Work::wait`] then makes the current stream wait for the collective. Under [`warpline::SyncPolicy::Auto`], ops that
/// use the collective's tensors also wait without that call. With [`Backend::Cpu`], a call returns only when the
/// collective is done, even if `async_op` is set.
///
/// A call without `async_op` may be captured in a graph, which keeps the group alive. Each replay counts as one call,
/// with the same timeout.
///
/// After the group has failed, the results of its unfinished calls are undefined. Host reads of these results, or of
/// tensors computed from them, fail with [`warpline::ErrorKind::Collective`] until they are overwritten.
///
/// Clones share the group. After the last clone is dropped, the group finishes its work in the background and ends.
/// Wait for the work before the process ends. With [`Backend::Cpu`], the rank that hosts the store
/// ([`InitOptions::store_host`](super::InitOptions::store_host)) then waits up to 10 seconds until the other ranks have
/// dropped the group, because they may still read the results of the last call from the store.
#[derive(Clone)]
pub struct ProcessGroup(Arc<GroupHandle>);

/// The state that the user's handles share with the graphs that have captured calls of the group. Dropping the last
/// handle leaves the group and stops the watchdog.
#[derive(Debug)]
struct GroupHandle(Arc<GroupShared>);

impl Drop for GroupHandle {
    fn drop(&mut self) {
        self.0.leave();
        self.0.wake(|requests| requests.stop = true);
    }
}

/// The parts of a new group.
#[derive(Debug)]
pub(super) struct GroupParts {
    pub(super) name: String,
    /// Ranks of the members in the original group, which `init_process_group` formed.
    pub(super) members: Vec<usize>,
    pub(super) runtime: Runtime,
    pub(super) transport: Transport,
    pub(super) store: Arc<dyn Store>,
    /// Rank in the original group whose process hosts the store, if known.
    pub(super) store_host: Option<usize>,
    pub(super) timeout: Duration,
    pub(super) debug: bool,
}

/// The state that calling threads and the watchdog share.
#[derive(Debug)]
pub(super) struct GroupShared {
    pub(super) parts: GroupParts,
    /// Locked while a call gets its sequence number and is launched, so that numbers follow the order of launches.
    launching: Mutex<()>,
    recorder: Mutex<FlightRecorder>,
    failure: OnceLock<GroupError>,
    requests: Mutex<WatchdogRequests>,
    wake: Condvar,
    barrier: OnceLock<Tensor>,
    subgroups: Mutex<u64>,
    /// In debug mode, the count of compared sends and receives, by peer and direction (`true`: this rank
    /// sends).
    compared: Mutex<HashMap<(usize, bool), u64>>,
    /// In debug mode, the sequence number of the last compared collective. Replays are not compared.
    last_compared: Mutex<Option<u64>>,
}

/// Requests to the watchdog.
#[derive(Debug, Default)]
pub(super) struct WatchdogRequests {
    /// Whether the last handle was dropped.
    pub(super) stop: bool,
    /// Message of a failed launch.
    pub(super) launch_error: Option<String>,
}

impl GroupShared {
    pub(super) fn rank(&self) -> usize {
        self.parts.transport.rank()
    }

    pub(super) fn ranks(&self) -> usize {
        self.parts.transport.ranks()
    }

    pub(super) fn recorder(&self) -> MutexGuard<'_, FlightRecorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sequence number of the next compared send to or receive from a rank.
    pub(super) fn next_pair_seq(&self, end: (usize, bool)) -> u64 {
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        let count = compared.entry(end).or_default();
        *count += 1;
        *count
    }

    /// Records that a collective was compared. Returns the sequence number of the previous one.
    pub(super) fn replace_last_compared(&self, seq: u64) -> Option<u64> {
        self.last_compared.lock().unwrap_or_else(PoisonError::into_inner).replace(seq)
    }

    fn wake(&self, change: impl FnOnce(&mut WatchdogRequests)) {
        change(&mut self.requests.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }

    /// Waits until there is a request to the watchdog, or `tick` has passed. Returns the requests.
    pub(super) fn wait_for_requests(&self, tick: Duration) -> (bool, Option<String>) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let waited =
            self.wake.wait_timeout_while(requests, tick, |w| !w.stop && w.launch_error.is_none());
        let mut requests = waited.unwrap_or_else(PoisonError::into_inner).0;
        (requests.stop, requests.launch_error.take())
    }

    /// Fails the group on all ranks, because this rank ended with an error.
    pub(super) fn report_failure(&self, reason: &str) {
        watchdog::report_failure(self, reason);
    }

    /// Returns the failure of the group, if it has failed.
    pub(super) fn check_alive(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone().into()))
    }

    /// Sets the failure, so that all later calls fail, and aborts the communicator.
    pub(super) fn fail(&self, error: GroupError) {
        let completion = {
            let mut recorder = self.recorder();
            // Poll before the abort. Afterwards, aborted calls look completed.
            recorder.poll_finished();
            recorder.completion().clone()
        };
        completion.fail(Arc::new(error.clone()));
        let _ = self.failure.set(error);
        self.parts.transport.abort();
    }

    /// Returns the error to report for a failed launch. An NCCL error makes the watchdog fail the group; this function
    /// waits for that failure. The group's failure takes precedence over `error`.
    fn error_or_failure(&self, error: Error) -> Error {
        match is_nccl_error(&error) {
            true => self.fail_after(error),
            false => self.check_alive().err().unwrap_or(error),
        }
    }

    /// Makes the watchdog fail the group because of `error`, and waits for that failure. Returns the failure.
    fn fail_after(&self, error: Error) -> Error {
        self.wake(|requests| requests.launch_error = Some(error.to_string()));
        // Allow for the time in which the watchdog reads the other ranks' records before it fails the group.
        let bound = watchdog::publish_timeout(self.parts.timeout) + Duration::from_secs(10);
        let begun = Instant::now();
        while self.failure.get().is_none() && begun.elapsed() < bound {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.check_alive().err().unwrap_or(error)
    }
}

/// Returns `true` if NCCL failed. The communicator is unusable afterwards.
fn is_nccl_error(error: &Error) -> bool {
    use warpline_cuda_sys_safe::DriverError::{CollectiveMismatch, LibraryCall};
    matches!(error.driver_error(), Some(LibraryCall { .. } | CollectiveMismatch(_)))
}

/// Returns the completion event of the last enqueued operation. The watchdog queries this event without the stream's
/// lock, because a hanging call holds the lock.
fn last_op_event(stream: &Stream) -> Result<OpEvent> {
    stream.op_event(stream.last_op())
}

impl ProcessGroup {
    pub(super) fn new(parts: GroupParts) -> Result<Self> {
        let shared = Arc::new(GroupShared {
            parts,
            launching: Mutex::default(),
            recorder: Mutex::default(),
            failure: OnceLock::new(),
            requests: Mutex::default(),
            wake: Condvar::new(),
            barrier: OnceLock::new(),
            subgroups: Mutex::default(),
            compared: Mutex::default(),
            last_compared: Mutex::default(),
        });
        watchdog::start(&shared).map_err(|error| GroupError::Init {
            rank: shared.rank(),
            world_size: shared.ranks(),
            reason: format!("its watchdog cannot be started: {error}"),
            missing: Vec::new(),
        })?;
        Ok(Self(Arc::new(GroupHandle(shared))))
    }

    pub(super) fn shared(&self) -> &Arc<GroupShared> {
        &self.0.0
    }

    /// Returns the number of this rank in the group (`get_rank`).
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shared().rank()
    }

    /// Returns the number of ranks (`get_world_size`).
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.shared().ranks()
    }

    /// Returns the device of this rank, where its tensors must be.
    #[must_use]
    pub fn device(&self) -> Device {
        self.shared().parts.transport.device()
    }

    /// Returns the name of the group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared().parts.name
    }

    /// Returns the time limit of a collective.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.shared().parts.timeout
    }

    /// Returns the failure of the group. `None` while the group can be used.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.shared().failure.get().cloned().map(Error::from)
    }

    #[track_caller]
    fn invalid(&self, op: &'static str, reason: String) -> Error {
        Error::invalid(op, format!("on rank {}: {reason}", self.rank()))
    }

    /// Returns an error while the current stream is captured. Called by functions that wait on the host, because
    /// captured work does not run.
    #[track_caller]
    fn check_not_capturing(&self, op: &'static str) -> Result<()> {
        let parts = &self.shared().parts;
        let Transport::Nccl { comm, .. } = &parts.transport else { return Ok(()) };
        let current = parts.runtime.devices()?.current_stream(comm.device())?;
        if !current.is_capturing() {
            return Ok(());
        }
        let reason = "it blocks the host, which a capture does not allow: call it before or after the capture";
        Err(Error::capture(op, reason))
    }

    /// Records a call, compares it with the other ranks' calls in debug mode, and carries out its `ops`.
    fn launch(
        &self,
        (signature, async_op): (Signature, bool),
        location: &'static Location<'static>,
        keep: CallTensors,
        ops: &[CollectiveOp<'_>],
    ) -> Result<Work> {
        let shared = self.shared();
        let parts = &shared.parts;
        let (comm, own_stream) = match &parts.transport {
            Transport::Cpu(cpu) => return self.run_on_cpu(cpu, signature, location, keep, ops),
            Transport::Nccl { comm, stream } => (comm, stream),
        };
        let (name, runtime, device) = (signature.op, &parts.runtime, comm.device());
        let devices = runtime.devices()?;
        let current = devices.current_stream(device)?;
        let _in_order = shared.launching.lock().unwrap_or_else(PoisonError::into_inner);
        shared.check_alive().map_err(|error| error.at(location))?;
        let stream = if async_op { own_stream } else { &current };
        let checked = parts.debug.then(|| signature.clone());
        let (id, seq, completion) = {
            let mut recorder = shared.recorder();
            let (id, seq) = recorder.begin(signature, location);
            (id, seq, recorder.completion().clone())
        };
        let compared = checked.map_or(Ok(false), |call| {
            let deadline = Deadline::after(parts.timeout);
            let compared = deadline.bound(|| check::compare(shared, seq, &call));
            compared.inspect_err(|_| shared.recorder().set_state(id, CallState::Done))
        })?;
        let enqueued = (|| {
            let _current = if async_op {
                stream.wait_stream(&current)?;
                Some(devices.stream_guard(stream)?)
            } else {
                None
            };
            let target = Target::Cuda(runtime, runtime.device(device)?, stream);
            let replays = || Arc::clone(&self.0) as Arc<dyn CollectiveWatcher>;
            let comm = TrackedCommunicator::new(comm, &completion, id + 1, &replays);
            collective::run(target, comm, name, ops, location)?;
            // Captured calls run in replays, which are separate launches.
            if stream.is_capturing() {
                return Ok(None);
            }
            last_op_event(stream).map(Some)
        })();
        // `track_caller` does not reach into the closure.
        let enqueued = enqueued.map_err(|error: Error| error.at(location));
        let event = match enqueued {
            Ok(event) => event,
            // Keep the record: the watchdog publishes it to the other ranks.
            Err(error) if is_nccl_error(&error) => return Err(shared.error_or_failure(error)),
            Err(error) => {
                // If debug mode has compared the call between ranks, its sequence number is used up
                // on all ranks. Otherwise the next call reuses the number.
                match compared {
                    true => shared.recorder().set_state(id, CallState::Done),
                    false => shared.recorder().remove_refused(id),
                }
                return Err(error);
            }
        };
        let done = match &event {
            _ if !async_op => CompletionPoint::Op(stream.clone(), stream.last_op()),
            Some(event) => CompletionPoint::Event(event.clone()),
            None => CompletionPoint::Captured(stream.record_event(None)?),
        };
        shared.recorder().set_state(id, event.map_or(CallState::Done, CallState::Launched));
        Ok(Work::new(Arc::clone(shared), done, (id, seq), keep))
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup")
            .field("name", &self.name())
            .field("rank", &self.rank())
            .field("world_size", &self.world_size())
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}
