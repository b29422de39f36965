//! Finding shared libraries at run time, and tables of their functions.
//!
//! The library of a function table is never closed, because any thread may call its functions until
//! the process ends.

use std::ffi::{CStr, OsString, c_char, c_uint};
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::{DriverError, Result, system};

/// The folders in which the libraries of CUDA are looked for after the loader's own path.
pub(crate) const CUDA_FOLDERS: &[&str] = if cfg!(windows) {
    &[]
} else {
    &[
        "/usr/local/cuda/lib64",
        "/usr/local/cuda-13/lib64",
        "/usr/local/cuda-12/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
    ]
};

/// The file names and folders under which a library is looked for.
pub(crate) struct LibrarySearch {
    /// Name of the library in messages.
    pub(crate) library: &'static str,
    /// The environment variable that overrides the search.
    pub(crate) variable: &'static str,
    /// File names, in order of preference.
    pub(crate) names: &'static [&'static str],
    /// Folders that are searched after the loader's own path.
    pub(crate) folders: &'static [&'static str],
}

impl LibrarySearch {
    /// Returns the path in the environment variable, if the variable is set and not empty. Programs
    /// with elevated rights (setuid) ignore the variable, because the library would run with these
    /// rights.
    pub(crate) fn named_in_env(&self) -> Option<PathBuf> {
        named(std::env::var_os(self.variable), system::has_elevated_rights())
    }

    /// Returns the paths to try, in order. If a file or folder is named, nothing else is tried,
    /// because a fallback would hide a typing error.
    pub(crate) fn candidates(&self, named: Option<&Path>) -> Vec<PathBuf> {
        let inside = |folder: &Path| -> Vec<PathBuf> {
            self.names.iter().map(|name| folder.join(name)).collect()
        };
        match named {
            Some(folder) if folder.is_dir() => inside(folder),
            Some(file) => vec![file.to_owned()],
            None => {
                let mut all: Vec<PathBuf> = self.names.iter().map(PathBuf::from).collect();
                all.extend(self.folders.iter().flat_map(|folder| inside(Path::new(folder))));
                // The environment may name many folders. Only existing files are tried, to keep
                // error messages short.
                let from_env = system::library_folders().into_iter().flat_map(|f| inside(&f));
                all.extend(from_env.filter(|file| file.is_file()));
                all
            }
        }
    }

    /// Turns an error of an unusable library into an error of the variable, if the variable named
    /// the library.
    pub(crate) fn blame(&self, named: Option<&Path>, error: DriverError) -> DriverError {
        match (error, named) {
            (DriverError::LibraryNotFound { reason, .. }, Some(named)) => {
                self.not_usable(named, &reason)
            }
            (
                error @ (DriverError::MissingSymbol { .. } | DriverError::OtherCuda { .. }),
                Some(named),
            ) => self.not_usable(named, &error.to_string()),
            (error, _) => error,
        }
    }

    /// Returns an error if the environment variable holds a path that does not exist. A bare file
    /// name is left to the loader.
    pub(crate) fn check_named(&self) -> Result<()> {
        match self.named_in_env() {
            Some(path) if path.components().count() > 1 && !path.exists() => {
                Err(self.not_usable(&path, "there is no such file or folder"))
            }
            _ => Ok(()),
        }
    }

    fn not_usable(&self, named: &Path, reason: &str) -> DriverError {
        let library = self.library;
        let reason = format!(
            "no {library} library can be loaded from there: {reason}. Set the variable to the path \
             of the library or of its folder, or remove it to have the library searched for"
        );
        DriverError::variable(self.variable, named.display().to_string(), reason)
    }

