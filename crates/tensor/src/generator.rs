//! Random number generators on the host, and access to the state of the runtime's CPU generator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpline_runtime::generator::CpuGenerator;

#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called as _;
use crate::{DType, Error, Result, Tensor, runtime};

/// A random number generator on the host, with its own sequence (`torch.Generator`). A clone shares the
/// sequence.
///
/// ```
/// use warpline::Generator;
///
/// let generator = Generator::new();
/// generator.manual_seed(42);
/// let state = generator.get_state()?;
/// assert_eq!(state.size(), [5056]);
/// generator.set_state(&state)?;
/// assert_eq!(generator.initial_seed(), 42);
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Generator(Arc<Mutex<CpuGenerator>>);

impl Generator {
    /// Creates a generator with PyTorch's default seed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Restarts the sequence from `seed`.
    pub fn manual_seed(&self, seed: u64) {
        self.lock().manual_seed(seed);
    }

    /// Returns the seed from which the sequence was started.
    #[must_use]
    pub fn initial_seed(&self) -> u64 {
        self.lock().initial_seed()
    }

    /// Returns the state of the generator: a `uint8` tensor on the CPU, in PyTorch's format of 5,056 bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Alloc`] if there is no memory for the tensor.
    #[track_caller]
    pub fn get_state(&self) -> Result<Tensor> {
        let state = self.lock().state();
        crate::tensor(state, crate::Device::Cpu)
    }

    /// Restores a state that [`Generator::get_state`] returned, or PyTorch's `get_state`.
    ///
    /// # Errors
    /// The same as [`set_rng_state`].
    #[track_caller]
    pub fn set_state(&self, state: &Tensor) -> Result<()> {
        let state = bytes("set_state", state)?;
        self.lock().set_state(&state).of("set_state")
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CpuGenerator> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the state of the CPU's generator: a `uint8` tensor on the CPU, in PyTorch's format of 5,056 bytes
/// (`torch.get_rng_state`).
///
/// ```
/// use warpline::{get_rng_state, rand, set_rng_state};
///
/// let state = get_rng_state()?;
/// let once = rand([3], ())?.to_vec::<f32>()?;
/// set_rng_state(&state)?;
/// assert_eq!(rand([3], ())?.to_vec::<f32>()?, once);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Alloc`] if there is no memory for the tensor.
#[track_caller]
pub fn get_rng_state() -> Result<Tensor> {
    let runtime = runtime();
    let state = runtime.cpu_generator().state();
    crate::tensor(state, crate::Device::Cpu)
}

/// Restores a state of the CPU's generator, from this crate or from PyTorch (`torch.set_rng_state`).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `state` is not a `uint8` tensor on the CPU, or its bytes are not a valid
/// state.
#[track_caller]
pub fn set_rng_state(state: &Tensor) -> Result<()> {
    let state = bytes("set_rng_state", state)?;
    let runtime = runtime();
    let mut generator = runtime.cpu_generator();
    generator.set_state(&state)
}

/// Returns the bytes of a generator state.
#[track_caller]
pub(crate) fn bytes(op: &'static str, state: &Tensor) -> Result<Vec<u8>> {
    if state.dtype() != DType::U8 || state.is_cuda() {
        let reason = format!(
            "a generator's state is a tensor of {} on the cpu, not of {} on {}",
            DType::U8,
            state.dtype(),
            state.device()
        );
        return Err(Error::invalid(op, reason));
    }
    state.to_vec().of(op)
}
