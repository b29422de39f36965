//! NVRTC, the run-time CUDA C++ compiler, found and loaded at run time.
//!
//! NVRTC compiles the PTX files of this repository, and the kernels that a program compiles itself
//! (`Compiler` in `warpline-runtime`). Other programs do not need NVRTC.
//!
//! # Library search
//! If a path is given to [`Nvrtc::load`], or else in `WARPLINE_NVRTC`, only this path is tried:
//! that of the library, or of the folder that contains it. Otherwise `libnvrtc.so.13`,
//! `libnvrtc.so.12` and `libnvrtc.so` are looked for on the loader's path, then in
//! `/usr/local/cuda/lib64`, `/usr/local/cuda-13/lib64`, `/usr/local/cuda-12/lib64`,
//! `/usr/lib/x86_64-linux-gnu` and `/usr/lib64`. On Windows the names are `nvrtc64_130_0.dll` and
//! `nvrtc64_120_0.dll`. NVRTC loads its `nvrtc-builtins` from its own folder.

use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::ptr;

use cudarc::nvrtc::sys::nvrtcProgram;
use libloading::Library;

use crate::dylib::{CUDA_FOLDERS, LibrarySearch, StatusCode, function_table, status_text};
use crate::{DriverError, Result};

const SEARCH: LibrarySearch = LibrarySearch {
    library: "NVRTC",
    variable: "WARPLINE_NVRTC",
    names: if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    } else {
        &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    },
    folders: CUDA_FOLDERS,
};

function_table! {
    struct NvrtcApi of "NVRTC";
    required "NVRTC 12.0" {
        nvrtcGetErrorString(StatusCode) -> *const c_char;
        nvrtcCreateProgram(
            *mut nvrtcProgram,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        );
        nvrtcDestroyProgram(*mut nvrtcProgram);
        nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
        nvrtcGetPTXSize(nvrtcProgram, *mut usize);
        nvrtcGetPTX(nvrtcProgram, *mut c_char);
        nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
        nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
        nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
        nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
    }
    optional {}
}

/// The NVRTC compiler.
///
/// ```no_run
/// use warpline_cuda_sys_safe::nvrtc::Nvrtc;
///
/// let nvrtc = Nvrtc::load(None)?;
/// let ptx = nvrtc.compile(
///     r#"extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }"#,
///     "twice.cu",
///     &["--gpu-architecture=compute_75", "-std=c++17"],
/// )?;
/// assert!(ptx.contains(".entry twice"));
/// # Ok::<(), warpline_cuda_sys_safe::DriverError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Nvrtc {
    api: NvrtcApi,
    version: (u32, u32),
}

impl Nvrtc {
    /// Loads the library at `path`, a file or a folder. If `path` is `None`,
    /// [searches](self#library-search) for the library.
    ///
    /// # Errors
    /// - [`DriverError::LibraryNotFound`] if no library is found.
    /// - [`DriverError::MissingSymbol`] if the library does not return its version, or lacks
    ///   another function that this type uses.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let named = path.map(Path::to_owned).or_else(|| SEARCH.named_in_env());
        let library = SEARCH.open(&SEARCH.candidates(named.as_deref()))?;
        let Some(version) = version_of(&library) else {
            return Err(DriverError::MissingSymbol {
                library: SEARCH.library,
                symbol: "nvrtcVersion",
                version: "unknown".to_owned(),
                needs: "NVRTC 12.0",
            });
        };
        let text = |_: &Library| format!("{}.{}", version.0, version.1);
        // SAFETY: nvrtc.h declares these signatures in versions 12 and 13.
        let api = unsafe { NvrtcApi::resolve(library, text) }?;
        Ok(Self { api, version })
    }

    /// Returns the major and minor version, such as `(12, 0)`.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Compiles CUDA C++ to PTX text. `file_name` names the source in messages and line
    /// information. `options` are options of NVRTC, such as `--gpu-architecture=compute_75`.
    ///
    /// # Errors
    /// - [`DriverError::LibraryCall`] if NVRTC refuses a call, with the compiler's log if the
    ///   compilation fails.
    /// - [`DriverError::InvalidArgument`] if the source, the file name or an option contains a NUL.
    pub fn compile(&self, source: &str, file_name: &str, options: &[&str]) -> Result<String> {
        let program = self.compiled(source, file_name, options)?;
        let ptx = program.bytes(self.api.nvrtcGetPTXSize, self.api.nvrtcGetPTX);
        ptx.map(into_text).map_err(|status| self.error("nvrtcGetPTX", status, String::new()))
    }

    /// Compiles CUDA C++ to machine code (a cubin) for one architecture, which `options` must name
    /// (`--gpu-architecture=sm_90`). The arguments are those of [`Nvrtc::compile`].
    ///
    /// # Errors
    /// The same as [`Nvrtc::compile`].
    pub fn compile_cubin(
        &self,
        source: &str,
        file_name: &str,
        options: &[&str],
    ) -> Result<Vec<u8>> {
        let program = self.compiled(source, file_name, options)?;
        let cubin = program.bytes(self.api.nvrtcGetCUBINSize, self.api.nvrtcGetCUBIN);
        cubin.map_err(|status| self.error("nvrtcGetCUBIN", status, String::new()))
    }

    fn compiled(
        &self,
        source: &str,
        file_name: &str,
        options: &[&str],
    ) -> Result<NvrtcProgram<'_>> {
        let source = c_text(source, "the source")?;
        let file_name = c_text(file_name, "the file name")?;
        let options = options.iter().map(|o| c_text(o, "an option")).collect::<Result<Vec<_>>>()?;
        let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

        let mut program = NvrtcProgram { api: &self.api, raw: ptr::null_mut() };
        // SAFETY: the strings are NUL-terminated and outlive the call. There are no headers.
        let status = unsafe {
            (self.api.nvrtcCreateProgram)(
                &mut program.raw,
                source.as_ptr(),
                file_name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        self.check("nvrtcCreateProgram", status, String::new)?;

        // SAFETY: the program is alive; the options are NUL-terminated and outlive the call.
        let status = unsafe {
            (self.api.nvrtcCompileProgram)(program.raw, options.len() as c_int, options.as_ptr())
        };
        self.check("nvrtcCompileProgram", status, || program.log())?;
        Ok(program)
    }

    fn check(
        &self,
        call: &'static str,
        status: StatusCode,
        log: impl Fn() -> String,
    ) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(self.error(call, status, log())) }
    }

    fn error(&self, call: &'static str, status: StatusCode, detail: String) -> DriverError {
        // SAFETY: the function accepts every status, and returns null or a static string.
        let text = unsafe { status_text(status, (self.api.nvrtcGetErrorString)(status)) };
        DriverError::LibraryCall { call, status: text, detail, location: None }
    }
}

