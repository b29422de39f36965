//! The error of all layers: a kind, the call that failed, and the error of a lower layer that caused it.

mod kind;
#[cfg(test)]
mod tests;
mod words;

use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use warpline_cuda_sys_safe::DriverError;

use crate::Site;

pub use kind::ErrorKind;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a call failed. The call changed nothing that existed before, unless its documentation says otherwise.
///
/// ```
/// use warpline_types::{Device, ErrorKind};
///
/// let error = "cuda:x".parse::<Device>().unwrap_err();
/// match error.kind() {
///     ErrorKind::InvalidDeviceString { text, .. } => assert_eq!(text, "cuda:x"),
///     kind => panic!("{kind}"),
/// }
/// ```
//
// A pointer, so that results fit two registers and failures cost nothing where there are none.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    /// Empty if the error does not name an op.
    op: &'static str,
    location: Option<&'static Location<'static>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of a call.
    #[cold]
    #[must_use]
    pub fn new(kind: ErrorKind, Site { op, location }: Site) -> Self {
        Self(Box::new(Inner { kind, op, location: Some(location), source: None }))
    }

    /// An error that does not know its call. [`Error::of`] and [`Error::at`] name it later.
    #[cold]
    #[must_use]
    pub fn unlocated(kind: ErrorKind) -> Self {
        Self(Box::new(Inner { kind, op: "", location: None, source: None }))
    }

    /// [`ErrorKind::InvalidArgument`] in a call of `op` by the caller of the function that calls this.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn invalid(op: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::InvalidArgument { reason: reason.into() }.of(op)
    }

    /// [`ErrorKind::ShapeMismatch`] in a call of `op` by the caller of the function that calls this.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn shape(op: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::ShapeMismatch { reason: reason.into() }.of(op)
    }

    /// [`ErrorKind::Gradient`] in a call of `op` by the caller of the function that calls this.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn gradient(op: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::Gradient { reason: reason.into() }.of(op)
    }

    /// [`ErrorKind::Capture`] in a call of `op` by the caller of the function that calls this.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn capture(op: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::Capture { reason: reason.into() }.of(op)
    }

    /// [`ErrorKind::Driver`] for a failed driver call of `op`, or [`ErrorKind::InvalidVariable`].
    #[cold]
    #[must_use]
    pub fn driver(op: &'static str, source: DriverError) -> Self {
        let error = Self::from(source);
        error.of(op)
    }

    /// Sets the error of a lower layer that caused this one. The message contains the source's message.
    #[must_use]
    pub fn with_source(mut self, source: Arc<dyn StdError + Send + Sync>) -> Self {
        self.0.source = Some(source);
        self
    }

    /// Changes the kind, and keeps op, location and source.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Names the op that was called, where the error is of an op that it consists of. The errors of earlier calls
    /// ([`ErrorKind::IndexCheck`], for example) keep the op that they name.
    #[must_use]
    pub fn of(mut self, op: &'static str) -> Self {
        if !self.0.kind.is_of_earlier_call() {
            self.0.op = op;
        }
        self
    }

    /// Sets the line of the call, for closures and trait objects, which do not know their caller's line. The errors of
    /// earlier calls keep the line that they name.
    #[must_use]
    pub fn at(mut self, location: &'static Location<'static>) -> Self {
        if !self.0.kind.is_of_earlier_call() {
            self.0.location = Some(location);
        }
        self
    }

    /// The kind, with shapes, dtypes, indices or devices.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Name of the op that failed; empty if the error does not name one.
    #[must_use]
    pub fn op(&self) -> &'static str {
        self.0.op
    }

    /// The line that called the op, if it is known.
    #[must_use]
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.0.location
    }

    /// The error of type `E` among the sources, such as a `DriverError` or an `AllocError`.
    ///
    /// ```
    /// use warpline_types::Error;
    /// use warpline_types::driver::{CudaCode, DriverError};
    ///
    /// let error = Error::driver("add", DriverError::cuda("cuLaunchKernel", CudaCode::OUT_OF_MEMORY, Some(0)));
    /// assert_eq!(error.find::<DriverError>().unwrap().code(), Some(CudaCode::OUT_OF_MEMORY));
    /// ```
    #[must_use]
    pub fn find<E: StdError + 'static>(&self) -> Option<&E> {
        let mut source = self.0.source.as_deref().map(|s| s as &(dyn StdError + 'static));
        while let Some(error) = source {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            source = match error.downcast_ref::<Self>() {
                Some(nested) => return nested.find(),
                None => error.source(),
            };
        }
        None
    }

    /// The driver's error among the sources, if there is one.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        self.find()
    }
}

/// Writes the message: the op, the kind's text, the source's message, and the line of the call.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, op, location, source } = &*self.0;
        let source = source.as_deref();
        match (kind, source, location) {
            (ErrorKind::NotStarted { .. }, Some(source), Some(location)) => {
                return write!(
                    f,
                    "{op} at {location} was not started, because earlier work failed: {source}; {kind}"
                );
            }
            (ErrorKind::Surfaced { .. }, Some(source), _) => return write!(f, "{source}; {kind}"),
            (ErrorKind::Collective, Some(source), Some(location)) => {
                return write!(f, "{op} at {location} failed, and {kind}: {source}");
            }
            _ => {}
        }
        if !op.is_empty() {
            write!(f, "{op}: ")?;
        }
        match source {
            Some(source) => write!(f, "{source}")?,
            None => write!(f, "{kind}")?,
        }
        match location {
            // A driver's error may name the line itself.
            Some(location) if self.driver_error().is_none_or(|e| e.location().is_none()) => {
                write!(f, " (called at {location})")
            }
            _ => Ok(()),
        }
    }
}

/// Writes the message: `main` prints the error that it returns this way, and `unwrap` the error that it meets.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Error {
    /// The source of the source. The message of this error contains that of the source itself.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref()?.source()
    }
}

impl From<DriverError> for Error {
    fn from(source: DriverError) -> Self {
        match source {
            DriverError::InvalidVariable(variable) => {
                Self::unlocated(ErrorKind::InvalidVariable).with_source(Arc::new(*variable))
            }
            source => Self::unlocated(ErrorKind::Driver).with_source(Arc::new(source)),
        }
    }
}

/// Access to the error in a result.
///
/// ```
/// use warpline_types::{Device, ErrorKind, ResultExt};
///
/// let parsed = "cuda:x".parse::<Device>();
/// assert!(matches!(parsed.kind(), Some(ErrorKind::InvalidDeviceString { .. })));
/// ```
pub trait ResultExt {
    /// The kind of the error; `None` of a success.
    fn kind(&self) -> Option<&ErrorKind>;
}

impl<T> ResultExt for Result<T> {
    fn kind(&self) -> Option<&ErrorKind> {
        self.as_ref().err().map(Error::kind)
    }
}
