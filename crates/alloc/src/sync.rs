//! Locks, atomics and thread ids: the standard library's, or with the feature `shuttle` those of
//! the checker that runs a test under many schedules.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic},
    thread,
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::{Mutex, MutexGuard, atomic},
    thread,
};

/// The lock of a shard. It is held for tens of nanoseconds and hardly ever by two threads at once,
/// and a lock that spins is given back with a plain store: that is a sixth of what a hit takes.
#[cfg(not(feature = "shuttle"))]
pub(crate) type ShardLock<T> = spin::mutex::SpinMutex<T, spin::relax::Yield>;
#[cfg(not(feature = "shuttle"))]
pub(crate) type ShardGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
#[cfg(feature = "shuttle")]
pub(crate) type ShardLock<T> = Mutex<T>;
#[cfg(feature = "shuttle")]
pub(crate) type ShardGuard<'a, T> = MutexGuard<'a, T>;

/// A reference to what is never deallocated. The checker's locks belong to one execution of many:
/// what holds one is deallocated with the last reference.
#[cfg(not(feature = "shuttle"))]
pub(crate) type Lasting<T> = &'static T;
#[cfg(feature = "shuttle")]
pub(crate) type Lasting<T> = std::sync::Arc<T>;

pub(crate) fn lasting<T>(value: T) -> Lasting<T> {
    #[cfg(not(feature = "shuttle"))]
    return Box::leak(Box::new(value));
    #[cfg(feature = "shuttle")]
    return std::sync::Arc::new(value);
}

/// Whether both refer to one.
pub(crate) fn is_same<T>(a: &Lasting<T>, b: &Lasting<T>) -> bool {
    #[cfg(not(feature = "shuttle"))]
    return std::ptr::eq(*a, *b);
    #[cfg(feature = "shuttle")]
    return std::sync::Arc::ptr_eq(a, b);
}

#[inline]
pub(crate) fn lock_shard<T>(lock: &ShardLock<T>) -> ShardGuard<'_, T> {
    #[cfg(not(feature = "shuttle"))]
    return lock.lock();
    #[cfg(feature = "shuttle")]
    return lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
}
