//! Random number generators of a program, and access to the state of the runtime's CPU generator.

use warpline_runtime::generator::CpuGenerator;
use warpline_runtime::{ChosenGenerators, SharedGenerator};

use crate::called::Called as _;
use crate::cuda::CudaDeviceArg as _;
use crate::{DType, Device, Error, ErrorKind, IntoDevice, Result, Tensor, runtime};

/// Evaluates an expression with the shared generator, whatever its device.
macro_rules! each {
    ($of:expr, $generator:ident => $do:expr) => {
        match $of {
            warpline_runtime::Generator::Cpu($generator) => $do,
            warpline_runtime::Generator::Cuda { generator: $generator, .. } => $do,
        }
    };
}

/// A random number generator of the CPU or of a GPU, with its own sequence (`torch.Generator`). [`with_generator`] draws
/// from it. A clone shares the sequence.
///
/// ```
/// use warpline::{Generator, rand, with_generator};
///
/// let generator = Generator::new();
/// generator.manual_seed(42);
/// let state = generator.get_state()?;
/// assert_eq!(state.size(), [5056]);
/// let once = with_generator(&generator, || rand([3], ()))?.to_vec::<f32>()?;
/// generator.set_state(&state)?;
/// assert_eq!(with_generator(&generator, || rand([3], ()))?.to_vec::<f32>()?, once);
/// assert_eq!(generator.initial_seed(), 42);
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Generator(warpline_runtime::Generator);

impl Default for Generator {
    fn default() -> Self {
        Self(warpline_runtime::Generator::Cpu(SharedGenerator::default()))
    }
}

impl Generator {
    /// Creates a generator of the CPU with PyTorch's default seed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a generator of a device with PyTorch's default seed (`torch.Generator(device)`).
    ///
    /// ```
    /// use warpline::{Device, Generator};
    ///
    /// assert_eq!(Generator::on("cpu")?.device(), Device::Cpu);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidDeviceString`] if a string
    /// does not name a device. [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or
    /// [`ErrorKind::Driver`] if no GPU can be used.
    #[track_caller]
    pub fn on(device: impl IntoDevice) -> Result<Self> {
        let device = device.into_device()?;
        if device == Device::Cpu {
            return Ok(Self::new());
        }
        let runtime = runtime();
        let device = device.index_in(&runtime).of("Generator")?;
        let generator = SharedGenerator::default();
        Ok(Self(warpline_runtime::Generator::Cuda { runtime, device, generator }))
    }

    /// Returns the device whose values the generator draws.
    #[must_use]
    pub fn device(&self) -> Device {
        match &self.0 {
            warpline_runtime::Generator::Cpu(_) => Device::Cpu,
            warpline_runtime::Generator::Cuda { device, .. } => Device::Cuda(Some(*device)),
        }
    }

    /// Restarts the sequence from `seed`. Ops that are being captured do not notice: each replay goes on from the state
    /// that the generator has then.
    pub fn manual_seed(&self, seed: u64) {
        each!(&self.0, generator => generator.lock().manual_seed(seed));
    }

    /// Returns the seed from which the sequence was started.
    #[must_use]
    pub fn initial_seed(&self) -> u64 {
        each!(&self.0, generator => generator.lock().initial_seed())
    }

    /// Returns the state of the generator: a `uint8` tensor on the CPU, in PyTorch's format of 5,056 bytes for the CPU
    /// and 16 bytes for a GPU.
    ///
    /// # Errors
    /// [`ErrorKind::Alloc`] if there is no memory for the tensor. [`ErrorKind::Capture`] if the generator is of a GPU
    /// whose current stream is being captured.
    #[track_caller]
    pub fn get_state(&self) -> Result<Tensor> {
        not_captured("get_state", self.device())?;
        let state = each!(&self.0, generator => generator.lock().state());
        crate::tensor(state, Device::Cpu)
    }

    /// Restores a state that [`Generator::get_state`] returned, or PyTorch's `get_state`.
    ///
    /// # Errors
    /// The same as [`set_rng_state`]. [`ErrorKind::Capture`] if the generator is of a GPU whose current stream is being
    /// captured.
    #[track_caller]
    pub fn set_state(&self, state: &Tensor) -> Result<()> {
        not_captured("set_state", self.device())?;
        let state = bytes("set_state", state)?;
        each!(&self.0, generator => generator.lock().set_state(&state)).of("set_state")
    }

    /// Returns a generator that starts from a copy of this generator's state, and then has its own sequence
    /// (`Generator.clone_state`).
    ///
    /// ```
    /// use warpline::{Generator, rand, with_generator};
    ///
    /// let generator = Generator::new();
    /// let copy = generator.clone_state();
    /// let draw = |generator| with_generator(generator, || rand([3], ()))?.to_vec::<f32>();
    /// assert_eq!(draw(&generator)?, draw(&copy)?);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    #[must_use]
    pub fn clone_state(&self) -> Self {
        let mut new = self.0.clone();
        each!(&mut new, generator => {
            let copy = generator.lock().clone();
            *generator = SharedGenerator::new(copy);
        });
        Self(new)
    }

