//! Locks, atomics, channels and threads for Warpline's own crates: those of the standard library, or in a build with
//! `--cfg shuttle` those of the checker [shuttle](https://docs.rs/shuttle), which runs a test under many thread
//! schedules.
//!
//! Internal to Warpline: the interface changes with the crates that use it. A `cfg` selects the checker rather than a
//! feature, because cargo enables a feature for a whole program as soon as one crate asks for it.
//!
//! The checker switches threads only at uses of these items. Other operations, such as counting an `Arc`, form one step
//! with the preceding use. A lock of the standard library must not be held across a use of these items.

#![forbid(unsafe_code)]

mod caught_panic;
#[cfg(shuttle)]
mod checked;
mod drop_list;

pub use caught_panic::CaughtPanic;
pub use drop_list::DropList;

#[cfg(shuttle)]
pub use checked::{LazyLock, OnceLock, let_others_run};
#[cfg(shuttle)]
pub use shuttle::{
    sync::{
        Barrier, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
        mpsc,
    },
    thread, thread_local,
};
#[cfg(not(shuttle))]
pub use std::{
    sync::{
        Barrier, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard,
        RwLockWriteGuard, atomic, mpsc,
    },
    thread, thread_local,
};

/// Marks a point where the checker may switch to another thread. Does nothing in builds without the checker.
#[cfg(not(shuttle))]
#[inline]
pub fn let_others_run() {}
