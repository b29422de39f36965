//! What the allocator needs from a runtime.

use std::any::Any;
use std::error::Error;

use crate::HostConfig;

/// Streams and events: how the allocator learns that work which uses memory is done.
///
/// A runtime without asynchrony takes `()` as its event and returns `Ok(true)`.
pub trait StreamBackend: Send + Sync {
    /// A queue of work. Clones name the same queue.
    type Stream: Clone + Send + Sync;
    /// A mark in a stream.
    type Event: Send;
    /// What a call of the runtime can fail with.
    type Error: Error + Send + Sync + 'static;

    /// A number that no other live stream has.
    fn stream_id(stream: &Self::Stream) -> u64;

    /// Marks all work that the stream has been given so far.
    ///
    /// # Errors
    /// The runtime's own.
    fn record(&self, stream: &Self::Stream) -> Result<Self::Event, Self::Error>;

    /// As [`record`](Self::record), with an event whose work is done and that can be used again.
    ///
    /// # Errors
    /// The runtime's own.
    fn record_again(
        &self,
        event: Self::Event,
        stream: &Self::Stream,
    ) -> Result<Self::Event, Self::Error> {
        drop(event);
        self.record(stream)
    }

    /// Whether the marked work is done.
    ///
    /// # Errors
    /// The runtime's own. Unless [`is_lost`](Self::is_lost), the work counts as not done.
    fn query(&self, event: &Self::Event) -> Result<bool, Self::Error>;

    /// Waits until the marked work is done.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    fn synchronize(&self, event: &Self::Event) -> Result<(), Self::Error>;

    /// Makes work that the stream is given from now on wait, on the device, for the marked work.
    /// Unless it is overridden the host waits.
    ///
    /// # Errors
    /// The runtime's own.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Self::Error> {
        let _ = stream;
        self.synchronize(event)
    }

    /// Whether the error means that the device is gone for good, so that no work runs any more.
    fn is_lost(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }

    /// Tries releases again that the runtime refused and keeps track of itself: of events, and of
    /// memory that was dropped. Called where a cache is emptied, without a lock that a hit takes.
    fn retry_refused(&self) {}
}

/// Device memory, for a [`CachingAllocator`](crate::CachingAllocator). It may not borrow anything, as blocks may
/// outlive their allocator.
pub trait Backend: StreamBackend + 'static {
    /// One allocation of the runtime, given back on drop.
    type Memory: Send;

    /// Allocates `bytes` bytes, never zero.
    ///
    /// # Errors
    /// The runtime's own.
    fn alloc(&self, bytes: usize) -> Result<Self::Memory, Self::Error>;

    /// Gives memory back. A runtime that may refuse that overrides this: then the memory goes
    /// on counting as reserved, and is tried again later.
    ///
    /// # Errors
    /// The memory, as it was. What a lost device had counts as given back.
    fn free(memory: Self::Memory) -> Result<(), Self::Memory> {
        drop(memory);
        Ok(())
    }

    /// Allocates memory that work enqueued later on `stream` may use, from a pool of the runtime's
    /// own that takes it back in the stream's order (`cudaMallocAsync`). `None`, the default, says
    /// that it has none: then such a request is an [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// The runtime's own.
    fn alloc_async(
        &self,
        _bytes: usize,
        _stream: &Self::Stream,
    ) -> Option<Result<Self::Memory, Self::Error>> {
        None
    }

    /// Gives back what such a pool keeps that is not allocated. What the runtime refuses it keeps.
    fn trim(&self) {}

    /// Waits for all work that can use this memory, on whatever stream, the allocator having been
    /// told of it or not. It is called before pages are unmapped, once for many, so that what
    /// nobody told the allocator of runs to its end and not into addresses where nothing is.
    /// `Ok(false)`, the default, says that the runtime has no such call: then the streams that the
    /// allocator knows are waited for.
    ///
    /// # Errors
    /// The runtime's own, of a stream that is being captured for one. Then nothing is unmapped.
    fn synchronize_device(&self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Whether another backend's memory can stand for this one's: that of another device cannot. To a
    /// pool over one that may not nothing is led.
    fn may_stand_in(&self, _other: &Self) -> bool {
        true
    }

    /// Where the memory starts. Blocks are multiples of 512 bytes from there.
    fn address(memory: &Self::Memory) -> u64;

    /// Whether the error means that there is no memory left.
    fn is_out_of_memory(&self, error: &Self::Error) -> bool;

    /// Free and total memory of the device, in bytes.
    ///
    /// # Errors
    /// The runtime's own.
    fn mem_info(&self) -> Result<(usize, usize), Self::Error>;

    /// Bytes of the device that this process uses, by whatever way, where the runtime knows. Asked
    /// when a request fails for want of memory.
    fn process_memory(&self) -> Option<usize> {
        None
    }

    /// Addresses apart from the memory behind them, if the runtime has that.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<Self::Error>> {
        None
    }

    /// What errors and reports call the memory, such as `cuda:0`: unless said otherwise the backend's
    /// type.
    fn device(&self) -> String {
        let path = std::any::type_name::<Self>();
        let path = path.split('<').next().unwrap_or(path);
        path.rsplit("::").next().unwrap_or(path).to_owned()
    }
}

/// Something of the runtime's, given back on drop.
pub type Handle = Box<dyn Any + Send + Sync>;

/// Addresses apart from the memory behind them, and mappings of one in the other.
///
/// Unmapping and giving back never wait for work: the allocator does so first.
pub trait VirtualMemory<E>: Send + Sync {
    /// What sizes and offsets must be a multiple of, in bytes. A divisor of 2 MiB.
    fn granularity(&self) -> usize;

    /// Reserves this many bytes of addresses. Also returns the first one, a multiple of 2 MiB.
    ///
    /// # Errors
    /// The runtime's own.
    fn reserve(&self, bytes: usize) -> Result<(u64, Handle), E>;

    /// Takes this many bytes of the device's memory.
    ///
    /// # Errors
    /// The runtime's own.
    fn create(&self, bytes: usize) -> Result<Handle, E>;

    /// Maps the whole of `memory` at `offset` of `range`, for reading and writing. Memory may be
    /// mapped more than once; the mapping keeps both alive and is undone on drop.
    ///
    /// # Errors
    /// The runtime's own.
    fn map(&self, range: &Handle, offset: usize, memory: &Handle) -> Result<Handle, E>;

    /// Gives back what one of the above made. A runtime that may refuse that overrides this: then
    /// a mapping stays, with its memory, and anything is tried again later.
    ///
    /// # Errors
    /// The handle, with all as it was. What a lost device had counts as given back.
    fn release(&self, handle: Handle) -> Result<(), Handle> {
        drop(handle);
        Ok(())
    }
}

/// Page-locked host memory, for a [`HostCache`](crate::HostCache).
pub trait HostBackend: StreamBackend {
    /// One allocation of the runtime, given back on drop. Several blocks may share it.
    type HostMemory: Send + Sync;

    /// Allocates `bytes` bytes of page-locked memory, never zero and a multiple of 4 KiB. The
    /// options say how; a runtime with one way to do it need not look at them.
    ///
    /// # Errors
    /// The runtime's own.
    fn alloc_host(
        &self,
        bytes: usize,
        config: &HostConfig,
    ) -> Result<Self::HostMemory, Self::Error>;

    /// As [`Backend::free`], for host memory.
    ///
    /// # Errors
    /// The memory, as it was.
    fn free_host(memory: Self::HostMemory) -> Result<(), Self::HostMemory> {
        drop(memory);
        Ok(())
    }
}
