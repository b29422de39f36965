//! Choice of the generators that a thread draws from: the runtime's, or its own.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::PoisonError;

use warpline_sync::{Mutex, MutexGuard};

use super::{CudaDevice, Runtime};
use crate::generator::{CpuGenerator, CudaGenerator};

/// A generator of one thread. Empty while a [`GeneratorGuard`] holds it.
type Slot<G> = Rc<Cell<Option<Box<G>>>>;

/// Generators that a thread uses instead of a runtime's.
struct Own {
    runtime: Runtime,
    cpu: Slot<CpuGenerator>,
    /// Indexed by device.
    cuda: Vec<Slot<CudaGenerator>>,
}

thread_local! {
    static OWN: RefCell<Option<Rc<Own>>> = const { RefCell::new(None) };
}

/// Exclusive use of a generator, until the guard is dropped.
pub struct GeneratorGuard<'a, G>(Held<'a, G>);

enum Held<'a, G> {
    Shared(MutexGuard<'a, G>),
    /// `None` only within `drop`.
    Own(Slot<G>, Option<Box<G>>),
}

impl<'a, G> GeneratorGuard<'a, G> {
    fn new(shared: &'a Mutex<G>, own: Option<Slot<G>>) -> Self {
        if let Some(slot) = own
            && let Some(generator) = slot.take()
        {
            return Self(Held::Own(slot, Some(generator)));
        }
        Self(Held::Shared(shared.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<G> Deref for GeneratorGuard<'_, G> {
    type Target = G;

    fn deref(&self) -> &G {
        match &self.0 {
            Held::Shared(generator) => generator,
            Held::Own(_, Some(generator)) => generator,
            Held::Own(_, None) => unreachable!("only `drop` takes it"),
        }
    }
}

impl<G> DerefMut for GeneratorGuard<'_, G> {
    fn deref_mut(&mut self) -> &mut G {
        match &mut self.0 {
            Held::Shared(generator) => generator,
            Held::Own(_, Some(generator)) => generator,
            Held::Own(_, None) => unreachable!("only `drop` takes it"),
        }
    }
}

impl<G> Drop for GeneratorGuard<'_, G> {
    fn drop(&mut self) {
        if let Held::Own(slot, generator) = &mut self.0 {
            slot.set(generator.take());
        }
    }
}

impl<G: fmt::Debug> fmt::Debug for GeneratorGuard<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Returns this thread's own generators, within `with_generators` of a runtime.
fn own(is_of: impl FnOnce(&Runtime) -> bool) -> Option<Rc<Own>> {
    // A thread that ends has none any more.
    let own = OWN.try_with(|own| own.borrow().clone()).ok().flatten();
    own.filter(|own| is_of(&own.runtime))
}

impl Runtime {
    /// Locks the generator of CPU tensors (MT19937): the runtime's, or within
    /// [`with_generators`](Self::with_generators) this thread's own.
    #[must_use]
    pub fn cpu_generator(&self) -> GeneratorGuard<'_, CpuGenerator> {
        let own = own(|runtime| runtime.same_as(self)).map(|own| Rc::clone(&own.cpu));
        GeneratorGuard::new(&self.0.cpu_generator, own)
    }

    /// Runs `f` with this thread's own generators for the CPU and each device, seeded with `seed`.
    /// Random ops on this runtime in this thread then neither advance nor depend on the runtime's
    /// generators. Restores the thread's former generators afterwards, also if `f` panics.
    pub fn with_generators<R>(&self, seed: u64, f: impl FnOnce() -> R) -> R {
        struct Restore(Option<Rc<Own>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                let former = self.0.take();
                // Dropped outside, because it may hold the last clone of a runtime.
                let _ended = OWN.try_with(|own| own.replace(former));
            }
        }
        fn slot<G>(generator: G) -> Slot<G> {
            Rc::new(Cell::new(Some(Box::new(generator))))
        }
        let seeded = || {
            let mut generator = CudaGenerator::default();
            generator.manual_seed(seed);
            slot(generator)
        };
        let own = Own {
            runtime: self.clone(),
            cpu: slot(CpuGenerator::new(seed)),
            cuda: (0..self.device_count()).map(|_| seeded()).collect(),
        };
        let former = OWN.try_with(|slot| slot.replace(Some(Rc::new(own)))).ok().flatten();
        let _restore = Restore(former);
        f()
    }
}

impl CudaDevice {
    /// Locks the random generator (Philox): the device's, or within [`Runtime::with_generators`] this thread's own.
    #[must_use]
    pub fn generator(&self) -> GeneratorGuard<'_, CudaGenerator> {
        let is_of = |runtime: &Runtime| {
            runtime.gpu(self.index()).is_some_and(|device| std::ptr::eq(device, self))
        };
        let own = own(is_of).and_then(|own| own.cuda.get(self.index()).cloned());
        GeneratorGuard::new(&self.generator, own)
    }
}
