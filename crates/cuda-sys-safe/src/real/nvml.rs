//! NVML, which reports the device memory of each process. NVML comes with the driver. If NVML is
//! missing, or does not see this process under its own id (as in most containers), the memory is
//! unknown.

use std::ffi::{CString, c_char, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

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

function_table! {
    struct NvmlApi of "NVML";
    required "a driver of 2022 or later" {
        nvmlInit_v2();
        nvmlDeviceGetHandleByPciBusId_v2(*const c_char, *mut *mut c_void);
        nvmlDeviceGetComputeRunningProcesses_v3(*mut c_void, *mut c_uint, *mut ProcessInfo);
    }
    optional {}
}

const SUCCESS: c_uint = 0;
const INSUFFICIENT_SIZE: c_uint = 7;
/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;

/// Returns the device memory that this process uses, in bytes. The argument is the PCI domain, bus
/// and device number of the GPU. Returns `None` if NVML is not available or does not know the
/// amount.
pub(super) fn process_memory((domain, bus, device): (u32, u32, u32)) -> Option<usize> {
    api()?.used_by(std::process::id(), &format!("{domain:08x}:{bus:02x}:{device:02x}.0"))
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
    fn used_by(&self, pid: u32, pci: &str) -> Option<usize> {
        // A device that is partitioned into instances has one entry per instance.
        let own = self.processes(pci)?.into_iter().filter(|process| process.pid == pid);
        let used: Vec<u64> = own.map(|process| process.used_gpu_memory).collect();
        if used.is_empty() || used.contains(&NOT_AVAILABLE) {
            return None;
        }
        usize::try_from(used.iter().sum::<u64>()).ok()
    }

    /// Returns the processes with a context on a device.
    fn processes(&self, pci: &str) -> Option<Vec<ProcessInfo>> {
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
                    return Some(processes);
                }
                // Processes may have started since the last call, so ask for twice as many.
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

    #[test]
    fn a_process_is_found_among_many() {
        let api = NvmlApi {
            nvmlInit_v2: init,
            nvmlDeviceGetHandleByPciBusId_v2: find,
            nvmlDeviceGetComputeRunningProcesses_v3: list,
            version: String::new(),
        };
        assert_eq!(api.used_by(50, "00000000:1b:00.0"), Some(50));
        assert_eq!(api.used_by(7, "00000000:1b:00.0"), Some(7 + 99));
        assert_eq!(api.used_by(8, "00000000:1b:00.0"), None);
        assert_eq!(api.used_by(1000, "00000000:1b:00.0"), None);
        assert_eq!(api.used_by(50, "00000000:1c:00.0"), None);
    }
}
