//! Order between streams of several processes, by semaphore values (*numbers*) in shared memory.
//!
//! # Approach
//!
//! A stream *signals* a number after its work, as with CUDA's timeline semaphores
//! (`cuStreamWriteValue32`). Numbers ascend. Streams of another process wait for the number
//! (`cuStreamWaitValue32`). For each device, each side has one page of host memory that both sides
//! register; the channel carries the page. The wait is recorded as a write of the tensor's storage,
//! so a stream of the program waits only when it uses the tensor, and a stalled peer stops no other
//! stream.
//!
//! Numbers arrive in order. If another stream signalled before, the semaphore's own stream waits
//! for that stream and then signals. A message is rejected if its number is not greater than the
//! previous message's number, or if it is 2³¹ or more above the numbers that the stream has passed.
//! Bytes whose number has not arrived are marked, like the results of a kernel that checks indices.
//! If the number never arrives, each host read of marked bytes, or of data computed from marked
//! bytes, fails.
//!
//! # Killed processes
//!
//! Interprocess events are not used, because no document specifies a wait for the event of a killed
//! process. (With driver 580 such a wait completed in a few runs; in each of them the wait began
//! after the kill.) Here the waiting process releases its own streams once it sees
//! that the other process is gone. The number at that time shows which work is complete; reads of
//! other results are refused.

mod awaited;
#[cfg(test)]
mod tests;

use std::panic::Location;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::owned::SharedWords;
use warpline_cuda_sys_safe::{Access, CudaCode, DriverError, OsHandle};
use warpline_stream::Stream;
use warpline_sync::{Mutex, MutexGuard, OnceLock};

#[cfg(doc)]
use crate::ErrorKind;
use crate::Site;
use crate::launch::enqueue;
use crate::race::Touch;
use crate::runtime::{UnusedMemory, new_memory_id};
use crate::{CudaDevice, Error, Result, Runtime, Storage, SyncPolicy};
pub(crate) use awaited::AwaitedSignal;

/// Index of the word that holds the semaphore's value.
const WORD: usize = 0;

/// Interval at which the host polls while it waits for a number.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// A semaphore exported to another process, which creates a [`PeerSemaphore`] from it.
#[derive(Debug)]
pub struct SharedSemaphore {
    /// Handle that transfers the memory.
    pub handle: OsHandle,
    /// Size of the memory, in bytes.
    pub bytes: usize,
    /// UUID of the device whose streams signal the semaphore.
    pub device: [u8; 16],
}

/// The memory of a semaphore, and the streams that may still use it.
#[derive(Debug)]
struct SemaphorePage {
    words: Option<SharedWords>,
    runtime: Runtime,
    device: usize,
    streams: Mutex<Vec<Stream>>,
    /// The semaphore's own stream, created on first use. Program work never runs there, so a
    /// stalled peer stops no stream of the program.
    own: OnceLock<Stream>,
}

impl SemaphorePage {
    fn new(runtime: &Runtime, device: usize, words: SharedWords) -> Self {
        let (words, streams) = (Some(words), Mutex::default());
        Self { words, runtime: runtime.clone(), device, streams, own: OnceLock::new() }
    }

    /// Returns the semaphore's own stream.
    fn stream(&self) -> Result<&Stream> {
        if let Some(own) = self.own.get() {
            return Ok(own);
        }
        let new = self.runtime.device(self.device)?.device().exclusive_stream(0)?;
        Ok(self.own.get_or_init(|| new))
    }

    /// Returns whether the semaphore can order work on this storage.
    fn serves(&self, storage: &Storage) -> bool {
        storage.runtime().same_as(&self.runtime)
            && storage.cuda_device().map(CudaDevice::index) == Some(self.device)
    }

    fn number(&self) -> u32 {
        self.words.as_ref().and_then(|words| words.load(WORD).ok()).unwrap_or(0)
    }

    fn note(&self, stream: &Stream) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.contains(stream) {
            streams.push(stream.clone());
        }
    }
}

impl Drop for SemaphorePage {
    fn drop(&mut self) {
        let Some(words) = self.words.take() else { return };
        if !self.runtime.is_own_process() {
            std::mem::forget(words);
            return;
        }
        let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
        let streams = std::mem::take(streams);
        self.runtime.retire_shared(
            new_memory_id(),
            UnusedMemory::Words(words),
            streams.into_iter(),
        );
    }
}

