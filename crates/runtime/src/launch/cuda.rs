//! Runs an op on a stream: waits for conflicting uses of its operands, then enqueues the launch.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline_cuda_sys_safe::{DeviceCode, DevicePtr, DriverError, Footprint, Launch, StreamHandle};
use warpline_stream::{OpNumber, Stream};

use super::ordered::{check_runtime, in_order};
use super::result_marks::ResultMarks;
use super::{Call, Code, Report, TOKEN, TrackedCommunicator, distinct};
use crate::completion::PendingCollective;
use crate::graph::GraphLog;
use crate::race::Touch;
use crate::storage::Dependency;
use crate::{CudaDevice, Device, Error, ErrorKind, Operand, Result, Site, Storage, View};

#[track_caller]
pub(super) fn run(device: &CudaDevice, stream: &Stream, call: &Call<'_>) -> Result<()> {
    // Streams of different runtimes cannot be ordered with each other, and a kernel is loaded for
    // one device.
    if device.device().devices_id() != stream.devices_id() {
        return Err(ErrorKind::RuntimeMismatch.of(call.op));
    }
    if stream.device_index() != device.index() {
        return Err(other_device(call.op, device.index(), stream.device_index()));
    }
    if let Code::Kernel { grid: [blocks, ..], .. } = call.code
        && blocks > i32::MAX as u32
    {
        let reason = "there are more elements than one kernel launch covers: a GPU takes fewer than 2³¹ blocks";
        return Err(Error::invalid(call.op, reason));
    }
    let site = call.site();
    if matches!(call.code, Code::Collectives(..))
        && stream.captured().is_some_and(|captured| captured.home().is_some())
    {
        let reason = "the body of a conditional node cannot hold collectives; call them outside";
        return Err(Error::capture(call.op, reason).at(site.location));
    }
    let function = |kernel| {
        device.function(kernel).map_err(|e| match e.driver_error() {
            Some(source) if source.loses_device() => located(source.clone().into(), stream, site),
            _ => e.at(call.location),
        })
    };
    let code = match call.code {
        Code::Kernel { kernel, grid, threads } => {
            let ((function, waits), block) = (function(kernel)?, [threads, 1, 1]);
            DeviceCode::Kernel { function, grid, block, shared_bytes: 0, waits }
        }
        Code::Library(enqueue) => DeviceCode::Library(enqueue),
        Code::Collectives(enqueue, _) => DeviceCode::Collective(enqueue),
    };
    let mut footprints: SmallVec<[Footprint<'_>; 4]> = SmallVec::new();
    for operand in call.operands {
        let (ptr, memory_device) = accessible_address(call.op, device.index(), &operand.view)?;
        footprints.push(footprint(ptr, memory_device, operand));
    }
    let result_marks = ResultMarks::default();
    enqueue_marked(stream, call.operands.iter().copied(), site, &result_marks, |h| {
        let params = match call.checks_indices {
            true => {
                let (params, own) = Report::on_stream(call, stream)?;
                result_marks.own.borrow_mut().push(own);
                Some(params)
            }
            false => None,
        };
        let launch = Launch {
            op: call.op,
            code,
            host: call.host,
            footprints: &footprints,
            params: params.as_deref().unwrap_or(call.params),
            location: call.location,
        };
        if let Code::Collectives(_, TrackedCommunicator { comm, replays, .. }) = call.code
            && let Some(log) = GraphLog::of(stream)
        {
            log.keep_communicator(comm, call.op, replays);
        }
        // SAFETY: the handle is the stream's, and the stream belongs to this driver and device. The
        // footprints lie in live storages. Their allocators know of this stream, unless the program
        // orders the reuse of memory (`SyncPolicy::Manual`). The caller of `launch::run` guarantees
        // that the code accesses only the operands, as declared.
        unsafe { device.driver().launch(h, &launch) }
            .inspect_err(|_| result_marks.refused(stream))?;
        if let Code::Collectives(_, TrackedCommunicator { number: Some(number), .. }) = call.code {
            let pending = PendingCollective::new(number, call.op, call.location);
            // Each replay of a captured collective has a number of its own.
            let dependency = match GraphLog::of(stream) {
                None => Dependency::Collective(pending),
                Some(_) => Dependency::CapturedCollective(pending),
            };
            result_marks.own.borrow_mut().push(dependency);
        }
        let operands = call.operands.iter().map(|o| (o.view.dtype.name(), o.view.sizes()));
        stream.note_launch(site, operands);
        Ok(())
    })
    .map_err(|e| describe(e, stream, call))?;
    Ok(())
}

/// Returns the footprint of an operand. Its first element is at `ptr` in the memory of `device`.
fn footprint<'a>(ptr: DevicePtr, device: usize, operand: &Operand<'a>) -> Footprint<'a> {
    let Operand { view, access } = operand;
    let (sizes, strides) = (view.sizes(), view.strides());
    Footprint { ptr, device, item_size: view.dtype.size(), sizes, strides, access: *access }
}

