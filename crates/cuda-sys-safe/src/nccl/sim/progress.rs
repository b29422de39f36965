//! Drives other ranks while a thread waits for them.
//!
//! Work runs only inside driver calls, so a thread that waits for a collective has to run the other
//! ranks' work itself. It runs one operation at a time, and only operations that the collective
//! needs.
//!
//! Lock order: a driver's state, then a hub, then a participant, then the count of changes. Release
//! a driver's lock before you drive other ranks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::Participant;

/// Counts changes that may let a rank continue.
static CHANGE_COUNT: Mutex<u64> = Mutex::new(0);
/// Notified after each change of [`CHANGE_COUNT`].
static CHANGED: Condvar = Condvar::new();

/// The ranks of this process.
static PARTICIPANTS: Mutex<Vec<Weak<Participant>>> = Mutex::new(Vec::new());

/// Reports a change for which a thread may be waiting.
pub(crate) fn notify_change() {
    *CHANGE_COUNT.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    CHANGED.notify_all();
}

/// Returns the count of changes, for [`wait_for_change`].
pub(crate) fn change_count() -> u64 {
    *CHANGE_COUNT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the count of changes differs from `seen`, or for at most `limit`.
pub(crate) fn wait_for_change(seen: u64, limit: Duration) {
    let version = CHANGE_COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = CHANGED.wait_timeout_while(version, limit, |version| *version == seen);
    drop(waited.unwrap_or_else(PoisonError::into_inner));
}

pub(super) fn register(participant: &Arc<Participant>) {
    let mut participants = PARTICIPANTS.lock().unwrap_or_else(PoisonError::into_inner);
    participants.retain(|participant| participant.strong_count() > 0);
    participants.push(Arc::downgrade(participant));
}

fn participants() -> Vec<Arc<Participant>> {
    let participants = PARTICIPANTS.lock().unwrap_or_else(PoisonError::into_inner);
    participants.iter().filter_map(Weak::upgrade).collect()
}

/// For each rank of a communicator in this process, runs one operation that the rank's first
/// unfinished operation needs. Does the same for the communicators that block these operations, and
/// asks other processes to do the same. If `needed` is set, streams that are held back continue.
/// Returns `true` if an operation ran in this process.
///
/// The caller must not hold a driver's lock.
pub(crate) fn drive(blocked: &Arc<Participant>, needed: bool) -> bool {
    let all = participants();
    let mut open = vec![Arc::clone(blocked)];
    let mut asked: Vec<Arc<Participant>> = Vec::new();
    let mut ran = false;
    while let Some(comm) = open.pop() {
        if asked.iter().any(|participant| participant.is_with(&comm)) {
            continue;
        }
        comm.request_progress();
        for participant in all.iter().filter(|participant| participant.is_with(&comm)) {
            let Some(driver) = participant.driver() else { continue };
            let (advanced, behind) = driver.advance(participant, needed);
            ran |= advanced;
            open.extend(behind);
        }
        asked.push(comm);
    }
    ran
}

/// Starts a thread that runs the work for which other processes wait.
pub(super) fn serve() {
    static SERVED: AtomicBool = AtomicBool::new(false);
    if SERVED.swap(true, Ordering::AcqRel) {
        return;
    }
    let served = std::thread::Builder::new().name("warpline-sim-nccl".into()).spawn(|| {
        loop {
            let seen = change_count();
            let wanted: Vec<_> = participants()
                .into_iter()
                .filter(|participant| participant.is_progress_requested())
                .collect();
            let ran = wanted.iter().fold(false, |ran, participant| drive(participant, true) | ran);
            drop(wanted);
            if !ran {
                wait_for_change(seen, Duration::from_secs(1));
            }
        }
    });
    if served.is_err() {
        SERVED.store(false, Ordering::Release);
    }
}
