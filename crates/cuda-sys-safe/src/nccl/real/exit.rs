//! Keeps other threads out of NCCL while the process ends.
//!
//! A communicator is aborted on a thread of its own, and process groups watch their communicators
//! on other threads. If the process ends while such a thread is in NCCL, the shutdown of NCCL and
//! of the driver crashes the thread. So an ending process waits for running calls and refuses later
//! calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::{DriverError, Result};

/// Whether the process is ending, so that no call may begin.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Locked for reading during each call, and for writing, forever, once the process must not call
/// NCCL any more.
static CALLS: RwLock<()> = RwLock::new(());

/// Longest time to wait for running calls.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// A running call.
pub(super) type RunningCall = RwLockReadGuard<'static, ()>;

/// Begins a call.
pub(super) fn enter() -> Result<RunningCall> {
    if ENDING.load(Ordering::Acquire) { Err(ending()) } else { enter_to_abort() }
}

/// Begins an abort. Aborts may begin while the ending process waits for a running call, because an
/// abort may be needed to end that call.
pub(super) fn enter_to_abort() -> Result<RunningCall> {
    match CALLS.try_read() {
        Ok(call) => Ok(call),
        Err(TryLockError::Poisoned(call)) => Ok(call.into_inner()),
        Err(TryLockError::WouldBlock) => Err(ending()),
    }
}

fn ending() -> DriverError {
    DriverError::InvalidArgument { call: "NCCL", reason: "the process is ending".to_owned() }
}

/// Registers [`end`], to be called when the process ends. Handlers run in reverse order of
/// registration, so `end` runs before the handlers of all libraries loaded so far. Does nothing on
/// Windows, which has no NCCL.
pub(super) fn register() {
    #[cfg(unix)]
    // SAFETY: `end` takes no arguments and does not unwind.
    unsafe {
        libc::atexit(end);
    }
}

#[cfg_attr(not(unix), allow(dead_code))]
extern "C" fn end() {
    let start = Instant::now();
    ENDING.store(true, Ordering::Release);
    while start.elapsed() < EXIT_TIMEOUT {
        if let Ok(calls) = CALLS.try_write() {
            // Keep the lock forever, so that no abort can begin any more.
            return std::mem::forget(calls);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const CHILD: &str = "WARPLINE_TEST_EXIT";

    /// Runs in a process of its own, in which another thread is in a call when the process ends.
    #[test]
    fn the_process_ends_after_calls_under_way() {
        if std::env::var_os(CHILD).is_some() {
            register();
            let (entered, wait) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let call = enter().expect("the process is not ending yet");
                entered.send(()).expect("somebody waits");
                let began = Instant::now();
                while enter().is_ok() && began.elapsed() < EXIT_TIMEOUT / 2 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                eprintln!("a call: {}, an abort: {}", enter().is_ok(), enter_to_abort().is_ok());
                drop(call);
                while enter_to_abort().is_ok() && began.elapsed() < EXIT_TIMEOUT {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // No abort can begin any more. If one still can, this line fails the test. The
                // process may end before the line is printed.
                eprintln!("then an abort: {}", enter_to_abort().is_ok());
            });
            wait.recv().expect("it begins");
            std::process::exit(0);
        }
        let test = "nccl::real::exit::tests::the_process_ends_after_calls_under_way";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&child.stderr);
        let meanwhile = printed.contains("a call: false, an abort: true");
        assert!(child.status.success() && meanwhile, "{printed}");
        assert!(!printed.contains("then an abort: true"), "{printed}");
    }
}
