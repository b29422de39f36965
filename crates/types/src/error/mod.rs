//! The error of all layers: a kind, the failed call, and the error of a lower layer as its source.

mod kind;
#[cfg(test)]
mod tests;
mod words;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::panic::Location;
use std::sync::Arc;

use warpline_cuda_sys_safe::DriverError;
use warpline_sync::DropList;

use crate::Site;

pub use kind::ErrorKind;

/// The result of a fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a call: its kind, the op, the source location of the call, and the error that caused it.
///
/// A failed call leaves everything that existed before unchanged, unless its documentation says otherwise.
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
// Boxed, so that a `Result` of a pointer fits two registers and success costs nothing.
#[derive(Clone)]
pub struct Error(Box<ErrorInner>);

#[derive(Clone)]
struct ErrorInner {
    kind: ErrorKind,
    /// Empty if the error does not name an op.
    op: &'static str,
    location: Option<&'static Location<'static>>,
    source: Option<Source>,
}

type Source = Arc<dyn StdError + Send + Sync>;

thread_local! {
    static SOURCES: DropList<Source> = const { DropList::new() };
}

/// Drops a chain of sources without recursion, also if errors of other types are part of the chain.
impl Drop for ErrorInner {
    fn drop(&mut self) {
        if let Some(source) = self.source.take() {
            SOURCES.with(|list| list.drop_in_turn(source));
        }
    }
}

impl Error {
    /// Creates an error of the call at `site`. Inside a [`CallScope`](crate::CallScope), creates an error of the
    /// scope's call instead, unless errors of this kind belong to an earlier call (such as [`ErrorKind::IndexCheck`]).
    #[cold]
    #[must_use]
    pub fn new(kind: ErrorKind, site: Site) -> Self {
        let Site { op, location } = if kind.is_of_earlier_call() { site } else { site.or_public() };
        Self(Box::new(ErrorInner { kind, op, location: Some(location), source: None }))
    }

    /// Creates an error of the call of the current [`CallScope`](crate::CallScope). Outside all scopes, creates an
    /// error without an op and a location; [`Error::of`] and [`Error::at`] set them later.
    #[cold]
    #[must_use]
    pub fn unlocated(kind: ErrorKind) -> Self {
        match Site::public() {
            Some(call) => Self::new(kind, call),
            None => Self::without_call(kind, None),
        }
    }

    /// Creates an error without an op and a location, even inside a [`CallScope`](crate::CallScope).
    fn without_call(kind: ErrorKind, source: Option<Source>) -> Self {
        Self(Box::new(ErrorInner { kind, op: "", location: None, source }))
    }

    /// Creates an [`ErrorKind::InvalidArgument`] in a call of `op`, with the location that [`Site::here`] returns.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn invalid(op: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::InvalidArgument { reason: reason.into() }.of(op)
    }

    /// Creates an [`ErrorKind::ShapeMismatch`] in a call of `op`, with the location that [`Site::here`] returns.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn shape(op: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::ShapeMismatch { reason: reason.into() }.of(op)
    }

    /// Creates an [`ErrorKind::Gradient`] in a call of `op`, with the location that [`Site::here`] returns.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn gradient(op: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::Gradient { reason: reason.into() }.of(op)
    }

    /// Creates an [`ErrorKind::Capture`] in a call of `op`, with the location that [`Site::here`] returns.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn capture(op: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::Capture { reason: reason.into() }.of(op)
    }

    /// Creates the error of a failed driver call in `op`: [`ErrorKind::InvalidVariable`] if `source` is
    /// `DriverError::InvalidVariable`, otherwise [`ErrorKind::Driver`].
    #[cold]
    #[must_use]
    pub fn driver(op: &'static str, source: DriverError) -> Self {
        let error = Self::from(source);
        error.of(op)
    }

    /// Sets the error of a lower layer that caused this error. The message of this error contains the source's message.
    #[must_use]
    pub fn with_source(mut self, source: Arc<dyn StdError + Send + Sync>) -> Self {
        self.0.source = Some(source);
        self
    }

    /// Replaces the kind. Keeps the op, the location and the source.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Sets the op. Inside a [`CallScope`](crate::CallScope), sets the scope's op instead. An error that belongs to an
    /// earlier call (such as [`ErrorKind::IndexCheck`]) keeps its op.
    #[must_use]
    pub fn of(mut self, op: &'static str) -> Self {
        if self.0.op.is_empty() || !self.0.kind.is_of_earlier_call() {
            self.0.op = Site::public().map_or(op, |call| call.op);
        }
        self
    }

    /// Sets the source location of the call. Inside a [`CallScope`](crate::CallScope), sets the scope's location
    /// instead. Closures and methods of trait objects need this function, because they do not know their caller's
    /// location. An error that belongs to an earlier call (such as [`ErrorKind::IndexCheck`]) keeps its location.
    #[must_use]
    pub fn at(mut self, location: &'static Location<'static>) -> Self {
        if self.0.location.is_none() || !self.0.kind.is_of_earlier_call() {
            self.0.location = Some(Site { op: "", location }.or_public().location);
        }
        self
    }

    /// Returns the kind, which holds shapes, dtypes, indices or devices.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Returns the name of the failed op. Empty if the error has no op.
    #[must_use]
    pub fn op(&self) -> &'static str {
        self.0.op
    }

    /// Returns the source location of the call, if it is known.
    #[must_use]
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.0.location
    }

    /// Returns the first error of type `E` in the chain of sources, such as a `DriverError` or an `AllocError`.
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

    /// Returns the first [`DriverError`] in the chain of sources.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        self.find()
    }
}

