//! PTX compiled at run time. A process compiles each source once and stores the result in files for
//! later processes.
//!
//! Files are found by the hash of the source and hold a hash of their own content. A file that was
//! truncated or changed is compiled again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use warpline_sync::{LazyLock, Mutex, MutexGuard};

use super::{Compiler, Program, artefact, disk};
use crate::{Error, ErrorKind, Result};

/// PTX by the hash of its source. Lookups are rare, because each device looks up a kernel's PTX only
/// once, when it loads the kernel.
#[derive(Debug, Default)]
pub(super) struct Compiled(Mutex<HashMap<String, PtxCell>>);

/// The PTX of one source, locked while it is compiled.
type PtxCell = Arc<Mutex<Option<String>>>;

/// PTX compiled by this process.
static PROCESS: LazyLock<Compiled> = LazyLock::new(Compiled::default);

/// Returns a variant's PTX that was not compiled ahead of time: from this process, from a file in
/// `folder`, or by compiling it now.
///
/// # Errors
/// [`ErrorKind::NoGpuCode`] if no compiler is found, and [`ErrorKind::Driver`] if the compilation
/// fails.
pub(super) fn at_run_time(
    program: &Program,
    variant: usize,
    folder: Option<&Path>,
) -> Result<String> {
    LazyLock::force(&PROCESS).get(program, variant, folder, || {
        let found = Compiler::find();
        found.map_err(|why| no_code(program, &why))?.ptx(program, variant)
    })
}

