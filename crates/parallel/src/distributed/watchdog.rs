//! The watchdog: a thread per group that detects calls that hang and aborts the group.
//!
//! The watchdog aborts the group if a call is older than the timeout, a launch fails, NCCL reports an error, or a rank
//! has reported a failure. It publishes this rank's record, reads the other ranks' records, determines which rank is
//! missing or made a different call, and aborts the communicator. It keeps the group alive until the group's work is
//! done, so dropping a group neither waits for its work nor cancels it.
//!
//! Invariant: aborted results are not read. The results of a collective, and everything computed from them, are marked
//! with the collective's number (`completion.rs` of `warpline-runtime`). The watchdog first records the completed
//! calls, then fails the other calls, then aborts the communicator. From then on, host reads and launches of marked
//! bytes fail with `ErrorKind::Collective`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::error::{RankList, UNKNOWN_RANKS};
use super::flight_recorder::{self, PublishedCall};
use super::group::GroupShared;
use super::store::{Deadline, StoreResult};
use super::{Failure, GroupError, StoreError};

/// First words of the reason for a timeout.
const TIMED_OUT: &str = "it was not done within";
/// Key that the first rank to detect a failure sets in the store.
const FAILED: &str = "failed";

/// Time limit for asking the store whether a rank has reported a failure, and for a report by [`report_failure`].
/// Short, because a store that does not answer delays the detection of a timeout.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the time limit within which the other ranks must publish their records.
pub(super) fn publish_timeout(timeout: Duration) -> Duration {
    timeout.clamp(Duration::from_secs(1), Duration::from_secs(30))
}

/// Returns the time between two checks.
fn tick(timeout: Duration) -> Duration {
    (timeout / 8).clamp(Duration::from_millis(2), Duration::from_secs(1))
}

/// Starts the watchdog. It ends after the group was dropped and its work is done, or after the group has failed.
pub(super) fn start(group: &Arc<GroupShared>) -> io::Result<()> {
    let group = Arc::clone(group);
    let thread = std::thread::Builder::new().name("warpline-watchdog".into());
    thread.spawn(move || watch(&group)).map(drop)
}

fn watch(group: &GroupShared) {
    let timeout = group.parts.timeout;
    let mut tick = tick(timeout);
    loop {
        let (stop, launch_error) = group.wait_for_requests(tick);
        let unfinished = {
            let mut recorder = group.recorder();
            recorder.poll_finished();
            recorder.oldest_unfinished()
        };
        let late = unfinished.as_ref().is_some_and(|(_, begun)| begun.elapsed() >= timeout);
        let reason = match (launch_error, group.parts.transport.error()) {
            (Some(launch_error), _) => Some(launch_error),
            (None, Some(error)) => Some(error),
            (None, None) if late => Some(format!("{TIMED_OUT} {timeout:?}")),
            // A lost store is not a failure: its host may have ended after the last call.
            (None, None) => {
                match Deadline::after(CHECK_TIMEOUT).bound(|| group.parts.store.check(&[FAILED])) {
                    Ok(true) => Some(reported_failure(group)),
                    _ => None,
                }
            }
        };
        if let Some(reason) = reason {
            let call = unfinished.map(|(call, _)| call);
            return group.fail(diagnose(group, reason, call));
        }
        if stop {
            if unfinished.is_none() {
                return;
            }
            // No further call can wake the watchdog, because the group was dropped. Poll often, so that the thread ends
            // soon.
            tick = Duration::from_millis(2);
            std::thread::sleep(tick);
        }
    }
}

/// Makes the watchdogs of all ranks fail the group for a reason other than a failed call. Publishes this rank's record,
/// for which the other ranks wait, because the rank's own watchdog may have ended with the group.
pub(super) fn report_failure(group: &GroupShared, reason: &str) {
    let report = format!("rank {} reported: {reason}", group.rank());
    let own = group.recorder().calls();
    // Without the store, the other ranks' calls end at their timeout.
    let _ = Deadline::after(CHECK_TIMEOUT).bound(|| publish(group, &own, &report));
}

/// Publishes this rank's record and the failure, unless a failure was published before.
fn publish(group: &GroupShared, own: &[PublishedCall], report: &str) -> StoreResult<()> {
    let (store, rank) = (&group.parts.store, group.rank());
    store.set(&format!("record/{rank}"), &flight_recorder::encode(own))?;
    store.compare_set(FAILED, b"", report.as_bytes()).map(drop)
}

fn reported_failure(group: &GroupShared) -> String {
    let report = group.parts.store.get(FAILED, Duration::ZERO).unwrap_or_default();
    String::from_utf8_lossy(&report).into_owned()
}

/// Publishes this rank's record, reads the other ranks' records, and returns the resulting error.
fn diagnose(
    group: &GroupShared,
    mut reason: String,
    unfinished: Option<PublishedCall>,
) -> GroupError {
    let (parts, rank) = (&group.parts, group.rank());
    let (own, last) = {
        let recorder = group.recorder();
        (recorder.calls(), recorder.last())
    };
    let call = unfinished.clone().or(last);
    let report = match &call {
        Some(call) => format!("rank {rank} reported {}: {reason}", call.text),
        None => format!("rank {rank} reported: {reason}"),
    };
    let deadline = Deadline::after(publish_timeout(parts.timeout));
    let mut lost = deadline.bound(|| publish(group, &own, &report)).err();
    let (mut others, mut missing, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for other in (0..group.ranks()).filter(|other| *other != rank) {
        if lost.is_some() {
            // The store is lost: do not wait for its timeout once per rank.
            unknown.push(other);
            continue;
        }
        match parts.store.get(&format!("record/{other}"), deadline.left()) {
            Ok(bytes) => others.push((other, flight_recorder::decode(&bytes))),
            Err(StoreError::Timeout { replied: true, .. }) => missing.push(other),
            Err(error) => {
                lost = Some(error);
                unknown.push(other);
            }
        }
    }
    let timed_out = reason.starts_with(TIMED_OUT) && missing.is_empty() && lost.is_none();
    if let Some(error) = lost {
        reason = format!("{reason}; {error}{}", RankList(&unknown, UNKNOWN_RANKS));
        let host = parts.store_host.and_then(|host| parts.members.iter().position(|m| *m == host));
        missing.extend(host.filter(|host| *host != rank && !missing.contains(host)));
    }
    let differing = match &unfinished {
        Some(unfinished) => flight_recorder::differences(rank, &own, unfinished, &others),
        None => Vec::new(),
    };
    let (op, seq, location) =
        call.map(|call| (call.text, call.seq, call.location)).unwrap_or_default();
    let (group, timeout) = (parts.name.clone(), parts.timeout);
    let failure = Failure { group, rank, op, seq, location, reason, missing, differing, timeout };
    let failure = Arc::new(failure);
    if timed_out { GroupError::CollectiveTimeout(failure) } else { GroupError::PeerFailed(failure) }
}
