//! The permanent location of a shard's state. Blocks refer to a location without a reference
//! count.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{Shard, ShardState};
use crate::Backend;
use crate::core::Core;
use crate::release;
use crate::sync::{ShardGuard, ShardLock, StaticRef, leak, lock_shard};

/// The state of a shard, behind the shard's lock. A cell serves one shard at a time, is vacant
/// between two shards, and is never deallocated.
///
/// A cell is occupied as long as its shard or one of its blocks lives (see the module
/// [`shard`](super)). The alignment keeps threads on different streams from sharing a cache line.
#[repr(align(128))]
pub(crate) struct ShardCell<B: Backend> {
    occupant: ShardLock<Option<Occupant<B>>>,
}

struct Occupant<B: Backend> {
    state: ShardState<B>,
    core: Arc<Core<B>>,
    /// The retired shard, while blocks outlive the shard's table entry or pool.
    retired: Option<Arc<Shard<B>>>,
}

/// A shard's locked state.
pub(crate) struct LockedState<'a, B: Backend>(ShardGuard<'a, Option<Occupant<B>>>);

impl<B: Backend> ShardCell<B> {
    /// Returns a cell for a new shard. Reuses a vacant cell if there is one.
    pub(crate) fn occupy(core: &Arc<Core<B>>, state: ShardState<B>) -> StaticRef<Self> {
        let cell = vacant::take().unwrap_or_else(|| leak(Self { occupant: ShardLock::new(None) }));
        let occupant = Occupant { state, core: Arc::clone(core), retired: None };
        *lock_shard(&cell.occupant) = Some(occupant);
        cell
    }

    /// Drops the state of a dropped shard and keeps the cell for another shard.
    pub(crate) fn vacate(cell: &StaticRef<Self>) {
        let occupant = lock_shard(&cell.occupant).take();
        vacant::put(cell);
        // The drop must not run under the shard's lock.
        drop(occupant);
    }

    /// Locks the state for a hit or a free. A parked block stays parked.
    #[inline]
    pub(crate) fn lock_parked(&self) -> LockedState<'_, B> {
        LockedState(lock_shard(&self.occupant))
    }

    pub(crate) fn lock(&self) -> LockedState<'_, B> {
        let mut state = self.lock_parked();
        state.unpark();
        state
    }

    /// Locks the state to read the counters. A parked alias stays parked, because it does not
    /// affect the counters. A miss of one thread therefore keeps the parked aliases of other
    /// threads.
    pub(crate) fn lock_counted(&self) -> LockedState<'_, B> {
        let mut state = self.lock_parked();
        if state.is_part_parked() {
            state.unpark();
        }
        state
    }

    /// Frees a block. The caller must not use the cell afterwards. Not inlined, so that dropping an
    /// empty `Option<Block>` costs nothing.
    #[inline(never)]
    pub(crate) fn free(&self, block: u32) {
        let mut locked = self.lock_parked();
        let Occupant { state, core, .. } = locked.occupant();
        if state.heap.is_alias(block) && core.hooks.observe_moves() {
            // Report that the memory moves back to the pieces now, while the block is still
            // allocated and no other request can get the memory.
            let (pieces, core) = (state.heap.pieces_of(block), Arc::clone(core));
            drop(locked);
            pieces
                .iter()
                .for_each(|&(here, home, bytes)| core.hooks.notify_moved(here, home, bytes));
            locked = self.lock_parked();
        }
        let Occupant { state, core, .. } = locked.occupant();
        if core.is_capturing() {
            state.free_in_capture(block);
        } else {
            state.free(&core.backend, block);
        }
        if state.counters.over || !state.rules.caching || state.retired {
            locked.finish_free();
        }
    }

    /// Stops the shard from serving requests. Free memory goes back to the backend now, other
    /// memory when it is freed. Freeing the last block drops the shard.
    pub(crate) fn retire(&self, shard: &Arc<Shard<B>>) {
        let mut locked = self.lock_parked();
        let Occupant { state, retired, .. } = locked.occupant();
        state.retired = true;
        *retired = (state.counters.blocks() > 0).then(|| Arc::clone(shard));
        locked.finish_free();
    }
}

impl<B: Backend> LockedState<'_, B> {
    #[inline]
    fn occupant(&mut self) -> &mut Occupant<B> {
        match &mut *self.0 {
            Some(occupant) => occupant,
            None => unreachable!("a cell is occupied while there is its shard or a block"),
        }
    }

    /// Handles the effects that a free has outside the shard: releases segments, raises peaks, and
    /// drops a retired shard without blocks.
    #[cold]
    fn finish_free(mut self) {
        let Occupant { state, core, retired } = self.occupant();
        let core = Arc::clone(core);
        state.unpark();
        let keeps = state.rules.caching && !state.retired;
        let released = if keeps { Vec::new() } else { state.heap.release_segments() };
        let last = if state.counters.blocks() == 0 { retired.take() } else { None };
        let over = state.counters.over;
        drop(self);
        release::segments(&core, released);
        if over {
            core.raise_peaks();
        }
        drop(last);
    }
}

impl<B: Backend> Deref for LockedState<'_, B> {
    type Target = ShardState<B>;

    #[inline]
    fn deref(&self) -> &ShardState<B> {
        match &*self.0 {
            Some(occupant) => &occupant.state,
            None => unreachable!("a cell is occupied while there is its shard or a block"),
        }
    }
}

impl<B: Backend> DerefMut for LockedState<'_, B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut ShardState<B> {
        &mut self.occupant().state
    }
}

/// Vacant cells of all allocators of the process.
#[cfg(not(shuttle))]
mod vacant {
    use std::any::{Any, TypeId};
    use std::collections::BTreeMap;
    use std::sync::PoisonError;

    use warpline_sync::Mutex;

    use super::{Backend, ShardCell};

    type Erased = &'static (dyn Any + Send + Sync);

    static VACANT: Mutex<BTreeMap<TypeId, Vec<Erased>>> = Mutex::new(BTreeMap::new());

    pub(super) fn take<B: Backend>() -> Option<&'static ShardCell<B>> {
        let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
        vacant.get_mut(&TypeId::of::<B>())?.pop()?.downcast_ref()
    }

    pub(super) fn put<B: Backend>(cell: &'static ShardCell<B>) {
        let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
        vacant.entry(TypeId::of::<B>()).or_default().push(cell);
    }
}

/// Under the schedule checker, locks must not outlive an execution, so cells are not reused.
#[cfg(shuttle)]
mod vacant {
    use super::{Arc, Backend, ShardCell};

    pub(super) fn take<B: Backend>() -> Option<Arc<ShardCell<B>>> {
        None
    }

    pub(super) fn put<B: Backend>(_: &Arc<ShardCell<B>>) {}
}

#[cfg(all(test, not(shuttle)))]
mod tests;
