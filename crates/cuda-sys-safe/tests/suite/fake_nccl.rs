//! How the library is loaded and called, against an NCCL that does as it is told (`fake/nccl.rs`). It is
//! loaded once per process, where the environment says, so that each test runs in one of its own.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use libloading::Library;
use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp, UniqueId};
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::*;

use crate::build;

/// No wait takes longer.
const LIMIT: Duration = Duration::from_secs(60);

const CUDA: &str = "WARPLINE_TEST_FAKE_CUDA";
const NCCL: &str = "WARPLINE_NCCL";

/// Runs a test again in a process that has the fake NCCL, of a version, and the fake CUDA.
fn with_fakes(test: &str, version: u32, body: fn(&Arc<dyn Driver>)) {
    if let Some(cuda) = std::env::var_os(CUDA) {
        return body(&real::load_from(&[cuda.into()]).unwrap());
    }
    static BUILT: OnceLock<[PathBuf; 2]> = OnceLock::new();
    let built = BUILT.get_or_init(|| ["cuda", "nccl"].map(build::library));
    let fakes = built.each_ref().map(|built| {
        let copy = built.with_extension(format!("{}.{test}.so", std::process::id()));
        std::fs::copy(built, &copy).unwrap();
        copy
    });
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([&crate::named(module_path!(), test), "--exact", "--nocapture"])
        .env(CUDA, &fakes[0])
        .env(NCCL, &fakes[1])
        .env("FAKE_NCCL_VERSION", version.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let status = loop {
        match process.try_wait().unwrap() {
            None if began.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(5)),
            status => break status,
        }
    };
    let _ = process.kill();
    fakes.iter().for_each(|fake| std::fs::remove_file(fake).unwrap());
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

#[test]
fn a_library_that_is_too_old_is_refused() {
    with_fakes("a_library_that_is_too_old_is_refused", 21_701, |driver| {
        let error = driver.nccl().unwrap_err();
        let DriverError::MissingSymbol { library, version, needs, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*library, &version[..], *needs), ("NCCL", "2.17.1", "NCCL 2.18"));
    });
}

#[test]
fn the_oldest_that_will_do_is_taken() {
    with_fakes("the_oldest_that_will_do_is_taken", 21_800, |driver| {
        assert_eq!(driver.nccl().unwrap().version().unwrap(), 21_800);
    });
}

/// What the fake has counted.
fn counted(what: &str) -> usize {
    // SAFETY: the fake was loaded before; the signature is that of fake/nccl.rs.
    unsafe {
        let library = Library::new(std::env::var_os(NCCL).unwrap()).unwrap();
        let count = library.get::<extern "C" fn() -> usize>(what.as_bytes()).unwrap();
        count()
    }
}

/// Threads with a communicator each use them at once, each on one of these devices.
fn use_at_once(driver: &Arc<dyn Driver>, devices: &[usize]) {
    let id = UniqueId::from_bytes([1; UniqueId::BYTES]);
    std::thread::scope(|scope| {
        for &device in devices {
            scope.spawn(move || {
                let comm = Communicator::new(driver, device, &id, 1, 0, LIMIT).unwrap();
                // SAFETY: the fake reads no memory.
                let at = unsafe { DevicePtr::from_raw(0x1000) };
                let (dtype, op) = (NcclType::F32, ReduceOp::Sum);
                let call = Collective::AllReduce { send: at, recv: at, count: device, dtype, op };
                for _ in 0..20 {
                    // SAFETY: default streams always are; the fake uses neither them nor memory.
                    unsafe { comm.enqueue(&[call], StreamHandle::default_of(device)) }.unwrap();
                }
            });
        }
    });
}

#[test]
fn communicators_of_one_device_take_turns() {
    with_fakes("communicators_of_one_device_take_turns", 22_800, |driver| {
        use_at_once(driver, &[0, 0, 0, 1, 1]);
        assert_eq!(counted("fake_overlaps"), 0);
    });
}

#[test]
fn communicators_of_different_devices_do_not() {
    with_fakes("communicators_of_different_devices_do_not", 22_800, |driver| {
        // Sooner or later two are inside at once.
        for _ in 0..100 {
            use_at_once(driver, &[0, 1]);
            if counted("fake_meetings") > 0 {
                return;
            }
        }
        panic!("a device waits for another one's turn");
    });
}
