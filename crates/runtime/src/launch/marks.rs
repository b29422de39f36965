//! Propagation of pending outcomes from the data that work reads to the data that it writes.
//!
//! A kernel that checks indices cannot stop its stream, and an aborted collective ends like any
//! other work. Both may leave wrong bytes, so their results carry *marks*:
//!
//! - A launch of a kernel that checks, and a collective, mark the bytes that they write.
//! - Work that reads marked bytes marks its own results with the same sources, because the outcome
//!   is not known yet. That holds for launches, copies and replays alike.
//! - Once the host knows of a failure, work that would read the marked bytes is refused with it:
//!   launches, copies and replays as they are enqueued, host code after it has waited for the
//!   bytes.
//! - The next reader drops a mark whose check has passed. Bytes that are overwritten entirely keep
//!   only the marks of the work that overwrote them.
//!
//! Dependency lists are shared (`Arc`), so passing one on costs one reference count. Where an
//! operation would depend on more than two launches, it depends on their union. All of this happens
//! under the locks on `Uses` that ordering takes anyway. Unmarked storages cost a look at an empty
//! list; host code looks at a flag.
//!
//! A capture keeps marks of its own. In them, a set of kernels that check stands for their
//! launches, a collective for the number that its replay will have, and "before the replay" for
//! outside dependencies. Each replay marks its results with itself, narrowed to the kernels that
//! the bytes depend on.

use std::cell::RefCell;
use std::ops::{DerefMut, Range};

use warpline_stream::{CheckedLaunch, IndexCheck, OpNumber, Stream};

use crate::race::Touch;
use crate::storage::{LAUNCHES, Replaying, Source, Sources, Uses, Visited};
use crate::{Error, Result, Storage};

/// The marks that work adds to its results, besides those of the data that it reads.
#[derive(Default)]
pub(crate) struct Marking<'a> {
    /// The work's own checked launches, or those of a replay in order, and its collectives. Set
    /// when the work is enqueued.
    pub(crate) own: RefCell<Sources>,
    /// The storages of a replay, which does not read and write everything that it declares.
    pub(crate) visited: Option<&'a [Visited]>,
}

