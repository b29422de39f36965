//! Where the kernels of one stream, or a captured kernel, say that a check failed.
//!
//! A kernel never traps. It writes what is wrong into its launch's *place*, a few words of mapped
//! memory, which no other launch is given before this one is known to be done: what stands there is
//! then kept by the launch itself, for whoever depends on its result, and for the wait that reports it.

use std::collections::VecDeque;
use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::owned::{self, LaunchToken};
use warpline_cuda_sys_safe::{DriverError, EventFlags};
use warpline_sync::{Mutex, MutexGuard};

use crate::checked::{CheckedLaunch, Place, REPLAYED, Site};
use crate::order::Progress;
use crate::{IndexCheck, OpNumber, Stream};

/// Places that a stream is given at first.
const PLACES: usize = 16;
/// So many launches are on their way for each time that the device is asked which are over: what
/// depends on them has that many marks.
const ASK: usize = 4;
/// Or for so many operations of the stream since it was asked, beside which a question costs little.
const APART: OpNumber = 16;
/// Failures that are kept until a wait reports them. Those beyond are known to what depends on them.
const UNREPORTED: usize = 8;

/// Where kernels of one stream, or a captured kernel, say that a check failed.
#[derive(Debug)]
pub struct Mailbox {
    /// Of a captured kernel: its place, which all its replays share, and its call.
    captured: Option<(Place, Site)>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Of the stream that the kernels run on; of a captured one, where it was replayed last.
    progress: Arc<Progress>,
    /// Launches that are not known to be done, oldest first.
    running: VecDeque<CheckedLaunch>,
    /// What failed and was not reported yet, oldest first.
    failed: VecDeque<CheckedLaunch>,
    /// Places that nobody writes to, with the launches that did last.
    free: VecDeque<(Place, Option<CheckedLaunch>)>,
    /// An event that was recorded after all operations up to this one: where no program waits, it
    /// says which launches are done.
    event: Option<owned::Event>,
    recorded: Option<OpNumber>,
    /// The stream's last operation when it was asked last.
    asked: OpNumber,
}

impl State {
    /// Takes up what launches said that are done, oldest first.
    fn settle(&mut self, captured: bool, done: impl Fn(&CheckedLaunch) -> bool) {
        while let Some(launch) = self.running.pop_front_if(|launch| done(launch)) {
            if launch.settle().is_some() && self.failed.len() < UNREPORTED {
                self.failed.push_back(launch.clone());
            }
            let Some(place) = launch.place().cloned() else { continue };
            if !captured {
                place.clear();
                self.free.push_back((place, Some(launch)));
            } else if self.running.is_empty() {
                // Not before: which of its replays said it is not known, and it counts as all of them.
                place.clear();
            }
        }
    }

    /// Takes up what launches said that are over, as far as that is known or the device says so.
    fn settle_done(&mut self, last: OpNumber) {
        let due = last >= self.asked + APART;
        if !due && !self.free.is_empty() && !self.running.len().is_multiple_of(ASK) {
            return;
        }
        self.settle(false, CheckedLaunch::is_known_done);
        if (due || self.running.len() >= ASK)
            && let (Some(op), Some(event)) = (self.recorded, &self.event)
            && event.query().unwrap_or(false)
        {
            self.recorded = None;
            // Nobody is told that they are done: a program that does not wait has no order from it.
            self.settle(false, |launch| launch.number().is_none_or(|(_, number)| number <= op));
        }
    }

    /// Records the event, if it is time to ask again and it is not recorded yet.
    fn watch(&mut self, stream: &Stream) {
        let due = stream.last_op() >= self.asked + APART && !self.running.is_empty();
        if self.recorded.is_some() || !(due || self.running.len() >= ASK) {
            return;
        }
        self.asked = stream.last_op();
        if self.event.is_none() {
            let core = stream.core();
            self.event = owned::Event::new(&core.driver, core.index, EventFlags::default()).ok();
        }
        // Without it there are more places.
        let recorded = self.event.as_ref().is_some_and(|event| event.record(stream.raw()).is_ok());
        self.recorded = recorded.then(|| stream.last_op());
    }
}