/// A program, destroyed on drop.
struct NvrtcProgram<'a> {
    api: &'a NvrtcApi,
    raw: nvrtcProgram,
}

impl NvrtcProgram<'_> {
    fn log(&self) -> String {
        self.bytes(self.api.nvrtcGetProgramLogSize, self.api.nvrtcGetProgramLog)
            .map(into_text)
            .unwrap_or_default()
    }

    fn bytes(
        &self,
        size: unsafe extern "C" fn(nvrtcProgram, *mut usize) -> StatusCode,
        get: unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> StatusCode,
    ) -> Result<Vec<u8>, StatusCode> {
        let mut bytes = 0usize;
        // SAFETY: the program is alive.
        let status = unsafe { size(self.raw, &mut bytes) };
        if status != 0 {
            return Err(status);
        }
        let mut out = vec![0u8; bytes];
        // SAFETY: the program is alive, and the buffer has the size that NVRTC just returned.
        let status = unsafe { get(self.raw, out.as_mut_ptr().cast()) };
        if status != 0 {
            return Err(status);
        }
        Ok(out)
    }
}

/// Converts C text to a `String` without the final NUL.
fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
}

impl Drop for NvrtcProgram<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created by this library and not destroyed before.
            let _ = unsafe { (self.api.nvrtcDestroyProgram)(&mut self.raw) };
        }
    }
}

fn version_of(library: &Library) -> Option<(u32, u32)> {
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> StatusCode;
    // SAFETY: nvrtc.h declares this signature in all versions.
    let version = unsafe { library.get::<Version>(c"nvrtcVersion") }.ok()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are valid for writes.
    let status = unsafe { version(&mut major, &mut minor) };
    (status == 0).then_some((major as u32, minor as u32))
}

fn c_text(text: &str, what: &str) -> Result<CString> {
    CString::new(text).map_err(|e| DriverError::InvalidArgument {
        call: "Nvrtc::compile",
        reason: format!("{what} has a NUL at byte {}", e.nul_position()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error() {
        let error = Nvrtc::load(Some(Path::new("/nonexistent/libnvrtc.so.12"))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nonexistent/libnvrtc.so.12"), "{text}");
        assert!(text.contains("WARPLINE_NVRTC"), "{text}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_lacks_the_symbols() {
        let error = Nvrtc::load(Some(Path::new("libc.so.6"))).unwrap_err();
        assert!(
            matches!(error, DriverError::MissingSymbol { symbol: "nvrtcVersion", .. }),
            "{error}"
        );
    }

    #[test]
    #[ignore = "needs NVRTC: name it in WARPLINE_NVRTC"]
    fn nvrtc_compiles_and_reports_errors() {
        let nvrtc = Nvrtc::load(None).unwrap();
        assert!(nvrtc.version() >= (12, 0));
        let source = r#"extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }"#;
        let options = ["--gpu-architecture=compute_75"];
        let ptx = nvrtc.compile(source, "twice.cu", &options).unwrap();
        assert!(ptx.contains(".entry twice"), "{ptx}");
        assert!(!ptx.ends_with('\0'));

        let error = nvrtc.compile("__global__ void f() { nonsense; }", "bad.cu", &options);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("bad.cu(1)") && text.contains("nonsense"), "{text}");

        let error = nvrtc.compile("a\0b", "nul.cu", &options).unwrap_err();
        assert!(matches!(error, DriverError::InvalidArgument { .. }), "{error}");
    }
}
