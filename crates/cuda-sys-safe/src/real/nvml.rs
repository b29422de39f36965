//! NVML, which reports the device memory of each process, and counts devices without initialising
//! CUDA. NVML comes with the driver. If NVML is missing, or does not see this process under its own
//! id (as in most containers), the memory is unknown.

use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use crate::GpuProcess;
use crate::dylib::{LibrarySearch, function_table};

pub(super) const SEARCH: LibrarySearch = LibrarySearch {
    library: "NVML",
    variable: "WARPLINE_NVML",
    names: if cfg!(windows) { &["nvml.dll"] } else { &["libnvidia-ml.so.1"] },
    folders: super::api::SEARCH.folders,
};

/// `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used_gpu_memory: u64,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

impl From<ProcessInfo> for GpuProcess {
    fn from(ProcessInfo { pid, used_gpu_memory, .. }: ProcessInfo) -> Self {
        let memory = Some(used_gpu_memory).filter(|&bytes| bytes != NOT_AVAILABLE);
        Self { pid, memory: memory.and_then(|bytes| usize::try_from(bytes).ok()) }
    }
}

function_table! {
    struct NvmlApi of "NVML";
    required "a driver of 2022 or later" {
        nvmlInit_v2();
        nvmlDeviceGetCount_v2(*mut c_uint);
        nvmlDeviceGetHandleByIndex_v2(c_uint, *mut *mut c_void);
        nvmlDeviceGetUUID(*mut c_void, *mut c_char, c_uint);
        nvmlDeviceGetHandleByPciBusId_v2(*const c_char, *mut *mut c_void);
        nvmlDeviceGetComputeRunningProcesses_v3(*mut c_void, *mut c_uint, *mut ProcessInfo);
    }
    optional {}
}

const SUCCESS: c_uint = 0;
const INSUFFICIENT_SIZE: c_uint = 7;
/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;

/// Size of a buffer for a UUID, in bytes (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const UUID_BYTES: usize = 96;

/// Returns the processes with a context on a GPU. The argument is the PCI domain, bus and device
/// number of the GPU. Returns `None` if NVML is not available or does not answer.
pub(super) fn processes((domain, bus, device): (u32, u32, u32)) -> Option<Vec<GpuProcess>> {
    api()?.processes(&format!("{domain:08x}:{bus:02x}:{device:02x}.0"))
}

/// Returns the UUIDs of all devices. Returns `None` if NVML is not available or does not answer.
pub(super) fn uuids() -> Option<Vec<String>> {
    api()?.uuids()
}

/// Returns NVML, if it works. NVML is never shut down.
fn api() -> Option<&'static NvmlApi> {
    static API: OnceLock<Option<NvmlApi>> = OnceLock::new();
    let load = || {
        let library = SEARCH.open(&SEARCH.candidates(SEARCH.named_in_env().as_deref())).ok()?;
        // SAFETY: nvml.h declares these signatures. A changed signature gets a new function name.
        let api = unsafe { NvmlApi::resolve(library, |_| "unknown".to_owned()) }.ok()?;
        // SAFETY: the function takes no pointers.
        (unsafe { (api.nvmlInit_v2)() } == SUCCESS).then_some(api)
    };
    API.get_or_init(load).as_ref()
}

impl NvmlApi {
    fn uuids(&self) -> Option<Vec<String>> {
        let mut count = 0;
        // SAFETY: the pointer is valid for writes.
        let status = unsafe { (self.nvmlDeviceGetCount_v2)(&mut count) };
        (status == SUCCESS).then(|| (0..count).map(|index| self.uuid(index)).collect())?
    }

    fn uuid(&self, index: c_uint) -> Option<String> {
        let (mut device, mut text) = (ptr::null_mut(), [0u8; UUID_BYTES]);
        // SAFETY: the pointer is valid for writes.
        let status = unsafe { (self.nvmlDeviceGetHandleByIndex_v2)(index, &mut device) };
        if status != SUCCESS {
            return None;
        }
        let (place, bytes) = (text.as_mut_ptr().cast(), UUID_BYTES as c_uint);
        // SAFETY: the handle came from NVML, and the buffer has `bytes` bytes.
        let status = unsafe { (self.nvmlDeviceGetUUID)(device, place, bytes) };
        let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
        (status == SUCCESS).then(|| text.to_owned())
    }

