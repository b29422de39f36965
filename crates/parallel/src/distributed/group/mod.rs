//! A process group: a rank's end of it, and how its calls are launched.
//!
//! Each collective is one launch of one NCCL group. `ProcessGroup::launch` gives a call its number,
//! compares it with the other ranks' calls through the store in debug mode (`check.rs`; sends and
//! receives are compared by their number between two ranks), and enqueues it on the current stream,
//! or asynchronously on the group's own. It keeps the event that the stream records after each
//! operation (`OpEvent`), which can be queried without the stream's lock.
//!
//! Invariant: a host wait on a group's work ends. It asks in turns whether the work is done and
//! whether the group has failed. The failure is set before the communicator is aborted, so aborted
//! work is never taken for completed work.
//!
//! Lock order: `launching` (of several groups in one graph, in the order of their communicators),
//! then the locks of a launch, then the driver. The ring is held for moments, and only the driver's
//! lock is taken under it. The watchdog takes neither `launching` nor the lock of a storage or
//! stream: a call that hangs in NCCL holds those, and the watchdog has to end it.

mod collectives;
mod lists;
mod pairs;
mod replays;
mod subgroups;

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use warpline::cuda::Stream;
use warpline::{Runtime, Tensor};
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_kernels::collective::Watched;
use warpline_runtime::{Replays, Target};
use warpline_stream::OpEvent;

use super::record::{Ring, State};
use super::signature::Signature;
use super::store::Deadline;
use super::work::{Done, Tensors};
use super::{Error, GroupError, Result, Store, Work, check, watchdog};

pub use pairs::P2p;

/// A rank's end of a process group (`torch.distributed.ProcessGroup`, with NCCL below).
///
/// All ranks make the same calls in the same order, each with tensors on its own device. A call
/// returns before it is done. Without `async_op` it is enqueued on the current stream, like any op.
/// With it, it goes to the group's own stream, after what the current one was given so far, and
/// [`Work::wait`] makes the current stream wait for it; ops that use its tensors wait by themselves
/// under [`warpline::SyncPolicy::Auto`]. A call without `async_op` may be captured in a graph, which
/// keeps the group; each replay counts as one call, with the same timeout.
///
/// Once the group has failed, what its unfinished calls were to write holds anything: reading it on the
/// host, or anything computed from it, is [`warpline::ErrorKind::Collective`], until it is overwritten.
///
/// Clones share the group. When the last one is dropped it ends once its work is done, in the
/// background; so wait for that work before the process ends.
///
/// See [`init_process_group`](super::init_process_group) for how it is made and an example.
#[derive(Clone)]
pub struct ProcessGroup(Arc<Handle>);

/// What users hold: when it goes, the watchdog ends.
#[derive(Debug)]
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.wake(|wanted| wanted.stop = true);
    }
}

/// What a group is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) name: String,
    /// The ranks it has in the first group.
    pub(super) members: Vec<usize>,
    pub(super) runtime: Runtime,
    pub(super) comm: Communicator,
    pub(super) store: Arc<dyn Store>,
    /// Which rank of the first group hosts the store, where it is known to go with it.
    pub(super) store_host: Option<usize>,
    pub(super) timeout: Duration,
    pub(super) debug: bool,
}

/// What the threads that call and the watchdog share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) parts: Parts,
    stream: Stream,
    /// Held from a call's number to its launch, so that both have one order.
    launching: Mutex<()>,
    ring: Mutex<Ring>,
    failure: OnceLock<GroupError>,
    wanted: Mutex<Wanted>,
    wake: Condvar,
    barrier: OnceLock<Tensor>,
    subgroups: Mutex<u64>,
    /// In debug mode: how many sends and receives were compared, by the other rank and direction.
    compared: Mutex<HashMap<(usize, bool), u64>>,
    /// In debug mode: the number of the last collective that was compared. Replays are not.
    compared_last: Mutex<Option<u64>>,
}

/// What is asked of the watchdog.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Nobody holds the group any more.
    pub(super) stop: bool,
    /// A launch failed, with this.
    pub(super) trouble: Option<String>,
}

impl Shared {
    pub(super) fn rank(&self) -> usize {
        self.parts.comm.rank()
    }

    pub(super) fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the next send to, or receive from, a rank, among those that are compared.
    pub(super) fn next_of_pair(&self, end: (usize, bool)) -> u64 {
        let mut compared = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        let count = compared.entry(end).or_default();
        *count += 1;
        *count
    }

    /// Enters that this collective was compared; the number of the one before.
    pub(super) fn compared_last(&self, seq: u64) -> Option<u64> {
        self.compared_last.lock().unwrap_or_else(PoisonError::into_inner).replace(seq)
    }

    fn wake(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut self.wanted.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }

    /// Waits a while, or until something is asked of the watchdog; what that is.
    pub(super) fn wanted(&self, tick: Duration) -> (bool, Option<String>) {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wake.wait_timeout_while(wanted, tick, |w| !w.stop && w.trouble.is_none());
        let mut wanted = waited.unwrap_or_else(PoisonError::into_inner).0;
        (wanted.stop, wanted.trouble.take())
    }

