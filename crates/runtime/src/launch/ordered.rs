//! Order of device work after other uses of its storages.
//!
//! Memory from the allocator is ordered with its own stream only. The first use on another stream
//! therefore queries the memory's own stream, and waits for it unless it is idle: work of the
//! memory's previous owner may still run there.
//!
//! Operands in another device's memory are refused unless the program enabled that pair
//! (`runtime/peers.rs`). They are then ordered, and their allocator is told, as for any other
//! stream's use.

use smallvec::SmallVec;
use warpline_stream::{OpNumber, Stream};
use warpline_sync::MutexGuard;

use super::marks::Marking;
use crate::race::{Touch, Watch};
use crate::storage::{FORMER, Sources, Uses, uses_elsewhere};
use crate::{Error, ErrorKind, Result, Runtime, Site, Storage, SyncPolicy};

/// Work that is ordered after the uses that it conflicts with and is about to be enqueued. It holds
/// the locks on its storages' uses until its own are recorded, so that another thread that shares a
/// storage sees them.
pub(super) struct Ordered<'a> {
    stream: &'a Stream,
    storages: &'a [(&'a Storage, bool)],
    touches: &'a [Touch<'a>],
    site: Site,
    marking: &'a Marking<'a>,
    pub(super) uses: SmallVec<[MutexGuard<'a, Uses>; 4]>,
    /// Dependencies of the bytes that the work reads.
    pub(super) carried: Sources,
    // Boxed, because it is large and seldom there.
    watch: Option<Box<Watch>>,
}

impl<'a> Ordered<'a> {
    /// Locks the storages, each of which occurs once in lock order. Makes the stream wait for their
    /// uses.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if the storages belong to different runtimes.
    /// - [`ErrorKind::Race`] if the work races under [`SyncPolicy::Manual`].
    /// - The failure of a check that the work depends on, and errors of the waits.
    #[inline]
    #[track_caller]
    pub(super) fn begin(
        (policy, detects_races): (SyncPolicy, bool),
        stream: &'a Stream,
        storages: &'a [(&'a Storage, bool)],
        touches: &'a [Touch<'a>],
        site: Site,
        marking: &'a Marking<'a>,
    ) -> Result<Self> {
        check_world(stream, storages, site.op)?;
        let mut uses: SmallVec<[MutexGuard<'_, Uses>; 4]> = SmallVec::new();
        // Faster than `collect`.
        storages.iter().for_each(|(storage, _)| uses.push(storage.uses()));
        let carried = marking.carry(touches, storages, &mut uses)?;
        let watch = if detects_races {
            Some(Box::new(Watch::new(stream, site, touches, storages, &uses)?))
        } else {
            None
        };
        wait_for_uses(stream, policy, storages, &uses)?;
        for ((storage, write), uses) in storages.iter().zip(&mut uses) {
            // The page-locked cache is told under either policy: what it reuses, host code writes.
            // What lies in a graph's pool is reused by replays only, which are ordered after its uses.
            let told = policy == SyncPolicy::Auto && storage.member().is_none();
            // Shared memory is unmapped when the streams that it was told of are done with it.
            if told || storage.is_pinned() || storage.is_shared() {
                storage.note_stream(uses, stream);
            }
            if marking.visited.is_some() {
                storage.enter_attached();
            }
            if *write {
                storage.enter_write();
            }
        }
        Ok(Self { stream, storages, touches, site, marking, uses, carried, watch })
    }

    /// Records the work, which was enqueued as operation `op`, as a use of its storages.
    #[inline]
    pub(super) fn enter(&mut self, op: OpNumber) {
        let Self { stream, storages, touches, site, uses, .. } = self;
        for ((_, write), uses) in storages.iter().zip(&mut *uses) {
            uses.enter(stream, op, *write, *site);
        }
        let carried = std::mem::take(&mut self.carried);
        self.marking.enter(carried, touches, storages, uses, Some((stream, op)));
        if let Some(watch) = self.watch.take() {
            watch.enter(stream, op, uses);
        }
    }
}

/// Runs `f`, which enqueues work on these storages, after the uses that it conflicts with, and
/// records it as a use.
#[track_caller]
pub(super) fn in_order<F>(
    stream: &Stream,
    storages: &[(&Storage, bool)],
    touches: &[Touch<'_>],
    site: Site,
    marking: &Marking<'_>,
    f: F,
) -> Result<OpNumber>
where
    F: FnOnce() -> Result<OpNumber>,
{
    let Some((first, _)) = storages.first() else { return Ok(stream.last_op()) };
    let runtime = first.runtime();
    let policy = (runtime.sync_policy(), runtime.detects_races());
    let mut work = Ordered::begin(policy, stream, storages, touches, site, marking)?;
    let op = f()?;
    work.enter(op);
    drop(work);
    if runtime.launch_blocking() {
        wait_for_own(runtime, stream, op, site, marking)?;
    }
    Ok(op)
}

/// Waits for the work if each launch is waited for, and returns its own failure, not that of
/// earlier work.
#[cold]
#[track_caller]
pub(super) fn wait_for_own(
    runtime: &Runtime,
    stream: &Stream,
    op: OpNumber,
    site: Site,
    marking: &Marking<'_>,
) -> Result<()> {
    // A race stays one where each launch is waited for to find another mistake.
    let waited =
        if runtime.detects_races() { stream.host_wait_silently(op) } else { stream.host_wait(op) };
    if let Some(failed) = marking.failed() {
        return Err(failed);
    }
    waited.map_err(|e| match e.driver_error() {
        Some(source) => Error::driver(site.op, source.clone()).at(site.location),
        None => e,
    })
}

/// Fails if storages and stream belong to different runtimes.
#[track_caller]
pub(super) fn check_world(
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

/// Makes a stream wait for the uses of these storages that its next work conflicts with, as the
/// policy requires.
#[track_caller]
fn wait_for_uses(
    stream: &Stream,
    policy: SyncPolicy,
    storages: &[(&Storage, bool)],
    uses: &[MutexGuard<'_, Uses>],
) -> Result<()> {
    // A write takes the place of the uses before it, and host code waits for what is left: in host
    // memory, later uses come after earlier ones under either policy.
    let waits = |storage: &Storage| policy == SyncPolicy::Auto || storage.is_pinned();
    let all = storages.iter().zip(uses).filter(|((storage, _), _)| waits(storage));
    let all = all.flat_map(|((_, write), uses)| uses.conflicting(*write));
    for used in uses_elsewhere(stream, all) {
        match policy {
            SyncPolicy::Auto if used.op == FORMER => stream.wait_for_all(&used.stream)?,
            SyncPolicy::Auto => match stream.wait_for(&used.stream, used.op) {
                Err(_) if used.is_moot() => {}
                waited => waited?,
            },
            SyncPolicy::Manual => stream.wait_for_silently(&used.stream, used.op)?,
        }
    }
    Ok(())
}