    /// Returns the processes with a context on a device.
    fn processes(&self, pci: &str) -> Option<Vec<GpuProcess>> {
        let pci = CString::new(pci).ok()?;
        let mut device = ptr::null_mut();
        // SAFETY: the string is NUL-terminated, and the pointer is valid for writes.
        let status = unsafe { (self.nvmlDeviceGetHandleByPciBusId_v2)(pci.as_ptr(), &mut device) };
        if status != SUCCESS {
            return None;
        }
        let mut room = 32;
        loop {
            let mut processes = vec![ProcessInfo::default(); room as usize];
            let mut count = room;
            let list = self.nvmlDeviceGetComputeRunningProcesses_v3;
            // SAFETY: the handle came from NVML, and the vector has room for `count` entries.
            match unsafe { list(device, &mut count, processes.as_mut_ptr()) } {
                SUCCESS => {
                    processes.truncate(count as usize);
                    return Some(processes.into_iter().map(GpuProcess::from).collect());
                }
                // More processes may start before the next call, so make room for twice as many.
                INSUFFICIENT_SIZE if count > room => room = count.saturating_mul(2),
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::dylib::StatusCode;

    unsafe extern "C" fn init() -> StatusCode {
        SUCCESS
    }

    unsafe extern "C" fn find(pci: *const c_char, device: *mut *mut c_void) -> StatusCode {
        // SAFETY: the code under test passes valid pointers.
        unsafe {
            *device = ptr::dangling_mut();
            if CStr::from_ptr(pci) == c"00000000:1b:00.0" { SUCCESS } else { 6 }
        }
    }

    /// Writes a hundred entries. Process 7 has two of them, and the memory of process 8 is unknown.
    unsafe extern "C" fn list(
        _: *mut c_void,
        count: *mut c_uint,
        to: *mut ProcessInfo,
    ) -> StatusCode {
        // SAFETY: the code under test passes valid pointers.
        unsafe {
            let room = std::mem::replace(&mut *count, 100);
            if room < 100 {
                return INSUFFICIENT_SIZE;
            }
            for (at, process) in std::slice::from_raw_parts_mut(to, 100).iter_mut().enumerate() {
                process.pid = if at == 99 { 7 } else { at as u32 };
                process.used_gpu_memory = if at == 8 { NOT_AVAILABLE } else { at as u64 };
            }
        }
        SUCCESS
    }

    unsafe extern "C" fn count(count: *mut c_uint) -> StatusCode {
        // SAFETY: the code under test passes a valid pointer.
        unsafe { *count = 2 };
        SUCCESS
    }

    unsafe extern "C" fn at(index: c_uint, device: *mut *mut c_void) -> StatusCode {
        // SAFETY: the code under test passes a valid pointer.
        unsafe { *device = ptr::without_provenance_mut(1 + index as usize) };
        SUCCESS
    }

    unsafe extern "C" fn uuid(device: *mut c_void, to: *mut c_char, bytes: c_uint) -> StatusCode {
        let text = if device.addr() == 1 { c"GPU-0" } else { c"GPU-1" };
        assert!(text.count_bytes() < bytes as usize);
        // SAFETY: the code under test passes a buffer of this size.
        unsafe { text.as_ptr().copy_to(to, text.count_bytes() + 1) };
        SUCCESS
    }

    fn api() -> NvmlApi {
        NvmlApi {
            nvmlInit_v2: init,
            nvmlDeviceGetCount_v2: count,
            nvmlDeviceGetHandleByIndex_v2: at,
            nvmlDeviceGetUUID: uuid,
            nvmlDeviceGetHandleByPciBusId_v2: find,
            nvmlDeviceGetComputeRunningProcesses_v3: list,
            version: String::new(),
        }
    }

    #[test]
    fn processes_are_listed_however_many_there_are() {
        let processes = api().processes("00000000:1b:00.0").unwrap();
        let of = |pid| {
            let own = processes.iter().filter(|process| process.pid == pid);
            own.map(|process| process.memory).collect::<Vec<_>>()
        };
        assert_eq!(processes.len(), 100);
        assert_eq!((of(50), of(7)), (vec![Some(50)], vec![Some(7), Some(99)]));
        assert_eq!((of(8), of(1000)), (vec![None], vec![]));
        assert_eq!(api().processes("00000000:1c:00.0"), None);
    }

    #[test]
    fn devices_are_counted_by_their_uuids() {
        assert_eq!(api().uuids().unwrap(), ["GPU-0", "GPU-1"]);
    }
}
