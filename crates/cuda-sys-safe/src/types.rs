//! Plain values that cross the driver interface: addresses, handles, flags, properties.

use std::fmt;
use std::ptr::NonNull;

/// An address in device memory.
///
/// Safe code cannot make an address from a number, so every `DevicePtr` comes from a driver. A
/// `DevicePtr` does not keep its memory alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)] // kernels' pointer arguments are passed by address
pub struct DevicePtr(u64);

impl DevicePtr {
    /// The null address, which no allocation has.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// Creates an address from a number.
    ///
    /// # Safety
    /// All memory that is used through the result must have been allocated or mapped by the driver that uses it, and
    /// must not have been released.
    #[must_use]
    pub const unsafe fn from_raw(address: u64) -> Self {
        Self(address)
    }

    /// Returns the address as a number. The reverse, [`DevicePtr::from_raw`], is unsafe.
    #[must_use]
    pub const fn addr(self) -> u64 {
        self.0
    }

    /// Returns the address that is `bytes` bytes higher.
    ///
    /// # Safety
    /// The same as [`DevicePtr::from_raw`].
    #[must_use]
    pub const unsafe fn offset(self, bytes: i64) -> Self {
        Self(self.0.wrapping_add_signed(bytes))
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        ///
        /// A raw driver handle with its device. Safe code cannot make a handle from a number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            device: usize,
            raw: u64,
        }

        impl $name {
            /// Creates a handle from a number.
            ///
            /// # Safety
            /// `raw` must be a live handle of this kind, on this device, made by the driver that
            /// uses the result.
            #[must_use]
            pub const unsafe fn from_raw(device: usize, raw: u64) -> Self {
                Self { device, raw }
            }

            /// Returns the index of the handle's device.
            #[must_use]
            pub const fn device(self) -> usize {
                self.device
            }

            /// Returns the driver's value of the handle.
            #[must_use]
            pub const fn raw(self) -> u64 {
                self.raw
            }
        }
    )*};
}

handles! {
    /// A stream (`CUstream`). The value 0 is the legacy default stream.
    StreamHandle;
    /// An event (`CUevent`).
    EventHandle;
    /// A loaded module (`CUmodule`).
    ModuleHandle;
    /// A kernel of a loaded module (`CUfunction`).
    FunctionHandle;
    /// Physical device memory (`CUmemGenericAllocationHandle`).
    PhysicalHandle;
    /// A captured graph (`CUgraph`).
    GraphHandle;
    /// An instantiated graph (`CUgraphExec`).
    GraphExecHandle;
    /// A stream-ordered memory pool (`CUmemoryPool`).
    MemPoolHandle;
    /// A condition of a graph (`CUgraphConditionalHandle`). Kernels of the graph set its value.
    ConditionHandle;
}

impl StreamHandle {
    /// Returns the legacy default stream of a device, which always exists.
    #[must_use]
    pub const fn default_of(device: usize) -> Self {
        Self { device, raw: 0 }
    }
}

/// The kind of a conditional node (`CUgraphConditionalNodeType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionalKind {
    /// Runs the body once if the condition is not zero.
    If,
    /// Runs the body again and again as long as the condition is not zero. The condition is tested
    /// before each run.
    While,
}

/// Properties and limits of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProperties {
    /// The marketing name, such as `NVIDIA H200`.
    pub name: String,
    /// UUID of the device, which `CUDA_VISIBLE_DEVICES` takes in text form after `GPU-`.
    pub uuid: [u8; 16],
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Total memory in bytes.
    pub total_memory: usize,
    /// Number of streaming multiprocessors.
    pub multiprocessor_count: u32,
    /// Largest number of resident threads per multiprocessor.
    pub max_threads_per_multiprocessor: u32,
    /// Largest number of threads per block.
    pub max_threads_per_block: u32,
    /// Largest size of a block in x, y and z, in threads.
    pub max_block_dim: [u32; 3],
    /// Largest size of a grid in x, y and z, in blocks.
    pub max_grid_dim: [u32; 3],
    /// Number of threads per warp.
    pub warp_size: u32,
    /// Shared memory that a block can use by default, in bytes.
    pub shared_memory_per_block: usize,
    /// Shared memory that a block can use after `cuFuncSetAttribute`, in bytes.
    pub shared_memory_per_block_optin: usize,
    /// Size of the L2 cache, in bytes.
    pub l2_cache_size: usize,
    /// Width of the memory bus in bits, and its clock in kHz.
    pub memory_bus: (u32, u32),
    /// PCI domain, bus and device number.
    pub pci: (u32, u32, u32),
    /// Whether the device supports virtual memory management.
    pub virtual_memory_management: bool,
    /// Whether the device supports stream-ordered memory pools.
    pub memory_pools: bool,
    /// Whether the GPU is integrated into the host's chip.
    pub integrated: bool,
}

/// Free and total memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// Memory that no process uses.
    pub free: usize,
    /// Memory of the device.
    pub total: usize,
}

