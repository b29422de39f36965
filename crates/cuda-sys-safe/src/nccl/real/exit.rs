//! Keeping other threads out of NCCL while the process ends.
//!
//! A communicator's last owner hands it to a thread that aborts it, and process groups look after
//! their communicators on threads of their own. What ends the process at the same time takes down
//! NCCL and the driver under these threads, which then crash. So as it ends, calls that are under way
//! are waited for, and later ones are refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::{DriverError, Result};

/// Whether the process ends: no call begins any more.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Held for reading during each call, and for writing once the process has ended for NCCL.
static CALLS: RwLock<()> = RwLock::new(());

/// How long calls under way are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A call that is under way.
pub(super) type Call = RwLockReadGuard<'static, ()>;

/// Begins a call.
pub(super) fn enter() -> Result<Call> {
    if ENDING.load(Ordering::Acquire) { Err(ending()) } else { enter_to_abort() }
}

/// Begins an abort, which may be what ends a call that is under way: while one is waited for, aborts
/// are let in.
pub(super) fn enter_to_abort() -> Result<Call> {
    match CALLS.try_read() {
        Ok(call) => Ok(call),
        Err(TryLockError::Poisoned(call)) => Ok(call.into_inner()),
        Err(TryLockError::WouldBlock) => Err(ending()),
    }
}

fn ending() -> DriverError {
    DriverError::InvalidArgument { call: "NCCL", reason: "the process is ending".to_owned() }
}

/// Has [`end`] called when the process ends: before what the libraries registered that are loaded by
/// now, since the last one registered is called first.
pub(super) fn register() {
    #[cfg(unix)]
    // SAFETY: the function takes nothing, and does not unwind.
    unsafe {
        libc::atexit(end);
    }
}

#[cfg_attr(not(unix), allow(dead_code))]
extern "C" fn end() {
    let start = Instant::now();
    ENDING.store(true, Ordering::Release);
    while start.elapsed() < PATIENCE {
        if let Ok(calls) = CALLS.try_write() {
            // No abort begins any more either.
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

    /// Runs as a process of its own: another thread is in a call as it ends.
    #[test]
    fn the_process_ends_after_calls_under_way() {
        if std::env::var_os(CHILD).is_some() {
            register();
            let (entered, wait) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let call = enter().expect("the process is not ending yet");
                entered.send(()).expect("somebody waits");
                let began = Instant::now();
                while enter().is_ok() && began.elapsed() < PATIENCE / 2 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                eprintln!("a call: {}, an abort: {}", enter().is_ok(), enter_to_abort().is_ok());
                drop(call);
                while enter_to_abort().is_ok() && began.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Nobody comes to this if the process has ended by now.
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
