//! Opening files for reading.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Opens a regular file for reading. Never waits, unlike [`File::open`], which waits for the writer of a FIFO.
///
/// # Errors
/// Those of [`File::open`]; [`io::ErrorKind::InvalidInput`] if `path` is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let file = open_at_once(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// Locks a folder for this process until the result is dropped. Waits for another holder up to `limit`.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if another holder keeps the lock; [`io::ErrorKind::NotADirectory`] if `folder` is
/// none; the system's error, where folders cannot be opened or locked.
pub fn lock_folder(folder: &Path, limit: Duration) -> io::Result<File> {
    let deadline = Instant::now() + limit;
    let folder = open_at_once(folder)?;
    if !folder.metadata()?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// [`File::open`] that never waits.
fn open_at_once(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    }
    options.open(path)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_somebody_keeps_and_a_fifo_are_errors_in_time() {
        let folder = std::env::temp_dir().join(format!("warpline-lock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let kept = lock_folder(&folder, Duration::ZERO).unwrap();
        let limit = Duration::from_millis(50);
        assert_eq!(lock_folder(&folder, limit).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(kept);
        assert!(lock_folder(&folder, limit).is_ok());
        let fifo = folder.join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert_eq!(lock_folder(&fifo, limit).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
