//! Kernel launches, and work that loses the process's devices.

use std::panic::Location;
use std::time::Duration;

use warpline_cuda_sys_safe::{self as cuda, *};

use crate::model::PAGE;
use crate::step::{Fault, Id};
use crate::subject::Subject;

impl Subject {
    /// Launches one of the kernels.
    ///
    /// # Safety
    /// The kernel may access the addresses, unless the launch is meant to fail.
    pub(super) unsafe fn launch(
        &self,
        stream: Id,
        [dst, src]: [(usize, DevicePtr); 2],
        (grid, block, shared_bytes): ([u32; 3], [u32; 3], u32),
        params: [u32; 2],
        stop: bool,
    ) -> Result<()> {
        let stream = self.streams[&stream];
        let kernels = self.kernels[stream.device()];
        let function = if stop { kernels.stop } else { kernels.add };
        let sizes = [params[0] as usize];
        let side = |(device, ptr), access| Footprint {
            ptr,
            device,
            item_size: 4,
            sizes: &sizes,
            strides: &[1],
            access,
        };
        let launch = cuda::Launch {
            op: "add_scalar",
            code: DeviceCode::Kernel { function, grid, block, shared_bytes, waits: false },
            host: if stop { stop_host } else { add_host },
            footprints: &[side(dst, Access::Write), side(src, Access::Read)],
            params: &params.map(u32::to_ne_bytes).concat(),
            location: Location::caller(),
        };
        // SAFETY: the caller guarantees that the kernel may access the addresses. The arguments
        // match the parameters of the kernel.
        unsafe { self.driver.launch(stream, &launch) }
    }

    /// Enqueues work that fails when it runs, and lets the work run.
    ///
    /// # Safety
    /// The caller accepts that the process loses all its devices.
    pub(super) unsafe fn inject_fault(&mut self, stream: Id, how: Fault) -> Result<()> {
        let driver = self.driver.clone();
        let device = self.streams[&stream].device();
        let one = ([1; 3], [32, 1, 1], 0);
        // SAFETY: the device refuses the accesses, so they change no memory.
        unsafe {
            let memory = driver.mem_alloc(device, 4096)?;
            let nowhere = DevicePtr::from_raw(16);
            let target = match how {
                Fault::Nowhere | Fault::InGraph => nowhere,
                Fault::Trap => memory,
                Fault::Misaligned => memory.offset(2),
                Fault::Unmapped => driver.address_reserve(device, PAGE)?,
            };
            if how == Fault::InGraph {
                let raw = self.streams[&stream];
                driver.begin_capture(raw, CaptureMode::Relaxed)?;
                self.launch(stream, [(device, target); 2], one, [32, 1], false)?;
                let exec = driver.graph_instantiate(driver.end_capture(raw)?)?;
                driver.graph_launch(exec, raw)?;
            } else {
                let ends = [(device, target), (device, memory)];
                self.launch(stream, ends, one, [32, 1], how == Fault::Trap)?;
            }
        }
        match &self.sim {
            Some(sim) => sim.run_all(),
            None => std::thread::sleep(Duration::from_millis(50)),
        }
        Ok(())
    }
}

/// Runs the add kernel on the CPU.
///
/// # Safety
/// The same as [`HostKernel`].
unsafe fn add_host(launch: &HostLaunch<'_>) {
    let word = |i: usize| u32::from_ne_bytes(launch.params[4 * i..4 * i + 4].try_into().unwrap());
    let (dst, src) = (launch.pointers[0].cast::<u32>(), launch.pointers[1].cast::<u32>());
    for i in 0..word(0) as usize {
        // SAFETY: both footprints have this many elements.
        unsafe { dst.add(i).write(src.add(i).read().wrapping_add(word(1))) };
    }
}

/// Panics, because the kernel traps.
///
/// # Safety
/// The same as [`HostKernel`].
unsafe fn stop_host(_: &HostLaunch<'_>) {
    std::panic::resume_unwind(Box::new("as the kernel traps"));
}
