//! Opens files without blocking, and locks folders with a time limit.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Opens a regular file for reading. Never blocks, whereas [`File::open`] blocks on a FIFO until the FIFO has a writer.
///
/// # Errors
/// Errors of [`File::open`]; [`io::ErrorKind::InvalidInput`] if `path` is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let file = open_at_once(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is not a regular file"));
    }
    Ok(file)
}

/// Locks a folder exclusively until the returned file is dropped. Waits up to `limit` while the folder is locked.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if the folder is still locked after `limit`; [`io::ErrorKind::NotADirectory`] if
/// `folder` is not a folder; the system's error if the folder cannot be opened or locked.
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

/// Opens a file like [`File::open`], but never blocks.
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
    fn a_locked_folder_and_a_fifo_are_errors_without_blocking() {
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
