//! Conversions of this crate's types to the driver's.

use std::ffi::{c_int, c_uint};
use std::ptr;

use cudarc::driver::sys::{
    CUevent, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemoryPool, CUstream,
};

use smallvec::SmallVec;

use crate::{CaptureMode, EventHandle, HostFlags, MemAccess, MemPoolHandle, StreamHandle};

/// `CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE`: describe a graph with all details, as PyTorch does.
pub(super) const VERBOSE_DOT: c_uint = 1;

pub(super) fn raw_stream(stream: StreamHandle) -> CUstream {
    stream.raw() as usize as CUstream
}

pub(super) fn raw_event(event: EventHandle) -> CUevent {
    event.raw() as usize as CUevent
}

pub(super) fn raw_pool(pool: MemPoolHandle) -> CUmemoryPool {
    pool.raw() as usize as CUmemoryPool
}

pub(super) const fn mode_number(mode: CaptureMode) -> u32 {
    match mode {
        CaptureMode::Global => 0,
        CaptureMode::ThreadLocal => 1,
        CaptureMode::Relaxed => 2,
    }
}

/// Returns the capture mode of a number of the driver.
pub(super) const fn mode_of(number: u32) -> CaptureMode {
    match number {
        0 => CaptureMode::Global,
        1 => CaptureMode::ThreadLocal,
        _ => CaptureMode::Relaxed,
    }
}

pub(super) fn on_device(device: usize) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device as c_int }
}

pub(super) fn raw_access(access: &[(usize, MemAccess)]) -> SmallVec<[CUmemAccessDesc; 8]> {
    use CUmemAccess_flags::*;
    let raw = |&(device, access): &(usize, MemAccess)| CUmemAccessDesc {
        location: on_device(device),
        flags: match access {
            MemAccess::None => CU_MEM_ACCESS_FLAGS_PROT_NONE,
            MemAccess::Read => CU_MEM_ACCESS_FLAGS_PROT_READ,
            MemAccess::ReadWrite => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        },
    };
    access.iter().map(raw).collect()
}

pub(super) fn pinned_on(device: usize) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: on_device(device),
        win32HandleMetaData: ptr::null_mut(),
        // SAFETY: the fields are plain integers. Zero is valid for each and means the default.
        allocFlags: unsafe { std::mem::zeroed() },
    }
}

/// Returns allocation properties of memory that is shared through a file descriptor.
#[cfg(unix)]
pub(super) fn shareable_on(device: usize) -> CUmemAllocationProp {
    CUmemAllocationProp {
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        ..pinned_on(device)
    }
}

/// `CUmemAllocationProp` as the driver writes it, with integers for its enums.
#[derive(Default)]
#[repr(C)]
pub(super) struct WrittenProperties {
    kind: c_uint,
    handle_types: c_uint,
    location_kind: c_uint,
    location: c_int,
    meta_data: usize,
    flags: [u8; 8],
}

impl WrittenProperties {
    /// Returns the index of the memory's device, if the memory is on a device.
    #[cfg(unix)]
    pub(super) fn device(&self) -> Option<usize> {
        let on_device = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint;
        usize::try_from(self.location).ok().filter(|_| self.location_kind == on_device)
    }
}

const PORTABLE: u32 = 1;
const MAPPED: u32 = 2;

pub(super) fn host_flags(flags: HostFlags) -> u32 {
    u32::from(flags.portable) * PORTABLE + u32::from(flags.mapped) * MAPPED
}
