//! Copies between pageable memory and a device, staged through page-locked memory.
//!
//! Several threads take pieces in turn. To the device, a thread copies a piece into page-locked
//! memory and starts its transfer. From the device, a thread starts the transfer of a piece, waits
//! for it, and copies the piece out of page-locked memory. Each thread has two buffers, so that it
//! can copy one piece during the transfer of the other. The driver never accesses the pageable
//! memory.
//!
//! The whole copy counts as one use of the device memory. The operation recorded for it is the last
//! that was enqueued, even if a piece failed.

use std::ops::Range;
use std::ptr::{NonNull, copy_nonoverlapping};
use std::sync::PoisonError;

use warpline_alloc::cuda::CudaPinnedBlock;
use warpline_cuda_sys_safe::owned::Event;
use warpline_cuda_sys_safe::{Copy, CopyEnd, DevicePtr, EventFlags};
use warpline_stream::{OpNumber, Stream};
use warpline_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use warpline_sync::{Mutex, OnceLock};

use super::TOKEN;
use super::cuda::refuse_captured;
use crate::host::{SharedPtr, together};
use crate::{Error, Result, Runtime, Site};

/// A staged copy.
pub(super) struct StagedCopy<'a> {
    stream: &'a Stream,
    device: (usize, DevicePtr),
    host: SharedPtr<u8>,
    to_device: bool,
    bytes: usize,
    piece: usize,
    /// Page-locked memory for two buffers per thread.
    ring: CudaPinnedBlock,
    /// For each thread, the offset of its first buffer in the ring, and the events of both buffers.
    threads: Mutex<Vec<(usize, [Event; 2])>>,
    count: usize,
    /// Offset of the next piece to take.
    next: AtomicUsize,
    /// The last enqueued operation.
    last: AtomicU64,
    failed: OnceLock<crate::Error>,
}

/// A buffer in the ring, and the range of bytes in transfer.
struct StagingBuffer {
    memory: SharedPtr<u8>,
    event: Event,
    pending: Option<Range<usize>>,
}

impl<'a> StagedCopy<'a> {
    /// Prepares a copy of `bytes` bytes. Returns `None` if the copy is too small for staging, if the
    /// stream is captured, or if the page-locked memory or the events cannot be allocated.
    pub(super) fn new(
        runtime: &Runtime,
        stream: &'a Stream,
        dst: CopyEnd,
        src: CopyEnd,
        bytes: usize,
    ) -> Option<Self> {
        let staging = runtime.staging();
        let (host, device, to_device) = match (dst, src) {
            (CopyEnd::Host(host), CopyEnd::Device { device, ptr }) => (host, (device, ptr), false),
            (CopyEnd::Device { device, ptr }, CopyEnd::Host(host)) => (host, (device, ptr), true),
            _ => return None,
        };
        if bytes < staging.from.max(1) || stream.is_capturing() {
            return None;
        }
        let piece = staging.piece(bytes);
        let count = bytes.div_ceil(piece).min(staging.threads.max(1));
        let ring = runtime.pinned_cache().ok()?.alloc(2 * count * piece).ok()?;
        let driver = stream.raw().driver();
        let event = || Event::new(driver, stream.device_index(), EventFlags::default()).ok();
        let threads = (0..count).map(|i| Some((2 * i * piece, [event()?, event()?])));
        Some(Self {
            stream,
            device,
            host: SharedPtr(host.as_ptr()),
            to_device,
            bytes,
            piece,
            threads: Mutex::new(threads.collect::<Option<_>>()?),
            ring,
            count,
            next: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            failed: OnceLock::new(),
        })
    }

    pub(super) fn to_device(&self) -> bool {
        self.to_device
    }

