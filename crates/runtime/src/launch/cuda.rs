//! Runs an op on a stream: orders it after the uses it conflicts with, then enqueues it.

use std::sync::Arc;

use smallvec::SmallVec;
use warpline_cuda_sys_safe::{DeviceCode, DevicePtr, DriverError, Footprint, Launch, StreamHandle};
use warpline_stream::{OpNumber, Stream};

use super::marks::Marking;
use super::ordered::{check_world, in_order};
use super::{Call, Collective, GpuCode, Report, TOKEN, distinct};
use crate::completion::Pending;
use crate::graph::Log;
use crate::race::Touch;
use crate::storage::Source;
use crate::{CudaDevice, Device, Error, ErrorKind, Operand, Result, Site, Storage, View};

#[track_caller]
pub(super) fn run(device: &CudaDevice, stream: &Stream, call: &Call<'_>) -> Result<()> {
    // Streams of two worlds cannot be ordered, and a kernel means nothing to another device's stream.
    if device.device().devices_id() != stream.devices_id() {
        return Err(ErrorKind::RuntimeMismatch.of(call.op));
    }
    if stream.device_index() != device.index() {
        return Err(other_device(call.op, device.index(), stream.device_index()));
    }
    if let GpuCode::Kernel { grid: [blocks, ..], .. } = call.code.0
        && blocks > i32::MAX as u32
    {
        let reason = "there are more elements than one kernel launch covers: a GPU takes fewer than 2³¹ blocks";
        return Err(Error::invalid(call.op, reason));
    }
    let site = Site { op: call.op, location: call.location };
    let function = |kernel| {
        device.function(kernel).map_err(|e| match e.driver_error() {
            Some(source) if source.loses_device() => located(source.clone().into(), stream, site),
            _ => e.at(call.location),
        })
    };
    let code = match call.code.0 {
        GpuCode::Kernel { kernel, grid, threads } => {
            let (function, block) = (function(kernel)?, [threads, 1, 1]);
            DeviceCode::Kernel { function, grid, block, shared_bytes: 0 }
        }
        GpuCode::Library(f) => DeviceCode::Library(f),
        GpuCode::Collective(Collective { enqueue, .. }) => DeviceCode::Collective(enqueue),
    };
    let mut footprints: SmallVec<[Footprint<'_>; 4]> = SmallVec::new();
    for operand in call.operands {
        let (ptr, owner) = place(call.op, device.index(), &operand.view)?;
        footprints.push(footprint(ptr, owner, operand));
    }
    let marking = Marking::default();
    enqueue_marked(stream, call.operands.iter().copied(), site, &marking, |h| {
        let params = match call.checks_indices {
            true => {
                let (params, own) = Report::on_stream(call, stream)?;
                marking.own.borrow_mut().push(own);
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
        if let GpuCode::Collective(Collective { comm, replays, .. }) = call.code.0
            && let Some(log) = Log::of(stream)
        {
            log.keep_communicator(comm, call.op, replays);
        }
        // SAFETY: the handle is the stream's own, of this driver and device; the footprints lie in live storages, whose
        // allocators have been told of this stream; the caller of `launch::run` vouches that the
        // code does no more than declared.
        unsafe { device.driver().launch(h, &launch) }.inspect_err(|_| marking.refused(stream))?;
        if let GpuCode::Collective(Collective { number: Some(number), .. }) = call.code.0 {
            let pending = Pending::new(number, call.op, call.location);
            // What is captured runs in replays, which have numbers of their own.
            let source = match Log::of(stream) {
                None => Source::Collective(pending),
                Some(_) => Source::CapturedCollective(pending),
            };
            marking.own.borrow_mut().push(source);
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
fn place(op: &'static str, device: usize, view: &View<'_>) -> Result<(DevicePtr, usize)> {
    let ptr = address(op, view)?;
    let Some(owner) = view.storage.cuda_device() else {
        return Err(ErrorKind::device_mismatch(Device::Cuda(None), Device::Cpu).of(op));
    };
    // A kernel that follows another device's address without peer access loses its own device.
    if owner.index() != device && !view.storage.runtime().peer_access_enabled(device, owner.index())
    {
        return Err(other_device(op, device, owner.index()));
    }
    Ok((ptr, owner.index()))
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
    // SAFETY: a layout with elements lies inside its storage, so its first element does. Without elements, the
    // address may wrap, and nothing is read or written there.
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

/// Enqueues work with these arguments, in order with other uses of their storages. Returns the
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
    enqueue_marked(stream, arguments, site, &Marking::default(), f)
}

/// Enqueues work as [`enqueue`] does, with marks of its own.
#[track_caller]
fn enqueue_marked<'a, F>(
    stream: &Stream,
    arguments: impl Iterator<Item = impl Into<Touch<'a>>>,
    site: Site,
    marking: &Marking<'_>,
    f: F,
) -> Result<OpNumber>
where
    F: FnOnce(StreamHandle) -> Result<(), DriverError>,
{
    // Asked once: should the capture end or begin before the work is enqueued, it is refused.
    let captured = stream.captured();
    let touches: SmallVec<[Touch<'a>; 4]> = arguments.map(Into::into).collect();
    let distinct = storages(&touches);
    check_replayed(&distinct, captured.is_some(), site)?;
    if let Some(captured) = captured {
        check_world(stream, &distinct, site.op)?;
        // Asked again: the capture may have begun since the copy was found to be no part of one.
        if distinct.iter().any(|(s, _)| s.cuda_device().is_none() && !s.is_pinned()) {
            return Err(pageable_in_capture(site.op));
        }
        return Log::enqueue(&captured, &distinct, &touches, site, marking, f);
    }
    enqueue_now(stream, &distinct, &touches, site, marking, f)
}

/// Creates the error for a copy from or to pageable memory in a capture.
#[track_caller]
pub(super) fn pageable_in_capture(op: &'static str) -> Error {
    Error::capture(op, "one end is pageable host memory; pin it (`pin_memory`)")
}

/// Enqueues work that cannot be captured, as [`enqueue`] does. `distinct` has each storage once, in
/// lock order.
#[track_caller]
pub(super) fn enqueue_now<F>(
    stream: &Stream,
    distinct: &[(&Storage, bool)],
    touches: &[Touch<'_>],
    site: Site,
    marking: &Marking<'_>,
    f: F,
) -> Result<OpNumber>
where
    F: FnOnce(StreamHandle) -> Result<(), DriverError>,
{
    let submit = |handle| {
        refuse_captured(stream, site)?;
        f(handle).map_err(Error::from)
    };
    in_order(stream, distinct, touches, site, marking, || Ok(stream.submit(TOKEN, submit)?.1))
}

/// Fails if the stream is captured, for work that cannot be captured, at the time of its
/// submission: another thread may have begun a capture since the last check.
pub(super) fn refuse_captured(stream: &Stream, site: Site) -> Result<(), Error> {
    if stream.is_capturing() {
        return Err(Error::new(ErrorKind::Capturing, site));
    }
    Ok(())
}

/// Enqueues work as [`enqueue`] does that consists of several operations or is waited for in place,
/// and cannot be captured. `f` returns an operation that covers all of it.
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
    in_order(stream, &distinct, &touches, site, &Marking::default(), f)
}

/// Adds the op, its operands and its location to the error of a failed launch.
#[cold]
fn describe(error: Error, stream: &Stream, call: &Call<'_>) -> Error {
    let site = Site { op: call.op, location: call.location };
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
    Error::driver(error.op(), source).at(call.location)
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
    // A stream's error names no op yet; the error of an allocation does.
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
