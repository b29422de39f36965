//! Copies between devices without a peer link: through page-locked memory, several pieces at a
//! time on their way. Nothing waits on the host.

use std::panic::Location;

use warpline_stream::{OpNumber, Stream};

use super::copy_bytes;
use crate::{Result, Storage};

/// Pieces on their way at a time.
const RING: usize = 4;

/// As [`copy_bytes`] between two devices' memory, which it has checked.
pub(super) fn copy(
    stream: &Stream,
    dst: (&Storage, usize),
    src: (&Storage, usize),
    [to, from]: [usize; 2],
    bytes: usize,
    location: &'static Location<'static>,
) -> Result<()> {
    let runtime = src.0.runtime();
    let piece = runtime.staging().chunk.max(1);
    let on = |device: usize| -> Result<Stream> {
        if device == stream.device_index() {
            return Ok(stream.clone());
        }
        Ok(runtime.devices()?.current_stream(device)?)
    };
    let (out, into) = (on(from)?, on(to)?);
    // Whoever asked has ordered its own stream only.
    for side in [&out, &into] {
        side.wait_stream(stream)?;
    }
    let mut ring: Vec<(Storage, OpNumber)> = Vec::new();
    for (turn, start) in (0..bytes).step_by(piece).enumerate() {
        if ring.len() < RING {
            ring.push((Storage::pinned(runtime, piece.min(bytes))?, 0));
        }
        let (near, read) = &mut ring[turn % RING];
        let length = piece.min(bytes - start);
        out.wait_for(&into, *read)?;
        copy_bytes(&out, (near, 0), (src.0, src.1 + start), length, true, location)?;
        into.wait_for(&out, out.last_op())?;
        copy_bytes(&into, (dst.0, dst.1 + start), (near, 0), length, true, location)?;
        *read = into.last_op();
    }
    stream.wait_for(&into, into.last_op())?;
    Ok(())
}
