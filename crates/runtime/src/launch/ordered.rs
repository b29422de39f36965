//! Order of device work after other uses of its storages.
//!
//! The allocator orders the reuse of memory only with the stream for which it was allocated. On
//! that stream, work on the previous storage in this memory may still run. The first use on another
//! stream therefore waits for the stream of the allocation, unless that stream is idle.
//!
//! Operands in another device's memory are refused unless the program has enabled peer access for
//! the two devices (`runtime/peers.rs`). If it has, such operands are ordered like any use by
//! another stream, and their allocator is told of the stream.

use smallvec::SmallVec;
use warpline_stream::{OpNumber, Stream};
use warpline_sync::MutexGuard;

use super::result_marks::ResultMarks;
use crate::race::{CheckedAccesses, Touch};
use crate::storage::{Dependencies, PRIOR_STORAGE, Use, Uses, uses_elsewhere};
use crate::{Error, ErrorKind, Result, Runtime, Site, Storage, SyncPolicy};

/// Work that is about to be enqueued, after the stream was made to wait for conflicting uses. Holds
/// the locks on the storages' uses until the work is recorded there, so that no other thread can
/// enqueue conflicting work in between.
pub(super) struct OrderedWork<'a> {
    stream: &'a Stream,
    storages: &'a [(&'a Storage, bool)],
    touches: &'a [Touch<'a>],
    site: Site,
    result_marks: &'a ResultMarks<'a>,
    pub(super) uses: SmallVec<[MutexGuard<'a, Uses>; 4]>,
    /// Dependencies of the bytes that the work reads.
    pub(super) inputs: Dependencies,
    // Boxed, because it is large and only needed while races are detected.
    accesses: Option<Box<CheckedAccesses>>,
}

impl<'a> OrderedWork<'a> {
    /// Locks the uses of the storages, which must be distinct and in lock order, and makes the
    /// stream wait for conflicting uses.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if storages and stream belong to different runtimes, and
    ///   [`ErrorKind::InvalidArgument`] if the stream is a twin.
    /// - [`ErrorKind::Race`] if the work races under [`SyncPolicy::Manual`] with
    ///   [`RaceReport::Error`](crate::RaceReport::Error).
    /// - The known failure of work that the inputs depend on, and errors of the waits.
    #[inline]
    #[track_caller]
    pub(super) fn begin(
        (policy, detects_races): (SyncPolicy, bool),
        stream: &'a Stream,
        storages: &'a [(&'a Storage, bool)],
        touches: &'a [Touch<'a>],
        site: Site,
        result_marks: &'a ResultMarks<'a>,
    ) -> Result<Self> {
        check_runtime(stream, storages, site.op)?;
        let mut uses: SmallVec<[MutexGuard<'_, Uses>; 4]> = SmallVec::new();
        // A loop is faster than `collect`.
        storages.iter().for_each(|(storage, _)| uses.push(storage.uses()));
        let inputs = result_marks.input_dependencies(touches, storages, &mut uses)?;
        let accesses = if detects_races {
            Some(Box::new(CheckedAccesses::new(stream, site, touches, storages, &uses)?))
        } else {
            None
        };
        wait_for_uses(stream, policy, storages, &uses)?;
        for ((storage, write), uses) in storages.iter().zip(&mut uses) {
            // The page-locked cache is told of the stream under either policy, because host code
            // may write to memory that the cache reuses. Memory in a graph's pool is reused only by
            // replays, which wait for its uses.
            let tells = policy == SyncPolicy::Auto && storage.member().is_none();
            // Shared memory is unmapped after these streams have completed their work.
            if tells || storage.is_pinned() || storage.is_shared() {
                storage.tell_allocator(uses, stream);
            }
            if result_marks.visited.is_some() {
                storage.set_attached();
            }
            if *write {
                storage.record_write();
            }
        }
        Ok(Self { stream, storages, touches, site, result_marks, uses, inputs, accesses })
    }

    /// Records the work as a use of its storages. The work was enqueued as operation `op`.
    #[inline]
    pub(super) fn record(&mut self, op: OpNumber) {
        let Self { stream, storages, touches, site, uses, .. } = self;
        for ((_, write), uses) in storages.iter().zip(&mut *uses) {
            uses.record(stream, op, *write, *site);
        }
        let inputs = std::mem::take(&mut self.inputs);
        self.result_marks.record(inputs, touches, storages, uses, Some((stream, op)));
        if let Some(accesses) = self.accesses.take() {
            accesses.record(stream, op, uses);
        }
    }
}

