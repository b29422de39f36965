//! A communicator, made of three communicators of NCCL.
//!
//! # Problem
//!
//! NCCL has blocking and non-blocking communicators. A call takes about 50 µs on a non-blocking
//! communicator, and a few µs on a blocking one. But a blocking call hangs until all other ranks
//! make the call (the first call always waits, because it connects the ranks), and `ncclCommAbort`
//! frees memory that a hanging call still uses.
//!
//! # Approach
//!
//! Collectives run on a blocking communicator (*comm*). It is split off a non-blocking *parent*
//! with `splitShare`, so that both share one abort flag. Aborting the parent alone ends a call that
//! hangs in *comm*, and work that hangs on the GPU, without freeing anything that the call uses.
//!
//! The parent is split off a *root*. The user's splits are made from the root, too. The resulting
//! communicators share no abort flag with *comm*, so they survive its abort.
//!
//! Each split is asynchronous, so the stages are made one after another: `comm_state` starts the
//! next stage when the previous stage is ready.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use super::api::NcclConfig;
use super::{Library, relaxed};
use crate::nccl::{CommHandle, CommState};
use crate::real::CudaDriver;
use crate::{DriverError, Result};

const SPLIT: &str = "ncclCommSplit";
const STATE: &str = "ncclCommGetAsyncError";

/// The place where NCCL writes a communicator. In a split, NCCL writes it some time after the call
/// has returned.
pub(super) type CommSlot = AtomicPtr<c_void>;

/// The three communicators of a handle.
#[derive(Debug, Default)]
pub(super) struct CommStages {
    /// Made by the user's call. Non-blocking; used only for splits.
    pub(super) root: CommSlot,
    /// Split off the root. Non-blocking; shares its abort flag with `comm`.
    parent: CommSlot,
    /// Split off the parent. Blocking; collectives run on it.
    pub(super) comm: CommSlot,
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

impl CommStages {
    /// Creates a handle. NCCL has not written its root yet.
    pub(super) fn open(device: usize) -> (&'static Self, CommHandle) {
        let new: *mut Self = Box::into_raw(Box::default());
        // SAFETY: the box was just created, and only `close` frees it.
        let stages = unsafe { &*new };
        // SAFETY: the raw value is the address of live stages, which `pointer` returns.
        (stages, unsafe { CommHandle::new(new.expose_provenance() as u64, device) })
    }

    fn pointer(comm: CommHandle) -> *mut Self {
        ptr::with_exposed_provenance_mut(comm.raw() as usize)
    }

    /// Returns the communicators of a handle.
    ///
    /// # Safety
    /// The communicator stays alive while the result is in use.
    pub(super) unsafe fn of<'a>(comm: CommHandle) -> &'a Self {
        // SAFETY: the stages live as long as the communicator, which the caller keeps alive.
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
        let ready = |slot: &CommSlot| library.state(slot.load(Ordering::Acquire));
        let next = match self.stage() {
            Stage::Root if ready(&self.root)? == CommState::Ready => {
                (&self.root, &self.parent, NcclConfig::sharing(), Stage::Parent)
            }
            // A split is complete when both the old and the new communicator are ready.
            Stage::Parent
                if ready(&self.root)? == CommState::Ready
                    && ready(&self.parent)? == CommState::Ready =>
            {
                (&self.parent, &self.comm, NcclConfig::blocking(), Stage::Comm)
            }
            Stage::Comm => {
                let states = [ready(&self.parent)?, ready(&self.comm)?];
                if states == [CommState::Ready; 2] {
                    // From now on only `interrupt` and `close` use the parent.
                    self.enter(Stage::Ready);
                    return Ok(CommState::Ready);
                }
                return Ok(CommState::InProgress);
            }
            Stage::Ready => {
                // The root is checked as well, because the user's splits run on it.
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
            // SAFETY: the communicator is alive and ready, and the pointer is valid for writes.
            let status = unsafe { (library.api.ncclCommUserRank)(whole, &mut rank) };
            library.check("ncclCommUserRank", status, whole)?;
            self.enter(stage);
            const ALL: c_int = 0;
            // SAFETY: the communicator is alive and ready. The slot is freed only after NCCL has
            // written it.
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
        // Before `Stage::Ready` no call blocks, and the last split still needs the parent.
        if self.stage() != Stage::Ready {
            return Ok(());
        }
        // SAFETY: in the last stage, only this function and `close` use the parent, and the caller
        // calls `close` later.
        unsafe { library.abort(&self.parent) }
    }

    /// Aborts and frees all communicators of the handle.
    ///
    /// # Safety
    /// The communicator is alive, and no other thread uses it.
    pub(super) unsafe fn close(comm: CommHandle, library: &Library) -> Result<()> {
        // SAFETY: the caller guarantees that the communicator is alive.
        let stages = unsafe { Self::of(comm) };
        let complete = stages.stage() == Stage::Ready;
        // Aborting a communicator ends a split that is running on it.
        let slots = [&stages.root, &stages.parent, &stages.comm];
        // SAFETY: the caller guarantees that no other thread uses the communicators. All are
        // aborted, even if one abort fails.
        let ended = slots.map(|slot| unsafe { library.abort(slot) });
        // If a split is incomplete, NCCL may still write its slot. The stages are leaked then.
        if complete {
            // SAFETY: `open` created the box, and the caller does not use the communicator again.
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
        // SAFETY: a slot holds null or a live communicator, and the pointer is valid for writes.
        let status = unsafe { (self.api.ncclCommGetAsyncError)(comm, &mut state) };
        self.check(STATE, status, comm)?;
        self.check(STATE, state, comm)
    }

    /// Aborts the communicator in a slot, if there is one, and empties the slot.
    ///
    /// # Safety
    /// No other thread uses the communicator, except in ways that NCCL allows during an abort.
    unsafe fn abort(&self, slot: &CommSlot) -> Result<()> {
        let own = slot.swap(ptr::null_mut(), Ordering::AcqRel);
        if own.is_null() {
            return Ok(());
        }
        // SAFETY: the communicator is alive, and no slot holds it any more.
        let status = unsafe { (self.api.ncclCommAbort)(own) };
        self.check("ncclCommAbort", status, ptr::null_mut()).map(drop)
    }
}

/// Creates the error of a call on an interrupted communicator.
pub(super) fn interrupted(call: &'static str) -> DriverError {
    let (status, detail) = ("ncclInvalidUsage".into(), "the communicator was aborted".into());
    DriverError::LibraryCall { call, status, detail, location: None }
}