/// Returns the address of a view's first element, and its device. Fails if `device` cannot access
/// that memory.
#[track_caller]
fn accessible_address(
    op: &'static str,
    device: usize,
    view: &View<'_>,
) -> Result<(DevicePtr, usize)> {
    let ptr = address(op, view)?;
    let Some(memory_device) = view.storage.cuda_device() else {
        return Err(ErrorKind::device_mismatch(Device::Cuda(None), Device::Cpu).of(op));
    };
    // Without peer access, a kernel that accesses this address would lose its own device.
    let memory_device = memory_device.index();
    let runtime = view.storage.runtime();
    if memory_device != device && !runtime.peer_access_enabled(device, memory_device) {
        return Err(other_device(op, device, memory_device));
    }
    Ok((ptr, memory_device))
}

/// Returns the address of a view's first element in device memory.
///
/// # Errors
/// [`ErrorKind::DeviceMismatch`] if the view is in host memory.
#[track_caller]
pub fn address(op: &'static str, view: &View<'_>) -> Result<DevicePtr> {
    let Some(base) = view.storage.device_ptr() else {
        return Err(ErrorKind::device_mismatch(Device::Cuda(None), Device::Cpu).of(op));
    };
    // SAFETY: a layout with elements lies inside its storage, and so does its first element.
    // Without elements the address may wrap, but no access is made.
    Ok(unsafe { base.offset(view.layout.offset().wrapping_mul(view.dtype.size()) as i64) })
}

#[cold]
#[track_caller]
fn other_device(op: &'static str, first: usize, second: usize) -> Error {
    ErrorKind::device_mismatch(Device::cuda(first), Device::cuda(second)).of(op)
}

/// Returns the storages of these accesses, each once, in lock order.
fn storages<'a>(touches: &[Touch<'a>]) -> SmallVec<[(&'a Storage, bool); 4]> {
    distinct(touches.iter().map(|t| (t.storage, t.access.writes())))
}

/// Fails for storages that were made in a capture and have no contents yet.
#[track_caller]
fn check_replayed(storages: &[(&Storage, bool)], captured: bool, site: Site) -> Result<()> {
    for (storage, _) in storages {
        storage.check_replayed(captured, site.op)?;
    }
    Ok(())
}

/// Enqueues work with these arguments after conflicting uses of their storages. Returns the
/// operation's number.
#[track_caller]
pub(crate) fn enqueue<'a, F>(
    stream: &Stream,
    arguments: impl Iterator<Item = impl Into<Touch<'a>>>,
    site: Site,
    f: F,
) -> Result<OpNumber>
where
    F: FnOnce(StreamHandle) -> Result<(), DriverError>,
{
    enqueue_marked(stream, arguments, site, &ResultMarks::default(), f)
}

