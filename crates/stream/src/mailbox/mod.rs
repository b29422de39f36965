//! The reports of failed checks by the kernels of one stream.
//!
//! A kernel that checks indices never traps, because a trap would lose the device. On failure it
//! writes a report (the launch's number on its stream, the index, the dimension and its size) to
//! the *place* of its launch: a few words of page-locked memory that no other launch has while this
//! one may run. It uses plain stores, because not every machine makes a GPU's atomics on host
//! memory visible to the host as such. The launch's `CheckedLaunch` keeps the report, for the data
//! that depends on the launch and for the `synchronize` that tells the launch's owner.
//!
//! A mailbox takes more places when all are lent. It polls an event after every few launches, so a
//! program that never waits needs only as many places as launches are in flight.
//!
//! A mailbox holds launches, replays and unions (`checked/`) in the order of the stream, and
//! settles them from the front.
//!
//! Lock order: the lock on all mailboxes comes before that of each. Both come after a stream's
//! submit lock and before the driver.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::owned::{self, LaunchToken};
use warpline_cuda_sys_safe::{DriverError, EventFlags};
use warpline_sync::{Mutex, MutexGuard};

use crate::checked::{At, CheckedLaunch};
use crate::clock::Point;
use crate::index_check::{Failure, Place};
use crate::order::Progress;
use crate::{CheckOwner, IndexCheck, OpNumber, Site, Stream};

/// Number of places that a stream receives at first.
const PLACES: usize = 16;
/// Poll for completion once per this many launches in flight.
const ASK: usize = 4;
/// Poll at the latest after this many operations of the stream. The cost of a poll is small beside
/// these.
const APART: OpNumber = 16;
/// Maximum number of unreported failures per owner. Data that depends on later failures still
/// reports them.
const UNREPORTED: usize = 8;

/// Reports of failed checks by the kernels of one stream, and the stream's checked launches in
/// flight.
#[derive(Debug)]
pub struct Mailbox {
    progress: Arc<Progress>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Launches, replays and unions that are not known to be complete, oldest first.
    running: VecDeque<CheckedLaunch>,
    /// Failures that were not reported yet, oldest first, with their operations.
    failed: Vec<(OpNumber, Arc<Failure>)>,
    /// Places that no kernel writes to, each with its last launch.
    free: VecDeque<(Place, Option<CheckedLaunch>)>,
    /// Event of the last poll, and its point. Its completion shows which launches are complete if
    /// the program never waits.
    asked: Option<(owned::Event, Point)>,
    /// The event, kept between two polls.
    idle: Option<owned::Event>,
    /// The stream's last operation at the time of the last poll.
    asked_at: OpNumber,
    /// The latest union with its inputs. Operations often write several tensors with the same
    /// dependencies.
    union: Option<(Vec<CheckedLaunch>, CheckedLaunch)>,
}

impl State {
    /// Records the outcomes of complete launches, oldest first.
    fn settle(&mut self, over: &dyn Fn(&At) -> bool) {
        while let Some(launch) = self.running.pop_front_if(|launch| launch.settle(over)) {
            launch.own_failures(|failure| self.note(launch.op(), Arc::clone(failure)));
            launch.end_replay();
            if let Some(place) = launch.place().cloned() {
                place.clear();
                self.free.push_back((place, Some(launch)));
            }
        }
    }

    /// Keeps a failure until it is reported to its owner.
    fn note(&mut self, op: OpNumber, failure: Arc<Failure>) {
        let mut ended = 0;
        self.failed.retain(|(_, failure)| {
            // Owners end after their failures were kept.
            ended += usize::from(failure.owner.has_ended());
            !failure.was_told() && (ended <= UNREPORTED || !failure.owner.has_ended())
        });
        let same = |(_, other): &&(OpNumber, Arc<Failure>)| is_told_with(&failure, other);
        let kept = self.failed.iter().filter(same).count();
        if kept < UNREPORTED {
            self.failed.push((op, failure));
        }
    }

