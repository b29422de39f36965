//! The pinned version of NVRTC that compiles the committed PTX. It is downloaded from PyPI if it is not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use warpline_cuda_sys_safe::nvrtc::Nvrtc;
use xshell::{Shell, cmd};

use super::source::{CUBIN_ARCHITECTURE, OPTIONS, PTX_ARCHITECTURE, PtxModule};

/// NVRTC 12.0 writes PTX ISA 8.0, which drivers from version 525 on can load.
pub(super) const NVRTC_VERSION: &str = "12.0.140";
/// Version of the CUDA runtime package, which has headers such as `cuda_fp16.h`.
pub(super) const RUNTIME_VERSION: &str = "12.0.146";

/// The packages that pip downloads, with the hashes that it checks.
const REQUIREMENTS: &str = "\
nvidia-cuda-nvrtc-cu12==12.0.140 --hash=sha256:8e94e991d85c422de4da87bdc7472fdc1364367bd4aace7000b559cd33122071
nvidia-cuda-runtime-cu12==12.0.146 --hash=sha256:18c038592af387684812fa712642aa9a26c12da80acb488b6709f7cced147f71
";

/// NVRTC in its pinned version.
#[derive(Debug)]
pub(super) struct PinnedCompiler {
    nvrtc: Nvrtc,
    /// Folder of the CUDA headers.
    include: PathBuf,
    /// The library or its folder.
    library: PathBuf,
}

impl PinnedCompiler {
    /// Loads the installation that `WARPLINE_NVRTC` (the library or its folder) and `WARPLINE_CUDA_INCLUDE` name. If
    /// neither is set, loads the installation in `target/nvrtc`, and downloads it first if it is missing.
    pub(super) fn find(root: &Path) -> Result<Self> {
        let named = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let (library, include) = match (named("WARPLINE_NVRTC"), named("WARPLINE_CUDA_INCLUDE")) {
            (Some(library), Some(include)) => (library, include),
            (None, None) => downloaded_paths(root)?,
            _ => bail!("set both WARPLINE_NVRTC and WARPLINE_CUDA_INCLUDE, or neither"),
        };
        let nvrtc = Nvrtc::load(Some(&library)).context("cannot load NVRTC")?;
        let (major, minor) = nvrtc.version();
        ensure!(
            NVRTC_VERSION.starts_with(&format!("{major}.{minor}.")),
            "{} is NVRTC {major}.{minor}, but {NVRTC_VERSION} compiles the committed PTX",
            library.display()
        );
        ensure!(include.join("cuda_fp16.h").is_file(), "{} has no cuda_fp16.h", include.display());
        Ok(Self { nvrtc, include, library })
    }

    /// Returns the path of the library or its folder.
    pub(super) fn library(&self) -> &Path {
        &self.library
    }

    /// Compiles a module to PTX and to machine code.
    pub(super) fn compile(&self, module: &PtxModule) -> Result<(String, Vec<u8>)> {
        let failed = || format!("cannot compile {}", module.path.display());
        let file_name = module.file_name();
        let options = self.options(module, PTX_ARCHITECTURE);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let ptx = self.nvrtc.compile(&module.text, &file_name, &options).with_context(failed)?;
        // `Nvrtc::version` has no patch version; the header of the PTX has it.
        ensure!(
            ptx.contains(&format!("V{NVRTC_VERSION}")),
            "the patch version of this NVRTC is not that of {NVRTC_VERSION}, which compiles the committed PTX"
        );
        let options = self.options(module, CUBIN_ARCHITECTURE);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let cubin =
            self.nvrtc.compile_cubin(&module.text, &file_name, &options).with_context(failed)?;
        Ok((ptx, cubin))
    }

    fn options(&self, module: &PtxModule, architecture: &str) -> Vec<String> {
        let folder = |dir: &Path| format!("--include-path={}", dir.display());
        let mut options = vec![
            format!("--gpu-architecture={architecture}"),
            folder(module.path.parent().unwrap_or(Path::new("."))),
            folder(&self.include),
        ];
        options.extend(OPTIONS.iter().map(|&o| o.to_owned()));
        options
    }
}

/// Returns the library and the include folder of the installation in `target/nvrtc`. Downloads them if they are
/// missing.
fn downloaded_paths(root: &Path) -> Result<(PathBuf, PathBuf)> {
    let dir = root.join("target/nvrtc");
    let library = dir.join(NVRTC_VERSION).join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    let include = dir.join(NVRTC_VERSION).join("nvidia/cuda_runtime/include");
    if !library.is_file() || !include.is_dir() {
        download(&dir).with_context(|| {
            format!(
                "cannot download NVRTC {NVRTC_VERSION} from PyPI; or set WARPLINE_NVRTC to an \
                 installation and WARPLINE_CUDA_INCLUDE to the folder of its headers"
            )
        })?;
    }
    Ok((library, include))
}

fn download(dir: &Path) -> Result<()> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "the pinned wheels are for Linux on x86-64"
    );
    println!("downloading NVRTC {NVRTC_VERSION} into {}", dir.display());
    let sh = Shell::new()?;
    // Unpack into a new folder and rename it at the end, so that an interrupted download is never used.
    fs::create_dir_all(dir)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let fresh = dir.join(format!("fetching-{}-{now}", std::process::id()));
    fs::create_dir(&fresh)?;
    sh.change_dir(&fresh);
    sh.write_file(fresh.join("requirements.txt"), REQUIREMENTS)?;
    cmd!(
        sh,
        "python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r requirements.txt"
    )
    .run()?;
    for wheel in sh.read_dir(&fresh)?.iter().filter(|p| p.extension().is_some_and(|e| e == "whl")) {
        cmd!(sh, "python3 -m zipfile -e {wheel} .").run()?;
        sh.remove_path(wheel)?;
    }
    let done = dir.join(NVRTC_VERSION);
    sh.remove_path(&done)?;
    Ok(fs::rename(&fresh, &done)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requirements_have_the_pinned_versions() {
        assert!(REQUIREMENTS.contains(&format!("nvrtc-cu12=={NVRTC_VERSION} ")));
        assert!(REQUIREMENTS.contains(&format!("runtime-cu12=={RUNTIME_VERSION} ")));
    }

    #[test]
    #[ignore = "downloads NVRTC from PyPI"]
    fn nvrtc_compiles_halves_to_ptx_8_0() {
        let root = crate::workspace::root().unwrap();
        let compiler = PinnedCompiler::find(&root).unwrap();
        let dir = Shell::new().unwrap().create_temp_dir().unwrap();
        let path = dir.path().join("halves.cu");
        let source = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n\
            extern \"C\" __global__ void widen(const __half* a, const __nv_bfloat16* b, float* c)\n\
            { c[0] = __half2float(a[0]) + __bfloat162float(b[0]); }\n";
        fs::write(&path, source).unwrap();
        let module = PtxModule::read(dir.path(), &path).unwrap();
        let (ptx, cubin) = compiler.compile(&module).unwrap();
        assert!(ptx.contains(".version 8.0") && ptx.contains(".target sm_75"));
        assert!(ptx.contains(".entry widen("));
        assert!(cubin.starts_with(b"\x7fELF"));
        assert_eq!((ptx, cubin), compiler.compile(&module).unwrap());
    }
}
