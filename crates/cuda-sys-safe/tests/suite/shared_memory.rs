//! Physical memory and words that two drivers share, as two processes would.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use warpline_cuda_sys_safe::owned::{Mapping, PhysicalMemory, Reservation, SharedWords, Stream};
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::*;

const PAGE: usize = 2 << 20;

fn sim() -> (Arc<SimDriver>, Arc<dyn Driver>) {
    let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(2) }.build();
    (sim.clone(), sim)
}

fn map(driver: &Arc<dyn Driver>, memory: &PhysicalMemory) -> Result<Mapping> {
    let mapping = Reservation::new(driver, 0, memory.bytes())?.map(0, memory, 0, memory.bytes())?;
    mapping.set_access(&[(0, MemAccess::ReadWrite)])?;
    Ok(mapping)
}

fn fill(driver: &Arc<dyn Driver>, mapping: &Mapping, value: u8, bytes: usize) {
    let stream = Stream::new(driver, 0, StreamFlags::default()).unwrap();
    let value = MemsetValue::U8(value);
    // SAFETY: the range lies inside the mapping, which outlives the work.
    unsafe { driver.memset_async(mapping.ptr(), value, bytes, stream.handle()) }.unwrap();
    stream.synchronize().unwrap();
}

fn byte(driver: &Arc<dyn Driver>, mapping: &Mapping, at: usize) -> u8 {
    let mut out = 0u8;
    let src = CopyEnd::Device { device: 0, ptr: mapping.range(at, 1).unwrap() };
    let copy = Copy { dst: CopyEnd::Host(NonNull::from(&mut out)), src, bytes: 1 };
    // SAFETY: both ends are live, and the copy is synchronous.
    unsafe { driver.memcpy(0, &copy) }.unwrap();
    out
}

#[test]
fn shared_memory_shows_the_writes_of_both_drivers_and_outlives_its_creator() {
    let ((maker_sim, maker), (peer_sim, peer)) = (sim(), sim());
    let made = PhysicalMemory::shareable(&maker, 0, 2 * PAGE).unwrap();
    let here = map(&maker, &made).unwrap();
    let handle = made.export().unwrap();
    let there = PhysicalMemory::import(&peer, 0, 2 * PAGE, handle)
        .and_then(|memory| map(&peer, &memory))
        .unwrap();
    assert_eq!(byte(&peer, &there, 0), 0, "new memory is zeros");

    fill(&maker, &here, 7, 2 * PAGE);
    assert_eq!([0, 2 * PAGE - 1].map(|at| byte(&peer, &there, at)), [7; 2]);
    fill(&peer, &there, 9, 1);
    assert_eq!([0, 1].map(|at| byte(&maker, &here, at)), [9, 7]);

    let free = |driver: &Arc<dyn Driver>| driver.mem_info(0).unwrap().free;
    assert_eq!(
        free(&peer) - free(&maker),
        2 * PAGE,
        "the memory counts for the driver that created it"
    );
    drop((here, made));
    assert_eq!(free(&peer), free(&maker));
    drop(maker);
    assert!(maker_sim.usage().all_released());
    drop(maker_sim);
    assert_eq!([0, 1].map(|at| byte(&peer, &there, at)), [9, 7]);
    drop(there);
    assert!(peer_sim.usage().all_released());
    assert_eq!(free(&peer), peer.mem_info(0).unwrap().total);
}

#[test]
fn a_descriptor_of_other_memory_is_refused() {
    let (_, driver) = sim();
    let plain = PhysicalMemory::new(&driver, 0, PAGE).unwrap();
    let code = plain.export().unwrap_err().code();
    assert_eq!(code, Some(CudaCode::INVALID_VALUE), "the memory is not shareable");

    let import = |bytes, fd: OwnedFd| PhysicalMemory::import(&driver, 0, bytes, fd).map(drop);
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    let executable = || OwnedFd::from(File::open("/proc/self/exe").unwrap());
    assert_eq!(import(PAGE, null()).unwrap_err().code(), Some(CudaCode::INVALID_VALUE));
    assert_eq!(import(PAGE, executable()).unwrap_err().code(), Some(CudaCode::INVALID_VALUE));

    // A file that could shrink would let its sender make this process fault.
    // SAFETY: the name is a literal with a NUL, and the descriptor is new.
    let unsealed: OwnedFd = unsafe {
        use std::os::fd::FromRawFd;
        OwnedFd::from_raw_fd(libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING))
    };
    File::from(unsealed.try_clone().unwrap()).set_len(PAGE as u64).unwrap();
    assert_eq!(import(PAGE, unsealed).unwrap_err().code(), Some(CudaCode::INVALID_VALUE));

    let made = PhysicalMemory::shareable(&driver, 0, PAGE).unwrap();
    for bytes in [0, 1, PAGE - 1, PAGE + 1, 2 * PAGE, usize::MAX] {
        assert!(import(bytes, made.export().unwrap()).is_err(), "{bytes} bytes of {PAGE}");
    }
    let file = File::from(made.export().unwrap());
    assert!(file.set_len(0).is_err() && file.set_len(4 << 20).is_err(), "the size is fixed");
    import(PAGE, made.export().unwrap()).unwrap();
}

