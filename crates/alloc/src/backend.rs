//! The interface between the allocator and a runtime.

use std::any::Any;
use std::error::Error;

use crate::HostConfig;

/// Streams and events, which tell the allocator when work that uses memory is complete.
///
/// A runtime without asynchrony uses `()` as its event and returns `Ok(true)` from
/// [`query`](Self::query).
pub trait StreamBackend: Send + Sync {
    /// A queue of work. Clones refer to the same queue.
    type Stream: Clone + Send + Sync;
    /// A marker in a stream.
    type Event: Send;
    /// Error of the runtime's calls.
    type Error: Error + Send + Sync + 'static;

    /// Returns an identifier that no other live stream has.
    fn stream_id(stream: &Self::Stream) -> u64;

    /// Records an event after all work enqueued on the stream so far.
    ///
    /// # Errors
    /// [`StreamBackend::Error`] if the event cannot be recorded.
    fn record(&self, stream: &Self::Stream) -> Result<Self::Event, Self::Error>;

    /// Records an event, as [`record`](Self::record) does, and reuses an event whose work is
    /// complete. The default drops the old event.
    ///
    /// # Errors
    /// [`StreamBackend::Error`] if the event cannot be recorded.
    fn record_again(
        &self,
        event: Self::Event,
        stream: &Self::Stream,
    ) -> Result<Self::Event, Self::Error> {
        drop(event);
        self.record(stream)
    }

    /// Returns whether the work before the event is complete.
    ///
    /// # Errors
    /// [`StreamBackend::Error`] if the event cannot be queried. The work then counts as not
    /// complete, unless [`is_lost`](Self::is_lost) returns `true` for the error.
    fn query(&self, event: &Self::Event) -> Result<bool, Self::Error>;

    /// Blocks the host until the work before the event is complete.
    ///
    /// # Errors
    /// The same as [`query`](Self::query).
    fn synchronize(&self, event: &Self::Event) -> Result<(), Self::Error>;

    /// Makes later work on the stream wait, on the device, for the work before the event. The
    /// default blocks the host instead.
    ///
    /// # Errors
    /// [`StreamBackend::Error`] if the wait cannot be enqueued.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Self::Error> {
        let _ = stream;
        self.synchronize(event)
    }

    /// Returns whether the error means that the device is lost permanently, so that no work runs
    /// any more. Default: `false`.
    fn is_lost(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }

    /// Retries refused releases of events and of dropped memory that the runtime keeps track of
    /// itself. Called when a cache is emptied, without a lock that a hit takes. The default does
    /// nothing.
    fn retry_refused(&self) {}
}

/// Device memory, for a [`CachingAllocator`](crate::CachingAllocator). A backend must be `'static`,
/// because blocks may outlive their allocator.
pub trait Backend: StreamBackend + 'static {
    /// One allocation of the runtime, released on drop.
    type Memory: Send;

    /// Allocates `bytes` bytes, which is never zero.
    ///
    /// # Errors
    /// [`StreamBackend::Error`] if the memory cannot be allocated.
    fn alloc(&self, bytes: usize) -> Result<Self::Memory, Self::Error>;

    /// Releases memory. The default drops the memory. Override this function if the runtime may
    /// refuse a release; refused memory still counts as reserved and is retried later.
    ///
    /// # Errors
    /// The unchanged memory, if the runtime refuses. Memory of a lost device counts as released.
    fn free(memory: Self::Memory) -> Result<(), Self::Memory> {
        drop(memory);
        Ok(())
    }

    /// Allocates memory for later work on `stream`, from a pool of the runtime that takes memory
    /// back in stream order (`cudaMallocAsync`). `None`, the default, means that there is no such
    /// pool; the request is then an [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`StreamBackend::Error`] if the memory cannot be allocated.
    fn alloc_async(
        &self,
        _bytes: usize,
        _stream: &Self::Stream,
    ) -> Option<Result<Self::Memory, Self::Error>> {
        None
    }

    /// Releases the unused memory of the pool behind [`alloc_async`](Self::alloc_async). The pool
    /// keeps memory whose release fails.
    fn trim(&self) {}

    /// Waits for all work that can use this backend's memory, on any stream, including streams that
    /// the allocator does not know. The allocator calls this function before it unmaps pages, once
    /// for many pages, so that such work does not access unmapped addresses. `Ok(false)`, the
    /// default, means that the runtime has no such call; the allocator then waits for the streams
    /// that it knows.
    ///
    /// # Errors
    /// [`StreamBackend::Error`], for example if a stream is being captured. Nothing is unmapped then,
    /// unless [`is_lost`](StreamBackend::is_lost) returns `true` for the error.
    fn synchronize_device(&self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Returns whether another backend's memory can replace this backend's. Memory of another
    /// device cannot. If the allocator's backend returns `false` for the backend of a pool, the pool
    /// serves no requests. Default: `true`.
    fn may_stand_in(&self, _other: &Self) -> bool {
        true
    }

    /// Returns the address of the first byte. Blocks start at multiples of 512 bytes from there.
    fn address(memory: &Self::Memory) -> u64;

    /// Returns whether the error means that no memory is left.
    fn is_out_of_memory(&self, error: &Self::Error) -> bool;

    /// Returns the free and the total memory of the device, in bytes.
    ///
    /// # Errors
    /// [`StreamBackend::Error`] if the query fails.
    fn mem_info(&self) -> Result<(usize, usize), Self::Error>;

    /// Returns the size of the device memory that this process uses in any way, in bytes. `None` if
    /// the runtime does not know the size. Called when a request fails because memory is exhausted.
    /// Default: `None`.
    fn process_memory(&self) -> Option<usize> {
        None
    }

    /// Returns the virtual memory management of the runtime, if it has one. Default: `None`.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<Self::Error>> {
        None
    }

    /// Returns the name of the memory in errors and reports, such as `cuda:0`. Default: the name of
    /// the backend's type.
    fn device(&self) -> String {
        let path = std::any::type_name::<Self>();
        let path = path.split('<').next().unwrap_or(path);
        path.rsplit("::").next().unwrap_or(path).to_owned()
    }
}

