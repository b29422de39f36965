//! Checks that kernels make themselves: where they say that one failed, and which wait reports it.
//!
//! A kernel never traps. It writes what is wrong into its stream's *mailbox*, a few words of mapped
//! memory. All launches that write to one mailbox run one after the other, so that plain stores
//! do; and what stands there stays until a wait that covers the launch has reported it. A stream's
//! launches take turns at several places in it, so that what fails meanwhile is kept too.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::MappedWords;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};

use crate::clock::{Clock, Point};
use crate::device::Core;
use crate::order::Progress;
use crate::{OpNumber, Result, Stream, StreamError};

/// The words of a place in a mailbox: launch, index, site, dimension, size. The first is 0 while it
/// is empty.
const WORDS: usize = 8;
/// A mailbox's places: so many launches of a stream can have failed that no wait has covered yet.
const PLACES: usize = 8;
/// Mailboxes that are allocated together.
const PAGE: usize = 64;
/// Stands for the number of a captured launch, which runs whenever its graph is replayed.
const REPLAYED: OpNumber = OpNumber::MAX;

/// A kernel met an index that its dimension does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{op}: index {index} is out of range for dimension {dim} with size {size}, in the call at {location}"
)]
pub struct IndexCheck {
    /// The op.
    pub op: &'static str,
    /// The index; one of them where several are out of range.
    pub index: i64,
    /// The dimension that it was to index.
    pub dim: usize,
    /// That dimension's size.
    pub size: usize,
    /// Where the op was called.
    pub location: &'static Location<'static>,
}