    /// Copies all pieces. Returns the result, and an operation that completes after all enqueued
    /// work. `None` if nothing was enqueued.
    ///
    /// # Safety
    /// Both ends must be live for these bytes. No other code may access the host end, and the
    /// device end may be accessed only in order with the stream.
    pub(super) unsafe fn run(&self) -> (Option<OpNumber>, Result<()>) {
        together(self.count - 1, || {
            let mine = self.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((at, [first, second])) = mine else { return };
            let buffer = |at: usize, event| StagingBuffer {
                memory: SharedPtr(self.ring.as_ptr().as_ptr().wrapping_add(at)),
                event,
                pending: None,
            };
            if let Err(error) =
                self.copy_pieces([buffer(at, first), buffer(at + self.piece, second)])
            {
                let _ = self.failed.set(error);
            }
        });
        let last = self.last.load(Ordering::Relaxed);
        let Some(error) = self.failed.get() else { return (Some(last), Ok(())) };
        // Pieces may still be in transfer, so the cache must not reuse the ring before they are
        // done.
        self.ring.record_use(self.stream.raw());
        let covered = (last > 0).then(|| self.stream.last_op());
        (covered, Err(error.clone()))
    }

    #[track_caller]
    fn copy_pieces(&self, mut buffers: [StagingBuffer; 2]) -> Result<()> {
        let mut turn = 0;
        loop {
            let buffer = &mut buffers[turn % 2];
            self.finish(buffer)?;
            let Some(part) = self.take() else { break };
            self.begin(buffer, part)?;
            turn += 1;
        }
        self.finish(&mut buffers[(turn + 1) % 2])
    }

    /// Returns the next piece.
    fn take(&self) -> Option<Range<usize>> {
        if self.failed.get().is_some() {
            return None;
        }
        let start = self.next.fetch_add(self.piece, Ordering::Relaxed);
        (start < self.bytes).then(|| start..self.bytes.min(start + self.piece))
    }

    #[track_caller]
    fn begin(&self, buffer: &mut StagingBuffer, part: Range<usize>) -> Result<()> {
        let (start, bytes) = (part.start, part.len());
        if self.to_device {
            // SAFETY: both ends are live for these bytes. Only this thread uses the buffer, and the
            // buffer is in no transfer, because `finish` has waited for its event.
            unsafe { copy_nonoverlapping(self.host.0.add(start), buffer.memory.0, bytes) };
        }
        let (device, ptr) = self.device;
        // SAFETY: the piece lies inside the device end.
        let device = CopyEnd::Device { device, ptr: unsafe { ptr.offset(start as i64) } };
        let Some(near) = NonNull::new(buffer.memory.0).map(CopyEnd::Host) else { return Ok(()) };
        let (dst, src) = if self.to_device { (device, near) } else { (near, device) };
        let copy = Copy { dst, src, bytes };
        let raw = self.stream.raw();
        let site = Site::here("copy_");
        let (recorded, op) = self.stream.submit(TOKEN, |handle| {
            // A captured copy would use the ring's address in every replay.
            refuse_captured(self.stream, site)?;
            // SAFETY: the device end is live, and its uses are ordered with the stream. The buffer
            // is used again only after its event. After a failure, `run` tells the cache that this
            // stream may still use the ring.
            unsafe { raw.driver().memcpy_async(&copy, handle) }.map_err(Error::from)?;
            Ok::<_, Error>(buffer.event.record(raw))
        })?;
        self.last.fetch_max(op, Ordering::Relaxed);
        recorded.map_err(Error::from)?;
        buffer.pending = Some(part);
        Ok(())
    }

    /// Waits for the transfer of the buffer's piece. From a device, copies the piece out.
    #[track_caller]
    fn finish(&self, buffer: &mut StagingBuffer) -> Result<()> {
        let Some(part) = buffer.pending.take() else { return Ok(()) };
        buffer.event.synchronize().map_err(Error::from)?;
        if !self.to_device {
            // SAFETY: both ends are live for these bytes. No other thread writes this piece, and
            // the event shows that the transfer into the buffer is complete.
            unsafe {
                copy_nonoverlapping(buffer.memory.0, self.host.0.add(part.start), part.len());
            }
        }
        Ok(())
    }
}
