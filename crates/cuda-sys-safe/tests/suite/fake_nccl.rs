//! Tests how NCCL is loaded and called, with a fake NCCL (`fake/nccl.rs`). A process loads NCCL
//! once, from the path in the environment, so each test runs in its own process.
#![cfg(target_os = "linux")]

use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use libloading::Library;
use warpline_cuda_sys_safe::nccl::{Collective, CommState, NcclType, ReduceOp, UniqueId};
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::*;

use crate::build;

/// Time limit of a test's process, and of making a communicator.
const LIMIT: Duration = Duration::from_secs(60);

const CUDA: &str = "WARPLINE_TEST_FAKE_CUDA";
const NCCL: &str = "WARPLINE_NCCL";

/// Runs a test again in a process that uses the fake CUDA, and the fake NCCL with this version.
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
        .envs(test.contains("never_block").then_some(("NCCL_COMM_BLOCKING", "0")))
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
fn the_oldest_supported_version_is_accepted() {
    with_fakes("the_oldest_supported_version_is_accepted", 21_800, |driver| {
        assert_eq!(driver.nccl().unwrap().version().unwrap(), 21_800);
    });
}

/// Calls a function of the fake library.
fn ask<T: std::marker::Copy, R>(what: &str, f: impl FnOnce(T) -> R) -> R {
    // SAFETY: the library is already loaded, and `fake/nccl.rs` defines the function with this
    // signature.
    unsafe {
        let library = Library::new(std::env::var_os(NCCL).unwrap()).unwrap();
        let function = library.get::<T>(what.as_bytes()).unwrap();
        f(*function)
    }
}

/// Calls a function of the fake library that returns a counter or the previous state of a switch.
fn counted(what: &str) -> usize {
    ask(what, |count: extern "C" fn() -> usize| count())
}

/// Returns the calls since the previous `log`.
fn log() -> String {
    // SAFETY: the fake library returns a NUL-terminated string and never frees it.
    ask("fake_log", |log: extern "C" fn() -> *const c_char| unsafe { CStr::from_ptr(log()) })
        .to_string_lossy()
        .into_owned()
}

const ID: UniqueId = UniqueId::from_bytes([1; UniqueId::BYTES]);

fn enqueue(comm: &Communicator) -> Result<()> {
    let device = comm.device();
    // SAFETY: the fake library accesses no device memory.
    let at = unsafe { DevicePtr::from_raw(0x1000) };
    let (dtype, op) = (NcclType::F32, ReduceOp::Sum);
    let call = Collective::AllReduce { send: at, recv: at, count: device, dtype, op };
    // SAFETY: a default stream is always alive, and the fake library uses neither stream nor
    // memory.
    unsafe { comm.enqueue(&[call], StreamHandle::default_of(device)) }
}

