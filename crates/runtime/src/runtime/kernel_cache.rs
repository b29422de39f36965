//! Kernels by number: loaded on first use, found without a lock or a string afterwards.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline_cuda_sys_safe::owned::{self, Function};
use warpline_cuda_sys_safe::{DeviceProperties, Driver, DriverError, FunctionHandle};
use warpline_sync::OnceLock;

use crate::{Error, Result};

/// Sets a process can have. One per `.cu` file; a test counts them.
const MAX_SETS: usize = 128;

/// A module's code: what `cargo xtask ptx` makes of one `.cu`.
#[derive(Debug)]
pub struct Module {
    name: &'static str,
    ptx: &'static str,
    sm90: Option<&'static [u8]>,
}

impl Module {
    /// A module of this name, for messages, as PTX text, which any device can be given.
    #[must_use]
    pub const fn new(name: &'static str, ptx: &'static str) -> Self {
        Self { name, ptx, sm90: None }
    }

    /// With the same compiled for compute capability 9.0. The driver need not compile that at first
    /// use, which for PTX takes it a third of a second per module.
    ///
    /// # Safety
    /// It is a whole cubin, as the compiler made it: the driver does not check machine code.
    #[must_use]
    pub const unsafe fn with_sm90(self, cubin: &'static [u8]) -> Self {
        Self { sm90: Some(cubin), ..self }
    }
}

/// The [`Module`] of the `.cu` of this name, in the folder of the file that names it.
#[macro_export]
macro_rules! module {
    ($name:literal) => {{
        let module = $crate::Module::new($name, include_str!(concat!($name, ".ptx")));
        // SAFETY: the file beside the source, which `cargo xtask ptx` wrote.
        unsafe { module.with_sm90(include_bytes!(concat!($name, ".sm90.cubin"))) }
    }};
}

/// The kernels of one module, numbered.
#[derive(Debug)]
pub struct KernelSet {
    module: Module,
    count: usize,
    kernel_name: fn(usize) -> String,
    /// The set's number, given on first use; 0 is none yet.
    id: AtomicUsize,
}

impl KernelSet {
    /// Declares `count` kernels of a module; `kernel_name` names each as the `.cu` does.
    #[must_use]
    pub const fn new(module: Module, count: usize, kernel_name: fn(usize) -> String) -> Self {
        Self { module, count, kernel_name, id: AtomicUsize::new(0) }
    }

    /// The family, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.module.name
    }

    /// The names of all its kernels.
    pub fn names(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(self.kernel_name)
    }

    /// The module's PTX text.
    #[must_use]
    pub fn ptx(&self) -> &'static str {
        self.module.ptx
    }

    fn id(&self) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let id = self.id.load(Ordering::Acquire);
        if id != 0 {
            return id;
        }
        let new = NEXT.fetch_add(1, Ordering::Relaxed);
        match self.id.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(theirs) => theirs,
        }
    }
}

/// What one device has loaded.
#[derive(Debug)]
pub(super) struct KernelCache {
    sets: Box<[OnceLock<Loaded>]>,
    /// Whether the device runs code compiled for compute capability 9.0.
    sm90: bool,
}

#[derive(Debug)]
struct Loaded {
    module: owned::Module,
    functions: Box<[OnceLock<Function>]>,
}

impl KernelCache {
    pub(super) fn new(driver: &dyn Driver, properties: &DeviceProperties) -> Self {
        Self {
            sets: std::iter::repeat_with(OnceLock::new).take(MAX_SETS).collect(),
            // Drivers that are not real read the PTX.
            sm90: driver.name() == "cuda" && properties.compute_capability == (9, 0),
        }
    }

    pub(super) fn function(
        &self,
        driver: &Arc<dyn Driver>,
        device: usize,
        set: &'static KernelSet,
        index: usize,
    ) -> Result<FunctionHandle> {
        let slot = self.sets.get(set.id()).ok_or_else(|| too_many(set.module.name))?;
        let loaded = match slot.get() {
            Some(loaded) => loaded,
            None => {
                // Two threads may both load; one module is then dropped again.
                let compiled = set.module.sm90.filter(|_| self.sm90).map(|cubin| {
                    // SAFETY: whoever made the module vouched for it.
                    unsafe { owned::Module::load_image(driver, device, cubin) }
                });
                // Where the compiled form is refused, the PTX is still there.
                let module = match compiled {
                    Some(Ok(module)) => module,
                    _ => owned::Module::load_ptx(driver, device, set.module.ptx)
                        .map_err(|e| Error::driver(set.module.name, e))?,
                };
                let functions = std::iter::repeat_with(OnceLock::new).take(set.count).collect();
                slot.get_or_init(|| Loaded { module, functions })
            }
        };
        let function = loaded.functions.get(index).ok_or_else(|| too_many(set.module.name))?;
        if let Some(function) = function.get() {
            return Ok(function.handle());
        }
        let name = (set.kernel_name)(index);
        let name = CString::new(name).map_err(|_| too_many(set.module.name))?;
        let found = loaded.module.function(&name).map_err(|e| Error::driver(set.module.name, e))?;
        Ok(function.get_or_init(|| found).handle())
    }
}

fn too_many(set: &'static str) -> Error {
    Error::driver(
        set,
        DriverError::InvalidArgument {
            call: "KernelSet",
            reason: format!("the module {set} has no kernel with that number"),
        },
    )
}
