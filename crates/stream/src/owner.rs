//! The thread to which a failed index check is reported: the thread that made the call, or the
//! thread on whose behalf a loader's worker or a replica's thread works.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use warpline_sync::thread_local;

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
#[derive(Clone, Debug, Default)]
pub struct CheckOwner(Weak<()>);

#[derive(Default)]
struct ThreadIdentity {
    /// Identity of this thread, created on first use. A [`CheckOwner`] holds a weak reference to
    /// it, which dangles once the thread has ended.
    own: Option<Arc<()>>,
    /// The owner that the thread works for. `None`: the thread itself.
    inherited: Option<CheckOwner>,
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
            Self(Arc::downgrade(identity.own.get_or_insert_with(|| Arc::new(()))))
        };
        IDENTITY.try_with(current).unwrap_or_default()
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

    /// Returns whether the owner's thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl PartialEq for CheckOwner {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for CheckOwner {}