/// Waits until a condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT / 2, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Uses communicators on several threads at once, one for each of these devices.
fn use_at_once(driver: &Arc<dyn Driver>, devices: &[usize]) {
    std::thread::scope(|scope| {
        for &device in devices {
            scope.spawn(move || {
                let comm = Communicator::new(driver, device, &ID, 1, 0, LIMIT).unwrap();
                (0..20).for_each(|_| enqueue(&comm).unwrap());
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
fn communicators_of_different_devices_do_not_take_turns() {
    with_fakes("communicators_of_different_devices_do_not_take_turns", 22_800, |driver| {
        // Repeat until two threads have been in calls at the same time.
        for _ in 0..100 {
            use_at_once(driver, &[0, 1]);
            if counted("fake_meetings") > 0 {
                return;
            }
        }
        panic!("no two devices were in calls at the same time");
    });
}

#[test]
fn each_communicator_and_each_part_consists_of_three_nccl_communicators() {
    with_fakes(
        "each_communicator_and_each_part_consists_of_three_nccl_communicators",
        22_800,
        |driver| {
            let comm = Communicator::new(driver, 0, &ID, 4, 2, LIMIT).unwrap();
            assert_eq!((comm.rank(), comm.ranks()), (2, 4));
            let three = "init 1: non-blocking\n\
                     split 1, color 0, key 2, to 2: non-blocking, sharing\n\
                     split 2, color 0, key 2, to 3: blocking\n";
            assert_eq!(log(), three);
            assert!(comm.split(None, 0, LIMIT).unwrap().is_none());
            assert_eq!(log(), "split 1, no color\n");
            let part = comm.split(Some(7), 3, LIMIT).unwrap().unwrap();
            let three = "split 1, color 7, key 3, to 4: non-blocking\n\
                     split 4, color 0, key 3, to 5: non-blocking, sharing\n\
                     split 5, color 0, key 3, to 6: blocking\n";
            assert_eq!(log(), three);
            comm.abort();
            assert_eq!(log(), "abort 2\nabort 1\nabort 3\n");
            enqueue(&part).unwrap();
            part.abort();
            assert_eq!(log(), "abort 5\nabort 4\nabort 6\n");
            assert_eq!((counted("fake_misuses"), counted("fake_alive")), (0, 0));
        },
    );
}

#[test]
fn an_abort_ends_a_call_that_hangs() {
    with_fakes("an_abort_ends_a_call_that_hangs", 22_800, |driver| {
        let comm = Communicator::new(driver, 0, &ID, 2, 0, LIMIT).unwrap();
        enqueue(&comm).unwrap();
        counted("fake_hang");
        log();
        std::thread::scope(|scope| {
            let hanging = scope.spawn(|| enqueue(&comm));
            until("the call is made", || counted("fake_inside") == 1);
            assert_eq!(comm.state().unwrap(), CommState::InProgress);
            assert!(!comm.is_aborted());
            // A second abort returns after the interrupted call has returned.
            let other = scope.spawn(|| {
                comm.abort();
                counted("fake_alive")
            });
            comm.abort();
            assert!(comm.is_aborted() && comm.state().is_err());
            assert_eq!((counted("fake_alive"), other.join().unwrap()), (0, 0));
            let error = hanging.join().unwrap().unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, DriverError::LibraryCall { .. }), "{text}");
            assert!(text.contains("ncclInvalidUsage") && text.contains("was aborted"), "{text}");
        });
        let order = "abort 2\nall-reduce on 3 has ended\nabort 1\nabort 3\n";
        assert_eq!(log(), order);
        assert_eq!(counted("fake_misuses"), 0);
    });
}

#[test]
fn an_abort_that_waits_for_a_graph_blocks_no_other_call() {
    with_fakes("an_abort_that_waits_for_a_graph_blocks_no_other_call", 22_800, |driver| {
        let comm = Communicator::new(driver, 0, &ID, 2, 0, LIMIT).unwrap();
        enqueue(&comm).unwrap();
        counted("fake_graph");
        std::thread::scope(|scope| {
            let abort = scope.spawn(|| comm.abort());
            until("the abort waits", || counted("fake_waiting") == 1);
            assert!(comm.is_aborted() && comm.state().is_err());
            // The owner of the graph launches it before destroying it. The launch is refused, so it
            // cannot block the abort.
            let launch = comm.while_usable(|| unreachable!("the communicator is aborted"));
            assert!(launch.is_err() && enqueue(&comm).is_err());
            assert!(!abort.is_finished());
            counted("fake_graph");
        });
        assert_eq!((counted("fake_misuses"), counted("fake_alive")), (0, 0));
    });
}

/// The environment can make all communicators non-blocking.
#[test]
fn calls_that_never_block_are_waited_for_until_an_abort() {
    with_fakes("calls_that_never_block_are_waited_for_until_an_abort", 22_800, |driver| {
        let comm = Communicator::new(driver, 0, &ID, 2, 0, LIMIT).unwrap();
        (0..3).for_each(|_| enqueue(&comm).unwrap());
        counted("fake_hang");
        std::thread::scope(|scope| {
            let (began, begun) = std::sync::mpsc::channel();
            let comm = &comm;
            let hanging = scope.spawn(move || {
                began.send(()).unwrap();
                enqueue(comm)
            });
            begun.recv().unwrap();
            comm.abort();
            assert!(hanging.join().unwrap().is_err());
        });
        assert_eq!((counted("fake_misuses"), counted("fake_alive")), (0, 0));
    });
}

#[test]
fn waits_for_a_call_that_hangs_can_be_aborted() {
    with_fakes("waits_for_a_call_that_hangs_can_be_aborted", 22_800, |driver| {
        let new = || Communicator::new(driver, 0, &ID, 2, 0, LIMIT).unwrap();
        let (first, second) = (new(), new());
        counted("fake_hang");
        std::thread::scope(|scope| {
            let hanging = scope.spawn(|| enqueue(&first));
            until("the call is made", || counted("fake_inside") == 1);
            let (ready, is_ready) = std::sync::mpsc::channel();
            let second = &second;
            let waiting = scope.spawn(move || {
                ready.send(()).unwrap();
                enqueue(second)
            });
            is_ready.recv().unwrap();
            // New communicators can still be created.
            drop(new());
            second.abort();
            assert!(waiting.join().unwrap().is_err());
            assert_eq!(counted("fake_inside"), 1);
            first.abort();
            assert!(hanging.join().unwrap().is_err());
        });
        until("all communicators are freed", || counted("fake_alive") == 0);
        assert_eq!(counted("fake_misuses"), 0);
    });
}

#[test]
fn a_communicator_that_is_never_ready_is_given_up_at_any_stage() {
    with_fakes("a_communicator_that_is_never_ready_is_given_up_at_any_stage", 22_800, |driver| {
        let limit = Duration::from_millis(50);
        driver.nccl().unwrap();
        for stage in 0..3 {
            ask("fake_stall", |stall: extern "C" fn(usize)| stall(stage));
            let error = Communicator::new(driver, 0, &ID, 2, 0, limit).unwrap_err();
            assert!(error.to_string().contains("ncclInProgress"), "{error}");
            until("the communicator is freed", || counted("fake_alive") == 0);
        }
        let whole = Communicator::new(driver, 0, &ID, 2, 0, LIMIT).unwrap();
        for stage in 0..3 {
            ask("fake_stall", |stall: extern "C" fn(usize)| stall(stage));
            let error = whole.split(Some(1), 0, limit).unwrap_err();
            assert!(error.to_string().contains("ncclInProgress"), "{error}");
            if stage == 0 {
                // The old communicator cannot be used until the stalled split ends.
                assert_eq!(whole.state().unwrap(), CommState::InProgress);
                ask("fake_stall", |stall: extern "C" fn(usize)| stall(usize::MAX / 2));
                until("the split ends", || whole.state().unwrap() == CommState::Ready);
            }
        }
        drop(whole);
        until("all communicators except the stalled one are freed", || counted("fake_alive") <= 1);
        assert_eq!(counted("fake_misuses"), 0);
    });
}
