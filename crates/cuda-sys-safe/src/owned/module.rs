//! Modules and their kernels.

use std::ffi::CStr;
use std::panic::Location;
use std::sync::Arc;

use super::refused::{ReleaseKind, release};
use crate::{Driver, DriverError, FunctionHandle, ModuleHandle, Result};

/// A module loaded on one device. Unloaded when the module and all its functions are dropped.
#[derive(Clone, Debug)]
pub struct Module(Arc<ModuleInner>);

#[derive(Debug)]
struct ModuleInner {
    driver: Arc<dyn Driver>,
    handle: ModuleHandle,
}

impl Module {
    /// Loads PTX text, which the driver compiles for the device.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if `ptx` is not PTX text.
    /// - Errors of the [driver call](Driver#errors), such as for PTX that the driver cannot
    ///   compile.
    #[track_caller]
    pub fn load_ptx(driver: &Arc<dyn Driver>, device: usize, ptx: &str) -> Result<Self> {
        let location = Location::caller();
        check_ptx(ptx).map_err(|e| e.at(location))?;
        // SAFETY: the driver treats the image as text, as just checked, and reads it up to its end.
        unsafe { Self::load_image(driver, device, ptx.as_bytes()) }
    }

    /// Loads machine code (a cubin or a fat binary), or PTX text.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if `image` is empty, with the real driver.
    /// - Errors of the [driver call](Driver#errors), such as for an image of another architecture
    ///   or with an unknown format.
    ///
    /// # Safety
    /// The image is complete and as a compiler made it. The driver is given no length, and follows
    /// the offsets that it finds in machine code.
    #[track_caller]
    pub unsafe fn load_image(
        driver: &Arc<dyn Driver>,
        device: usize,
        image: &[u8],
    ) -> Result<Self> {
        let location = Location::caller();
        // SAFETY: the caller guarantees that the image is valid.
        let handle = unsafe { driver.module_load(device, image) }.map_err(|e| e.at(location))?;
        Ok(Self(Arc::new(ModuleInner { driver: Arc::clone(driver), handle })))
    }

    /// Finds a kernel of the module.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), with
    /// [`CudaCode::NOT_FOUND`](crate::CudaCode::NOT_FOUND) if the module has no such kernel.
    #[track_caller]
    pub fn function(&self, name: &CStr) -> Result<Function> {
        let location = Location::caller();
        // SAFETY: the module is alive.
        let handle = unsafe { self.0.driver.module_function(self.0.handle, name) }
            .map_err(|e| e.with_detail(|| format!("kernel {name:?}")).at(location))?;
        Ok(Function { _module: self.clone(), handle })
    }
}

/// Refuses text that the driver could take for machine code. PTX text begins with the directive
/// `.version`, after white space and comments, and contains no NUL except at its end.
fn check_ptx(ptx: &str) -> Result<()> {
    let refuse = |reason: &str| {
        let reason = format!("this is not PTX text: {reason}");
        Err(DriverError::InvalidArgument { call: "Module::load_ptx", reason })
    };
    if ptx.trim_end_matches('\0').contains('\0') {
        return refuse("it has a NUL character inside");
    }
    let mut rest = ptx.trim_start();
    while let Some(comment) = rest
        .strip_prefix("//")
        .map(|text| text.split_once('\n'))
        .or_else(|| rest.strip_prefix("/*").map(|text| text.split_once("*/")))
    {
        let Some((_, after)) = comment else { break };
        rest = after.trim_start();
    }
    if rest.starts_with(".version") { Ok(()) } else { refuse("it does not begin with `.version`") }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: loaded by this driver and not unloaded before.
        let unload = move |driver: &dyn Driver| unsafe { driver.module_unload(handle) };
        release(&self.driver, ReleaseKind::Module, 0, unload);
    }
}

/// A kernel. It keeps its module loaded.
#[derive(Clone, Debug)]
pub struct Function {
    _module: Module,
    handle: FunctionHandle,
}

impl Function {
    /// Returns the raw handle, which is valid as long as `self` lives.
    #[must_use]
    pub fn handle(&self) -> FunctionHandle {
        self.handle
    }

    /// Lets launches use up to `bytes` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), such as for more shared memory than the device
    /// has.
    #[track_caller]
    pub fn set_max_shared(&self, bytes: u32) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the function is alive.
        unsafe { self._module.0.driver.function_max_shared(self.handle, bytes) }
            .map_err(|e| e.at(location))
    }
}