/// Exports memory and imports it in the same process.
fn export_and_import(driver: &Arc<dyn Driver>) {
    let made = PhysicalMemory::shareable(driver, 0, PAGE).unwrap();
    let again = PhysicalMemory::import(driver, 0, PAGE, made.export().unwrap()).unwrap();
    let [first, second] = [&made, &again].map(|memory| map(driver, memory).unwrap());
    fill(driver, &first, 3, PAGE);
    assert_eq!(byte(driver, &second, PAGE - 1), 3);
    drop((first, made)); // the exporter has released its handle
    assert_eq!(byte(driver, &second, 0), 3);
}

#[test]
fn memory_imported_by_its_exporter_is_the_same() {
    let (sim, driver) = sim();
    export_and_import(&driver);
    assert!(sim.usage().all_released());
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_memory_imported_by_its_exporter_is_the_same() {
    export_and_import(&real::load().unwrap());
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_descriptor_of_other_memory_is_refused() {
    let driver = real::load().unwrap();
    let plain = PhysicalMemory::new(&driver, 0, PAGE).unwrap();
    assert!(plain.export().is_err(), "the memory is not shareable");
    for path in ["/dev/null", "/proc/self/exe"] {
        let file = OwnedFd::from(File::open(path).unwrap());
        assert!(PhysicalMemory::import(&driver, 0, PAGE, file).is_err(), "{path}");
    }
    // A size that is too large fails on import, or at the latest on mapping.
    let made = PhysicalMemory::shareable(&driver, 0, PAGE).unwrap();
    let more = PhysicalMemory::import(&driver, 0, 2 * PAGE, made.export().unwrap());
    assert!(more.and_then(|more| map(&driver, &more)).is_err());
    export_and_import(&driver); // the driver is still usable
}

#[test]
fn drivers_that_cannot_share_memory_return_an_error() {
    let null: Arc<dyn Driver> = Arc::new(null::NullDriver::new(1));
    let error = PhysicalMemory::shareable(&null, 0, PAGE).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::NOT_SUPPORTED));
    assert!(error.to_string().contains("cannot share memory"), "{error}");
}

/// Checks that streams wait for words that a stream, the host or another driver writes.
fn words_order_streams(driver: &Arc<dyn Driver>, peer: &Arc<dyn Driver>) {
    let new = |driver| Stream::new(driver, 0, StreamFlags::default()).unwrap();
    let (waits, waits_too, writes) = (new(driver), new(driver), new(peer));
    let own = SharedWords::new(driver, 0).unwrap();
    let words = SharedWords::import(peer, 0, own.bytes(), own.export().unwrap()).unwrap();
    assert_eq!([own.load(0), own.load(own.count() - 1)].map(Result::unwrap), [0; 2]);
    assert!(own.load(own.count()).is_err() && own.store(own.count(), 1).is_err());

    // SAFETY: all streams are synchronized before the words are dropped.
    unsafe {
        own.wait_on(&waits, 0, 5).unwrap();
        own.wait_on(&waits_too, 1, 1).unwrap();
        for _ in 0..100 {
            assert!(!waits.query().unwrap(), "4 is not enough");
            words.store(0, 4).unwrap();
        }
        words.write_on(&writes, 0, 7).unwrap();
        waits.synchronize().unwrap();
        assert_eq!(own.load(0).unwrap(), 7);
        own.wait_on(&waits, 0, 6).unwrap();
        waits.synchronize().unwrap();

        // The comparison is cyclic.
        words.store(0, u32::MAX).unwrap();
        own.wait_on(&waits, 0, 1).unwrap();
        assert!(!waits.query().unwrap() && !waits_too.query().unwrap());
        words.store(0, 1).unwrap();
        waits.synchronize().unwrap();
        own.store(1, 1).unwrap(); // the host releases the stream
        waits_too.synchronize().unwrap();
        assert!(words.write_on(&writes, words.count(), 0).is_err());
    }
    writes.synchronize().unwrap();
}

#[test]
fn words_order_streams_of_two_drivers() {
    let ((maker_sim, maker), (peer_sim, peer)) = (sim(), sim());
    words_order_streams(&maker, &peer);
    words_order_streams(&maker, &maker);
    for schedule in (0..64).map(Schedule::Seeded) {
        maker_sim.set_schedule(schedule);
        words_order_streams(&maker, &peer);
    }
    assert!(maker_sim.usage().all_released() && peer_sim.usage().all_released());
}

#[test]
fn words_are_refused_on_captured_streams_and_in_pageable_memory() {
    let (sim, driver) = sim();
    let words = SharedWords::new(&driver, 0).unwrap();
    let stream = sim.stream_create(0, StreamFlags::default()).unwrap();
    let mut own = 0;
    // SAFETY: the stream is alive. The driver refuses the calls, so no work uses the word.
    unsafe {
        let word = NonNull::from(&mut own);
        let refused = sim.stream_write_value32(stream, word, 1).unwrap_err();
        assert_eq!(refused.code(), Some(CudaCode::INVALID_VALUE), "not page-locked");
        sim.begin_capture(stream, CaptureMode::Relaxed).unwrap();
        let owned = Stream::from_external(&driver, stream);
        for refused in [words.write_on(&owned, 0, 1), words.wait_on(&owned, 0, 1)] {
            let code = refused.unwrap_err().code();
            assert_eq!(code, Some(CudaCode::STREAM_CAPTURE_UNSUPPORTED));
        }
    }
    assert_eq!(words.load(0).unwrap(), 0);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_words_order_streams() {
    let driver = real::load().unwrap();
    words_order_streams(&driver, &driver);
}
