//! Helpers for the programs: a transcript, and short names for driver calls.

use std::ptr::NonNull;
use std::sync::Arc;

use warpline_cuda_sys_safe::owned::{DeviceMemory, Event, Function, HostMemory, Module, Stream};
use warpline_cuda_sys_safe::*;

/// The observations of a program, line by line.
#[derive(Debug, Default)]
pub(crate) struct Transcript(pub(crate) Vec<String>);

impl Transcript {
    pub(crate) fn say(&mut self, what: &str, seen: impl std::fmt::Debug) {
        self.0.push(format!("{what}: {seen:?}"));
    }

    /// Records the result of a call: `ok`, or the name of its error.
    pub(crate) fn call<T>(&mut self, what: &str, result: Result<T>) {
        let seen = match result {
            Ok(_) => "ok".into(),
            Err(error) => name(&error),
        };
        self.0.push(format!("{what}: {seen}"));
    }
}

/// Returns the name of an error's code, or the message of an error without a code.
pub(crate) fn name(error: &DriverError) -> String {
    match error.code() {
        Some(code) => code.name().trim_start_matches("CUDA_ERROR_").into(),
        None => error.to_string(),
    }
}

pub(crate) type Program = fn(&Arc<dyn Driver>, &mut Transcript) -> Result<()>;

pub(crate) fn stream(driver: &Arc<dyn Driver>, device: usize) -> Result<Stream> {
    Stream::new(driver, device, StreamFlags { non_blocking: true, priority: 0 })
}

pub(crate) fn blocking_stream(driver: &Arc<dyn Driver>, device: usize) -> Result<Stream> {
    Stream::new(driver, device, StreamFlags::default())
}

pub(crate) fn event(driver: &Arc<dyn Driver>, timing: bool) -> Result<Event> {
    Event::new(driver, 0, EventFlags { timing, ..EventFlags::default() })
}

pub(crate) fn memory(driver: &Arc<dyn Driver>, bytes: usize) -> Result<DeviceMemory> {
    let memory = DeviceMemory::new(driver, 0, bytes)?;
    let default = Stream::default_of(driver, 0);
    fill(&default, &memory, 0)?;
    default.synchronize()?;
    Ok(memory)
}

pub(crate) fn dev(memory: &DeviceMemory) -> CopyEnd {
    CopyEnd::Device { device: memory.device(), ptr: memory.ptr() }
}

/// Fills memory with a byte, on a stream.
pub(crate) fn fill(stream: &Stream, memory: &DeviceMemory, value: u8) -> Result<()> {
    let value = MemsetValue::U8(value);
    // SAFETY: programs keep memory until its work is done, and freeing waits for the work, too.
    unsafe { stream.driver().memset_async(memory.ptr(), value, memory.bytes(), stream.handle()) }
}

pub(crate) fn copy_async(stream: &Stream, dst: CopyEnd, src: CopyEnd, bytes: usize) -> Result<()> {
    // SAFETY: programs keep both ends alive until the work is done.
    unsafe { stream.driver().memcpy_async(&Copy { dst, src, bytes }, stream.handle()) }
}

/// Returns host memory as an end of a copy.
pub(crate) fn host(bytes: &mut [u8]) -> CopyEnd {
    CopyEnd::Host(NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling()))
}

/// Waits for the device, then copies all of the memory to the host.
pub(crate) fn read(driver: &Arc<dyn Driver>, memory: &DeviceMemory) -> Result<Vec<u8>> {
    driver.synchronize(memory.device())?;
    let mut out = vec![0; memory.bytes()];
    let copy = Copy { dst: host(&mut out), src: dev(memory), bytes: memory.bytes() };
    // SAFETY: `out` has as many bytes as `memory`, and the call is synchronous.
    unsafe { driver.memcpy(memory.device(), &copy) }?;
    Ok(out)
}

/// Returns the bytes of a page-locked buffer that no work uses.
pub(crate) fn bytes(host: &HostMemory) -> &[u8] {
    // SAFETY: the bytes are initialised, and programs call this after all copies that write them.
    unsafe { std::slice::from_raw_parts(host.as_ptr().as_ptr(), host.bytes()) }
}

/// Fills a page-locked buffer that no work uses.
pub(crate) fn set_bytes(host: &HostMemory, value: u8) {
    // SAFETY: the buffer has this size, and programs call this when no copy uses it.
    unsafe { host.as_ptr().as_ptr().write_bytes(value, host.bytes()) };
}

pub(crate) const PTX: &str = include_str!("kernels.ptx");

pub(crate) fn add_scalar(driver: &Arc<dyn Driver>, device: usize) -> Result<Function> {
    Module::load_ptx(driver, device, PTX)?.function(c"add_scalar")
}

/// The launch configuration.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

pub(crate) const ONE_BLOCK: Shape = Shape { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 0 };

/// Computes `dst[i] = src[i] + addend` for `n` numbers, with the kernel `add_scalar`.
#[track_caller]
pub(crate) fn launch_add(
    stream: &Stream,
    function: &Function,
    shape: Shape,
    [dst, src]: [(usize, DevicePtr); 2],
    n: usize,
    addend: u32,
) -> Result<()> {
    let sizes = [n];
    let side = |(device, ptr), access| Footprint {
        ptr,
        device,
        item_size: 4,
        sizes: &sizes,
        strides: &[1],
        access,
    };
    let params = [n as u32, addend].map(u32::to_ne_bytes).concat();
    let Shape { grid, block, shared_bytes } = shape;
    let launch = Launch {
        op: "add_scalar",
        code: DeviceCode::Kernel {
            function: function.handle(),
            grid,
            block,
            shared_bytes,
            waits: false,
        },
        host: add_scalar_host,
        footprints: &[side(dst, Access::Write), side(src, Access::Read)],
        params: &params,
        location: std::panic::Location::caller(),
    };
    // SAFETY: programs keep the memory until the work is done. The arguments match the
    // parameters of the kernel.
    unsafe { stream.driver().launch(stream.handle(), &launch) }
}

/// Runs `add_scalar` on the CPU.
///
/// # Safety
/// The same as [`HostKernel`].
unsafe fn add_scalar_host(launch: &HostLaunch<'_>) {
    let word = |i: usize| u32::from_ne_bytes(launch.params[4 * i..4 * i + 4].try_into().unwrap());
    let (dst, src) = (launch.pointers[0].cast::<u32>(), launch.pointers[1].cast::<u32>());
    for i in 0..word(0) as usize {
        // SAFETY: both footprints have this many elements.
        unsafe { dst.add(i).write(src.add(i).read().wrapping_add(word(1))) };
    }
}

/// Converts bytes to numbers.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|c| u32::from_ne_bytes(c.try_into().unwrap())).collect()
}
