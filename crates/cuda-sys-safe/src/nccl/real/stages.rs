//! A communicator, made of three communicators of NCCL.
//!
//! # Problem
//!
//! NCCL has two kinds of communicator. A call on a non-blocking one takes some 50 µs, a call on a
//! blocking one a few. But a blocking call hangs as long as another rank does not make its call
//! (the first call, which connects the ranks, always waits), and `ncclCommAbort` frees memory that
//! a hanging call still uses.
//!
//! # Approach
//!
//! Collectives run on a blocking communicator (*comm*). It is split off a non-blocking *parent*
//! with `splitShare`, so that both share one abort flag. Aborting the parent alone ends a call that
//! hangs in *comm*, and work that hangs on the GPU, without freeing anything that the call uses.
//!
//! Both are split off a *root*. Communicators that the user splits are made from the root too. They
//! share no flag with *comm*, so they survive its abort.
//!
//! The stages are made one after another, because each split is asynchronous: `comm_state` starts
//! the next stage when the previous one is ready.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use super::api::Config;
use super::{Library, relaxed};
use crate::nccl::{CommHandle, CommState};
use crate::real::CudaDriver;
use crate::{DriverError, Result};

const SPLIT: &str = "ncclCommSplit";
const STATE: &str = "ncclCommGetAsyncError";

/// The place where NCCL writes a communicator. A split writes it some time after the call.
pub(super) type Slot = AtomicPtr<c_void>;

/// The three communicators of a handle.
#[derive(Debug, Default)]
pub(super) struct Stages {
    /// Made by the user's call. Non-blocking; it is only split.
    pub(super) root: Slot,
    /// Split off the root. Non-blocking; it shares its abort flag with what is split off it.
    parent: Slot,
    /// Split off the parent. Blocking; collectives run on it.
    pub(super) comm: Slot,
    /// A [`Stage`]. Changed by the thread that uses the communicator.
    stage: AtomicU8,
    interrupted: AtomicBool,
}

/// The communicator that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Root = 0,
    Parent = 1,
    Comm = 2,
    /// All communicators are made.
    Ready = 3,
}

impl Stages {
    /// Creates a handle, whose root NCCL has yet to write.
    pub(super) fn open(device: usize) -> (&'static Self, CommHandle) {
        let new: *mut Self = Box::into_raw(Box::default());
        // SAFETY: just made, and freed by `close` alone.
        let stages = unsafe { &*new };
        // SAFETY: it stands for what was just made.
        (stages, unsafe { CommHandle::new(new.expose_provenance() as u64, device) })
    }

    fn pointer(comm: CommHandle) -> *mut Self {
        ptr::with_exposed_provenance_mut(comm.raw() as usize)
    }

    /// Returns the communicators of a handle.
    ///
    /// # Safety
    /// The communicator lives longer than the result is used.
    pub(super) unsafe fn of<'a>(comm: CommHandle) -> &'a Self {
        // SAFETY: it lives as long as the communicator.
        unsafe { &*Self::pointer(comm) }
    }

    fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Root,
            1 => Stage::Parent,
            2 => Stage::Comm,
            _ => Stage::Ready,
        }
    }

    fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// Returns `true` if [`Self::interrupt`] was called.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire)
    }

    /// Returns the state of the last call. Begins the next stage when the previous stage is ready.
    ///
    /// # Safety
    /// The same as [`Nccl::comm_state`](crate::nccl::Nccl::comm_state).
    pub(super) unsafe fn state(
        &self,
        library: &Library,
        driver: &CudaDriver,
        device: usize,
    ) -> Result<CommState> {
        let ready = |slot: &Slot| library.state(slot.load(Ordering::Acquire));
        let next = match self.stage() {
            Stage::Root if ready(&self.root)? == CommState::Ready => {
                (&self.root, &self.parent, Config::sharing(), Stage::Parent)
            }
            // The state of what is split says whether the split is through.
            Stage::Parent
                if ready(&self.root)? == CommState::Ready
                    && ready(&self.parent)? == CommState::Ready =>
            {
                (&self.parent, &self.comm, Config::blocking(), Stage::Comm)
            }
            Stage::Comm => {
                let states = [ready(&self.parent)?, ready(&self.comm)?];
                if states == [CommState::Ready; 2] {
                    // From now on nobody but `interrupt` uses the parent.
                    self.enter(Stage::Ready);
                    return Ok(CommState::Ready);
                }
                return Ok(CommState::InProgress);
            }
            Stage::Ready => {
                // Of the root in case that the user splits it.
                return match ready(&self.comm)? {
                    CommState::Ready => ready(&self.root),
                    CommState::InProgress => Ok(CommState::InProgress),
                };
            }
            Stage::Root | Stage::Parent => return Ok(CommState::InProgress),
        };
        let (whole, part, mut config, stage) = next;
        relaxed(driver, device, || {
            let whole = whole.load(Ordering::Acquire);
            let mut rank = 0;
            // SAFETY: alive and ready; the pointer is valid for writes.
            let status = unsafe { (library.api.ncclCommUserRank)(whole, &mut rank) };
            library.check("ncclCommUserRank", status, whole)?;
            self.enter(stage);
            const ALL: c_int = 0;
            // SAFETY: alive and ready; the slot is never freed while NCCL may write it.
            let status = unsafe {
                (library.api.ncclCommSplit)(whole, ALL, rank, part.as_ptr(), &mut config)
            };
            library.check(SPLIT, status, whole)?;
            Ok(CommState::InProgress)
        })
    }

    /// Waits until a non-blocking call is complete or interrupted.
    #[cold]
    pub(super) fn wait(&self, library: &Library, call: &'static str) -> Result<()> {
        while library.state(self.comm.load(Ordering::Acquire))? == CommState::InProgress {
            if self.is_interrupted() {
                return Err(interrupted(call));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Ends a call or work that hangs, by aborting the parent.
    ///
    /// # Safety
    /// The same as [`Nccl::comm_interrupt`](crate::nccl::Nccl::comm_interrupt).
    pub(super) unsafe fn interrupt(&self, library: &Library) -> Result<()> {
        self.interrupted.store(true, Ordering::Release);
        // Before that no call blocks, and the parent is used to make the last one.
        if self.stage() != Stage::Ready {
            return Ok(());
        }
        // SAFETY: in the last stage nobody else uses the parent.
        unsafe { library.abort(&self.parent) }
    }

    /// Aborts and frees all communicators of the handle.
    ///
    /// # Safety
    /// The communicator is alive, and no other thread uses it.
    pub(super) unsafe fn close(comm: CommHandle, library: &Library) -> Result<()> {
        // SAFETY: the caller vouches for it.
        let stages = unsafe { Self::of(comm) };
        let complete = stages.stage() == Stage::Ready;
        // The abort of what is being split ends the split.
        let slots = [&stages.root, &stages.parent, &stages.comm];
        // SAFETY: the caller vouches for it. All are aborted, whatever becomes of the others.
        let ended = slots.map(|slot| unsafe { library.abort(slot) });
        // Otherwise it is leaked: NCCL may still write a slot of a split that never came to its end.
        if complete {
            // SAFETY: made by `open`, and never used again.
            drop(unsafe { Box::from_raw(Self::pointer(comm)) });
        }
        ended.into_iter().collect()
    }
}

impl Library {
    /// Returns the state of a communicator of NCCL, or `InProgress` if NCCL has not written it yet.
    fn state(&self, comm: *mut c_void) -> Result<CommState> {
        if comm.is_null() {
            return Ok(CommState::InProgress);
        }
        let mut state = 0;
        // SAFETY: slots hold what is alive; the pointer is valid for writes.
        let status = unsafe { (self.api.ncclCommGetAsyncError)(comm, &mut state) };
        self.check(STATE, status, comm)?;
        self.check(STATE, state, comm)
    }

    /// Aborts the communicator in a slot, if there is one, and empties the slot.
    ///
    /// # Safety
    /// No other thread uses the communicator, except in ways that NCCL allows during an abort.
    unsafe fn abort(&self, slot: &Slot) -> Result<()> {
        let own = slot.swap(ptr::null_mut(), Ordering::AcqRel);
        if own.is_null() {
            return Ok(());
        }
        // SAFETY: alive, and in no slot any more.
        let status = unsafe { (self.api.ncclCommAbort)(own) };
        self.check("ncclCommAbort", status, ptr::null_mut()).map(drop)
    }
}

/// Creates the error of a call on an interrupted communicator.
pub(super) fn interrupted(call: &'static str) -> DriverError {
    let (status, detail) = ("ncclInvalidUsage".into(), "the communicator was aborted".into());
    DriverError::LibraryCall { call, status, detail, location: None }
}
