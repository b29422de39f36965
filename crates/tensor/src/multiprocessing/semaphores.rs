//! The semaphores of a channel. Streams of the two processes wait for each other through semaphores
//! (`semaphore/` of `warpline-runtime`).
//!
//! A host read first waits, within the channel's timeout, for the semaphore values (*numbers*) on which its bytes
//! depend, and then for the stream. One deadline limits each call (`socket.rs`).
//!
//! # A peer that is gone
//!
//! A thread of the channel watches the socket. When the peer is gone, the thread records the number that each semaphore
//! has reached. It then itself writes the numbers for which this process's streams wait, so that these streams
//! continue. Work that the peer had not signalled by then fails with `PeerGone`. Overwriting a shared storage does not
//! clear this failure, because kernels of the dying process may still write to the storage.
//!
//! # Dropping a channel
//!
//! Dropping a channel waits, within the timeout, until the semaphores of both processes have reached every number that
//! they signal. Then the thread releases waiting streams, as if the peer were gone.
//!
//! # When the host waits
//!
//! The host waits where streams cannot wait for each other:
//!
//! - for host memory;
//! - under `SyncPolicy::Manual`;
//! - for a captured stream of the receiver, and in a receiver with blocking launches;
//! - on a driver whose streams cannot wait for a value in memory;
//! - before sending a tensor that depends on an unfinished index check or collective, or on work of a third process,
//!   because the receiver would not learn that this work failed.

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

use super::message::{Signal, invalid_message};
use super::socket::Deadline;
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;

/// Semaphores that this process signals, one per runtime and device.
#[derive(Debug, Default)]
pub(super) struct OwnSemaphores {
    semaphores: Vec<OwnSemaphore>,
    /// Whether creating a semaphore has failed.
    unsupported: bool,
}

impl OwnSemaphores {
    /// Returns the semaphore for work on a storage, and the semaphore's index. Creates the semaphore on first
    /// use and announces it to the other process. `None` for host memory, and if a semaphore cannot be
    /// created.
    #[track_caller]
    pub(super) fn get_or_announce(
        &mut self,
        runtime: &Runtime,
        device: usize,
        storage: &Storage,
        announce: impl FnOnce(u32, &OwnSemaphore) -> Result<()>,
    ) -> Result<Option<(u32, &OwnSemaphore)>> {
        if self.unsupported || storage.cuda_device().is_none() {
            return Ok(None);
        }
        let known = self.semaphores.iter().position(|semaphore| semaphore.serves(storage));
        let at = known.unwrap_or(self.semaphores.len());
        if known.is_none() {
            let Ok(semaphore) = OwnSemaphore::new(runtime, device) else {
                self.unsupported = true;
                return Ok(None);
            };
            announce(at as u32, &semaphore)?;
            self.semaphores.push(semaphore);
        }
        Ok(self.semaphores.get(at).map(|semaphore| (at as u32, semaphore)))
    }

    /// Waits until the semaphores have reached all signalled numbers, or the deadline has passed.
    pub(super) fn settle(&self, deadline: Deadline) {
        if deadline.instant().is_none() {
            return self.semaphores.iter().for_each(OwnSemaphore::settle);
        }
        wait_until(deadline, || self.semaphores.iter().all(OwnSemaphore::is_settled));
    }
}

/// Semaphores that the other process signals.
#[derive(Debug, Default)]
pub(super) struct PeerSemaphores {
    state: Arc<Mutex<PeerState>>,
    watch: Mutex<Option<PeerWatcher>>,
}

#[derive(Debug, Default)]
struct PeerState {
    /// Announced semaphores, by index.
    semaphores: Vec<AnnouncedSemaphore>,
    /// Whether the other process is gone.
    ended: bool,
}

#[derive(Debug)]
struct AnnouncedSemaphore {
    /// UUID of the semaphore's device.
    device: [u8; 16],
    /// Number in the last message that named this semaphore.
    last: u32,
    import: ImportState,
}

#[derive(Debug)]
enum ImportState {
    /// Imported on first use.
    NotImported(SharedSemaphore),
    Imported(PeerSemaphore),
    /// The import failed or is in progress, or the semaphore's device is not visible here.
    Unavailable,
}

/// Maximum number of semaphores that a peer may announce for one device. A peer announces one per runtime. An
/// announced semaphore costs a descriptor, and an imported semaphore a page of memory and a stream.
const MAX_PER_DEVICE: usize = 4;

/// Maximum number of semaphores that a peer may announce for all devices, including devices that are not
/// visible here.
const MAX_SEMAPHORES: usize = 1024;

