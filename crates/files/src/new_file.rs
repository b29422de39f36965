//! Atomic replacement of files. The content is written to a temporary file with a random name and synced. Then the
//! file is renamed to its final name, and the folder is synced.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::calls::{SaveCall, remove, run};

/// Maximum number of retries with another temporary name. A random 64-bit name is in use only if another process
/// guesses names.
const ATTEMPTS: usize = 16;

/// A new file that [`commit`](NewFile::commit) moves to its path. Before the commit the file has a temporary name in
/// the same folder, `.NAME.RANDOM.part`, and readers of the path see the previous file. Dropping a `NewFile` without a
/// commit removes the temporary file.
///
/// The temporary file is always newly created: an existing file or symbolic link of the same name is never opened. A
/// process that is killed before the commit leaves the temporary file behind.
///
/// ```
/// use std::io::Write;
/// use warpline_files::NewFile;
///
/// let path = std::env::temp_dir().join(format!("warpline-files-{}", std::process::id()));
/// let mut file = NewFile::create(&path)?;
/// file.write_all(b"complete")?;
/// assert!(!path.exists());
/// file.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"complete");
/// # std::fs::remove_file(path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct NewFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    committed: bool,
}

impl NewFile {
    /// Creates the temporary file of `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if `path` does not end in a file name; the system's error if the file cannot be
    /// created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
        };
        // The temporary name must also fit the system's limit on names: 255 bytes, or 143 with encryption.
        let name = name.to_string_lossy();
        let name = &name[..name.floor_char_boundary(100)];
        let permissions = previous_permissions(path);
        let mut attempt = 0;
        loop {
            let temporary = path.with_file_name(format!(".{name}.{:016x}.part", random()));
            match run(SaveCall::Create, || create_new(&temporary, permissions.as_ref())) {
                Ok(file) => {
                    let new = Self { file, temporary, path: path.to_owned(), committed: false };
                    if let Some(permissions) = permissions
                        && permissions != new.file.metadata()?.permissions()
                    {
                        new.file.set_permissions(permissions)?;
                    }
                    return Ok(new);
                }
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Restricts reading and writing to the file's owner (mode 0600) on Unix; does nothing on other systems. Default:
    /// the permissions of the previous file, or if there is none, those that the process's umask allows.
    ///
    /// # Errors
    /// The system's error if the permissions cannot be set.
    pub fn restrict_to_owner(&self) -> io::Result<()> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            self.file.set_permissions(fs::Permissions::from_mode(0o600))?;
        }
        Ok(())
    }

    /// Replaces the file at the path with this file: syncs this file, renames it, and syncs the folder. A symbolic link
    /// at the path is itself replaced.
    ///
    /// # Errors
    /// The system's error if the file cannot be synced or renamed, or the folder cannot be synced. After an error the
    /// previous file is still at the path, unless only the sync of the folder failed. In that case the new file is at
    /// the path, but a power loss may restore the previous file.
    pub fn commit(mut self) -> io::Result<()> {
        run(SaveCall::Sync, || self.file.sync_all())?;
        run(SaveCall::Rename, || fs::rename(&self.temporary, &self.path))?;
        self.committed = true;
        run(SaveCall::SyncFolder, || sync_folder(&self.path))
    }
}

/// Returns the `NAME` of a temporary file `.NAME.RANDOM.part` of a [`NewFile`], or `None` if the file's name has
/// another form. If the name at the path has more than 100 bytes, `NAME` is its beginning.
#[must_use]
pub fn name_of_temporary(file_name: &str) -> Option<&str> {
    let (name, random) = file_name.strip_prefix('.')?.strip_suffix(".part")?.rsplit_once('.')?;
    (random.len() == 16 && random.bytes().all(|b| b.is_ascii_hexdigit())).then_some(name)
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        run(SaveCall::Write, || self.file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.committed {
            let _ = remove(&self.temporary);
        }
    }
}

/// Returns the permissions of the file at `path`, on Unix. A symbolic link has those of its target.
fn previous_permissions(path: &Path) -> Option<fs::Permissions> {
    let previous = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    cfg!(unix).then(|| previous.permissions())
}

/// Creates a file for writing. With `permissions`, its mode has only their read and write bits for the owner, so that
/// the new file is never more accessible than the previous file.
fn create_new(path: &Path, permissions: Option<&fs::Permissions>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if let Some(permissions) = permissions {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        options.mode(permissions.mode() & 0o600);
    }
    #[cfg(not(unix))]
    let _ = permissions;
    options.open(path)
}

/// Returns a random number, for names that must be unique and hard to guess.
pub fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    // A forked child inherits its parent's random keys.
    hasher.write_u32(std::process::id());
    hasher.finish()
}

