//! Returns segments to the backend.
//!
//! A segment waits until a running capture has ended. Memory that the backend refuses to take back
//! stays free where it was and keeps serving requests. If it can serve none there (its pool is
//! gone, or its pages are mapped nowhere), it waits in a list. All of it counts as reserved and
//! under `refused_releases`. Refused releases are retried at misses and when the cache is emptied.

use std::panic::{AssertUnwindSafe, catch_unwind};

use warpline_sync::Mutex;

use crate::core::Core;
use crate::heap::Released;
use crate::shard::Shard;
use crate::sync::lock;
use crate::{Backend, source};

/// Segments that are in no heap any more but were not given back.
pub(crate) struct Releases<M> {
    /// Held while memory goes, so that no capture begins meanwhile.
    lists: Mutex<Lists<M>>,
    /// Segments dropped by a pool's source or by the owner of foreign memory. Their thread may hold `lists`, so the
    /// next release takes them.
    late: Mutex<Vec<Released<M>>>,
}

struct Lists<M> {
    /// Those that were to go during a capture, and count as gone.
    deferred: Vec<Released<M>>,
    /// Those that the backend refused, and that cannot serve any more where they were. They count
    /// as reserved.
    refused: Vec<Released<M>>,
}

impl<M> Default for Releases<M> {
    fn default() -> Self {
        let lists = Mutex::new(Lists { deferred: Vec::new(), refused: Vec::new() });
        Self { lists, late: Mutex::default() }
    }
}

impl<M> Releases<M> {
    /// Waits until no thread gives anything back.
    pub(crate) fn wait(&self) {
        drop(lock(&self.lists));
    }
}

/// Gives segments back to the backend. Called without a shard's lock.
pub(crate) fn segments<B: Backend>(core: &Core<B>, released: Vec<Released<B::Memory>>) {
    if released.is_empty() {
        return;
    }
    if source::is_inside() {
        lock(&core.releases.late).extend(released);
        return;
    }
    let mut lists = lock(&core.releases.lists);
    give_back(core, &mut lists, released);
    release_late(core, &mut lists);
}

/// Gives segments back, or defers them to the end of a capture.
fn give_back<B: Backend>(
    core: &Core<B>,
    lists: &mut Lists<B::Memory>,
    released: Vec<Released<B::Memory>>,
) {
    if core.is_capturing() {
        defer(core, lists, released);
    } else {
        lists.refused.extend(free(core, released, false));
    }
}

/// Gives back the segments that were dropped while memory was allocated or released. Their release may drop more.
fn release_late<B: Backend>(core: &Core<B>, lists: &mut Lists<B::Memory>) {
    loop {
        let late = std::mem::take(&mut *lock(&core.releases.late));
        if late.is_empty() {
            return;
        }
        give_back(core, lists, late);
    }
}

/// The same for a shard: what the backend refuses is free there again.
pub(crate) fn segments_of<B: Backend>(
    core: &Core<B>,
    shard: &Shard<B>,
    released: Vec<Released<B::Memory>>,
) {
    if released.is_empty() {
        return;
    }
    let mut lists = lock(&core.releases.lists);
    if core.is_capturing() {
        defer(core, &mut lists, released);
        return;
    }
    for refused in free(core, released, false) {
        let restored = shard.lock().restore(refused);
        lists.refused.extend(restored.err());
    }
    release_late(core, &mut lists);
}

/// Tries to give back what the backend refused and what serves nobody, until it refuses again, or
/// all of it.
pub(crate) fn retry_refused<B: Backend>(core: &Core<B>, all: bool) {
    let mut lists = lock(&core.releases.lists);
    release_late(core, &mut lists);
    if core.is_capturing() {
        return;
    }
    free_deferred(core, &mut lists);
    let mut again = std::mem::take(&mut lists.refused);
    while !again.is_empty() {
        let first = if all { again.len() } else { 1 };
        let refused = free(core, again.drain(..first).collect(), false);
        let stop = !refused.is_empty();
        lists.refused.extend(refused);
        if stop {
            break;
        }
    }
    // Those that were not tried come first next time.
    lists.refused.splice(0..0, again);
}

/// Gives back the segments that waited for the end of the last capture. False if that is left to the end of another
/// capture that has begun, or to the next release, because this thread is releasing memory.
pub(crate) fn deferred<B: Backend>(core: &Core<B>) -> bool {
    if source::is_inside() {
        return false;
    }
    let mut lists = lock(&core.releases.lists);
    if core.is_capturing() {
        return false;
    }
    free_deferred(core, &mut lists);
    release_late(core, &mut lists);
    true
}

fn free_deferred<B: Backend>(core: &Core<B>, lists: &mut Lists<B::Memory>) {
    let deferred = std::mem::take(&mut lists.deferred);
    lists.refused.extend(free(core, deferred, true));
}

/// Counts segments out that go once no capture is under way.
fn defer<B: Backend>(
    core: &Core<B>,
    lists: &mut Lists<B::Memory>,
    released: Vec<Released<B::Memory>>,
) {
    let mut global = lock(&core.global);
    for segment in released {
        global.segment_gone(segment.kind, segment.size, segment.oversize);
        lists.deferred.push(segment);
    }
}

/// Gives segments back and counts those out that the backend takes, unless they count as gone
/// already. Returns the others.
///
/// To free foreign memory drops its owner, a value of the program. The owner cannot use the allocator, because its
/// thread holds the allocator's locks. If it panics, the memory counts as given back.
fn free<B: Backend>(
    core: &Core<B>,
    released: Vec<Released<B::Memory>>,
    gone: bool,
) -> Vec<Released<B::Memory>> {
    let mut refused = Vec::new();
    for Released { kind, size, oversize, refused: before, stream, memory } in released {
        let freed = source::inside(|| catch_unwind(AssertUnwindSafe(|| B::free(memory))));
        let freed = freed.unwrap_or_else(|payload| {
            // The drop of the payload could panic, too.
            std::mem::forget(payload);
            Ok(())
        });
        let mut global = lock(&core.global);
        let Err(memory) = freed else {
            if !gone {
                global.segment_gone(kind, size, oversize);
            }
            if before {
                global.refused_segments.accept(size);
            }
            continue;
        };
        global.num_refused += 1;
        if gone {
            global.segment_back(kind, size, oversize);
        }
        if !before {
            global.refused_segments.refuse(size);
        }
        refused.push(Released { kind, size, oversize, refused: true, stream, memory });
    }
    refused
}
