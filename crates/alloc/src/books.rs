//! The books of a shard, to which blocks refer without being counted.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::Backend;
use crate::core::Core;
use crate::shard::Shard;
use crate::state::State;
use crate::sync::{Lasting, ShardGuard, ShardLock, lasting, lock_shard};

/// The books of one shard at a time. They are empty between two, and never deallocated.
///
/// They are filled while their shard lives, and it does while they count a block: the allocator or
/// a pool has it, and if blocks outlive that, the books themselves until the last block comes back.
/// Threads that work on streams of their own share no cache line of them.
#[repr(align(128))]
pub(crate) struct Books<B: Backend> {
    filled: ShardLock<Option<Filled<B>>>,
}

struct Filled<B: Backend> {
    state: State<B>,
    core: Arc<Core<B>>,
    /// The retired shard, while blocks outlive whoever it belonged to.
    kept: Option<Arc<Shard<B>>>,
}

/// A shard's state, locked.
pub(crate) struct Locked<'a, B: Backend>(ShardGuard<'a, Option<Filled<B>>>);

impl<B: Backend> Books<B> {
    /// Books for a new shard, which others may have had before.
    pub(crate) fn fill(core: &Arc<Core<B>>, state: State<B>) -> Lasting<Self> {
        let books = spare::take().unwrap_or_else(|| lasting(Self { filled: ShardLock::new(None) }));
        let filled = Filled { state, core: Arc::clone(core), kept: None };
        *lock_shard(&books.filled) = Some(filled);
        books
    }

    /// Empties the books of a shard that is no more, for another one.
    pub(crate) fn empty(books: &Lasting<Self>) {
        let filled = lock_shard(&books.filled).take();
        spare::put(books);
        // Without the lock.
        drop(filled);
    }

    /// For a hit and a free, which may leave a block parked.
    #[inline]
    pub(crate) fn lock_parked(&self) -> Locked<'_, B> {
        Locked(lock_shard(&self.filled))
    }

    pub(crate) fn lock(&self) -> Locked<'_, B> {
        let mut state = self.lock_parked();
        state.unpark();
        state
    }

    /// For a look at the counters. A block in pieces may stay parked, which counts the same: so
    /// one thread's misses do not cost another its block.
    pub(crate) fn lock_counted(&self) -> Locked<'_, B> {
        let mut state = self.lock_parked();
        if state.is_part_parked() {
            state.unpark();
        }
        state
    }

    /// Takes a block back from its caller, who must not use the books after that. Not inlined, so
    /// that to drop an `Option` that is `None` costs nothing.
    #[inline(never)]
    pub(crate) fn free(&self, block: u32) {
        let mut locked = self.lock_parked();
        let Filled { state, core, .. } = locked.filled();
        if state.is_stitched(block) && core.hooks.are_followed() {
            // It is still the caller's, so that nobody else has its memory yet.
            let (homes, core) = (state.homes_of(block), Arc::clone(core));
            drop(locked);
            homes.iter().for_each(|&(from, to, bytes)| core.hooks.moved(from, to, bytes));
            locked = self.lock_parked();
        }
        let Filled { state, core, .. } = locked.filled();
        if core.is_capturing() {
            state.free_in_capture(block);
        } else {
            state.free(&core.backend, block);
        }
        if state.counters.over || !state.config.caching || state.retired {
            locked.settle();
        }
    }

    /// Lets the shard take no more requests: what is free goes back to the backend, what comes
    /// free will, and the last block takes the shard with it.
    pub(crate) fn retire(&self, shard: &Arc<Shard<B>>) {
        let mut locked = self.lock_parked();
        let Filled { state, kept, .. } = locked.filled();
        state.retired = true;
        *kept = (state.counters.blocks() > 0).then(|| Arc::clone(shard));
        locked.settle();
    }
}

impl<B: Backend> Locked<'_, B> {
    #[inline]
    fn filled(&mut self) -> &mut Filled<B> {
        match &mut *self.0 {
            Some(filled) => filled,
            None => unreachable!("books are filled while there is their shard or a block"),
        }
    }

    /// What a free does that is not only the shard's own business.
    #[cold]
    fn settle(mut self) {
        let Filled { state, core, kept } = self.filled();
        let core = Arc::clone(core);
        state.unpark();
        let keeps = state.config.caching && !state.retired;
        let released = if keeps { Vec::new() } else { state.take_cached() };
        let last = if state.counters.blocks() == 0 { kept.take() } else { None };
        let over = state.counters.over;
        drop(self);
        core.gone(released);
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
            Some(filled) => &filled.state,
            None => unreachable!("books are filled while there is their shard or a block"),
        }
    }
}

impl<B: Backend> DerefMut for Locked<'_, B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State<B> {
        &mut self.filled().state
    }
}

/// Empty books, of all allocators of the process.
#[cfg(not(shuttle))]
mod spare {
    use std::any::{Any, TypeId};
    use std::collections::BTreeMap;
    use std::sync::PoisonError;

    use warpline_sync::Mutex;

    use super::{Backend, Books};

    type Erased = &'static (dyn Any + Send + Sync);

    static SPARE: Mutex<BTreeMap<TypeId, Vec<Erased>>> = Mutex::new(BTreeMap::new());

    pub(super) fn take<B: Backend>() -> Option<&'static Books<B>> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        spare.get_mut(&TypeId::of::<B>())?.pop()?.downcast_ref()
    }

    pub(super) fn put<B: Backend>(books: &'static Books<B>) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        spare.entry(TypeId::of::<B>()).or_default().push(books);
    }
}

/// A lock of the checker's belongs to one execution.
#[cfg(shuttle)]
mod spare {
    use super::{Arc, Backend, Books};

    pub(super) fn take<B: Backend>() -> Option<Arc<Books<B>>> {
        None
    }

    pub(super) fn put<B: Backend>(_: &Arc<Books<B>>) {}
}

#[cfg(all(test, not(shuttle)))]
mod tests;
