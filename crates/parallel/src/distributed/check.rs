//! Debug mode: the ranks' calls are compared before anything is launched.

use std::time::Duration;

use super::group::Shared;
use super::{Error, RankCall, Result, StoreError};

/// How long the store is waited for before it is seen whether the group has failed meanwhile.
const SLICE: Duration = Duration::from_millis(100);

/// Compares this rank's call with those of all others, waiting for theirs.
pub(super) fn compare(group: &Shared, seq: u64, call: &str) -> Result<()> {
    let (parts, rank) = (&group.parts, group.rank());
    let key = |seq: u64, rank: usize| format!("check/{seq}/{rank}");
    parts.store.set(&key(seq, rank), call.as_bytes())?;
    let mut differing = Vec::new();
    for other in (0..parts.comm.ranks()).filter(|other| *other != rank) {
        let theirs = loop {
            match parts.store.get(&key(seq, other), SLICE) {
                // The watchdog sees to the timeout.
                Err(StoreError::Timeout { .. }) => group.check_alive()?,
                theirs => break theirs?,
            }
        };
        if theirs != call.as_bytes() {
            let call = format!("called {}", String::from_utf8_lossy(&theirs));
            differing.push(RankCall { rank: other, call });
        }
    }
    // All have come to this call, so that nobody reads that of two before.
    if seq > 2 {
        parts.store.delete(&key(seq - 2, rank))?;
    }
    if differing.is_empty() {
        return Ok(());
    }
    Err(Error::Mismatch { rank, seq, call: call.into(), differing })
}