/// A thread that releases this process's streams once the other process is gone.
#[derive(Debug)]
struct PeerWatcher {
    /// Identifier of the process in which the thread runs. A forked child does not have the thread.
    process: u32,
    thread: JoinHandle<()>,
    /// Socket whose closing makes the thread treat the other process as gone.
    end: UnixStream,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Interval between polls of a waiting thread.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Polls until `is_over` returns `true`, or the deadline has passed. Returns whether `is_over` returned `true`.
fn wait_until(deadline: Deadline, is_over: impl Fn() -> bool) -> bool {
    loop {
        if is_over() {
            return true;
        }
        if deadline.has_passed() {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

impl PeerState {
    fn imported(&self) -> impl Iterator<Item = &PeerSemaphore> {
        self.semaphores.iter().filter_map(|announced| match &announced.import {
            ImportState::Imported(semaphore) => Some(semaphore),
            _ => None,
        })
    }
}

impl PeerSemaphores {
    /// Adds an announced semaphore. Semaphores arrive in the order of their indices. After a failed
    /// announcement, the sender announces a semaphore with the same index again.
    #[track_caller]
    pub(super) fn add_announced(
        &self,
        runtime: &Runtime,
        index: u32,
        shared: SharedSemaphore,
    ) -> Result<()> {
        let device = shared.device;
        let mut visible = (0..runtime.device_count()).filter_map(|at| runtime.device(at).ok());
        let is_visible = visible.any(|visible| visible.properties().uuid == device);
        let mut state = locked(&self.state);
        let of_device =
            state.semaphores.iter().filter(|announced| announced.device == device).count();
        if of_device >= MAX_PER_DEVICE || state.semaphores.len() >= MAX_SEMAPHORES {
            return Err(invalid_message("it announces more semaphores than a process has"));
        }
        if index as usize != state.semaphores.len() {
            return Err(invalid_message("a semaphore came out of order"));
        }
        let import =
            if is_visible { ImportState::NotImported(shared) } else { ImportState::Unavailable };
        state.semaphores.push(AnnouncedSemaphore { device, last: 0, import });
        Ok(())
    }

    /// Checks and records the number in a message. Each message that names a semaphore has a greater number
    /// than the previous such message, modulo 2³².
    #[track_caller]
    pub(super) fn check_number(&self, signal: Signal) -> Result<()> {
        let mut state = locked(&self.state);
        // `import` refuses an index that was never announced.
        let Some(announced) = state.semaphores.get_mut(signal.semaphore as usize) else {
            return Ok(());
        };
        if signal.number.wrapping_sub(announced.last) as i32 <= 0 {
            return Err(invalid_message("its number for the semaphore is not above the last one"));
        }
        announced.last = signal.number;
        Ok(())
    }

    pub(super) fn all(&self) -> Vec<PeerSemaphore> {
        locked(&self.state).imported().cloned().collect()
    }

    /// Returns the semaphore with this index, for waits of streams of `device`. Imports the semaphore on
    /// first use.
    #[track_caller]
    pub(super) fn import(
        &self,
        runtime: &Runtime,
        device: &CudaDevice,
        index: u32,
        socket: &UnixStream,
    ) -> Result<PeerSemaphore> {
        let _one_import_at_a_time = self.start_watcher(socket)?;
        let uuid = device.properties().uuid;
        let shared = {
            let mut state = locked(&self.state);
            let announced = state.semaphores.get_mut(index as usize);
            let Some(announced) = announced.filter(|announced| announced.device == uuid) else {
                return Err(invalid_message(NOT_ANNOUNCED));
            };
            match std::mem::replace(&mut announced.import, ImportState::Unavailable) {
                ImportState::NotImported(shared) => shared,
                ImportState::Imported(semaphore) => {
                    announced.import = ImportState::Imported(semaphore.clone());
                    return Ok(semaphore);
                }
                ImportState::Unavailable => return Err(invalid_message(NOT_ANNOUNCED)),
            }
        };
        // Import without holding the lock: the driver may wait here for streams that the watching thread must release,
        // and that thread needs the lock.
        let semaphore = PeerSemaphore::import(runtime, device.index(), shared)?;
        let mut state = locked(&self.state);
        if state.ended {
            semaphore.end();
        }
        if let Some(announced) = state.semaphores.get_mut(index as usize) {
            announced.import = ImportState::Imported(semaphore.clone());
        }
        Ok(semaphore)
    }

    /// Starts the watching thread if it does not run. Called before any stream waits.
    #[track_caller]
    fn start_watcher(&self, socket: &UnixStream) -> Result<MutexGuard<'_, Option<PeerWatcher>>> {
        let mut watch = locked(&self.watch);
        if watch.is_some() {
            return Ok(watch);
        }
        let location = Location::caller();
        let failed = |e: std::io::Error| {
            let reason = format!("the end of the other process cannot be watched: {e}");
            Error::invalid("recv", reason).at(location)
        };
        let socket = socket.as_fd().try_clone_to_owned().map_err(failed)?;
        let (end, ended) = UnixStream::pair().map_err(failed)?;
        let state = Arc::clone(&self.state);
        let run = move || watch_peer(&state, socket, ended);
        let thread = std::thread::Builder::new().name("warpline-peer".into()).spawn(run);
        let (process, thread) = (std::process::id(), thread.map_err(failed)?);
        *watch = Some(PeerWatcher { process, thread, end });
        Ok(watch)
    }

    /// Waits until no stream waits for the other process, or the deadline has passed. Then treats the other
    /// process as gone: work that it has not completed by then fails with [`ErrorKind::PeerGone`].
    pub(super) fn settle(&mut self, deadline: Deadline) {
        let watch = self.watch.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(PeerWatcher { process, thread, end }) = watch else { return };
        if process != std::process::id() {
            return; // the thread runs in the parent process
        }
        let all = self.all();
        let settled = wait_until(deadline, || all.iter().all(PeerSemaphore::is_settled));
        drop(end);
        // If some streams still wait, or the driver no longer tells whether they do, do not join the thread: it continues
        // until it has released all streams.
        if settled && wait_until(deadline, || thread.is_finished()) {
            let _ = thread.join(); // the thread does not panic
        }
    }
}

const NOT_ANNOUNCED: &str = "it waits for a semaphore that never came";

/// Interval between releases of streams. A GPU may still write an earlier number for the process that is gone, so one
/// release may not be enough.
const RELEASE_INTERVAL: Duration = Duration::from_millis(1);

/// Waits until the other process is gone or the channel is dropped. Then releases streams until none waits.
fn watch_peer(state: &Mutex<PeerState>, socket: OwnedFd, dropped: UnixStream) {
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
            // `count`, because `any` would stop before it has ended every semaphore.
            state.imported().filter(|semaphore| semaphore.end()).count()
        };
        if waiting == 0 {
            return;
        }
        std::thread::sleep(RELEASE_INTERVAL);
    }
}
