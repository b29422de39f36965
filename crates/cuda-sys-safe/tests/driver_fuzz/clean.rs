//! Releases the objects that a program has left.

use warpline_cuda_sys_safe::*;

use crate::model::PAGE;
use crate::step::FIRST_STREAM;
use crate::subject::{BufferMemory, Subject, layout, name};

impl Subject {
    /// Releases all objects, in an order that the driver must accept. Returns the refused releases.
    pub(crate) fn clean(&mut self) -> Vec<String> {
        let mut refused = Vec::new();
        let driver = self.driver.clone();
        let d = &*driver;
        let devices = self.devices;
        let mut note = |what: &str, result: Result<()>| {
            if let Err(error) = result {
                refused.push(format!("{what}: {}", name(&error)));
            }
        };
        if let Some(gate) = self.gate.take() {
            gate.open();
        }
        // SAFETY: all released objects are alive. No work uses them: captures are ended and all
        // devices are synchronized first.
        unsafe {
            for (&id, &stream) in self.streams.range(FIRST_STREAM..) {
                let captured = d.capture_status(stream);
                if captured.is_ok_and(|status| status != CaptureStatus::None) {
                    // A stream that joined a capture leaves it when the origin's capture ends.
                    if let Ok(graph) = d.end_capture(stream) {
                        self.graphs.insert(u16::MAX - id, graph);
                    }
                }
            }
            // Destroy streams with a capture that cannot be ended. No synchronization succeeds
            // while such a stream exists.
            self.streams.retain(|&id, stream| {
                let captured = id >= FIRST_STREAM
                    && d.capture_status(*stream).is_ok_and(|s| s != CaptureStatus::None);
                if captured {
                    self.undefined_state = true;
                    note("StreamDestroy", d.stream_destroy(*stream));
                }
                !captured
            });
            for device in 0..devices {
                note(
                    "restoring the mode",
                    d.exchange_capture_mode(device, CaptureMode::Global).map(drop),
                );
                let idle = d.synchronize(device);
                if idle.is_err() {
                    // Running work may use the other objects, so they are leaked.
                    note("Synchronize", idle);
                    return refused;
                }
            }
            while let Some((_, exec)) = self.execs.pop_first() {
                note("ExecDestroy", d.graph_exec_destroy(exec));
            }
            while let Some((_, graph)) = self.graphs.pop_first() {
                note("GraphDestroy", d.graph_destroy(graph));
            }
            while let Some((_, event)) = self.events.pop_first() {
                note("EventDestroy", d.event_destroy(event));
            }
            while let Some((id, stream)) = self.streams.pop_last() {
                if id >= FIRST_STREAM {
                    note("StreamDestroy", d.stream_destroy(stream));
                }
            }
            while let Some((_, buf)) = self.bufs.pop_first() {
                match buf {
                    // An empty buffer has no allocation.
                    BufferMemory::Device { ptr: DevicePtr::NULL, .. } => {}
                    BufferMemory::Device { device, ptr, pool: false } => {
                        note("MemFree", d.mem_free(device, ptr));
                    }
                    BufferMemory::Device { device, ptr, pool: true } => {
                        let default = StreamHandle::default_of(device);
                        note("FreeAsync", d.mem_free_async(ptr, default));
                    }
                    BufferMemory::Pinned { device, ptr, .. } => {
                        note("HostFree", d.host_free(device, ptr))
                    }
                    BufferMemory::Own { ptr, bytes, registered } => {
                        let unknown = if registered { d.host_unregister(0, ptr) } else { Ok(()) };
                        if unknown.is_ok() {
                            std::alloc::dealloc(ptr.as_ptr(), layout(bytes));
                        }
                        note("HostUnregister", unknown);
                    }
                }
            }
            if !self.pools.is_empty() {
                // Pools are destroyed after all their memory is freed.
                for device in 0..devices {
                    note("Synchronize", d.synchronize(device));
                }
            }
            while let Some((_, pool)) = self.pools.pop_first() {
                note("PoolDestroy", d.mempool_destroy(pool));
            }
            while let Some((_, range)) = self.ranges.pop_first() {
                for (page, (pages, _)) in range.mappings {
                    let at = range.ptr.offset((page * PAGE) as i64);
                    note("Unmap", d.mem_unmap(range.device, at, pages * PAGE));
                }
                note("AddressFree", d.address_free(range.device, range.ptr, range.pages * PAGE));
            }
            while let Some((_, memory)) = self.physical.pop_first() {
                note("Release", d.mem_release(memory));
            }
            while let Some((device, peer)) = self.peers.pop() {
                self.peers.retain(|&p| p != (device, peer));
                note("PeerDisable", d.disable_peer_access(device, peer));
            }
            for device in 0..devices {
                note("the last Synchronize", d.synchronize(device));
            }
        }
        self.host_fn_log.lock().expect("no panic under the lock").clear();
        if let Some(sim) = self.sim.clone().filter(|_| !self.reused) {
            self.settled(&sim, &mut refused);
        } else {
            self.add_default_streams();
        }
        refused
    }

    /// Checks that the simulator, which serves only one program, has no objects left.
    fn settled(&mut self, sim: &sim::SimDriver, refused: &mut Vec<String>) {
        for kernels in self.kernels.drain(..) {
            // SAFETY: all work is done, so no kernel of the module is running.
            if let Err(error) = unsafe { self.driver.module_unload(kernels.module) } {
                refused.push(format!("ModuleUnload: {}", name(&error)));
            }
        }
        if !sim.usage().all_released() {
            refused.push(format!("left over: {:?}", sim.usage()));
        }
        refused.extend(sim.violations().iter().map(|v| format!("{v:?}")));
        refused.extend(sim.overruns().iter().map(|o| format!("{o:?}")));
    }

    /// Forgets the buffers without releasing them, because the process has lost its devices.
    pub(crate) fn forget(&mut self) {
        self.bufs.clear();
    }
}
