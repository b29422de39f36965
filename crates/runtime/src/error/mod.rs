//! What an op can return instead of a result.

mod parts;
mod words;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use warpline_alloc::AllocError;
use warpline_cuda_sys_safe::{DriverError, InvalidVariable};
use warpline_stream::{IndexCheck, StreamError};

use self::words::{At, Long, Named, Negative};
use crate::{DType, Race, Scalar};

/// The result of an op.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an op could not be done. Nothing that existed before is changed by one.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A driver call failed.
    #[error("{op}: {cause}")]
    Driver {
        /// The op that made the call.
        op: &'static str,
        /// What the driver said.
        cause: DriverError,
    },
    /// An op was not started because earlier work had failed.
    #[error("{op} at {location} was not started, because earlier work failed: {cause}")]
    NotStarted {
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
        /// The failure, and what it may be of.
        cause: StreamError,
    },
    /// A stream, event or guard could not be used.
    #[error(transparent)]
    Stream(StreamError),
    /// An op such as `index_select`, `gather` or `embedding` met an index that is out of range. On the
    /// CPU the op returns this. On a GPU each host read of the result, or of anything computed from it,
    /// returns this until the result is overwritten, and so does each launch that reads it and is made
    /// once the failure is known. `synchronize` reports it once, to the thread that made the call. The
    /// device stays usable.
    #[error(transparent)]
    IndexCheck(#[from] IndexCheck),
    /// A collective did not come to its end, as another rank is gone or late, so that what it was to
    /// write cannot be used: until that is overwritten, each host read of it, or of anything computed
    /// from it, returns this, and so does each launch that reads it and is made once the failure is
    /// known. `cause` is the process group's own error.
    #[error("what {op} at {location} was to write cannot be used, as it has failed: {cause}")]
    Collective {
        /// The collective.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
        /// Why it failed.
        cause: Arc<dyn std::error::Error + Send + Sync>,
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
    #[error("{op}: {cause} (called at {location})")]
    Alloc {
        /// The op.
        op: &'static str,
        /// Why not, and what would help.
        cause: Arc<AllocError>,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A variable of the environment holds what it cannot hold, so that CUDA is not used at all.
    /// Whatever needs a device, or asks whether there is one, returns this.
    #[error(transparent)]
    InvalidVariable(Box<InvalidVariable>),
    /// `cuda` was asked for where there is none.
    #[error(
        "{}CUDA is not available. {hint}. The cause: {reason} (called at {location})",
        Named(op)
    )]
    CudaUnavailable {
        /// What was tried, and what went wrong.
        reason: String,
        /// What to do about it.
        hint: &'static str,
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A device string that means nothing.
    #[error("{}invalid device string: '{text}': {reason}{}", Named(op), At(*location))]
    InvalidDeviceString {
        /// The string.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
        /// The op.
        op: &'static str,
        /// Where it was called; `None` of `parse`, which is not told.
        location: Option<&'static Location<'static>>,
    },
    /// A device that is not there.
    #[error(
        "{}invalid device ordinal: cuda:{index} was asked for, but {count} device(s) are visible (called at {location})",
        Named(op)
    )]
    NoSuchDevice {
        /// The index asked for.
        index: usize,
        /// How many there are.
        count: usize,
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Operands on different devices.
    #[error(
        "Expected all tensors to be on the same device, but found at least two devices, {first} and {second}! (in {op}) (called at {location})"
    )]
    DeviceMismatch {
        /// The op.
        op: &'static str,
        /// The first operand's device.
        first: String,
        /// The other operand's.
        second: String,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Operands, or an operand and a stream, of two runtimes.
    #[error(
        "{op}: the tensors and streams belong to different runtimes and cannot be used together (called at {location})"
    )]
    RuntimeMismatch {
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Sizes that do not broadcast.
    #[error(
        "{}The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {dim} (called at {location})",
        Named(op)
    )]
    BroadcastMismatch {
        /// The first size.
        a: usize,
        /// The second.
        b: usize,
        /// Where.
        dim: usize,
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Sizes that do not expand.
    #[error(
        "{}a tensor of shape {from:?} cannot be expanded to {to:?} (called at {location})",
        Named(op)
    )]
    ExpandMismatch {
        /// The tensor's sizes.
        from: Vec<usize>,
        /// The sizes asked for.
        to: Vec<usize>,
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Shapes an op cannot combine.
    #[error("{op}: {reason} (called at {location})")]
    ShapeMismatch {
        /// The op.
        op: &'static str,
        /// The shapes, and what they should be.
        reason: String,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A shape with another number of elements.
    #[error(
        "{}shape '{shape:?}' is invalid for input of size {numel}{} (called at {location})",
        Named(op),
        Negative(shape)
    )]
    InvalidReshape {
        /// The shape asked for.
        shape: Vec<isize>,
        /// The number of elements there are.
        numel: usize,
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Strides that do not allow a view.
    #[error(
        "view: shape {from:?} with strides {strides:?} cannot be seen as {to:?} without a copy; use reshape (called at {location})"
    )]
    ViewNeedsCopy {
        /// The tensor's sizes.
        from: Vec<usize>,
        /// Its strides.
        strides: Vec<isize>,
        /// The sizes asked for.
        to: Vec<usize>,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A dimension a tensor does not have.
    #[error(
        "{}Dimension out of range: {dim} was asked for, but the tensor has {ndim} dimension(s) (called at {location})",
        Named(op)
    )]
    DimOutOfRange {
        /// The dimension asked for.
        dim: isize,
        /// How many there are.
        ndim: usize,
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// An index a dimension does not have.
    #[error(
        "{op}: index {index}{} is out of bounds for dimension {dim} with size {size} (called at {location})",
        Long(*length)
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
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// More elements or bytes than can be addressed.
    #[error(
        "{}a tensor of shape {sizes:?} has more elements or bytes than can be addressed (called at {location})",
        Named(op)
    )]
    SizeOverflow {
        /// The sizes.
        sizes: Vec<usize>,
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A dtype an op does not work on.
    #[error("{op}: it does not support {dtype}; convert with `to` (called at {location})")]
    UnsupportedDType {
        /// The op.
        op: &'static str,
        /// The dtype.
        dtype: DType,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A result that does not fit the tensor it is to be stored in.
    #[error("{op}: a result of {from} cannot be stored in a tensor of {to} (called at {location})")]
    CannotCast {
        /// The op.
        op: &'static str,
        /// The result's dtype.
        from: DType,
        /// The tensor's.
        to: DType,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// An element type that is not the tensor's.
    #[error("{op}: the tensor holds {actual}, not {expected} (called at {location})")]
    DTypeMismatch {
        /// The op.
        op: &'static str,
        /// The dtype asked for.
        expected: DType,
        /// The tensor's.
        actual: DType,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Operands of two dtypes where one is needed.
    #[error(
        "{op}: both tensors must have the same dtype, but they are of {first} and {second}; convert one with `to` (called at {location})"
    )]
    OperandDTypes {
        /// The op.
        op: &'static str,
        /// The first operand's dtype.
        first: DType,
        /// The other's.
        second: DType,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A value read as a type that cannot hold it.
    #[error("{op}: the value {value} of {dtype} does not fit {asked} (called at {location})")]
    ValueDoesNotFit {
        /// The op.
        op: &'static str,
        /// The value.
        value: Scalar,
        /// The tensor's dtype.
        dtype: DType,
        /// The dtype asked for.
        asked: DType,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// `item` of a tensor that has not exactly one element.
    #[error(
        "{}a Tensor with {numel} elements cannot be converted to Scalar (called at {location})",
        Named(op)
    )]
    NotAScalar {
        /// Its number of elements.
        numel: usize,
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A tensor written to that has several indices at one address.
    #[error(
        "{op}: more than one element of the written-to tensor refers to a single memory location; write to a `copy()` of it (called at {location})"
    )]
    OverlappingWrite {
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A result written over part of an operand.
    #[error(
        "{op}: an operand and the written-to tensor share some, but not all, of their memory; pass a `copy()` of the operand (called at {location})"
    )]
    OverlappingOperands {
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A layout that reaches beyond its storage.
    #[error(
        "{op}: sizes {sizes:?} and strides {strides:?} at offset {offset} reach outside a storage of {bytes} bytes (called at {location})"
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
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// More dimensions than a kernel can tell apart.
    #[error(
        "{op}: the operands' memory has {ndim} dimensions that do not merge; at most {max} are supported: make them contiguous first (called at {location})"
    )]
    TooManyDims {
        /// The op.
        op: &'static str,
        /// How many there are.
        ndim: usize,
        /// How many there may be.
        max: usize,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Only tensors in CPU memory can be pinned.
    #[error(
        "{}cannot pin a tensor on {device}: only CPU tensors can be pinned (called at {location})",
        Named(op)
    )]
    CannotPin {
        /// The tensor's device.
        device: String,
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Under [`crate::SyncPolicy::Manual`]: two uses that nothing orders.
    #[error("{0}")]
    Race(Box<Race>),
    /// Something that cannot be part of a graph, on a stream that is captured. The capture goes on
    /// without it.
    #[error(
        "{op}: operation not permitted when stream is capturing: {reason} (called at {location})"
    )]
    Capture {
        /// The op.
        op: &'static str,
        /// Why not, and what to do instead.
        reason: String,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A tensor that was made in a capture whose graph was not replayed since.
    #[error(
        "{op}: the tensor was made while a graph was captured and holds nothing yet; replay the graph first (called at {location})"
    )]
    NotReplayed {
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// An op of the host on host memory that other processes may write to at any time.
    #[error(
        "{op}: the tensor is in host memory that other processes may write to at any time; use a \
         `copy()` of it, and `copy_` to write to it (called at {location})"
    )]
    SharedHostMemory {
        /// The op.
        op: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A tensor that other processes cannot get at.
    #[error(
        "{op}: the tensor cannot be shared with another process: {reason} (called at {location})"
    )]
    CannotShare {
        /// The op.
        op: &'static str,
        /// Why not, and what to do instead.
        reason: String,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// The process at the other end of a channel has ended, or closed it; or it had before it did what
    /// a tensor was to hold.
    #[error("{op}: the other process is gone: {reason} (called at {location})")]
    PeerGone {
        /// The op.
        op: &'static str,
        /// How that was noticed.
        reason: String,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// The process at the other end of a channel did not do its part before the channel's timeout. What
    /// was to be waited for may still be done: the call can be made again.
    #[error("{op}: timed out: {reason} (called at {location})")]
    TimedOut {
        /// The op.
        op: &'static str,
        /// What was waited for.
        reason: String,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// What was computed, or is to be, has no gradient: an op without a rule, a graph that was freed, a tensor
    /// that was changed after it was saved.
    #[error("{op}: {reason} (called at {location})")]
    Gradient {
        /// The op.
        op: &'static str,
        /// Why not, and what would help.
        reason: String,
        /// Where it was called; of an op that fails in a backward pass, where its forward op was.
        location: &'static Location<'static>,
    },
    /// A parameter whose module has another tensor in its place since it was moved.
    #[error(
        "{op}: the parameter `{name}` was moved, and its module has another tensor in its place; build the optimizer, \
         register hooks and run the forward pass after the move (called at {location})"
    )]
    Moved {
        /// The op.
        op: &'static str,
        /// The parameter's name in the module that was moved, such as `layers.0.weight`.
        name: Arc<str>,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Any other argument an op cannot accept.
    #[error("{op}: {reason} (called at {location})")]
    InvalidArgument {
        /// The op.
        op: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
        /// Where it was called.
        location: &'static Location<'static>,
    },
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