/// Writes the message: the op, the source's message (the kind's text if there is no source), and the location of the
/// call, unless the source's message already has it.
///
/// Some kinds differ if there is a source. The message of [`ErrorKind::NotStarted`], [`ErrorKind::Surfaced`] and
/// [`ErrorKind::Collective`] has both the source's message and the kind's text. The message of [`ErrorKind::Race`] and
/// [`ErrorKind::InvalidVariable`] is only the source's message.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorInner { kind, op, location, source } = &*self.0;
        let source = source.as_deref();
        match (kind, source, location) {
            (ErrorKind::NotStarted { .. }, Some(source), Some(location)) => {
                return write!(
                    f,
                    "{op} at {location} was not started, because earlier work failed: {source}; {kind}"
                );
            }
            (ErrorKind::Surfaced { .. }, Some(source), _) => return write!(f, "{source}; {kind}"),
            // A race names both calls itself, and no call is at fault for an invalid variable.
            (ErrorKind::Race | ErrorKind::InvalidVariable, Some(source), _) => {
                return write!(f, "{source}");
            }
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
        // The message of a source may already contain the location.
        let printed = [
            self.driver_error().and_then(DriverError::location),
            self.find::<Self>().and_then(Self::location),
        ];
        match *location {
            Some(location) if !printed.contains(&Some(location)) => {
                write!(f, " (called at {location})")
            }
            _ => Ok(()),
        }
    }
}

/// Writes the same message as `Display`, because `unwrap`, and a `main` that returns an error, print the `Debug` form.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Error {
    /// Returns the first source whose message this error's message does not contain.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let mut source = self.0.source.as_deref()?.source();
        let text = self.to_string();
        while let Some(error) = source.filter(|error| text.contains(&error.to_string())) {
            source = error.source();
        }
        source
    }
}

impl From<DriverError> for Error {
    fn from(source: DriverError) -> Self {
        match source {
            DriverError::InvalidVariable(variable) => {
                Self::without_call(ErrorKind::InvalidVariable, Some(Arc::new(*variable)))
            }
            // The function that called the driver sets the op. If no op is set, the error is that of work on a stream.
            source => Self::without_call(ErrorKind::Driver, Some(Arc::new(source))),
        }
    }
}

/// Converts to [`ErrorKind::Io`] with the `io::Error` as its source.
impl From<io::Error> for Error {
    #[track_caller]
    fn from(error: io::Error) -> Self {
        ErrorKind::Io.of("").with_source(Arc::new(error))
    }
}

/// Access to the error kind of a result.
///
/// ```
/// use warpline_types::{Device, ErrorKind, ResultExt};
///
/// let parsed = "cuda:x".parse::<Device>();
/// assert!(matches!(parsed.kind(), Some(ErrorKind::InvalidDeviceString { .. })));
/// ```
pub trait ResultExt {
    /// Returns the kind of the error. `None` for `Ok`.
    fn kind(&self) -> Option<&ErrorKind>;
}

impl<T> ResultExt for Result<T> {
    fn kind(&self) -> Option<&ErrorKind> {
        self.as_ref().err().map(Error::kind)
    }
}
