//! Errors of allocations.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::OutOfMemory;
use crate::summary::size_text;

/// The cause of a failed allocation. The allocator and all its blocks stay usable.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Neither the cache nor the backend has the memory, even after idle segments were released.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The request is 1 EB or more.
    #[error("out of memory. Tried to allocate {}, more than 1EB memory", size_text(*requested))]
    TooLarge {
        /// Requested size, in bytes.
        requested: usize,
    },
    /// The system has no ordinary (pageable) host memory left.
    #[error("cpu out of memory. Tried to allocate {}: {reason}", size_text(*requested))]
    HostMemory {
        /// Requested size, in bytes.
        requested: usize,
        /// The system's error.
        reason: String,
    },
    /// A sum of sizes exceeds the address space.
    #[error("the size of the {what} overflows if {bytes} bytes are added")]
    SizeOverflow {
        /// Name of the sum.
        what: &'static str,
        /// The size that was to be added, in bytes.
        bytes: usize,
    },
    /// The request comes from code that the allocator calls while it holds its locks: the source of
    /// a memory pool, or the drop of the value that keeps foreign memory alive.
    #[error(
        "allocating {} failed: the source of a memory pool, or the value that keeps its memory \
         alive, cannot use the caching allocator; allocate from the driver there \
         (`DeviceMemory::new`)",
        size_text(*requested)
    )]
    InsideSource {
        /// Requested size, in bytes.
        requested: usize,
    },
    /// The backend failed for a reason other than a lack of memory.
    #[error("allocating {} failed: {cause}", size_text(*requested))]
    Backend {
        /// Size of the request, or of the memory that the allocator asked the backend for, in bytes.
        requested: usize,
        /// The backend's error.
        cause: Arc<dyn Error + Send + Sync>,
    },
}

/// Prints the message, because `main` and `unwrap` print errors with `Debug`.
impl fmt::Debug for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl AllocError {
    /// Returns whether more free memory would have helped.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_) | Self::TooLarge { .. } | Self::HostMemory { .. })
    }

    /// Returns the backend's error, if its type is `E`.
    #[must_use]
    pub fn backend<E: Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Backend { cause, .. } => cause.downcast_ref(),
            _ => None,
        }
    }

    pub(crate) fn from_backend(
        requested: usize,
        source: impl Error + Send + Sync + 'static,
    ) -> Self {
        Self::Backend { requested, cause: Arc::new(source) }
    }
}