    /// Returns whether a poll is due, even if no launch needs a place.
    fn is_due(&self, last: OpNumber) -> bool {
        last >= self.asked_at + APART
    }

    /// Settles launches that are known to be complete, or that a poll shows to be complete.
    fn settle_done(&mut self, last: OpNumber) {
        self.settle(&|_| false);
        if (self.is_due(last) || self.running.len() >= ASK)
            && let Some((event, point)) = self.asked.take()
        {
            if event.query().unwrap_or(false) {
                // The streams' progress does not change: a program that does not wait gets no order
                // from a poll.
                self.settle(&|at| point.covers(at.progress.stream, at.op));
                self.idle = Some(event);
            } else {
                self.asked_at = last;
                self.asked = Some((event, point));
            }
        }
    }
}

/// Returns whether `other` counts as reported once `told` is reported: they have the same owner.
/// Threads that have ended count as one owner.
fn is_told_with(told: &Failure, other: &Failure) -> bool {
    told.owner == other.owner || (told.owner.has_ended() && other.owner.has_ended())
}

impl Mailbox {
    fn new(progress: &Arc<Progress>) -> Self {
        Self { progress: Arc::clone(progress), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the operation that a closure passed to [`Stream::submit`] is about to enqueue.
    /// Returns the launch and the kernel's arguments: an address, the launch's number, and a word
    /// that the caller may choose. A kernel with a failed check that finds 0 at the address writes
    /// the index, the caller's word, the dimension and the size to the words after it, and then the
    /// launch's number to the address. With the token the caller guarantees that the operation
    /// follows: otherwise the launch would count as complete too early.
    ///
    /// # Errors
    /// The driver's error if mapped memory is needed and cannot be allocated.
    pub fn launch(
        &self,
        _token: LaunchToken,
        stream: &Stream,
        site: Site,
    ) -> Result<(CheckedLaunch, [u64; 3]), DriverError> {
        self.begin(stream, site)
    }

    fn begin(&self, stream: &Stream, site: Site) -> Result<(CheckedLaunch, [u64; 3]), DriverError> {
        let (mut state, place, former) = loop {
            let mut state = self.state();
            let last = stream.last_op();
            let polls = state.free.is_empty() || state.running.len().is_multiple_of(ASK);
            if polls || state.is_due(last) {
                state.settle_done(last);
            }
            if let Some((place, former)) = state.free.pop_front() {
                break (state, place, former);
            }
            let more = state.running.len().max(PLACES);
            drop(state);
            let places = stream.core().world.checks.places(stream.core(), more)?;
            self.state().free.extend(places.into_iter().map(|place| (place, None)));
        };
        let number = stream.last_op() + 1;
        let at = At { progress: Arc::clone(stream.progress()), op: number };
        let address = place.address();
        let launch = CheckedLaunch::on(former, site, at, place, number);
        state.running.push_back(launch.clone());
        Ok((launch, [address, number, 0]))
    }

    /// Adds a replay that is about to be enqueued.
    pub(crate) fn run(&self, stream: &Stream, replay: CheckedLaunch) {
        let (mut state, last) = (self.state(), stream.last_op());
        // A replay needs no place, and a poll would double its cost.
        if state.is_due(last) {
            state.settle_done(last);
        }
        state.running.push_back(replay);
    }

    /// Returns the union of the launches that operation `op` of the stream depends on.
    #[must_use]
    pub fn union(
        &self,
        stream: &Stream,
        op: OpNumber,
        mut launches: Vec<CheckedLaunch>,
    ) -> CheckedLaunch {
        launches.sort_unstable_by_key(CheckedLaunch::key);
        launches.dedup_by(|next, launch| launch.absorb(next));
        if launches.len() == 1
            && let Some(launch) = launches.pop()
        {
            return launch;
        }
        let mut state = self.state();
        if let Some((inputs, union)) = &state.union
            && *inputs == launches
        {
            return union.clone();
        }
        let last = stream.last_op();
        if state.is_due(last) || state.running.len().is_multiple_of(ASK) {
            state.settle_done(last);
        }
        let at = At { progress: Arc::clone(stream.progress()), op };
        let union = CheckedLaunch::union(launches.iter().cloned(), at);
        state.running.push_back(union.clone());
        let former = state.union.replace((launches, union.clone()));
        drop(state);
        drop(former);
        union
    }

    /// Records an event after the stream's last operation if a poll is due. Call it after a launch,
    /// without the stream's lock.
    pub fn watch(&self, stream: &Stream) {
        let last = stream.last_op();
        let idle = {
            let mut state = self.state();
            let due = state.is_due(last) && !state.running.is_empty();
            if state.asked.is_some() || !(due || state.running.len() >= ASK) {
                return;
            }
            state.asked_at = last;
            state.idle.take()
        };
        let core = stream.core();
        let new = || owned::Event::new(&core.driver, core.index, EventFlags::default()).ok();
        let Some(event) = idle.or_else(new) else { return };
        // If this fails, there is no poll, and the mailbox takes more places instead.
        let point = stream.record_uncaptured(&event).unwrap_or(None);
        let mut state = self.state();
        match point {
            Some(point) => state.asked = Some((event, point)),
            None => state.idle = Some(event),
        }
    }

    /// Removes a launch or replay that the driver refused.
    pub fn withdraw(&self, refused: &CheckedLaunch) {
        let mut state = self.state();
        let at = state.running.iter().rposition(|launch| launch == refused);
        let Some(launch) = at.and_then(|at| state.running.remove(at)) else { return };
        launch.end_replay();
        if let Some(place) = launch.place().cloned() {
            state.free.push_back((place, Some(launch)));
        }
    }

    /// Records the outcomes of launches that are known to be complete or that a completed wait
    /// covers.
    pub(crate) fn settle(&self, covers: &dyn Fn(&At) -> bool) {
        self.state().settle(covers);
    }

    /// Returns the oldest failure that a wait covers to its owner, or to any thread if the owner
    /// has ended. Later failures of the same owner count as reported too.
    pub(crate) fn report(
        &self,
        owner: &CheckOwner,
        covers: &dyn Fn(u64, OpNumber) -> bool,
    ) -> Option<IndexCheck> {
        let mut state = self.state();
        let mut oldest: Option<Arc<Failure>> = None;
        let stream = self.progress.stream;
        state.failed.retain(|(op, failure)| {
            let told = failure.was_told();
            let due = failure.owner == *owner || failure.owner.has_ended();
            if told || !due || !covers(stream, *op) {
                return !told;
            }
            let first = oldest.get_or_insert_with(|| Arc::clone(failure));
            let told = is_told_with(first, failure);
            if told {
                failure.tell();
            }
            !told
        });
        oldest.map(|failure| failure.check.clone())
    }

    /// Returns the progress of the stream.
    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Returns the places if the stream is gone, so that no kernel will write to them.
    pub(crate) fn abandoned(self: &Arc<Self>) -> Option<Vec<Place>> {
        let mut state = self.state();
        state.settle(&|_| false);
        state.failed.retain(|(_, failure)| !failure.was_told());
        let idle = state.running.is_empty() && state.failed.is_empty();
        (idle && Arc::strong_count(self) == 1)
            .then(|| state.free.drain(..).map(|(place, _)| place).collect())
    }
}

impl Stream {
    /// Returns the stream's mailbox, which is created on first use.
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        // If two threads create a mailbox, the second one gets that of the first.
        self.mailbox_slot().get_or_init(|| {
            let made = Arc::new(Mailbox::new(self.progress()));
            self.core().world.checks.enter(&made);
            made
        })
    }
}

#[cfg(test)]
mod tests;
