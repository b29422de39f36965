//! Reports of failed index checks by the captured kernels of a graph.
//!
//! The arguments of a captured kernel are fixed, so all replays share one slot per kernel. If one of
//! several overlapping replays fails, the failure therefore also marks the later replays, and the
//! earlier replays whose outcome is not known yet. Once the failure is known, the next replay begins
//! only when no replay runs, so that the failure does not mark the next replay. Replays of a graph
//! with collectives do not wait in this way, because other ranks may wait for them.
//!
//! If a replay fails, so does each later replay that overlaps it on the same stream. The later
//! replay *covers* the earlier replay (`CheckedLaunch::covers`). Bytes that depend on a replay
//! therefore need no dependencies on the replays that it covers, so many consecutive replays leave
//! a single dependency.

use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::LaunchToken;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};
use warpline_types::CallId;

use crate::checked_launch::{CheckedLaunch, StreamOp};
use crate::devices::SharedState;
use crate::index_check::{FailedCheck, REPLAYED, ReportSlot};
use crate::{CheckOwner, IndexCheck, OpNumber, Site, Stream};

/// The failures of a replay, with the numbers of their kernels.
pub(crate) type KernelFailures = Box<[(usize, Arc<FailedCheck>)]>;

/// Reports of failed index checks by the captured kernels of a graph. All replays share one slot
/// per kernel, so a failure of one of several overlapping replays marks all of them.
#[derive(Debug, Default)]
pub struct CapturedChecks {
    state: Mutex<CapturedChecksState>,
    /// Whether `failed` has entries.
    any_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct CapturedChecksState {
    /// The kernels, indexed by their numbers.
    kernels: Vec<CapturedKernel>,
    /// Number of replays that are not known to be complete.
    running: usize,
    /// Number of the current period. A period ends when no replay runs any more. Replays of one
    /// period share their reports.
    period: u64,
    /// Known failures of this period, at most one per kernel and owner.
    failed: Vec<(usize, Arc<FailedCheck>)>,
    shared: Weak<SharedState>,
}

#[derive(Debug)]
struct CapturedKernel {
    slot: ReportSlot,
    site: Site,
    /// The public call that was captured.
    call: Option<CallId>,
}

impl CapturedKernel {
    fn report(&self) -> Option<IndexCheck> {
        self.slot.report(REPLAYED, self.site)
    }
}

impl CapturedChecks {
    fn state(&self) -> MutexGuard<'_, CapturedChecksState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a kernel that is captured on a stream. Returns the kernel's number, and the kernel's
    /// arguments in the form of [`Mailbox::launch`](crate::Mailbox::launch).
    ///
    /// # Errors
    /// [`DriverError`] if mapped memory is needed and the driver cannot allocate it.
    pub fn add(&self, stream: &Stream, site: Site) -> Result<(usize, [u64; 3]), DriverError> {
        let shared = &stream.core().shared;
        let slot = shared.checks.take_slots(stream.core(), 1)?.pop();
        let address = slot.as_ref().map_or(0, ReportSlot::address);
        let mut state = self.state();
        state.shared = Arc::downgrade(shared);
        let call = CallId::current();
        state.kernels.extend(slot.map(|slot| CapturedKernel { slot, site, call }));
        Ok((state.kernels.len().saturating_sub(1), [address, REPLAYED, 0]))
    }

    /// Returns whether an earlier replay that overlaps the running replays is known to have failed.
    /// This failure would mark the next replay too, unless the next replay begins after the running
    /// replays are complete.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.any_failed.load(Ordering::Relaxed)
    }

    /// Begins a replay of the kernels as operation `op` of a stream, before the replay is enqueued.
    /// Returns `None` if no kernel checks indices. By passing the token, the caller guarantees that
    /// it enqueues the operation, as for [`Mailbox::launch`](crate::Mailbox::launch).
    #[must_use]
    pub fn begin_replay(
        self: &Arc<Self>,
        _token: LaunchToken,
        stream: &Stream,
        op: OpNumber,
    ) -> Option<CheckedLaunch> {
        self.begin(stream, op)
    }

    pub(crate) fn begin(self: &Arc<Self>, stream: &Stream, op: OpNumber) -> Option<CheckedLaunch> {
        let mut state = self.state();
        if state.kernels.is_empty() {
            return None;
        }
        state.running += 1;
        let period = state.period;
        drop(state);
        let at = StreamOp { progress: Arc::clone(stream.progress()), op };
        let replay = CheckedLaunch::replay(self, period, at);
        stream.mailbox().run(stream, replay.clone());
        Some(replay)
    }

    /// Ends a replay whose outcome was recorded or that the driver refused. Clears the slots only when
    /// no replay runs, because a report does not name its replay.
    pub(crate) fn end_replay(&self) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        if state.running == 0 {
            state.kernels.iter().for_each(|kernel| kernel.slot.clear());
            state.period += 1;
            state.failed.clear();
            self.any_failed.store(false, Ordering::Relaxed);
        }
    }

    /// Returns the failures of a complete replay. Call it before [`CapturedChecks::end_replay`],
    /// which may clear the reports. Overlapping replays of one owner share their failures, because
    /// they share the reports. Failures of kernels that one captured call launched get the same new call identifier, so
    /// that a single report counts for all of them.
    pub(crate) fn failures(&self, owner: &CheckOwner) -> KernelFailures {
        let mut state = self.state();
        let CapturedChecksState { kernels, failed, .. } = &mut *state;
        let mut all = Vec::new();
        for (kernel, captured) in kernels.iter().enumerate() {
            let Some(check) = captured.report() else { continue };
            let known = failed.iter().find(|(k, f)| *k == kernel && f.owner == *owner);
            let failure = known.map(|(_, failure)| Arc::clone(failure)).unwrap_or_else(|| {
                let is_of_call = |(k, f): &&(usize, Arc<FailedCheck>)| {
                    captured.call.is_some()
                        && kernels[*k].call == captured.call
                        && f.owner == *owner
                };
                let call = failed.iter().find(is_of_call).and_then(|(_, failure)| failure.call);
                let call = call.unwrap_or_else(CallId::next);
                let failure = FailedCheck::new(check, owner.clone(), Some(call));
                failed.push((kernel, Arc::clone(&failure)));
                failure
            });
            all.push((kernel, failure));
        }
        self.any_failed.store(!failed.is_empty(), Ordering::Relaxed);
        all.into()
    }

    /// Returns the known failures of a period, with the numbers of their kernels.
    pub(crate) fn known_failures(&self, period: u64) -> Vec<(usize, Arc<FailedCheck>)> {
        if !self.any_failed.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let state = self.state();
        if state.period == period { state.failed.clone() } else { Vec::new() }
    }

    #[cfg(test)]
    pub(crate) fn with_slot(&self, kernel: usize, f: impl FnOnce(&ReportSlot)) {
        f(&self.state().kernels[kernel].slot);
    }

    /// Returns the reports that have arrived, with the numbers of their kernels.
    pub(crate) fn reports(&self) -> Vec<(usize, IndexCheck)> {
        let state = self.state();
        let kernels = state.kernels.iter().enumerate();
        kernels.filter_map(|(number, kernel)| Some((number, kernel.report()?))).collect()
    }
}

impl Drop for CapturedChecks {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // No replay is running, because the `CheckedLaunch` of a running replay would keep `self`
        // alive.
        if let Some(shared) = state.shared.upgrade() {
            shared.checks.return_slots(state.kernels.drain(..).map(|kernel| kernel.slot));
        }
    }
}