/// A reserved address range, physical memory or a mapping, owned by the backend. Dropping the
/// handle releases it.
pub type Handle = Box<dyn Any + Send + Sync>;

/// Virtual memory management: address ranges, physical memory, and mappings of memory into ranges.
///
/// Unmapping and releasing never wait for work. The allocator waits for the work first.
pub trait VirtualMemory<E>: Send + Sync {
    /// Returns the granularity of sizes and offsets, in bytes. A divisor of 2 MiB.
    fn granularity(&self) -> usize;

    /// Reserves `bytes` bytes of addresses. Returns the first address, a multiple of 2 MiB, and the
    /// range.
    ///
    /// # Errors
    /// `E`, the error of the runtime, if the addresses cannot be reserved.
    fn reserve(&self, bytes: usize) -> Result<(u64, Handle), E>;

    /// Allocates `bytes` bytes of physical device memory.
    ///
    /// # Errors
    /// `E`, the error of the runtime, if the memory cannot be allocated.
    fn create(&self, bytes: usize) -> Result<Handle, E>;

    /// Maps all of `memory` at `offset` of `range`, for reading and writing. Memory may be mapped
    /// more than once. The mapping keeps both alive and is removed on drop.
    ///
    /// # Errors
    /// `E`, the error of the runtime, if the memory cannot be mapped.
    fn map(&self, range: &Handle, offset: usize, memory: &Handle) -> Result<Handle, E>;

    /// Releases a range, memory or a mapping. The default drops the handle. Override this function
    /// if the runtime may refuse a release; a refused mapping stays in place with its memory, and
    /// the release is retried later.
    ///
    /// # Errors
    /// The unchanged handle, if the runtime refuses. Handles of a lost device count as released.
    fn release(&self, handle: Handle) -> Result<(), Handle> {
        drop(handle);
        Ok(())
    }
}

/// Page-locked host memory, for a [`HostCache`](crate::HostCache).
pub trait HostBackend: StreamBackend {
    /// One allocation of the runtime, released on drop. Several blocks may share it.
    type HostMemory: Send + Sync;

    /// Allocates `bytes` bytes of page-locked memory, never zero and a multiple of 4 KiB. `config`
    /// selects the method; a runtime with a single method may ignore it.
    ///
    /// # Errors
    /// [`StreamBackend::Error`] if the memory cannot be allocated.
    fn alloc_host(
        &self,
        bytes: usize,
        config: &HostConfig,
    ) -> Result<Self::HostMemory, Self::Error>;

    /// Releases host memory; see [`Backend::free`].
    ///
    /// # Errors
    /// The unchanged memory, if the runtime refuses.
    fn free_host(memory: Self::HostMemory) -> Result<(), Self::HostMemory> {
        drop(memory);
        Ok(())
    }
}
