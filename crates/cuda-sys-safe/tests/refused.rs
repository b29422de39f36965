//! Releases that the driver refuses: the object stays alive, the release is counted, and a retry
//! releases the object.

use std::sync::{Arc, Barrier};

use warpline_cuda_sys_safe::owned::*;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, SimConfig, SimDriver};
use warpline_cuda_sys_safe::*;

const MIB: usize = 1 << 20;
const REFUSED: CudaCode = CudaCode::STREAM_CAPTURE_UNSUPPORTED;
const ALWAYS: usize = usize::MAX;

fn world() -> (Arc<SimDriver>, Arc<dyn Driver>) {
    let sim = SimConfig::new(1).build();
    (sim.clone(), sim)
}

fn refuse(sim: &SimDriver, call: CallKind, times: usize) {
    sim.inject(Fault::new(call, REFUSED).times(times));
}

/// Returns `true` if the process has a mapping at an address.
fn mapped(at: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let range = line.split(' ').next().unwrap_or_default();
        let ends = range.split_once('-').unwrap_or_default();
        let end = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        (end(ends.0)..end(ends.1)).contains(&at)
    })
}

#[test]
#[cfg(target_os = "linux")]
fn pages_stay_mapped_until_they_are_unregistered() {
    let (sim, driver) = world();
    let memory = HostMemory::registered(&driver, 0, 16 * MIB).unwrap();
    let at = memory.as_ptr().addr().get();
    refuse(&sim, CallKind::HostUnregister, ALWAYS);
    drop(memory);
    assert_eq!(sim.usage().host_registrations, 1);
    assert!(mapped(at), "a new mapping could get the addresses that the driver writes to");
    let of = |kind| driver.refused().of(kind);
    let one = RefusedCount { count: 1, bytes: 16 * MIB };
    assert_eq!(of(ReleaseKind::RegisteredMemory), one);
    assert_eq!(retry_refused(&driver), one);
    assert!(mapped(at));
    sim.clear_faults();
    assert_eq!(retry_refused(&driver), RefusedCount::default());
    assert_eq!(sim.usage().host_registrations, 0);
    assert!(!mapped(at));
}

#[test]
fn a_capture_on_another_thread_makes_releases_wait() {
    let (sim, driver) = world();
    let memory = HostMemory::registered(&driver, 0, MIB).unwrap();
    let device = DeviceMemory::new(&driver, 0, MIB).unwrap();
    let stream = Stream::new(&driver, 0, StreamFlags { non_blocking: true, priority: 0 }).unwrap();
    let (began, dropped) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the capture contains no work.
            let token = unsafe { LaunchToken::new() };
            let capture = stream.begin_capture(CaptureMode::Global, token).unwrap();
            began.wait();
            dropped.wait();
            let _ = capture.end();
        });
        began.wait();
        drop((memory, device));
        assert_eq!(driver.refused().all(), RefusedCount { count: 2, bytes: 2 * MIB });
        dropped.wait();
    });
    assert_eq!(retry_refused(&driver), RefusedCount::default());
    drop(stream);
    assert!(sim.usage().all_released());
}

/// Creates and drops an object of each kind, except memory of other processes, with its
/// dependencies.
fn one_of_each(driver: &Arc<dyn Driver>) {
    let page = driver.mem_granularity(0).unwrap();
    let stream = Stream::new(driver, 0, StreamFlags { non_blocking: true, priority: 0 }).unwrap();
    let reservation = Reservation::new(driver, 0, 4 * page).unwrap();
    let physical = PhysicalMemory::new(driver, 0, page).unwrap();
    let mapping = reservation.map(page, &physical, 0, page).unwrap();
    let pool = MemPool::new(driver, 0).unwrap();
    let pooled = pool.alloc(4096, &stream).unwrap();
    // SAFETY: the capture contains no work.
    let token = unsafe { LaunchToken::new() };
    let graph = stream.begin_capture(CaptureMode::Relaxed, token).unwrap().end().unwrap();
    let exec = graph.instantiate().unwrap();
    let event = Event::new(driver, 0, EventFlags::default()).unwrap();
    let device = DeviceMemory::new(driver, 0, 4096).unwrap();
    let pinned = HostMemory::pinned(driver, 0, 4096).unwrap();
    let registered = HostMemory::registered(driver, 0, 4096).unwrap();
    let ptx = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() { ret; }\n";
    let module = Module::load_ptx(driver, 0, ptx).unwrap();
    drop((mapping, physical, reservation, pooled, pool, graph, exec, event));
    drop((device, pinned, registered, module, stream));
}

#[test]
fn refused_releases_are_kept_counted_and_retried() {
    for &call in CallKind::ALL.iter().filter(|call| call.is_release()) {
        if call == CallKind::IpcCloseMem {
            continue; // the simulator cannot open IPC handles
        }
        let (sim, driver) = world();
        refuse(&sim, call, ALWAYS);
        one_of_each(&driver);
        let refused = driver.refused().all();
        assert!(refused.count >= 1, "{call:?}: {refused:?}");
        assert!(!sim.usage().all_released(), "{call:?}");
        sim.clear_faults();
        assert_eq!(retry_refused(&driver), RefusedCount::default(), "{call:?}");
        driver.synchronize(0).unwrap(); // run frees in stream order
        assert!(sim.usage().all_released(), "{call:?}: {:?}", sim.usage());
        // No refused release keeps the driver alive any more.
        assert_eq!(Arc::strong_count(&driver), 2, "{call:?}");
    }
}