impl Mailbox {
    pub(crate) fn new(progress: &Arc<Progress>, captured: Option<(Place, Site)>) -> Self {
        let state = State {
            progress: Arc::clone(progress),
            running: VecDeque::new(),
            failed: VecDeque::new(),
            free: VecDeque::new(),
            event: None,
            recorded: None,
            asked: 0,
        };
        Self { captured, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operation that a closure given to [`Stream::submit`] is about to enqueue, and what its
    /// kernel is told: an address, what stands for the launch, and a word of the caller's. A kernel
    /// that finds 0 at the address writes index, that word, dimension and size after it, and then
    /// there, in that order, what stands for the launch. The token says that it is a launch path that
    /// asks: of a launch that is not that operation, it would count as known how it went.
    ///
    /// # Errors
    /// The driver's own, where more places are needed.
    pub fn launch(
        &self,
        _token: LaunchToken,
        stream: &Stream,
        op: &'static str,
        location: &'static Location<'static>,
    ) -> Result<(CheckedLaunch, [u64; 3]), DriverError> {
        self.begin(stream, op, location)
    }

    fn begin(
        &self,
        stream: &Stream,
        op: &'static str,
        location: &'static Location<'static>,
    ) -> Result<(CheckedLaunch, [u64; 3]), DriverError> {
        let (mut state, place, former) = loop {
            let mut state = self.state();
            state.settle_done(stream.last_op());
            if let Some((place, former)) = state.free.pop_front() {
                break (state, place, former);
            }
            let more = state.running.len().max(PLACES);
            drop(state);
            // The lock on all mailboxes comes before those of each.
            let places = stream.core().world.checks.places(stream.core(), more)?;
            self.state().free.extend(places.into_iter().map(|place| (place, None)));
        };
        let number = stream.last_op() + 1;
        let site = (op, location);
        let launch = CheckedLaunch::on(former, site, stream.progress(), number, (&place, number));
        state.watch(stream);
        state.running.push_back(launch.clone());
        Ok((launch, [place.address(), number, 0]))
    }

    /// What a captured kernel is told, as [`Mailbox::launch`].
    #[must_use]
    pub fn captured(&self) -> [u64; 3] {
        let address = self.captured.as_ref().map_or(0, |(place, _)| place.address());
        [address, REPLAYED, 0]
    }

    /// Operation `op` of a stream, which is about to be enqueued and replays the captured kernel.
    /// What replays say that are under way at once counts as said by each of them. The token as of
    /// [`Mailbox::launch`].
    #[must_use]
    pub fn enter_replay(
        &self,
        _token: LaunchToken,
        stream: &Stream,
        op: OpNumber,
    ) -> Option<CheckedLaunch> {
        self.begin_replay(stream, op)
    }

    fn begin_replay(&self, stream: &Stream, op: OpNumber) -> Option<CheckedLaunch> {
        let (place, site) = self.captured.as_ref()?;
        let mut state = self.state();
        state.settle(true, CheckedLaunch::is_known_done);
        state.progress = Arc::clone(stream.progress());
        let launch = CheckedLaunch::on(None, *site, stream.progress(), op, (place, REPLAYED));
        state.running.push_back(launch.clone());
        Some(launch)
    }

    /// Takes back what was refused.
    pub fn withdraw(&self, refused: &CheckedLaunch) {
        let mut state = self.state();
        let at = state.running.iter().position(|launch| launch == refused);
        let Some(launch) = at.and_then(|at| state.running.remove(at)) else { return };
        match (&self.captured, launch.place().cloned()) {
            (None, Some(place)) => state.free.push_back((place, Some(launch))),
            (Some((place, _)), _) if state.running.is_empty() => place.clear(),
            _ => {}
        }
    }

    /// What the oldest failed launch said that a wait covers which was not reported, the wait being
    /// over. Those after it count as reported too.
    pub(crate) fn report(&self, covers: impl Fn(&CheckedLaunch) -> bool) -> Option<IndexCheck> {
        let mut state = self.state();
        state.settle(self.captured.is_some(), |launch| launch.is_known_done() || covers(launch));
        let mut oldest = None;
        state.failed.retain(|launch| {
            let covered = covers(launch);
            if covered && !launch.was_told() {
                launch.tell();
                oldest.get_or_insert_with(|| launch.clone());
            }
            !covered && !launch.was_told()
        });
        oldest.and_then(|launch| launch.settle().cloned())
    }

    /// Where its stream is by now, that of the last replay if it is a captured kernel's.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.state().progress)
    }

    /// Its places, if nobody will write to them any more, its stream or graph being gone.
    pub(crate) fn abandoned(self: &Arc<Self>) -> Option<Vec<Place>> {
        let mut state = self.state();
        state.settle(self.captured.is_some(), CheckedLaunch::is_known_done);
        let idle = state.running.is_empty() && state.failed.is_empty();
        (idle && Arc::strong_count(self) == 1).then(|| {
            let free = state.free.drain(..).map(|(place, _)| place);
            free.chain(self.captured.as_ref().map(|(place, _)| place.clone())).collect()
        })
    }
}

impl Stream {
    /// Where its kernels say that a check failed. It is made on first use.
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        // Of two threads that make one, one finds the other's.
        self.mailbox_slot().get_or_init(|| {
            let made = Arc::new(Mailbox::new(self.progress(), None));
            self.core().world.checks.enter(&made);
            made
        })
    }

