//! Files for parsers that read files.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder of this process, removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Creates the folder for one target. Runs of a target use the folder one after another.
    pub(crate) fn new(target: &str) -> Self {
        let name = format!("warpline-parsers-{target}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder for files");
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and returns its path.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("a written file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