    /// Returns a generator that shares the state of this GPU generator, for
    /// [`graphsafe_set_state`](Self::graphsafe_set_state) (`Generator.graphsafe_get_state`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the generator is one of the CPU.
    #[track_caller]
    pub fn graphsafe_get_state(&self) -> Result<Self> {
        self.check_graphsafe("graphsafe_get_state", self)?;
        Ok(self.clone())
    }

    /// Lets this GPU generator share the state of another one (`Generator.graphsafe_set_state`). Clones of this
    /// generator keep the former state. A captured op draws from the state that its generator has at the capture, so a
    /// graph may draw from several states of one generator.
    ///
    /// ```
    /// use warpline::{Generator, cuda, rand, simulated, with_generator, with_runtime};
    ///
    /// with_runtime(&simulated(1)?, || {
    ///     let mut generator = Generator::on("cuda")?;
    ///     let (old, new) = (generator.graphsafe_get_state()?, generator.clone_state());
    ///     generator.graphsafe_set_state(&new)?;
    ///     let (graph, _) = cuda::graph(|| with_generator(&generator, || rand([3], "cuda")))?;
    ///     generator.graphsafe_set_state(&old)?;
    ///     graph.replay()?;
    ///     assert_eq!(generator.get_state()?.to_vec::<u8>()?[8..], [0; 8], "the replay advanced `new`");
    ///     Ok::<(), warpline::Error>(())
    /// })?;
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the generators are not of the same GPU.
    #[track_caller]
    pub fn graphsafe_set_state(&mut self, state: &Self) -> Result<()> {
        self.check_graphsafe("graphsafe_set_state", state)?;
        self.0 = state.0.clone();
        Ok(())
    }

    #[track_caller]
    fn check_graphsafe(&self, op: &'static str, state: &Self) -> Result<()> {
        use warpline_runtime::Generator::Cuda;
        if let (Cuda { runtime: own, .. }, Cuda { runtime, .. }) = (&self.0, &state.0)
            && own.same_as(runtime)
            && self.device() == state.device()
        {
            return Ok(());
        }
        let (own, other) = (self.device(), state.device());
        let reason = format!("expects generators of one GPU, not of {own} and {other}");
        Err(Error::invalid(op, reason))
    }

    /// Returns the generator if it draws values on the CPU.
    #[track_caller]
    pub(crate) fn of_cpu(&self, op: &'static str) -> Result<SharedGenerator<CpuGenerator>> {
        if let warpline_runtime::Generator::Cpu(generator) = &self.0 {
            return Ok(generator.clone());
        }
        let reason = format!("expects a generator of the cpu, not of {}", self.device());
        Err(Error::invalid(op, reason))
    }
}

/// Runs `f` and draws its random values on the generator's device from this generator, in this thread (`generator=` of
/// PyTorch's random functions). This holds for every random op, [`dropout`](crate::functional::dropout) included;
/// [`manual_seed`](crate::manual_seed) and [`set_rng_state`] in `f` set this generator. The former generator serves
/// again afterwards, even if `f` panics.
///
/// In a capture, the graph registers each generator from which its ops draw (`CUDAGraph.register_generator_state`), at
/// most 32 of them. A replay then continues their sequences.
///
/// ```
/// use warpline::{Generator, manual_seed, randn, with_generator};
///
/// let (weights, noise) = (Generator::new(), Generator::new());
/// weights.manual_seed(1);
/// noise.manual_seed(1);
/// let first = with_generator(&weights, || randn([2, 2], ()))?;
/// let second = with_generator(&noise, || randn([2, 2], ()))?;
/// assert_eq!(first.to_vec::<f32>()?, second.to_vec::<f32>()?);
/// # Ok::<(), warpline::Error>(())
/// ```
pub fn with_generator<R>(generator: &Generator, f: impl FnOnce() -> R) -> R {
    ChosenGenerators::current().with(generator.0.clone()).within(f)
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
    let state = runtime().cpu_generator().lock().state();
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
    runtime().cpu_generator().lock().set_state(&state)
}

/// Fails if the current stream of the device is being captured, because replays would not repeat the call.
#[track_caller]
pub(crate) fn not_captured(op: &'static str, device: Device) -> Result<()> {
    let is_capturing = |device| crate::cuda::current_stream(device).is_ok_and(|s| s.is_capturing());
    if !device.is_cuda() || !is_capturing(device) {
        return Ok(());
    }
    let reason = "replays of the graph would not read or set a generator's state; do it before or after the capture, or \
                  use `graphsafe_get_state` and `graphsafe_set_state`";
    Err(ErrorKind::Capture { reason: reason.into() }.of(op))
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