    /// As [`Stream::mailbox`], of one kernel that is captured on this stream.
    ///
    /// # Errors
    /// The driver's own.
    pub fn captured_mailbox(
        &self,
        op: &'static str,
        location: &'static Location<'static>,
    ) -> Result<Arc<Mailbox>, DriverError> {
        let checks = &self.core().world.checks;
        let place = checks.places(self.core(), 1)?.pop();
        let captured = place.map(|place| (place, (op, location)));
        let made = Arc::new(Mailbox::new(self.progress(), captured));
        checks.enter(&made);
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use warpline_cuda_sys_safe::sim::SimConfig;

    use super::*;
    use crate::{CheckOutcome, Devices, StreamError};

    fn stream() -> Stream {
        let devices = Devices::new(SimConfig::new(1).build()).unwrap();
        devices.get(0).unwrap().exclusive_stream(0).unwrap()
    }

    /// Enqueues a wait that counts as the launch.
    fn run(stream: &Stream) {
        let event = stream.record_event(None).unwrap();
        stream.wait_event(&event).unwrap();
    }

    /// What a kernel does that meets a wrong index, of a dimension of no size.
    fn say(launch: &CheckedLaunch, index: u64, says: u64) {
        let Place { page, first } = launch.place().unwrap();
        if page.load(*first) == 0 {
            page.store(first + 1, index);
            page.store(*first, says);
        }
    }

    fn index(launch: &CheckedLaunch) -> Option<i64> {
        match launch.outcome() {
            CheckOutcome::Failed(failed) => Some(failed.index),
            CheckOutcome::Passed => None,
            CheckOutcome::Pending => panic!("it is done"),
        }
    }

    #[test]
    fn what_a_launch_said_stays_when_its_place_is_given_away() {
        let stream = stream();
        let mut launches = Vec::new();
        for i in 0..10 * PLACES as u64 {
            let here = Location::caller();
            let (launch, [_, says, _]) = stream.mailbox().begin(&stream, "test", here).unwrap();
            run(&stream);
            if i % 3 == 0 {
                say(&launch, i, says);
            }
            assert_eq!(launch.outcome(), CheckOutcome::Pending);
            launches.push(launch);
            if i % 5 == 0 {
                let _ = stream.synchronize();
            }
        }
        let _ = stream.synchronize();
        for (i, launch) in launches.iter().enumerate() {
            assert_eq!(index(launch), (i % 3 == 0).then_some(i as i64));
        }
        stream.synchronize().unwrap();
        // There never were more on their way.
        let State { free, running, .. } = &*stream.mailbox().state();
        assert_eq!((free.len(), running.len()), (PLACES, 0));
    }

    #[test]
    fn a_launch_that_was_refused_leaves_its_place() {
        let stream = stream();
        for _ in 0..10 * PLACES {
            let here = Location::caller();
            let (launch, _) = stream.mailbox().begin(&stream, "test", here).unwrap();
            stream.mailbox().withdraw(&launch);
        }
        let State { free, running, .. } = &*stream.mailbox().state();
        assert_eq!((free.len(), running.len()), (PLACES, 0));
    }

    #[test]
    fn a_replay_that_was_refused_leaves_no_failure() {
        let stream = stream();
        let mailbox = stream.captured_mailbox("test", Location::caller()).unwrap();
        let replay = || mailbox.begin_replay(&stream, stream.last_op() + 1).unwrap();
        let failed = replay();
        run(&stream);
        say(&failed, 7, REPLAYED);
        let refused = replay();
        // Meanwhile another thread waits.
        assert!(matches!(stream.synchronize(), Err(StreamError::IndexCheck(_))));
        mailbox.withdraw(&refused);
        let next = replay();
        run(&stream);
        stream.synchronize().unwrap();
        assert_eq!((index(&failed), index(&next)), (Some(7), None));
    }

    #[test]
    fn what_replays_say_at_once_is_said_by_each() {
        let stream = stream();
        let mailbox = stream.captured_mailbox("test", Location::caller()).unwrap();
        let replay = || {
            let replay = mailbox.begin_replay(&stream, stream.last_op() + 1).unwrap();
            run(&stream);
            replay
        };
        let both = [replay(), replay()];
        say(&both[1], 7, REPLAYED);
        assert!(matches!(stream.synchronize(), Err(StreamError::IndexCheck(_))));
        assert_eq!(both.each_ref().map(index), [Some(7); 2]);
        let next = replay();
        stream.synchronize().unwrap();
        assert_eq!(index(&next), None);
    }
}
