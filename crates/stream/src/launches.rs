//! The last 64 launches of each stream, for error messages.
//!
//! A driver's error surfaces at a later wait, query or launch, which cannot know the launch that
//! failed. The message therefore lists the launches that are not known to be complete, oldest
//! first, with op, dtypes, shapes and call site, and counts the launches that were dropped from the
//! list. If the device is lost, it also lists the launches of the device's other streams. A launch
//! is noted under the submit lock, without an allocation.

use std::fmt;
use std::panic::Location;
use std::sync::PoisonError;

use warpline_sync::{Mutex, MutexGuard};

use crate::OpNumber;

/// Launches that are kept per stream.
const KEPT: usize = 64;
/// Operands that are kept of a launch.
const OPERANDS: usize = 4;
/// Sizes that are kept of an operand.
const DIMS: usize = 4;

/// The dtype and the shape of a launch's operand.
#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    dtype: &'static str,
    ndim: usize,
    sizes: [usize; DIMS],
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, size) in self.sizes.iter().take(self.ndim).enumerate() {
            write!(f, "{}{size}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str(if self.ndim > DIMS { ", ..]" } else { "]" })
    }
}

/// Work that was enqueued on a stream: what, on what, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// The op.
    pub op: &'static str,
    /// Its number on the stream.
    pub number: OpNumber,
    /// Where it was called.
    pub location: &'static Location<'static>,
    count: usize,
    operands: [Shape; OPERANDS],
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.op)?;
        for (i, operand) in self.operands.iter().take(self.count).enumerate() {
            write!(f, "{}{operand}", if i == 0 { "" } else { ", " })?;
        }
        let more = if self.count > OPERANDS { ", .." } else { "" };
        write!(f, "{more}) at {}", self.location)
    }
}

/// The last launches of a stream. Noting one allocates nothing but the first time.
#[derive(Debug, Default)]
pub(crate) struct Launches(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    kept: Vec<Launch>,
    /// Where the next one goes once all places are taken.
    next: usize,
    /// The number of the last one that fell out.
    fallen: OpNumber,
}

impl Launches {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a launch. The caller has the exclusive right to enqueue on the stream.
    pub(crate) fn note<'a>(
        &self,
        op: &'static str,
        number: OpNumber,
        location: &'static Location<'static>,
        operands: impl Iterator<Item = (&'static str, &'a [usize])>,
    ) {
        let mut ring = self.lock();
        let ring = &mut *ring;
        let entry = if ring.kept.len() < KEPT {
            if ring.kept.is_empty() {
                ring.kept.reserve_exact(KEPT);
            }
            let operands = [Shape::default(); OPERANDS];
            ring.kept.push(Launch { op, number, location, count: 0, operands });
            let last = ring.kept.len() - 1;
            &mut ring.kept[last]
        } else {
            let entry = &mut ring.kept[ring.next];
            ring.next = (ring.next + 1) % KEPT;
            ring.fallen = entry.number;
            (entry.op, entry.number, entry.location) = (op, number, location);
            entry
        };
        entry.count = 0;
        for (dtype, sizes) in operands {
            if let Some(operand) = entry.operands.get_mut(entry.count) {
                (operand.dtype, operand.ndim) = (dtype, sizes.len());
                for (kept, size) in operand.sizes.iter_mut().zip(sizes) {
                    *kept = *size;
                }
            }
            entry.count += 1;
        }
    }

    /// Those after operation `done`, oldest first, and how many operations before them are not
    /// kept any more.
    pub(crate) fn after(&self, done: OpNumber) -> (Vec<Launch>, u64) {
        let ring = self.lock();
        let (newer, older) = ring.kept.split_at(ring.next);
        let in_order = older.iter().chain(newer);
        let pending = in_order.filter(|l| l.number > done).copied().collect();
        (pending, ring.fallen.saturating_sub(done))
    }
}

/// The launches of one stream that are not known to be complete.
#[derive(Clone, Debug)]
pub struct PendingLaunches {
    /// The stream, as it is printed.
    pub stream: String,
    /// The last of them, oldest first.
    pub launches: Vec<Launch>,
    /// How many operations before these are not known to be complete either, and were not kept.
    pub older: u64,
}

impl fmt::Display for PendingLaunches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not known to be complete on {}, oldest first:", self.stream)?;
        if self.older > 0 {
            write!(f, "\n  {} older operation(s), not kept", self.older)?;
        }
        self.launches.iter().try_for_each(|launch| write!(f, "\n  {launch}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a plain list, at every length up to three times around.
    #[test]
    fn the_last_ones_are_kept_in_order_and_the_others_counted() {
        let here = Location::caller();
        for noted in 0..3 * KEPT as u64 {
            let launches = Launches::default();
            for number in 1..=noted {
                launches.note("add", number, here, std::iter::empty());
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
    fn a_launch_says_what_it_was_given() {
        let (here, launches) = (Location::caller(), Launches::default());
        let text = || launches.after(0).0.last().map(ToString::to_string).unwrap_or_default();
        let shapes: [(&str, &[usize]); 2] = [("float32", &[2, 3]), ("bool", &[])];
        launches.note("mul", 1, here, shapes.into_iter());
        assert_eq!(text(), format!("mul(float32[2, 3], bool[]) at {here}"));
        let large: (&str, &[usize]) = ("int64", &[1, 2, 3, 4, 5]);
        launches.note("cat", 2, here, std::iter::repeat_n(large, 5));
        let one = "int64[1, 2, 3, 4, ..]";
        assert_eq!(text(), format!("cat({one}, {one}, {one}, {one}, ..) at {here}"));
        // A place that is taken anew keeps nothing of the launch before.
        for number in 3..=200 {
            launches.note("neg", number, here, shapes.into_iter().skip(1));
        }
        assert_eq!(text(), format!("neg(bool[]) at {here}"));
    }
}
