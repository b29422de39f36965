//! Copies and memsets of plain bytes, through the same ordering as launches.

use std::panic::Location;
use std::ptr::NonNull;

use warpline_cuda_sys_safe::{Copy, CopyEnd, MemsetValue};
use warpline_stream::Stream;

use super::cpu::with_host_locks;
use super::cuda::{blame_earlier, enqueue};
use crate::storage::{Site, not_host};
use crate::{Error, Result, Storage};

/// Copies `bytes` bytes between storages of any kind, at these byte offsets. At least one is
/// device memory; the copy runs on `stream`, in order with every other use of both.
///
/// With page-locked or device memory at both ends it returns once the copy is enqueued, and
/// `non_blocking` is respected; with pageable memory at one end, once it is done.
///
/// # Errors
/// [`Error::IndexOutOfRange`] when the bytes do not lie inside; the driver's own.
pub fn copy_bytes(
    stream: &Stream,
    dst: (&Storage, usize),
    src: (&Storage, usize),
    bytes: usize,
    non_blocking: bool,
    location: &'static Location<'static>,
) -> Result<()> {
    for (storage, offset) in [dst, src] {
        check_range("copy_", storage, offset, bytes)?;
    }
    if bytes == 0 {
        return Ok(());
    }
    let copy = Copy { dst: end(dst)?, src: end(src)?, bytes };
    let driver = stream.raw().driver();
    let site = Site { op: "copy_", location };
    let submit = || {
        enqueue(stream, [(dst.0, true), (src.0, false)].into_iter(), site, |handle| {
            // SAFETY: both ends lie inside live storages, as checked above; device blocks know of
            // the stream, page-locked ones are kept from reuse by their recorded use, pageable
            // ones are waited for below while their host lock is held.
            unsafe { driver.memcpy_async(&copy, handle) }?;
            stream.note_launch("copy_", location, [("bytes", [bytes].as_slice())].into_iter());
            Ok(())
        })
        .map_err(|e| match blame_earlier(e, stream, "copy_", location) {
            e @ Error::NotStarted { .. } => e,
            e => match e.driver_error() {
                Some(source) => Error::driver("copy_", source.clone().at(location)),
                None => e,
            },
        })
    };
    let host_end = |s: &&Storage| s.cuda_device().is_none();
    let pageable = [dst.0, src.0].iter().any(|s| host_end(s) && !s.is_pinned());
    let host_ends = [(dst.0, true), (src.0, false)];
    if !host_ends.iter().any(|(s, _)| host_end(s)) {
        submit()?;
        return Ok(());
    }
    // No host code is inside the buffers while the copy is entered; afterwards the entered use
    // makes it wait.
    with_host_locks(host_ends.into_iter().filter(|(s, _)| host_end(s)), || {
        let op = submit()?;
        if pageable || !non_blocking {
            // Should the wait itself fail, the copy may still be using the buffers.
            stream.host_wait(op).inspect_err(|_| {
                let _ = stream.raw().synchronize();
            })?;
        }
        Ok(())
    })
}

fn end((storage, offset): (&Storage, usize)) -> Result<CopyEnd> {
    if let (Some(base), Some(device)) = (storage.device_ptr(), storage.cuda_device()) {
        // SAFETY: inside the storage, as `check_range` has seen.
        let ptr = unsafe { base.offset(offset as i64) };
        return Ok(CopyEnd::Device { device: device.index(), ptr });
    }
    storage
        .host_ptr()
        .and_then(|base| NonNull::new(base.wrapping_add(offset)))
        .map(CopyEnd::Host)
        .ok_or_else(|| not_host("copy_"))
}

pub(super) fn check_range(
    op: &'static str,
    storage: &Storage,
    offset: usize,
    bytes: usize,
) -> Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= storage.bytes()) {
        return Ok(());
    }
    Err(Error::IndexOutOfRange {
        op,
        dim: 0,
        index: offset as isize,
        length: bytes,
        size: storage.bytes(),
    })
}

/// Fills `count` elements of device memory from a byte offset on.
///
/// # Errors
/// As [`copy_bytes`].
pub fn memset(
    stream: &Stream,
    dst: (&Storage, usize),
    value: MemsetValue,
    count: usize,
    op: &'static str,
    location: &'static Location<'static>,
) -> Result<()> {
    check_range(op, dst.0, dst.1, count.saturating_mul(value.size()))?;
    if count == 0 {
        return Ok(());
    }
    let base = dst.0.device_ptr().ok_or_else(|| not_host(op))?;
    // SAFETY: inside the storage, as checked above.
    let ptr = unsafe { base.offset(dst.1 as i64) };
    let driver = stream.raw().driver();
    enqueue(stream, [(dst.0, true)].into_iter(), Site { op, location }, |handle| {
        // SAFETY: the range lies inside a live storage whose allocator knows of the stream.
        unsafe { driver.memset_async(ptr, value, count, handle) }?;
        let bytes = [count * value.size()];
        stream.note_launch(op, location, [("bytes", bytes.as_slice())].into_iter());
        Ok(())
    })
    .map_err(|e| blame_earlier(e, stream, op, location))?;
    Ok(())
}
