//! Modules and their kernels.

use std::ffi::CStr;
use std::panic::Location;
use std::sync::Arc;

use super::refused::{ReleaseKind, release};
use crate::{Driver, FunctionHandle, ModuleHandle, Result};

/// A module loaded on one device, unloaded with the last function taken from it.
#[derive(Clone, Debug)]
pub struct Module(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<dyn Driver>,
    handle: ModuleHandle,
}

impl Module {
    /// Loads PTX text or a cubin.
    ///
    /// # Errors
    /// The driver's own: PTX it does not understand, an image for another architecture.
    #[track_caller]
    pub fn load(driver: &Arc<dyn Driver>, device: usize, image: &[u8]) -> Result<Self> {
        let location = Location::caller();
        let handle = driver.module_load(device, image).map_err(|e| e.at(location))?;
        Ok(Self(Arc::new(Inner { driver: Arc::clone(driver), handle })))
    }

    /// Finds a kernel.
    ///
    /// # Errors
    /// The driver's own; [`crate::CudaCode::NOT_FOUND`] when the module has no such kernel.
    #[track_caller]
    pub fn function(&self, name: &CStr) -> Result<Function> {
        let location = Location::caller();
        // SAFETY: the module is alive.
        let handle = unsafe { self.0.driver.module_function(self.0.handle, name) }
            .map_err(|e| e.with_detail(|| format!("kernel {name:?}")).at(location))?;
        Ok(Function { _module: self.clone(), handle })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: loaded by this driver and not unloaded before.
        let unload = move |driver: &dyn Driver| unsafe { driver.module_unload(handle) };
        release(&self.driver, ReleaseKind::Module, 0, unload);
    }
}

/// A kernel, which keeps its module loaded.
#[derive(Clone, Debug)]
pub struct Function {
    _module: Module,
    handle: FunctionHandle,
}

impl Function {
    /// The raw handle. It is alive as long as `self` is.
    #[must_use]
    pub fn handle(&self) -> FunctionHandle {
        self.handle
    }

    /// Lets launches ask for up to `bytes` of dynamic shared memory.
    ///
    /// # Errors
    /// The driver's own, where the device has less.
    #[track_caller]
    pub fn set_max_shared(&self, bytes: u32) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the function is alive.
        unsafe { self._module.0.driver.function_max_shared(self.handle, bytes) }
            .map_err(|e| e.at(location))
    }
}
