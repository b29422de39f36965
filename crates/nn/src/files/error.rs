//! Errors of loading and saving files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpline::{Error, ErrorKind};

/// The reason why a file could not be loaded or saved.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A system call failed, for example because the file does not exist or the disk is full.
    #[error("{}: {doing}: {cause}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The failed action, such as "opening it".
        doing: &'static str,
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// The file is not a valid safetensors file or index, or a state cannot be written as one.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// The fault and its position.
        reason: String,
    },
    /// A tensor has a dtype that Warpline does not have.
    #[error("{}: the tensor `{name}` has dtype {dtype}, which is not supported", path.display())]
    DType {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// The dtype as written in the file, such as `F8_E4M3`.
        dtype: String,
    },
    /// Memory for a tensor could not be allocated, or a tensor could not be copied.
    #[error("{}: {source}", path.display())]
    Tensor {
        /// Path of the file.
        path: PathBuf,
        /// Error of the allocation or copy.
        source: Error,
    },
}

/// Writes the same message as `Display`, because a `main` that returns an error prints its `Debug` form.
impl fmt::Debug for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Converts to [`ErrorKind::File`] with the `FileError` as its source.
impl From<FileError> for Error {
    #[track_caller]
    fn from(error: FileError) -> Self {
        ErrorKind::File.of("").with_source(Arc::new(error))
    }
}

impl FileError {
    pub(super) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Io { path: path.to_owned(), doing, cause: Arc::new(cause) }
    }

    pub(super) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_owned(), reason: reason.into() }
    }

    pub(super) fn tensor(path: &Path) -> impl FnOnce(Error) -> Self {
        move |source| Self::Tensor { path: path.to_owned(), source }
    }
}
