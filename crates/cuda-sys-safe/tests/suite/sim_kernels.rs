//! Checks of the simulated driver on kernels: footprints, access, redzones, alignment.

use std::ffi::CStr;
use std::panic::Location;
use std::sync::Arc;

use warpline_cuda_sys_safe::owned::{
    DeviceMemory, HostMemory, Module, PhysicalMemory, Reservation, Stream,
};
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver, ViolationKind};
use warpline_cuda_sys_safe::*;

use crate::one_thread;

struct World {
    sim: Arc<SimDriver>,
    driver: Arc<dyn Driver>,
    stream: Stream,
    module: Module,
}

const PTX: &str = ".version 8.0\n.target sm_75\n.visible .entry k(\n)\n{ ret; }\n";
const KERNEL: &CStr = c"k";

fn world(devices: usize, check_footprints: bool) -> World {
    let config =
        SimConfig { check_footprints, schedule: Schedule::Lazy, ..SimConfig::new(devices) };
    let sim = config.build();
    let driver: Arc<dyn Driver> = sim.clone();
    let flags = StreamFlags { non_blocking: true, priority: 0 };
    let stream = Stream::new(&driver, 0, flags).unwrap();
    let module = Module::load_ptx(&driver, 0, PTX).unwrap();
    World { sim, driver, stream, module }
}

fn bytes(device: usize, ptr: DevicePtr, sizes: &[usize], access: Access) -> Footprint<'_> {
    Footprint { ptr, device, item_size: 1, sizes, strides: &[1], access }
}

impl World {
    fn memory(&self, device: usize, bytes: usize) -> DeviceMemory {
        DeviceMemory::new(&self.driver, device, bytes).unwrap()
    }

