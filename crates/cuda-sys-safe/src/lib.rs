//! A safe layer over the CUDA driver API, with three drivers behind one interface.
//!
//! [`Driver`] is the interface. The *real* driver ([`real::CudaDriver`]) loads `libcuda` at run
//! time, so nothing of CUDA is needed to build. The *simulated* driver ([`sim::SimDriver`]) is a
//! set of CUDA devices in host memory, with asynchronous streams. [`null::NullDriver`] does
//! nothing; use it to measure the cost of the layers above.
//!
//! The methods of [`Driver`] take raw handles, and most are `unsafe`. The types in [`owned`] hold
//! such a handle, keep the driver alive, and release the handle on drop. Crates above this one that
//! forbid `unsafe` use these types.

pub mod blas;
pub mod cudnn;
mod device_handles;
mod driver;
mod dylib;
mod error;
mod launch;
pub mod nccl;
pub mod null;
pub mod nvrtc;
mod open;
pub mod owned;
mod racy;
pub mod real;
pub mod sim;
mod system;
mod types;
mod visible;

pub use driver::Driver;
pub use error::{CollectiveMismatch, CudaCode, CudaError, DriverError, InvalidVariable, Result};
pub use launch::{
    Access, DeviceCode, Footprint, HostKernel, HostLaunch, Launch, set_graph_condition,
};
pub use open::{count_devices, open};
pub use real::fork_generation;
pub use types::*;

/// Returns `true` if the program has rights that the user who started it lacks, such as a setuid
/// program. That user must choose neither the libraries that the program loads nor the code that it
/// caches.
#[must_use]
pub fn has_elevated_rights() -> bool {
    system::has_elevated_rights()
}

/// Runs the program in the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
