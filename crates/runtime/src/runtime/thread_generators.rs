//! Choice of the generators from which a thread draws: the runtime's, or its own.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::PoisonError;

use warpline_sync::{Mutex, MutexGuard};

use super::{CudaDevice, Runtime};
use crate::generator::{CpuGenerator, CudaGenerator};

/// A generator of one thread. Empty while a [`GeneratorGuard`] holds it.
type GeneratorCell<G> = Rc<Cell<Option<Box<G>>>>;

/// Generators that a thread uses instead of the runtime's.
struct ThreadGenerators {
    runtime: Runtime,
    cpu: GeneratorCell<CpuGenerator>,
    /// Indexed by device.
    cuda: Vec<GeneratorCell<CudaGenerator>>,
}

thread_local! {
    static THREAD_GENERATORS: RefCell<Option<Rc<ThreadGenerators>>> = const { RefCell::new(None) };
}

/// Exclusive use of a generator, until the guard is dropped.
pub struct GeneratorGuard<'a, G>(GuardInner<'a, G>);

enum GuardInner<'a, G> {
    Runtime(MutexGuard<'a, G>),
    /// `None` only within `drop`.
    Thread(GeneratorCell<G>, Option<Box<G>>),
}

impl<'a, G> GeneratorGuard<'a, G> {
    fn new(shared: &'a Mutex<G>, own: Option<GeneratorCell<G>>) -> Self {
        if let Some(cell) = own
            && let Some(generator) = cell.take()
        {
            return Self(GuardInner::Thread(cell, Some(generator)));
        }
        Self(GuardInner::Runtime(shared.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<G> Deref for GeneratorGuard<'_, G> {
    type Target = G;

    fn deref(&self) -> &G {
        match &self.0 {
            GuardInner::Runtime(generator) => generator,
            GuardInner::Thread(_, Some(generator)) => generator,
            GuardInner::Thread(_, None) => unreachable!("only `drop` takes it"),
        }
    }
}

impl<G> DerefMut for GeneratorGuard<'_, G> {
    fn deref_mut(&mut self) -> &mut G {
        match &mut self.0 {
            GuardInner::Runtime(generator) => generator,
            GuardInner::Thread(_, Some(generator)) => generator,
            GuardInner::Thread(_, None) => unreachable!("only `drop` takes it"),
        }
    }
}

impl<G> Drop for GeneratorGuard<'_, G> {
    fn drop(&mut self) {
        if let GuardInner::Thread(cell, generator) = &mut self.0 {
            cell.set(generator.take());
        }
    }
}

impl<G: fmt::Debug> fmt::Debug for GeneratorGuard<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Returns this thread's own generators. `None` unless the thread is inside `with_generators` of a runtime that
/// `is_of` accepts.
fn thread_generators(is_of: impl FnOnce(&Runtime) -> bool) -> Option<Rc<ThreadGenerators>> {
    // Fails while the thread ends, after its thread-local values were dropped.
    let own = THREAD_GENERATORS.try_with(|own| own.borrow().clone()).ok().flatten();
    own.filter(|own| is_of(&own.runtime))
}

impl Runtime {
    /// Locks the generator of CPU tensors (MT19937): the runtime's, or within
    /// [`with_generators`](Self::with_generators) this thread's own.
    #[must_use]
    pub fn cpu_generator(&self) -> GeneratorGuard<'_, CpuGenerator> {
        let own = thread_generators(|runtime| runtime.same_as(self)).map(|own| Rc::clone(&own.cpu));
        GeneratorGuard::new(&self.0.cpu_generator, own)
    }

    /// Runs `f` with this thread's own generators for the CPU and each device, seeded with `seed`.
    /// Random ops on this runtime in this thread then neither advance nor depend on the runtime's
    /// generators. Restores the thread's former generators afterwards, also if `f` panics.
    pub fn with_generators<R>(&self, seed: u64, f: impl FnOnce() -> R) -> R {
        struct RestoreGenerators(Option<Rc<ThreadGenerators>>);
        impl Drop for RestoreGenerators {
            fn drop(&mut self) {
                let former = self.0.take();
                // Drop the generators of `f` outside `try_with`, because they may hold the last
                // clone of a runtime.
                let _ended = THREAD_GENERATORS.try_with(|own| own.replace(former));
            }
        }
        fn cell<G>(generator: G) -> GeneratorCell<G> {
            Rc::new(Cell::new(Some(Box::new(generator))))
        }
        let seeded = || {
            let mut generator = CudaGenerator::default();
            generator.manual_seed(seed);
            cell(generator)
        };
        let own = ThreadGenerators {
            runtime: self.clone(),
            cpu: cell(CpuGenerator::new(seed)),
            cuda: (0..self.device_count()).map(|_| seeded()).collect(),
        };
        let former =
            THREAD_GENERATORS.try_with(|cell| cell.replace(Some(Rc::new(own)))).ok().flatten();
        let _restore = RestoreGenerators(former);
        f()
    }
}

impl CudaDevice {
    /// Locks the random generator (Philox) of the device, or within [`Runtime::with_generators`]
    /// the generator of this thread.
    #[must_use]
    pub fn generator(&self) -> GeneratorGuard<'_, CudaGenerator> {
        let is_of = |runtime: &Runtime| {
            runtime.gpu(self.index()).is_some_and(|device| std::ptr::eq(device, self))
        };
        let own = thread_generators(is_of).and_then(|own| own.cuda.get(self.index()).cloned());
        GeneratorGuard::new(&self.generator, own)
    }
}
