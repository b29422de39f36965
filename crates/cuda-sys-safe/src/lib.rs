//! A safe layer over the CUDA driver API, with two drivers behind one interface.
//!
//! [`Driver`] is the interface. The *real* driver ([`real::CudaDriver`]) finds `libcuda` at run
//! time, so nothing of CUDA is needed to build. The *simulated* driver ([`sim::SimDriver`]) is a
//! set of CUDA devices in host memory whose streams really are asynchronous. [`null::NullDriver`]
//! does nothing and exists to measure what the layers above cost.
//!
//! [`Driver`]'s methods take raw handles and most are `unsafe`. The types in [`owned`] hold such
//! a handle, keep the driver alive and release it on drop; everything above this crate that
//! forbids `unsafe` works with those.

pub mod blas;
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

pub use driver::Driver;
pub use error::{CollectiveMismatch, CudaCode, CudaError, DriverError, InvalidVariable, Result};
pub use launch::{Access, DeviceCode, Footprint, HostKernel, HostLaunch, Launch};
pub use open::open;
pub use real::fork_generation;
pub use types::*;

/// Whether the program has rights that whoever started it has not (a setuid program), who must choose
/// neither its libraries nor the code that it keeps.
#[must_use]
pub fn has_elevated_rights() -> bool {
    system::has_elevated_rights()
}

/// The program of this crate's README runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
