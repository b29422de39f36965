//! Options, in PyTorch's spelling.

mod error;
mod parse;

pub use error::ConfigError;
pub(crate) use error::invalid;
pub(crate) use parse::{boolean, check_fraction, megabytes, number};

use crate::HostConfig;
use crate::rules::{LARGE_BUFFER, MIB, PAGE, SMALL_SIZE, SMALL_SIZE_IN_PAGES};

/// Intervals with divisions of their own: 1 MB, 2 MB, … 32 GB and above.
const INTERVALS: usize = 16;

/// How an allocator gets more memory, and makes use of what is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// Pages of 4 MiB. Where enough is free, but not in one piece, the pieces are mapped once more
    /// behind each other, so that little is ever reserved that is not allocated. As
    /// [`Policy::Torch`] where the device has no virtual memory management.
    #[default]
    Default,
    /// PyTorch's rules, to the byte: segments, or with
    /// [`expandable_segments`](AllocatorConfig::expandable_segments) its ranges that grow.
    Torch,
    /// The driver's own stream-ordered pools: each block is an allocation of theirs and goes back to
    /// them as it is freed (`backend:cudaMallocAsync`). They keep what is free until the cache is
    /// emptied, which counts neither as reserved nor against
    /// [`memory_fraction`](AllocatorConfig::memory_fraction). Private pools, and so captures, have
    /// segments as in [`Policy::Torch`]; such a block has no handle that another process could open.
    CudaMallocAsync,
}

impl Policy {
    /// What it is called in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Torch => "torch",
            Self::CudaMallocAsync => "cudaMallocAsync",
        }
    }
}

/// How an allocator behaves.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AllocatorConfig {
    /// Blocks of this many bytes or more are never split (`max_split_size_mb`).
    pub max_split_size: Option<usize>,
    /// How much larger, in bytes, than the request a block of at least `max_split_size` may be
    /// (`max_non_split_rounding_mb`).
    pub max_non_split_rounding: usize,
    /// Steps between powers of two that requests are rounded to; 0 and 1 mean none. Entry `i` is
    /// for requests from 2^(20 + i) bytes, the first also for smaller and the last for larger
    /// ones (`roundup_power2_divisions`).
    pub roundup_power2_divisions: [usize; INTERVALS],
    /// Share of the memory limit from which idle segments are given back
    /// (`garbage_collection_threshold`). Has an effect only with a memory fraction under 1, and on
    /// segments: under [`Policy::Default`] free pages serve others before new ones are made.
    pub garbage_collection_threshold: Option<f64>,
    /// Size in bytes of a segment for requests over 1 MiB and under 10 MiB
    /// (`large_segment_size_mb`).
    pub large_segment_size: usize,
    /// Share of the device's memory that may be reserved (`per_process_memory_fraction`).
    pub memory_fraction: Option<f64>,
    /// How it gets more memory (`policy:default` or `policy:torch`; options that only PyTorch's
    /// segments have choose the latter).
    pub policy: Policy,
    /// How much more than what was asked for at the peak, in percent of that, [`Policy::Default`]
    /// may reserve so that it need not map pages that are free elsewhere (`headroom_percent`). By
    /// default it is 1/64, and more for programs that go on mapping without end. No more than 100
    /// count. PyTorch has no such option.
    pub headroom_percent: Option<f64>,
    /// Bytes in a page of the large pool under [`Policy::Default`] (`page_size_mb`). To map a page
    /// takes as long however large it is, so larger ones map faster, but more is lost around blocks
    /// that are not much larger. A power of two from 2 MiB to 1 GiB; the next one counts if it is
    /// none. Pages of the small pool are no larger than 4 MiB. PyTorch has no such option.
    pub page_size: usize,
    /// Whether [`Policy::Torch`] has ranges that grow in place of segments
    /// (`expandable_segments`).
    pub expandable_segments: bool,
    /// Whether freed memory is kept. Without it every block is an exact allocation of the backend
    /// and goes back to it when freed (`PYTORCH_NO_CUDA_MEMORY_CACHING`), except in private pools.
    pub caching: bool,
    /// Options of page-locked host memory, for a [`HostCache`](crate::HostCache) (`pinned_…`).
    pub host: HostConfig,
}

impl Default for AllocatorConfig {
    fn default() -> Self {
        Self {
            max_split_size: None,
            max_non_split_rounding: LARGE_BUFFER,
            roundup_power2_divisions: [0; INTERVALS],
            garbage_collection_threshold: None,
            large_segment_size: LARGE_BUFFER,
            memory_fraction: None,
            policy: Policy::Default,
            headroom_percent: None,
            page_size: PAGE,
            expandable_segments: false,
            caching: true,
            host: HostConfig::default(),
        }
    }
}

impl AllocatorConfig {
    #[inline]
    pub(crate) fn max_split(&self) -> usize {
        self.max_split_size.unwrap_or(usize::MAX)
    }

    /// Whether segments are ranges that grow, as PyTorch's are with the option.
    #[inline]
    pub(crate) fn expandable(&self) -> bool {
        self.expandable_segments && self.policy == Policy::Torch
    }

    /// The page size in force, which devices have: the field can be set to anything.
    pub(crate) fn page_size(&self) -> usize {
        self.page_size.clamp(2 * MIB, 1 << 30).next_power_of_two()
    }

    /// Requests up to this come from the small pool.
    #[inline]
    pub(crate) fn small_size(&self) -> usize {
        match self.policy {
            Policy::Default => SMALL_SIZE_IN_PAGES,
            Policy::Torch | Policy::CudaMallocAsync => SMALL_SIZE,
        }
    }

    /// The divisions for a request of `bytes` bytes, which is not 0.
    #[inline]
    pub(crate) fn divisions_for(&self, bytes: usize) -> usize {
        let interval = (bytes.ilog2() as usize).saturating_sub(20).min(INTERVALS - 1);
        self.roundup_power2_divisions[interval]
    }
}

#[cfg(test)]
mod tests;