/// Returns whether a stream has completed its work. A lost device counts as complete.
fn is_idle(stream: &Stream) -> bool {
    let raw = stream.raw();
    match raw.query() {
        Ok(idle) => idle,
        Err(_) => raw.driver().lost(stream.device_index()).is_some(),
    }
}

/// Returns whether number `b` is at or after number `a`. Numbers wrap around.
fn reaches(b: u32, a: u32) -> bool {
    b.wrapping_sub(a) as i32 >= 0
}

/// Returns whether Warpline orders streams of this runtime, beyond the program's own waits.
fn orders(runtime: &Runtime, stream: &Stream) -> bool {
    runtime.sync_policy() == SyncPolicy::Auto && !runtime.detects_races() && !stream.is_capturing()
}

/// Returns whether the error shows that the driver's streams cannot signal and wait at all, or
/// cannot do so at this host address.
fn unsupported(error: &Error) -> bool {
    error.driver_error().is_some_and(|error| {
        let missing = matches!(error, DriverError::MissingSymbol { .. });
        let code = error.code();
        missing || matches!(code, Some(CudaCode::NOT_SUPPORTED | CudaCode::INVALID_VALUE))
    })
}

fn site(op: &'static str, location: &'static Location<'static>) -> Site {
    Site { op, location }
}

/// Returns an access to the whole storage. All uses of the storage conflict with this access.
fn all_of(storage: &Storage) -> impl Iterator<Item = Touch<'_>> {
    std::iter::once(Touch::range(storage, 0, storage.bytes(), Access::ReadWrite))
}

/// A semaphore that this process signals.
#[derive(Debug)]
pub struct OwnSemaphore {
    page: SemaphorePage,
    signalled: Mutex<LastSignal>,
}

/// The number of the last signal, and the operation that made it.
#[derive(Debug)]
struct LastSignal {
    number: u32,
    /// The stream of the last signal, and the number of the signal's operation on that stream.
    last: Option<(Stream, u64)>,
}

impl OwnSemaphore {
    /// Creates a semaphore for streams of a device.
    ///
    /// # Errors
    /// - [`ErrorKind::NoSuchDevice`] or [`ErrorKind::CudaUnavailable`] if there is no such device.
    /// - [`ErrorKind::Driver`] if the system cannot share memory or the driver cannot register it.
    pub fn new(runtime: &Runtime, device: usize) -> Result<Self> {
        let driver = runtime.device(device)?.driver();
        let words = SharedWords::new(driver, device).map_err(|e| Error::driver("send", e))?;
        let signalled = Mutex::new(LastSignal { number: 0, last: None });
        Ok(Self { page: SemaphorePage::new(runtime, device, words), signalled })
    }

    /// Returns whether the semaphore can order work on this storage: it has the same runtime and
    /// device.
    #[must_use]
    pub fn serves(&self, storage: &Storage) -> bool {
        self.page.serves(storage)
    }

    /// Exports the semaphore for another process.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the system cannot export the memory.
    #[track_caller]
    pub fn export(&self) -> Result<SharedSemaphore> {
        const OP: &str = "send";
        let device = self.page.runtime.device(self.page.device)?.properties().uuid;
        let Some(words) = &self.page.words else {
            return Err(Error::invalid(OP, "it is gone"));
        };
        let handle = words.export().map_err(|e| Error::driver(OP, e))?;
        Ok(SharedSemaphore { handle, bytes: words.bytes(), device })
    }

