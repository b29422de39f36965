//! Allocates device memory for a storage: from the allocator, or during a capture from the graph's
//! pool.

use warpline_stream::Stream;

use super::GraphLog;
use crate::{Result, Runtime, Storage};

impl Storage {
    /// Allocates device memory for `stream`: from the caching allocator, or in a capture from the
    /// graph's pool (or the pool to which the program routed the request). Under
    /// `SyncPolicy::Auto`, the first use by another stream is ordered after the work that was
    /// enqueued on `stream` before the allocation. The memory is not initialized: it holds leftover
    /// bytes of earlier users.
    ///
    /// # Errors
    /// - [`ErrorKind::Alloc`](crate::ErrorKind::Alloc) if the allocation fails, for example because
    ///   the device is out of memory.
    /// - [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to
    ///   another runtime.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the stream is the twin of
    ///   a captured stream.
    #[track_caller]
    pub fn device(runtime: &Runtime, bytes: usize, stream: &Stream) -> Result<Self> {
        runtime.check_stream(stream, "empty")?;
        let device = runtime.device(stream.device_index())?;
        let mut block = None;
        // A body allocates in the order of the stream that its node is on.
        let home = stream.captured().and_then(|captured| captured.home().cloned());
        let stream = home.as_ref().unwrap_or(stream);
        if let Some(log) = GraphLog::of(stream) {
            let captured = log.malloc(device, bytes, stream)?;
            if bytes == 0 || log.keeps(&captured) {
                let storage =
                    Self::from_block(runtime, captured, bytes, stream, Some(log.member()));
                if log.add_made(&storage) {
                    return Ok(storage);
                }
            } else {
                // The program routed the request to a pool of its own. The graph must keep the
                // storage, because its own pool does not.
                block = Some(captured);
            }
        }
        let block = match block {
            Some(block) => block,
            None => {
                let block = device.allocator().malloc(bytes, stream.raw());
                block.map_err(crate::error::alloc("empty"))?
            }
        };
        let storage = Self::from_block(runtime, block, bytes, stream, None);
        storage.record_prior_storage(stream);
        Ok(storage)
    }
}
