//! What an allocation can fail with.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::OutOfMemory;
use crate::summary::size_text;

/// Why an allocation failed. The allocator and everything it holds stay usable.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Neither the cache nor the backend has the memory, even after idle segments were given back.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The request is 1 EB or more.
    #[error("out of memory. Tried to allocate {}, more than 1EB memory", size_text(*requested))]
    TooLarge {
        /// The request, in bytes.
        requested: usize,
    },
    /// The system has no ordinary host memory.
    #[error("cpu out of memory. Tried to allocate {}: {reason}", size_text(*requested))]
    HostMemory {
        /// The request, in bytes.
        requested: usize,
        /// Why there is none.
        reason: String,
    },
    /// Rounding or adding up sizes went past what an address can hold.
    #[error("a size overflowed: {what} of {bytes} bytes")]
    SizeOverflow {
        /// What was computed.
        what: &'static str,
        /// From what size, in bytes.
        bytes: usize,
    },
    /// The request comes from code that the allocator runs while it holds its locks: the source of a
    /// memory pool, or the drop of the owner of foreign memory.
    #[error(
        "allocating {} failed: the source of a memory pool, or the owner of its memory, cannot use the \
         caching allocator; allocate from the driver there (`DeviceMemory::new`)",
        size_text(*requested)
    )]
    InsideSource {
        /// The request, in bytes.
        requested: usize,
    },
    /// The backend failed with something else than a lack of memory.
    #[error("allocating {} failed: {cause}", size_text(*requested))]
    Backend {
        /// What was asked of the backend, in bytes.
        requested: usize,
        /// The backend's error.
        cause: Arc<dyn Error + Send + Sync>,
    },
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
impl fmt::Debug for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl AllocError {
    /// Whether more free memory would have helped.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_) | Self::TooLarge { .. } | Self::HostMemory { .. })
    }

    /// The backend's own error, if it is an `E`.
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
