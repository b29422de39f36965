//! Errors of options.

use std::fmt;

use super::parse::KEYS;

/// An invalid option of an [`AllocatorConfig`](crate::AllocatorConfig).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The option does not exist.
    #[error("unknown allocator option `{key}`; there are {}", KEYS.join(", "))]
    UnknownOption {
        /// Name of the option.
        key: String,
    },
    /// The option has no value.
    #[error("allocator option `{key}` has no value; write `{key}:VALUE`")]
    MissingValue {
        /// Name of the option.
        key: String,
    },
    /// The option cannot have this value.
    #[error("allocator option `{key}` cannot be `{value}`: expected {expected}")]
    InvalidValue {
        /// Name of the option.
        key: String,
        /// The rejected value.
        value: String,
        /// The values that the option can have.
        expected: String,
    },
    /// PyTorch has the option and value, but this allocator does not support them.
    #[error("allocator option `{key}:{value}` is not supported: {reason}")]
    NotSupported {
        /// Name of the option.
        key: String,
        /// The rejected value.
        value: String,
        /// The cause, and an alternative.
        reason: &'static str,
    },
    /// The option does not apply to the driver's pools.
    #[error("allocator option `{key}` has a meaning only with `backend:native`")]
    OnlyNative {
        /// Name of the option.
        key: &'static str,
    },
    /// The options are not valid UTF-8.
    #[error("the value is not UTF-8")]
    NotUnicode,
    /// An environment variable has an invalid value.
    #[error("the environment variable {variable} is `{value}`: {reason}")]
    Variable {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: String,
        /// The error in the value.
        reason: Box<ConfigError>,
    },
}

/// Prints the message, because `main` and `unwrap` print errors with `Debug`.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Converts to `ErrorKind::InvalidArgument` with the `ConfigError` as its source.
#[cfg(feature = "cuda")]
impl From<ConfigError> for warpline_types::Error {
    #[track_caller]
    fn from(error: ConfigError) -> Self {
        Self::invalid("", error.to_string()).with_source(std::sync::Arc::new(error))
    }
}

pub(crate) fn invalid(key: &str, value: &str, expected: impl Into<String>) -> ConfigError {
    ConfigError::InvalidValue { key: key.into(), value: value.into(), expected: expected.into() }
}
