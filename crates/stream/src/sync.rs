//! Locks, atomics and thread-locals: the standard library's, or with the feature `shuttle` those of
//! the checker that runs a test under many schedules.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic},
    thread_local,
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::{Mutex, MutexGuard, atomic},
    thread_local,
};
