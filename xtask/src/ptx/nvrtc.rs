//! The one NVRTC that makes our PTX: a pinned version, fetched from PyPI when it is not there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use warpline_cuda_sys_safe::nvrtc::Nvrtc;
use xshell::{Shell, cmd};

use super::source::{CUBIN_ARCHITECTURE, Module, OPTIONS, PTX_ARCHITECTURE};

/// NVRTC 12.0 writes PTX ISA 8.0, which drivers from 525 on load.
pub(super) const NVRTC_VERSION: &str = "12.0.140";
/// Where `cuda_fp16.h` and its like come from.
pub(super) const RUNTIME_VERSION: &str = "12.0.146";

/// What pip fetches, with the hashes it checks.
const REQUIREMENTS: &str = "\
nvidia-cuda-nvrtc-cu12==12.0.140 --hash=sha256:8e94e991d85c422de4da87bdc7472fdc1364367bd4aace7000b559cd33122071
nvidia-cuda-runtime-cu12==12.0.146 --hash=sha256:18c038592af387684812fa712642aa9a26c12da80acb488b6709f7cced147f71
";

/// The compiler and where its headers are.
#[derive(Debug)]
pub(super) struct Compiler {
    nvrtc: Nvrtc,
    include: PathBuf,
    library: PathBuf,
}

impl Compiler {
    /// The installation that `WARPLINE_NVRTC` (library or its folder) and `WARPLINE_CUDA_INCLUDE`
    /// name, else the one in `target/nvrtc`, fetched first when it is not there.
    pub(super) fn find(root: &Path) -> Result<Self> {
        let named = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let (library, include) = match (named("WARPLINE_NVRTC"), named("WARPLINE_CUDA_INCLUDE")) {
            (Some(library), Some(include)) => (library, include),
            (None, None) => fetched(root)?,
            _ => bail!("set WARPLINE_NVRTC and WARPLINE_CUDA_INCLUDE both, or neither"),
        };
        let nvrtc = Nvrtc::load(Some(&library)).context("cannot load NVRTC")?;
        let (major, minor) = nvrtc.version();
        ensure!(
            NVRTC_VERSION.starts_with(&format!("{major}.{minor}.")),
            "{} is NVRTC {major}.{minor}; committed PTX is made with {NVRTC_VERSION}",
            library.display()
        );
        ensure!(include.join("cuda_fp16.h").is_file(), "{} has no cuda_fp16.h", include.display());
        Ok(Self { nvrtc, include, library })
    }

    /// Where the library is.
    pub(super) fn library(&self) -> &Path {
        &self.library
    }

    /// The module's PTX and its machine code.
    pub(super) fn compile(&self, module: &Module) -> Result<(String, Vec<u8>)> {
        let failed = || format!("cannot compile {}", module.path.display());
        let file_name = module.file_name();
        let options = self.options(module, PTX_ARCHITECTURE);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let ptx = self.nvrtc.compile(&module.text, &file_name, &options).with_context(failed)?;
        // The library itself returns 12.0 only; the patch version stands in what it writes.
        ensure!(
            ptx.contains(&format!("V{NVRTC_VERSION}")),
            "this NVRTC is another 12.0 than {NVRTC_VERSION}, which makes the committed PTX"
        );
        let options = self.options(module, CUBIN_ARCHITECTURE);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let cubin =
            self.nvrtc.compile_cubin(&module.text, &file_name, &options).with_context(failed)?;
        Ok((ptx, cubin))
    }

    fn options(&self, module: &Module, architecture: &str) -> Vec<String> {
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

/// Library folder and include folder of the installation in `target/nvrtc`.
fn fetched(root: &Path) -> Result<(PathBuf, PathBuf)> {
    let dir = root.join("target/nvrtc");
    let library = dir.join(NVRTC_VERSION).join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    let include = dir.join(NVRTC_VERSION).join("nvidia/cuda_runtime/include");
    if !library.is_file() || !include.is_dir() {
        fetch(&dir).with_context(|| {
            format!(
                "cannot fetch NVRTC {NVRTC_VERSION} from PyPI; name an installation in \
                 WARPLINE_NVRTC and its headers in WARPLINE_CUDA_INCLUDE instead"
            )
        })?;
    }
    Ok((library, include))
}

fn fetch(dir: &Path) -> Result<()> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "the pinned wheels are for Linux on x86-64"
    );
    println!("fetching NVRTC {NVRTC_VERSION} into {}", dir.display());
    let sh = Shell::new()?;
    // Unpack into a new folder and rename it at the end: an interrupted fetch is never used.
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
    fn the_fetched_versions_are_the_hashed_versions() {
        assert!(REQUIREMENTS.contains(&format!("nvrtc-cu12=={NVRTC_VERSION} ")));
        assert!(REQUIREMENTS.contains(&format!("runtime-cu12=={RUNTIME_VERSION} ")));
    }

    #[test]
    #[ignore = "fetches NVRTC from PyPI"]
    fn nvrtc_compiles_halves_to_ptx_8_0() {
        let root = crate::workspace::root().unwrap();
        let compiler = Compiler::find(&root).unwrap();
        let dir = Shell::new().unwrap().create_temp_dir().unwrap();
        let path = dir.path().join("halves.cu");
        let source = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n\
            extern \"C\" __global__ void widen(const __half* a, const __nv_bfloat16* b, float* c)\n\
            { c[0] = __half2float(a[0]) + __bfloat162float(b[0]); }\n";
        fs::write(&path, source).unwrap();
        let module = Module::read(dir.path(), &path).unwrap();
        let (ptx, cubin) = compiler.compile(&module).unwrap();
        assert!(ptx.contains(".version 8.0") && ptx.contains(".target sm_75"));
        assert!(ptx.contains(".entry widen("));
        assert!(cubin.starts_with(b"\x7fELF"));
        assert_eq!((ptx, cubin), compiler.compile(&module).unwrap());
    }
}
