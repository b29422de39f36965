//! What an op can answer instead of a result.

use std::panic::Location;
use std::sync::Arc;

use warpline_alloc::AllocError;
use warpline_cuda_sys_safe::{DriverError, InvalidVariable};
use warpline_stream::{IndexCheck, StreamError};

use crate::{DType, Race, Scalar};

/// The result of an op.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an op could not be done. Nothing that existed before is changed by one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A driver call failed.
    #[error("{op}: {source}")]
    Driver {
        /// The op that made the call.
        op: &'static str,
        /// What the driver said.
        source: DriverError,
    },
    /// An op was not started because earlier work had failed.
    #[error("{op} at {location} was not started, because earlier work failed: {source}")]
    NotStarted {
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
        /// The failure, and what it may be of.
        source: StreamError,
    },
    /// A stream, event or guard could not be used.
    #[error(transparent)]
    Stream(StreamError),
    /// `index_select`, `gather` or `embedding` met an index that is out of range. On the CPU the op
    /// answers this. On a GPU a wait does that covers the launch, once: the next copy to the host,
    /// `item` or `synchronize`. The device stays usable; what was written is not: until it is
    /// overwritten, each host read of it, or of anything computed from it, answers this, and so does
    /// each launch that reads it and is made once the failure is known.
    #[error(transparent)]
    IndexCheck(#[from] IndexCheck),
    /// A collective did not come to its end, as another rank is gone or late, so that what it was to
    /// write cannot be used: until that is overwritten, each host read of it, or of anything computed
    /// from it, returns this, and so does each launch that reads it and is made once the failure is
    /// known. `source` is the process group's own error.
    #[error("what {op} at {location} was to write cannot be used, as it has failed: {source}")]
    Collective {
        /// The collective.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
        /// Why it failed.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// An op has no code for this GPU: none was compiled ahead of time, and none can be now.
    #[error("{op}: there is no GPU code: {reason}")]
    NoGpuCode {
        /// The op.
        op: &'static str,
        /// Why not, and what would help.
        reason: String,
    },
    /// Memory could not be had.
    #[error(transparent)]
    Alloc(Arc<AllocError>),
    /// A variable of the environment holds what it cannot hold, so that CUDA is not used at all.
    /// Whatever needs a device, or asks whether there is one, returns this.
    #[error(transparent)]
    InvalidVariable(Box<InvalidVariable>),
    /// `cuda` was asked for where there is none.
    #[error("CUDA is not available: {reason}. {hint}")]
    CudaUnavailable {
        /// What was tried, and what went wrong.
        reason: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// A device string that means nothing.
    #[error("invalid device string: '{text}': {reason}")]
    InvalidDeviceString {
        /// The string.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A device that is not there.
    #[error(
        "invalid device ordinal: cuda:{index} was asked for, but {count} device(s) are visible"
    )]
    NoSuchDevice {
        /// The index asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// Operands on different devices.
    #[error(
        "Expected all tensors to be on the same device, but found at least two devices, {first} and {second}! (in {op})"
    )]
    DeviceMismatch {
        /// The op.
        op: &'static str,
        /// The first operand's device.
        first: String,
        /// The other operand's.
        second: String,
    },
    /// Operands, or an operand and a stream, of two runtimes.
    #[error(
        "{op}: the tensors and streams belong to different runtimes and cannot be used together"
    )]
    RuntimeMismatch {
        /// The op.
        op: &'static str,
    },
    /// Sizes that do not broadcast.
    #[error(
        "The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {dim}"
    )]
    BroadcastMismatch {
        /// The first size.
        a: usize,
        /// The second.
        b: usize,
        /// Where.
        dim: usize,
    },
    /// Sizes that do not expand.
    #[error("a tensor of shape {from:?} cannot be expanded to {to:?}")]
    ExpandMismatch {
        /// The tensor's sizes.
        from: Vec<usize>,
        /// The sizes asked for.
        to: Vec<usize>,
    },
    /// Shapes an op cannot combine.
    #[error("{op}: {reason}")]
    ShapeMismatch {
        /// The op.
        op: &'static str,
        /// The shapes, and what they should be.
        reason: String,
    },
    /// A shape with another number of elements.
    #[error("shape '{shape:?}' is invalid for input of size {numel}")]
    InvalidReshape {
        /// The shape asked for.
        shape: Vec<isize>,
        /// The number of elements there are.
        numel: usize,
    },
    /// Strides that do not allow a view.
    #[error(
        "view: shape {from:?} with strides {strides:?} cannot be seen as {to:?} without a copy; use reshape"
    )]
    ViewNeedsCopy {
        /// The tensor's sizes.
        from: Vec<usize>,
        /// Its strides.
        strides: Vec<isize>,
        /// The sizes asked for.
        to: Vec<usize>,
    },
    /// A dimension a tensor does not have.
    #[error("Dimension out of range: {dim} was asked for, but the tensor has {ndim} dimension(s)")]
    DimOutOfRange {
        /// The dimension asked for.
        dim: isize,
        /// How many there are.
        ndim: usize,
    },
    /// An index a dimension does not have.
    #[error(
        "{op}: index {index} with length {length} is out of bounds for dimension {dim} with size {size}"
    )]
    IndexOutOfRange {
        /// The op.
        op: &'static str,
        /// The dimension.
        dim: usize,
        /// The index asked for.
        index: isize,
        /// How many indices from there on.
        length: usize,
        /// The dimension's size.
        size: usize,
    },
    /// More elements or bytes than can be addressed.
    #[error("a tensor of shape {sizes:?} has more elements or bytes than can be addressed")]
    SizeOverflow {
        /// The sizes.
        sizes: Vec<usize>,
    },
    /// A dtype an op does not work on.
    #[error("{op} does not support {dtype}")]
    UnsupportedDType {
        /// The op.
        op: &'static str,
        /// The dtype.
        dtype: DType,
    },
    /// A result that does not fit the tensor it is to be stored in.
    #[error("{op}: a result of {from} cannot be stored in a tensor of {to}")]
    CannotCast {
        /// The op.
        op: &'static str,
        /// The result's dtype.
        from: DType,
        /// The tensor's.
        to: DType,
    },
    /// An element type that is not the tensor's.
    #[error("{op}: the tensor holds {actual}, not {expected}")]
    DTypeMismatch {
        /// The op.
        op: &'static str,
        /// The dtype asked for.
        expected: DType,
        /// The tensor's.
        actual: DType,
    },
    /// A value read as a type that cannot hold it.
    #[error("{op}: the value {value} of {dtype} does not fit {asked}")]
    ValueDoesNotFit {
        /// The op.
        op: &'static str,
        /// The value.
        value: Scalar,
        /// The tensor's dtype.
        dtype: DType,
        /// The dtype asked for.
        asked: DType,
    },
    /// `item` of a tensor that has not exactly one element.
    #[error("a Tensor with {numel} elements cannot be converted to Scalar")]
    NotAScalar {
        /// Its number of elements.
        numel: usize,
    },
    /// A tensor written to that has several indices at one address.
    #[error(
        "{op}: more than one element of the written-to tensor refers to a single memory location; clone it first"
    )]
    OverlappingWrite {
        /// The op.
        op: &'static str,
    },
    /// A result written over part of an operand.
    #[error(
        "{op}: an operand and the written-to tensor share some, but not all, of their memory; clone the operand first"
    )]
    OverlappingOperands {
        /// The op.
        op: &'static str,
    },
    /// A layout that reaches beyond its storage.
    #[error(
        "{op}: sizes {sizes:?} and strides {strides:?} at offset {offset} reach outside a storage of {bytes} bytes"
    )]
    OutOfStorage {
        /// The op.
        op: &'static str,
        /// The layout's sizes.
        sizes: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
        /// Its offset, in elements.
        offset: usize,
        /// The storage's size.
        bytes: usize,
    },
    /// More dimensions than a kernel can tell apart.
    #[error(
        "{op}: the operands' memory has {ndim} dimensions that do not merge; at most {max} are supported: make them contiguous first"
    )]
    TooManyDims {
        /// The op.
        op: &'static str,
        /// How many there are.
        ndim: usize,
        /// How many there may be.
        max: usize,
    },
    /// Only tensors in CPU memory can be pinned.
    #[error("cannot pin a tensor on {device}: only CPU tensors can be pinned")]
    CannotPin {
        /// The tensor's device.
        device: String,
    },
    /// Under [`crate::SyncPolicy::Manual`]: two uses that nothing orders.
    #[error("{0}")]
    Race(Box<Race>),
    /// Something that cannot be part of a graph, on a stream that is captured. The capture goes on
    /// without it.
    #[error("{op}: operation not permitted when stream is capturing: {reason}")]
    Capture {
        /// The op.
        op: &'static str,
        /// Why not, and what to do instead.
        reason: String,
    },
    /// A tensor that was made in a capture whose graph was not replayed since.
    #[error(
        "{op}: the tensor was made while a graph was captured and holds nothing yet; replay the graph first"
    )]
    NotReplayed {
        /// The op.
        op: &'static str,
    },
    /// An op of the host on host memory that other processes may write to at any time.
    #[error(
        "{op}: the tensor is in host memory that other processes may write to at any time; use a \
         `copy()` of it, and `copy_` to write to it"
    )]
    SharedHostMemory {
        /// The op.
        op: &'static str,
    },
    /// A tensor that other processes cannot get at.
    #[error("{op}: the tensor cannot be shared with another process: {reason}")]
    CannotShare {
        /// The op.
        op: &'static str,
        /// Why not, and what to do instead.
        reason: String,
    },
    /// The process at the other end of a channel has ended, or closed it; or it had before it did what
    /// a tensor was to hold.
    #[error("{op}: the other process is gone: {reason}")]
    PeerGone {
        /// The op.
        op: &'static str,
        /// How that was noticed.
        reason: String,
    },
    /// Any other argument an op cannot accept.
    #[error("{op}: {reason}")]
    InvalidArgument {
        /// The op.
        op: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

const FIND_ONE: &str = "Run on a machine with an NVIDIA GPU and its driver, use the device 'cpu', or \
                        ask for simulated GPUs with WARPLINE_DRIVER=sim:N";
const SHOW_ONE: &str = "Let CUDA_VISIBLE_DEVICES name devices that are there, or unset it; or use the \
                        device 'cpu'";

impl Error {
    /// An argument that cannot be accepted.
    #[must_use]
    pub fn invalid(op: &'static str, reason: String) -> Self {
        Self::InvalidArgument { op, reason }
    }

    /// Something that a capture cannot hold.
    #[must_use]
    pub fn capture(op: &'static str, reason: String) -> Self {
        Self::Capture { op, reason }
    }

    /// A failed driver call of an op.
    #[must_use]
    pub fn driver(op: &'static str, source: DriverError) -> Self {
        match source {
            DriverError::InvalidVariable(variable) => Self::InvalidVariable(variable),
            source => Self::Driver { op, source },
        }
    }

    /// Why there is no CUDA, as what needs it returns it: [`Error::CudaUnavailable`] where there is no
    /// GPU to use, what is wrong otherwise.
    pub(crate) fn no_cuda(reason: DriverError) -> Self {
        let hint = match &reason {
            DriverError::DevicesHidden { .. } => SHOW_ONE,
            reason if reason.is_no_device() => FIND_ONE,
            _ => return Self::driver("CUDA cannot be used", reason),
        };
        Self::CudaUnavailable { reason: reason.to_string(), hint }
    }

    /// The driver's error behind this one, if there is one.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        match self {
            Self::Driver { source, .. } => Some(source),
            Self::Stream(source) | Self::NotStarted { source, .. } => source.driver_error(),
            _ => None,
        }
    }
}

impl From<StreamError> for Error {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::IndexCheck(failed) => Self::IndexCheck(failed),
            error => Self::Stream(error),
        }
    }
}

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        Self::Alloc(Arc::new(error))
    }
}
