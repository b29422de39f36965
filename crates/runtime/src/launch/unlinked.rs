//! Copies between devices without a peer link.
//!
//! Several pieces at a time go through page-locked memory. The GPUs order the transfers, and the
//! host does not wait. The copy counts as one use of both storages.

use std::panic::Location;

use warpline_alloc::cuda::CudaPinnedBlock;
use warpline_cuda_sys_safe::{Access, Copy, CopyEnd};
use warpline_stream::{OpNumber, Stream};

use super::TOKEN;
use super::cuda::{enqueue_with, located, refuse_captured};
use super::transfer::copy_end;
use crate::Site;
use crate::race::Touch;
use crate::{Error, Result, Storage};

/// Maximum number of pieces in transfer at a time.
const RING_PIECES: usize = 4;

/// Copies between the memory of two devices, for [`super::copy_bytes`], which has checked the
/// arguments. All pieces are one use of the storages, so work of other threads runs before all of
/// them or after all of them.
#[track_caller]
pub(super) fn copy(
    stream: &Stream,
    dst: (&Storage, usize),
    src: (&Storage, usize),
    [to, from]: [usize; 2],
    bytes: usize,
    location: &'static Location<'static>,
) -> Result<()> {
    let runtime = src.0.runtime();
    let site = Site { op: "copy_", location };
    let on = |device: usize| -> Result<Stream> {
        if device == stream.device_index() {
            return Ok(stream.clone());
        }
        runtime.devices()?.current_stream(device)
    };
    let piece = runtime.staging().chunk.clamp(1, bytes);
    let ring = runtime.pinned_cache()?.alloc(bytes.div_ceil(piece).min(RING_PIECES) * piece);
    let ring = ring.map_err(crate::error::alloc("copy_"))?;
    let (out, into) = (on(from)?, on(to)?);
    let pieces = UnlinkedCopy {
        stream,
        out,
        into,
        dst: copy_end(dst)?,
        src: copy_end(src)?,
        bytes,
        piece,
        ring,
        site,
    };
    let touches = [
        Touch::range(dst.0, dst.1, bytes, Access::Write),
        Touch::range(src.0, src.1, bytes, Access::Read),
    ];
    let mut failed = None;
    let entered = enqueue_with(stream, touches.into_iter(), site, || {
        // SAFETY: both ends lie inside live storages. As far as the policy requires, their allocators
        // know of `stream`, and `stream` is ordered after their uses. The uses stay locked until the
        // returned operation is recorded.
        let (covered, ran) = unsafe { pieces.run() };
        let Err(error) = ran else { return Ok(covered.unwrap_or_default()) };
        failed = Some(error.clone());
        covered.ok_or(error)
    });
    match failed {
        Some(error) => Err(error),
        None => entered.map(drop).map_err(|e| located(e, stream, site)),
    }
}

/// A copy in progress.
struct UnlinkedCopy<'a> {
    /// The caller's stream. Other work waits for this stream only.
    stream: &'a Stream,
    /// A stream on the source device, and one on the destination device.
    out: Stream,
    into: Stream,
    dst: CopyEnd,
    src: CopyEnd,
    bytes: usize,
    piece: usize,
    /// Memory for [`RING_PIECES`] pieces, or for all if there are fewer.
    ring: CudaPinnedBlock,
    site: Site,
}

impl UnlinkedCopy<'_> {
    /// Enqueues all pieces. Returns the result, and an operation on `stream` that completes after
    /// all enqueued work. `None` if nothing was enqueued.
    ///
    /// # Safety
    /// Both ends must be live for these bytes, `stream` must come after all their uses, and later
    /// uses must wait for the returned operation.
    unsafe fn run(&self) -> (Option<OpNumber>, Result<()>) {
        let (stream, sides) = (self.stream, [&self.out, &self.into]);
        // So far only `stream` is ordered after other uses of the storages, so the two side streams
        // wait for it.
        for side in sides {
            if let Err(error) = side.wait_stream(stream) {
                return (None, Err(located(error, side, self.site)));
            }
        }
        for side in sides {
            self.ring.record_use(side.raw());
        }
        let mut read = [0; RING_PIECES];
        let pieces = (0..self.bytes).step_by(self.piece);
        let ran = pieces.enumerate().try_for_each(|(turn, start)| {
            // SAFETY: the caller guarantees that both ends are live and ordered with `stream`,
            // which both side streams wait for.
            unsafe { self.enqueue_piece(start, &mut read[turn % RING_PIECES], turn % RING_PIECES) }
        });
        for side in sides {
            if stream.wait_for(side, side.last_op()).is_err() {
                // Without this order, later uses could not wait for the enqueued pieces.
                let _ = side.raw().synchronize();
            }
        }
        (Some(stream.last_op()), ran)
    }

    /// Enqueues the piece that starts at byte `start`, through slot `slot` of the ring. `read` is the
    /// operation on `into` that last read the slot; the call replaces it by the read of this piece.
    ///
    /// # Safety
    /// The conditions of [`UnlinkedCopy::run`].
    #[track_caller]
    unsafe fn enqueue_piece(&self, start: usize, read: &mut OpNumber, slot: usize) -> Result<()> {
        let Self { out, into, .. } = self;
        let bytes = self.piece.min(self.bytes - start);
        // SAFETY: the slot lies inside the ring, and the piece inside both ends.
        let (near, src, dst) = unsafe {
            let near = self.ring.as_ptr().add(slot * self.piece);
            (CopyEnd::Host(near), shifted(self.src, start), shifted(self.dst, start))
        };
        let at = |side| move |error: Error| located(error, side, self.site);
        out.wait_for(into, *read).map_err(at(out))?;
        // SAFETY: the caller guarantees that the source is live and ordered. `out` waits for the
        // last read of the slot.
        let op = unsafe { self.submit(out, Copy { dst: near, src, bytes }) }.map_err(at(out))?;
        into.wait_for(out, op).map_err(at(into))?;
        // SAFETY: the caller guarantees that the destination is live and ordered. `into` waits for
        // the write of the slot.
        *read = unsafe { self.submit(into, Copy { dst, src: near, bytes }) }.map_err(at(into))?;
        Ok(())
    }

    /// Enqueues a copy and returns its operation.
    ///
    /// # Safety
    /// The conditions of the driver's `memcpy_async`.
    #[track_caller]
    unsafe fn submit(&self, side: &Stream, copy: Copy) -> Result<OpNumber, Error> {
        let ((), op) = side.submit(TOKEN, |handle| {
            refuse_captured(side, self.site)?;
            // SAFETY: the caller guarantees that both ends are live and ordered with `side`.
            unsafe { side.raw().driver().memcpy_async(&copy, handle) }?;
            let sizes = [copy.bytes];
            let operands = [("bytes", sizes.as_slice())].into_iter();
            side.note_launch(self.site, operands);
            Ok::<_, Error>(())
        })?;
        Ok(op)
    }
}

/// Returns an end moved by `by` bytes.
///
/// # Safety
/// The result must lie within the memory.
unsafe fn shifted(end: CopyEnd, by: usize) -> CopyEnd {
    // SAFETY: the caller guarantees that the result lies within the memory.
    unsafe {
        match end {
            CopyEnd::Host(ptr) => CopyEnd::Host(ptr.add(by)),
            CopyEnd::Device { device, ptr } => {
                CopyEnd::Device { device, ptr: ptr.offset(by as i64) }
            }
        }
    }
}
