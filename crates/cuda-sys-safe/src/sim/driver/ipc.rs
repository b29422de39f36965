//! Handles for other processes. Processes share no simulator, so opening a handle always fails: in
//! the same process with the real driver's error, in another process with `NOT_SUPPORTED`.

use crate::sim::CallKind;
use crate::sim::state::memory::{Region, RegionKind};
use crate::sim::state::{SimState, error};
use crate::*;

fn bytes(device: usize, value: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
    bytes[8..16].copy_from_slice(&(device as u64).to_le_bytes());
    bytes[16..24].copy_from_slice(&value.to_le_bytes());
    bytes
}

impl SimState {
    pub(super) fn ipc_mem_handle(&self, device: usize, ptr: DevicePtr) -> Result<IpcMemHandle> {
        match self.memory.region(ptr.addr(), 1) {
            Some(Region {
                kind: RegionKind::Alloc { freeing: false },
                device: owner,
                base,
                ..
            }) if *owner == device => Ok(IpcMemHandle(bytes(device, *base))),
            _ => {
                let why = format!("{ptr:?} is not in a cuMemAlloc allocation");
                Err(error(CallKind::IpcMemHandle, CudaCode::INVALID_VALUE, device, &why))
            }
        }
    }

    pub(super) fn ipc_event_handle(&self, event: EventHandle) -> Result<IpcEventHandle> {
        match self.events.get(&event.raw()) {
            Some(known) if known.flags.interprocess => {
                Ok(IpcEventHandle(bytes(event.device(), event.raw())))
            }
            _ => {
                let why = "the event was not made for other processes";
                let call = CallKind::IpcEventHandle;
                Err(error(call, CudaCode::INVALID_HANDLE, event.device(), why))
            }
        }
    }

    pub(super) fn ipc_open(&self, call: CallKind, device: usize, handle: &[u8; 64]) -> DriverError {
        if handle[..4] == std::process::id().to_le_bytes() {
            let why = "a handle cannot be opened in the process that made it";
            return error(call, CudaCode::INVALID_CONTEXT, device, why);
        }
        error(call, CudaCode::NOT_SUPPORTED, device, "simulated memory stays in its process")
    }
}
