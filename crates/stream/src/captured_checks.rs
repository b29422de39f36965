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

/// The failures of a replay, by the numbers of their kernels.
pub(crate) type KernelFailures = Box<[(usize, Arc<Failure>)]>;

/// Where the captured kernels of a graph report failed checks. All replays share one place per kernel:
/// a failure of one of several overlapping replays marks all of them.
#[derive(Debug, Default)]
pub struct CapturedChecks {
    state: Mutex<State>,
    /// Whether failures are known.
    any_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By the numbers of the kernels.
    places: Vec<(Place, Site)>,
    /// Replays that are not known to be done.
    running: usize,
    /// Times that no replay was running. Until then, a report is that of all replays.
    periods: u64,
    /// Failures that are known of this period, one for each kernel and owner.
    failed: Vec<(usize, Arc<Failure>)>,
    world: Weak<World>,
}

impl CapturedChecks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a kernel that is captured on a stream. Returns its number, and its arguments as
    /// [`Mailbox::launch`](crate::Mailbox::launch) does.
    ///
    /// # Errors
    /// The driver's own, if more mapped memory is needed.
    pub fn add(&self, stream: &Stream, site: Site) -> Result<(usize, [u64; 3]), DriverError> {
        let world = &stream.core().world;
        let place = world.checks.places(stream.core(), 1)?.pop();
        let address = place.as_ref().map_or(0, Place::address);
        let mut state = self.state();
        state.world = Arc::downgrade(world);
        state.places.extend(place.map(|place| (place, site)));
        Ok((state.places.len().saturating_sub(1), [address, REPLAYED, 0]))
    }

    /// Whether a replay is known to have failed that overlaps those under way. The next one would be
    /// marked with that failure, unless it begins once they are done.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.any_failed.load(Ordering::Relaxed)
    }

    /// Begins operation `op` of a stream, which is about to be enqueued and replays the kernels. `None`
    /// if no kernel checks. The token says that a launch path asks, as for
    /// [`Mailbox::launch`](crate::Mailbox::launch).
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

    /// Ends a replay, whose failures were taken up. The places are emptied only once none runs, because
    /// a report does not say which replay it is of.
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

    /// The failures of a replay that is done and not ended. Overlapping replays of one owner have the same,
    /// because one report is behind them.
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

    /// The failures that are known of a period, by the numbers of their kernels.
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

    /// The reports that are there, by the numbers of their kernels.
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
