//! A `libcuda` without a GPU, with only the calls of this program. Device memory is host memory,
//! and the kernel is written in Rust. Work runs at once but counts as pending until a wait covers
//! it, as on the slowest possible GPU. There is no virtual memory. The process ends if resources
//! are left when the context is destroyed.
#![allow(non_snake_case, clippy::missing_safety_doc)]

use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::Mutex;

const SUCCESS: u32 = 0;
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_READY: u32 = 600;
const NOT_SUPPORTED: u32 = 801;

const TOTAL: usize = 1 << 28;
const PAGE: usize = 2 << 20;

#[derive(Default)]
struct FakeState {
    /// Sizes of allocations, by address.
    memory: HashMap<usize, usize>,
    /// Numbers of enqueued and of completed operations, by stream.
    streams: HashMap<usize, (u64, u64)>,
    /// The stream that each event was last recorded on, and its number of operations at that time.
    events: HashMap<usize, Option<(usize, u64)>>,
    modules: usize,
    handles: usize,
}

static STATE: Mutex<Option<FakeState>> = Mutex::new(None);

fn with<T>(f: impl FnOnce(&mut FakeState) -> T) -> T {
    f(STATE.lock().unwrap().get_or_insert_default())
}

/// # Safety
/// `place` must be valid for a write of `T`.
unsafe fn give<T>(place: *mut T, value: T) -> u32 {
    // SAFETY: the caller passes a pointer that is valid for a write of `T`.
    unsafe { place.write(value) };
    SUCCESS
}

fn work(stream: usize) -> u32 {
    with(|state| state.streams.get_mut(&stream).map_or(INVALID_VALUE, |given| {
        given.0 += 1;
        SUCCESS
    }))
}

impl FakeState {
    fn handle(&mut self) -> usize {
        // Skips the handles 1 and 2, which CUDA reserves for default streams.
        self.handles += 16;
        self.handles
    }

    fn wait_for_all(&mut self) {
        self.streams.values_mut().for_each(|(given, done)| *done = *given);
    }

    fn is_done(&self, event: usize) -> Option<bool> {
        let recorded = *self.events.get(&event)?;
        let done = |(stream, number)| self.streams.get(&stream).is_none_or(|s| s.1 >= number);
        Some(recorded.is_none_or(done))
    }
}

macro_rules! calls {
    ($($name:ident($($arg:ident: $ty:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
            // SAFETY: the program passes pointers and handles that are valid for the real function.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )*};
}

calls! {
    cuInit(_flags: u32) { SUCCESS }
    cuDeviceGet(device: *mut i32, ordinal: i32) { give(device, ordinal) }
    cuDeviceGetAttribute(value: *mut i32, _attribute: u32, _device: i32) { give(value, 0) }
    cuDevicePrimaryCtxRetain(context: *mut usize, _device: i32) { give(context, 1) }
    cuDevicePrimaryCtxRelease_v2(_device: i32) {
        with(|s| {
            let left = [s.memory.len(), s.streams.len(), s.events.len(), s.modules];
            if left != [0; 4] {
                eprintln!("left behind: {left:?} of memory, streams, events, modules");
                std::process::abort();
            }
        });
        SUCCESS
    }
    cuCtxGetCurrent(context: *mut usize) { give(context, 1) }
    cuCtxSetCurrent(_context: usize) { SUCCESS }
    cuCtxSynchronize() { with(FakeState::wait_for_all); SUCCESS }
    cuStreamCreate(stream: *mut usize, _flags: u32) {
        give(stream, with(|s| {
            let handle = s.handle();
            s.streams.insert(handle, (0, 0));
            handle
        }))
    }
    cuStreamDestroy_v2(stream: usize) {
        with(|s| s.streams.remove(&stream)).map_or(INVALID_VALUE, |_| SUCCESS)
    }
    cuStreamSynchronize(stream: usize) {
        with(|s| s.streams.get_mut(&stream).map_or(INVALID_VALUE, |(given, done)| {
            *done = *given;
            SUCCESS
        }))
    }
    cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) {
        if with(|s| s.events.contains_key(&event)) { work(stream) } else { INVALID_VALUE }
    }
    cuEventCreate(event: *mut usize, _flags: u32) {
        give(event, with(|s| {
            let handle = s.handle();
            s.events.insert(handle, None);
            handle
        }))
    }
    cuEventRecord(event: usize, stream: usize) {
        with(|s| {
            let Some(&(given, _)) = s.streams.get(&stream) else { return INVALID_VALUE };
            s.events.insert(event, Some((stream, given)));
            SUCCESS
        })
    }
    cuEventQuery(event: usize) {
        match with(|s| s.is_done(event)) {
            Some(true) => SUCCESS,
            Some(false) => NOT_READY,
            None => INVALID_VALUE,
        }
    }
    cuEventSynchronize(event: usize) {
        with(|s| s.events.contains_key(&event).then(|| s.wait_for_all())).map_or(INVALID_VALUE, |()| SUCCESS)
    }
    cuEventDestroy_v2(event: usize) {
        with(|s| s.events.remove(&event)).map_or(INVALID_VALUE, |_| SUCCESS)
    }
    cuMemAlloc_v2(address: *mut usize, bytes: usize) {
        with(|s| {
            if s.memory.values().sum::<usize>() + bytes > TOTAL {
                return OUT_OF_MEMORY;
            }
            let place = alloc(Layout::from_size_align(bytes, PAGE).unwrap()) as usize;
            s.memory.insert(place, bytes);
            give(address, place)
        })
    }
    cuMemFree_v2(address: usize) {
        with(|s| {
            s.wait_for_all();
            let Some(bytes) = s.memory.remove(&address) else { return INVALID_VALUE };
            dealloc(address as *mut u8, Layout::from_size_align(bytes, PAGE).unwrap());
            SUCCESS
        })
    }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        give(total, TOTAL);
        give(free, TOTAL - with(|s| s.memory.values().sum::<usize>()))
    }
    cuMemGetAllocationGranularity(_bytes: *mut usize, _properties: *const c_void, _option: u32) {
        NOT_SUPPORTED
    }
    cuMemcpyHtoDAsync_v2(to: usize, from: *const u8, bytes: usize, stream: usize) {
        std::ptr::copy_nonoverlapping(from, to as *mut u8, bytes);
        work(stream)
    }
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: usize, bytes: usize, stream: usize) {
        std::ptr::copy_nonoverlapping(from as *const u8, to, bytes);
        work(stream)
    }
    cuModuleLoadData(module: *mut usize, _image: *const c_void) {
        with(|s| s.modules += 1);
        give(module, 1)
    }
    cuModuleUnload(_module: usize) { with(|s| s.modules -= 1); SUCCESS }
    cuModuleGetFunction(function: *mut usize, _module: usize, _name: *const c_char) { give(function, 1) }
    cuLaunchKernel(
        _function: usize, _x: u32, _y: u32, _z: u32, _bx: u32, _by: u32, _bz: u32, _shared: u32,
        stream: usize, arguments: *const *const c_void, _extra: *const c_void
    ) {
        let place = |i: usize| (*arguments.add(i)).cast::<u64>().read_unaligned() as *mut f32;
        let number = |i: usize| (*arguments.add(i)).cast::<f32>().read();
        let n = (*arguments.add(4)).cast::<u32>().read() as usize;
        for i in 0..n {
            place(0).add(i).write(number(2) * place(1).add(i).read() + number(3));
        }
        work(stream)
    }
}
