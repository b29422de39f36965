//! The system calls of a save. Tests observe these calls and make them fail (`watch`).

use std::fs;
use std::io;
use std::path::Path;

/// A system call of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveCall {
    /// Creates the temporary file.
    Create,
    /// Writes to the temporary file.
    Write,
    /// Syncs the temporary file to its disk.
    Sync,
    /// Renames the temporary file to its final name.
    Rename,
    /// Syncs the folder to its disk, and with it the rename.
    SyncFolder,
    /// Removes a file.
    Remove,
}

/// Makes a system call, unless a test makes it fail.
#[inline]
pub(crate) fn run<R>(call: SaveCall, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    #[cfg(any(test, feature = "testing"))]
    watched::begin(call)?;
    let _ = call;
    f()
}

#[cfg(any(test, feature = "testing"))]
pub use watched::watch;

#[cfg(any(test, feature = "testing"))]
mod watched {
    use std::cell::RefCell;
    use std::io;

    use super::SaveCall;

    type Watcher = Box<dyn FnMut(SaveCall) -> io::Result<()>>;

    thread_local! {
        static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
    }

    /// Runs `f`, and runs `watcher` before each system call of a save that `f` makes on this thread. If `watcher`
    /// returns an error, the system call is skipped and fails with that error.
    pub fn watch<R>(
        watcher: impl FnMut(SaveCall) -> io::Result<()> + 'static,
        f: impl FnOnce() -> R,
    ) -> R {
        /// Restores the previous watcher, also after a panic.
        struct Restore(Option<Watcher>);
        impl Drop for Restore {
            fn drop(&mut self) {
                WATCHER.set(self.0.take());
            }
        }
        let _restore = Restore(WATCHER.replace(Some(Box::new(watcher))));
        f()
    }

    pub(super) fn begin(call: SaveCall) -> io::Result<()> {
        WATCHER.with_borrow_mut(|watcher| watcher.as_mut().map_or(Ok(()), |watcher| watcher(call)))
    }
}

/// Removes a file.
///
/// # Errors
/// Errors of [`std::fs::remove_file`].
pub fn remove(path: &Path) -> io::Result<()> {
    run(SaveCall::Remove, || fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_is_gone_after_a_panic() {
        let watched = || watch(|_| Err(io::Error::other("injected")), || panic!("on purpose"));
        std::panic::catch_unwind(watched).unwrap_err();
        run(SaveCall::Sync, || Ok(())).unwrap();
        // An inner watcher gives way to the outer one.
        let outer = || {
            watch(|_| Ok(()), || run(SaveCall::Sync, || Ok(()))).unwrap();
            run(SaveCall::Sync, || Ok(())).unwrap_err()
        };
        watch(|_| Err(io::Error::other("injected")), outer);
    }
}