    fn launch(&self, host: HostKernel, footprints: &[Footprint<'_>]) -> Result<()> {
        let function = self.module.function(KERNEL)?;
        let code = one_thread(function.handle());
        let location = Location::caller();
        let launch = Launch { op: "test", code, host, footprints, params: &[], location };
        // SAFETY: tests keep the memory until the stream is synchronized. `function` stays loaded.
        unsafe { self.driver.launch(self.stream.handle(), &launch) }?;
        self.stream.synchronize()
    }
}

/// Writes four bytes of the second operand, each plus one, to the first operand.
unsafe fn increment(launch: &HostLaunch<'_>) {
    for i in 0..4 {
        // SAFETY: each operand has four live bytes. In a copy, some may be guard bytes.
        unsafe { *launch.pointers[0].add(i) = (*launch.pointers[1].add(i)).wrapping_add(1) };
    }
}

/// Does the same as `increment`, and writes a fifth byte.
unsafe fn increment_too_far(launch: &HostLaunch<'_>) {
    // SAFETY: each operand has four live bytes. The fifth byte lies in the allocation, in its
    // redzone, or in the guard of the copy.
    unsafe {
        increment(launch);
        *launch.pointers[0].add(4) = 1;
    }
}

/// Does the same as `increment`, but for the first three bytes only.
unsafe fn increment_three(launch: &HostLaunch<'_>) {
    for i in 0..3 {
        // SAFETY: each operand has four live bytes.
        unsafe { *launch.pointers[0].add(i) = (*launch.pointers[1].add(i)).wrapping_add(1) };
    }
}

unsafe fn panics(_: &HostLaunch<'_>) {
    panic!("a panic in a kernel");
}

unsafe fn nothing(_: &HostLaunch<'_>) {}

#[test]
fn declared_kernels_pass_the_check() {
    let world = world(1, true);
    let (a, b) = (world.memory(0, 4), world.memory(0, 4));
    let four = [4];
    let pair = |dst, src| [bytes(0, dst, &four, Access::Write), bytes(0, src, &four, Access::Read)];
    world.launch(increment, &pair(a.ptr(), b.ptr())).unwrap();
    // In place: both operands are the same memory, read and written.
    world.launch(increment, &pair(a.ptr(), a.ptr())).unwrap();
    assert_eq!(world.sim.violations(), []);
}

#[test]
fn undeclared_accesses_are_found() {
    type Case = (HostKernel, [Access; 2], usize, ViolationKind, (usize, i64));
    let cases: [Case; 4] = [
        (increment, [Access::Write, Access::Write], 4, ViolationKind::UndeclaredRead, (0, 0)),
        (increment, [Access::Read, Access::Read], 4, ViolationKind::UndeclaredWrite, (0, 0)),
        (increment_three, [Access::Write, Access::Read], 4, ViolationKind::MissingWrite, (0, 3)),
        (
            increment_too_far,
            [Access::Write, Access::Read],
            4,
            ViolationKind::UndeclaredWrite,
            (0, 4),
        ),
    ];
    for (host, [dst, src], n, kind, (operand, offset)) in cases {
        let world = world(1, true);
        let (a, b) = (world.memory(0, 8), world.memory(0, 8));
        let sizes = [n];
        let operands = [bytes(0, a.ptr(), &sizes, dst), bytes(0, b.ptr(), &sizes, src)];
        let error = world.launch(host, &operands).unwrap_err();
        assert_eq!(error.code(), Some(CudaCode::LAUNCH_FAILED), "{kind:?}");
        let found = world.sim.violations();
        let found: Vec<_> = found.iter().map(|v| (v.op, v.kind, (v.operand, v.offset))).collect();
        assert_eq!(found, [("test", kind, (operand, offset))]);
        assert!(error.to_string().contains("`test`"), "{error}");
    }
}

#[test]
fn an_undeclared_read_is_found() {
    let world = world(1, true);
    let (a, b) = (world.memory(0, 4), world.memory(0, 4));
    let (four, two) = ([4], [2]);
    let operands = [bytes(0, a.ptr(), &four, Access::Write), bytes(0, b.ptr(), &two, Access::Read)];
    world.launch(increment, &operands).unwrap_err();
    let found = world.sim.violations();
    assert_eq!(found[0].kind, ViolationKind::UndeclaredRead);
    assert_eq!((found[0].operand, found[0].offset), (0, 2));
}

#[test]
fn strided_footprints_are_exact() {
    unsafe fn every_other(launch: &HostLaunch<'_>) {
        for i in 0..3 {
            // SAFETY: the operand has three bytes with stride -2.
            unsafe { *launch.pointers[0].sub(2 * i) = 7 };
        }
    }
    unsafe fn all(launch: &HostLaunch<'_>) {
        for i in 0..5 {
            // SAFETY: the bytes lie inside the operand's hull.
            unsafe { *launch.pointers[0].sub(i) = 7 };
        }
    }
    for (host, allowed) in [(every_other as HostKernel, true), (all, false)] {
        let world = world(1, true);
        let memory = world.memory(0, 8);
        let footprint = Footprint {
            ptr: memory.range(4, 0).unwrap(),
            device: 0,
            item_size: 1,
            sizes: &[3],
            strides: &[-2],
            access: Access::Write,
        };
        assert_eq!(world.launch(host, &[footprint]).is_ok(), allowed);
        assert_eq!(world.sim.violations().is_empty(), allowed);
    }
}

#[test]
fn redzones_catch_overruns() {
    let world = world(1, false);
    let (a, b) = (world.memory(0, 4), world.memory(0, 4));
    let four = [4];
    let operands =
        [bytes(0, a.ptr(), &four, Access::Write), bytes(0, b.ptr(), &four, Access::Read)];
    world.launch(increment, &operands).unwrap();
    assert_eq!(world.sim.overruns(), []);
    world.launch(increment_too_far, &operands).unwrap();
    let found = world.sim.overruns();
    assert_eq!((found.len(), found[0].base, found[0].offset), (1, a.ptr().addr(), 4));
    drop(a);
    assert!(world.driver.lost(0).is_some(), "the free reports the overrun again");
}

#[test]
fn illegal_addresses_are_found_when_the_kernel_runs() {
    let four = [4];
    // A range that extends beyond the allocation.
    let world_ = world(1, false);
    let memory = world_.memory(0, 4);
    let five = [5];
    let operand = bytes(0, memory.ptr(), &five, Access::Write);
    let error = world_.launch(nothing, &[operand]).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::ILLEGAL_ADDRESS));
    assert!(error.to_string().contains("tests/suite/sim_kernels.rs"), "{error}");

