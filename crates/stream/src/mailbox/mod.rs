//! Reports of failed index checks by the kernels of one stream.
//!
//! A kernel that checks indices never traps, because a trap would lose the device. On failure the
//! kernel writes a report (the launch's number on its stream, the index, the dimension and its
//! size) to the *slot* of its launch: a few words of page-locked memory that no other launch uses
//! until this launch is complete. Kernels use plain stores, because atomics of a GPU on host memory
//! are not atomic for the host on every machine. When the launch is complete, its `CheckedLaunch`
//! keeps the report for the data that depends on the launch, and for the `synchronize` that reports
//! the failure to the launch's owner.
//!
//! A mailbox takes more slots when all of its slots are in use. It polls an event after every few
//! launches, so a program that never waits needs only as many slots as launches are in flight.
//!
//! A mailbox keeps launches, replays and unions (`checked_launch/`) in the order of the stream. The oldest
//! settle first.
//!
//! Lock order: a stream's submit lock, the lock on the list of all mailboxes, the lock of a mailbox,
//! the driver's locks.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::owned::{self, LaunchToken};
use warpline_cuda_sys_safe::{DriverError, EventFlags};
use warpline_sync::{Mutex, MutexGuard};

use crate::checked_launch::{CheckedLaunch, StreamOp};
use crate::clock::StreamPoint;
use crate::index_check::{FailedCheck, ReportSlot};
use crate::order::StreamProgress;
use crate::owner::MAX_REPORTED_CALLS;
use crate::{CheckOwner, IndexCheck, OpNumber, Site, Stream};

/// Number of slots that a stream receives at first.
const INITIAL_SLOTS: usize = 16;
/// Poll for completion once per this many launches in flight.
const POLL_LAUNCHES: usize = 4;
/// Poll at the latest after this many operations of the stream. A poll costs little compared to
/// them.
const POLL_OPS: OpNumber = 16;
/// Maximum number of calls per owner whose unreported failures a mailbox keeps. `synchronize` does not report the
/// failures of further calls; reads of the data that depends on them do.
const MAX_UNREPORTED: usize = MAX_REPORTED_CALLS;

/// Reports of failed index checks by the kernels of one stream, and the stream's checked launches in flight.
#[derive(Debug)]
pub struct Mailbox {
    progress: Arc<StreamProgress>,
    state: Mutex<MailboxState>,
}

#[derive(Debug, Default)]
struct MailboxState {
    /// Launches, replays and unions that are not known to be complete, oldest first.
    running: VecDeque<CheckedLaunch>,
    /// Unreported failures, oldest first, with their operations.
    failed: Vec<(OpNumber, Arc<FailedCheck>)>,
    /// Slots that no kernel writes to, each with its last launch.
    free: VecDeque<(ReportSlot, Option<CheckedLaunch>)>,
    /// The recorded event to poll, and the point in the stream at which it was recorded. Once the event is complete, so
    /// are the launches before that point.
    poll: Option<(owned::Event, StreamPoint)>,
    /// The event, while it is not recorded for a poll.
    idle_event: Option<owned::Event>,
    /// The stream's last operation when the event was last recorded, or last polled and found incomplete.
    polled_at: OpNumber,
    /// The latest union with its inputs, for reuse, because operations often write several tensors with the same
    /// dependencies.
    union: Option<(Vec<CheckedLaunch>, CheckedLaunch)>,
}

impl MailboxState {
    /// Records the outcomes of complete launches, oldest first.
    fn settle(&mut self, is_complete: &dyn Fn(&StreamOp) -> bool) {
        while let Some(launch) = self.running.pop_front_if(|launch| launch.settle(is_complete)) {
            launch.own_failures(|failure| self.note(launch.op(), Arc::clone(failure)));
            launch.end_replay();
            if let Some(slot) = launch.slot().cloned() {
                slot.clear();
                self.free.push_back((slot, Some(launch)));
            }
        }
    }