    /// Refuses what comes after a failure.
    pub(super) fn check_alive(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone().into()))
    }

    /// From now on all is refused.
    pub(super) fn fail(&self, error: GroupError) {
        let completion = {
            let mut ring = self.ring();
            // The last time that what is done is known from what was aborted.
            ring.settle();
            ring.completion().clone()
        };
        completion.fail(Arc::new(error.clone()));
        let _ = self.failure.set(error);
        self.parts.comm.abort();
    }

    /// What to return for an error of a launch: the group's failure, where there is one or NCCL's
    /// error makes one.
    fn explained(&self, error: Error) -> Error {
        if is_of_comm(&error) {
            self.wake(|wanted| wanted.trouble = Some(error.to_string()));
            // The watchdog asks the other ranks, within bounds.
            let bound = watchdog::bound(self.parts.timeout) + Duration::from_secs(10);
            let begun = Instant::now();
            while self.failure.get().is_none() && begun.elapsed() < bound {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.check_alive().err().unwrap_or(error)
    }
}

/// Whether it is NCCL that failed, not this call alone.
fn is_of_comm(error: &Error) -> bool {
    use warpline_cuda_sys_safe::DriverError::{CollectiveMismatch, LibraryCall};
    matches!(error.driver_error(), Some(LibraryCall { .. } | CollectiveMismatch(_)))
}

/// The event after what was just enqueued. The watchdog asks it without the stream's lock, which a call
/// that hangs holds.
fn launched(stream: &Stream) -> Result<OpEvent> {
    stream.op_event(stream.last_op())
}

impl ProcessGroup {
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let gpu = parts.runtime.device(parts.comm.device())?;
        let stream = gpu.device().exclusive_stream(0)?;
        let shared = Arc::new(Shared {
            parts,
            stream,
            launching: Mutex::default(),
            ring: Mutex::default(),
            failure: OnceLock::new(),
            wanted: Mutex::default(),
            wake: Condvar::new(),
            barrier: OnceLock::new(),
            subgroups: Mutex::default(),
            compared: Mutex::default(),
            compared_last: Mutex::default(),
        });
        watchdog::start(&shared).map_err(|error| GroupError::Init {
            rank: shared.rank(),
            world_size: shared.parts.comm.ranks(),
            reason: format!("its watchdog cannot be started: {error}"),
            missing: Vec::new(),
        })?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// This rank's number in the group (`get_rank`).
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shared().rank()
    }

    /// How many ranks it has (`get_world_size`).
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.shared().parts.comm.ranks()
    }

    /// The device of this rank's tensors.
    #[must_use]
    pub fn device(&self) -> warpline::Device {
        warpline::Device::cuda(self.shared().parts.comm.device())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared().parts.name
    }

    /// How long a collective may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.shared().parts.timeout
    }

    /// Why it can be used no more; `None` while it can.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.shared().failure.get().cloned().map(Error::from)
    }

    #[track_caller]
    fn invalid(&self, op: &'static str, reason: String) -> Error {
        Error::invalid(op, format!("on rank {}: {reason}", self.rank()))
    }

    /// Refuses what waits on the host while the current stream is captured: there is nothing to wait
    /// for.
    #[track_caller]
    fn refuse_capture(&self, op: &'static str) -> Result<()> {
        let parts = &self.shared().parts;
        let current = parts.runtime.devices()?.current_stream(parts.comm.device())?;
        if !current.is_capturing() {
            return Ok(());
        }
        let reason = "it waits on the host, which a capture cannot: call it before or after";
        Err(Error::capture(op, reason))
    }

    /// Records a call, compares it with the other ranks' in debug mode, and runs `enqueue` with the
    /// stream that it goes to as the current one.
    fn launch(
        &self,
        (signature, async_op): (Signature, bool),
        location: &'static Location<'static>,
        keep: Tensors,
        enqueue: impl FnOnce(Target<'_>, Watched<'_>) -> Result<()>,
    ) -> Result<Work> {
        let shared = self.shared();
        let parts = &shared.parts;
        let (runtime, device) = (&parts.runtime, parts.comm.device());
        let devices = runtime.devices()?;
        let current = devices.current_stream(device)?;
        let _in_order = shared.launching.lock().unwrap_or_else(PoisonError::into_inner);
        shared.check_alive()?;
        let stream = if async_op { &shared.stream } else { &current };
        let checked = parts.debug.then(|| signature.clone());
        let (id, seq, completion) = {
            let mut ring = shared.ring();
            let (id, seq) = ring.begin(signature, location);
            (id, seq, ring.completion().clone())
        };
        let compared = checked.map_or(Ok(false), |call| {
            let deadline = Deadline::after(parts.timeout);
            let compared = deadline.bound(|| check::compare(shared, seq, &call));
            compared.inspect_err(|_| shared.ring().set(id, State::Done))
        })?;
        let enqueued = (|| {
            let _current = if async_op {
                stream.wait_stream(&current)?;
                Some(devices.stream_guard(stream)?)
            } else {
                None
            };
            let target = Target::Cuda(runtime, runtime.device(device)?, stream);
            let replays = || Arc::clone(&self.0) as Arc<dyn Replays>;
            enqueue(target, Watched::new(&parts.comm, &completion, id + 1, &replays))?;
            // What is captured runs in replays, which are launches of their own.
            if stream.is_capturing() {
                return Ok(None);
            }
            launched(stream).map(Some)
        })();
        // Closures do not know the caller.
        let enqueued = enqueued.map_err(|error: Error| error.at(location));
        let event = match enqueued {
            Ok(event) => event,
            // Its record stays, for the ranks to see.
            Err(error) if is_of_comm(&error) => return Err(shared.explained(error)),
            Err(error) => {
                // What the ranks have compared has had its number on all of them.
                match compared {
                    true => shared.ring().set(id, State::Done),
                    false => shared.ring().undo(id),
                }
                return Err(error);
            }
        };
        let done = match &event {
            _ if !async_op => Done::Op(stream.clone(), stream.last_op()),
            Some(event) => Done::Event(event.clone()),
            None => Done::Captured(stream.record_event(None)?),
        };
        shared.ring().set(id, event.map_or(State::Done, State::Launched));
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
