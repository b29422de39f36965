//! Copies and memsets of bytes, ordered like launches.
//!
//! A copy is one driver call where possible. Between linked devices the peer link is opened on
//! first need, for copies only. Large copies within device memory are split into pieces. Large copies
//! of pageable memory are staged (`pageable.rs`), and so are all copies between devices without a link
//! (`unlinked.rs`).

use std::ops::Range;
use std::panic::Location;
use std::ptr::NonNull;

use warpline_cuda_sys_safe::{Access, Copy, CopyEnd, DriverError, MemsetValue, StreamHandle};
use warpline_stream::{OpNumber, Stream};

use super::TOKEN;
use super::cpu::with_host_locks;
use super::cuda::{
    enqueue, enqueue_with, located, pageable_in_capture, refuse_captured, waited_at,
};
use super::pageable::StagedCopy;
use super::unlinked;
use crate::race::Touch;
use crate::storage::not_host;
use crate::{CudaDevice, Error, ErrorKind, Result, Site, Storage};

/// Size of the first piece of a copy within device memory, in bytes. Starting a piece takes the
/// driver about a sixteenth of the piece's transfer time.
pub(super) const FIRST_PIECE: usize = 64 << 20;
/// Factor by which each piece is larger than the previous piece.
const PIECE_GROWTH: usize = 16;

/// Copies `bytes` bytes between storages of any kind, at these byte offsets. At least one storage
/// must be device memory. The copy runs on `stream`, in order with every other use of both
/// storages.
///
/// If both ends are page-locked or device memory, the function enqueues the copy, and waits for it
/// only if one end is host memory and `non_blocking` is `false`. If one end is pageable memory, the
/// function always waits until the copy is complete. Copies between devices use their peer link,
/// which is opened on first need. Copies between devices without a link, and large copies from and
/// to pageable memory, go through page-locked memory ([`crate::Staging`]).
///
/// # Errors
/// - [`ErrorKind::IndexOutOfRange`] if the bytes do not lie inside the storages.
/// - [`ErrorKind::RuntimeMismatch`] if the storages or the stream belong to different runtimes.
/// - [`ErrorKind::InvalidArgument`] if the stream is a twin, and for host memory inside a closure
///   that holds locks of host memory.
/// - [`ErrorKind::NotReplayed`] if a storage was made in a capture whose graph was not replayed yet.
/// - [`ErrorKind::Capture`] if the stream is captured and the host would have to wait for the copy.
/// - [`ErrorKind::IndexCheck`], [`ErrorKind::Collective`] or [`ErrorKind::PeerGone`] if the source
///   depends on work that is known to have failed.
/// - [`ErrorKind::TimedOut`] if the host waits for the copy, and work of another process that a
///   storage depends on is not complete within the limit set on receipt.
/// - [`ErrorKind::Alloc`] if page-locked memory for a copy between devices without a link cannot be
///   allocated.
/// - [`ErrorKind::Race`] if the copy races under [`SyncPolicy::Manual`](crate::SyncPolicy) with
///   [`RaceReport::Error`](crate::RaceReport::Error).
/// - [`ErrorKind::Driver`], [`ErrorKind::Surfaced`] or [`ErrorKind::NotStarted`] if a driver call
///   fails.
#[track_caller]
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
    let runtime = src.0.runtime();
    if !dst.0.runtime().same_as(runtime) {
        return Err(ErrorKind::RuntimeMismatch.of("copy_"));
    }
    runtime.check_stream(stream, "copy_")?;
    let site = Site { op: "copy_", location }.or_public();
    let located = |e| located(e, stream, site);
    if let [Some(to), Some(from)] = [dst, src].map(|(s, _)| s.cuda_device().map(CudaDevice::index))
        && !runtime.link_peers(to, from).map_err(located)?
        && !stream.is_capturing()
    {
        return unlinked::copy(stream, dst, src, [to, from], bytes, location);
    }
    let copy = Copy { dst: copy_end(dst)?, src: copy_end(src)?, bytes };
    let storages = [(dst.0, true), (src.0, false)];
    let touches = [
        Touch::range(dst.0, dst.1, bytes, Access::Write),
        Touch::range(src.0, src.1, bytes, Access::Read),
    ];
    let host_end = |s: &&Storage| s.cuda_device().is_none();
    let piece_by_piece = |handle| -> Result<(), DriverError> {
        // SAFETY: both ends lie inside live storages, as checked above. The page-locked cache has been
        // told of the stream, and so has the allocator of device memory, unless the program orders its
        // reuse (`SyncPolicy::Manual`). If a block is pageable, its host lock is held until the wait for
        // the copy below has returned.
        unsafe { enqueue_pieces(stream, &copy, handle) }?;
        stream.note_launch(site, [("bytes", [bytes].as_slice())].into_iter());
        Ok(())
    };
    let submit = || {
        let touches = touches.into_iter();
        if host_end(&dst.0) && !dst.0.is_pinned() {
            // The driver call returns after the copy is complete, so no event is needed.
            let waited = |handle| {
                refuse_captured(stream, site)?;
                piece_by_piece(handle).map_err(Error::from)
            };
            let copied = || Ok(stream.submit_waited(TOKEN, waited)?.1);
            return enqueue_with(stream, touches, site, copied).map_err(located);
        }
        enqueue(stream, touches, site, piece_by_piece).map_err(located)
    };
    let pageable = [dst.0, src.0].iter().any(|s| host_end(s) && !s.is_pinned());
    if stream.is_capturing() && storages.iter().any(|(s, _)| host_end(s)) {
        refuse_waiting_copy(pageable, non_blocking)?;
    }
    if !storages.iter().any(|(s, _)| host_end(s)) {
        submit()?;
        return Ok(());
    }
    if pageable || !non_blocking {
        storages.iter().try_for_each(|(storage, _)| storage.wait_for_peers())?;
    }
    // The locks keep host code out of the memory until the copy is recorded as a use. After that,
    // host code waits for the copy.
    let on_host = storages.into_iter().filter(|(s, _)| host_end(s));
    with_host_locks("copy_", on_host, || {
        let staged =
            pageable.then(|| StagedCopy::new(runtime, stream, copy.dst, copy.src, bytes)).flatten();
        let op = match &staged {
            Some(staged) => stage(stream, touches, site, staged).map_err(located)?,
            None => submit()?,
        };
        if pageable || !non_blocking {
            // If the wait fails, the copy may still use the memory.
            let waited = stream.host_wait(op).inspect_err(|_| {
                let _ = stream.raw().synchronize();
            });
            if host_end(&dst.0) {
                // A failure that the bytes depend on takes precedence over an error of the wait.
                dst.0.check_marks(dst.1..dst.1 + bytes)?;
            }
            waited.map_err(|error| waited_at(error, site.location))?;
        }
        Ok(())
    })
}

