//! Detecting a forked child without asking for the process id. CUDA does not work in a forked
//! child, and other threads do not exist there.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::system;

/// Number of forks between this process and its first ancestor that watched.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns a number that differs in a forked child, if the parent called this function before the
/// fork.
#[inline]
#[must_use]
pub fn fork_generation() -> u32 {
    // A `Once` would deadlock in a child that was forked while another thread was inside.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.load(Ordering::Acquire) {
        watch();
        WATCHED.store(true, Ordering::Release);
    }
    GENERATION.load(Ordering::Relaxed)
}

/// Begins to count forks. A second call counts each fork twice, which does no harm.
#[cold]
fn watch() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    system::on_fork(in_child);
}

/// The process in which a driver was loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerProcess {
    generation: u32,
    pub(super) pid: u32,
}

impl OwnerProcess {
    /// Returns the current process, and begins to count forks.
    pub(super) fn here() -> Self {
        Self { generation: fork_generation(), pid: std::process::id() }
    }

    /// Returns `true` if the current process is the owner, and not a forked child.
    #[inline]
    pub(super) fn is_here(self) -> bool {
        GENERATION.load(Ordering::Relaxed) == self.generation
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_knows_that_it_is_a_child() {
        let owner = OwnerProcess::here();
        assert!(owner.is_here());
        // SAFETY: the child calls only atomics and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = if owner.is_here() { 1 } else { 0 };
            // SAFETY: `_exit` ends the child without running the parent's handlers.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: `child` is a child of this process, and the pointer is valid for writes.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
        assert!(owner.is_here());
    }
}
