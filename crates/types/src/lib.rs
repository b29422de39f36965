//! The types that the layers of Warpline from streams upwards share: dtypes, numbers, device names, call sites, records
//! of launches, and the error.
//!
//! Streams, storage, kernels, tensors, modules and process groups all return [`Error`], so `?` works on any mix of
//! calls in one function or closure. The other crates re-export these types.
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
pub use launches::{LaunchRecord, PendingLaunches};
pub use site::{CallId, CallScope, Site};
/// The driver layer.
pub use warpline_cuda_sys_safe as driver;

/// Runs examples in this crate's README, if it has any, as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
