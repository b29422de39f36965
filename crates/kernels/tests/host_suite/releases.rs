//! Tests of memory that is returned to the driver while work still uses it.

use std::panic::Location;

use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig};
use warpline_kernels::elementwise;
use warpline_runtime::launch::{copy_bytes, read_bytes, write_bytes};
use warpline_runtime::{DType, Layout, Runtime, RuntimeConfig, Storage, SyncPolicy, Target, View};

const MIB: usize = 1 << 20;

fn lazy() -> SimConfig {
    SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }
}

/// Regression test: pageable memory was allocated at an address that the driver still had
/// registered as page-locked, so a copy to this memory returned before the bytes arrived.
#[test]
fn pageable_memory_is_never_allocated_in_registered_memory() {
    let sim = lazy().build();
    let runtime = Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap();
    let device = runtime.device(0).unwrap();
    let stream = device.device().stream_from_pool(0).unwrap();
    let bytes = 16 * MIB;
    let pinned = Storage::pinned(&runtime, bytes).unwrap();
    let at = pinned.address();
    drop(pinned);
    let refused = CudaCode::STREAM_CAPTURE_UNSUPPORTED;
    sim.inject(Fault::new(CallKind::HostUnregister, refused).times(usize::MAX));
    let cache = runtime.pinned_cache().unwrap();
    cache.empty_cache();
    assert_eq!(sim.usage().host_registrations, 1);
    let stats = cache.stats();
    assert_eq!((stats.refused_releases, stats.refused_bytes), (1, bytes as u64));
    assert_eq!(stats.allocated_bytes.current, bytes as i64);

    let source = Storage::device(&runtime, MIB, &stream).unwrap();
    let seven = Storage::pageable(&runtime, MIB).unwrap();
    write_bytes((&seven, 0), &vec![7; MIB]).unwrap();
    let here = Location::caller();
    copy_bytes(&stream, (&source, 0), (&seven, 0), MIB, false, here).unwrap();
    let all: Vec<Storage> = (0..64).map(|_| Storage::pageable(&runtime, MIB).unwrap()).collect();
    for storage in &all {
        let address = storage.address();
        assert!(address + MIB as u64 <= at || at + bytes as u64 <= address);
    }
    copy_bytes(&stream, (&all[0], 0), (&source, 0), MIB, false, here).unwrap();
    let mut byte = [0];
    read_bytes((&all[0], 0), &mut byte).unwrap();
    assert_eq!(byte, [7]);

    sim.clear_faults();
    cache.empty_cache();
    assert_eq!(sim.usage().host_registrations, 0);
    assert_eq!(cache.stats().refused_releases, 0);
}

/// Regression test: the allocator unmapped pages that pending work of a stream still used, because
/// it had no record of this use, and the device was lost.
#[test]
fn memory_is_released_after_the_work_of_unrecorded_streams() {
    let sim = lazy().build();
    let runtime = Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap();
    runtime.set_sync_policy(SyncPolicy::Manual);
    let device = runtime.device(0).unwrap();
    let stream = || device.device().stream_from_pool(0).unwrap();
    let (own, untold) = (stream(), stream());
    let bytes = 8 * MIB;
    let storage = Storage::device(&runtime, bytes, &own).unwrap();
    let layout = Layout::contiguous(&[bytes]).unwrap();
    let view = View { storage: &storage, layout: &layout, dtype: DType::I8 };
    let target = Target::Cuda(&runtime, device, &untold);
    elementwise::apply(target, &elementwise::NEG, DType::I8, &[view.into()], view).unwrap();
    drop(storage);
    device.allocator().empty_cache();
    assert_eq!(device.allocator().memory_reserved(), 0);
    untold.synchronize().unwrap();
}
