//! Propagation of marks from the data that work reads to the data that it writes.
//!
//! A kernel that checks indices cannot stop its stream, and an aborted collective ends like any
//! other work. Both may leave wrong bytes. A *mark* is a range of bytes together with the work
//! whose failure would make them wrong:
//!
//! - A launch of a kernel that checks indices, and a collective, mark the bytes that they write.
//! - Launches, copies and replays that read marked bytes mark their results with the same
//!   dependencies, because the outcome is not known yet.
//! - After the host has learned of a failure, work that reads the marked bytes fails with it.
//!   Launches, copies and replays fail when they are enqueued. Host code fails after it has waited
//!   for the bytes.
//! - The next reader removes a mark whose work has succeeded. Overwriting bytes replaces their
//!   marks by those of the new values.
//!
//! Dependency lists are shared (`Arc`), so passing one on costs one reference count. An operation
//! that would depend on more than two launches depends on their union instead, which fails if any
//! of them fails. Marks change under the locks on [`Uses`], which each launch takes anyway to order
//! its streams. If a storage has no marks, device work only checks an empty list, and host code
//! only loads two flags.
//!
//! A capture has marks of its own. Their dependencies are captured kernels and collectives, which
//! have not run yet, and two placeholders for dependencies from before the replay. Each replay
//! translates them: a dependency on captured kernels becomes a dependency on the same kernels of
//! this replay.

use std::cell::RefCell;
use std::ops::{DerefMut, Range};

use warpline_stream::{CheckedLaunch, IndexCheck, OpNumber, Stream};

use crate::race::Touch;
use crate::storage::{
    Dependencies, Dependency, MAX_LAUNCHES, ReplayDependencies, Uses, VisitedStorage,
};
use crate::{Error, Result, Storage};

/// The dependencies with which work marks its results, besides the dependencies of its inputs.
#[derive(Default)]
pub(crate) struct ResultMarks<'a> {
    /// The work's checked launches and collectives. Set when the work is enqueued.
    pub(crate) own: RefCell<Dependencies>,
    /// The storages of a replay. Their captured marks, not the touches, list the bytes that the
    /// replay reads and writes.
    pub(crate) visited: Option<&'a [VisitedStorage]>,
}