    /// Signals, in stream order, after all work on the storage that was enqueued in this process.
    /// `stream` signals, unless another stream signalled before: then the semaphore's own stream
    /// does, so that `stream` waits for no other stream.
    ///
    /// Returns the signalled number, or `None` if only the host can wait for that work: under
    /// [`SyncPolicy::Manual`], where any stream may use the storage without order; while `stream` is
    /// captured; if the semaphore does not [serve](Self::serves) the storage; if the streams cannot
    /// signal; or if the storage depends on work that can still fail, other than work that the receiving
    /// process has signalled with `peers`.
    ///
    /// # Errors
    /// The known failure of work that the storage depends on, and [`ErrorKind::Driver`] if a driver
    /// call fails.
    pub fn signal(
        &self,
        storage: &Storage,
        stream: &Stream,
        peers: &[&PeerSemaphore],
        op: &'static str,
        location: &'static Location<'static>,
    ) -> Result<Option<u32>> {
        if !self.serves(storage) || !orders(&self.page.runtime, stream) {
            return Ok(None);
        }
        let Some(words) = &self.page.words else { return Ok(None) };
        let mut signalled = self.signalled.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = match &signalled.last {
            Some((last, op)) if last != stream => {
                let own = self.page.stream()?;
                own.wait_for(last, *op)?; // numbers must be signalled in order
                own
            }
            _ => stream,
        };
        self.page.note(stream);
        let number = signalled.number.wrapping_add(1);
        let enqueued = enqueue(stream, all_of(storage), site(op, location), |_| {
            // SAFETY: the page has recorded the stream, and its drop retires the words until the
            // stream has executed the write.
            unsafe { words.write_on(stream.raw(), WORD, number) }?;
            stream.note_launch(site(op, location), std::iter::empty());
            Ok(())
        });
        let enqueued = match enqueued {
            Err(e) if unsupported(&e) => {
                return Ok(None);
            }
            enqueued => enqueued?,
        };
        *signalled = LastSignal { number, last: Some((stream.clone(), enqueued)) };
        drop(signalled);
        // Check dependencies after the signal is enqueued. A dependency that another thread adds
        // after the check belongs to later work, which the signal does not cover.
        Ok((!storage.depends_on_others(peers)).then_some(number))
    }
}

impl OwnSemaphore {
    /// Blocks the host until the last signal has run.
    pub fn settle(&self) {
        let signalled = self.signalled.lock().unwrap_or_else(PoisonError::into_inner);
        let last = signalled.last.as_ref().map(|(stream, _)| stream.clone());
        drop(signalled);
        if let Some(stream) = last.filter(|_| !self.is_settled()) {
            // Fails if the device is lost or the stream is captured. The other process then sees
            // that the number is missing.
            let _ = stream.raw().synchronize();
        }
    }

    /// Returns whether the last signal has run, or will never run.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let signalled = self.signalled.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((stream, _)) = &signalled.last else { return true };
        // The number alone is not enough, because the other process may overwrite it with an earlier number. An idle
        // stream also shows that the signal has run.
        !self.page.runtime.is_own_process()
            || reaches(self.page.number(), signalled.number)
            || stream.is_capturing()
            || is_idle(stream)
    }
}

/// A semaphore that another process signals. Clones share the semaphore.
#[derive(Clone, Debug)]
pub struct PeerSemaphore(Arc<Peer>);

#[derive(Debug)]
struct Peer {
    page: SemaphorePage,
    state: Mutex<WaitState>,
}

#[derive(Debug, Default)]
struct WaitState {
    /// The last number that the semaphore's stream waits for.
    awaited: u32,
    /// A number that the stream has passed, with all numbers before it.
    passed: u32,
    /// Number of waits that are being enqueued.
    enqueueing: usize,
    /// The number at the time when the other process was found to be gone.
    ended_at: Option<u32>,
}

impl PeerSemaphore {
    /// Imports a semaphore that another process exported.
    ///
    /// # Errors
    /// - [`ErrorKind::NoSuchDevice`] or [`ErrorKind::CudaUnavailable`] if there is no such device.
    /// - [`ErrorKind::Driver`] if the handle is not memory of a semaphore or the driver cannot register it.
    pub fn import(runtime: &Runtime, device: usize, shared: SharedSemaphore) -> Result<Self> {
        let SharedSemaphore { handle, bytes, .. } = shared;
        let driver = runtime.device(device)?.driver();
        let words = SharedWords::import(driver, device, bytes, handle);
        let words = words.map_err(|e| Error::driver("recv", e))?;
        let page = SemaphorePage::new(runtime, device, words);
        Ok(Self(Arc::new(Peer { page, state: Mutex::default() })))
    }

    fn state(&self) -> MutexGuard<'_, WaitState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the number has arrived. After [`PeerSemaphore::end`]: whether it had arrived
    /// by then.
    #[must_use]
    pub fn is_there(&self, number: u32) -> bool {
        reaches(self.state().ended_at.unwrap_or_else(|| self.0.page.number()), number)
    }

    /// Marks the other process as gone and releases the waiting stream. Work that is not signalled
    /// by then counts as never completed, and reading its results fails with
    /// [`ErrorKind::PeerGone`].
    ///
    /// The other process's GPU may still write an earlier number, which lowers the number again.
    /// Therefore repeat the call until it returns `false`, when no wait is left.
    pub fn end(&self) -> bool {
        let mut state = self.state();
        let number = self.0.page.number();
        state.ended_at.get_or_insert(number);
        if self.has_passed(&state) {
            return false;
        }
        if let Some(words) = &self.0.page.words {
            let _ = words.store(WORD, state.awaited); // cannot fail: the word exists
        }
        true
    }

