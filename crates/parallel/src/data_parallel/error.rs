//! Errors of `DataParallel`.

use std::fmt;
use std::sync::Arc;

use warpline::{Device, Error, ErrorKind};

/// The reason why [`super::DataParallel`] failed: the source of an error of
/// [`ErrorKind::DataParallel`](warpline::ErrorKind::DataParallel).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DataParallelError {
    /// A parameter or buffer that is not where replicas are made from. [`warpline_nn::Module::to`]
    /// moves it there.
    #[error(
        "module must have its parameters and buffers on device cuda:{expected} (device_ids[0]) but found one of them on device: {found}"
    )]
    WrongDevice {
        /// The first of the device ids.
        expected: usize,
        /// Where it is.
        found: Device,
    },
    /// Device ids that cannot be used.
    #[error("device_ids {device_ids:?}: {reason}")]
    DeviceIds {
        /// The ids.
        device_ids: Vec<usize>,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// An output device that is none.
    #[error(
        "output_device {output_device} is no device: give a GPU's index, or -1 or \"cpu\" for the host"
    )]
    OutputDevice {
        /// What was given.
        output_device: i32,
    },
    /// The forward of one replica failed.
    #[error("in replica {replica} on device cuda:{device}: {cause}")]
    Replica {
        /// Which.
        replica: usize,
        /// Its device.
        device: usize,
        /// What it failed with.
        cause: Error,
    },
    /// An output that is in host memory.
    #[error(
        "Gather function not implemented for CPU tensors: the output of replica {replica} is on the CPU"
    )]
    GatherFromCpu {
        /// Whose output.
        replica: usize,
    },
    /// Outputs that do not fit together along the dimension.
    #[error(
        "the output of replica {replica} has shape {found:?}, but all sizes other than that of dimension {dim} must be those of replica 0's, {expected:?}"
    )]
    GatherShapes {
        /// Whose output.
        replica: usize,
        /// Its sizes.
        found: Vec<usize>,
        /// The first replica's.
        expected: Vec<usize>,
        /// The dimension along which they are joined.
        dim: isize,
    },
    /// Outputs that are not built alike.
    #[error("the replicas' outputs are not built alike: {reason}")]
    GatherStructure {
        /// How they differ.
        reason: String,
    },
    /// A thread that could not be started, or is gone: that of a forked child's parent.
    #[error("the thread for cuda:{device} cannot be used: {reason}")]
    Thread {
        /// Whose replicas it was to run.
        device: usize,
        /// Why not.
        reason: String,
    },
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
impl fmt::Debug for DataParallelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// [`ErrorKind::DataParallel`] with this source.
impl From<DataParallelError> for Error {
    #[track_caller]
    fn from(error: DataParallelError) -> Self {
        let op = match &error {
            DataParallelError::GatherFromCpu { .. }
            | DataParallelError::GatherShapes { .. }
            | DataParallelError::GatherStructure { .. } => "gather",
            _ => "DataParallel",
        };
        ErrorKind::DataParallel.of(op).with_source(Arc::new(error))
    }
}