impl ResultMarks<'_> {
    /// Withdraws the work's checked launches after the driver has refused the work.
    #[cold]
    pub(super) fn refused(&self, stream: &Stream) {
        for dependency in self.own.borrow().iter() {
            if let Dependency::Launch(launch) = dependency {
                stream.mailbox().withdraw(launch);
            }
        }
    }

    /// Returns the failure of the work itself, if it is known.
    pub(crate) fn failed(&self) -> Option<Error> {
        self.own.borrow().iter().find_map(|dependency| match dependency {
            Dependency::Launch(launch) => launch.take_failure().map(Error::from),
            Dependency::Collective(pending) => pending.failed(),
            _ => None, // work of another process is never this process's own
        })
    }

    /// Returns the dependencies of all data that the work reads.
    ///
    /// # Errors
    /// [`crate::ErrorKind::IndexCheck`], [`crate::ErrorKind::Collective`] or
    /// [`crate::ErrorKind::PeerGone`] if one of the dependencies is known to have failed.
    #[inline]
    #[track_caller]
    pub(crate) fn input_dependencies(
        &self,
        touches: &[Touch<'_>],
        storages: &[(&Storage, bool)],
        uses: &mut [impl DerefMut<Target = Uses>],
    ) -> Result<Dependencies> {
        let mut inputs = Dependencies::new();
        if uses.iter().any(|uses| !uses.marks.is_empty()) {
            self.collect_input_dependencies(touches, storages, uses, &mut inputs)?;
        }
        Ok(inputs)
    }

    #[cold]
    #[track_caller]
    fn collect_input_dependencies(
        &self,
        touches: &[Touch<'_>],
        storages: &[(&Storage, bool)],
        uses: &mut [impl DerefMut<Target = Uses>],
        inputs: &mut Dependencies,
    ) -> Result<()> {
        let Some(visited) = self.visited else {
            for touch in touches.iter().filter(|touch| touch.access.reads()) {
                let Some(at) = storage_index(storages, touch.storage) else { continue };
                let marks = &mut uses[at].marks;
                if !marks.is_empty()
                    && let Some((bytes, _)) = touch.extent()
                {
                    marks.read(&bytes, inputs)?;
                }
            }
            return Ok(());
        };
        for (visited, uses) in visited.iter().zip(uses) {
            if uses.marks.is_empty() {
                continue;
            }
            uses.marks.read_awaited(inputs);
            if let Some(read) =
                visited.captured_marks.as_ref().and_then(|marks| marks.replay_inputs())
            {
                uses.marks.read(read, inputs)?;
            }
        }
        Ok(())
    }

    /// Marks the results of enqueued work. `live` is the operation on a stream, or `None` if the
    /// work was captured.
    #[inline]
    pub(crate) fn record(
        &self,
        inputs: Dependencies,
        touches: &[Touch<'_>],
        storages: &[(&Storage, bool)],
        uses: &mut [impl DerefMut<Target = Uses>],
        live: Option<(&Stream, OpNumber)>,
    ) {
        let own = self.own.borrow();
        let none = inputs.is_empty() && own.is_empty();
        if !none || uses.iter().any(|uses| !uses.marks.is_empty()) {
            // A replay whose storages are all attached visits none.
            if !uses.is_empty() {
                self.update_marks(inputs, &own, touches, storages, uses, live);
            }
            if let Some((stream, _)) = live {
                for ((storage, _), uses) in storages.iter().zip(uses) {
                    storage.set_marked(!uses.marks.is_empty());
                }
                if !none {
                    stream.mailbox().watch(stream);
                }
            }
        }
    }

    #[cold]
    fn update_marks(
        &self,
        mut inputs: Dependencies,
        own: &Dependencies,
        touches: &[Touch<'_>],
        storages: &[(&Storage, bool)],
        uses: &mut [impl DerefMut<Target = Uses>],
        live: Option<(&Stream, OpNumber)>,
    ) {
        if let Some((stream, op)) = live {
            inputs.merge_launches(MAX_LAUNCHES, stream, op);
        }
        let Some(visited) = self.visited else {
            inputs.merge(own);
            let written = touches.iter().filter_map(|touch| {
                let written = WrittenBytes::by(touch)?;
                Some((storage_index(storages, touch.storage)?, written))
            });
            // All old marks are removed before any is added: two operands may lie in one storage.
            for (at, WrittenBytes { bytes, .. }) in
                written.clone().filter(|(_, w)| w.replaces_marks)
            {
                uses[at].marks.overwrite(&bytes);
            }
            for (at, WrittenBytes { bytes, .. }) in written {
                let marks = &mut uses[at].marks;
                marks.add(&bytes, &inputs);
                if let Some((stream, op)) = live {
                    marks.merge_launches(stream, op);
                }
            }
            return;
        };
        // Captured marks do not show which results depend on other processes, because another
        // process may write shared memory between a write and a read by the graph. Therefore all
        // results depend on all processes that an input depends on.
        let peers = inputs.iter().filter(|dependency| matches!(dependency, Dependency::Peer(_)));
        let peers: Dependencies = peers.cloned().collect();
        let mut replay = ReplayDependencies::new(&inputs, own);
        for (visited, uses) in visited.iter().zip(uses) {
            let Some(captured_marks) = visited.captured_marks.as_ref().filter(|_| visited.write)
            else {
                continue;
            };
            uses.marks = captured_marks.after_replay(&uses.marks, &mut replay);
            uses.marks.add(&(0..visited.storage.bytes()), &peers);
            if let Some((stream, op)) = live {
                uses.marks.merge_launches(stream, op);
            }
        }
    }
}

/// Returns the index of a storage in a list that is sorted by key.
fn storage_index(storages: &[(&Storage, bool)], storage: &Storage) -> Option<usize> {
    storages.binary_search_by_key(&storage.key(), |(one, _)| one.key()).ok()
}

/// Written bytes, and whether the write replaces their former marks.
struct WrittenBytes {
    bytes: Range<usize>,
    replaces_marks: bool,
}

impl WrittenBytes {
    fn by(touch: &Touch<'_>) -> Option<Self> {
        let (bytes, dense) = touch.access.writes().then(|| touch.extent()).flatten()?;
        // If the bytes are also read, the new marks include the former marks.
        Some(Self { bytes, replaces_marks: dense || touch.access.reads() })
    }
}

/// Waits for device work that conflicts with an access by host code. If the bytes depend on failed
/// work, returns that failure, even if the wait also fails.
#[track_caller]
pub(super) fn wait_for_host(touch: &Touch<'_>) -> Result<()> {
    let waited = touch.storage.wait_for_host(touch.access.writes());
    if touch.access.reads()
        && touch.storage.is_marked()
        && let Some((bytes, _)) = touch.extent()
    {
        touch.storage.check_marks(bytes)?;
    }
    waited
}

/// Updates the marks after host code has written. `failed` is the host code's failed index check.
/// The host code must have held the host locks and must have read no marked bytes.
pub(super) fn record_host_writes<'a>(
    touches: impl Iterator<Item = Touch<'a>> + Clone,
    failed: Option<&IndexCheck>,
) {
    let own = failed.map(|failed| Dependency::Launch(CheckedLaunch::failed(failed.clone())));
    let own: Dependencies = own.into_iter().collect();
    for touch in touches.clone().filter(|touch| touch.access.writes()) {
        let storage = touch.storage;
        if own.is_empty() && !storage.is_marked() {
            continue;
        }
        let mut uses = storage.uses();
        let of_storage = touches.clone().filter(|touch| touch.storage.same_as(storage));
        let written = of_storage.filter_map(|touch| WrittenBytes::by(&touch));
        for WrittenBytes { bytes, .. } in written.clone().filter(|w| w.replaces_marks) {
            uses.marks.overwrite(&bytes);
        }
        written.for_each(|WrittenBytes { bytes, .. }| uses.marks.add(&bytes, &own));
        storage.set_marked(!uses.marks.is_empty());
    }
}
