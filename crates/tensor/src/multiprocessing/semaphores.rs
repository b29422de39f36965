//! The semaphores of a channel, by which streams of both processes wait for each other
//! (`semaphore/` of `warpline-runtime`).
//!
//! A host read waits for the numbers that its bytes depend on, within the channel's timeout, before
//! it waits for a stream. One deadline bounds each call (`socket.rs`).
//!
//! # A peer that is gone
//!
//! A thread of the channel watches the socket. When the peer is gone, the thread notes the number
//! that was there, and writes the number that this process's streams wait for, so that they
//! continue. Everything that was not signalled by then is `PeerGone`. The mark on a shared storage
//! itself survives overwriting, because kernels of a dying process may still run.
//!
//! # Dropping a channel
//!
//! A dropped channel waits, within its timeout, for the numbers that it has signalled and for those
//! that are signalled to it. Then the thread releases its streams, as if the peer were gone.
//!
//! # When the host waits
//!
//! The host waits where streams cannot wait for each other: for host memory; under
//! `SyncPolicy::Manual`; for a captured stream of the receiver; on a driver without waits for
//! words; and before sending a tensor that depends on a check, a collective or a third process,
//! because the receiver could not be told of its failure.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use warpline_runtime::{
    CudaDevice, Error, OwnSemaphore, PeerSemaphore, Runtime, SharedSemaphore, Storage,
};

use super::message::{Signal, nonsense};
use super::socket::Deadline;
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;

/// The semaphores that this process signals, one per device.
#[derive(Debug, Default)]
pub(super) struct Own {
    semaphores: Vec<OwnSemaphore>,
    /// Whether the system has no memory for semaphores.
    none: bool,
}

impl Own {
    /// Returns the semaphore for work on a storage, and its index; announces a new semaphore to the other
    /// process. `None` for host memory, and if the system has no memory for semaphores.
    #[track_caller]
    pub(super) fn of(
        &mut self,
        runtime: &Runtime,
        device: usize,
        storage: &Storage,
        announce: impl FnOnce(u32, &OwnSemaphore) -> Result<()>,
    ) -> Result<Option<(u32, &OwnSemaphore)>> {
        if self.none || storage.cuda_device().is_none() {
            return Ok(None);
        }
        let known = self.semaphores.iter().position(|semaphore| semaphore.serves(storage));
        let at = known.unwrap_or(self.semaphores.len());
        if known.is_none() {
            let Ok(semaphore) = OwnSemaphore::new(runtime, device) else {
                self.none = true;
                return Ok(None);
            };
            announce(at as u32, &semaphore)?;
            self.semaphores.push(semaphore);
        }
        Ok(self.semaphores.get(at).map(|semaphore| (at as u32, semaphore)))
    }

    /// Waits until all signalled numbers have been reached, or the deadline has passed.
    pub(super) fn settle(&self, deadline: Deadline) {
        if deadline.instant().is_none() {
            return self.semaphores.iter().for_each(OwnSemaphore::settle);
        }
        wait_until(deadline, || self.semaphores.iter().all(OwnSemaphore::is_settled));
    }
}

/// The semaphores that the other process signals.
#[derive(Debug, Default)]
pub(super) struct Peers {
    state: Arc<Mutex<State>>,
    watch: Mutex<Option<Watch>>,
}

#[derive(Debug, Default)]
struct State {
    /// The semaphores, by index.
    semaphores: Vec<Announced>,
    /// Whether the other process is gone.
    ended: bool,
}

#[derive(Debug)]
struct Announced {
    /// UUID of the semaphore's device.
    device: [u8; 16],
    /// The last number that a message has named.
    last: u32,
    semaphore: Known,
}

#[derive(Debug)]
enum Known {
    /// Not used so far.
    Unopened(SharedSemaphore),
    Open(PeerSemaphore),
    /// Cannot be opened, or belongs to a device that is not visible here.
    Nothing,
}

/// Maximum number of semaphores that a peer may announce for one device: one for each of its runtimes. Each
/// keeps a descriptor open, and later a page of memory and a stream.
const MOST_OF_DEVICE: usize = 4;

/// Maximum number of semaphores that a peer may announce for all devices, visible or not.
const MOST: usize = 1024;

/// A thread that lets this process's streams continue once the other process is gone.
#[derive(Debug)]
struct Watch {
    /// The process in which the thread runs. A forked child does not have the thread.
    process: u32,
    thread: JoinHandle<()>,
    /// A socket that is closed to make the thread count the other process as gone.
    end: UnixStream,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Interval at which a waiting thread polls.
const SLICE: Duration = Duration::from_micros(100);

fn wait_until(deadline: Deadline, is_over: impl Fn() -> bool) -> bool {
    loop {
        if is_over() {
            return true;
        }
        if deadline.has_passed() {
            return false;
        }
        std::thread::sleep(SLICE);
    }
}

impl State {
    fn open(&self) -> impl Iterator<Item = &PeerSemaphore> {
        self.semaphores.iter().filter_map(|announced| match &announced.semaphore {
            Known::Open(semaphore) => Some(semaphore),
            _ => None,
        })
    }
}

impl Peers {
    /// Adds an announced semaphore. Semaphores arrive in the order of their indices. One that could not be sent
    /// is sent again.
    #[track_caller]
    pub(super) fn announced(
        &self,
        runtime: &Runtime,
        index: u32,
        shared: SharedSemaphore,
    ) -> Result<()> {
        let device = shared.device;
        let mut visible = (0..runtime.device_count()).filter_map(|at| runtime.device(at).ok());
        let is_visible = visible.any(|visible| visible.properties().uuid == device);
        let mut state = locked(&self.state);
        let of_device = state.semaphores.iter().filter(|known| known.device == device).count();
        if of_device >= MOST_OF_DEVICE || state.semaphores.len() >= MOST {
            return Err(nonsense("it announces more semaphores than a process has"));
        }
        if index as usize != state.semaphores.len() {
            return Err(nonsense("a semaphore came out of order"));
        }
        let semaphore = if is_visible { Known::Unopened(shared) } else { Known::Nothing };
        state.semaphores.push(Announced { device, last: 0, semaphore });
        Ok(())
    }

