//! One device of a runtime: its allocator, loaded kernels and generator.

use std::sync::Arc;

use warpline_alloc::cuda::{CudaAllocator, CudaBackend};
use warpline_cuda_sys_safe::{DeviceProperties, Driver, FunctionHandle};
use warpline_stream::Device;

use super::workspaces::Workspaces;
use super::{RuntimeConfig, SharedGenerator};
use crate::Result;
use crate::generator::CudaGenerator;
use crate::module::{KernelCache, Program};

/// A device with its allocator, kernels and generator.
#[derive(Debug)]
pub struct CudaDevice {
    device: Device,
    // Declared before `allocator`, so that the blocks are freed while the allocator exists.
    pub(super) workspaces: Workspaces,
    pub(super) workspace_bytes: Option<usize>,
    allocator: CudaAllocator,
    kernels: KernelCache,
    pub(super) generator: SharedGenerator<CudaGenerator>,
}

impl CudaDevice {
    pub(super) fn new(device: Device, config: &RuntimeConfig) -> Self {
        let mut backend = CudaBackend::new(Arc::clone(device.driver()), device.index());
        let mut options = config.allocator.clone();
        if let Some(library) = config.pluggable_allocator.clone() {
            backend = backend.with_source(move |driver, device, bytes| {
                Ok(library.alloc(driver, device, bytes)?.into())
            });
            options.caching = false;
        }
        Self {
            device,
            workspaces: Workspaces::default(),
            workspace_bytes: config.cublas_workspace,
            allocator: CudaAllocator::new(backend, options),
            kernels: KernelCache::new(config.compile_cache.clone()),
            generator: SharedGenerator::default(),
        }
    }

    /// Returns the index of the device.
    #[must_use]
    pub fn index(&self) -> usize {
        self.device.index()
    }

    /// Returns the [`Device`], which has the streams.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.device.driver()
    }

    /// Returns the device's name, capabilities and limits.
    #[must_use]
    pub fn properties(&self) -> &DeviceProperties {
        self.device.properties()
    }

    /// Returns the device's caching allocator.
    #[must_use]
    pub fn allocator(&self) -> &CudaAllocator {
        &self.allocator
    }

    /// Seeds the device's generator (`torch.cuda.manual_seed`).
    pub fn manual_seed(&self, seed: u64) {
        self.generator().lock().manual_seed(seed);
    }

    /// Returns a kernel, and whether it waits for earlier work of its stream itself. Loads its module on first use.
    #[track_caller]
    pub(crate) fn function(
        &self,
        kernel: (&'static Program, usize, usize),
    ) -> Result<(FunctionHandle, bool)> {
        self.kernels.function(self.device.driver(), self.device.index(), kernel)
    }
}