/// Enqueues a copy. Splits copies between device memory into pieces: the driver walks all pages of
/// a copy before it starts, and with pieces it walks the next pages during a transfer.
///
/// # Safety
/// Both ends of the copy stay valid until the copy is done. `handle` is the handle of `stream`.
#[track_caller]
unsafe fn enqueue_pieces(
    stream: &Stream,
    copy: &Copy,
    handle: StreamHandle,
) -> Result<(), DriverError> {
    let driver = stream.raw().driver();
    let (CopyEnd::Device { device: to, ptr: dst }, CopyEnd::Device { device: from, ptr: src }) =
        (copy.dst, copy.src)
    else {
        // SAFETY: the caller keeps both ends of the copy valid until the copy is done.
        return unsafe { driver.memcpy_async(copy, handle) };
    };
    // Each captured piece would be a node of the graph, so captured copies are not split.
    let first = if stream.is_capturing() { copy.bytes } else { FIRST_PIECE };
    for part in pieces(first, copy.bytes) {
        // SAFETY: the piece lies inside the copy, and the caller keeps both ends of the copy valid
        // until it is done.
        let enqueued = unsafe {
            let dst = CopyEnd::Device { device: to, ptr: dst.offset(part.start as i64) };
            let src = CopyEnd::Device { device: from, ptr: src.offset(part.start as i64) };
            driver.memcpy_async(&Copy { dst, src, bytes: part.len() }, handle)
        };
        if let Err(error) = enqueued {
            if part.start > 0 {
                // A failed copy is not recorded as a use, so none of its pieces may be in transfer.
                let _ = stream.raw().synchronize();
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Returns the pieces of a copy of `bytes` bytes. Each is [`PIECE_GROWTH`] times as large as the one
/// before, except the last, which has the remainder.
pub(super) fn pieces(first: usize, bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let (mut start, mut piece) = (0usize, first);
    std::iter::from_fn(move || {
        let part = start..bytes.min(start.saturating_add(piece));
        (start, piece) = (part.end, piece.saturating_mul(PIECE_GROWTH));
        (!part.is_empty()).then_some(part)
    })
}

/// Rejects a copy that the host waits for, because such a copy cannot be captured.
#[track_caller]
fn refuse_waiting_copy(pageable: bool, non_blocking: bool) -> Result<()> {
    match (pageable, non_blocking) {
        (true, _) => Err(pageable_in_capture("copy_")),
        (_, false) => {
            let reason = "the host would wait for the copy; make the copy non-blocking";
            Err(Error::capture("copy_", reason))
        }
        _ => Ok(()),
    }
}

/// Runs a staged copy as one use of the storages. The use is recorded even if a piece failed,
/// because other pieces may be in transfer.
#[track_caller]
fn stage(
    stream: &Stream,
    touches: [Touch<'_>; 2],
    site: Site,
    staged: &StagedCopy<'_>,
) -> Result<OpNumber> {
    if !staged.to_device() {
        // Wait for the stream before the uses are locked, so that the lock is not held during this
        // wait.
        let waited = stream.host_wait(stream.last_op());
        if let Some((bytes, _)) = touches[1].extent() {
            touches[1].storage.check_marks(bytes)?;
        }
        waited.map_err(|error| waited_at(error, site.location))?;
    }
    let mut result = Ok(());
    let op = enqueue_with(stream, touches.into_iter(), site, || {
        // SAFETY: both ends lie inside live storages. The caller holds the host lock. As far as the
        // policy requires, the device's allocator has been told of the stream, and the stream is
        // ordered after conflicting uses. The uses stay locked until this use is recorded.
        let (covered, ran) = unsafe { staged.run() };
        match (covered, ran) {
            (None, Err(error)) => Err(error),
            (covered, ran) => {
                result = ran;
                Ok(covered.unwrap_or_default())
            }
        }
    })?;
    result.map(|()| op)
}

#[track_caller]
pub(super) fn copy_end((storage, offset): (&Storage, usize)) -> Result<CopyEnd> {
    if let (Some(base), Some(device)) = (storage.device_ptr(), storage.cuda_device()) {
        // SAFETY: the caller has checked with `check_range` that the offset lies inside the
        // storage.
        let ptr = unsafe { base.offset(offset as i64) };
        return Ok(CopyEnd::Device { device: device.index(), ptr });
    }
    let base = storage.host_ptr().or_else(|| storage.shared_host_ptr());
    match base.and_then(|base| NonNull::new(base.wrapping_add(offset))) {
        Some(base) => Ok(CopyEnd::Host(base)),
        None => Err(not_host("copy_", storage)),
    }
}

#[track_caller]
pub(super) fn check_range(
    op: &'static str,
    storage: &Storage,
    offset: usize,
    bytes: usize,
) -> Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= storage.bytes()) {
        return Ok(());
    }
    Err(ErrorKind::IndexOutOfRange {
        dim: 0,
        index: offset as isize,
        length: bytes,
        size: storage.bytes(),
    }
    .of(op))
}

/// Fills `count` elements of device memory with `value`, from a byte offset on. Runs on `stream`,
/// in order with other uses of the memory.
///
/// # Errors
/// - [`ErrorKind::IndexOutOfRange`] if the elements do not lie inside the storage.
/// - [`ErrorKind::Driver`] if the storage is host memory of this process alone, and
///   [`ErrorKind::SharedHostMemory`] if it is host memory that processes share.
/// - [`ErrorKind::RuntimeMismatch`] if the storage and the stream belong to different runtimes.
/// - [`ErrorKind::InvalidArgument`] if the stream is a twin.
/// - [`ErrorKind::NotReplayed`] if the storage was made in a capture whose graph was not replayed yet.
/// - [`ErrorKind::Race`] if the access races under [`SyncPolicy::Manual`](crate::SyncPolicy) with
///   [`RaceReport::Error`](crate::RaceReport::Error).
/// - [`ErrorKind::Driver`] or [`ErrorKind::NotStarted`] if a driver call fails.
#[track_caller]
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
    let Some(base) = dst.0.device_ptr() else { return Err(not_host(op, dst.0)) };
    // SAFETY: `check_range` above has checked that the range lies inside the storage.
    let ptr = unsafe { base.offset(dst.1 as i64) };
    let driver = stream.raw().driver();
    let touch = Touch::range(dst.0, dst.1, count * value.size(), Access::Write);
    let site = Site { op, location };
    enqueue(stream, [touch].into_iter(), site, |handle| {
        // SAFETY: the range lies inside a live storage. Its allocator knows of the stream, unless the
        // program orders the reuse of memory (`SyncPolicy::Manual`).
        unsafe { driver.memset_async(ptr, value, count, handle) }?;
        let bytes = [count * value.size()];
        stream.note_launch(site, [("bytes", bytes.as_slice())].into_iter());
        Ok(())
    })
    .map_err(|e| located(e, stream, site))?;
    Ok(())
}
