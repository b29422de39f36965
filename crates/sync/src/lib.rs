//! Locks, atomics, channels and threads for Warpline's own crates: the standard library's, or in a
//! build with `--cfg shuttle` those of the checker [shuttle](https://docs.rs/shuttle), which runs a
//! test under many schedules of its threads.
//!
//! Not for others: it has what Warpline's crates use and changes with them. It is chosen by a `cfg`
//! and not by a feature, which cargo would turn on for a whole program because one crate asks for it.
//!
//! The checker goes on with another thread only where these are used: counting an `Arc`, say, is one
//! step with what comes before it. A lock of the standard library must not be held there.

#![forbid(unsafe_code)]

#[cfg(shuttle)]
mod checked;

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

/// Where the checker may go on with another thread. Nothing without it.
#[cfg(not(shuttle))]
#[inline]
pub fn let_others_run() {}