/// A process with a context on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuProcess {
    /// Identifier of the process.
    pub pid: u32,
    /// Device memory that the process uses, in bytes, including contexts and modules. `None` if
    /// unknown.
    pub memory: Option<usize>,
}

/// Options of a new stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFlags {
    /// Whether the stream does not synchronize with the legacy default stream
    /// (`CU_STREAM_NON_BLOCKING`). Default: false.
    pub non_blocking: bool,
    /// Priority; work of lower numbers runs first. The driver clamps the value to the device's
    /// range. Default: 0.
    pub priority: i32,
}

/// Options of a new event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFlags {
    /// Whether the event records times. Default: false.
    pub timing: bool,
    /// Whether a host wait sleeps instead of spinning. Default: false.
    pub blocking: bool,
    /// Whether other processes can open the event. Cannot be combined with `timing`. Default:
    /// false.
    pub interprocess: bool,
}

impl EventFlags {
    /// Creates the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the event records times. Default: false.
    #[must_use]
    pub fn enable_timing(mut self, timing: bool) -> Self {
        self.timing = timing;
        self
    }

    /// Sets whether a host wait sleeps instead of spinning. Default: false.
    #[must_use]
    pub fn blocking(mut self, blocking: bool) -> Self {
        self.blocking = blocking;
        self
    }

    /// Sets whether other processes can open the event. Cannot be combined with `enable_timing`. Default: false.
    #[must_use]
    pub fn interprocess(mut self, interprocess: bool) -> Self {
        self.interprocess = interprocess;
        self
    }
}

impl From<()> for EventFlags {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// Options of page-locked host memory, allocated or registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFlags {
    /// Whether the memory is page-locked for every context. Default: true.
    pub portable: bool,
    /// Whether devices can address the memory. Default: true.
    pub mapped: bool,
}

impl Default for HostFlags {
    fn default() -> Self {
        Self { portable: true, mapped: true }
    }
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub enum CopyEnd {
    /// Host memory, page-locked or not.
    Host(NonNull<u8>),
    /// Memory of a device.
    Device {
        /// Index of the device that owns the memory.
        device: usize,
        /// Address of the first byte.
        ptr: DevicePtr,
    },
}

/// A copy of `bytes` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Destination.
    pub dst: CopyEnd,
    /// Source.
    pub src: CopyEnd,
    /// Size, in bytes.
    pub bytes: usize,
}

/// The repeated value of a memset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemsetValue {
    /// One byte.
    U8(u8),
    /// Two bytes; the address must be a multiple of 2.
    U16(u16),
    /// Four bytes; the address must be a multiple of 4.
    U32(u32),
}

impl MemsetValue {
    /// Returns the size of an element, in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }
}

/// The kind of memory that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Host memory that the driver does not know.
    Pageable,
    /// Page-locked host memory.
    Pinned,
    /// Memory of the device with this index.
    Device(usize),
}

/// The access of a device to a memory range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemAccess {
    /// No access.
    None,
    /// Read access.
    Read,
    /// Read and write access.
    ReadWrite,
}

/// The threads in which a capture forbids unsafe calls (`CUstreamCaptureMode`). Unsafe calls are
/// those that CUDA documents as potentially unsafe, such as `cuMemAlloc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Unsafe calls are refused in every thread.
    Global,
    /// Unsafe calls are refused in the capturing thread.
    ThreadLocal,
    /// Unsafe calls are allowed.
    Relaxed,
}

/// The capture status of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// The stream is not being captured.
    None,
    /// The stream is being captured. The number identifies the capture.
    Active(u64),
    /// The stream was being captured, until a forbidden call invalidated the capture.
    Invalidated,
}

macro_rules! shared_handles {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        ///
        /// The handle's bytes may be sent to the other process in any way. Safe code cannot make a
        /// handle from bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub(crate) [u8; 64]);

        impl $name {
            /// Restores a handle from its bytes.
            ///
            /// # Safety
            /// [`to_bytes`](Self::to_bytes) returned the bytes, for a handle of this kind, in a
            /// process of this machine with the same driver. The driver trusts the bytes.
            #[must_use]
            pub const unsafe fn from_bytes(bytes: [u8; 64]) -> Self {
                Self(bytes)
            }

            /// Returns the bytes of the handle.
            #[must_use]
            pub const fn to_bytes(self) -> [u8; 64] {
                self.0
            }
        }
    )*};
}

shared_handles! {
    /// A handle with which another process opens this memory (`CUipcMemHandle`).
    IpcMemHandle;
    /// A handle with which another process opens this event (`CUipcEventHandle`).
    ///
    /// ```compile_fail,E0603
    /// let forged = warpline_cuda_sys_safe::IpcEventHandle([0; 64]);
    /// ```
    IpcEventHandle;
}

/// A file descriptor (on Windows a handle) that carries physical memory to another process. The
/// receiver closes it.
#[cfg(unix)]
pub type OsHandle = std::os::fd::OwnedFd;

/// A file descriptor (on Windows a handle) that carries physical memory to another process. The
/// receiver closes it.
#[cfg(windows)]
pub type OsHandle = std::os::windows::io::OwnedHandle;