    /// Keeps a failure until it is reported to its owner, unless a failure of the same call is kept already or the
    /// owner has [`MAX_UNREPORTED`] others.
    fn note(&mut self, op: OpNumber, failure: Arc<FailedCheck>) {
        let mut ended = 0;
        self.failed.retain(|(_, failure)| {
            // The owner's thread may have ended since this failure was added.
            ended += usize::from(failure.owner.has_ended());
            !failure.is_reported() && (ended <= MAX_UNREPORTED || !failure.owner.has_ended())
        });
        let same_owner = self.failed.iter().filter(|(_, other)| is_reported_with(&failure, other));
        let (mut kept, mut is_new) = (0, true);
        for (_, other) in same_owner {
            kept += 1;
            is_new &= failure.call.is_none() || failure.call != other.call;
        }
        if is_new && kept < MAX_UNREPORTED {
            self.failed.push((op, failure));
        }
    }

    /// Returns whether a poll is due, even if no launch needs a slot.
    fn is_due(&self, last: OpNumber) -> bool {
        last >= self.polled_at + POLL_OPS
    }

    /// Settles launches that are known to be complete, or that a poll shows to be complete.
    fn settle_done(&mut self, last: OpNumber) {
        self.settle(&|_| false);
        if (self.is_due(last) || self.running.len() >= POLL_LAUNCHES)
            && let Some((event, point)) = self.poll.take()
        {
            if event.query().unwrap_or(false) {
                // Do not record the progress that the poll shows, because a poll must not order the program's streams.
                self.settle(&|at| point.covers(at.progress.stream, at.op));
                self.idle_event = Some(event);
            } else {
                self.polled_at = last;
                self.poll = Some((event, point));
            }
        }
    }
}

/// Returns whether a report of the failure `reported` also counts for `other`, because they have the
/// same owner. Ended threads count as one owner.
fn is_reported_with(reported: &FailedCheck, other: &FailedCheck) -> bool {
    reported.owner == other.owner || (reported.owner.has_ended() && other.owner.has_ended())
}

