//! The semaphores of a channel, by which streams of both sides wait for each other.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warpline_runtime::{
    CudaDevice, Error, OwnSemaphore, PeerSemaphore, Runtime, SharedSemaphore, Storage,
};

use super::message::nonsense;
use crate::Result;

/// What this process signals: a semaphore for each device.
#[derive(Debug, Default)]
pub(super) struct Own {
    semaphores: Vec<OwnSemaphore>,
    /// The system has no memory for them.
    none: bool,
}

impl Own {
    /// The one for work on a storage, announced to the other process, and its number. None for memory
    /// of the host, and where the system has none for semaphores.
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
}

/// What the other process signals.
#[derive(Debug, Default)]
pub(super) struct Peers {
    state: Arc<Mutex<State>>,
    watch: Mutex<Option<Watch>>,
}

#[derive(Debug, Default)]
struct State {
    /// By their numbers.
    semaphores: Vec<Known>,
    /// The other process is gone.
    ended: bool,
}

#[derive(Debug)]
enum Known {
    /// Not needed so far.
    Announced(SharedSemaphore),
    Open([u8; 16], PeerSemaphore),
    /// It could not be opened.
    Nothing,
}

/// More than there are devices and runtimes.
const MOST: usize = 1024;

/// A thread that lets this process's streams go on once the other process is gone.
#[derive(Debug)]
struct Watch {
    /// Where it runs: it does not in a forked child.
    process: u32,
    thread: JoinHandle<()>,
    /// Closed for the thread to end.
    end: UnixStream,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn open(&self) -> impl Iterator<Item = &PeerSemaphore> {
        self.semaphores.iter().filter_map(|known| match known {
            Known::Open(_, semaphore) => Some(semaphore),
            _ => None,
        })
    }
}

impl Peers {
    /// They come in the order of their numbers; one that could not be sent comes again.
    #[track_caller]
    pub(super) fn announced(&self, index: u32, semaphore: SharedSemaphore) -> Result<()> {
        let mut state = locked(&self.state);
        if index as usize != state.semaphores.len() || state.semaphores.len() == MOST {
            return Err(nonsense("a semaphore came out of order"));
        }
        state.semaphores.push(Known::Announced(semaphore));
        Ok(())
    }

    pub(super) fn all(&self) -> Vec<PeerSemaphore> {
        locked(&self.state).open().cloned().collect()
    }

    /// The one of this number, which streams of this device are to wait for.
    #[track_caller]
    pub(super) fn of(
        &self,
        runtime: &Runtime,
        device: &CudaDevice,
        index: u32,
        socket: &UnixStream,
    ) -> Result<PeerSemaphore> {
        const NEVER: &str = "it waits for a semaphore that never came";
        let _one_at_a_time = self.watch(socket)?;
        let uuid = device.properties().uuid;
        let announced = {
            let mut state = locked(&self.state);
            let Some(known) = state.semaphores.get_mut(index as usize) else {
                return Err(nonsense(NEVER));
            };
            match std::mem::replace(known, Known::Nothing) {
                Known::Announced(shared) if shared.device == uuid => shared,
                other => {
                    *known = other;
                    return match known {
                        Known::Open(of, semaphore) if *of == uuid => Ok(semaphore.clone()),
                        _ => Err(nonsense(NEVER)),
                    };
                }
            }
        };
        // The driver may wait for streams here, which go on by the thread that needs the lock.
        let semaphore = PeerSemaphore::import(runtime, device.index(), announced)?;
        let mut state = locked(&self.state);
        if state.ended {
            semaphore.end();
        }
        if let Some(known) = state.semaphores.get_mut(index as usize) {
            *known = Known::Open(uuid, semaphore.clone());
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
            Error::InvalidArgument { op: "recv", reason, location }
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
}

/// How often streams are let go on that a GPU of a process that is gone may still stop.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

fn watch_for_end(state: &Mutex<State>, socket: OwnedFd, ended: UnixStream) {
    let mut is_gone = false;
    loop {
        let mut fds =
            [PollFd::new(&ended, PollFlags::RDHUP), PollFd::new(&socket, PollFlags::RDHUP)];
        let polled = match is_gone {
            false => poll(&mut fds, None),
            true => poll(&mut fds[..1], Some(&AGAIN)),
        };
        if matches!(polled, Err(e) if e == rustix::io::Errno::INTR) {
            continue;
        }
        let [over, gone] = fds.map(|fd| !fd.revents().is_empty());
        is_gone |= gone || polled.is_err();
        if is_gone {
            let mut state = locked(state);
            state.ended = true;
            let again = state.open().filter(|semaphore| semaphore.end()).count();
            if again == 0 {
                return;
            }
        }
        if over {
            return;
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let watch = self.watch.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Watch { process, thread, end }) = watch else { return }; // no stream waits
        if process != std::process::id() {
            return; // the parent does it
        }
        // The thread lets them go on if need be.
        self.all().iter().for_each(PeerSemaphore::settle);
        drop(end);
        let _ = thread.join(); // it does not panic
    }
}
