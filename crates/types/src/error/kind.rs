//! Kinds of errors, with the values that a caller may want to match.

use std::sync::Arc;

use super::Error;
use super::words::{Devices, Length, Negative};
use crate::{DType, Device, PendingLaunches, Scalar, Site};

/// The kind of an [`Error`], with its shapes, dtypes, indices or devices.
///
/// Kinds whose text says "see the source" have the details in the error's source, which [`Error::find`] returns.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A driver call failed. The source is a [`DriverError`](warpline_cuda_sys_safe::DriverError).
    #[error("the driver failed")]
    Driver,
    /// A driver call failed at a wait, a query or a launch. The failure may be of any launch that was not known to be
    /// complete. An error that loses the device may also be of another stream's launch. The source is a
    /// [`DriverError`](warpline_cuda_sys_safe::DriverError).
    #[error("{}", pending.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Surfaced {
        /// The launches that may have failed; first those of the stream that was asked.
        pending: Arc<[PendingLaunches]>,
    },
    /// An op was not started because earlier work had failed. The source is a
    /// [`DriverError`](warpline_cuda_sys_safe::DriverError).
    #[error("{}", pending.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    NotStarted {
        /// The launches that may have failed.
        pending: Arc<[PendingLaunches]>,
    },
    /// An op such as `index_select`, `gather` or `embedding` met an index that is out of range. On the CPU the op returns
    /// this error. On a GPU each host read of the result, or of a tensor computed from it, returns this error until
    /// the result is overwritten, and so does each launch that reads the result once the failure is known. `synchronize`
    /// (of a device, stream or event) reports the error once, to the thread that made the call, or to any thread if that
    /// one has ended. The device stays usable. The error's op and location are those of the launch.
    #[error("index {index} is out of range for dimension {dim} with size {size}")]
    IndexCheck {
        /// The index; one of them where several are out of range.
        index: i64,
        /// The indexed dimension.
        dim: usize,
        /// Size of that dimension.
        size: usize,
    },
    /// A collective failed, because another rank is gone or late, so its results cannot be used: each host read of
    /// them, or of a tensor computed from them, returns this error until they are overwritten, and so does each launch that reads
    /// them once the failure is known. The source is the process group's own error.
    #[error("its results cannot be used")]
    Collective,
    /// An op has no code for this GPU: none was compiled ahead of time, and none can be compiled now.
    #[error("there is no GPU code: {reason}")]
    NoGpuCode {
        /// The cause, and what would help.
        reason: String,
    },
    /// Memory could not be allocated. The source is an `AllocError`.
    #[error("allocation failed")]
    Alloc,
    /// A variable of the environment has an invalid value, so CUDA is not used at all. Every call that needs a device,
    /// or asks whether there is one, returns this error. The source is an
    /// [`InvalidVariable`](warpline_cuda_sys_safe::InvalidVariable).
    #[error("a variable of the environment has an invalid value")]
    InvalidVariable,
    /// The device `cuda` was asked for where there is none.
    #[error("CUDA is not available. {hint}. The cause: {reason}")]
    CudaUnavailable {
        /// The drivers that were tried, and how they failed.
        reason: String,
        /// The remedy.
        hint: &'static str,
    },
    /// A string is not the name of a device.
    #[error("invalid device string: '{text}': {reason}")]
    InvalidDeviceString {
        /// The string.
        text: String,
        /// What is wrong with the string.
        reason: &'static str,
    },
    /// There is no device with this index.
    #[error(
        "invalid device ordinal: cuda:{index} was asked for, but {count} device(s) are visible"
    )]
    NoSuchDevice {
        /// The index.
        index: usize,
        /// Number of visible devices.
        count: usize,
    },
    /// Operands are on different devices.
    #[error(
        "Expected all tensors to be on the same device, but found at least two devices, {}!",
        Devices(*first, *second, parameter)
    )]
    DeviceMismatch {
        /// The first operand's device; a module's input, if `parameter` is not empty.
        first: Device,
        /// The other operand's device.
        second: Device,
        /// Name of the module's parameter that is the other operand; empty if an op found the mismatch.
        parameter: String,
    },
    /// A stream or event is on another device than the call needs.
    #[error("{object} is on cuda:{found}, but one on cuda:{expected} is needed")]
    WrongDevice {
        /// The object, such as `the stream`.
        object: &'static str,
        /// Index of the device that is needed.
        expected: usize,
        /// Index of the device that the object is on.
        found: usize,
    },
    /// Tensors, streams or events of two runtimes were used together.
    #[error(
        "the tensors, streams or events belong to different runtimes and cannot be used together"
    )]
    RuntimeMismatch,
    /// An event has never been recorded.
    #[error("both events must have been recorded; record them with `record` first")]
    EventNotRecorded,
    /// An event has no timing.
    #[error("both events must keep times; make them with `Event::timing()`")]
    NoTiming,
    /// An event is not completed yet.
    #[error("both events must have been completed; `synchronize` them first")]
    EventNotFinished,
    /// The thread is ending, and its current device and streams are gone.
    #[error("this thread is ending; it has no current device or stream any more")]
    ThreadEnding,
    /// A stream cannot be captured.
    #[error("the stream cannot be captured: {reason}")]
    CannotCapture {
        /// The cause.
        reason: &'static str,
    },
    /// No capture began on the stream, or the capture has ended.
    #[error("no capture that is still under way began on this stream")]
    NotCapturing,
    /// The host would wait for captured work, which does not run.
    #[error(
        "operation not permitted when stream is capturing; do it before the capture or after it"
    )]
    Capturing,
    /// A captured stream would wait for work that is not part of its capture.
    #[error(
        "the stream is being captured and cannot depend on work outside its capture; wait for that before the capture begins"
    )]
    OutsideCapture,
    /// An event was last recorded in a capture, and has no meaning outside it.
    #[error("the event was last recorded in a capture; record it anew outside")]
    CapturedEvent,
    /// An op cannot be part of a graph, and was called on a captured stream. The capture goes on without it.
    #[error("operation not permitted when stream is capturing: {reason}")]
    Capture {
        /// The cause, and the remedy.
        reason: String,
    },
    /// A tensor was made in a capture whose graph has not been replayed since.
    #[error(
        "the tensor was made while a graph was captured and holds nothing yet; replay the graph first"
    )]
    NotReplayed,
    /// Under `SyncPolicy::Manual`, two uses of the same memory are not ordered. The source is a `Race`.
    #[error("a race")]
    Race,
    /// Shapes do not broadcast.
    #[error(
        "The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {dim}"
    )]
    BroadcastMismatch {
        /// The first tensor's size at `dim`.
        a: usize,
        /// The second tensor's size at `dim`.
        b: usize,
        /// The dimension, counted from the front of the broadcast shape.
        dim: usize,
    },
    /// A shape does not expand to another one.
    #[error("a tensor of shape {from:?} cannot be expanded to {to:?}")]
    ExpandMismatch {
        /// The tensor's shape.
        from: Vec<usize>,
        /// The requested shape.
        to: Vec<usize>,
    },
    /// An op cannot combine shapes.
    #[error("{reason}")]
    ShapeMismatch {
        /// The shapes, and the shapes that would be right.
        reason: String,
    },
    /// A shape has another number of elements than the tensor.
    #[error("shape '{shape:?}' is invalid for input of size {numel}{}", Negative(shape))]
    InvalidReshape {
        /// The requested shape.
        shape: Vec<isize>,
        /// The tensor's number of elements.
        numel: usize,
    },
    /// Strides do not allow a view of a shape.
    #[error(
        "shape {from:?} with strides {strides:?} cannot be seen as {to:?} without a copy; use reshape"
    )]
    ViewNeedsCopy {
        /// The tensor's shape.
        from: Vec<usize>,
        /// The tensor's strides, in elements.
        strides: Vec<isize>,
        /// The requested shape.
        to: Vec<usize>,
    },
    /// The tensor does not have this dimension.
    #[error("Dimension out of range: {dim} was asked for, but the tensor has {ndim} dimension(s)")]
    DimOutOfRange {
        /// The requested dimension.
        dim: isize,
        /// The tensor's number of dimensions.
        ndim: usize,
    },
    /// The dimension does not have this index.
    #[error("index {index}{} is out of bounds for dimension {dim} with size {size}", Length(*length))]
    IndexOutOfRange {
        /// The dimension.
        dim: usize,
        /// The first requested index.
        index: isize,
        /// Number of requested indices.
        length: usize,
        /// Size of the dimension.
        size: usize,
    },
    /// A shape has more elements or bytes than can be addressed.
    #[error("a tensor of shape {sizes:?} has more elements or bytes than can be addressed")]
    SizeOverflow {
        /// The shape.
        sizes: Vec<usize>,
    },
    /// An op does not support a dtype.
    #[error("it does not support {dtype}; convert with `to`")]
    UnsupportedDType {
        /// The dtype.
        dtype: DType,
    },
    /// A result does not fit the tensor that it is to be stored in.
    #[error("a result of {from} cannot be stored in a tensor of {to}")]
    CannotCast {
        /// The result's dtype.
        from: DType,
        /// The tensor's dtype.
        to: DType,
    },
    /// A tensor has another dtype than expected.
    #[error("the tensor holds {actual}, not {expected}")]
    DTypeMismatch {
        /// The expected dtype.
        expected: DType,
        /// The tensor's dtype.
        actual: DType,
    },
    /// Operands have two dtypes where one is needed.
    #[error(
        "both tensors must have the same dtype, but they are of {first} and {second}; convert one with `to`"
    )]
    OperandDTypes {
        /// The first operand's dtype.
        first: DType,
        /// The other operand's dtype.
        second: DType,
    },
    /// A value was read as a type that cannot hold it.
    #[error("the value {value} of {dtype} does not fit {asked}")]
    ValueDoesNotFit {
        /// The value.
        value: Scalar,
        /// The tensor's dtype.
        dtype: DType,
        /// The requested dtype.
        asked: DType,
    },
    /// `item` was called on a tensor that does not have exactly one element.
    #[error("a Tensor with {numel} elements cannot be converted to Scalar")]
    NotAScalar {
        /// The tensor's number of elements.
        numel: usize,
    },
    /// A tensor that is written to has several indices at one address.
    #[error(
        "more than one element of the written-to tensor refers to a single memory location; write to a `copy()` of it"
    )]
    OverlappingWrite,
    /// A result would be written over part of an operand.
    #[error(
        "an operand and the written-to tensor share some, but not all, of their memory; pass a `copy()` of the operand"
    )]
    OverlappingOperands,
    /// A layout reaches beyond its storage.
    #[error(
        "sizes {sizes:?} and strides {strides:?} at offset {offset} reach outside a storage of {bytes} bytes"
    )]
    OutOfStorage {
        /// The layout's shape.
        sizes: Vec<usize>,
        /// The layout's strides, in elements.
        strides: Vec<isize>,
        /// The layout's offset, in elements.
        offset: usize,
        /// Size of the storage, in bytes.
        bytes: usize,
    },
    /// The operands have more dimensions than a kernel supports.
    #[error(
        "the operands' memory has {ndim} dimensions that do not merge; at most {max} are supported: make them contiguous first"
    )]
    TooManyDims {
        /// Number of dimensions after merging.
        ndim: usize,
        /// The largest supported number.
        max: usize,
    },
    /// A tensor that is not in CPU memory was to be pinned.
    #[error("cannot pin a tensor on {device}: only CPU tensors can be pinned")]
    CannotPin {
        /// The tensor's device.
        device: Device,
    },
    /// A host op was called on host memory that other processes may write to at any time.
    #[error(
        "the tensor is in host memory that other processes may write to at any time; use a `copy()` of it, and \
         `copy_` to write to it"
    )]
    SharedHostMemory,
    /// Other processes cannot access a tensor.
    #[error("the tensor cannot be shared with another process: {reason}")]
    CannotShare {
        /// The cause, and the remedy.
        reason: String,
    },
    /// The process at the other end of a channel has ended, or has closed the channel, also before it completed the work
    /// that a received tensor depends on.
    #[error("the other process is gone: {reason}")]
    PeerGone {
        /// How the end of the process was noticed.
        reason: String,
    },
    /// The process at the other end of a channel did not do its part before the channel's timeout. The call can be
    /// made again.
    #[error("timed out: {reason}")]
    TimedOut {
        /// The awaited action.
        reason: String,
    },
    /// A gradient cannot be computed: an op has no rule, a graph was freed, or a tensor was changed after it was saved. The
    /// location of an op that fails in a backward pass is that of its forward op.
    #[error("{reason}")]
    Gradient {
        /// The cause, and what would help.
        reason: String,
    },
    /// The module of a parameter was moved, and has another tensor in the parameter's place.
    #[error(
        "the parameter `{name}` was moved, and its module has another tensor in its place; build the optimizer, \
         register hooks and run the forward pass after the move"
    )]
    Moved {
        /// The parameter's name in the module that was moved, such as `layers.0.weight`.
        name: Arc<str>,
    },
    /// A file could not be loaded or saved. The source is a `FileError`.
    #[error("a file could not be loaded or saved")]
    File,
    /// A state does not fit a module. The source is a `LoadError`.
    #[error("the state does not fit the module")]
    LoadState,
    /// `DataParallel` failed. The source is a `DataParallelError`.
    #[error("DataParallel failed")]
    DataParallel,
    /// A process group or its store failed. The source is a `GroupError` or a `StoreError`.
    #[error("the process group failed")]
    ProcessGroup,
    /// An argument is invalid for another reason.
    #[error("{reason}")]
    InvalidArgument {
        /// What is wrong, and what would be right.
        reason: String,
    },
}

impl ErrorKind {
    /// [`ErrorKind::DeviceMismatch`] of two operands.
    #[must_use]
    pub const fn device_mismatch(first: Device, second: Device) -> Self {
        Self::DeviceMismatch { first, second, parameter: String::new() }
    }

    /// An error of this kind in a call of `op` by the caller of the function that calls this.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn of(self, op: &'static str) -> Error {
        Error::new(self, Site::here(op))
    }

    /// Whether the error belongs to an earlier call, which its op and location name. The name of a later call
    /// does not replace them.
    pub(super) const fn is_of_earlier_call(&self) -> bool {
        matches!(
            self,
            Self::Surfaced { .. }
                | Self::IndexCheck { .. }
                | Self::Collective
                | Self::InvalidVariable
                | Self::Race
                | Self::PeerGone { .. }
        )
    }
}
