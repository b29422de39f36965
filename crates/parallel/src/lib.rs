//! Several GPUs and several processes: `DataParallel`, process groups and `DistributedDataParallel`
//! (`torch.nn.DataParallel`, `torch.distributed`, `torch.nn.parallel.DistributedDataParallel`).

#![forbid(unsafe_code)]

pub mod data_parallel;
pub mod distributed;

pub use data_parallel::{DataParallel, DataParallelError, DataParallelOptions};

/// Runs the programs of `docs/several-gpus.md` as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/several-gpus.md")]
struct SeveralGpus;

/// Runs the examples of this crate's README as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
