//! Files of compiled PTX, in a folder that only this user can write.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use warpline_files::NewFile;

/// Maximum number of bytes that are read from a file. NVRTC's largest outputs have a few MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Returns the PTX in `folder/name`. `None` if the file is missing, incomplete or changed, is not a
/// regular file, or could have been written by another user.
pub(crate) fn load(folder: &Path, name: &str) -> Option<String> {
    let mut text = String::new();
    system::open(folder, name).ok()?.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
    let (first, ptx) = text.split_once('\n')?;
    (first == head(ptx)).then(|| ptx.to_owned())
}

/// Writes PTX to `folder/name`. If that fails, a later process compiles the source again.
pub(crate) fn store(folder: &Path, name: &str, ptx: &str) {
    let write = || -> io::Result<()> {
        system::prepare(folder)?;
        let mut file = NewFile::create(&folder.join(name))?;
        file.restrict_to_owner()?;
        write!(file, "{}\n{ptx}", head(ptx))?;
        file.commit()
    };
    if let Err(error) = write() {
        let folder = folder.display();
        tracing::warn!(target: "warpline::compile", "{folder} keeps no compiled GPU code: {error}");
    }
}

/// Returns the first line of a file: a hash of the rest.
fn head(ptx: &str) -> String {
    let hash = Sha256::digest(ptx);
    hash.iter()
        .take(16)
        .fold(String::from("// sha256 "), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(unix)]
mod system {
    use std::fs::DirBuilder;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    use rustix::fs::{Mode, OFlags};
    use rustix::process::geteuid;

    use super::*;

    /// Opens a file of the folder. Never blocks, and fails if `name` is a symbolic link.
    pub(super) fn open(folder: &Path, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(trusted(folder)?, name, flags, Mode::empty())?;
        let file = File::from(file);
        let found = file.metadata()?;
        if !found.is_file() || found.uid() != geteuid().as_raw() {
            return Err(denied("the file is not a regular file of this user"));
        }
        if found.mode() & 0o022 != 0 {
            return Err(denied("other users can write to the file"));
        }
        Ok(file)
    }

    /// Creates the folder for this user alone, or checks an existing one.
    pub(super) fn prepare(folder: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        trusted(folder).map(drop)
    }

    /// Opens the folder, if no other user can write to it.
    fn trusted(folder: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = File::from(rustix::fs::open(folder, flags, Mode::empty())?);
        let found = folder.metadata()?;
        if found.uid() != geteuid().as_raw() {
            return Err(denied("the folder belongs to another user"));
        }
        if found.mode() & 0o022 != 0 {
            return Err(denied("other users can write to the folder"));
        }
        Ok(folder)
    }

    fn denied(reason: &'static str) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, reason)
    }
}

#[cfg(not(unix))]
mod system {
    use super::*;

    pub(super) fn open(folder: &Path, name: &str) -> io::Result<File> {
        warpline_files::open(&folder.join(name))
    }

    pub(super) fn prepare(folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A path for a folder of this test, whose parent is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("warpline-disk-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name).join("cache"))
        }

        fn mode(&self) -> u32 {
            fs::metadata(&self.0).unwrap().mode() & 0o777
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = self.0.parent().map(fs::remove_dir_all);
        }
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_is_not_trusted() {
        let folder = Folder::new("others");
        store(&folder.0, "a.ptx", "code");
        assert_eq!((folder.mode(), load(&folder.0, "a.ptx").as_deref()), (0o700, Some("code")));
        for mode in [0o777, 0o770, 0o702] {
            chmod(&folder.0, mode);
            assert_eq!(load(&folder.0, "a.ptx"), None, "{mode:o}");
            store(&folder.0, "b.ptx", "more");
            assert!(!folder.0.join("b.ptx").exists(), "{mode:o}");
        }
        chmod(&folder.0, 0o755);
        assert_eq!(load(&folder.0, "a.ptx").as_deref(), Some("code"), "others can only read");
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        let folder = Folder::new("file");
        store(&folder.0, "a.ptx", "code");
        chmod(&folder.0, 0o755);
        let path = folder.0.join("a.ptx");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "whatever the umask is");
        for mode in [0o666, 0o660, 0o602] {
            chmod(&path, mode);
            assert_eq!(load(&folder.0, "a.ptx"), None, "{mode:o}");
        }
        chmod(&path, 0o644);
        assert_eq!(load(&folder.0, "a.ptx").as_deref(), Some("code"), "others can only read");
    }

    #[test]
    fn a_folder_of_another_user_is_not_trusted() {
        // Only root can give files to another user. Modes do not restrict root, so only the check
        // of the file's user can reject these files.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = Folder::new("owner");
        store(&folder.0, "a.ptx", "code");
        std::os::unix::fs::chown(folder.0.join("a.ptx"), Some(12_345), None).unwrap();
        assert_eq!(load(&folder.0, "a.ptx"), None, "another user's file");
        store(&folder.0, "a.ptx", "code");
        assert_eq!(load(&folder.0, "a.ptx").as_deref(), Some("code"), "replaced");
        std::os::unix::fs::chown(&folder.0, Some(12_345), None).unwrap();
        assert_eq!(load(&folder.0, "a.ptx"), None, "another user's folder");
    }

    #[test]
    fn links_and_fifos_in_the_place_of_a_file_are_not_read_and_are_replaced() {
        let folder = Folder::new("links");
        store(&folder.0, "real.ptx", "code");
        let (link, fifo) = (folder.0.join("link.ptx"), folder.0.join("fifo.ptx"));
        symlink("real.ptx", &link).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        for name in ["link.ptx", "fifo.ptx"] {
            // In a thread, so that the test fails instead of waiting for a writer of the FIFO.
            let (path, (done, loaded)) = (folder.0.clone(), channel());
            thread::spawn(move || done.send(load(&path, name)));
            assert_eq!(loaded.recv_timeout(Duration::from_secs(30)), Ok(None), "{name}");
            store(&folder.0, name, "other");
            assert_eq!(load(&folder.0, name).as_deref(), Some("other"), "{name}");
        }
        assert_eq!(load(&folder.0, "real.ptx").as_deref(), Some("code"), "not through the link");
    }
}