/// Enqueues work as [`enqueue`] does, and marks its results with its own launches.
#[track_caller]
fn enqueue_marked<'a, F>(
    stream: &Stream,
    arguments: impl Iterator<Item = impl Into<Touch<'a>>>,
    site: Site,
    result_marks: &ResultMarks<'_>,
    f: F,
) -> Result<OpNumber>
where
    F: FnOnce(StreamHandle) -> Result<(), DriverError>,
{
    // Query once whether the stream is captured. If a capture begins or ends before the work is
    // enqueued, the stream rejects the work.
    let captured = stream.captured();
    let mut touches: SmallVec<[Touch<'a>; 4]> = SmallVec::new();
    // A loop is faster than `collect`.
    arguments.for_each(|argument| touches.push(argument.into()));
    let distinct = storages(&touches);
    check_replayed(&distinct, captured.is_some(), site)?;
    if let Some(captured) = captured {
        check_runtime(stream, &distinct, site.op)?;
        // `copy_bytes` has checked this before, but the capture may have begun since then.
        if distinct.iter().any(|(s, _)| s.cuda_device().is_none() && !s.is_pinned()) {
            return Err(pageable_in_capture(site.op));
        }
        return GraphLog::enqueue(&captured, &distinct, &touches, site, result_marks, f);
    }
    enqueue_now(stream, &distinct, &touches, site, result_marks, f)
}

/// Creates the error for a copy from or to pageable memory in a capture.
#[track_caller]
pub(super) fn pageable_in_capture(op: &'static str) -> Error {
    Error::capture(
        op,
        "one end of the copy is pageable host memory; pin that memory (`pin_memory`)",
    )
}

/// Enqueues work after conflicting uses of its storages. Fails if the stream is captured. `distinct`
/// has each storage once, in lock order.
#[track_caller]
pub(super) fn enqueue_now<F>(
    stream: &Stream,
    distinct: &[(&Storage, bool)],
    touches: &[Touch<'_>],
    site: Site,
    result_marks: &ResultMarks<'_>,
    f: F,
) -> Result<OpNumber>
where
    F: FnOnce(StreamHandle) -> Result<(), DriverError>,
{
    let submit = |handle| {
        refuse_captured(stream, site)?;
        f(handle).map_err(Error::from)
    };
    in_order(stream, distinct, touches, site, result_marks, || Ok(stream.submit(TOKEN, submit)?.1))
}

/// Fails if the stream is captured. Called inside the closure that submits work which cannot be
/// captured, because another thread may have begun a capture since an earlier check.
pub(super) fn refuse_captured(stream: &Stream, site: Site) -> Result<(), Error> {
    if stream.is_capturing() {
        return Err(Error::new(ErrorKind::Capturing, site));
    }
    Ok(())
}

/// Enqueues work that cannot be captured, after conflicting uses of its storages. The work may
/// consist of several operations, and `f` may wait for it. `f` must fail if the stream is captured,
/// and otherwise returns an operation that completes after all of the work.
#[track_caller]
pub(super) fn enqueue_with<'a, F>(
    stream: &Stream,
    arguments: impl Iterator<Item = impl Into<Touch<'a>>>,
    site: Site,
    f: F,
) -> Result<OpNumber>
where
    F: FnOnce() -> Result<OpNumber>,
{
    let touches: SmallVec<[Touch<'a>; 4]> = arguments.map(Into::into).collect();
    let distinct = storages(&touches);
    check_replayed(&distinct, false, site)?;
    in_order(stream, &distinct, &touches, site, &ResultMarks::default(), f)
}

/// Adds the op, its operands and its location to the error of a failed launch.
#[cold]
fn describe(error: Error, stream: &Stream, call: &Call<'_>) -> Error {
    let site = call.site();
    let error = located(error, stream, site);
    let (ErrorKind::Driver, Some(source)) = (error.kind(), error.driver_error()) else {
        return error;
    };
    let source = source.clone().with_detail(|| {
        let operands: Vec<String> = call
            .operands
            .iter()
            .map(|o| format!("{}{:?}", o.view.dtype.name(), o.view.sizes()))
            .collect();
        format!("{}({})", call.op, operands.join(", "))
    });
    Error::driver(error.op(), source).at(site.location)
}

/// Gives the error of a wait the location of the call that waits.
#[cold]
pub(super) fn waited_at(error: Error, location: &'static Location<'static>) -> Error {
    let source = error.driver_error().map(|source| Arc::new(source.clone().at(location)));
    match source {
        Some(source) => error.with_source(source).at(location),
        None => error.at(location),
    }
}

/// Adds the op and its location to the error of a failed driver call. If the device was lost before
/// the call, lists the launches that may have lost it; errors of waits list them already.
#[cold]
pub(super) fn located(error: Error, stream: &Stream, site: Site) -> Error {
    let (ErrorKind::Driver | ErrorKind::NotStarted { .. }, Some(source)) =
        (error.kind(), error.driver_error())
    else {
        return error;
    };
    // Only the error of a stream has no op yet; the error of an allocation has one.
    if error.op().is_empty() && source.loses_device() {
        let surfaced = stream.surfaced(source.clone());
        if let ErrorKind::Surfaced { pending } = surfaced.kind() {
            let pending = Arc::clone(pending);
            let error = surfaced.with_kind(ErrorKind::NotStarted { pending });
            return error.of(site.op).at(site.location);
        }
    }
    Error::driver(site.op, source.clone().at(site.location)).at(site.location)
}