/// Syncs the folder that contains a file, if the system can sync folders.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // A folder may be writable without being readable, and some file systems sync no folders.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::watch;

    /// A new folder that is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let name = format!("warpline-files-{:016x}", random());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn save(path: &Path, text: &str) -> io::Result<()> {
        let mut file = NewFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.commit()
    }

    #[test]
    fn a_file_is_synced_before_it_is_renamed_and_its_folder_after() {
        let (folder, log) = (Folder::new(), Rc::new(RefCell::new(Vec::new())));
        let noted = Rc::clone(&log);
        let note = move |call| {
            noted.borrow_mut().push(call);
            Ok(())
        };
        watch(note, || save(&folder.0.join("a"), "text")).unwrap();
        let order = [
            SaveCall::Create,
            SaveCall::Write,
            SaveCall::Sync,
            SaveCall::Rename,
            SaveCall::SyncFolder,
        ];
        assert_eq!(*log.borrow(), order);
        assert_eq!(folder.names(), ["a"]);
    }

    #[test]
    fn a_failed_call_leaves_one_complete_file_and_no_temporary_file() {
        let folder = Folder::new();
        let path = folder.0.join("a");
        for failing in 0.. {
            save(&path, "old").unwrap();
            let mut calls = 0;
            let fail = move |call| {
                calls += 1;
                // Let the removal of the temporary file succeed: it follows a call that has already failed.
                if calls == failing + 1 && call != SaveCall::Remove {
                    return Err(io::Error::other("injected"));
                }
                Ok(())
            };
            let saved = watch(fail, || save(&path, "new"));
            assert_eq!(folder.names(), ["a"], "after call {failing}");
            let text = fs::read_to_string(&path).unwrap();
            if saved.is_ok() {
                assert_eq!((failing, &text[..]), (5, "new"));
                break;
            }
            assert_eq!(text, if failing == 4 { "new" } else { "old" }, "after call {failing}");
        }
    }

    /// Somebody has guessed the temporary name, and has put a file or a link there.
    #[test]
    #[cfg(unix)]
    fn an_existing_file_or_link_is_never_opened() {
        let folder = Folder::new();
        let victim = folder.0.join("victim");
        fs::write(&victim, "untouched").unwrap();
        let mut taken = vec![victim.clone()];
        for (name, target) in [("link", &victim), ("dangling", &folder.0.join("nothing"))] {
            taken.push(folder.0.join(name));
            std::os::unix::fs::symlink(target, folder.0.join(name)).unwrap();
        }
        for path in &taken {
            let refused = create_new(path, None).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{}", path.display());
        }
        assert!(!folder.0.join("nothing").exists());
        assert_eq!(fs::read_to_string(victim).unwrap(), "untouched");
    }

    /// The save tries the next random name.
    #[test]
    fn a_taken_temporary_name_is_not_the_end_of_a_save() {
        let folder = Folder::new();
        let mut taken = 3;
        let fail = move |call| {
            if call == SaveCall::Create && taken > 0 {
                taken -= 1;
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Ok(())
        };
        watch(fail, || save(&folder.0.join("a"), "text")).unwrap();
        assert_eq!(folder.names(), ["a"]);
    }

    #[test]
    #[cfg(unix)]
    fn temporary_names_are_unique_and_symbolic_links_are_replaced() {
        let folder = Folder::new();
        let (path, elsewhere) = (folder.0.join("a"), folder.0.join("elsewhere"));
        fs::write(&elsewhere, "mine").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let (first, second) = (NewFile::create(&path).unwrap(), NewFile::create(&path).unwrap());
        assert_ne!(first.temporary, second.temporary);
        drop(second);
        first.commit().unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_to_string(elsewhere).unwrap(), "mine");
    }

    /// A private file does not become readable for others.
    #[test]
    #[cfg(unix)]
    fn a_replaced_file_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;

        let folder = Folder::new();
        let path = folder.0.join("a");
        for mode in [0o600, 0o640, 0o400] {
            save(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            save(&path, "new").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            // A link has the permissions of its target.
            let link = folder.0.join("link");
            std::os::unix::fs::symlink(&path, &link).unwrap();
            save(&link, "newer").unwrap();
            assert_eq!(fs::symlink_metadata(&link).unwrap().permissions().mode() & 0o777, mode);
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            fs::remove_file(&link).unwrap();
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(folder.names(), [""; 0]);
    }

    #[test]
    fn temporary_files_are_found_by_name() {
        let folder = Folder::new();
        let long = "é".repeat(120);
        for (name, found) in [("a.b", "a.b"), (&long[..], &long[..100])] {
            let file = NewFile::create(&folder.0.join(name)).unwrap();
            assert_eq!(name_of_temporary(&folder.names()[0]), Some(found));
            drop(file);
        }
        let other =
            ["a", ".part", ".a.part", ".a.0123456789abcde.part", ".a.0123456789abcdeg.part"];
        assert!(other.iter().all(|name| name_of_temporary(name).is_none()));
    }

    #[test]
    fn names_of_any_length_and_paths_without_a_folder_are_saved() {
        let folder = Folder::new();
        save(&folder.0.join("n".repeat(255)), "text").unwrap();
        assert_eq!(folder.names()[0].len(), 255);
        let error = NewFile::create(&folder.0.join("..")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let here = format!("warpline-files-{:016x}", random());
        save(Path::new(&here), "text").unwrap();
        fs::remove_file(here).unwrap();
    }
}
