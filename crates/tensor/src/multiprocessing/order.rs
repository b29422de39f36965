//! The semaphores of a channel, by which streams of both sides wait for each other.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
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
    thread: Option<JoinHandle<()>>,
    /// Closed for the thread to end.
    end: Option<UnixStream>,
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
    pub(super) fn of(
        &self,
        runtime: &Runtime,
        device: &CudaDevice,
        index: u32,
        socket: &UnixStream,
    ) -> Result<PeerSemaphore> {
        self.watch(socket)?;
        let uuid = device.properties().uuid;
        let mut state = locked(&self.state);
        let ended = state.ended;
        let never = || nonsense("it waits for a semaphore that never came");
        let known = state.semaphores.get_mut(index as usize).ok_or_else(never)?;
        if matches!(known, Known::Announced(shared) if shared.device == uuid)
            && let Known::Announced(shared) = std::mem::replace(known, Known::Nothing)
        {
            let semaphore = PeerSemaphore::import(runtime, device.index(), shared)?;
            if ended {
                semaphore.end();
            }
            *known = Known::Open(uuid, semaphore);
        }
        match known {
            Known::Open(of, semaphore) if *of == uuid => Ok(semaphore.clone()),
            _ => Err(never()),
        }
    }

    /// Starts the thread, before any stream waits.
    fn watch(&self, socket: &UnixStream) -> Result<()> {
        let mut watch = locked(&self.watch);
        if watch.is_some() {
            return Ok(());
        }
        let failed = |e: std::io::Error| {
            Error::invalid("recv", format!("nobody can watch the other process: {e}"))
        };
        let socket = socket.as_fd().try_clone_to_owned().map_err(failed)?;
        let (end, ended) = UnixStream::pair().map_err(failed)?;
        let state = Arc::clone(&self.state);
        let run = move || watch_for_end(&state, socket, ended);
        let thread = std::thread::Builder::new().name("warpline-peer".into()).spawn(run);
        *watch = Some(Watch { thread: Some(thread.map_err(failed)?), end: Some(end) });
        Ok(())
    }
}

fn watch_for_end(state: &Mutex<State>, socket: OwnedFd, ended: UnixStream) {
    loop {
        let mut fds =
            [PollFd::new(&socket, PollFlags::RDHUP), PollFd::new(&ended, PollFlags::RDHUP)];
        let polled = poll(&mut fds, None);
        if matches!(polled, Err(e) if e == rustix::io::Errno::INTR) {
            continue;
        }
        let [gone, over] = fds.map(|fd| !fd.revents().is_empty());
        if gone || polled.is_err() {
            let mut state = locked(state);
            state.ended = true;
            state.open().for_each(PeerSemaphore::end);
            return;
        }
        if over {
            return;
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // The thread lets them go on if need be.
        self.all().iter().for_each(PeerSemaphore::settle);
        let watch = self.watch.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Watch { thread: Some(thread), end }) = watch.take() {
            drop(end);
            let _ = thread.join(); // it does not panic
        }
    }
}
