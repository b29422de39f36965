//! A device's memory for a storage: its allocator's, or in a capture the graph's pool's.

use warpline_stream::Stream;

use super::Log;
use crate::{Result, Runtime, Storage};

impl Storage {
    /// Memory of a device from its caching allocator, to be used first on `stream`; its contents
    /// are left over from its last user.
    ///
    /// # Errors
    /// The allocator's own, out of memory first among them; [`ErrorKind::RuntimeMismatch`] for a
    /// stream of another runtime.
    #[track_caller]
    pub fn device(runtime: &Runtime, bytes: usize, stream: &Stream) -> Result<Self> {
        runtime.check_stream(stream, "empty")?;
        let device = runtime.device(stream.device_index())?;
        let mut block = None;
        if let Some(log) = Log::of(stream) {
            let captured = log.malloc(device, bytes, stream)?;
            if bytes == 0 || log.keeps(&captured) {
                let storage = Self::found(runtime, captured, bytes, stream, Some(log.member()));
                if log.enter_made(&storage) {
                    return Ok(storage);
                }
            } else {
                // The program led the request to a pool of its own: the graph has to keep it.
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
        let storage = Self::found(runtime, block, bytes, stream, None);
        storage.enter_former_use(stream);
        Ok(storage)
    }
}
