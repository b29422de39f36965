//! Physical memory shared by several processes. Each piece is a file in memory, so processes with
//! separate simulators share the bytes.

use std::sync::Arc;

use crate::sim::CallKind;
use crate::sim::backing::SharedFile;
use crate::sim::state::vmm::{PhysicalBacking, PhysicalState, aligned};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    pub(super) fn mem_create_shareable(
        &mut self,
        device: usize,
        bytes: usize,
    ) -> Result<PhysicalHandle> {
        let call = CallKind::MemCreate;
        self.has_virtual_memory(call, device)?;
        if !aligned(bytes) {
            return Err(self.not_a_multiple(call, device, bytes));
        }
        self.charge(call, device, bytes)?;
        match SharedFile::create(bytes) {
            Ok(file) => {
                let source = PhysicalBacking::Shared { file: Arc::new(file), imported: false };
                Ok(self.add_physical(PhysicalState::new(device, bytes, source)))
            }
            Err(why) => {
                self.devices[device].used -= bytes;
                let why = format!("the host cannot create a file to share: {why}");
                Err(error(call, CudaCode::NOT_SUPPORTED, device, &why))
            }
        }
    }

    pub(super) fn mem_export(&self, memory: PhysicalHandle) -> Result<OsHandle> {
        let refuse = |why: &str| {
            Err(error(CallKind::MemExport, CudaCode::INVALID_VALUE, memory.device(), why))
        };
        match self.physical.get(&memory.raw()).map(|physical| &physical.backing) {
            Some(PhysicalBacking::Shared { file, .. }) => {
                file.export().or_else(|why| refuse(&format!("the host refuses: {why}")))
            }
            Some(PhysicalBacking::Own(_)) => {
                refuse("the memory was not created for other processes")
            }
            None => refuse("the physical memory is not live"),
        }
    }

    pub(super) fn mem_import(
        &mut self,
        device: usize,
        bytes: usize,
        handle: OsHandle,
    ) -> Result<PhysicalHandle> {
        let call = CallKind::MemImport;
        self.has_virtual_memory(call, device)?;
        if !aligned(bytes) {
            return Err(self.not_a_multiple(call, device, bytes));
        }
        let file = SharedFile::import(handle, bytes).map_err(|why| {
            let why = format!(
                "the handle does not give {bytes} bytes of memory of a simulated device: {why}"
            );
            error(call, CudaCode::INVALID_VALUE, device, &why)
        })?;
        let source = PhysicalBacking::Shared { file: Arc::new(file), imported: true };
        Ok(self.add_physical(PhysicalState::new(device, bytes, source)))
    }
}
