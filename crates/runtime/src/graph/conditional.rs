//! Control flow in graphs: bodies that a replay runs, or runs again, depending on a value on the
//! device.
//!
//! [`CapturingBody::begin`] captures three things: a kernel that reads the value and sets the
//! condition, the conditional node, and from then on the work of the body, on a stream of its own
//! (`warpline_stream`'s `body.rs`). At the end of a loop's body, the kernel reads the value again.
//!
//! # Invariants
//!
//! - **One log.** The body's work is recorded in the log of the enclosing capture, so a replay
//!   declares all storages that any body may use, whether or not the body runs.
//! - **Order.** Under `SyncPolicy::Auto` the node waits for all streams of the enclosing capture,
//!   because work of the body cannot wait for work outside. When a body ends, its node takes over
//!   its uses of storages, so later work that conflicts with them waits for the node.
//! - **Memory.** A body allocates memory in the order of the stream that its node is on. Memory that
//!   the program frees in a body may be reused in the same body if the storage was made there.
//!   Otherwise the next iteration would find foreign bytes, so the log keeps the storage until the
//!   outermost body has ended. All streams of a body share its free memory. If a stream other than
//!   the body's own uses new memory first, this use comes after the former use of the memory.
//! - **Marks.** A body may not run, so it never removes a mark. A run of a loop's body may read
//!   results of the run before, so at its end all results of the body depend on all its inputs.
//! - **Random ops** of a replay have fixed offsets, so iterations would repeat the numbers. A loop's
//!   body refuses random ops.
//! - A body that fails breaks the capture: the capture returns an error at its end.

use std::panic::Location;
use std::sync::Arc;

use warpline_cuda_sys_safe::{ConditionHandle, HostLaunch, set_graph_condition};
use warpline_stream::{BodyGuard, ConditionalKind, Stream};

use super::{GraphLog, check_device};
use crate::host::SharedPtr;
use crate::launch::{Grid, Kernel, TOKEN};
use crate::module::{Program, Source};
use crate::{DType, Error, ErrorKind, Layout, Result, Runtime, Site, Storage, SyncPolicy};
use crate::{Target, View, cuda_struct, hosts};

/// Number of bodies that may be nested in one another.
const MAX_DEPTH: usize = 32;

/// The kernel that sets a condition.
pub(crate) static CONDITION: Program = Program::new("condition", &[""], &["set"], |_, _| {
    Source::new().with::<SetCondition>().push(include_str!("condition.cu"))
})
.with_ptx(|_| Some(include_bytes!("../../ptx/condition.ptx.lzma")));

// SAFETY: the kernel and the CPU implementation read the bytes of the operand's only element, as
// many as the parameters say. Only `set` launches it, with a view of one element and its size.
static SET: Kernel<SetCondition, 1> =
    unsafe { Kernel::new(&CONDITION, "set", hosts!(any set_on_host)) };

cuda_struct! {
    /// A condition, and the size of the value in bytes.
    struct SetCondition {
        condition: u64,
        bytes: u64,
    }
}

/// The value that a condition is set from: a view of one element, which is true unless it is zero.
struct ConditionValue {
    storage: Storage,
    layout: Layout,
    dtype: DType,
}

impl ConditionValue {
    /// Checks that the view has one element of a supported dtype on the device of `stream`.
    #[track_caller]
    fn new(view: View<'_>, stream: &Stream, op: &'static str) -> Result<Self> {
        check_condition(view.dtype, view.numel(), op)?;
        let Some(device) = view.storage.cuda_device() else {
            let (first, second) = (crate::Device::cuda(stream.device_index()), crate::Device::Cpu);
            return Err(ErrorKind::device_mismatch(first, second).of(op));
        };
        check_device(op, device.index(), stream)?;
        view.check_inside(op)?;
        let (storage, layout) = (view.storage.clone(), view.layout.clone());
        Ok(Self { storage, layout, dtype: view.dtype })
    }

    /// Captures the kernel that sets the condition from the value.
    #[track_caller]
    fn set(&self, target: Target<'_>, condition: ConditionHandle, site: Site) -> Result<()> {
        let Self { storage, layout, dtype } = self;
        let view = View { storage, layout, dtype: *dtype };
        let bytes = dtype.size() as u64;
        let params = SetCondition { condition: condition.raw(), bytes };
        SET.launch_at(target, site, &[view.read()], &params, Grid::new([1; 3], 1))
    }
}

/// Returns an error unless a condition of this dtype and number of elements is supported: one bool
/// or integer.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is neither bool nor an integer.
/// - [`ErrorKind::InvalidArgument`] if the number of elements is not 1.
#[track_caller]
pub fn check_condition(dtype: DType, numel: usize, op: &'static str) -> Result<()> {
    if dtype.is_float() {
        return Err(ErrorKind::UnsupportedDType { dtype }.of(op));
    }
    if numel != 1 {
        let reason = format!("the condition must have one element, but it has {numel}");
        return Err(Error::invalid(op, reason));
    }
    Ok(())
}

/// The capture of a conditional node's body in progress. Dropping it without [`CapturingBody::end`]
/// breaks the enclosing capture, which then returns an error at its end.
pub struct CapturingBody {
    runtime: Runtime,
    /// `None` after the end.
    guard: Option<BodyGuard>,
    log: Arc<GraphLog>,
    /// The condition, its value and the op's call, for the test after each run of a loop's body.
    again: Option<(ConditionHandle, ConditionValue)>,
    site: Site,
}