impl Marking<'_> {
    /// Withdraws the work's checked launches after the driver refused it.
    #[cold]
    pub(super) fn refused(&self, stream: &Stream) {
        for source in self.own.borrow().iter() {
            if let Source::Launch(launch) = source {
                stream.mailbox().withdraw(launch);
            }
        }
    }

    /// Returns the known failure of the work itself.
    pub(crate) fn failed(&self) -> Option<Error> {
        self.own.borrow().iter().find_map(|source| match source {
            Source::Launch(launch) => launch.take_failure().map(Error::from),
            Source::Collective(pending) => pending.failed(),
            _ => None, // a peer's work is nobody's own
        })
    }

    /// Returns the marks of all data that the work reads.
    ///
    /// # Errors
    /// [`crate::ErrorKind::IndexCheck`], [`crate::ErrorKind::Collective`] or
    /// [`crate::ErrorKind::PeerGone`] if one of the dependencies is known to have failed.
    #[inline]
    #[track_caller]
    pub(crate) fn carry(
        &self,
        touches: &[Touch<'_>],
        storages: &[(&Storage, bool)],
        uses: &mut [impl DerefMut<Target = Uses>],
    ) -> Result<Sources> {
        let mut carried = Sources::new();
        if uses.iter().any(|uses| !uses.marks.is_empty()) {
            self.collect(touches, storages, uses, &mut carried)?;
        }
        Ok(carried)
    }

    #[cold]
    #[track_caller]
    fn collect(
        &self,
        touches: &[Touch<'_>],
        storages: &[(&Storage, bool)],
        uses: &mut [impl DerefMut<Target = Uses>],
        carried: &mut Sources,
    ) -> Result<()> {
        let Some(visited) = self.visited else {
            for touch in touches.iter().filter(|touch| touch.access.reads()) {
                let Some(at) = place(storages, touch.storage) else { continue };
                let marks = &mut uses[at].marks;
                if !marks.is_empty()
                    && let Some((bytes, _)) = touch.extent()
                {
                    marks.read(&bytes, carried)?;
                }
            }
            return Ok(());
        };
        for (visited, uses) in visited.iter().zip(uses) {
            if uses.marks.is_empty() {
                continue;
            }
            uses.marks.read_awaited(carried);
            if let Some(found) = visited.flow.as_ref().and_then(|flow| flow.found()) {
                uses.marks.read(found, carried)?;
            }
        }
        Ok(())
    }

    /// Marks the results of enqueued work: `live` is the operation on a stream, or `None` in a
    /// capture's log.
    #[inline]
    pub(crate) fn enter(
        &self,
        carried: Sources,
        touches: &[Touch<'_>],
        storages: &[(&Storage, bool)],
        uses: &mut [impl DerefMut<Target = Uses>],
        live: Option<(&Stream, OpNumber)>,
    ) {
        let own = self.own.borrow();
        let none = carried.is_empty() && own.is_empty();
        if !none || uses.iter().any(|uses| !uses.marks.is_empty()) {
            self.mark(carried, &own, touches, storages, uses, live);
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
    fn mark(
        &self,
        mut carried: Sources,
        own: &Sources,
        touches: &[Touch<'_>],
        storages: &[(&Storage, bool)],
        uses: &mut [impl DerefMut<Target = Uses>],
        live: Option<(&Stream, OpNumber)>,
    ) {
        if let Some((stream, op)) = live {
            carried.unite(LAUNCHES, stream, op);
        }
        let Some(visited) = self.visited else {
            carried.join(own);
            let written = touches.iter().filter_map(|touch| {
                let written = Written::by(touch)?;
                Some((place(storages, touch.storage)?, written))
            });
            // All of a storage's old marks go before it has new ones.
            for (at, Written { bytes, .. }) in written.clone().filter(|(_, w)| w.forgets) {
                uses[at].marks.overwrite(&bytes);
            }
            for (at, Written { bytes, .. }) in written {
                let marks = &mut uses[at].marks;
                marks.add(&bytes, &carried);
                if let Some((stream, op)) = live {
                    marks.unite(stream, op);
                }
            }
            return;
        };
        // What it reads of its own writes to memory of other processes is known no better.
        let peers = carried.iter().filter(|source| matches!(source, Source::Peer(_)));
        let peers: Sources = peers.cloned().collect();
        let mut replay = Replaying::new(&carried, own);
        for (visited, uses) in visited.iter().zip(uses) {
            let Some(flow) = visited.flow.as_ref().filter(|_| visited.write) else { continue };
            uses.marks = flow.replayed(&uses.marks, &mut replay);
            uses.marks.add(&(0..visited.storage.bytes()), &peers);
            if let Some((stream, op)) = live {
                uses.marks.unite(stream, op);
            }
        }
    }
}

/// Returns the index of a storage among those that the work uses, which are in the order of their
/// keys.
fn place(storages: &[(&Storage, bool)], storage: &Storage) -> Option<usize> {
    storages.binary_search_by_key(&storage.key(), |(one, _)| one.key()).ok()
}

/// Written bytes, and whether they lose their former marks.
struct Written {
    bytes: Range<usize>,
    forgets: bool,
}

impl Written {
    fn by(touch: &Touch<'_>) -> Option<Self> {
        let (bytes, dense) = touch.access.writes().then(|| touch.extent()).flatten()?;
        // What is read too has passed its marks on to the new ones.
        Some(Self { bytes, forgets: dense || touch.access.reads() })
    }
}

/// Waits for device work that an access of host code conflicts with. Fails if the bytes depend on
/// failed work; that failure takes precedence over an error of the wait.
#[track_caller]
pub(super) fn wait_for_host(touch: &Touch<'_>) -> Result<()> {
    let waited = touch.storage.wait_for_host(touch.access.writes());
    if touch.access.reads()
        && let Some((bytes, _)) = touch.extent()
    {
        touch.storage.check_marks(bytes)?;
    }
    waited
}

/// Records the writes of host code that ran with the storages' host locks held and read no marked
/// bytes, and its failed check if there is one.
pub(super) fn wrote_on_host<'a>(
    touches: impl Iterator<Item = Touch<'a>> + Clone,
    failed: Option<&IndexCheck>,
) {
    let own = failed.map(|failed| Source::Launch(CheckedLaunch::failed(failed.clone())));
    let own: Sources = own.into_iter().collect();
    for touch in touches.clone().filter(|touch| touch.access.writes()) {
        let storage = touch.storage;
        if own.is_empty() && !storage.is_marked() {
            continue;
        }
        let mut uses = storage.uses();
        let of_storage = touches.clone().filter(|touch| touch.storage.same_as(storage));
        let written = of_storage.filter_map(|touch| Written::by(&touch));
        for Written { bytes, .. } in written.clone().filter(|w| w.forgets) {
            uses.marks.overwrite(&bytes);
        }
        written.for_each(|Written { bytes, .. }| uses.marks.add(&bytes, &own));
        storage.set_marked(!uses.marks.is_empty());
    }
}
