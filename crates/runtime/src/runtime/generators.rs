//! Choice of the generators from which a thread draws: the runtime's, or generators of the program.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, PoisonError};

use warpline_sync::{Mutex, MutexGuard};

use super::{CudaDevice, Runtime};
use crate::generator::{CpuGenerator, CudaGenerator};

/// A generator with any number of owners. A clone shares the sequence.
#[derive(Debug, Default)]
pub struct SharedGenerator<G>(Arc<Mutex<G>>);

impl<G> SharedGenerator<G> {
    /// Creates a shared generator.
    #[must_use]
    pub fn new(generator: G) -> Self {
        Self(Arc::new(Mutex::new(generator)))
    }

    /// Locks the generator. Hold the guard until the op is enqueued, so that the order of draws is the order of ops.
    pub fn lock(&self) -> MutexGuard<'_, G> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an address that no other generator has while this one exists.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl<G> Clone for SharedGenerator<G> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A generator of the CPU or of a device (`torch.Generator`). A clone shares the sequence.
#[derive(Clone)]
pub enum Generator {
    /// A generator of CPU tensors.
    Cpu(SharedGenerator<CpuGenerator>),
    /// A generator of a device.
    Cuda {
        /// The device's runtime.
        runtime: Runtime,
        /// The device's index.
        device: usize,
        /// The generator.
        generator: SharedGenerator<CudaGenerator>,
    },
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(generator) => f.debug_tuple("Cpu").field(&generator.lock()).finish(),
            Self::Cuda { device, generator, .. } => {
                let generator = &*generator.lock();
                f.debug_struct("Cuda")
                    .field("device", device)
                    .field("generator", generator)
                    .finish_non_exhaustive()
            }
        }
    }
}

/// The generators that a thread chose, the latest last. A thread draws from the latest one of a device, and from the
/// runtime's generator if it chose none.
#[derive(Clone, Debug, Default)]
pub struct ChosenGenerators(Vec<Generator>);

thread_local! {
    static CHOSEN: RefCell<ChosenGenerators> = const { RefCell::new(ChosenGenerators(Vec::new())) };
}

impl ChosenGenerators {
    /// Returns the generators that this thread chose.
    #[must_use]
    pub fn current() -> Self {
        // Fails while the thread ends, after its thread-local values were dropped.
        CHOSEN.try_with(|chosen| chosen.borrow().clone()).unwrap_or_default()
    }

    /// Creates new generators for the CPU and each device of a runtime, seeded with `seed`.
    #[must_use]
    pub fn seeded(runtime: &Runtime, seed: u64) -> Self {
        let cuda = |device| {
            let mut generator = CudaGenerator::default();
            generator.manual_seed(seed);
            let generator = SharedGenerator::new(generator);
            Generator::Cuda { runtime: runtime.clone(), device, generator }
        };
        let cpu = Generator::Cpu(SharedGenerator::new(CpuGenerator::new(seed)));
        Self(std::iter::once(cpu).chain((0..runtime.device_count()).map(cuda)).collect())
    }

    /// Adds a generator, as the latest one.
    #[must_use]
    pub fn with(mut self, generator: Generator) -> Self {
        self.0.push(generator);
        self
    }

    /// Runs `f` in a thread that chose these generators and no others. Restores the thread's former choice afterwards,
    /// even if `f` panics.
    pub fn within<R>(self, f: impl FnOnce() -> R) -> R {
        struct Restore(ChosenGenerators);
        impl Drop for Restore {
            fn drop(&mut self) {
                let former = std::mem::take(&mut self.0);
                // The generators of `f` are dropped outside `try_with`, because they may hold the last clone of a
                // runtime.
                let _ended = CHOSEN.try_with(|chosen| chosen.replace(former));
            }
        }
        let former = CHOSEN.try_with(|chosen| chosen.replace(self)).unwrap_or_default();
        let _restore = Restore(former);
        f()
    }
}

/// Returns the latest chosen generator for which `of` returns it.
fn chosen<G>(of: impl Fn(&Generator) -> Option<G>) -> Option<G> {
    let find = |chosen: &RefCell<ChosenGenerators>| chosen.borrow().0.iter().rev().find_map(&of);
    CHOSEN.try_with(find).ok().flatten()
}

impl Runtime {
    /// Returns the generator from which this thread draws values of CPU tensors (MT19937): the latest one of its
    /// [`ChosenGenerators`], or the runtime's.
    #[must_use]
    pub fn cpu_generator(&self) -> SharedGenerator<CpuGenerator> {
        let cpu = |generator: &_| {
            if let Generator::Cpu(own) = generator { Some(own.clone()) } else { None }
        };
        chosen(cpu).unwrap_or_else(|| self.0.cpu_generator.clone())
    }
}

impl CudaDevice {
    /// Returns the generator from which this thread draws values on the device (Philox): the latest one of its
    /// [`ChosenGenerators`], or the device's.
    #[must_use]
    pub fn generator(&self) -> SharedGenerator<CudaGenerator> {
        let own = |generator: &_| match generator {
            Generator::Cuda { runtime, device, generator }
                if runtime.gpu(*device).is_some_and(|device| std::ptr::eq(device, self)) =>
            {
                Some(generator.clone())
            }
            _ => None,
        };
        chosen(own).unwrap_or_else(|| self.generator.clone())
    }
}
