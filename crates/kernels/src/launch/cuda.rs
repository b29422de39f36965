//! Runs an op on a stream: orders it after the uses it conflicts with, then enqueues it.

use std::panic::Location;
use std::sync::{Arc, MutexGuard};

use smallvec::SmallVec;
use warpline_cuda_sys_safe::{DeviceCode, DriverError, Footprint, Launch};
use warpline_stream::{OpNumber, Stream, StreamError};

use super::{Call, Code, distinct};
use crate::storage::{Site, Uses};
use crate::{CudaDevice, Error, Operand, Race, Result, Storage, SyncPolicy};

pub(super) fn run(device: &CudaDevice, stream: &Stream, call: &Call<'_>) -> Result<()> {
    // A handle means nothing to another driver, and a kernel nothing to another device's stream.
    if !Arc::ptr_eq(device.driver(), stream.raw().driver()) {
        return Err(Error::RuntimeMismatch { op: call.op });
    }
    if stream.device_index() != device.index() {
        return Err(other_device(call.op, device.index(), stream.device_index()));
    }
    let function = |set, index| {
        device.function(set, index).map_err(|e| match e.driver_error() {
            Some(source) if source.loses_device() => {
                let source = StreamError::from(source.clone());
                blame_earlier(source.into(), stream, call.op, call.location)
            }
            _ => e,
        })
    };
    let code = match call.code {
        Code::Kernel { set, index, grid, block, shared_bytes } => {
            DeviceCode::Kernel { function: function(set, index)?, grid, block, shared_bytes }
        }
        Code::Library(f) => DeviceCode::Library(f),
    };
    let mut footprints: SmallVec<[Footprint<'_>; 4]> = SmallVec::new();
    for operand in call.operands {
        footprints.push(footprint(call.op, device.index(), operand)?);
    }
    let launch = Launch {
        op: call.op,
        code,
        host: call.host,
        footprints: &footprints,
        params: call.params,
        location: call.location,
    };
    let site = Site { op: call.op, location: call.location };
    enqueue(stream, call.operands.iter().map(|o| (o.view.storage, o.access.writes())), site, |h| {
        // SAFETY: the handle is the stream's own, of this driver and device; the footprints lie in live storages, whose
        // allocators have been told of this stream; the caller of `launch::run` vouches that the
        // code does no more than declared.
        unsafe { device.driver().launch(h, &launch) }?;
        let operands = call.operands.iter().map(|o| (o.view.dtype.name(), o.view.sizes()));
        stream.note_launch(call.op, call.location, operands);
        Ok(())
    })
    .map_err(|e| describe(e, stream, call))?;
    Ok(())
}

/// The footprint of an operand in device memory.
pub(super) fn footprint<'a>(
    op: &'static str,
    device: usize,
    operand: &Operand<'a>,
) -> Result<Footprint<'a>> {
    let view = operand.view;
    let (Some(base), Some(owner)) = (view.storage.device_ptr(), view.storage.cuda_device()) else {
        return Err(Error::DeviceMismatch { op, first: "cuda".into(), second: "cpu".into() });
    };
    // A kernel that follows another device's address without peer access loses its own device.
    if owner.index() != device {
        return Err(other_device(op, device, owner.index()));
    }
    let item_size = view.dtype.size();
    // SAFETY: a layout lies inside its storage, so its first element does.
    let ptr = unsafe { base.offset((view.layout.offset() * item_size) as i64) };
    Ok(Footprint {
        ptr,
        device: owner.index(),
        item_size,
        sizes: view.sizes(),
        strides: view.strides(),
        access: operand.access,
    })
}

#[cold]
fn other_device(op: &'static str, first: usize, second: usize) -> Error {
    let name = |index| format!("cuda:{index}");
    Error::DeviceMismatch { op, first: name(first), second: name(second) }
}

