//! PyTorch's CUDA semantics, native in Rust: devices, streams, caching allocation, and a thin
//! tensor.
//!
//! ```
//! use warpline::{DType, tensor, zeros};
//!
//! let a = tensor(&[[1f32, 2.0], [3.0, 4.0]], ())?;
//! let b = (&a + 1.0)?.matmul(&a.t()?)?;
//! assert_eq!(b.to_vec::<f32>()?, [8.0, 18.0, 14.0, 32.0]);
//! println!("{b}");
//! assert_eq!(zeros(&[2], (DType::I64, "cpu"))?.to_string(), "tensor([0, 0])");
//! # Ok::<(), warpline::Error>(())
//! ```
//!
//! Everything that can fail returns a [`Result`], operators included. With `"cuda"` as the device
//! the same program runs on a GPU; with `WARPLINE_DRIVER=sim:3` in the environment, on three
//! simulated ones. Functions named after PyTorch's own do what those do.

#![forbid(unsafe_code)]

mod ambient;
mod called;
pub mod cpu;
pub mod cuda;
pub mod data;
mod device;
mod exec;
#[cfg(target_os = "linux")]
pub mod multiprocessing;
pub mod nn;
mod options;
mod tensor;

pub use ambient::{manual_seed, open, runtime, simulated, simulated_with, with_runtime};
pub use device::{Device, IntoDevice};
pub use exec::Exec;
pub use options::TensorOptions;
#[doc(hidden)]
pub use tensor::by_name;
pub use tensor::{
    Index, IndexRange, IntoDims, IntoIndices, Pending, RoundingMode, Tensor, TensorData,
    TensorOrScalar, arange, arange_start, arange_start_step, cat, embedding, empty, eye, full,
    linspace, ones, promote_types, rand, randint, randn, randperm, result_type, stack, tensor,
    where_cond, zeros,
};
pub use warpline_runtime::{
    Access, Category, DType, Element, Error, HostCacheStats, IndexCheck, InvalidVariable,
    MemoryFormat, Race, RaceReport, RacingUse, Result, Runtime, RuntimeConfig, Scalar, Site,
    Staging, SyncPolicy,
};

pub(crate) use tensor::index;

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The programs of `docs/streams.md` compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/streams.md")]
pub struct Streams;