impl CapturingBody {
    /// Adds a conditional node to the capture of `stream`, with the value of `condition` at this
    /// point, and captures work on [`CapturingBody::stream`] into the node's body. In a loop, the
    /// value is read again after each run of the body. `op` is the name of the op for its users.
    ///
    /// # Errors
    /// - The errors of [`check_condition`].
    /// - [`ErrorKind::DeviceMismatch`] if the condition is not on the device of `stream`.
    /// - [`ErrorKind::RuntimeMismatch`] if condition or stream belongs to another runtime.
    /// - [`ErrorKind::Capture`] if no graph captures the stream, if another body is being captured
    ///   into the same graph, or if bodies are nested more than 32 deep.
    /// - [`ErrorKind::Driver`] if a driver call fails. The source is
    ///   [`MissingSymbol`](warpline_cuda_sys_safe::DriverError::MissingSymbol) if the driver is
    ///   older than CUDA 12.3.
    /// - The errors of [`Kernel::launch`].
    #[track_caller]
    pub fn begin(
        runtime: &Runtime,
        stream: &Stream,
        condition: View<'_>,
        kind: ConditionalKind,
        op: &'static str,
    ) -> Result<Self> {
        let site = Site { op, location: Location::caller() };
        runtime.check_stream(stream, op)?;
        let value = ConditionValue::new(condition, stream, op)?;
        let (Some(captured), Some(log)) = (stream.captured(), GraphLog::of(stream)) else {
            return Err(Error::capture(op, "the stream is not captured by a graph"));
        };
        if captured.has_open_body() {
            let reason = "another body is being captured into the same graph; end it first";
            return Err(Error::capture(op, reason));
        }
        if log.depth() >= MAX_DEPTH {
            let reason = format!("bodies are nested more than {MAX_DEPTH} deep");
            return Err(Error::capture(op, reason));
        }
        let device = runtime.device(stream.device_index())?;
        let named = |error: Error| error.of(op).at(site.location);
        let body = device.device().exclusive_stream(0).map_err(named)?;
        let handle = captured.create_condition(TOKEN).map_err(named)?;
        let begin = || {
            value.set(Target::Cuda(runtime, device, stream), handle, site)?;
            if runtime.sync_policy() == SyncPolicy::Auto {
                captured.wait_for_capture().map_err(named)?;
            }
            captured.begin_body(stream, handle, kind, &body, TOKEN).map_err(named)
        };
        // A condition without a node makes the graph invalid.
        let guard = begin().inspect_err(|_| log.break_off(op))?;
        let home = captured.home().unwrap_or(stream).id();
        log.begin_body(&guard, home, kind);
        let again = (kind == ConditionalKind::While).then_some((handle, value));
        Ok(Self { runtime: runtime.clone(), guard: Some(guard), log, again, site })
    }

    /// Returns the stream on which the body is captured.
    ///
    /// # Errors
    /// Never fails before the end.
    #[track_caller]
    pub fn stream(&self) -> Result<&Stream> {
        match &self.guard {
            Some(guard) => Ok(guard.stream()),
            None => Err(ErrorKind::NotCapturing.of(self.site.op)),
        }
    }

    /// Ends the body. Under [`SyncPolicy::Auto`] the program need not wait for streams that joined
    /// the body.
    ///
    /// # Errors
    /// - [`ErrorKind::NotCapturing`] if the enclosing capture has ended.
    /// - [`ErrorKind::Driver`] if the body's capture was invalidated, and under
    ///   [`SyncPolicy::Manual`] if the program did not wait for a stream that joined the body.
    /// - The errors of [`Kernel::launch`].
    #[track_caller]
    pub fn end(mut self) -> Result<()> {
        let Some(guard) = self.guard.take() else { return Ok(()) };
        let set = self.set_again(guard.stream());
        let join = self.runtime.sync_policy() == SyncPolicy::Auto;
        let ended = self.log.end_body(guard, join);
        let (op, location) = (self.site.op, self.site.location);
        let ended = set.and(ended.map_err(|error| error.of(op).at(location)));
        ended.inspect_err(|_| self.log.break_off(op))
    }

    /// At the end of a loop's body, captures the kernel that sets the condition.
    #[track_caller]
    fn set_again(&self, stream: &Stream) -> Result<()> {
        let Some((condition, value)) = &self.again else { return Ok(()) };
        let device = self.runtime.device(stream.device_index())?;
        value.set(Target::Cuda(&self.runtime, device, stream), *condition, self.site)
    }
}

impl Drop for CapturingBody {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.log.break_off(self.site.op);
            let _ = self.log.end_body(guard, false);
        }
    }
}

impl std::fmt::Debug for CapturingBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapturingBody").field("guard", &self.guard).finish_non_exhaustive()
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operand has as many
/// bytes as the parameters say.
unsafe fn set_on_host(launch: &HostLaunch<'_>, p: &SetCondition) {
    let value = SharedPtr::<u8>::operand(launch, 0);
    // SAFETY: the caller guarantees that the operand has these bytes and is declared as read.
    let any = (0..p.bytes as isize).any(|i| unsafe { value.read(i) } != 0);
    set_graph_condition(p.condition, u32::from(any));
}