impl Mailbox {
    fn new(progress: &Arc<StreamProgress>) -> Self {
        Self { progress: Arc::clone(progress), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the operation that a closure passed to [`Stream::submit`] is about to enqueue. Returns the launch
    /// and the kernel's arguments: an address, the launch's number, and a word that the caller may choose. A
    /// kernel whose check fails reads the word at the address. If the word is 0, the kernel writes the index,
    /// the caller's word, the dimension and the size to the next words, and last the launch's number to the
    /// address. By passing the token, the caller guarantees that the operation follows: otherwise the launch
    /// would count as complete too early.
    ///
    /// # Errors
    /// [`DriverError`] if mapped memory is needed and the driver cannot allocate it.
    pub fn launch(
        &self,
        _token: LaunchToken,
        stream: &Stream,
        site: Site,
    ) -> Result<(CheckedLaunch, [u64; 3]), DriverError> {
        self.begin(stream, site)
    }

    fn begin(&self, stream: &Stream, site: Site) -> Result<(CheckedLaunch, [u64; 3]), DriverError> {
        let (mut state, slot, former) = loop {
            let mut state = self.state();
            let last = stream.last_op();
            let polls = state.free.is_empty() || state.running.len().is_multiple_of(POLL_LAUNCHES);
            if polls || state.is_due(last) {
                state.settle_done(last);
            }
            if let Some((slot, former)) = state.free.pop_front() {
                break (state, slot, former);
            }
            let more = state.running.len().max(INITIAL_SLOTS);
            drop(state);
            let slots = stream.core().shared.checks.take_slots(stream.core(), more)?;
            self.state().free.extend(slots.into_iter().map(|slot| (slot, None)));
        };
        let number = stream.last_op() + 1;
        let at = StreamOp { progress: Arc::clone(stream.progress()), op: number };
        let address = slot.address();
        let launch = CheckedLaunch::single(former, site, at, slot, number);
        state.running.push_back(launch.clone());
        Ok((launch, [address, number, 0]))
    }

    /// Adds a replay that is about to be enqueued.
    pub(crate) fn run(&self, stream: &Stream, replay: CheckedLaunch) {
        let (mut state, last) = (self.state(), stream.last_op());
        // A replay needs no slot, and a poll would double its cost, so poll only when a poll is due.
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
        if state.is_due(last) || state.running.len().is_multiple_of(POLL_LAUNCHES) {
            state.settle_done(last);
        }
        let at = StreamOp { progress: Arc::clone(stream.progress()), op };
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
            if state.poll.is_some() || !(due || state.running.len() >= POLL_LAUNCHES) {
                return;
            }
            state.polled_at = last;
            state.idle_event.take()
        };
        let core = stream.core();
        let new = || owned::Event::new(&core.driver, core.index, EventFlags::default()).ok();
        let Some(event) = idle.or_else(new) else { return };
        // If the event cannot be recorded, there is no poll, and the mailbox takes more slots instead.
        let point = stream.record_uncaptured(&event).unwrap_or(None);
        let mut state = self.state();
        match point {
            Some(point) => state.poll = Some((event, point)),
            None => state.idle_event = Some(event),
        }
    }

    /// Removes a launch or replay that the driver refused.
    pub fn withdraw(&self, refused: &CheckedLaunch) {
        let mut state = self.state();
        let at = state.running.iter().rposition(|launch| launch == refused);
        let Some(launch) = at.and_then(|at| state.running.remove(at)) else { return };
        launch.end_replay();
        if let Some(slot) = launch.slot().cloned() {
            state.free.push_back((slot, Some(launch)));
        }
    }

    /// Records the outcomes of launches that are known to be complete or that a completed wait
    /// covers.
    pub(crate) fn settle(&self, covers: &dyn Fn(&StreamOp) -> bool) {
        self.state().settle(covers);
    }

    /// Returns the oldest unreported failure that the wait covers and whose owner is `owner` or an ended thread. Also
    /// marks the other covered failures of the same owner as reported; all ended threads count as one owner.
    pub(crate) fn report(
        &self,
        owner: &CheckOwner,
        covers: &dyn Fn(u64, OpNumber) -> bool,
    ) -> Option<IndexCheck> {
        let mut state = self.state();
        let mut oldest: Option<Arc<FailedCheck>> = None;
        let stream = self.progress.stream;
        state.failed.retain(|(op, failure)| {
            let reported = failure.is_reported();
            let due = failure.owner == *owner || failure.owner.has_ended();
            if reported || !due || !covers(stream, *op) {
                return !reported;
            }
            let first = oldest.get_or_insert_with(|| Arc::clone(failure));
            let same_owner = is_reported_with(first, failure);
            if same_owner {
                failure.mark_reported();
            }
            !same_owner
        });
        oldest.map(|failure| failure.check.clone())
    }

    /// Returns the progress of the stream.
    pub(crate) fn progress(&self) -> &Arc<StreamProgress> {
        &self.progress
    }

    /// Takes the slots if the stream is gone, all launches are complete and all failures reported.
    pub(crate) fn abandoned_slots(self: &Arc<Self>) -> Option<Vec<ReportSlot>> {
        let mut state = self.state();
        state.settle(&|_| false);
        state.failed.retain(|(_, failure)| !failure.is_reported());
        let idle = state.running.is_empty() && state.failed.is_empty();
        (idle && Arc::strong_count(self) == 1)
            .then(|| state.free.drain(..).map(|(slot, _)| slot).collect())
    }
}

impl Stream {
    /// Returns the stream's mailbox, which is created on first use.
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        self.mailbox_cell().get_or_init(|| {
            let mailbox = Arc::new(Mailbox::new(self.progress()));
            self.core().shared.checks.add(&mailbox);
            mailbox
        })
    }
}

#[cfg(test)]
mod tests;