/// Enqueues work that uses `storages` (each with whether it is written), in order with their
/// other uses. Answers the operation's number.
pub(super) fn enqueue<'a, F>(
    stream: &Stream,
    storages: impl Iterator<Item = (&'a Storage, bool)>,
    site: Site,
    f: F,
) -> Result<OpNumber>
where
    F: FnOnce(warpline_cuda_sys_safe::StreamHandle) -> Result<(), DriverError>,
{
    let distinct = distinct(storages);
    // Held until the new uses are entered: another thread that shares a storage sees them.
    let mut uses: SmallVec<[MutexGuard<'_, Uses>; 4]> =
        distinct.iter().map(|(s, _)| s.uses()).collect();
    let Some((first, _)) = distinct.first() else {
        return Ok(stream.last_op());
    };
    let policy = first.runtime().sync_policy();
    for (storage, _) in &distinct {
        // A driver can make nothing of another one's addresses.
        if !storage.runtime().same_as(first.runtime()) {
            return Err(Error::RuntimeMismatch { op: site.op });
        }
    }
    if !Arc::ptr_eq(first.runtime().driver()?, stream.raw().driver()) {
        return Err(Error::RuntimeMismatch { op: site.op });
    }
    for ((storage, write), uses) in distinct.iter().zip(&mut uses) {
        for used in uses.conflicting(*write) {
            if used.stream == *stream {
                continue;
            }
            match policy {
                SyncPolicy::Auto => match stream.wait_for(&used.stream, used.op) {
                    Err(_) if used.is_moot() => {}
                    waited => waited?,
                },
                SyncPolicy::Manual => {
                    if !stream.is_ordered_after(&used.stream, used.op)? {
                        let race = Race::new(used, stream, site, *write);
                        storage.runtime().report_race(race)?;
                        // A write takes the place of the uses before it, and host code waits for
                        // what is left: in host memory, later uses come after earlier ones.
                        if storage.is_pinned() {
                            stream.wait_for(&used.stream, used.op)?;
                        }
                    }
                }
            }
        }
        // The page-locked cache is told under either policy: what it reuses, host code writes.
        if policy == SyncPolicy::Auto || storage.is_pinned() {
            storage.note_stream(uses, stream);
        }
    }
    let ((), op) = stream.submit(|handle| f(handle).map_err(StreamError::from))?;
    for ((_, write), uses) in distinct.iter().zip(&mut uses) {
        uses.enter(stream, op, *write, site);
    }
    drop(uses);
    if first.runtime().launch_blocking() {
        stream.host_wait(op).map_err(|e| match e.driver_error() {
            Some(source) => Error::driver(site.op, source.clone()), // its own, no earlier one's
            None => e.into(),
        })?;
    }
    Ok(op)
}

/// Says which op failed, on what, called from where.
#[cold]
fn describe(error: Error, stream: &Stream, call: &Call<'_>) -> Error {
    let error = blame_earlier(error, stream, call.op, call.location);
    if matches!(error, Error::NotStarted { .. }) {
        return error;
    }
    let Some(source) = error.driver_error().cloned() else { return error };
    let source = source.at(call.location).with_detail(|| {
        let operands: Vec<String> = call
            .operands
            .iter()
            .map(|o| format!("{}{:?}", o.view.dtype.name(), o.view.sizes()))
            .collect();
        format!("{}({})", call.op, operands.join(", "))
    });
    Error::driver(call.op, source)
}

/// Where enqueueing work failed because its device was lost: says which launches that may be of,
/// if there are any. Waits have said so themselves.
#[cold]
pub(super) fn blame_earlier(
    error: Error,
    stream: &Stream,
    op: &'static str,
    location: &'static Location<'static>,
) -> Error {
    let Error::Stream(StreamError::Driver(source)) = &error else { return error };
    if !source.loses_device() {
        return error;
    }
    match stream.surfaced(source.clone()) {
        source @ StreamError::Surfaced { .. } => Error::NotStarted { op, location, source },
        _ => error,
    }
}
