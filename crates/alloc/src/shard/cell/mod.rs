//! The place of a shard's state, to which blocks refer without being counted.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{Shard, State};
use crate::Backend;
use crate::core::Core;
use crate::release;
use crate::sync::{Lasting, ShardGuard, ShardLock, lasting, lock_shard};

/// The state of one shard at a time, behind its lock. A cell is vacant between two, and never
/// deallocated.
///
/// It is occupied while its shard lives; `shard/mod.rs` says how long that is. Threads that work on
/// streams of their own share no cache line of cells.
#[repr(align(128))]
pub(crate) struct ShardCell<B: Backend> {
    occupant: ShardLock<Option<Occupant<B>>>,
}

struct Occupant<B: Backend> {
    state: State<B>,
    core: Arc<Core<B>>,
    /// The retired shard, while blocks outlive its owner.
    retired: Option<Arc<Shard<B>>>,
}

/// A shard's state, locked.
pub(crate) struct Locked<'a, B: Backend>(ShardGuard<'a, Option<Occupant<B>>>);

impl<B: Backend> ShardCell<B> {
    /// A cell for a new shard, which others may have had before.
    pub(crate) fn occupy(core: &Arc<Core<B>>, state: State<B>) -> Lasting<Self> {
        let cell =
            vacant::take().unwrap_or_else(|| lasting(Self { occupant: ShardLock::new(None) }));
        let occupant = Occupant { state, core: Arc::clone(core), retired: None };
        *lock_shard(&cell.occupant) = Some(occupant);
        cell
    }

    /// Drops the state of a shard that is no more, and keeps its cell for another one.
    pub(crate) fn vacate(cell: &Lasting<Self>) {
        let occupant = lock_shard(&cell.occupant).take();
        vacant::put(cell);
        // Without the lock.
        drop(occupant);
    }

    /// For a hit and a free, which may leave a block parked.
    #[inline]
    pub(crate) fn lock_parked(&self) -> Locked<'_, B> {
        Locked(lock_shard(&self.occupant))
    }

    pub(crate) fn lock(&self) -> Locked<'_, B> {
        let mut state = self.lock_parked();
        state.unpark();
        state
    }

    /// For a look at the counters. An alias may stay parked, which counts the same: so one thread's
    /// misses do not cost another its block.
    pub(crate) fn lock_counted(&self) -> Locked<'_, B> {
        let mut state = self.lock_parked();
        if state.is_part_parked() {
            state.unpark();
        }
        state
    }

    /// Takes a block back from its caller, who must not use the cell after that. Not inlined, so
    /// that to drop an `Option` that is `None` costs nothing.
    #[inline(never)]
    pub(crate) fn free(&self, block: u32) {
        let mut locked = self.lock_parked();
        let Occupant { state, core, .. } = locked.occupant();
        if state.heap.is_alias(block) && core.hooks.observe_moves() {
            // It is still the caller's, so that nobody else has its memory yet.
            let (pieces, core) = (state.heap.pieces_of(block), Arc::clone(core));
            drop(locked);
            pieces.iter().for_each(|&(here, home, bytes)| core.hooks.moved(here, home, bytes));
            locked = self.lock_parked();
        }
        let Occupant { state, core, .. } = locked.occupant();
        if core.is_capturing() {
            state.free_in_capture(block);
        } else {
            state.free(&core.backend, block);
        }
        if state.counters.over || !state.rules.caching || state.retired {
            locked.settle();
        }
    }

    /// Lets the shard take no more requests: what is free goes back to the backend, what comes
    /// free will, and the last block takes the shard with it.
    pub(crate) fn retire(&self, shard: &Arc<Shard<B>>) {
        let mut locked = self.lock_parked();
        let Occupant { state, retired, .. } = locked.occupant();
        state.retired = true;
        *retired = (state.counters.blocks() > 0).then(|| Arc::clone(shard));
        locked.settle();
    }
}

impl<B: Backend> Locked<'_, B> {
    #[inline]
    fn occupant(&mut self) -> &mut Occupant<B> {
        match &mut *self.0 {
            Some(occupant) => occupant,
            None => unreachable!("a cell is occupied while there is its shard or a block"),
        }
    }

    /// What a free does that is not only the shard's own business.
    #[cold]
    fn settle(mut self) {
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

impl<B: Backend> Deref for Locked<'_, B> {
    type Target = State<B>;

    #[inline]
    fn deref(&self) -> &State<B> {
        match &*self.0 {
            Some(occupant) => &occupant.state,
            None => unreachable!("a cell is occupied while there is its shard or a block"),
        }
    }
}

impl<B: Backend> DerefMut for Locked<'_, B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State<B> {
        &mut self.occupant().state
    }
}

/// Vacant cells, of all allocators of the process.
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

/// A lock of the checker's belongs to one execution.
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