/// Where kernels of one stream, or a captured kernel, say that a check failed.
#[derive(Debug)]
pub struct Mailbox {
    page: Arc<MappedWords>,
    first: usize,
    captured: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Of the stream that the kernels run on.
    progress: Arc<Progress>,
    /// A captured kernel's last replay there.
    replay: OpNumber,
    /// The place that the last launch was given.
    place: usize,
    /// The calls that launched them: as many as the program's text has.
    sites: Vec<(&'static str, &'static Location<'static>)>,
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where its places begin: of a captured kernel's only the first is used.
    fn places(&self) -> impl Iterator<Item = usize> {
        (0..if self.captured { 1 } else { PLACES }).map(|place| self.first + place * WORDS)
    }

    /// What the operation that a closure given to [`Stream::submit`] is about to enqueue is told: an
    /// address, what stands for the launch, and what stands for the call. A kernel that finds 0 at
    /// the address writes index, call, dimension and size after it, and then there, in that order,
    /// the launch.
    #[must_use]
    pub fn launch(
        &self,
        stream: &Stream,
        op: &'static str,
        location: &'static Location<'static>,
    ) -> [u64; 3] {
        let mut state = self.state();
        // Nearly always one of the last, and the same static.
        let is = |site: &(&str, &Location<'_>)| *site == (op, location);
        let site = state.sites.iter().rposition(is).unwrap_or_else(|| {
            state.sites.push((op, location));
            state.sites.len() - 1
        });
        if self.captured {
            return [self.page.address(self.first), REPLAYED, site as u64];
        }
        // The next, or where a report stands in it, the one after.
        let mut turns = (1..=PLACES).map(|turn| (state.place + turn) % PLACES);
        let empty = turns.find(|place| self.page.load(self.first + place * WORDS) == 0);
        state.place = empty.unwrap_or(state.place);
        let at = self.first + state.place * WORDS;
        [self.page.address(at), stream.last_op() + 1, site as u64]
    }

    /// Enters that operation `op` of a stream, which is about to be enqueued, replays the captured
    /// kernel. Of several replays under way it is the last that is to be covered by the wait that
    /// reports.
    pub fn enter_replay(&self, stream: &Stream, op: OpNumber) {
        let mut state = self.state();
        (state.progress, state.replay) = (Arc::clone(stream.progress()), op);
    }

    /// Takes out what launches said that are known to be complete, or that lie before `point`, and
    /// answers what the oldest did.
    fn take(&self, point: Option<&Point>) -> Option<IndexCheck> {
        let words = &self.page;
        let mut said = self.places().filter(|at| words.load(*at) != 0).peekable();
        said.peek()?;
        let state = self.state();
        let op = |at: usize| match words.load(at) {
            REPLAYED => state.replay,
            launch => launch,
        };
        let done = |op| {
            state.progress.is_known_done(op)
                || point.is_some_and(|point| point.covers(state.progress.stream, op))
        };
        let done: Vec<_> = said.map(|at| (op(at), at)).filter(|(op, _)| done(*op)).collect();
        let &(_, oldest) = done.iter().min()?;
        let [index, site, dim, size] = [1, 2, 3, 4].map(|i| words.load(oldest + i));
        done.iter().for_each(|(_, at)| words.store(*at, 0));
        let &(op, location) = state.sites.get(site as usize)?;
        let (dim, size) = (dim as usize, size as usize);
        Some(IndexCheck { op, index: index as i64, dim, size, location })
    }

    /// Whether nobody will write to it any more, its stream or graph being gone.
    fn is_free(self: &Arc<Self>) -> bool {
        let state = self.state();
        let last = if self.captured { state.replay } else { state.progress.last() };
        let empty = || self.places().all(|at| self.page.load(at) == 0);
        state.progress.is_known_done(last) && empty() && Arc::strong_count(self) == 1
    }
}

impl Stream {
    /// Where its kernels say that a check failed. It is made on first use.
    ///
    /// # Errors
    /// The driver's own.
    pub fn mailbox(&self) -> Result<&Arc<Mailbox>, DriverError> {
        if let Some(mailbox) = self.mailbox_slot().get() {
            return Ok(mailbox);
        }
        let made = self.core().world.checks.mailbox(self.core(), self.progress(), false)?;
        // Of two threads that make one, one finds the other's.
        Ok(self.mailbox_slot().get_or_init(|| made))
    }

    /// As [`Stream::mailbox`], of one kernel that is captured on this stream.
    ///
    /// # Errors
    /// The driver's own.
    pub fn captured_mailbox(&self) -> Result<Arc<Mailbox>, DriverError> {
        self.core().world.checks.mailbox(self.core(), self.progress(), true)
    }
}

/// All mailboxes of the devices of one driver.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Whether there is any: without, no wait looks for them.
    any: AtomicBool,
    mailboxes: Mutex<Mailboxes>,
}

#[derive(Debug, Default)]
struct Mailboxes {
    all: Vec<Arc<Mailbox>>,
    /// The last page, and how many of its mailboxes are taken.
    page: Option<(Arc<MappedWords>, usize)>,
}

impl Checks {
    fn lock(&self) -> MutexGuard<'_, Mailboxes> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new mailbox of a stream, or of what is captured on it.
    pub(crate) fn mailbox(
        &self,
        core: &Core,
        progress: &Arc<Progress>,
        captured: bool,
    ) -> Result<Arc<Mailbox>, DriverError> {
        let mut boxes = self.lock();
        let boxes = &mut *boxes;
        let (page, first) = match boxes.all.iter().position(Mailbox::is_free) {
            Some(free) => {
                let free = boxes.all.swap_remove(free);
                (Arc::clone(&free.page), free.first)
            }
            None => match &mut boxes.page {
                Some((page, taken)) if *taken < PAGE => {
                    *taken += 1;
                    (Arc::clone(page), (*taken - 1) * PLACES * WORDS)
                }
                slot => {
                    let page = Arc::new(MappedWords::new(
                        &core.driver,
                        core.index,
                        PAGE * PLACES * WORDS,
                    )?);
                    *slot = Some((Arc::clone(&page), 1));
                    (page, 0)
                }
            },
        };
        let state =
            State { progress: Arc::clone(progress), replay: 0, place: 0, sites: Vec::new() };
        let mailbox = Arc::new(Mailbox { page, first, captured, state: Mutex::new(state) });
        boxes.all.push(Arc::clone(&mailbox));
        self.any.store(true, Ordering::Relaxed);
        Ok(mailbox)
    }

    /// Runs `mark`, which enters that work is complete, and reports a failed check of such work, or
    /// of what lies before `point`. One at a time: what is left is reported by the next wait.
    #[inline]
    pub(crate) fn look(&self, point: Option<&Point>, mark: impl FnOnce()) -> Result<()> {
        if !self.any.load(Ordering::Relaxed) {
            mark();
            return Ok(());
        }
        // No other thread, which waits for other work, sees the marks before this one has looked.
        let boxes = self.lock();
        mark();
        match boxes.all.iter().find_map(|mailbox| mailbox.take(point)) {
            Some(failed) => Err(StreamError::IndexCheck(failed)),
            None => Ok(()),
        }
    }

    /// Where streams of a device are by now that have a mailbox, those that are gone among them.
    pub(crate) fn points(&self, device: usize) -> Vec<Point> {
        let boxes = self.lock();
        let progress = boxes.all.iter().map(|mailbox| Arc::clone(&mailbox.state().progress));
        let of_device = progress.filter(|progress| progress.device == device);
        let point = |progress: Arc<Progress>| Point {
            op: progress.last(),
            progress,
            before: Clock::default(),
            capture: None,
        };
        of_device.map(point).collect()
    }
}
