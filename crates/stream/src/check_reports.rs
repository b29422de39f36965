//! All mailboxes of the devices of one driver, and the handling of failed index checks at waits.
//!
//! Invariant: among waits and queries, only `synchronize` reports a failure, once, to the owner of the launch
//! (`owner.rs`). All other waits and queries only record outcomes. `synchronize` does not report a failure that a read
//! or a launch has already returned to the owner. One report covers all failures of a public call. If the owner's
//! thread has ended, the failure is reported by the next `synchronize` of any thread that covers the launch. If an
//! owner has several failures on a stream, only the oldest is reported. Reads of the data always report the failure;
//! see `launch/result_marks.rs` of `warpline-runtime`. Until the first launch of a kernel that checks indices, this
//! handling costs a wait for a stream or an event at most two loads.

use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::MappedWords;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard};

#[cfg(doc)]
use crate::ErrorKind;
use crate::checked_launch::StreamOp;
use crate::clock::{Clock, StreamPoint};
use crate::device::DeviceCore;
use crate::index_check::ReportSlot;
use crate::{CheckOwner, Mailbox, Result};

/// Number of slots that are allocated together.
const SLOTS_PER_PAGE: usize = 512;

/// All mailboxes of the devices of one driver.
#[derive(Debug, Default)]
pub(crate) struct CheckReports {
    /// Whether a mailbox was ever added. Until then, [`CheckReports::settle`] and [`CheckReports::report`] do not lock
    /// the list.
    any: AtomicBool,
    /// Locked before any mailbox.
    mailboxes: Mutex<Vec<Arc<Mailbox>>>,
    /// Slots that belong to no mailbox and no graph. While this lock is held, only locks of the driver are taken.
    free: Mutex<Vec<ReportSlot>>,
}

impl CheckReports {
    fn mailboxes(&self) -> MutexGuard<'_, Vec<Arc<Mailbox>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) -> MutexGuard<'_, Vec<ReportSlot>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a mailbox, so that waits settle and report its launches.
    pub(crate) fn add(&self, mailbox: &Arc<Mailbox>) {
        self.mailboxes().push(Arc::clone(mailbox));
        self.any.store(true, Ordering::Relaxed);
    }

    /// Drops the mailboxes of dropped streams that have no launch in flight and no unreported failure, and
    /// reclaims their slots.
    fn reclaim_abandoned(&self) {
        self.mailboxes().retain(|mailbox| {
            let slots = mailbox.abandoned_slots();
            let keeps = slots.is_none();
            self.return_slots(slots.into_iter().flatten());
            keeps
        });
    }

    /// Returns `count` empty slots.
    pub(crate) fn take_slots(
        &self,
        core: &DeviceCore,
        count: usize,
    ) -> Result<Vec<ReportSlot>, DriverError> {
        if self.free().len() < count {
            self.reclaim_abandoned();
        }
        let mut free = self.free();
        if free.len() < count {
            let slots = count.max(SLOTS_PER_PAGE);
            let page = MappedWords::new(&core.driver, core.index, slots * ReportSlot::WORDS)?;
            let page = Arc::new(page);
            let slot =
                |n: usize| ReportSlot { page: Arc::clone(&page), first: n * ReportSlot::WORDS };
            free.extend((0..slots).rev().map(slot));
        }
        let rest = free.len() - count;
        Ok(free.split_off(rest))
    }

    /// Reclaims slots that no kernel writes to any more.
    pub(crate) fn return_slots(&self, slots: impl Iterator<Item = ReportSlot>) {
        self.free().extend(slots.inspect(ReportSlot::clear));
    }

    /// Records the outcomes of the launches that the points cover. The work up to the points must
    /// be complete.
    #[inline]
    pub(crate) fn settle(&self, points: &[StreamPoint]) {
        if self.any.load(Ordering::Relaxed) {
            let covers =
                |at: &StreamOp| points.iter().any(|point| point.covers(at.progress.stream, at.op));
            self.mailboxes().iter().for_each(|mailbox| mailbox.settle(&covers));
        }
    }

    /// Reports a failed check among the launches that the points cover. The work up to the points
    /// must be complete, and its outcomes recorded. A failure is reported to its owner, or to any
    /// thread if the owner has ended.
    ///
    /// # Errors
    /// [`ErrorKind::IndexCheck`] for one failure. The other failures of the same owner on the same stream that the
    /// points cover count as reported, and all ended threads count as one owner. The next call reports a failure of
    /// another stream or owner.
    #[inline]
    pub(crate) fn report(&self, points: &[StreamPoint]) -> Result<()> {
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

    /// Returns the current ends of a device's streams with a mailbox, including dropped streams.
    pub(crate) fn points(&self, device: usize) -> Vec<StreamPoint> {
        let all = self.mailboxes();
        let progress = all.iter().map(|mailbox| mailbox.progress());
        let of_device = progress.filter(|progress| progress.device == device);
        of_device
            .map(|progress| {
                StreamPoint::at(progress.last(), Arc::clone(progress), Clock::default())
            })
            .collect()
    }
}
