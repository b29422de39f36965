//! Generators of random numbers on the host, and the states of those of the runtime.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpline_runtime::generator::CpuGenerator;

use crate::called::Called as _;
use crate::{DType, Error, Result, Tensor, runtime};

/// A sequence of random numbers of its own (`torch.Generator`), on the host. A clone is the same sequence.
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
    /// With PyTorch's default seed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts the sequence of `seed`.
    pub fn manual_seed(&self, seed: u64) {
        self.lock().manual_seed(seed);
    }

    /// The seed the sequence was started from.
    #[must_use]
    pub fn initial_seed(&self) -> u64 {
        self.lock().initial_seed()
    }

    /// All that the sequence goes on from, in the bytes that PyTorch has.
    ///
    /// # Errors
    /// When the memory cannot be had.
    #[track_caller]
    pub fn get_state(&self) -> Result<Tensor> {
        let state = self.lock().state();
        crate::tensor(state, crate::Device::Cpu)
    }

    /// Goes on from where [`Generator::get_state`] was called.
    ///
    /// # Errors
    /// As [`set_rng_state`].
    #[track_caller]
    pub fn set_state(&self, state: &Tensor) -> Result<()> {
        let state = bytes("set_state", state)?;
        self.lock().set_state(&state).of("set_state")
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CpuGenerator> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the CPU's generator (`torch.get_rng_state`), in the bytes that PyTorch has.
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
/// When the memory cannot be had.
#[track_caller]
pub fn get_rng_state() -> Result<Tensor> {
    let runtime = runtime();
    let state = runtime.cpu_generator().state();
    crate::tensor(state, crate::Device::Cpu)
}

/// Makes the CPU's generator go on from a state (`torch.set_rng_state`), of PyTorch's too.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] unless it is a tensor of bytes on the host that holds a state.
#[track_caller]
pub fn set_rng_state(state: &Tensor) -> Result<()> {
    let state = bytes("set_rng_state", state)?;
    let runtime = runtime();
    let mut generator = runtime.cpu_generator();
    generator.set_state(&state)
}

/// What a state's tensor holds.
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
