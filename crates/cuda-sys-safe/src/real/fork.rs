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
    // No `Once`: a child of a process that was just in there would wait for ever.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.load(Ordering::Acquire) {
        watch();
        WATCHED.store(true, Ordering::Release);
    }
    GENERATION.load(Ordering::Relaxed)
}

/// Begins to count forks. Calling it twice does no harm.
#[cold]
fn watch() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    system::on_fork(in_child);
}

/// The process in which a driver was loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    generation: u32,
    pub(super) pid: u32,
}

impl Birth {
    /// Remembers this process, and begins to count forks.
    pub(super) fn here() -> Self {
        Self { generation: fork_generation(), pid: std::process::id() }
    }

    /// Returns `true` if this is still that process.
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
        let birth = Birth::here();
        assert!(birth.is_here());
        // SAFETY: the child calls nothing but atomics and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = if birth.is_here() { 1 } else { 0 };
            // SAFETY: ends the child at once, running nothing of the parent's.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
        assert!(birth.is_here());
    }
}
