//! Completion of collectives, for data that depends on their results.

use std::error::Error as StdError;
use std::panic::Location;
use std::sync::Arc;

use warpline_sync::OnceLock;
use warpline_sync::atomic::{AtomicU64, Ordering};

use crate::{Error, ErrorKind, Site};

/// Progress of the collectives of a communicator, and the error that ended the communicator. The
/// driver does not know the error, because it reports aborted work as complete. Clones share the
/// state.
#[derive(Clone, Debug, Default)]
pub struct Completion(Arc<CompletionState>);

#[derive(Debug, Default)]
struct CompletionState {
    /// Number of the last completed collective.
    done: AtomicU64,
    failed: OnceLock<Arc<dyn StdError + Send + Sync>>,
}

impl Completion {
    /// Records that the collectives with numbers up to `number` are complete. The caller must have
    /// found no failure after it observed the completion. Does nothing after [`Completion::fail`].
    pub fn done_up_to(&self, number: u64) {
        if self.0.failed.get().is_none() {
            self.0.done.fetch_max(number, Ordering::Relaxed);
        }
    }

    /// Records that the remaining collectives will never complete. Call it before they are aborted.
    /// From then on, uses of their results, and of data computed from them, fail with
    /// [`ErrorKind::Collective`]. Only the first error is kept.
    pub fn fail(&self, why: Arc<dyn StdError + Send + Sync>) {
        let _ = self.0.failed.set(why); // the first error is kept
    }
}

/// A collective on whose result data depends.
#[derive(Clone, Debug)]
pub(crate) struct PendingCollective {
    completion: Completion,
    number: u64,
    op: &'static str,
    location: &'static Location<'static>,
}

impl PendingCollective {
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

    /// Returns the error if the collective is known to have failed.
    pub(crate) fn failed(&self) -> Option<Error> {
        let why = self.completion.0.failed.get()?;
        let site = Site { op: self.op, location: self.location };
        let error = || Error::new(ErrorKind::Collective, site).with_source(Arc::clone(why));
        (!self.is_done()).then(error)
    }

    /// Returns whether the completion of this collective implies that of `other`, because `other`
    /// came before it on the same communicator.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.completion.0, &other.completion.0) && self.number >= other.number
    }
}

impl PendingCollective {
    /// Returns this captured collective with the number of a replay. `None` if `replay` is on
    /// another communicator.
    pub(crate) fn in_replay(&self, replay: &Self) -> Option<Self> {
        Arc::ptr_eq(&self.completion.0, &replay.completion.0)
            .then(|| Self { number: replay.number, ..self.clone() })
    }
}

impl PartialEq for PendingCollective {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.completion.0, &other.completion.0) && self.number == other.number
    }
}

impl Eq for PendingCollective {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_communicator_completes_no_collective() {
        let (completion, other) = (Completion::default(), Completion::default());
        let pending = |completion, number| {
            PendingCollective::new((completion, number), "all_reduce", Location::caller())
        };
        let [first, second, third] = [1, 2, 3].map(|number| pending(&completion, number));
        completion.done_up_to(1);
        completion.done_up_to(0); // a slower thread reports late
        assert!(first.is_done() && !second.is_done());
        assert!(second.failed().is_none());
        completion.fail(Arc::new(std::fmt::Error));
        completion.done_up_to(3); // the driver reports aborted work as complete
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
