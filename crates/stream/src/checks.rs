//! All mailboxes of the devices of one driver, and which wait reports what stands in them.

use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::MappedWords;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};

use crate::checked::{CheckedLaunch, Place};
use crate::clock::{Clock, Point};
use crate::device::Core;
use crate::{Mailbox, Result, StreamError};

/// Places that are allocated together.
const PAGE: usize = 512;

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
    /// Places that no mailbox has.
    free: Vec<Place>,
}

impl Mailboxes {
    /// Takes the places of those whose stream or graph is gone.
    fn sweep(&mut self) {
        let Self { all, free } = self;
        all.retain(|mailbox| {
            let places = mailbox.abandoned();
            let keeps = places.is_none();
            free.extend(places.into_iter().flatten());
            keeps
        });
    }
}

impl Checks {
    fn lock(&self) -> MutexGuard<'_, Mailboxes> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a new mailbox.
    pub(crate) fn enter(&self, mailbox: &Arc<Mailbox>) {
        self.lock().all.push(Arc::clone(mailbox));
        self.any.store(true, Ordering::Relaxed);
    }

    /// So many places, which are empty.
    pub(crate) fn places(&self, core: &Core, count: usize) -> Result<Vec<Place>, DriverError> {
        let mut boxes = self.lock();
        if boxes.free.len() < count {
            boxes.sweep();
        }
        if boxes.free.len() < count {
            let places = count.max(PAGE);
            let page = MappedWords::new(&core.driver, core.index, places * Place::WORDS)?;
            let page = Arc::new(page);
            let place = |n: usize| Place { page: Arc::clone(&page), first: n * Place::WORDS };
            boxes.free.extend((0..places).rev().map(place));
        }
        let rest = boxes.free.len() - count;
        Ok(boxes.free.split_off(rest))
    }

    /// Runs `mark`, which enters that work is complete, and reports a failed check of what lies before
    /// any of these points and was not reported. One at a time: what is left is for the next wait.
    #[inline]
    pub(crate) fn look(&self, points: &[Point], mark: impl FnOnce()) -> Result<()> {
        mark();
        if self.any.load(Ordering::Relaxed) { self.report(points) } else { Ok(()) }
    }

    /// [`Checks::look`] of what `point` makes, which is known to be done.
    #[inline]
    pub(crate) fn look_at(&self, point: impl FnOnce() -> Point) -> Result<()> {
        if self.any.load(Ordering::Relaxed) { self.report(&[point()]) } else { Ok(()) }
    }

    fn report(&self, points: &[Point]) -> Result<()> {
        let covers = |launch: &CheckedLaunch| {
            let covers = |(stream, op)| points.iter().any(|point| point.covers(stream, op));
            launch.number().is_some_and(covers)
        };
        let boxes = self.lock();
        match boxes.all.iter().find_map(|mailbox| mailbox.report(covers)) {
            Some(failed) => Err(StreamError::IndexCheck(failed)),
            None => Ok(()),
        }
    }

    /// Where streams of a device are by now that have a mailbox, those that are gone among them.
    pub(crate) fn points(&self, device: usize) -> Vec<Point> {
        let boxes = self.lock();
        let progress = boxes.all.iter().map(|mailbox| mailbox.progress());
        let of_device = progress.filter(|progress| progress.device == device);
        of_device.map(|progress| Point::at(progress.last(), progress, Clock::default())).collect()
    }
}
