//! Allocates device memory for a storage: from the allocator, or during a capture from the graph's
//! pool.

use warpline_stream::{CapturedStream, Stream};

use super::GraphLog;
use crate::storage::malloc_or_reclaim;
use crate::{Result, Runtime, Storage, SyncPolicy};

impl Storage {
    /// Allocates device memory for `stream`: from the caching allocator, or in a capture from the
    /// graph's pool (or the pool to which the program routed the request). Under
    /// `SyncPolicy::Auto`, the first use by another stream is ordered after the work that was
    /// enqueued (in a capture: captured) on `stream` before the allocation. The memory is not
    /// initialized: it holds leftover bytes of earlier users.
    ///
    /// # Errors
    /// - [`ErrorKind::Alloc`](crate::ErrorKind::Alloc) if the allocation fails, for example because
    ///   the device is out of memory.
    /// - [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to
    ///   another runtime.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the stream is the twin of
    ///   a captured stream.
    /// - [`ErrorKind::Driver`](crate::ErrorKind::Driver) in a forked child.
    #[track_caller]
    pub fn device(runtime: &Runtime, bytes: usize, stream: &Stream) -> Result<Self> {
        runtime.check_stream(stream, "empty")?;
        // In a forked child, a lock of the allocator that another thread held during the fork stays locked.
        runtime.check_process_for("empty", "cuMemAlloc")?;
        let device = runtime.device(stream.device_index())?;
        let mut block = None;
        // A body allocates in the order of the stream that its node is on.
        let captured_stream = stream.captured();
        let body = captured_stream.as_ref().filter(|captured| captured.home().is_some());
        let stream = body.and_then(CapturedStream::home).unwrap_or(stream);
        if let Some(log) = GraphLog::of(stream) {
            let captured = log.malloc(device, bytes, stream)?;
            if bytes == 0 || log.keeps(&captured) {
                let member = log.member(body.is_some());
                let storage = Self::from_block(runtime, captured, bytes, stream, Some(member));
                if log.add_made(&storage, stream) {
                    // Under `Manual` nothing orders the first use. The program need not do it, because it cannot know
                    // that the streams of a body share their free memory.
                    if let Some(captured) = body
                        && runtime.sync_policy() == SyncPolicy::Manual
                    {
                        log.wait_for_prior_storage(&storage, captured)?;
                    }
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
                let block = malloc_or_reclaim(runtime, device.allocator(), bytes, stream);
                block.map_err(crate::error::alloc("empty"))?
            }
        };
        Ok(Self::from_block(runtime, block, bytes, stream, None))
    }
}
