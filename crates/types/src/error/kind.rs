//! Error kinds, with the values that a caller may want to match.

use std::sync::Arc;

use super::Error;
use super::words::{DevicePair, NegativeSizes, RangeLength};
use crate::{DType, Device, PendingLaunches, Scalar, Site};

/// The kind of an [`Error`], with shapes, dtypes, indices or devices.
///
/// Some kinds have their details in the error's source, which [`Error::find`] returns by type.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A driver call failed. The source is a [`DriverError`](warpline_cuda_sys_safe::DriverError).
    #[error("a driver call failed")]
    Driver,
    /// A wait, a query or a launch reported a driver failure. Any launch that was not known to be complete may have
    /// caused the failure. If the failure lost the device, launches on other streams may have caused it, too. The
    /// source is a [`DriverError`](warpline_cuda_sys_safe::DriverError).
    #[error("{}", pending.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Surfaced {
        /// The launches that may have failed. Those of the stream of the failed call come first.
        pending: Arc<[PendingLaunches]>,
    },
    /// An op was not started because earlier work had failed. The source is a
    /// [`DriverError`](warpline_cuda_sys_safe::DriverError).
    #[error("{}", pending.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    NotStarted {
        /// The launches that may have failed.
        pending: Arc<[PendingLaunches]>,
    },
    /// An op such as `index_select`, `gather` or `embedding` met an index that is out of range.
    ///
    /// On the CPU the op returns this error. On a GPU each host read of the result, or of a tensor computed from the
    /// result, returns this error until the result is overwritten. So does each launch that reads the result, once the
    /// failure is known. `synchronize` (of a device, stream or event) reports the error once, to the thread that
    /// launched the op, or to any thread if that thread has ended. The device stays usable. The error's op and location
    /// are those of the launch.
    #[error("index {index} is out of range for dimension {dim} with size {size}")]
    IndexCheck {
        /// The index that is out of range; one of them if there are several.
        index: i64,
        /// The indexed dimension.
        dim: usize,
        /// Size of that dimension.
        size: usize,
    },
    /// A collective failed because another rank is gone or late, so its results cannot be used.
    ///
    /// Each host read of a result, or of a tensor computed from a result, returns this error until the result is
    /// overwritten. So does each launch that reads a result, once the failure is known. The source is the error of the
    /// process group.
    #[error("the results cannot be used")]
    Collective,
    /// An op has no code for this GPU: no code was compiled ahead of time, and none can be compiled at run time.
    #[error("there is no GPU code: {reason}")]
    NoGpuCode {
        /// The cause and the remedy.
        reason: String,
    },
    /// Memory could not be allocated. The source is an `AllocError`.
    #[error("allocation failed")]
    Alloc,
    /// The operating system refused a call, such as a write to a file or the start of a process. The source is a
    /// [`std::io::Error`].
    #[error("a call of the operating system failed")]
    Io,
    /// An environment variable has an invalid value. Every call that needs a device, or asks for the number of devices,
    /// returns this error. The source is an [`InvalidVariable`](warpline_cuda_sys_safe::InvalidVariable).
    #[error("an environment variable has an invalid value")]
    InvalidVariable,
    /// A GPU was requested, but none can be used.
    #[error("CUDA is not available. {hint}. The cause: {reason}")]
    CudaUnavailable {
        /// The drivers that were tried, each with its failure.
        reason: String,
        /// The remedy.
        hint: &'static str,
    },
    /// A string is not the name of a device.
    #[error("invalid device string: '{text}': {reason}")]
    InvalidDeviceString {
        /// The string.
        text: String,
        /// The rule that the string breaks.
        reason: &'static str,
    },
    /// There is no device with this index.
    #[error(
        "invalid device ordinal: cuda:{index} was requested, but {count} device(s) are visible"
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
        DevicePair(*first, *second, parameter)
    )]
    DeviceMismatch {
        /// Device of the first operand, or of the module's input if `parameter` is not empty.
        first: Device,
        /// Device of the other operand.
        second: Device,
        /// Name of the module's parameter that is the other operand; empty if an op found the mismatch.
        parameter: String,
    },
    /// A stream or event is on a different device than the call needs.
    #[error("{object} is on cuda:{found}, but must be on cuda:{expected}")]
    WrongDevice {
        /// The object, such as `the stream`.
        object: &'static str,
        /// Index of the device that the call needs.
        expected: usize,
        /// Index of the device that the object is on.
        found: usize,
    },
    /// Tensors, streams or events of different runtimes were used together.
    #[error(
        "the tensors, streams or events belong to different runtimes and cannot be used together"
    )]
    RuntimeMismatch,
    /// An event has never been recorded.
    #[error("both events must be recorded first; call `record`")]
    EventNotRecorded,
    /// An event has no timing.
    #[error(
        "both events need timing; create them with `Event::new(EventFlags::new().enable_timing(true))`"
    )]
    NoTiming,
    /// An event has not completed yet.
    #[error("both events must be complete; call `synchronize` first")]
    EventNotFinished,
    /// The thread is ending, and its current device and streams are gone.
    #[error("this thread is ending and has no current device or stream any more")]
    ThreadEnding,
    /// A stream cannot be captured.
    #[error("the stream cannot be captured: {reason}")]
    CannotCapture {
        /// The cause.
        reason: &'static str,
    },
    /// No capture that began on this stream is in progress, or the stream is a twin whose capture has ended.
    #[error("no capture that began on this stream is in progress")]
    NotCapturing,
    /// The host would wait for captured work, which does not run during the capture.
    #[error(
        "operation not permitted when stream is capturing; call it before or after the capture"
    )]
    Capturing,
    /// A captured stream would wait for work that is not part of its capture.
    #[error(
        "the stream is being captured and cannot depend on work outside its capture; wait for that work before the \
         capture begins"
    )]
    OutsideCapture,
    /// An event was last recorded in a capture, so it cannot be used outside the capture.
    #[error("the event was last recorded in a capture; record it again outside the capture")]
    CapturedEvent,
    /// An op that cannot be part of a graph was called on a stream that is being captured. The capture continues
    /// without the op.
    #[error("operation not permitted when stream is capturing: {reason}")]
    Capture {
        /// The cause and the remedy.
        reason: String,
    },
    /// A tensor was created in a capture whose graph has not been replayed yet.
    #[error(
        "the tensor was created in a capture and has no data yet; replay the graph first, make this stream wait for a stream of the capture, or compute the tensor again if the capture failed"
    )]
    NotReplayed,
    /// Two uses of the same memory are not ordered, under `SyncPolicy::Manual`. The source is a `Race`.
    #[error("two uses of the same memory are not ordered")]
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
    /// A tensor cannot be expanded to the requested shape.
    #[error("a tensor of shape {from:?} cannot be expanded to {to:?}")]
    ExpandMismatch {
        /// The tensor's shape.
        from: Vec<usize>,
        /// The requested shape.
        to: Vec<usize>,
    },
    /// The shapes of an op's operands do not fit each other.
    #[error("{reason}")]
    ShapeMismatch {
        /// The shapes and the expected shapes.
        reason: String,
    },
    /// The requested shape does not have the number of elements of the tensor, or of the dimension that is split.
    #[error("shape '{shape:?}' is invalid for input of size {numel}{}", NegativeSizes(shape))]
    InvalidReshape {
        /// The requested shape.
        shape: Vec<isize>,
        /// The number of elements of the tensor, or of the dimension that is split.
        numel: usize,
    },
    /// The tensor's strides do not allow a view of the requested shape.
    #[error(
        "shape {from:?} with strides {strides:?} cannot be viewed as {to:?} without a copy; use reshape"
    )]
    ViewNeedsCopy {
        /// The tensor's shape.
        from: Vec<usize>,
        /// The tensor's strides, in elements.
        strides: Vec<isize>,
        /// The requested shape.
        to: Vec<usize>,
    },
    /// A dimension is out of range.
    #[error("Dimension out of range: {dim} was requested, but the tensor has {ndim} dimension(s)")]
    DimOutOfRange {
        /// The requested dimension.
        dim: isize,
        /// The tensor's number of dimensions.
        ndim: usize,
    },
    /// An index, or a range of indices, is out of bounds for its dimension.
    #[error("index {index}{} is out of bounds for dimension {dim} with size {size}", RangeLength(*length))]
    IndexOutOfRange {
        /// The dimension.
        dim: usize,
        /// The index, or the first index of the range.
        index: isize,
        /// Number of indices in the range; 1 for a single index.
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
    #[error("{dtype} is not supported; convert with `to`")]
    UnsupportedDType {
        /// The dtype.
        dtype: DType,
    },
    /// A result's dtype cannot be converted to the dtype of the tensor that the op writes to, or a float number is an
    /// operand of an op that computes in integers.
    #[error("a result of dtype {from} cannot be stored in a tensor of dtype {to}")]
    CannotCast {
        /// The dtype of the result, or `float32` for a number.
        from: DType,
        /// The dtype of the tensor, or of the computation.
        to: DType,
    },
    /// A tensor does not have the expected dtype.
    #[error(
        "{operand} must have dtype {expected}, but has dtype {actual}; {} with `to`",
        if *expected == DType::Bool { "compare, or convert" } else { "convert" }
    )]
    DTypeMismatch {
        /// The tensor, such as `the index`.
        operand: &'static str,
        /// The expected dtype.
        expected: DType,
        /// The tensor's dtype.
        actual: DType,
    },
    /// Operands that must have the same dtype have different dtypes.
    #[error(
        "{operands} must have the same dtype, but they have {first} and {second}; convert one with `to`"
    )]
    OperandDTypes {
        /// The two operands, such as `input and weight`.
        operands: &'static str,
        /// The first operand's dtype.
        first: DType,
        /// The other operand's dtype.
        second: DType,
    },
    /// The requested type cannot hold the value of an element.
    #[error("the value {value} of {dtype} does not fit {asked}")]
    ValueDoesNotFit {
        /// The value.
        value: Scalar,
        /// The tensor's dtype.
        dtype: DType,
        /// The requested dtype.
        asked: DType,
    },
    /// A tensor that is read as one number does not have exactly one element.
    #[error("a Tensor with {numel} elements cannot be converted to Scalar")]
    NotAScalar {
        /// The tensor's number of elements.
        numel: usize,
    },
    /// Several elements of a written-to tensor share one address.
    #[error(
        "more than one element of the written-to tensor refers to a single memory location; write to a `copy()` of the \
         tensor"
    )]
    OverlappingWrite,
    /// An operand and the written-to tensor share memory. Ops that work in place allow an operand that has exactly the
    /// elements of the written-to tensor.
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
        "the operands have {ndim} dimensions after merging, but at most {max} are supported; make the operands \
         contiguous first"
    )]
    TooManyDims {
        /// Number of dimensions after merging.
        ndim: usize,
        /// The largest supported number.
        max: usize,
    },
    /// A tensor that is not in CPU memory cannot be pinned.
    #[error("cannot pin a tensor on {device}: only CPU tensors can be pinned")]
    CannotPin {
        /// The tensor's device.
        device: Device,
    },
    /// A host op was called on host memory that other processes may write to at any time.
    #[error(
        "the tensor is in host memory that other processes may write to at any time; read a `copy()` of the tensor, \
         and write with `copy_`"
    )]
    SharedHostMemory,
    /// A tensor cannot be shared with another process.
    #[error("the tensor cannot be shared with another process: {reason}")]
    CannotShare {
        /// The cause and the remedy.
        reason: String,
    },
    /// The peer process of a channel has ended or closed the channel. Reads of a received tensor also fail with this
    /// kind, if the peer ended before it completed the work that the tensor depends on.
    #[error("the other process is gone: {reason}")]
    PeerGone {
        /// The event that revealed the end of the peer.
        reason: String,
    },
    /// The peer process of a channel did not respond within the channel's timeout, or earlier work of this process on
    /// the received memory was not complete by then. The call can be repeated.
    #[error("timed out: {reason}")]
    TimedOut {
        /// The action that timed out.
        reason: String,
    },
    /// Autograd cannot compute a gradient, or refuses a call: for example, an op has no gradient, the graph was freed,
    /// a saved tensor was modified, or an in-place op would overwrite a leaf. The location of an error in a backward
    /// pass is that of the forward op.
    #[error("{reason}")]
    Gradient {
        /// The cause and the remedy.
        reason: String,
    },
    /// A parameter was used after its module was moved, which replaced the parameter by another tensor.
    #[error(
        "the parameter `{name}` was moved: its module, or a clone of the module, now has another tensor with this name; \
         build the optimizer, register hooks and run the forward pass of the moved module after the move. Move modules \
         that share the parameter in the same way, each by a call of `to`, or give them parameters of their own"
    )]
    Moved {
        /// Name of the parameter in the moved module, such as `layers.0.weight`.
        name: Arc<str>,
    },
    /// A file could not be loaded or saved. The source is a `FileError`.
    #[error("a file could not be loaded or saved")]
    File,
    /// A state could not be loaded into a module. The source is a `LoadError`.
    #[error("the state does not fit the module")]
    LoadState,
    /// `DataParallel` failed. The source is a `DataParallelError`.
    #[error("DataParallel failed")]
    DataParallel,
    /// A process group, its store or `DistributedDataParallel` failed. The source is a `GroupError`, a `StoreError` or
    /// a `DdpError`.
    #[error("the process group failed")]
    ProcessGroup,
    /// An argument is invalid for a reason that no other kind names.
    #[error("{reason}")]
    InvalidArgument {
        /// The rule that the argument breaks.
        reason: String,
    },
}

impl ErrorKind {
    /// Creates [`ErrorKind::DeviceMismatch`] of two operands.
    #[must_use]
    pub const fn device_mismatch(first: Device, second: Device) -> Self {
        Self::DeviceMismatch { first, second, parameter: String::new() }
    }

    /// Creates an error of this kind in a call of `op`, with the location that [`Site::here`] returns.
    #[cold]
    #[must_use]
    #[track_caller]
    pub fn of(self, op: &'static str) -> Error {
        Error::new(self, Site::here(op))
    }

    /// Returns `true` for errors that belong to an earlier call. Later calls do not replace their op and location.
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