    // Memory of a peer, before and after access is enabled.
    for enable in [false, true] {
        let world = world(2, false);
        let far = world.memory(1, 4);
        if enable {
            world.driver.enable_peer_access(0, 1).unwrap();
        }
        let result = world.launch(nothing, &[bytes(1, far.ptr(), &four, Access::Read)]);
        assert_eq!(result.is_ok(), enable);
        assert_eq!(world.driver.lost(1).is_none(), enable, "the owner of the memory is lost, too");
    }

    // Mapped virtual memory. Peer access of the context does not apply; the access of the mapping
    // does.
    for access in [None, Some(MemAccess::Read), Some(MemAccess::None)] {
        let world = world(2, false);
        world.driver.enable_peer_access(0, 1).unwrap();
        let page = world.driver.mem_granularity(1).unwrap();
        let range = Reservation::new(&world.driver, 1, page).unwrap();
        let memory = PhysicalMemory::new(&world.driver, 1, page).unwrap();
        let mapping = range.map(0, &memory, 0, page).unwrap();
        mapping.set_access(&[(1, MemAccess::ReadWrite)]).unwrap();
        if let Some(access) = access {
            mapping.set_access(&[(0, access)]).unwrap();
        }
        let result = world.launch(nothing, &[bytes(1, mapping.ptr(), &four, Access::Read)]);
        assert_eq!(result.is_ok(), access == Some(MemAccess::Read), "{access:?}: {result:?}");
        let code = result.err().and_then(|e| e.code());
        assert!(code.is_none_or(|code| code == CudaCode::ILLEGAL_ADDRESS), "{code:?}");
    }

    // An operand without elements is not accessed.
    let world = world(1, false);
    let none = [0];
    world.launch(nothing, &[bytes(0, DevicePtr::NULL, &none, Access::Write)]).unwrap();
}

#[test]
fn misaligned_operands_and_panics_are_sticky() {
    let world_ = world(1, false);
    let memory = world_.memory(0, 64);
    let ptr = memory.range(2, 4).unwrap();
    let one = [1];
    let operand = Footprint { item_size: 4, ..bytes(0, ptr, &one, Access::Read) };
    let error = world_.launch(nothing, &[operand]).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::MISALIGNED_ADDRESS));
    let world = world(1, false);
    let error = world.launch(panics, &[]).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::LAUNCH_FAILED));
    assert!(matches!(world.stream.synchronize(), Err(DriverError::DeviceLost { .. })));
}

#[test]
fn a_footprint_beyond_all_addresses_has_a_hull() {
    let hull = |sizes: &[usize], strides: &[isize]| {
        let ptr = DevicePtr::NULL;
        Footprint { ptr, device: 0, item_size: 8, sizes, strides, access: Access::Read }.hull()
    };
    assert_eq!(hull(&[3, 2], &[2, -5]), (-40, 40));
    assert_eq!(hull(&[usize::MAX], &[isize::MAX]), (0, i64::MAX));
    assert_eq!(hull(&[usize::MAX; 2], &[isize::MIN; 2]), (i64::MIN, 8));
    assert_eq!(hull(&[usize::MAX, 0], &[isize::MAX; 2]), (0, 0));
}

