//! Types that every layer of Warpline names: dtypes and numbers, names of devices, call sites, and the error.
//!
//! One [`Error`] serves streams, storage, kernels, tensors, modules and process groups, so that `?` works on any mix of
//! calls in one function or closure. The other crates export these types again.
#![forbid(unsafe_code)]

mod device;
mod dtype;
mod error;
mod launches;
mod site;

pub use device::Device;
pub use dtype::{Category, DType, Element, Scalar};
pub use error::{Error, ErrorKind, Result, ResultExt};
pub use half::{bf16, f16};
pub use launches::{Launch, PendingLaunches};
pub use site::Site;
/// The driver layer.
pub use warpline_cuda_sys_safe as driver;

/// The program of this crate's README runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
