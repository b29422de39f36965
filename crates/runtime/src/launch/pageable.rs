//! Copies between pageable memory and a device, staged through page-locked memory.
//!
//! Several threads each take the next piece: they copy it into page-locked memory and start its
//! transfer, or wait for its transfer and copy it out of page-locked memory. Each thread has two
//! pieces, so that one is transferred while it copies the other. The driver never sees the pageable
//! memory.
//!
//! The whole copy counts as one use of the device memory. It is recorded for the last operation,
//! also if a piece failed.

use std::ops::Range;
use std::panic::Location;
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
use crate::host::{Shared, together};
use crate::{Error, Result, Runtime, Site};

/// A staged copy.
pub(super) struct Staged<'a> {
    stream: &'a Stream,
    device: (usize, DevicePtr),
    host: Shared<u8>,
    to_device: bool,
    bytes: usize,
    piece: usize,
    /// Page-locked memory for two pieces per thread.
    ring: CudaPinnedBlock,
    /// Each thread's offset of its first piece, and the events of both pieces.
    threads: Mutex<Vec<(usize, [Event; 2])>>,
    count: usize,
    /// Offset of the next piece to take.
    next: AtomicUsize,
    /// The last enqueued operation.
    last: AtomicU64,
    failed: OnceLock<crate::Error>,
}

/// The place of a piece in the ring, and the range in transfer.
struct Slot {
    memory: Shared<u8>,
    event: Event,
    pending: Option<Range<usize>>,
}

impl<'a> Staged<'a> {
    /// Prepares a copy of `bytes` bytes. `None` if staging does not pay or there is no page-locked
    /// memory for it.
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
            host: Shared(host.as_ptr()),
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

    /// Copies. Returns an operation that covers all enqueued work, also after a failure, and the
    /// failure.
    ///
    /// # Safety
    /// Both ends must be live for these bytes. No other code may access the host end, and the
    /// device end may be accessed only in order with the stream.
    pub(super) unsafe fn run(&self) -> (Option<OpNumber>, Result<()>) {
        together(self.count - 1, || {
            let mine = self.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((at, [first, second])) = mine else { return };
            let slot = |at: usize, event| Slot {
                memory: Shared(self.ring.as_ptr().as_ptr().wrapping_add(at)),
                event,
                pending: None,
            };
            if let Err(error) = self.work([slot(at, first), slot(at + self.piece, second)]) {
                let _ = self.failed.set(error);
            }
        });
        let last = self.last.load(Ordering::Relaxed);
        let Some(error) = self.failed.get() else { return (Some(last), Ok(())) };
        // Pieces may be on the wire still: the ring is not used again before they are through.
        self.ring.record_use(self.stream.raw());
        let covered = (last > 0).then(|| self.stream.last_op());
        (covered, Err(error.clone()))
    }

    #[track_caller]
    fn work(&self, mut slots: [Slot; 2]) -> Result<()> {
        let mut turn = 0;
        loop {
            let slot = &mut slots[turn % 2];
            self.finish(slot)?;
            let Some(part) = self.take() else { break };
            self.begin(slot, part)?;
            turn += 1;
        }
        self.finish(&mut slots[(turn + 1) % 2])
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
    fn begin(&self, slot: &mut Slot, part: Range<usize>) -> Result<()> {
        let (start, bytes) = (part.start, part.len());
        if self.to_device {
            // SAFETY: both are live for these bytes; the slot is this thread's, and off the wire.
            unsafe { copy_nonoverlapping(self.host.0.add(start), slot.memory.0, bytes) };
        }
        let (device, ptr) = self.device;
        // SAFETY: within the device's end.
        let device = CopyEnd::Device { device, ptr: unsafe { ptr.offset(start as i64) } };
        let Some(near) = NonNull::new(slot.memory.0).map(CopyEnd::Host) else { return Ok(()) };
        let (dst, src) = if self.to_device { (device, near) } else { (near, device) };
        let copy = Copy { dst, src, bytes };
        let raw = self.stream.raw();
        let site = Site { op: "copy_", location: Location::caller() };
        let (recorded, op) = self.stream.submit(TOKEN, |handle| {
            // A capture would keep the ring's address.
            refuse_captured(self.stream, site)?;
            // SAFETY: the device's end is live and in order with the stream; the slot is used
            // again only after its event, or a failure, which the ring's cache is told of.
            unsafe { raw.driver().memcpy_async(&copy, handle) }.map_err(Error::from)?;
            Ok::<_, Error>(slot.event.record(raw))
        })?;
        self.last.fetch_max(op, Ordering::Relaxed);
        recorded.map_err(Error::from)?;
        slot.pending = Some(part);
        Ok(())
    }

    /// Waits for the transfer of a piece, and copies it out.
    #[track_caller]
    fn finish(&self, slot: &mut Slot) -> Result<()> {
        let Some(part) = slot.pending.take() else { return Ok(()) };
        slot.event.synchronize().map_err(Error::from)?;
        if !self.to_device {
            // SAFETY: both are live for these bytes; nobody else writes them, and the slot has
            // them, as its event says.
            unsafe {
                copy_nonoverlapping(slot.memory.0, self.host.0.add(part.start), part.len());
            }
        }
        Ok(())
    }
}