impl Compiled {
    /// Returns a variant's PTX. Calls `compile` if the PTX is neither in memory nor in `folder`. No
    /// lock is held while files are read and written.
    pub(super) fn get(
        &self,
        program: &Program,
        variant: usize,
        folder: Option<&Path>,
        compile: impl FnOnce() -> Result<String>,
    ) -> Result<String> {
        let hash = artefact::hash(program, variant);
        let name = format!("{hash}.ptx");
        let cell = Arc::clone(lock(&self.0).entry(hash).or_default());
        if let Some(known) = lock(&cell).clone() {
            return Ok(known);
        }
        if let Some(ptx) = folder.and_then(|folder| disk::load(folder, &name)) {
            return Ok(lock(&cell).get_or_insert(ptx).clone());
        }
        let mut guard = lock(&cell);
        // Another thread may have compiled the source before this thread got the lock.
        if let Some(known) = &*guard {
            return Ok(known.clone());
        }
        let ptx = compile()?;
        *guard = Some(ptx.clone());
        drop(guard);
        if let Some(folder) = folder {
            disk::store(folder, &name, &ptx);
        }
        Ok(ptx)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates the error for a program without GPU code, with the remedies.
#[cold]
pub(super) fn no_code(program: &Program, why: &Error) -> Error {
    let reason = format!(
        "`{}` was not compiled ahead of time, and cannot be now: {why}. Install NVRTC 12 or newer (a \
         part of the CUDA toolkit, and of pip's `nvidia-cuda-nvrtc-cu12`), or name it in \
         WARPLINE_NVRTC; or have the crate of the op write its PTX with \
         `warpline_runtime::module::update` and give it to `Program::with_ptx`",
        program.name()
    );
    Error::unlocated(ErrorKind::NoGpuCode { reason }).of(program.name())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use warpline_cuda_sys_safe::DriverError;

    use super::*;
    use crate::module::Source;

    static TWICE: Program = Program::new("twice", &["f32", "f64"], &[""], |_, ty| {
        let text = "extern \"C\" __global__ void twice_T(T* x) { x[threadIdx.x] *= 2; }";
        Source::new().push(&text.replace('T', ty))
    });

    /// A path for a new folder, which is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("warpline-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name).join("cache"))
        }

        fn files(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(&self.0).into_iter().flatten();
            entries.map(|entry| entry.unwrap().path()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = self.0.parent().map(fs::remove_dir_all);
        }
    }

    /// A simulated process that counts its compilations.
    #[derive(Default)]
    struct Process {
        compiled: Compiled,
        compilations: AtomicUsize,
    }

    impl Process {
        fn ptx(&self, variant: usize, folder: Option<&Folder>) -> String {
            let compile = || {
                self.compilations.fetch_add(1, Ordering::Relaxed);
                Ok(format!(".entry {}(\n", TWICE.kernels(variant).next().unwrap()))
            };
            let folder = folder.map(|folder| folder.0.as_path());
            self.compiled.get(&TWICE, variant, folder, compile).unwrap()
        }

        fn compilations(&self) -> usize {
            self.compilations.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_process_compiles_each_source_once() {
        let process = Process::default();
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| process.ptx(0, None)))));
        assert_eq!(process.compilations(), 1, "four threads ask at the same time");
        let first = process.ptx(0, None);
        assert_eq!(process.compilations(), 1);
        assert_ne!(process.ptx(1, None), first, "another variant");
        assert_eq!(process.compilations(), 2);
    }

    #[test]
    fn later_processes_use_the_stored_ptx() {
        let folder = Folder::new("kept");
        let first = Process::default().ptx(0, Some(&folder));
        assert_eq!(folder.files().len(), 1, "no temporary file is left");
        let later = Process::default();
        assert_eq!(later.ptx(0, Some(&folder)), first);
        assert_eq!(later.compilations(), 0);
        later.ptx(1, Some(&folder));
        assert_eq!((later.compilations(), folder.files().len()), (1, 2));
    }

    #[test]
    fn a_damaged_file_is_compiled_again_and_replaced() {
        let folder = Folder::new("damaged");
        let ptx = Process::default().ptx(0, Some(&folder));
        let file = folder.files().remove(0);
        let whole = fs::read(&file).unwrap();
        let changed = String::from_utf8(whole.clone()).unwrap().replace("twice", "thrice");
        for damaged in [&whole[..whole.len() - 2], b"", b"\xff\xff\n", changed.as_bytes()] {
            fs::write(&file, damaged).unwrap();
            let process = Process::default();
            assert_eq!(process.ptx(0, Some(&folder)), ptx);
            assert_eq!(process.compilations(), 1, "{damaged:?} was used as PTX");
            assert_eq!(fs::read(&file).unwrap(), whole);
        }
    }

    #[test]
    fn without_a_writable_folder_every_process_compiles() {
        let folder = Folder::new("no-folder");
        fs::create_dir_all(folder.0.parent().unwrap()).unwrap();
        fs::write(&folder.0, "a file in its place").unwrap();
        for _ in 0..2 {
            let process = Process::default();
            process.ptx(0, Some(&folder));
            assert_eq!(process.compilations(), 1);
        }
    }

    #[test]
    fn a_compilation_does_not_block_other_sources() {
        let compiled = Compiled::default();
        // If all sources shared a lock, compiling one variant during the compilation of another
        // would deadlock.
        let outer = compiled.get(&TWICE, 0, None, || {
            compiled.get(&TWICE, 1, None, || Ok("inner".into())).map(|inner| inner + " outer")
        });
        assert_eq!(outer.unwrap(), "inner outer");
    }

    #[test]
    fn a_failed_compilation_is_not_kept() {
        let compiled = Compiled::default();
        let refused = Error::invalid("twice", "line 1");
        assert!(compiled.get(&TWICE, 0, None, || Err(refused)).is_err());
        assert_eq!(compiled.get(&TWICE, 0, None, || Ok("ptx".into())).unwrap(), "ptx");
    }

    #[test]
    fn without_ptx_and_compiler_the_error_names_a_remedy() {
        let why = DriverError::LibraryNotFound {
            library: "NVRTC",
            searched: vec!["libnvrtc.so.12".into()],
            reason: "no such file".into(),
            variable: "WARPLINE_NVRTC",
        };
        let error = no_code(&TWICE, &Error::driver("nvrtc", why));
        assert!(matches!((error.op(), error.kind()), ("twice", ErrorKind::NoGpuCode { .. })));
        let text = error.to_string();
        for part in ["libnvrtc.so.12", "WARPLINE_NVRTC", "module::update", "with_ptx"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    #[ignore = "needs NVRTC: name it in WARPLINE_NVRTC"]
    fn nvrtc_compiles_at_run_time_and_the_file_is_found_again() {
        let folder = Folder::new("nvrtc");
        let ptx = at_run_time(&TWICE, 1, Some(&folder.0)).unwrap();
        assert!(ptx.contains(".entry twice_f64("), "{ptx}");
        assert_eq!(at_run_time(&TWICE, 1, None).unwrap(), ptx, "from memory");
        let later = Compiled::default();
        let none = || panic!("the stored PTX was not used");
        assert_eq!(later.get(&TWICE, 1, Some(&folder.0), none).unwrap(), ptx, "from its file");
    }
}
