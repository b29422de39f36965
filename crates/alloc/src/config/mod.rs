//! Options of the allocator, in PyTorch's spelling.

mod error;
mod parse;

pub use error::ConfigError;
pub(crate) use error::invalid;
pub(crate) use parse::{boolean, check_fraction, megabytes, number};

use crate::HostConfig;
use crate::rules::{LARGE_BUFFER, MIB, PAGE, SMALL_SIZE, SMALL_SIZE_IN_PAGES};

/// Number of intervals of request sizes with their own divisions: 1 MB, 2 MB, … 32 GB and above.
const INTERVALS: usize = 16;

/// The way in which an allocator gets more memory and uses free memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// Pages of 4 MiB. If enough memory is free, but not in one piece, the pieces are mapped a
    /// second time, next to each other, so that little more is reserved than allocated. The same as
    /// [`Policy::Torch`] if the device has no virtual memory management.
    #[default]
    Default,
    /// PyTorch's rules, to the byte: segments, or with
    /// [`expandable_segments`](AllocatorConfig::expandable_segments) ranges that grow.
    Torch,
    /// The driver's stream-ordered pools (`backend:cudaMallocAsync`): each block is an allocation
    /// of a pool and returns to it when freed. The pools keep free memory until the cache is
    /// emptied; it counts neither as reserved nor against
    /// [`memory_fraction`](AllocatorConfig::memory_fraction). Private pools, and so captures, use
    /// segments as in [`Policy::Torch`]. A block of a driver's pool has no handle that another
    /// process could open.
    CudaMallocAsync,
}

impl Policy {
    /// Returns the policy's name in options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Torch => "torch",
            Self::CudaMallocAsync => "cudaMallocAsync",
        }
    }
}

/// Options of an allocator.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AllocatorConfig {
    /// Size from which blocks are never split, in bytes (`max_split_size_mb`). Default: no limit.
    pub max_split_size: Option<usize>,
    /// Limit for blocks of at least `max_split_size`, in bytes: such a block serves a request only if
    /// it exceeds the request by less than this (`max_non_split_rounding_mb`). Default: 20 MiB.
    pub max_non_split_rounding: usize,
    /// Number of steps between two powers of two; requests are rounded up to such a step
    /// (`roundup_power2_divisions`). 0 and 1 mean none. Entry `i` applies to requests from 2^(20 +
    /// i) bytes; the first entry also applies to smaller requests, and the last to larger requests.
    /// Default: 0.
    pub roundup_power2_divisions: [usize; INTERVALS],
    /// Share of the memory limit, over 0 and under 1 (`garbage_collection_threshold`). If more than
    /// this share is reserved, idle segments are released before a new segment is allocated.
    /// Applies only with a memory fraction under 1, and only to segments: under
    /// [`Policy::Default`] free pages serve other streams before new pages are created. Default:
    /// none.
    pub garbage_collection_threshold: Option<f64>,
    /// Size of a segment for requests over 1 MiB and under 10 MiB, in bytes
    /// (`large_segment_size_mb`). Default: 20 MiB.
    pub large_segment_size: usize,
    /// Share of the device's memory that may be reserved, from 0 to 1
    /// (`per_process_memory_fraction`). Default: no limit.
    pub memory_fraction: Option<f64>,
    /// Policy for getting memory (`policy:default`, `policy:torch` or `backend:cudaMallocAsync`). In
    /// option text without a policy, options that apply only to PyTorch's segments select
    /// `policy:torch`. Default: [`Policy::Default`].
    pub policy: Policy,
    /// Memory that [`Policy::Default`] may reserve beyond the peak of the requested memory, to
    /// avoid mapping free pages elsewhere, in percent of that peak, at most 100
    /// (`headroom_percent`). Default: 1/64 (1.5625 %), and more for programs that keep mapping
    /// pages. Not an option of PyTorch.
    pub headroom_percent: Option<f64>,
    /// Size of a page of the large pool under [`Policy::Default`], in bytes (`page_size_mb`).
    /// Mapping a page takes the same time at any size, so larger pages map faster, but waste more
    /// memory around blocks that are not much larger than a page. A power of two from 2 MiB to 1
    /// GiB; other values are clamped and rounded up. Pages of the small pool have at most 4 MiB.
    /// Default: 4 MiB. Not an option of PyTorch.
    pub page_size: usize,
    /// Whether [`Policy::Torch`] uses ranges that grow instead of segments (`expandable_segments`).
    /// Default: `false`.
    pub expandable_segments: bool,
    /// Whether freed memory is cached. If not, every block is an exact allocation of the backend
    /// and is released when freed, except in private pools (`PYTORCH_NO_CUDA_MEMORY_CACHING`).
    /// Default: `true`.
    pub caching: bool,
    /// Options of page-locked host memory (`pinned_…`). The allocator itself ignores them; pass
    /// them to a [`HostCache`](crate::HostCache). Default: [`HostConfig::default`].
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

    /// Returns whether PyTorch's expandable segments are in use.
    #[inline]
    pub(crate) fn expandable(&self) -> bool {
        self.expandable_segments && self.policy == Policy::Torch
    }

    /// Returns the page size in force, in bytes. The field `page_size` may hold any value; the
    /// result is a size that devices support.
    pub(crate) fn page_size(&self) -> usize {
        self.page_size.clamp(2 * MIB, 1 << 30).next_power_of_two()
    }

    /// Returns the largest request that the small pool serves, in bytes.
    #[inline]
    pub(crate) fn small_size(&self) -> usize {
        match self.policy {
            Policy::Default => SMALL_SIZE_IN_PAGES,
            Policy::Torch | Policy::CudaMallocAsync => SMALL_SIZE,
        }
    }

    /// Returns the divisions for a request of `bytes` bytes, which must not be 0.
    #[inline]
    pub(crate) fn divisions_for(&self, bytes: usize) -> usize {
        let interval = (bytes.ilog2() as usize).saturating_sub(20).min(INTERVALS - 1);
        self.roundup_power2_divisions[interval]
    }
}

#[cfg(test)]
mod tests;
