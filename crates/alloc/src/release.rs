//! Release of segments to the backend.
//!
//! During a capture, releases are deferred to its end. A segment whose release the backend refuses
//! (a *refused segment*) goes back to its heap and serves requests again. A refused segment waits in
//! a list instead if its pool is gone, caching is off, its shard serves another stream, or its
//! release was deferred. Refused memory counts as reserved, and is also counted by `refused_releases`.
//! Refused releases are retried at misses and when the cache is emptied.

use warpline_sync::{CaughtPanic, Mutex};

use crate::core::Core;
use crate::heap::ReleasedSegment;
use crate::sync::lock;
use crate::{Backend, source};

/// Segments that were removed from their heap and not yet released to the backend.
pub(crate) struct Releases<M> {
    /// Held while memory is released, so that no capture begins during a release.
    lists: Mutex<Lists<M>>,
    /// Segments dropped inside a pool's source or inside the drop of foreign memory. There the
    /// thread may hold the lock of `lists`, so the segments are left for the next release.
    late: Mutex<Vec<ReleasedSegment<M>>>,
}

struct Lists<M> {
    /// Segments to release after a capture. They count as released.
    deferred: Vec<ReleasedSegment<M>>,
    /// Refused segments that did not go back to their heap. They count as reserved.
    refused: Vec<ReleasedSegment<M>>,
}

impl<M> Default for Releases<M> {
    fn default() -> Self {
        let lists = Mutex::new(Lists { deferred: Vec::new(), refused: Vec::new() });
        Self { lists, late: Mutex::default() }
    }
}

impl<M> Releases<M> {
    /// Waits until no thread is releasing memory.
    pub(crate) fn wait(&self) {
        drop(lock(&self.lists));
    }
}

/// Releases segments to the backend. Called without a shard's lock.
pub(crate) fn segments<B: Backend>(core: &Core<B>, released: Vec<ReleasedSegment<B::Memory>>) {
    if released.is_empty() {
        return;
    }
    if source::is_inside() {
        lock(&core.releases.late).extend(released);
        return;
    }
    let mut lists = lock(&core.releases.lists);
    release_or_defer(core, &mut lists, released);
    release_late(core, &mut lists);
}

/// Releases segments, or defers them to the end of a capture.
fn release_or_defer<B: Backend>(
    core: &Core<B>,
    lists: &mut Lists<B::Memory>,
    released: Vec<ReleasedSegment<B::Memory>>,
) {
    if core.is_capturing() {
        defer(core, lists, released);
    } else {
        lists.refused.extend(release_now(core, released, false));
    }
}

/// Releases the segments in `late`. Their release may add more.
fn release_late<B: Backend>(core: &Core<B>, lists: &mut Lists<B::Memory>) {
    loop {
        let late = std::mem::take(&mut *lock(&core.releases.late));
        if late.is_empty() {
            return;
        }
        release_or_defer(core, lists, late);
    }
}

/// Releases segments to the backend. Calls `restore` with each refused segment; if that also fails,
/// the segment waits for another attempt. Called without a shard's lock.
pub(crate) fn segments_or<B: Backend>(
    core: &Core<B>,
    released: Vec<ReleasedSegment<B::Memory>>,
    restore: impl Fn(ReleasedSegment<B::Memory>) -> Result<(), ReleasedSegment<B::Memory>>,
) {
    if released.is_empty() {
        return;
    }
    let mut lists = lock(&core.releases.lists);
    if core.is_capturing() {
        defer(core, &mut lists, released);
        return;
    }
    for refused in release_now(core, released, false) {
        lists.refused.extend(restore(refused).err());
    }
    release_late(core, &mut lists);
}

/// Retries refused releases of segments that serve no requests, until the backend refuses again.
/// With `all`, tries every segment.
pub(crate) fn retry_refused<B: Backend>(core: &Core<B>, all: bool) {
    let mut lists = lock(&core.releases.lists);
    release_late(core, &mut lists);
    if core.is_capturing() {
        return;
    }
    release_deferred_now(core, &mut lists);
    let mut again = std::mem::take(&mut lists.refused);
    while !again.is_empty() {
        let first = if all { again.len() } else { 1 };
        let refused = release_now(core, again.drain(..first).collect(), false);
        let stop = !refused.is_empty();
        lists.refused.extend(refused);
        if stop {
            break;
        }
    }
    // Untried segments come first at the next attempt.
    lists.refused.splice(0..0, again);
}

/// Releases the segments that were deferred during captures. Returns `false` without releasing them
/// if a new capture is in progress, or if this thread is inside a pool's source or the drop of
/// foreign memory.
pub(crate) fn release_deferred<B: Backend>(core: &Core<B>) -> bool {
    if source::is_inside() {
        return false;
    }
    let mut lists = lock(&core.releases.lists);
    if core.is_capturing() {
        return false;
    }
    release_deferred_now(core, &mut lists);
    release_late(core, &mut lists);
    true
}

fn release_deferred_now<B: Backend>(core: &Core<B>, lists: &mut Lists<B::Memory>) {
    let deferred = std::mem::take(&mut lists.deferred);
    lists.refused.extend(release_now(core, deferred, true));
}

/// Counts segments as released and defers their release until no capture is in progress.
fn defer<B: Backend>(
    core: &Core<B>,
    lists: &mut Lists<B::Memory>,
    released: Vec<ReleasedSegment<B::Memory>>,
) {
    let mut global = lock(&core.global);
    for segment in released {
        global.count_segment_released(segment.kind, segment.size, segment.oversize);
        lists.deferred.push(segment);
    }
}

/// Releases segments. Counts accepted segments as released, unless `gone` is set, because then they
/// are counted already. Returns the refused segments.
///
/// Releasing foreign memory drops the value of the program that keeps it alive. That value's `drop`
/// cannot use the allocator, because this thread holds the allocator's locks. If the drop panics,
/// the memory counts as released.
fn release_now<B: Backend>(
    core: &Core<B>,
    released: Vec<ReleasedSegment<B::Memory>>,
    gone: bool,
) -> Vec<ReleasedSegment<B::Memory>> {
    let mut refused = Vec::new();
    for ReleasedSegment { kind, size, oversize, refused: before, stream, memory } in released {
        let freed = source::inside(|| CaughtPanic::catch(|| B::free(memory)));
        let freed = freed.unwrap_or(Ok(()));
        let mut global = lock(&core.global);
        let Err(memory) = freed else {
            if !gone {
                global.count_segment_released(kind, size, oversize);
            }
            if before {
                global.refused_segments.accept(size);
            }
            continue;
        };
        global.num_refused += 1;
        if gone {
            global.count_segment_restored(kind, size, oversize);
        }
        if !before {
            global.refused_segments.refuse(size);
        }
        refused.push(ReleasedSegment { kind, size, oversize, refused: true, stream, memory });
    }
    refused
}
