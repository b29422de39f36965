//! What can be wrong with a file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpline::{Error, ErrorKind};

/// Why a file was not loaded or saved.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system's own: no such file, no rights, no space.
    #[error("{}: {doing}: {cause}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        cause: Arc<io::Error>,
    },
    /// The file is no safetensors file, or was cut or changed.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// A tensor of a dtype that there is not.
    #[error("{}: the tensor `{name}` is of dtype {dtype}, which there is not here", path.display())]
    DType {
        /// Which file.
        path: PathBuf,
        /// Which tensor.
        name: String,
        /// As the file has it.
        dtype: String,
    },
    /// Memory or a copy.
    #[error("{}: {cause}", path.display())]
    Tensor {
        /// Which file.
        path: PathBuf,
        /// What failed.
        cause: Error,
    },
}

/// Its message, as `main` prints of the error that it returns.
impl fmt::Debug for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// [`ErrorKind::File`] with this source.
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
        move |cause| Self::Tensor { path: path.to_owned(), cause }
    }
}
