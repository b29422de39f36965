//! What is wrong with an option.

use std::fmt;

use super::parse::KEYS;

/// What is wrong with an option.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such option.
    #[error("unknown allocator option `{key}`; there are {}", KEYS.join(", "))]
    UnknownOption {
        /// The option.
        key: String,
    },
    /// The option has no value.
    #[error("allocator option `{key}` has no value; write `{key}:VALUE`")]
    MissingValue {
        /// The option.
        key: String,
    },
    /// The value is not one the option can have.
    #[error("allocator option `{key}` cannot be `{value}`: expected {expected}")]
    InvalidValue {
        /// The option.
        key: String,
        /// The value.
        value: String,
        /// What it should have been.
        expected: String,
    },
    /// PyTorch knows the option and value, and this allocator does not have it.
    #[error("allocator option `{key}:{value}` is not supported: {reason}")]
    NotSupported {
        /// The option.
        key: String,
        /// The value.
        value: String,
        /// Why not, and what there is instead.
        reason: &'static str,
    },
    /// An option that the driver's pools do not have.
    #[error("allocator option `{key}` has a meaning only with `backend:native`")]
    OnlyNative {
        /// The option.
        key: &'static str,
    },
    /// The options are no text.
    #[error("the value is not UTF-8")]
    NotUnicode,
    /// A variable of the environment is wrong.
    #[error("the environment variable {variable} is `{value}`: {reason}")]
    Variable {
        /// The variable that was read.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        reason: Box<ConfigError>,
    },
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) fn invalid(key: &str, value: &str, expected: impl Into<String>) -> ConfigError {
    ConfigError::InvalidValue { key: key.into(), value: value.into(), expected: expected.into() }
}
