//! Copies between devices without a peer link: several pieces at a time go through page-locked
//! memory, ordered on the GPUs alone. The host does not wait. The copy counts as one use of both
//! storages.

use std::panic::Location;

use warpline_alloc::cuda::CudaPinnedBlock;
use warpline_cuda_sys_safe::{Access, Copy, CopyEnd};
use warpline_stream::{OpNumber, Stream};

use super::TOKEN;
use super::cuda::{enqueue_with, located, refuse_captured};
use super::transfer::end;
use crate::Site;
use crate::race::Touch;
use crate::{Error, Result, Storage};

/// Pieces on their way at a time.
const RING: usize = 4;

/// As [`super::copy_bytes`] between two devices' memory, which it has checked. All pieces are one
/// use of the storages: what other threads enqueue comes before all of them, or after.
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
    let ring = runtime.pinned_cache()?.alloc(bytes.div_ceil(piece).min(RING) * piece);
    let ring = ring.map_err(crate::error::alloc("copy_"))?;
    let (out, into) = (on(from)?, on(to)?);
    let pieces =
        Pieces { stream, out, into, dst: end(dst)?, src: end(src)?, bytes, piece, ring, site };
    let touches = [
        Touch::range(dst.0, dst.1, bytes, Access::Write),
        Touch::range(src.0, src.1, bytes, Access::Read),
    ];
    let mut failed = None;
    let entered = enqueue_with(stream, touches.into_iter(), site, || {
        // SAFETY: both ends lie inside live storages, whose allocators know of `stream`; their uses
        // are locked until this one is entered, of an operation that covers all pieces.
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

/// A copy on its way.
struct Pieces<'a> {
    /// Who asked for it, and is the one that others wait for.
    stream: &'a Stream,
    /// A stream of each device, from the one and to the other.
    out: Stream,
    into: Stream,
    dst: CopyEnd,
    src: CopyEnd,
    bytes: usize,
    piece: usize,
    /// Room for [`RING`] pieces, or for all if these are fewer.
    ring: CudaPinnedBlock,
    site: Site,
}

impl Pieces<'_> {
    /// Enqueues all. Returns an operation of `stream` that covers what was enqueued, also where
    /// something failed; and the failure.
    ///
    /// # Safety
    /// Both ends are live, of these bytes, and `stream` comes after all that uses them; later uses
    /// wait for the answer.
    unsafe fn run(&self) -> (Option<OpNumber>, Result<()>) {
        let (stream, sides) = (self.stream, [&self.out, &self.into]);
        // Whoever asked has ordered its own stream only.
        for side in sides {
            if let Err(error) = side.wait_stream(stream) {
                return (None, Err(located(error, side, self.site)));
            }
        }
        for side in sides {
            self.ring.record_use(side.raw());
        }
        let mut read = [0; RING];
        let pieces = (0..self.bytes).step_by(self.piece);
        let ran = pieces.enumerate().try_for_each(|(turn, start)| {
            // SAFETY: the caller's promise.
            unsafe { self.one(start, &mut read[turn % RING], turn % RING) }
        });
        for side in sides {
            if stream.wait_for(side, side.last_op()).is_err() {
                // Nobody could wait for what is on its way.
                let _ = side.raw().synchronize();
            }
        }
        (Some(stream.last_op()), ran)
    }

    /// Enqueues the piece from a byte on, through a place of the ring that is free once operation
    /// `read` of `into` is done.
    ///
    /// # Safety
    /// As [`Pieces::run`].
    #[track_caller]
    unsafe fn one(&self, start: usize, read: &mut OpNumber, place: usize) -> Result<()> {
        let Self { out, into, .. } = self;
        let bytes = self.piece.min(self.bytes - start);
        // SAFETY: within the ring and both ends.
        let (near, src, dst) = unsafe {
            let near = self.ring.as_ptr().add(place * self.piece);
            (CopyEnd::Host(near), shifted(self.src, start), shifted(self.dst, start))
        };
        let at = |side| move |error: Error| located(error, side, self.site);
        out.wait_for(into, *read).map_err(at(out))?;
        // SAFETY: the device's end as the caller promises; of the place all reads come before.
        let op = unsafe { self.submit(out, Copy { dst: near, src, bytes }) }.map_err(at(out))?;
        into.wait_for(out, op).map_err(at(into))?;
        // SAFETY: as above; the place was written before.
        *read = unsafe { self.submit(into, Copy { dst, src: near, bytes }) }.map_err(at(into))?;
        Ok(())
    }

    /// Enqueues a copy, and says as which operation.
    ///
    /// # Safety
    /// As of the driver's `memcpy_async`.
    #[track_caller]
    unsafe fn submit(&self, side: &Stream, copy: Copy) -> Result<OpNumber, Error> {
        let ((), op) = side.submit(TOKEN, |handle| {
            refuse_captured(side, self.site)?;
            // SAFETY: the caller's promise.
            unsafe { side.raw().driver().memcpy_async(&copy, handle) }?;
            let sizes = [copy.bytes];
            let operands = [("bytes", sizes.as_slice())].into_iter();
            side.note_launch(self.site, operands);
            Ok::<_, Error>(())
        })?;
        Ok(op)
    }
}

/// An end so many bytes further on.
///
/// # Safety
/// That is within the memory.
unsafe fn shifted(end: CopyEnd, by: usize) -> CopyEnd {
    // SAFETY: the caller's promise.
    unsafe {
        match end {
            CopyEnd::Host(ptr) => CopyEnd::Host(ptr.add(by)),
            CopyEnd::Device { device, ptr } => {
                CopyEnd::Device { device, ptr: ptr.offset(by as i64) }
            }
        }
    }
}
