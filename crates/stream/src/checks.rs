//! All mailboxes of the devices of one driver, and the handling of their reports at waits.
//!
//! Invariant: `synchronize` alone reports a failure, once, to its owner (`owner.rs`). A read or a
//! launch that returned the failure to its owner counts as that report. If the owner's thread has
//! ended, the next `synchronize` of any thread that covers the launch reports it. Of several
//! failures of one owner on one stream, the oldest is reported. All other waits and queries only
//! record outcomes. Reads of the data always report, see `launch/marks.rs` of `warpline-runtime`.
//! Until a kernel that checks is launched, a wait costs one load more.

use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::MappedWords;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};

#[cfg(doc)]
use crate::ErrorKind;
use crate::checked::At;
use crate::clock::{Clock, Point};
use crate::device::Core;
use crate::index_check::Place;
use crate::{CheckOwner, Mailbox, Result};

/// Places that are allocated together.
const PAGE: usize = 512;

/// All mailboxes of the devices of one driver.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Whether there is a mailbox. Without one, no wait locks the list.
    any: AtomicBool,
    /// Locked before any mailbox.
    mailboxes: Mutex<Vec<Arc<Mailbox>>>,
    /// Places that belong to no mailbox. No lock is taken under this one.
    free: Mutex<Vec<Place>>,
}

impl Checks {
    fn mailboxes(&self) -> MutexGuard<'_, Vec<Arc<Mailbox>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) -> MutexGuard<'_, Vec<Place>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new mailbox.
    pub(crate) fn enter(&self, mailbox: &Arc<Mailbox>) {
        self.mailboxes().push(Arc::clone(mailbox));
        self.any.store(true, Ordering::Relaxed);
    }

    /// Reclaims the places of mailboxes whose stream is gone.
    fn sweep(&self) {
        self.mailboxes().retain(|mailbox| {
            let places = mailbox.abandoned();
            let keeps = places.is_none();
            self.give_back(places.into_iter().flatten());
            keeps
        });
    }

    /// Returns `count` empty places.
    pub(crate) fn places(&self, core: &Core, count: usize) -> Result<Vec<Place>, DriverError> {
        if self.free().len() < count {
            self.sweep();
        }
        let mut free = self.free();
        if free.len() < count {
            let places = count.max(PAGE);
            let page = MappedWords::new(&core.driver, core.index, places * Place::WORDS)?;
            let page = Arc::new(page);
            let place = |n: usize| Place { page: Arc::clone(&page), first: n * Place::WORDS };
            free.extend((0..places).rev().map(place));
        }
        let rest = free.len() - count;
        Ok(free.split_off(rest))
    }

    /// Reclaims places that no kernel writes to any more.
    pub(crate) fn give_back(&self, places: impl Iterator<Item = Place>) {
        self.free().extend(places.inspect(Place::clear));
    }

    /// Records the outcomes of launches before any of these points, which are complete.
    #[inline]
    pub(crate) fn settle(&self, points: &[Point]) {
        if self.any.load(Ordering::Relaxed) {
            let covers =
                |at: &At| points.iter().any(|point| point.covers(at.progress.stream, at.op));
            self.mailboxes().iter().for_each(|mailbox| mailbox.settle(&covers));
        }
    }

    /// Returns a failed check of launches before any of these points, which are complete and
    /// settled, to its owner, or to any thread if the owner has ended.
    ///
    /// # Errors
    /// [`ErrorKind::IndexCheck`], for one failure per call. Others are left for the next call.
    #[inline]
    pub(crate) fn report(&self, points: &[Point]) -> Result<()> {
        if !self.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let owner = CheckOwner::current();
        let covers = |stream, op| points.iter().any(|point| point.covers(stream, op));
        let failed = self.mailboxes().iter().find_map(|mailbox| mailbox.report(&owner, &covers));
        match failed {
            Some(failed) => Err(failed.into()),
            None => Ok(()),
        }
    }

    /// Returns the ends of the streams of a device that have a mailbox, dropped streams included.
    pub(crate) fn points(&self, device: usize) -> Vec<Point> {
        let all = self.mailboxes();
        let progress = all.iter().map(|mailbox| mailbox.progress());
        let of_device = progress.filter(|progress| progress.device == device);
        of_device
            .map(|progress| Point::at(progress.last(), Arc::clone(progress), Clock::default()))
            .collect()
    }
}
