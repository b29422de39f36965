//! The last 64 launches of each stream, for error messages.
//!
//! A driver's error surfaces at a later wait, query or launch, which cannot know the launch that
//! failed. The message therefore lists the launches that are not known to be complete, oldest
//! first, with op, dtypes, shapes and call site, and counts the launches that were dropped from the
//! list. If the device is lost, it also lists the launches of the device's other streams. A launch
//! is noted under the submit lock, without an allocation.

use std::sync::PoisonError;

use warpline_sync::{Mutex, MutexGuard};

use crate::{Launch, OpNumber, Site};

/// Number of launches that are kept per stream.
const KEPT: usize = 64;
/// The last launches of a stream. Only the first `note` allocates memory.
#[derive(Debug, Default)]
pub(crate) struct Launches(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    kept: Vec<Launch>,
    /// Index of the oldest entry, which the next launch replaces once the list is full.
    next: usize,
    /// Number of the last dropped launch.
    fallen: OpNumber,
}

impl Launches {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a launch. The caller has the exclusive right to enqueue on the stream.
    pub(crate) fn note<'a>(
        &self,
        number: OpNumber,
        site: Site,
        operands: impl Iterator<Item = (&'static str, &'a [usize])>,
    ) {
        let mut ring = self.lock();
        let ring = &mut *ring;
        let entry = if ring.kept.len() < KEPT {
            if ring.kept.is_empty() {
                ring.kept.reserve_exact(KEPT);
            }
            ring.kept.push(Launch::new(number, site));
            let last = ring.kept.len() - 1;
            &mut ring.kept[last]
        } else {
            let entry = &mut ring.kept[ring.next];
            ring.next = (ring.next + 1) % KEPT;
            ring.fallen = entry.number;
            entry
        };
        entry.replace(number, site, operands);
    }

    /// Returns the launches after operation `done`, oldest first, and the number of operations
    /// after `done` that are no longer in the list.
    pub(crate) fn after(&self, done: OpNumber) -> (Vec<Launch>, u64) {
        let ring = self.lock();
        let (newer, older) = ring.kept.split_at(ring.next);
        let in_order = older.iter().chain(newer);
        let pending = in_order.filter(|l| l.number > done).copied().collect();
        (pending, ring.fallen.saturating_sub(done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a plain list, at every length up to three times around.
    #[test]
    fn the_last_ones_are_kept_in_order_and_the_others_counted() {
        for noted in 0..3 * KEPT as u64 {
            let launches = Launches::default();
            for number in 1..=noted {
                launches.note(number, Site::here("add"), std::iter::empty());
            }
            for done in 0..=noted {
                let (pending, older) = launches.after(done);
                let numbers: Vec<_> = pending.iter().map(|l| l.number).collect();
                let all: Vec<_> = (done + 1..=noted).collect();
                let lost = all.len().saturating_sub(KEPT);
                assert_eq!((numbers.as_slice(), older), (&all[lost..], lost as u64));
            }
        }
    }

    #[test]
    fn a_listed_launch_shows_its_operands() {
        let launches = Launches::default();
        let here = Site::here("");
        let at = |op| Site { op, ..here };
        let here = here.location;
        let text = || launches.after(0).0.last().map(ToString::to_string).unwrap_or_default();
        let shapes: [(&str, &[usize]); 2] = [("float32", &[2, 3]), ("bool", &[])];
        launches.note(1, at("mul"), shapes.into_iter());
        assert_eq!(text(), format!("mul(float32[2, 3], bool[]) at {here}"));
        let large: (&str, &[usize]) = ("int64", &[1, 2, 3, 4, 5]);
        launches.note(2, at("cat"), std::iter::repeat_n(large, 5));
        let one = "int64[1, 2, 3, 4, ..]";
        assert_eq!(text(), format!("cat({one}, {one}, {one}, {one}, ..) at {here}"));
        // A place that is taken anew keeps nothing of the launch before.
        for number in 3..=200 {
            launches.note(number, at("neg"), shapes.into_iter().skip(1));
        }
        assert_eq!(text(), format!("neg(bool[]) at {here}"));
    }
}