/// Makes the stream wait for conflicting uses, runs `f`, which enqueues the work, and records the
/// work as a use of the storages.
#[track_caller]
pub(super) fn in_order<F>(
    stream: &Stream,
    storages: &[(&Storage, bool)],
    touches: &[Touch<'_>],
    site: Site,
    result_marks: &ResultMarks<'_>,
    f: F,
) -> Result<OpNumber>
where
    F: FnOnce() -> Result<OpNumber>,
{
    let Some((first, _)) = storages.first() else { return Ok(stream.last_op()) };
    let runtime = first.runtime();
    let policy = (runtime.sync_policy(), runtime.detects_races());
    let mut work = OrderedWork::begin(policy, stream, storages, touches, site, result_marks)?;
    let op = f()?;
    work.record(op);
    drop(work);
    if runtime.launch_blocking() {
        wait_for_own(runtime, stream, op, site, result_marks)?;
    }
    Ok(op)
}

/// Waits for the work of a blocking launch. If an index check or a collective of the launch failed,
/// returns this failure instead of an error of the wait, because the error of the wait may come from
/// earlier work.
#[cold]
#[track_caller]
pub(super) fn wait_for_own(
    runtime: &Runtime,
    stream: &Stream,
    op: OpNumber,
    site: Site,
    result_marks: &ResultMarks<'_>,
) -> Result<()> {
    // Blocking launches must not hide races, so this wait does not count as order.
    let waited =
        if runtime.detects_races() { stream.host_wait_silently(op) } else { stream.host_wait(op) };
    if let Some(failed) = result_marks.failed() {
        return Err(failed);
    }
    waited.map_err(|e| match e.driver_error() {
        Some(source) => Error::driver(site.op, source.clone()).at(site.location),
        None => e,
    })
}

/// Fails if storages and stream belong to different runtimes, or if the stream is a twin.
#[track_caller]
pub(super) fn check_runtime(
    stream: &Stream,
    storages: &[(&Storage, bool)],
    op: &'static str,
) -> Result<()> {
    let Some((first, _)) = storages.first() else { return Ok(()) };
    let one = storages.iter().all(|(storage, _)| storage.runtime().same_as(first.runtime()));
    if one {
        first.runtime().check_stream(stream, op)
    } else {
        Err(ErrorKind::RuntimeMismatch.of(op))
    }
}

/// Makes a stream wait for the uses that its next work conflicts with, as far as the policy
/// requires.
#[track_caller]
fn wait_for_uses(
    stream: &Stream,
    policy: SyncPolicy,
    storages: &[(&Storage, bool)],
    uses: &[MutexGuard<'_, Uses>],
) -> Result<()> {
    // A new write replaces all earlier uses in `Uses`, and host code waits only for recorded uses.
    // Therefore uses of page-locked memory are ordered under either policy.
    let waits = |storage: &Storage| policy == SyncPolicy::Auto || storage.is_pinned();
    // Most work has no conflict with another stream. To find that out takes less than to collect the conflicts.
    let all = || storages.iter().zip(uses).filter(|((storage, _), _)| waits(storage));
    let is_elsewhere = |used: &Use| used.stream != *stream;
    if !all().any(|((_, write), uses)| uses.conflicting(*write).any(is_elsewhere)) {
        return Ok(());
    }
    let all = all().flat_map(|((_, write), uses)| uses.conflicting(*write));
    for used in uses_elsewhere(stream, all) {
        match policy {
            SyncPolicy::Auto if used.op == PRIOR_STORAGE => stream.wait_for_all(&used.stream)?,
            SyncPolicy::Auto => match stream.wait_for(&used.stream, used.op) {
                Err(_) if used.is_read_on_lost_device() => {}
                waited => waited?,
            },
            SyncPolicy::Manual => stream.wait_for_silently(&used.stream, used.op)?,
        }
    }
    Ok(())
}
