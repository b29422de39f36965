//! Errors of `DataParallel`.

use std::fmt;
use std::sync::Arc;

use warpline::{Device, Error, ErrorKind};

/// The reason why [`super::DataParallel`] failed: the source of an error of the kind [`ErrorKind::DataParallel`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DataParallelError {
    /// A parameter or buffer is not on the first of the GPUs that compute. [`warpline_nn::Module::to`] moves it there.
    #[error(
        "module must have its parameters and buffers on device cuda:{expected} (device_ids[0]) but found one of them on device: {found}"
    )]
    WrongDevice {
        /// Index of the first of these GPUs.
        expected: usize,
        /// Device of the parameter or buffer.
        found: Device,
    },
    /// The list of GPUs is empty or has a GPU twice.
    #[error("device_ids {device_ids:?}: {reason}")]
    DeviceIds {
        /// Indices of the GPUs.
        device_ids: Vec<usize>,
        /// The rule that the list breaks.
        reason: &'static str,
    },
    /// The output device is a negative number other than -1.
    #[error(
        "output_device {output_device} is not a device: give a GPU's index, or -1 or \"cpu\" for the host"
    )]
    OutputDevice {
        /// The given number.
        output_device: i32,
    },
    /// The forward pass of a replica failed.
    #[error("in replica {replica} on device cuda:{device}: {source}")]
    Replica {
        /// Number of the replica.
        replica: usize,
        /// Index of the replica's GPU.
        device: usize,
        /// Error of the forward pass.
        source: Error,
    },
    /// An output is on the CPU.
    #[error(
        "Gather function not implemented for CPU tensors: the output of replica {replica} is on the CPU"
    )]
    GatherFromCpu {
        /// Number of the replica.
        replica: usize,
    },
    /// Outputs differ in a size other than that of the gathered dimension.
    #[error(
        "the output of replica {replica} has shape {found:?}, but all sizes other than that of dimension {dim} must be those of replica 0's, {expected:?}"
    )]
    GatherShapes {
        /// Number of the replica.
        replica: usize,
        /// Shape of the replica's output.
        found: Vec<usize>,
        /// Shape of the first replica's output.
        expected: Vec<usize>,
        /// The gathered dimension.
        dim: isize,
    },
    /// Outputs differ in structure: in the length of a list, the keys of a map, or the presence of an option.
    #[error("the replicas' outputs have different structures: {reason}")]
    GatherStructure {
        /// Description of the difference.
        reason: String,
    },
    /// The thread of a GPU could not be started, has ended, or is the calling thread. A forked child does not have the
    /// threads of its parent.
    #[error("the thread for cuda:{device} cannot be used: {reason}")]
    Thread {
        /// Index of the GPU.
        device: usize,
        /// Description of the cause.
        reason: String,
    },
}

/// Writes the same message as `Display`, because `unwrap`, and a `main` that returns an error, print the `Debug` form.
impl fmt::Debug for DataParallelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Converts to [`ErrorKind::DataParallel`] with the `DataParallelError` as its source.
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