#[test]
fn the_next_release_or_allocation_of_a_kind_retries() {
    let (sim, driver) = world();
    let alloc = || DeviceMemory::new(&driver, 0, MIB).unwrap();
    let (a, b, c) = (alloc(), alloc(), alloc());
    refuse(&sim, CallKind::MemFree, 3);
    drop(a); // refused
    assert_eq!(driver.refused().all().count, 1);
    drop(b); // retries the first release; both are refused
    assert_eq!(driver.refused().all(), RefusedCount { count: 2, bytes: 2 * MIB });
    drop(HostMemory::pinned(&driver, 0, MIB).unwrap());
    assert_eq!(driver.refused().all().count, 2, "a release of another kind retries nothing");
    drop(c);
    assert_eq!(driver.refused().all().count, 0);
    assert!(sim.usage().all_released());
}

#[test]
fn a_refused_release_costs_other_releases_one_call() {
    let (sim, driver) = world();
    let all: Vec<_> = (0..100).map(|_| DeviceMemory::new(&driver, 0, 512).unwrap()).collect();
    refuse(&sim, CallKind::MemFree, ALWAYS);
    drop(all);
    assert_eq!(driver.refused().all().count, 100);
    let calls = || sim.usage().count(CallKind::MemFree);
    let before = calls();
    let memory = DeviceMemory::new(&driver, 0, 512).unwrap();
    assert_eq!(calls(), before + 1);
    sim.clear_faults();
    drop(memory);
    assert!(sim.usage().all_released());
}

#[test]
fn addresses_stay_reserved_while_something_is_mapped_there() {
    let (sim, driver) = world();
    let page = driver.mem_granularity(0).unwrap();
    let reservation = Reservation::new(&driver, 0, 4 * page).unwrap();
    let physical = PhysicalMemory::new(&driver, 0, page).unwrap();
    let mapping = reservation.map(0, &physical, 0, page).unwrap();
    refuse(&sim, CallKind::MemUnmap, 1);
    let (mapping, error) = *mapping.release().unwrap_err();
    assert_eq!(error.code(), Some(REFUSED));
    refuse(&sim, CallKind::MemUnmap, ALWAYS);
    drop((mapping, physical, reservation));
    let calls = |call| sim.usage().count(call);
    assert_eq!((calls(CallKind::AddressFree), calls(CallKind::MemRelease)), (0, 0));
    sim.clear_faults();
    assert_eq!(retry_refused(&driver).count, 0);
    assert!(sim.usage().all_released());
}

#[test]
fn an_explicit_release_retries_refused_releases() {
    let (sim, driver) = world();
    let page = driver.mem_granularity(0).unwrap();
    for (call, release) in [
        (CallKind::MemFree, 0),
        (CallKind::HostFree, 1),
        (CallKind::HostUnregister, 2),
        (CallKind::MemRelease, 3),
        (CallKind::AddressFree, 4),
    ] {
        refuse(&sim, call, 1);
        match release {
            0 => {
                let memory = DeviceMemory::new(&driver, 0, MIB).unwrap();
                memory.release().unwrap_err().0.release().unwrap();
            }
            1 => {
                let memory = HostMemory::pinned(&driver, 0, MIB).unwrap();
                memory.release().unwrap_err().0.release().unwrap();
            }
            2 => {
                let memory = HostMemory::registered(&driver, 0, MIB).unwrap();
                memory.release().unwrap_err().0.release().unwrap();
            }
            3 => {
                let memory = PhysicalMemory::new(&driver, 0, page).unwrap();
                let other = memory.clone();
                other.release().unwrap(); // does nothing, because another clone exists
                memory.release().unwrap_err().0.release().unwrap();
            }
            _ => {
                let reservation = Reservation::new(&driver, 0, page).unwrap();
                reservation.release().unwrap_err().0.release().unwrap();
            }
        }
        assert_eq!(driver.refused().all().count, 0, "{call:?}");
        assert!(sim.usage().all_released(), "{call:?}");
    }
}

#[test]
fn objects_of_a_lost_device_are_not_kept() {
    let (sim, driver) = world();
    let memory = DeviceMemory::new(&driver, 0, MIB).unwrap();
    let pinned = HostMemory::pinned(&driver, 0, MIB).unwrap();
    sim.inject(Fault::new(CallKind::MemFree, CudaCode::ILLEGAL_ADDRESS));
    drop((memory, pinned));
    assert_eq!(driver.refused().all().count, 0);
}

#[test]
fn threads_that_retry_at_the_same_time_release_once() {
    let (sim, driver) = world();
    let all: Vec<_> = (0..200).map(|_| DeviceMemory::new(&driver, 0, 512).unwrap()).collect();
    refuse(&sim, CallKind::MemFree, 200);
    // Each free first retries an earlier refused free.
    drop(all);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    drop(DeviceMemory::new(&driver, 0, 512).unwrap());
                    retry_refused(&driver);
                }
            });
        }
    });
    assert_eq!(retry_refused(&driver), RefusedCount::default());
    assert!(sim.usage().all_released());
}
