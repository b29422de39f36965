//! The thread to which a failed index check is reported: the thread that made the call, or the
//! thread on whose behalf a loader's worker or a replica's thread works.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard, thread_local};
use warpline_types::CallId;

/// Number of calls that an owner remembers as reported. After this many reports of other calls, the owner forgets a
/// call. If another failure of a forgotten call is found, it is reported too.
pub(crate) const MAX_REPORTED_CALLS: usize = 256;

/// The thread to which `synchronize` reports that an index was out of range in one of its launches.
///
/// Every thread owns its launches. A thread that works on behalf of another takes over that thread's
/// identity with [`CheckOwner::within`].
///
/// ```
/// use warpline_stream::CheckOwner;
///
/// let owner = CheckOwner::current();
/// std::thread::spawn(move || {
///     assert_ne!(CheckOwner::current(), owner);
///     owner.within(|| assert_eq!(CheckOwner::current(), owner));
/// })
/// .join()
/// .unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct CheckOwner(Arc<OwnerState>);

#[derive(Debug, Default)]
struct OwnerState {
    has_ended: AtomicBool,
    /// The calls whose failures were reported, oldest first.
    reported: Mutex<VecDeque<CallId>>,
}

#[derive(Default)]
struct ThreadIdentity {
    /// Identity of this thread, created on first use.
    own: Option<CheckOwner>,
    /// The owner that the thread works for. `None`: the thread itself.
    inherited: Option<CheckOwner>,
}

impl Drop for ThreadIdentity {
    fn drop(&mut self) {
        if let Some(CheckOwner(state)) = &self.own {
            state.has_ended.store(true, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static IDENTITY: RefCell<ThreadIdentity> = RefCell::new(ThreadIdentity::default());
}

impl CheckOwner {
    /// Returns the owner of this thread's launches. While the thread ends, returns an owner that
    /// has ended.
    #[must_use]
    pub fn current() -> Self {
        let current = |identity: &RefCell<ThreadIdentity>| {
            let mut identity = identity.borrow_mut();
            if let Some(inherited) = &identity.inherited {
                return inherited.clone();
            }
            identity.own.get_or_insert_with(|| Self(Arc::default())).clone()
        };
        let ended = || OwnerState { has_ended: AtomicBool::new(true), ..OwnerState::default() };
        IDENTITY.try_with(current).unwrap_or_else(|_| Self(Arc::new(ended())))
    }

    /// Runs `f` in the calling thread with its launches owned by this owner. Restores the previous
    /// owner afterwards, also if `f` panics.
    pub fn within<R>(&self, f: impl FnOnce() -> R) -> R {
        struct RestoreOwner(Option<CheckOwner>);
        impl Drop for RestoreOwner {
            fn drop(&mut self) {
                self.0 = replace(self.0.take());
            }
        }
        fn replace(inherited: Option<CheckOwner>) -> Option<CheckOwner> {
            let swap = |identity: &RefCell<ThreadIdentity>| {
                std::mem::replace(&mut identity.borrow_mut().inherited, inherited)
            };
            IDENTITY.try_with(swap).unwrap_or_default()
        }
        let _restore = RestoreOwner(replace(Some(self.clone())));
        f()
    }

    fn reported(&self) -> MutexGuard<'_, VecDeque<CallId>> {
        self.0.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a failure of the call was reported.
    pub(crate) fn has_report_of(&self, call: CallId) -> bool {
        self.reported().contains(&call)
    }

    /// Records that a failure of the call was reported.
    pub(crate) fn add_report_of(&self, call: CallId) {
        let mut calls = self.reported();
        if !calls.contains(&call) {
            if calls.len() == MAX_REPORTED_CALLS {
                calls.pop_front();
            }
            calls.push_back(call);
        }
    }

    /// Returns whether the owner's thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.has_ended.load(Ordering::Relaxed)
    }
}

impl PartialEq for CheckOwner {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CheckOwner {}
