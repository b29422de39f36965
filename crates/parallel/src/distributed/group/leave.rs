//! The end of a CPU group: the rank that hosts the store leaves last.
//!
//! A collective between CPUs is done on a rank when that rank has its result. Other ranks may still have to read their
//! results from the store, which ends with the process that hosts it. So each rank sets a key when it has dropped the
//! group, and the host waits for the keys of the other ranks.

use std::time::Duration;

use super::super::store::Deadline;
use super::{GroupShared, Transport};

/// Longest time for which the host waits for the other ranks. A rank that was killed never leaves.
const HOST_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for which a rank other than the host waits for a store that does not answer.
const RANK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two checks whether the group has failed.
const TICK: Duration = Duration::from_millis(100);

impl GroupShared {
    /// Records in the store that this rank has dropped the group. On the host of the store, waits for the other ranks,
    /// unless the group has failed or this thread is panicking.
    pub(super) fn leave(&self) {
        let (parts, rank) = (&self.parts, self.rank());
        let (Transport::Cpu(_), Some(host)) = (&parts.transport, parts.store_host) else { return };
        let hosts = parts.members.get(rank) == Some(&host);
        let deadline = Deadline::after(if hosts { HOST_TIMEOUT } else { RANK_TIMEOUT });
        let left = |rank| format!("left/{rank}");
        // The store may be gone. Then there is nothing to wait for.
        let recorded = deadline.bound(|| parts.store.set(&left(rank), b""));
        if !hosts || recorded.is_err() || std::thread::panicking() {
            return;
        }
        let others: Vec<_> = (0..self.ranks()).filter(|other| *other != rank).map(left).collect();
        let others: Vec<_> = others.iter().map(String::as_str).collect();
        let waits = || parts.store.wait(&others, TICK.min(deadline.left())).is_err();
        while self.failure.get().is_none() && waits() && !deadline.has_passed() {}
    }
}