#[test]
fn bad_footprints_are_refused_when_called() {
    let world = world(2, false);
    let memory = world.memory(0, 8);
    let refused = |footprint| {
        let error = world.launch(nothing, &[footprint]).unwrap_err();
        assert_eq!(error.code(), Some(CudaCode::INVALID_VALUE));
    };
    let (one, two) = ([1], [2]);
    refused(Footprint { device: 1, ..bytes(0, memory.ptr(), &one, Access::Read) });
    refused(Footprint { strides: &[], ..bytes(0, memory.ptr(), &one, Access::Read) });
    let far = [isize::MAX];
    refused(Footprint {
        strides: &far,
        item_size: 8,
        ..bytes(0, memory.ptr(), &two, Access::Read)
    });
    assert!(world.driver.lost(0).is_none());
}

#[test]
fn kernels_reach_mapped_host_memory() {
    let world = world(1, true);
    let word = HostMemory::pinned(&world.driver, 0, 4).unwrap();
    let source = world.memory(0, 4);
    // SAFETY: page-locked memory has the same address on host and device, and outlives the work.
    let address = unsafe { DevicePtr::from_raw(word.as_ptr().as_ptr() as u64) };
    let four = [4];
    let operands =
        [bytes(0, address, &four, Access::Write), bytes(0, source.ptr(), &four, Access::Read)];
    world.launch(increment, &operands).unwrap();
    // SAFETY: the kernel is done.
    assert_eq!(unsafe { word.as_ptr().as_ptr().read() }, 1);
}

#[test]
fn an_overrun_of_pool_memory_is_reported_before_the_lost_device() {
    let world = world(1, false);
    let pool = world.driver.mempool_create(0).unwrap();
    let source = world.memory(0, 4);
    let stream = world.stream.handle();
    // SAFETY: pool and stream are alive.
    let ptr = unsafe { world.driver.mem_alloc_async(pool, 4, stream) }.unwrap();
    let four = [4];
    let operands =
        [bytes(0, ptr, &four, Access::Write), bytes(0, source.ptr(), &four, Access::Read)];
    world.launch(increment_too_far, &operands).unwrap();
    // SAFETY: the memory is live, and the stream is alive.
    unsafe { world.driver.mem_free_async(ptr, stream) }.unwrap();
    let error = world.stream.synchronize().unwrap_err();
    assert!(matches!(error, DriverError::Cuda(_)), "{error}");
    assert_eq!(error.code(), Some(CudaCode::ILLEGAL_ADDRESS));
    let later = world.stream.synchronize().unwrap_err();
    assert!(matches!(later, DriverError::DeviceLost { .. }), "{later}");
}

/// A real driver would read beyond the given parameters without an error.
#[test]
fn a_launch_with_other_parameters_than_the_kernels_is_refused() {
    const PTX: &str = "\
        .version 8.0\n.target sm_75\n.address_size 64\n\
        .visible .entry k(\n\t.param .u64 k_param_0,\n\t.param .align 8 .b8 k_param_1[24]\n)\n\
        .maxntid 256, 1, 1\n{ ret; }\n";
    unsafe fn nothing(_: &HostLaunch<'_>) {}
    let world = world(1, false);
    let memory = world.memory(0, 4);
    let module = Module::load_ptx(&world.driver, 0, PTX).unwrap();
    let function = module.function(KERNEL).unwrap();
    let launch = |operands: usize, params: &[u8]| {
        let code = one_thread(function.handle());
        let footprints = vec![bytes(0, memory.ptr(), &[4], Access::Read); operands];
        let (footprints, location) = (footprints.as_slice(), Location::caller());
        let launch = Launch { op: "test", code, host: nothing, footprints, params, location };
        // SAFETY: the CPU implementation does nothing.
        unsafe { world.driver.launch(world.stream.handle(), &launch) }
    };
    launch(1, &[0; 24]).unwrap();
    for (operands, params) in [(1, &[0; 16][..]), (2, &[0; 24]), (0, &[0; 24]), (1, &[])] {
        let error = launch(operands, params).unwrap_err();
        assert_eq!(error.code(), Some(CudaCode::INVALID_VALUE));
        assert!(error.to_string().contains("but the kernel takes [8, 24]"), "{error}");
    }
    world.stream.synchronize().unwrap();
}
