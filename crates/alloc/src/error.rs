//! What an allocation can fail with.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::summary::size_text;

/// Why an allocation failed. The allocator and everything it holds stay usable.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Neither the cache nor the backend has the memory, even after idle segments were given back.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The request is 1 EB or more.
    #[error("out of memory: tried to allocate {requested} bytes, more than 1EB memory")]
    TooLarge {
        /// The request, in bytes.
        requested: usize,
    },
    /// Rounding or adding up sizes went past what an address can hold.
    #[error("a size overflowed: {what} of {bytes} bytes")]
    SizeOverflow {
        /// What was computed.
        what: &'static str,
        /// From what size, in bytes.
        bytes: usize,
    },
    /// The backend failed with something else than a lack of memory.
    #[error("allocating {requested} bytes failed: {source}")]
    Backend {
        /// What was asked of the backend, in bytes.
        requested: usize,
        /// The backend's error.
        source: Arc<dyn Error + Send + Sync>,
    },
}

impl AllocError {
    /// Whether more free memory would have helped.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_) | Self::TooLarge { .. })
    }

    /// The backend's own error, if it is an `E`.
    #[must_use]
    pub fn backend<E: Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Backend { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }

    pub(crate) fn from_backend(
        requested: usize,
        source: impl Error + Send + Sync + 'static,
    ) -> Self {
        Self::Backend { requested, source: Arc::new(source) }
    }
}

/// The facts of an allocation that ran out of memory. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device.
    pub device: String,
    /// What the caller asked for.
    pub requested: usize,
    /// What was asked of the backend for it: `requested` rounded to a segment.
    pub segment: usize,
    /// Free memory of the device, where known.
    pub free: Option<usize>,
    /// Total memory of the device, where known.
    pub total: Option<usize>,
    /// What may be reserved under the memory fraction, if one is set.
    pub limit: Option<usize>,
    /// What live blocks occupy.
    pub allocated: usize,
    /// What the allocator holds of the backend.
    pub reserved: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, .. } = self;
        write!(f, "{device} out of memory. Tried to allocate {}.", size_text(self.requested))?;
        if let (Some(free), Some(total)) = (self.free, self.total) {
            write!(
                f,
                " {device} has a total capacity of {} of which {} is free.",
                size_text(total),
                size_text(free)
            )?;
        }
        if let Some(limit) = self.limit {
            write!(f, " {} allowed by the memory fraction.", size_text(limit))?;
        }
        let idle = self.reserved.saturating_sub(self.allocated);
        write!(
            f,
            " {} is allocated, and {} is reserved but unallocated.",
            size_text(self.allocated),
            size_text(idle)
        )?;
        if idle > self.reserved / 4 {
            f.write_str(
                " Much is reserved but unallocated: max_split_size_mb or \
                 garbage_collection_threshold in WARPLINE_ALLOC_CONF can avoid fragmentation.",
            )?;
        }
        Ok(())
    }
}
