//! Release of cached segments to make room for a request. The caller holds the lock of the
//! policies.

use std::sync::Arc;

use crate::core::Core;
use crate::heap::ReleasedSegment;
use crate::shard::{Request, Shard, ShardState};
use crate::{Backend, PoolKind};

/// A large segment that is wholly free.
struct IdleSegment<'a, B: Backend> {
    shard: &'a Arc<Shard<B>>,
    block: u32,
    /// Number of searches since the segment was freed.
    age: u64,
}

/// Releases idle large segments in rounds, until the reserved memory is at most
/// `garbage_collection_threshold` of the limit. Each round releases the segments whose age is at
/// least the mean.
pub(crate) fn collect_garbage<B: Backend>(core: &Core<B>, limit: Option<usize>) {
    let shards = core.all_shards();
    let threshold = shards.first().and_then(|s| s.lock().config.garbage_collection_threshold);
    let (Some(limit), Some(share)) = (limit, threshold) else { return };
    let threshold = (share * limit as f64) as usize;
    let target = core.reserved().saturating_sub(threshold);
    let now = core.searches();
    let mut idle: Vec<IdleSegment<'_, B>> =
        shards.iter().flat_map(|shard| idle_segments(shard, now)).collect();
    let mut reclaimed = 0;
    let mut garbage = Vec::new();
    while reclaimed < target && !idle.is_empty() {
        let total: u64 = idle.iter().map(|idle| idle.age).sum();
        let mean = total as f64 / idle.len() as f64;
        // The age of the oldest segment is never below the mean, so each round removes a segment.
        idle.retain(|&IdleSegment { shard, block, age }| {
            let old = age as f64 >= mean;
            if old && let Some(segment) = shard.lock().heap.release_segment(block) {
                reclaimed += segment.size;
                garbage.push((shard, segment));
            }
            !old
        });
    }
    for (shard, segment) in garbage {
        shard.release(vec![segment]);
    }
}

/// Releases segments for a request if `max_split_size` is set: one free segment of sufficient size,
/// or else oversize segments, largest first, until their total suffices. Returns whether the
/// released memory suffices.
pub(crate) fn release_oversize<B: Backend>(shard: &Shard<B>, request: Request) -> bool {
    let mut released = Vec::new();
    let enough = take_oversize(&mut shard.lock(), request, &mut released);
    shard.release(released);
    enough
}

fn idle_segments<B: Backend>(shard: &Arc<Shard<B>>, now: u64) -> Vec<IdleSegment<'_, B>> {
    let state = shard.lock();
    let heap = &state.heap;
    let age = |block: u32| now.saturating_sub(heap.records[block].idle_since);
    let idle = heap.free_segments(PoolKind::Large).into_iter();
    idle.map(|block| IdleSegment { shard, block, age: age(block) }).collect()
}

fn take_oversize<B: Backend>(
    state: &mut ShardState<B>,
    request: Request,
    released: &mut Vec<ReleasedSegment<B::Memory>>,
) -> bool {
    let Some(max_split) = state.config.max_split_size else { return false };
    let (kind, wanted) = (request.kind, request.size.max(max_split));
    let heap = &mut state.heap;
    if let Some(block) = heap.best_fit(kind, wanted)
        && let Some(segment) = heap.release_segment(block)
    {
        released.push(segment);
        return true;
    }
    let mut total = 0;
    while total < wanted
        && let Some(block) = heap.largest(kind)
        && heap.records[block].size >= max_split
        && let Some(segment) = heap.release_segment(block)
    {
        total += segment.size;
        released.push(segment);
    }
    total >= wanted
}
