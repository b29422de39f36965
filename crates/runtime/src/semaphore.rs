//! Order between streams of this process and of others, by numbers in memory that both have.
//!
//! As with CUDA's external semaphores of the timeline kind: a stream signals, behind its work, a number
//! greater than those before; streams of another process wait until the number is there. An event for
//! other processes would do the same, but nothing says what becomes of a wait for it when the process
//! that recorded it is killed. Here the waiting process itself lets its streams go on once it sees that
//! the other is gone; the number that was there by then says what was done, and the rest is refused.

mod awaited;

use std::panic::Location;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use warpline_cuda_sys_safe::owned::SharedWords;
use warpline_cuda_sys_safe::{Access, CudaCode, DriverError, OsHandle};
use warpline_stream::Stream;
use warpline_sync::{Mutex, MutexGuard};

use crate::launch::enqueue;
use crate::race::Touch;
use crate::runtime::{Unused, new_memory_id};
use crate::storage::Site;
use crate::{CudaDevice, Error, Result, Runtime, Storage, SyncPolicy};
pub(crate) use awaited::Awaited;

/// Which of a semaphore's words has the number.
const WORD: usize = 0;

/// How often the host looks while it waits for a number.
const SLICE: Duration = Duration::from_micros(100);

/// What another process makes a [`PeerSemaphore`] of.
#[derive(Debug)]
pub struct SharedSemaphore {
    /// Carries the memory.
    pub handle: OsHandle,
    /// The memory's size.
    pub bytes: usize,
    /// The UUID of the device whose streams signal it.
    pub device: [u8; 16],
}

/// The memory, which streams use that may not be done.
#[derive(Debug)]
struct Page {
    words: Option<SharedWords>,
    runtime: Runtime,
    device: usize,
    streams: Mutex<Vec<Stream>>,
}

impl Page {
    fn new(runtime: &Runtime, device: usize, words: SharedWords) -> Self {
        Self { words: Some(words), runtime: runtime.clone(), device, streams: Mutex::default() }
    }

    /// Whether work of this storage can be ordered by it.
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

    fn synchronize(&self) {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for stream in streams {
            // Should this fail, the device is lost or captures.
            let _ = stream.raw().synchronize();
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let Some(words) = self.words.take() else { return };
        if !self.runtime.is_own_process() {
            std::mem::forget(words);
            return;
        }
        let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
        let streams = std::mem::take(streams);
        self.runtime.retire_shared(new_memory_id(), Unused::Words(words), streams.into_iter());
    }
}

/// Whether number `a` is there once `b` is: numbers go round.
fn reaches(b: u32, a: u32) -> bool {
    b.wrapping_sub(a) as i32 >= 0
}

/// Whether streams of this runtime are to wait for more than the program says.
fn orders(runtime: &Runtime, stream: &Stream) -> bool {
    runtime.sync_policy() == SyncPolicy::Auto && !runtime.detects_races() && !stream.is_capturing()
}

/// Whether this driver's streams cannot signal and wait, or not by this address of host memory.
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

/// All of a storage: what comes before comes before, and what comes later, later.
fn all_of(storage: &Storage) -> impl Iterator<Item = Touch<'_>> {
    std::iter::once(Touch::range(storage, 0, storage.bytes(), Access::ReadWrite))
}

/// A semaphore that this process signals. Dropped, it waits until what was signalled is there.
#[derive(Debug)]
pub struct OwnSemaphore {
    page: Page,
    signalled: Mutex<Signalled>,
}

#[derive(Debug)]
struct Signalled {
    number: u32,
    /// The stream of the last signal, and its number there.
    last: Option<(Stream, u64)>,
}

impl OwnSemaphore {
    /// A new one for streams of a device.
    ///
    /// # Errors
    /// That the system cannot share memory; the driver's own.
    pub fn new(runtime: &Runtime, device: usize) -> Result<Self> {
        let driver = runtime.device(device)?.driver();
        let words = SharedWords::new(driver, device).map_err(|e| Error::driver("send", e))?;
        let signalled = Mutex::new(Signalled { number: 0, last: None });
        Ok(Self { page: Page::new(runtime, device, words), signalled })
    }

    /// Whether it is for work on this storage.
    #[must_use]
    pub fn serves(&self, storage: &Storage) -> bool {
        self.page.serves(storage)
    }

    /// What another process gets at it with.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn export(&self) -> Result<SharedSemaphore> {
        const OP: &str = "send";
        let device = self.page.runtime.device(self.page.device)?.properties().uuid;
        let Some(words) = &self.page.words else {
            return Err(Error::invalid(OP, "it is gone".to_owned()));
        };
        let handle = words.export().map_err(|e| Error::driver(OP, e))?;
        Ok(SharedSemaphore { handle, bytes: words.bytes(), device })
    }

    /// Has `stream` signal once all work on the storage that was enqueued here is done. Returns the
    /// number, or none where only the host can wait for that work: another one than `stream` may do
    /// it under [`SyncPolicy::Manual`], or what it depends on is not known, but for what the process
    /// that waits has signalled itself by `peers`.
    ///
    /// # Errors
    /// What that work is known to have failed with; the driver's own.
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
        if let Some((last, op)) = &signalled.last {
            stream.wait_for(last, *op)?; // numbers come in order
        }
        self.page.note(stream);
        let number = signalled.number.wrapping_add(1);
        let enqueued = enqueue(stream, all_of(storage), site(op, location), |_| {
            // SAFETY: the page knows of the stream, and goes once that is done with it.
            unsafe { words.write_on(stream.raw(), WORD, number) }?;
            stream.note_launch(op, location, std::iter::empty());
            Ok(())
        });
        let enqueued = match enqueued {
            Err(e) if unsupported(&e) => {
                return Ok(None);
            }
            enqueued => enqueued?,
        };
        *signalled = Signalled { number, last: Some((stream.clone(), enqueued)) };
        drop(signalled);
        // Asked now: what comes later is no part of it.
        Ok((!storage.depends_on_others(peers)).then_some(number))
    }
}