    /// Returns whether the semaphore's stream has no pending wait.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.has_passed(&self.state())
    }

    fn has_passed(&self, state: &WaitState) -> bool {
        state.enqueueing == 0 && self.0.page.own.get().is_none_or(is_idle)
    }

    /// Records a wait for a number that is about to be enqueued. Call [`PeerSemaphore::end_wait`]
    /// afterwards.
    ///
    /// [`PeerSemaphore::end`] releases the stream by storing the last awaited number. That releases
    /// all waits only if their numbers lie within half of the number range. Rejects a number
    /// outside this half.
    ///
    /// Returns `false` if there is nothing to wait for, because the other process signalled the
    /// number before it ended.
    #[track_caller]
    fn begin_wait(&self, awaited: &AwaitedSignal) -> Result<bool> {
        let mut state = self.state();
        let number = awaited.number;
        if let Some(ended_at) = state.ended_at {
            return if reaches(ended_at, number) { Ok(false) } else { Err(awaited.gone()) };
        }
        if !reaches(state.awaited, number) {
            if !reaches(number, state.passed) && self.has_passed(&state) {
                state.passed = state.awaited;
            }
            if !reaches(number, state.passed) {
                let reason = format!(
                    "the other process named operation {number}, but operation {} is the last complete one; \
                     the difference can be at most 2^31 - 1",
                    state.passed
                );
                return Err(Error::invalid(awaited.op, reason));
            }
            state.awaited = number;
        }
        state.enqueueing += 1;
        Ok(true)
    }

    fn end_wait(&self) {
        self.state().enqueueing -= 1;
    }

    /// Orders all work on the storage enqueued in this process from now on after the work that the
    /// other process did before it signalled `number`. The semaphore's own stream waits for the
    /// number, and other streams wait for that stream when they use the storage. If streams cannot
    /// wait, the host waits until `deadline`.
    ///
    /// Host reads of the storage, and of data computed from it, wait for the number for at most
    /// `limit`. They fail with [`ErrorKind::PeerGone`] if the number never arrives.
    ///
    /// # Errors
    /// - [`ErrorKind::PeerGone`] if the other process is gone and has not signalled `number`.
    /// - [`ErrorKind::TimedOut`] if the host waits and `deadline` passes.
    /// - [`ErrorKind::IndexCheck`], [`ErrorKind::Collective`] or [`ErrorKind::PeerGone`] if the storage
    ///   depends on work that is known to have failed.
    /// - [`ErrorKind::InvalidArgument`] if `number` is too far above the numbers that have arrived.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    pub fn wait(
        &self,
        (storage, stream): (&Storage, &Stream),
        number: u32,
        (deadline, limit): (Option<Instant>, Option<Duration>),
        op: &'static str,
        location: &'static Location<'static>,
    ) -> Result<()> {
        let page = &self.0.page;
        let runtime = &page.runtime;
        let awaited = AwaitedSignal { semaphore: self.clone(), number, limit, op, location };
        if awaited.is_there() {
            return Ok(());
        }
        storage.mark_awaited(awaited.clone());
        // With blocking launches, the host would wait for the stream's wait, without a time limit.
        let streams_wait =
            page.serves(storage) && orders(runtime, stream) && !runtime.launch_blocking();
        let Some(words) = page.words.as_ref().filter(|_| streams_wait) else {
            return awaited.wait_on_host(deadline);
        };
        let own = page.stream()?;
        page.note(own);
        if !self.begin_wait(&awaited).map_err(|e| e.at(location))? {
            return Ok(());
        }
        // Record an event before the wait, so that a use of a tensor that has already arrived does not also wait for
        // this number.
        let _ = own.op_event(own.last_op());
        let enqueued = enqueue(own, all_of(storage), site(op, location), |_| {
            // SAFETY: the page has recorded the stream, and its drop retires the words until the
            // stream has executed the wait.
            unsafe { words.wait_on(own.raw(), WORD, number) }?;
            own.note_launch(site(op, location), std::iter::empty());
            Ok(())
        });
        self.end_wait();
        match enqueued {
            Err(e) if unsupported(&e) => awaited.wait_on_host(deadline),
            enqueued => enqueued.map(drop),
        }
    }
}