    /// Notes the number that a message names. Each message of a semaphore names a greater number than the
    /// previous one; numbers wrap around.
    #[track_caller]
    pub(super) fn named(&self, signal: Signal) -> Result<()> {
        let mut state = locked(&self.state);
        // An index that was never announced is refused by `of`.
        let Some(known) = state.semaphores.get_mut(signal.semaphore as usize) else {
            return Ok(());
        };
        if signal.number.wrapping_sub(known.last) as i32 <= 0 {
            return Err(nonsense("it names a number that is not above the last one"));
        }
        known.last = signal.number;
        Ok(())
    }

    pub(super) fn all(&self) -> Vec<PeerSemaphore> {
        locked(&self.state).open().cloned().collect()
    }

    /// Returns the semaphore with this index, for streams of this device to wait for.
    #[track_caller]
    pub(super) fn of(
        &self,
        runtime: &Runtime,
        device: &CudaDevice,
        index: u32,
        socket: &UnixStream,
    ) -> Result<PeerSemaphore> {
        let _one_at_a_time = self.watch(socket)?;
        let uuid = device.properties().uuid;
        let shared = {
            let mut state = locked(&self.state);
            let known = state.semaphores.get_mut(index as usize);
            let Some(known) = known.filter(|known| known.device == uuid) else {
                return Err(nonsense(NEVER_CAME));
            };
            match std::mem::replace(&mut known.semaphore, Known::Nothing) {
                Known::Unopened(shared) => shared,
                Known::Open(semaphore) => {
                    known.semaphore = Known::Open(semaphore.clone());
                    return Ok(semaphore);
                }
                Known::Nothing => return Err(nonsense(NEVER_CAME)),
            }
        };
        // The driver may wait here for streams that the thread lets continue, and the thread needs the lock.
        let semaphore = PeerSemaphore::import(runtime, device.index(), shared)?;
        let mut state = locked(&self.state);
        if state.ended {
            semaphore.end();
        }
        if let Some(known) = state.semaphores.get_mut(index as usize) {
            known.semaphore = Known::Open(semaphore.clone());
        }
        Ok(semaphore)
    }

    /// Starts the thread, before any stream waits.
    #[track_caller]
    fn watch(&self, socket: &UnixStream) -> Result<MutexGuard<'_, Option<Watch>>> {
        let mut watch = locked(&self.watch);
        if watch.is_some() {
            return Ok(watch);
        }
        let location = Location::caller();
        let failed = |e: std::io::Error| {
            let reason = format!("nobody can watch the other process: {e}");
            Error::invalid("recv", reason).at(location)
        };
        let socket = socket.as_fd().try_clone_to_owned().map_err(failed)?;
        let (end, ended) = UnixStream::pair().map_err(failed)?;
        let state = Arc::clone(&self.state);
        let run = move || watch_for_end(&state, socket, ended);
        let thread = std::thread::Builder::new().name("warpline-peer".into()).spawn(run);
        let (process, thread) = (std::process::id(), thread.map_err(failed)?);
        *watch = Some(Watch { process, thread, end });
        Ok(watch)
    }

    /// Waits until no stream waits for the other process, or the deadline has passed. Then the other process
    /// counts as gone: work that it has not completed by now is [`ErrorKind::PeerGone`].
    pub(super) fn settle(&mut self, deadline: Deadline) {
        let watch = self.watch.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Watch { process, thread, end }) = watch else { return }; // no stream waits
        if process != std::process::id() {
            return; // the parent does it
        }
        let all = self.all();
        let settled = wait_until(deadline, || all.iter().all(PeerSemaphore::is_settled));
        drop(end);
        // Otherwise it goes on until each stream has passed its waits.
        if settled {
            let _ = thread.join(); // it does not panic
        }
    }
}

const NEVER_CAME: &str = "it waits for a semaphore that never came";

/// Interval at which streams are released again, because a GPU of a process that is gone may still stop them.
const AGAIN: Duration = Duration::from_millis(1);

/// Waits until the other process is gone or the channel is dropped. Then releases streams until no stream
/// waits.
fn watch_for_end(state: &Mutex<State>, socket: OwnedFd, dropped: UnixStream) {
    loop {
        let mut fds =
            [PollFd::new(&dropped, PollFlags::RDHUP), PollFd::new(&socket, PollFlags::RDHUP)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) | Ok(0) => {}
            _ => break,
        }
    }
    loop {
        let waiting = {
            let mut state = locked(state);
            state.ended = true;
            // Ends each semaphore, whatever the results of the others.
            state.open().filter(|semaphore| semaphore.end()).count()
        };
        if waiting == 0 {
            return;
        }
        std::thread::sleep(AGAIN);
    }
}
