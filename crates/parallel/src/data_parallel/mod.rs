//! Runs a module on several GPUs of one process (`torch.nn.DataParallel`).

mod apply;
mod error;
mod gather;
mod options;
mod replicate;
mod scatter;

use std::any::TypeId;
use std::sync::{Mutex, MutexGuard, PoisonError};

use warpline::{Device, Error, IntoOptions, Result, Runtime};
use warpline_nn::{Forward, Module, Visitor, VisitorMut};
use warpline_stream::Stream;

pub use error::DataParallelError;
pub use gather::{Gather, GatherTo};
pub use options::{DataParallelOptions, OutputDevice};
pub use scatter::{Scatter, ScatterTo};

use apply::{ReplicaCall, Worker, parallel_apply};
use replicate::{DeviceCopies, ModuleTensors, replicate};

/// Runs a module on several GPUs (`torch.nn.DataParallel`). The input is split along the batch dimension, each GPU
/// processes one chunk with a replica of the module, and the outputs are concatenated on one device.
///
/// ```
/// use warpline::{simulated, with_runtime};
/// use warpline_nn::{Linear, Module};
/// use warpline_parallel::DataParallel;
///
/// with_runtime(&simulated(2)?, || {
///     let mut model = Linear::new(4, 2, ())?;
///     model.to("cuda:0")?;
///     let net = DataParallel::new(model, ())?;
///     let out = net.forward(warpline::ones([6, 4], "cuda:0")?)?;
///     assert_eq!((out.size(), out.device().to_string()), (&[6, 2][..], "cuda:0".into()));
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Like PyTorch:
/// - All parameters and buffers must be on the first device. The replica on the first device shares their memory, so
///   its writes to buffers persist; writes of other replicas to their buffers are lost.
/// - Each forward pass clones the module for each replica. Replicas share everything that clones share, such as the
///   contents of an [`std::sync::Arc`].
/// - Each replica runs with the caller's runtime and the caller's current stream of the replica's device. The host does
///   not wait for a device, unless an input is in pageable memory or the output device is the CPU.
/// - Without a GPU, or with a single one, the module is called directly.
///
/// Unlike PyTorch:
/// - Copies of parameters and buffers are kept between forward passes. A copy is renewed only if the copy or the
///   original was written to, the original was replaced, or the program still holds the copy.
/// - Each device but the first has a thread that lives as long as the `DataParallel`. The current device and streams
///   that a module sets there are reset after the call.
/// - Forward passes that several threads start at the same time use the devices' threads in turn, and each pass but one
///   makes its own copies of the parameters.
/// - A forward pass on several GPUs cannot be captured in a graph.
#[derive(Debug)]
pub struct DataParallel<M> {
    module: M,
    /// Indices of the GPUs. Empty without a GPU.
    device_ids: Vec<usize>,
    output_device: Device,
    dim: isize,
    /// Threads of all devices but the first.
    workers: Vec<Worker>,
    /// Copies per worker. Empty before the first forward pass, while a forward pass uses the copies, and after a
    /// forward pass that failed.
    cached: Mutex<Vec<DeviceCopies>>,
}

impl<M: Module> DataParallel<M> {
    /// Creates a `DataParallel` (`torch.nn.DataParallel`). `options` is `()` or [`DataParallelOptions`]. `()` uses all
    /// GPUs in the order of their indices, and gathers the outputs on GPU 0. If only one GPU is used, moves the module
    /// to that GPU.
    ///
    /// # Errors
    /// [`ErrorKind::DataParallel`](warpline::ErrorKind::DataParallel) with a [`DataParallelError`] as its source:
    /// [`DataParallelError::DeviceIds`] if the list of GPUs is empty or has a GPU twice,
    /// [`DataParallelError::OutputDevice`] if the output device is a negative number other than -1,
    /// [`DataParallelError::Thread`] if a thread cannot be started.
    /// [`ErrorKind::NoSuchDevice`](warpline::ErrorKind::NoSuchDevice) if there is no GPU with one of the given indices;
    /// [`ErrorKind::InvalidDeviceString`](warpline::ErrorKind::InvalidDeviceString) if the output device is not a
    /// device name; errors of [`Module::to`].
    #[track_caller]
    pub fn new(mut module: M, options: impl IntoOptions<DataParallelOptions>) -> Result<Self> {
        let options = options.into_options();
        let (device_ids, output_device) = options.devices(&warpline::runtime())?;
        if let [device] = device_ids[..] {
            module.to(Device::cuda(device))?;
        }
        let others = device_ids.get(1..).unwrap_or_default();
        let workers: Vec<_> = others.iter().map(|&d| Worker::spawn(d)).collect::<Result<_, _>>()?;
        let cached = Mutex::default();
        Ok(Self { module, device_ids, output_device, dim: options.dim, workers, cached })
    }
}

impl<M> DataParallel<M> {
    /// Returns the module.
    #[must_use]
    pub fn module(&self) -> &M {
        &self.module
    }

    /// Returns the module for modification. The next forward pass uses the modified module.
    #[must_use]
    pub fn module_mut(&mut self) -> &mut M {
        &mut self.module
    }

