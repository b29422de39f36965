//! Plain values that cross the driver interface: addresses, handles, flags, properties.

use std::fmt;
use std::ptr::NonNull;

/// An address in device memory.
///
/// It cannot be made from a number by safe code, so whoever holds one was given it by a driver.
/// It does not keep the memory alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)] // kernels' pointer arguments are passed by address
pub struct DevicePtr(u64);

impl DevicePtr {
    /// The address that no allocation has.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// Makes an address from a number.
    ///
    /// # Safety
    /// Every use of the result must lie inside memory that the driver it is given to has
    /// allocated or mapped and not yet released.
    #[must_use]
    pub const unsafe fn from_raw(address: u64) -> Self {
        Self(address)
    }

    /// The address as a number. As with `pointer::addr`, only coming back is unsafe.
    #[must_use]
    pub const fn addr(self) -> u64 {
        self.0
    }

    /// The address `bytes` further on.
    ///
    /// # Safety
    /// As [`DevicePtr::from_raw`].
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
        /// A raw driver handle with the device it belongs to. Only drivers make one from a number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            device: usize,
            raw: u64,
        }

        impl $name {
            /// Makes a handle from a number.
            ///
            /// # Safety
            /// `raw` must be a live handle of this kind, made by the driver that it is given to.
            #[must_use]
            pub const unsafe fn from_raw(device: usize, raw: u64) -> Self {
                Self { device, raw }
            }

            /// The device the handle belongs to.
            #[must_use]
            pub const fn device(self) -> usize {
                self.device
            }

            /// The driver's own value.
            #[must_use]
            pub const fn raw(self) -> u64 {
                self.raw
            }
        }
    )*};
}

handles! {
    /// A stream (`CUstream`); 0 is the legacy default stream.
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
}

impl StreamHandle {
    /// The legacy default stream of a device, which always exists.
    #[must_use]
    pub const fn default_of(device: usize) -> Self {
        Self { device, raw: 0 }
    }
}

/// What a device is and can do.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProperties {
    /// The marketing name, such as `NVIDIA H200`.
    pub name: String,
    /// The UUID that `CUDA_VISIBLE_DEVICES` takes after `GPU-`.
    pub uuid: [u8; 16],
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Total memory in bytes.
    pub total_memory: usize,
    /// Streaming multiprocessors.
    pub multiprocessor_count: u32,
    /// Resident threads a multiprocessor can hold.
    pub max_threads_per_multiprocessor: u32,
    /// Threads a block can have.
    pub max_threads_per_block: u32,
    /// Largest block extent in x, y, z.
    pub max_block_dim: [u32; 3],
    /// Largest grid extent in x, y, z.
    pub max_grid_dim: [u32; 3],
    /// Threads in a warp.
    pub warp_size: u32,
    /// Shared memory a block gets without asking for more, in bytes.
    pub shared_memory_per_block: usize,
    /// Shared memory a block can ask for, in bytes.
    pub shared_memory_per_block_optin: usize,
    /// Level-two cache, in bytes.
    pub l2_cache_size: usize,
    /// Memory bus width in bits and clock in kHz.
    pub memory_bus: (u32, u32),
    /// PCI domain, bus and device.
    pub pci: (u32, u32, u32),
    /// Whether virtual memory management works.
    pub virtual_memory_management: bool,
    /// Whether stream-ordered memory pools work.
    pub memory_pools: bool,
    /// Whether the GPU is part of the host's chip.
    pub integrated: bool,
}

/// Free and total memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// Bytes not in use by anyone.
    pub free: usize,
    /// Bytes the device has.
    pub total: usize,
}

/// How a stream is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFlags {
    /// Whether the stream ignores the legacy default stream (`CU_STREAM_NON_BLOCKING`).
    pub non_blocking: bool,
    /// Lower runs first; clamped by the driver to what the device has.
    pub priority: i32,
}

/// How an event is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFlags {
    /// Whether it keeps times.
    pub timing: bool,
    /// Whether a host wait sleeps instead of spinning.
    pub blocking: bool,
    /// Whether other processes may open it; excludes timing.
    pub interprocess: bool,
}

/// How page-locked host memory is made or registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFlags {
    /// Whether every context sees it as page-locked.
    pub portable: bool,
    /// Whether devices can address it.
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
        /// The device that owns the memory.
        device: usize,
        /// Its address.
        ptr: DevicePtr,
    },
}

/// A copy of `bytes` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Where to.
    pub dst: CopyEnd,
    /// Where from.
    pub src: CopyEnd,
    /// How many bytes.
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
    /// Bytes per element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }
}

/// What kind of memory an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Host memory the driver does not know.
    Pageable,
    /// Page-locked host memory.
    Pinned,
    /// Memory of a device.
    Device(usize),
}

/// Who may do what with a mapped range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemAccess {
    /// Nothing.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// What a capture lets other calls of the process or thread do (`CUstreamCaptureMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Unsafe calls are refused in every thread.
    Global,
    /// Unsafe calls are refused in the capturing thread.
    ThreadLocal,
    /// Unsafe calls are allowed.
    Relaxed,
}

/// Whether a stream is being captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// It is not.
    None,
    /// It is; the number names the capture.
    Active(u64),
    /// It was, until something forbidden happened.
    Invalidated,
}

macro_rules! shared_handles {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        ///
        /// Its bytes may be sent there in any way. Only drivers and [`from_bytes`](Self::from_bytes)
        /// make one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub(crate) [u8; 64]);

        impl $name {
            /// The handle that these are the bytes of.
            ///
            /// # Safety
            /// [`to_bytes`](Self::to_bytes) returned them, of a handle of this kind, in a process of
            /// this machine with the same driver: the driver believes what it reads there.
            #[must_use]
            pub const unsafe fn from_bytes(bytes: [u8; 64]) -> Self {
                Self(bytes)
            }

            /// Its bytes.
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
    /// ```compile_fail,E0423
    /// let forged = warpline_cuda_sys_safe::IpcEventHandle([0; 64]);
    /// ```
    IpcEventHandle;
}

/// What carries physical memory to another process: a file descriptor, or on Windows a handle.
/// Whoever receives it closes it.
#[cfg(unix)]
pub type OsHandle = std::os::fd::OwnedFd;

/// What carries physical memory to another process: a file descriptor, or on Windows a handle.
/// Whoever receives it closes it.
#[cfg(windows)]
pub type OsHandle = std::os::windows::io::OwnedHandle;