impl Drop for OwnSemaphore {
    fn drop(&mut self) {
        let signalled = self.signalled.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((stream, _)) = signalled.last.take()
            && self.page.runtime.is_own_process()
            && !reaches(self.page.number(), signalled.number)
        {
            // Should this fail, the device is lost or captures, and the other process finds out.
            let _ = stream.raw().synchronize();
        }
    }
}

/// A semaphore that another process signals. Clones are the same.
#[derive(Clone, Debug)]
pub struct PeerSemaphore(Arc<Peer>);

#[derive(Debug)]
struct Peer {
    page: Page,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last number that streams wait for.
    awaited: u32,
    /// The number that was there when the other process was seen to be gone.
    ended_at: Option<u32>,
}

impl PeerSemaphore {
    /// What another process exported.
    ///
    /// # Errors
    /// That it is no such memory; the driver's own.
    pub fn import(runtime: &Runtime, device: usize, shared: SharedSemaphore) -> Result<Self> {
        let SharedSemaphore { handle, bytes, .. } = shared;
        let driver = runtime.device(device)?.driver();
        let words = SharedWords::import(driver, device, bytes, handle);
        let words = words.map_err(|e| Error::driver("recv", e))?;
        let page = Page::new(runtime, device, words);
        Ok(Self(Arc::new(Peer { page, state: Mutex::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the number is there. After [`PeerSemaphore::end`], whether it was then.
    #[must_use]
    pub fn is_there(&self, number: u32) -> bool {
        reaches(self.state().ended_at.unwrap_or_else(|| self.0.page.number()), number)
    }

    /// Lets go on what waits for a process that is gone. What it has not done by now counts as never
    /// done, and [`Error::PeerGone`] is what reading it fails with.
    ///
    /// Its GPU may still come to a signal before those that are waited for, which makes the number
    /// smaller again. So where this returns true, it has to be called again and again, until
    /// [`PeerSemaphore::settle`] has returned.
    pub fn end(&self) -> bool {
        let mut state = self.state();
        let number = self.0.page.number();
        let ended_at = *state.ended_at.get_or_insert(number);
        if let Some(words) = &self.0.page.words
            && !reaches(number, state.awaited)
        {
            let _ = words.store(WORD, state.awaited); // there is such a word
        }
        !reaches(ended_at, state.awaited)
    }

    /// Has what `stream` does from now on with the storage come after what the other process did there
    /// before it signalled the number. Reads on the host, and what is computed from it, fail with
    /// [`Error::PeerGone`] should that never be done. Where streams cannot wait, the host does, for
    /// as long as `limit` says.
    ///
    /// # Errors
    /// [`Error::PeerGone`]; [`Error::InvalidArgument`] after the limit; the driver's own.
    pub fn wait(
        &self,
        (storage, stream): (&Storage, &Stream),
        number: u32,
        limit: Option<Duration>,
        op: &'static str,
        location: &'static Location<'static>,
    ) -> Result<()> {
        let runtime = &self.0.page.runtime;
        let awaited = Awaited { semaphore: self.clone(), number, op, location };
        if awaited.is_there() {
            return Ok(());
        }
        storage.mark_awaited(awaited.clone());
        let streams_wait = self.0.page.serves(storage) && orders(runtime, stream);
        let Some(words) = self.0.page.words.as_ref().filter(|_| streams_wait) else {
            return awaited.wait_on_host(limit);
        };
        {
            let mut state = self.state();
            if state.ended_at.is_some() {
                return Err(awaited.gone());
            }
            if !reaches(state.awaited, number) {
                state.awaited = number;
            }
        }
        self.0.page.note(stream);
        let enqueued = enqueue(stream, all_of(storage), site(op, location), |_| {
            // SAFETY: the page knows of the stream, and goes once that is done with it.
            unsafe { words.wait_on(stream.raw(), WORD, number) }?;
            stream.note_launch(op, location, std::iter::empty());
            Ok(())
        });
        match enqueued {
            Err(e) if unsupported(&e) => awaited.wait_on_host(limit),
            enqueued => enqueued.map(drop),
        }
    }

    /// Blocks the host until all numbers that streams wait for are there, or it has ended and the
    /// streams are past them all the same.
    pub fn settle(&self) {
        let page = &self.0.page;
        loop {
            let (awaited, ended_at) = {
                let state = self.state();
                (state.awaited, state.ended_at)
            };
            match ended_at {
                None if !reaches(page.number(), awaited) => std::thread::sleep(SLICE),
                Some(ended_at) if !reaches(ended_at, awaited) => return page.synchronize(),
                _ => return,
            }
        }
    }
}
