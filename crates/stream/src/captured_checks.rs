//! The reports of failed checks by the captured kernels of a graph.
//!
//! A captured kernel has fixed arguments, so it has one place for all replays. A failure of one of
//! several overlapping replays therefore also marks the later replays, and earlier ones whose
//! outcome is not known yet. Once the failure is known, the next replay waits for the running ones,
//! so that it has an outcome of its own.
//!
//! Bytes that depend on a replay need not depend on earlier replays on the same stream that it
//! overlaps (`CheckedLaunch::covers`). Replays in a row therefore leave one dependency.

use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::LaunchToken;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};

use crate::checked::{At, CheckedLaunch};
use crate::devices::World;
use crate::index_check::{Failure, Place, REPLAYED};
use crate::{CheckOwner, IndexCheck, OpNumber, Site, Stream};

/// The failures of a replay, with the numbers of their kernels.
pub(crate) type KernelFailures = Box<[(usize, Arc<Failure>)]>;

/// Reports of failed checks by the captured kernels of a graph. All replays share one place per
/// kernel, so a failure of one of several overlapping replays marks all of them.
#[derive(Debug, Default)]
pub struct CapturedChecks {
    state: Mutex<State>,
    /// Whether `failed` has entries.
    any_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Indexed by the kernels' numbers.
    places: Vec<(Place, Site)>,
    /// Number of replays that are not known to be complete.
    running: usize,
    /// Number of times that the last running replay has ended. A report belongs to all replays of
    /// its period.
    periods: u64,
    /// Known failures of this period, at most one per kernel and owner.
    failed: Vec<(usize, Arc<Failure>)>,
    world: Weak<World>,
}

impl CapturedChecks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a kernel that is captured on a stream. Returns the kernel's number, and the kernel's
    /// arguments in the form of [`Mailbox::launch`](crate::Mailbox::launch).
    ///
    /// # Errors
    /// The driver's error if mapped memory is needed and cannot be allocated.
    pub fn add(&self, stream: &Stream, site: Site) -> Result<(usize, [u64; 3]), DriverError> {
        let world = &stream.core().world;
        let place = world.checks.places(stream.core(), 1)?.pop();
        let address = place.as_ref().map_or(0, Place::address);
        let mut state = self.state();
        state.world = Arc::downgrade(world);
        state.places.extend(place.map(|place| (place, site)));
        Ok((state.places.len().saturating_sub(1), [address, REPLAYED, 0]))
    }

    /// Returns whether an earlier replay that overlaps the running ones is known to have failed.
    /// Its failure would mark the next replay too, unless that begins after the running replays are
    /// complete.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.any_failed.load(Ordering::Relaxed)
    }

    /// Begins operation `op` on a stream, which is about to be enqueued and replays the kernels.
    /// `None` if no kernel checks indices. With the token the caller guarantees that the operation
    /// follows, as for [`Mailbox::launch`](crate::Mailbox::launch).
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
        if state.places.is_empty() {
            return None;
        }
        state.running += 1;
        let period = state.periods;
        drop(state);
        let at = At { progress: Arc::clone(stream.progress()), op };
        let replay = CheckedLaunch::replay(self, period, at);
        stream.mailbox().run(stream, replay.clone());
        Some(replay)
    }

    /// Ends a replay whose outcome was recorded. The places are cleared only when no replay runs,
    /// because a report does not name its replay.
    pub(crate) fn end_replay(&self) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        if state.running == 0 {
            state.places.iter().for_each(|(place, _)| place.clear());
            state.periods += 1;
            state.failed.clear();
            self.any_failed.store(false, Ordering::Relaxed);
        }
    }

    /// Returns the failures of a replay that is complete but not ended. Overlapping replays of one
    /// owner share their failures, because they share the report.
    pub(crate) fn failures(&self, owner: &CheckOwner) -> KernelFailures {
        let mut state = self.state();
        let State { places, failed, .. } = &mut *state;
        let mut all = Vec::new();
        for (kernel, (place, site)) in places.iter().enumerate() {
            let Some(check) = place.report(REPLAYED, *site) else { continue };
            let known = failed.iter().find(|(k, f)| *k == kernel && f.owner == *owner);
            let failure = known.map(|(_, failure)| Arc::clone(failure)).unwrap_or_else(|| {
                let failure = Failure::new(check, owner.clone());
                failed.push((kernel, Arc::clone(&failure)));
                failure
            });
            all.push((kernel, failure));
        }
        self.any_failed.store(!failed.is_empty(), Ordering::Relaxed);
        all.into()
    }

    /// Returns the known failures of a period, with the numbers of their kernels.
    pub(crate) fn known_failures(&self, period: u64) -> Vec<(usize, Arc<Failure>)> {
        if !self.any_failed.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let state = self.state();
        if state.periods == period { state.failed.clone() } else { Vec::new() }
    }

    #[cfg(test)]
    pub(crate) fn with_place(&self, kernel: usize, f: impl FnOnce(&Place)) {
        f(&self.state().places[kernel].0);
    }

    /// Returns the present reports, with the numbers of their kernels.
    pub(crate) fn reports(&self) -> Vec<(usize, IndexCheck)> {
        let state = self.state();
        let places = state.places.iter().enumerate();
        places.filter_map(|(k, (place, site))| Some((k, place.report(REPLAYED, *site)?))).collect()
    }
}

impl Drop for CapturedChecks {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // While a replay runs, its launch keeps this.
        if let Some(world) = state.world.upgrade() {
            world.checks.give_back(state.places.drain(..).map(|(place, _)| place));
        }
    }
}