    /// Opens the first candidate that the loader accepts.
    pub(crate) fn open(&self, candidates: &[PathBuf]) -> Result<Library> {
        let mut reason: Option<String> = None;
        for path in candidates {
            // SAFETY: opening runs the library's initialisers. The library is NVIDIA's, whose
            // initialisers are sound, or the user chose it by an environment variable or an
            // explicit path.
            match unsafe { system::open_library(path) } {
                Ok(library) => return Ok(library),
                // The error of an existing file that does not open is more useful than that of a
                // missing file.
                Err(error) => {
                    if reason.is_none() || path.exists() {
                        reason = Some(complaint(&error));
                    }
                }
            }
        }
        Err(DriverError::LibraryNotFound {
            library: self.library,
            searched: candidates.iter().map(|path| path.display().to_string()).collect(),
            reason: reason.unwrap_or_else(|| "nothing was tried".to_owned()),
            variable: self.variable,
        })
    }
}

fn named(value: Option<OsString>, elevated: bool) -> Option<PathBuf> {
    value.filter(|value| !elevated && !value.is_empty()).map(PathBuf::from)
}

/// Returns the loader's message, which libloading keeps in the error's source.
pub(crate) fn complaint(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| source.to_string())
}

/// Formats a version number of `cuDriverGetVersion` and the like as `major.minor`.
pub(crate) fn version_text(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// A status code. A plain integer, because a newer library may return a code that our enums lack.
pub(crate) type StatusCode = c_uint;

/// Returns a library's text for a status, or the number if the library has no text.
///
/// # Safety
/// `text` is null or a NUL-terminated string that is never freed.
pub(crate) unsafe fn status_text(status: StatusCode, text: *const c_char) -> String {
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: the caller guarantees that `text` is a NUL-terminated string that is never freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Declares a table of a library's functions.
///
/// `required` functions are fields, resolved when the table is made. `optional` functions are
/// methods that return the function or [`DriverError::MissingSymbol`]. Functions without `->`
/// return a status.
macro_rules! function_table {
    (@ret) => { $crate::dylib::StatusCode };
    (@ret $ret:ty) => { $ret };
    (
        $(#[$meta:meta])*
        $vis:vis struct $table:ident of $library:literal;
        required $needs:literal { $($name:ident($($arg:ty),* $(,)?) $(-> $ret:ty)?;)* }
        optional { $($since:literal $opt:ident($($opt_arg:ty),* $(,)?);)* }
    ) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        #[derive(Clone)]
        $vis struct $table {
            $($vis $name: unsafe extern "C" fn($($arg),*) -> function_table!(@ret $($ret)?),)*
            $($opt: Option<unsafe extern "C" fn($($opt_arg),*) -> $crate::dylib::StatusCode>,)*
            /// The library's version, for error messages.
            #[allow(dead_code)] // only `Debug` reads it in tables without optional functions
            version: String,
        }

        #[allow(non_snake_case, dead_code)]
        impl $table {
            /// Resolves the table. `version` returns the library's version for error messages.
            ///
            /// # Safety
            /// Functions of these names in `library` must have these signatures.
            $vis unsafe fn resolve(
                library: libloading::Library,
                version: impl Fn(&libloading::Library) -> String,
            ) -> $crate::Result<Self> {
                let table = Self {
                    $($name: {
                        // SAFETY: the caller of `resolve` guarantees that the declared signature is
                        // the library's.
                        match unsafe { library.get(concat!(stringify!($name), "\0")) } {
                            Ok(symbol) => *symbol,
                            Err(_) => return Err($crate::DriverError::MissingSymbol {
                                library: $library,
                                symbol: stringify!($name),
                                version: version(&library),
                                needs: $needs,
                            }),
                        }
                    },)*
                    $($opt: {
                        // SAFETY: the caller of `resolve` guarantees that the declared signature is
                        // the library's.
                        unsafe { library.get(concat!(stringify!($opt), "\0")) }.ok().map(|s| *s)
                    },)*
                    version: version(&library),
                };
                // Never unload the library: the table's function pointers stay in use until the
                // process ends.
                std::mem::forget(library);
                Ok(table)
            }

            $(
                $vis fn $opt(
                    &self,
                ) -> $crate::Result<unsafe extern "C" fn($($opt_arg),*) -> $crate::dylib::StatusCode>
                {
                    self.$opt.ok_or_else(|| $crate::DriverError::MissingSymbol {
                        library: $library,
                        symbol: stringify!($opt),
                        version: self.version.clone(),
                        needs: $since,
                    })
                }
            )*
        }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($table)).field("version", &self.version).finish()
            }
        }
    };
}
pub(crate) use function_table;

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: LibrarySearch = LibrarySearch {
        library: "test",
        variable: "WARPLINE_TEST_NO_SUCH_VARIABLE",
        names: &["libwarpline-no-such.so.2", "libwarpline-no-such.so.1"],
        folders: &["/nonexistent/a", "/nonexistent/b"],
    };

    #[test]
    fn a_missing_library_lists_the_search_in_order() {
        let candidates = MISSING.candidates(None);
        let error = MISSING.open(&candidates).unwrap_err();
        let DriverError::LibraryNotFound { searched, reason, variable, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(
            searched,
            &[
                "libwarpline-no-such.so.2",
                "libwarpline-no-such.so.1",
                "/nonexistent/a/libwarpline-no-such.so.2",
                "/nonexistent/a/libwarpline-no-such.so.1",
                "/nonexistent/b/libwarpline-no-such.so.2",
                "/nonexistent/b/libwarpline-no-such.so.1",
            ]
        );
        assert!(reason.contains("libwarpline-no-such.so.2"), "{reason}");
        assert_eq!(*variable, MISSING.variable);
    }

    #[test]
    fn a_named_path_excludes_the_search() {
        let named = Path::new("/nonexistent/mine.so");
        assert_eq!(MISSING.candidates(Some(named)), [named]);
        let folder = std::env::temp_dir();
        assert_eq!(
            MISSING.candidates(Some(&folder)),
            [folder.join("libwarpline-no-such.so.2"), folder.join("libwarpline-no-such.so.1")]
        );
    }

    #[test]
    fn a_program_with_elevated_rights_ignores_overrides() {
        let value = || Some("/tmp/mine.so".into());
        assert_eq!(named(value(), false), Some("/tmp/mine.so".into()));
        assert_eq!(named(value(), true), None);
        assert_eq!(named(Some("".into()), false), None);
        assert_eq!(named(None, false), None);
        assert!(!system::has_elevated_rights(), "tests do not run as a setuid program");
    }

    #[test]
    fn the_reason_is_a_file_that_does_not_open_rather_than_a_missing_file() {
        let path = std::env::temp_dir().join(format!("warpline-{}.so", std::process::id()));
        std::fs::write(&path, b"not a library").unwrap();
        let error = MISSING.open(&[MISSING.names[0].into(), path.clone()]).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let DriverError::LibraryNotFound { reason, .. } = &error else { panic!("{error}") };
        assert!(reason.contains(path.file_name().unwrap().to_str().unwrap()), "{reason}");
    }

    #[test]
    fn a_named_library_that_is_not_there_is_blamed_on_the_variable() {
        let named = Path::new("/nonexistent/mine.so");
        let error = MISSING.open(&MISSING.candidates(Some(named))).unwrap_err();
        let error = MISSING.blame(Some(named), error);
        assert!(!error.is_no_device(), "{error}");
        let text = error.to_string();
        for part in [MISSING.variable, "`/nonexistent/mine.so`", "Set the variable"] {
            assert!(text.contains(part), "{text}");
        }
        let searched = MISSING.open(&MISSING.candidates(None)).unwrap_err();
        assert!(MISSING.blame(None, searched).is_no_device(), "no path was named");
    }

    #[test]
    fn versions_read_as_major_and_minor() {
        assert_eq!(version_text(12040), "12.4");
        assert_eq!(version_text(13000), "13.0");
    }
}
