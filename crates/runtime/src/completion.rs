//! Which collectives are done, for what depends on what they were to write.

use std::error::Error as StdError;
use std::panic::Location;
use std::sync::Arc;

use warpline_sync::OnceLock;
use warpline_sync::atomic::{AtomicU64, Ordering};

use crate::{Error, ErrorKind, Site};

/// How far the collectives of a communicator are, and why the others never will be: work that is
/// aborted ends for the driver as any other does. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Completion(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Collectives with numbers up to this one are done.
    done: AtomicU64,
    failed: OnceLock<Arc<dyn StdError + Send + Sync>>,
}

impl Completion {
    /// Enters that the collectives with numbers up to this one are done, and were when somebody looked
    /// who has found no failure yet. After [`Completion::fail`] it does nothing.
    pub fn done_up_to(&self, number: u64) {
        if self.0.failed.get().is_none() {
            self.0.done.fetch_max(number, Ordering::Relaxed);
        }
    }

    /// Enters that the others will not be done. It comes before they are aborted. From now on, what
    /// they were to write, and what was computed from it, is refused as [`ErrorKind::Collective`].
    pub fn fail(&self, why: Arc<dyn StdError + Send + Sync>) {
        let _ = self.0.failed.set(why); // the first counts
    }
}

/// A collective on which bytes depend.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    completion: Completion,
    number: u64,
    op: &'static str,
    location: &'static Location<'static>,
}

impl Pending {
    pub(crate) fn new(
        (completion, number): (&Completion, u64),
        op: &'static str,
        location: &'static Location<'static>,
    ) -> Self {
        Self { completion: completion.clone(), number, op, location }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.number <= self.completion.0.done.load(Ordering::Relaxed)
    }

    /// The error, if it is known that it will not be done.
    pub(crate) fn failed(&self) -> Option<Error> {
        let why = self.completion.0.failed.get()?;
        let site = Site { op: self.op, location: self.location };
        let error = || Error::new(ErrorKind::Collective, site).with_source(Arc::clone(why));
        (!self.is_done()).then(error)
    }

    /// Whether the other one is done, or fails, with this one: it came before it on the communicator.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.completion.0, &other.completion.0) && self.number >= other.number
    }
}

impl Pending {
    /// Of a captured collective: it as it runs in a replay, if this is the replay's on its
    /// communicator.
    pub(crate) fn in_replay(&self, replay: &Self) -> Option<Self> {
        Arc::ptr_eq(&self.completion.0, &replay.completion.0)
            .then(|| Self { number: replay.number, ..self.clone() })
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.completion.0, &other.completion.0) && self.number == other.number
    }
}

impl Eq for Pending {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_done_when_a_communicator_fails_never_is() {
        let (completion, other) = (Completion::default(), Completion::default());
        let pending = |completion, number| {
            Pending::new((completion, number), "all_reduce", Location::caller())
        };
        let [first, second, third] = [1, 2, 3].map(|number| pending(&completion, number));
        completion.done_up_to(1);
        completion.done_up_to(0); // of a slower thread
        assert!(first.is_done() && !second.is_done());
        assert!(second.failed().is_none());
        completion.fail(Arc::new(std::fmt::Error));
        completion.done_up_to(3); // aborted work counts as done for the driver
        assert!(first.failed().is_none());
        for pending in [&second, &third] {
            let text = pending.failed().unwrap().to_string();
            assert!(text.contains("all_reduce at ") && text.contains("completion.rs:"));
            assert!(!pending.is_done());
        }
        assert!(third.covers(&second) && !second.covers(&third));
        assert!(!pending(&other, 9).covers(&second));
    }
}
