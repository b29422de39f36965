//! The last 64 launches of each stream, for error messages.
//!
//! If a launch fails, the driver returns the error from a later wait, query or launch, and does not
//! name the launch that failed. The message therefore lists the launches that are not known to be
//! complete, oldest first, with op, dtypes, shapes and call site, and counts the older operations.
//! If the call was on a stream, the message lists the launches of that stream. If the device is lost,
//! or the call was on an event or the device, it lists the launches of all streams of the device. A
//! launch is recorded under the submit lock; only a stream's first launch allocates memory.

use std::sync::PoisonError;

use warpline_sync::{Mutex, MutexGuard};

use crate::{LaunchRecord, OpNumber, Site};

/// Number of launches that are kept per stream.
const CAPACITY: usize = 64;

/// The last launches of a stream. Only the first `record` allocates memory.
#[derive(Debug, Default)]
pub(crate) struct Launches(Mutex<LaunchRing>);

#[derive(Debug, Default)]
struct LaunchRing {
    launches: Vec<LaunchRecord>,
    /// Index of the entry that the next launch replaces once the list is full: the oldest entry.
    next: usize,
    /// Number of the last dropped launch.
    last_dropped: OpNumber,
}

impl Launches {
    fn lock(&self) -> MutexGuard<'_, LaunchRing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a launch. The caller has the exclusive right to enqueue on the stream.
    pub(crate) fn record<'a>(
        &self,
        number: OpNumber,
        site: Site,
        operands: impl Iterator<Item = (&'static str, &'a [usize])>,
    ) {
        let mut ring = self.lock();
        let ring = &mut *ring;
        let entry = if ring.launches.len() < CAPACITY {
            if ring.launches.is_empty() {
                ring.launches.reserve_exact(CAPACITY);
            }
            ring.launches.push(LaunchRecord::new(number, site));
            let last = ring.launches.len() - 1;
            &mut ring.launches[last]
        } else {
            let entry = &mut ring.launches[ring.next];
            ring.next = (ring.next + 1) % CAPACITY;
            ring.last_dropped = entry.number;
            entry
        };
        entry.replace(number, site, operands);
    }

    /// Returns the launches after operation `done`, oldest first, and the number of operations after
    /// `done` up to the last launch that was dropped from the list.
    pub(crate) fn after(&self, done: OpNumber) -> (Vec<LaunchRecord>, u64) {
        let ring = self.lock();
        let (newer, older) = ring.launches.split_at(ring.next);
        let in_order = older.iter().chain(newer);
        let pending = in_order.filter(|l| l.number > done).copied().collect();
        (pending, ring.last_dropped.saturating_sub(done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a plain list, at every length below three times the capacity.
    #[test]
    fn the_last_launches_are_kept_in_order_and_older_ones_counted() {
        for recorded in 0..3 * CAPACITY as u64 {
            let launches = Launches::default();
            for number in 1..=recorded {
                launches.record(number, Site::here("add"), std::iter::empty());
            }
            for done in 0..=recorded {
                let (pending, older) = launches.after(done);
                let numbers: Vec<_> = pending.iter().map(|l| l.number).collect();
                let all: Vec<_> = (done + 1..=recorded).collect();
                let dropped = all.len().saturating_sub(CAPACITY);
                assert_eq!((numbers.as_slice(), older), (&all[dropped..], dropped as u64));
            }
        }
    }

    #[test]
    fn a_launch_prints_its_op_operands_and_location() {
        let launches = Launches::default();
        let here = Site::here("");
        let at = |op| Site { op, ..here };
        let here = here.location;
        let text = || launches.after(0).0.last().map(ToString::to_string).unwrap_or_default();
        let shapes: [(&str, &[usize]); 2] = [("float32", &[2, 3]), ("bool", &[])];
        launches.record(1, at("mul"), shapes.into_iter());
        assert_eq!(text(), format!("mul(float32[2, 3], bool[]) at {here}"));
        let large: (&str, &[usize]) = ("int64", &[1, 2, 3, 4, 5]);
        launches.record(2, at("cat"), std::iter::repeat_n(large, 5));
        let one = "int64[1, 2, 3, 4, ..]";
        assert_eq!(text(), format!("cat({one}, {one}, {one}, {one}, ..) at {here}"));
        // A reused entry must keep nothing of the previous launch.
        for number in 3..=200 {
            launches.record(number, at("neg"), shapes.into_iter().skip(1));
        }
        assert_eq!(text(), format!("neg(bool[]) at {here}"));
    }
}
