//! The devices for a replay.

use std::sync::Arc;

use clap::ValueEnum;
use warpline_alloc::{AllocatorConfig, CudaAllocator, CudaBackend};
use warpline_cuda_sys_safe::owned::Stream;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};
use warpline_cuda_sys_safe::{Driver, DriverError, StreamFlags, real};

use super::trace::Trace;

/// Driver of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DriverKind {
    /// A simulated device.
    Sim,
    /// The machine's first GPU.
    Cuda,
}

/// A device with a stream for each stream of a trace.
#[derive(Debug)]
pub struct Device {
    /// Driver of the device.
    pub driver: Arc<dyn Driver>,
    /// Streams in the order of [`Trace::streams`].
    pub streams: Vec<Stream>,
    /// Share of the device's memory that may be used; `None` for all.
    fraction: Option<f64>,
}

impl Device {
    /// Opens a device for a trace. `capacity` is the size of a simulated device's memory, or the
    /// limit on the reserved memory of a real device, in bytes. A simulated device runs its work in
    /// the order of `schedule`.
    ///
    /// # Errors
    /// [`DriverError`] if the driver cannot be loaded, or if the device or a stream cannot be
    /// opened.
    pub fn open(
        kind: DriverKind,
        capacity: usize,
        schedule: Schedule,
        trace: &Trace,
    ) -> Result<Self, DriverError> {
        let driver: Arc<dyn Driver> = match kind {
            DriverKind::Sim => SimConfig { capacity, schedule, ..SimConfig::new(1) }.build(),
            DriverKind::Cuda => real::load()?,
        };
        // Create the context here, so that the first allocation does not include it.
        driver.synchronize(0)?;
        let total = driver.mem_info(0)?.total;
        let fraction = (capacity < total).then(|| capacity as f64 / total as f64);
        let stream = |&number: &u64| match number {
            0 => Ok(Stream::default_of(&driver, 0)),
            _ => Stream::new(&driver, 0, StreamFlags { non_blocking: true, priority: 0 }),
        };
        let streams = trace.streams.iter().map(stream).collect::<Result<_, _>>()?;
        Ok(Self { driver, streams, fraction })
    }

    /// Creates an allocator for the device.
    #[must_use]
    pub fn allocator(&self, mut config: AllocatorConfig) -> CudaAllocator {
        config.memory_fraction = self.fraction.or(config.memory_fraction);
        CudaAllocator::new(CudaBackend::new(Arc::clone(&self.driver), 0), config)
    }
}
