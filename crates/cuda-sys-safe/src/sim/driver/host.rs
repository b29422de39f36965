//! Page-locked host memory.

use std::ptr::{NonNull, with_exposed_provenance_mut};

use crate::sim::CallKind;
use crate::sim::backing::HostMapping;
use crate::sim::state::memory::{HostOverlap, HostRange};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    pub(super) fn host_alloc(&mut self, device: usize, bytes: usize) -> Result<NonNull<u8>> {
        let call = CallKind::HostAlloc;
        if bytes == 0 {
            return Err(error(call, CudaCode::INVALID_VALUE, device, "zero bytes"));
        }
        let full = || error(call, CudaCode::OUT_OF_MEMORY, device, "");
        let mapping = isize::try_from(bytes)
            .ok()
            .and_then(|_| HostMapping::anonymous(bytes).ok())
            .ok_or_else(full)?;
        let ptr = NonNull::new(with_exposed_provenance_mut(mapping.base)).ok_or_else(full)?;
        self.memory.host.insert(mapping.base, HostRange { bytes, owned: Some(mapping) });
        Ok(ptr)
    }

    /// Checks that `ptr` is the start of memory that a release accepts: of a live allocation for
    /// `HostFree`, of a registered range for `HostUnregister`.
    pub(super) fn check_host(&self, call: CallKind, device: usize, ptr: NonNull<u8>) -> Result<()> {
        let range = self.memory.host.get(&ptr.as_ptr().expose_provenance());
        match (call, range) {
            (CallKind::HostFree, Some(range)) if range.owned.is_some() => Ok(()),
            (CallKind::HostUnregister, Some(range)) if range.owned.is_none() => Ok(()),
            (CallKind::HostUnregister, None) => {
                Err(error(call, CudaCode::HOST_MEMORY_NOT_REGISTERED, device, ""))
            }
            _ => {
                let why = format!("{ptr:?} is not live page-locked memory of this driver");
                Err(error(call, CudaCode::INVALID_VALUE, device, &why))
            }
        }
    }

    /// Frees or unregisters memory that `check_host` accepted. The caller must have waited for all
    /// devices.
    pub(super) fn host_release(&mut self, ptr: NonNull<u8>) {
        let base = ptr.as_ptr().expose_provenance();
        if let Some(mapping) = self.memory.host.remove(&base).and_then(|range| range.owned) {
            mapping.make_inaccessible(0, mapping.bytes);
            self.memory.freed_host.insert(base, mapping);
        }
    }

    pub(super) fn host_register(
        &mut self,
        device: usize,
        ptr: NonNull<u8>,
        bytes: usize,
    ) -> Result<()> {
        let call = CallKind::HostRegister;
        if bytes == 0 {
            return Err(error(call, CudaCode::INVALID_VALUE, device, "zero bytes"));
        }
        let base = ptr.as_ptr().expose_provenance();
        match self.memory.host_range(base, bytes) {
            HostOverlap::None => {
                self.memory.host.insert(base, HostRange { bytes, owned: None });
                Ok(())
            }
            HostOverlap::Freed => Err(error(call, CudaCode::INVALID_VALUE, device, "freed memory")),
            _ if self.memory.is_own_host(base, bytes) => {
                let why = "the driver allocated this memory, which is page-locked already";
                Err(error(call, CudaCode::INVALID_VALUE, device, why))
            }
            _ => Err(error(call, CudaCode::HOST_MEMORY_ALREADY_REGISTERED, device, "")),
        }
    }
}
