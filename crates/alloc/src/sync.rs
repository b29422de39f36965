//! Locks of the allocator.

use std::sync::PoisonError;

use warpline_sync::{Mutex, MutexGuard};

/// Takes a lock and ignores poisoning. The data is consistent whenever a holder can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock of a shard, held for tens of nanoseconds and rarely contended. A spin lock is released
/// by a plain store, which saves a sixth of the time of a hit.
#[cfg(not(shuttle))]
pub(crate) type ShardLock<T> = spin::mutex::SpinMutex<T, spin::relax::Yield>;
#[cfg(not(shuttle))]
pub(crate) type ShardGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
#[cfg(shuttle)]
pub(crate) type ShardLock<T> = Mutex<T>;
#[cfg(shuttle)]
pub(crate) type ShardGuard<'a, T> = MutexGuard<'a, T>;

/// A reference to a value that is never deallocated. Under the schedule checker, a lock must not
/// outlive its execution, so the value is deallocated with the last reference.
#[cfg(not(shuttle))]
pub(crate) type StaticRef<T> = &'static T;
#[cfg(shuttle)]
pub(crate) type StaticRef<T> = std::sync::Arc<T>;

pub(crate) fn leak<T>(value: T) -> StaticRef<T> {
    #[cfg(not(shuttle))]
    return Box::leak(Box::new(value));
    #[cfg(shuttle)]
    return std::sync::Arc::new(value);
}

/// Returns whether two references refer to the same value.
pub(crate) fn is_same<T>(a: &StaticRef<T>, b: &StaticRef<T>) -> bool {
    #[cfg(not(shuttle))]
    return std::ptr::eq(*a, *b);
    #[cfg(shuttle)]
    return std::sync::Arc::ptr_eq(a, b);
}

#[inline]
pub(crate) fn lock_shard<T>(lock: &ShardLock<T>) -> ShardGuard<'_, T> {
    #[cfg(not(shuttle))]
    return lock.lock();
    #[cfg(shuttle)]
    return lock.lock().unwrap_or_else(PoisonError::into_inner);
}
