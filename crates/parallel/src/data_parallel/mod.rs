//! A module on several GPUs of one process (`torch.nn.DataParallel`).

mod apply;
mod error;
mod gather;
mod options;
mod replicate;
mod scatter;

use std::any::TypeId;
use std::sync::{Mutex, PoisonError};

use warpline::{Device, Error, Result, Runtime};
use warpline_nn::{Forward, Module, Visitor, VisitorMut};
use warpline_stream::Stream;

pub use error::DataParallelError;
pub use gather::{Gather, GatherTo};
pub use options::{DataParallelOptions, OutputDevice};
pub use scatter::{Scatter, ScatterTo};

use apply::{Call, Worker, parallel_apply};
use replicate::{Copies, Tensors, replicate};

/// Runs a module on several GPUs (`torch.nn.DataParallel`): its input is cut along the batch
/// dimension, each GPU computes a piece with a replica of the module, and the outputs are joined on
/// one of them.
///
/// ```
/// use warpline::{simulated, with_runtime};
/// use warpline_nn::{Linear, Module};
/// use warpline_parallel::DataParallel;
///
/// with_runtime(&simulated(2)?, || {
///     let mut model = Linear::new(4, 2, ())?;
///     model.to("cuda:0")?;
///     let net = DataParallel::new(model)?;
///     let out = net.forward(warpline::ones([6, 4], "cuda:0")?)?;
///     assert_eq!((out.size(), out.device().to_string()), (&[6, 2][..], "cuda:0".into()));
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// As in PyTorch:
/// - All parameters and buffers are on the first device. Its replica shares their memory, so that
///   what it writes to a buffer stays; what other replicas write to theirs is lost.
/// - A replica is a clone of the module as it is at that forward. What a clone shares, such as an
///   [`std::sync::Arc`], replicas share.
/// - Each runs with the caller's runtime and the caller's current stream of its device. The host waits
///   for no device, unless an input is in pageable memory or the output is to be on the CPU.
/// - Where there is no GPU the module runs as it is; on one GPU it is called directly.
///
/// Unlike in PyTorch, copies of parameters and buffers are kept, and made again only where either
/// side was written since. Each device but the first has a thread for as long as this lives; what
/// a module chooses there (the current device, current streams) ends with the call. Forwards of several
/// threads run one after the other, as far as the host is concerned. In a graph's capture
/// it is refused, unless it has one GPU.
#[derive(Debug)]
pub struct DataParallel<M> {
    module: M,
    /// Empty where there is no GPU.
    device_ids: Vec<usize>,
    output_device: Device,
    dim: isize,
    /// For each device but the first.
    workers: Vec<Worker>,
    kept: Mutex<Vec<Copies>>,
}

impl<M: Module> DataParallel<M> {
    /// Over all GPUs, in their order; outputs are joined on the first.
    ///
    /// # Errors
    /// As [`DataParallel::with_options`].
    #[track_caller]
    pub fn new(module: M) -> Result<Self> {
        Self::with_options(module, DataParallelOptions::new())
    }

    /// With settings of one's own. Where only one GPU is to be used, the module is moved there.
    ///
    /// # Errors
    /// [`DataParallelError::DeviceIds`], [`DataParallelError::OutputDevice`],
    /// [`ErrorKind::NoSuchDevice`]; [`DataParallelError::Thread`]; what moving the module fails with.
    #[track_caller]
    pub fn with_options(mut module: M, options: DataParallelOptions) -> Result<Self> {
        let (device_ids, output_device) = options.devices(&warpline::runtime())?;
        if let [device] = device_ids[..] {
            module.to(Device::cuda(device))?;
        }
        let others = device_ids.get(1..).unwrap_or_default();
        let workers: Vec<_> = others.iter().map(|&d| Worker::spawn(d)).collect::<Result<_, _>>()?;
        let kept = Mutex::new(workers.iter().map(|_| Copies::default()).collect());
        Ok(Self { module, device_ids, output_device, dim: options.dim, workers, kept })
    }
}

impl<M> DataParallel<M> {
    /// The module.
    #[must_use]
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The module, to be changed: the next forward sees it.
    #[must_use]
    pub fn module_mut(&mut self) -> &mut M {
        &mut self.module
    }

    /// The module, which needs no other.
    #[must_use]
    pub fn into_module(self) -> M {
        self.module
    }

    /// The GPUs; none where the module runs on the CPU.
    #[must_use]
    pub fn device_ids(&self) -> &[usize] {
        &self.device_ids
    }

    /// Where outputs of several replicas are joined.
    #[must_use]
    pub fn output_device(&self) -> Device {
        self.output_device
    }

    /// Computes the module's output for an input. It may be anything that [`Scatter`] cuts; several
    /// arguments are a tuple, none is `()`, for which there is one replica.
    ///
    /// # Errors
    /// [`DataParallelError::WrongDevice`]; [`DataParallelError::Replica`] of the first replica that
    /// failed, once all have ended; what [`Scatter`] and [`Gather`] fail with. Where the first that
    /// failed panicked, this panics with the same, once all have ended.
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
        let tensors = Tensors::of(&module, &runtime, device)?;
        let streams = self.streams(&runtime)?;
        let mut inputs = if TypeId::of::<I>() == TypeId::of::<()>() {
            vec![input]
        } else {
            input.scatter(ScatterTo { device_ids: &self.device_ids, dim: self.dim })?
        };
        if inputs.is_empty() || inputs.len() > self.device_ids.len() {
            let reason = format!("{} pieces for {:?}", inputs.len(), self.device_ids);
            return Err(Error::invalid("scatter", reason));
        }
        if self.device_ids.len() == 1 {
            return self.module.forward(inputs.swap_remove(0));
        }
        // Until the outputs are joined: they may be what is kept.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let streams = &streams[..inputs.len()];
        let replicas = replicate(module, &tensors, &mut kept, streams)?;
        drop(tensors);
        let calls = replicas.into_iter().zip(inputs).zip(streams);
        let calls = calls.map(|((replica, input), stream)| {
            let device = stream.device_index();
            Call { device, stream, replica, input }
        });
        let outputs = parallel_apply(&self.workers, &runtime, calls.collect())?;
        M::Output::gather(outputs, GatherTo { device: self.output_device, dim: self.dim })
    }

    /// The caller's current streams of the devices.
    #[track_caller]
    fn streams(&self, runtime: &Runtime) -> Result<Vec<Stream>, Error> {
        let devices = runtime.devices()?;
        let mut streams = Vec::with_capacity(self.device_ids.len());
        for &device in &self.device_ids {
            let stream = devices.current_stream(device)?;
            // A capture's copies are made when it is replayed, and would be taken for made.
            if self.device_ids.len() > 1 && stream.is_capturing() {
                let reason = "a graph is of one device; capture the module by itself";
                return Err(Error::capture("DataParallel", reason));
            }
            streams.push(stream);
        }
        Ok(streams)
    }
}

/// Its parameters are the module's, under names that begin with `module.`, as in PyTorch.
impl<M: Module> Module for DataParallel<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.member("module", &self.module);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.member("module", &mut self.module);
    }
}