    /// Consumes the `DataParallel` and returns the module.
    #[must_use]
    pub fn into_module(self) -> M {
        self.module
    }

    /// Returns the indices of the GPUs. Empty if the module runs on the CPU.
    #[must_use]
    pub fn device_ids(&self) -> &[usize] {
        &self.device_ids
    }

    /// Returns the device on which outputs are gathered.
    #[must_use]
    pub fn output_device(&self) -> Device {
        self.output_device
    }

    /// Computes the module's output. The input may have any type that implements [`Scatter`]. Pass several arguments as
    /// a tuple. For a module without arguments, pass `()`; only the first replica then runs.
    ///
    /// # Errors
    /// [`ErrorKind::DataParallel`](warpline::ErrorKind::DataParallel) with a [`DataParallelError`] as its source:
    /// [`DataParallelError::WrongDevice`] if a parameter or buffer is not on the first of the options' GPUs,
    /// [`DataParallelError::Replica`] for the first replica that failed, after all replicas have ended,
    /// [`DataParallelError::Thread`] in a forked child, if the thread of a GPU has ended, and if a replica on any GPU
    /// but the first calls the `DataParallel` itself. A replica must not wait for another thread that calls the
    /// `DataParallel`.
    /// [`ErrorKind::RuntimeMismatch`](warpline::ErrorKind::RuntimeMismatch) if a parameter or buffer belongs to another
    /// runtime; [`ErrorKind::Capture`](warpline::ErrorKind::Capture) during a capture, with several GPUs;
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the [`Scatter`] of a program's own type
    /// returns no chunk or more chunks than GPUs, or if a clone of the module has more parameters and buffers than the
    /// module; errors of [`Scatter`] and [`Gather`]. Without a GPU, or with a single one, the errors of the module.
    ///
    /// # Panics
    /// If the first failed replica panicked, resumes its panic after all replicas have ended.
    #[track_caller]
    pub fn forward<I>(&self, input: I) -> Result<M::Output>
    where
        M: Module + Forward<I> + Clone + Send + 'static,
        M::Output: Gather,
        I: Scatter,
    {
        let Some(&device) = self.device_ids.first() else {
            return self.module.forward(input);
        };
        for worker in &self.workers {
            worker.check()?;
            worker.wake();
        }
        let runtime = warpline::runtime();
        let module = self.module.clone();
        let tensors = ModuleTensors::of(&module, &runtime, device)?;
        let streams = self.streams(&runtime)?;
        let mut inputs = if TypeId::of::<I>() == TypeId::of::<()>() {
            vec![input]
        } else {
            input.scatter(ScatterTo { device_ids: &self.device_ids, dim: self.dim })?
        };
        if inputs.is_empty() || inputs.len() > self.device_ids.len() {
            let reason = format!(
                "the input was split into {} chunks for the devices {:?}; there must be at least one chunk, and at most one per device",
                inputs.len(),
                self.device_ids
            );
            return Err(Error::invalid("scatter", reason));
        }
        if self.device_ids.len() == 1 {
            return self.module.forward(inputs.swap_remove(0));
        }
        // Own the copies instead of holding the lock, because clones and gathers run the program's code. A concurrent
        // or nested forward pass makes its own copies. Keep the copies until the outputs are gathered, because an
        // output may be one of them.
        let mut copies = std::mem::take(&mut *self.cached());
        copies.resize_with(self.workers.len(), DeviceCopies::default);
        let streams = &streams[..inputs.len()];
        let replicas = replicate(module, &tensors, &mut copies, streams)?;
        drop(tensors);
        let calls = replicas.into_iter().zip(inputs).zip(streams);
        let calls = calls.map(|((replica, input), stream)| {
            let device = stream.device_index();
            ReplicaCall { device, stream, replica, input }
        });
        let outputs = parallel_apply(&self.workers, &runtime, calls.collect())?;
        let output =
            M::Output::gather(outputs, GatherTo { device: self.output_device, dim: self.dim })?;
        let former = std::mem::replace(&mut *self.cached(), copies);
        drop(former);
        Ok(output)
    }

    fn cached(&self) -> MutexGuard<'_, Vec<DeviceCopies>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the caller's current stream of each device.
    #[track_caller]
    fn streams(&self, runtime: &Runtime) -> Result<Vec<Stream>, Error> {
        let devices = runtime.devices()?;
        let mut streams = Vec::with_capacity(self.device_ids.len());
        for &device in &self.device_ids {
            let stream = devices.current_stream(device)?;
            // Captured copies run only in replays, but the cache would count them as up to date now.
            if self.device_ids.len() > 1 && stream.is_capturing() {
                let reason =
                    "a graph belongs to one device; capture the module without DataParallel";
                return Err(Error::capture("DataParallel", reason));
            }
            streams.push(stream);
        }
        Ok(streams)
    }
}

/// The only member is the wrapped module, under the name `module`. Names of its parameters
/// therefore begin with `module.`, as in PyTorch.
impl<M: Module> Module for DataParallel<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        visitor.member("module", &self.module);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.member("module", &mut self.module);
    }
}
