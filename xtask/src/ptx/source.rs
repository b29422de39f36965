//! CUDA sources with the header files that they include, and their hashes.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use sha2::{Digest, Sha256};

use super::nvrtc::{NVRTC_VERSION, RUNTIME_VERSION};
use crate::workspace;

/// Options of every compilation. Fast math stays off, so that the precision of results does not depend on the compiler.
pub(super) const OPTIONS: &[&str] = &["-std=c++17", "--fmad=true"];

/// The architecture of the PTX. Devices of this compute capability or a later one run it.
pub(super) const PTX_ARCHITECTURE: &str = "compute_75";
/// The architecture of the machine code. On such devices the driver need not compile the PTX.
pub(super) const CUBIN_ARCHITECTURE: &str = "sm_90";

/// A `.cu` file with the header files that it includes.
#[derive(Debug)]
pub(super) struct PtxModule {
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// The folder that contains all sources. Paths in the hash are relative to it.
    sources: PathBuf,
    /// The header files that are included directly or indirectly, with their text. Each file occurs once.
    headers: Vec<(PathBuf, String)>,
}

impl PtxModule {
    pub(super) fn read(sources: &Path, path: &Path) -> Result<Self> {
        let text = workspace::read(path)?;
        let mut headers = Vec::new();
        add_headers(path, &text, &mut headers)?;
        let (path, sources) = (path.to_owned(), sources.to_owned());
        Ok(Self { path, text, sources, headers })
    }

    pub(super) fn file_name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(super) fn ptx_path(&self) -> PathBuf {
        self.path.with_extension("ptx")
    }

    pub(super) fn cubin_path(&self) -> PathBuf {
        self.path.with_extension("sm90.cubin")
    }

    /// Returns a hash of the source, the header files, the options and the compiler's version.
    pub(super) fn hash(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |part: &str| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(NVRTC_VERSION);
        add(RUNTIME_VERSION);
        add(PTX_ARCHITECTURE);
        add(CUBIN_ARCHITECTURE);
        OPTIONS.iter().for_each(|option| add(option));
        add(&self.file_name());
        add(&self.text);
        for (path, text) in &self.headers {
            add(&workspace::relative(&self.sources, path));
            add(text);
        }
        hex(&hash.finalize())
    }
}

/// Returns the hash of machine code, which the header of the PTX file contains.
pub(super) fn cubin_hash(cubin: &[u8]) -> String {
    hex(&Sha256::digest(cubin))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Adds the header files that `text` includes in quotes, directly and indirectly. Header files in angle brackets belong
/// to the toolkit, whose version is part of the hash.
fn add_headers(path: &Path, text: &str, headers: &mut Vec<(PathBuf, String)>) -> Result<()> {
    for name in text.lines().filter_map(quoted_include) {
        let header = path.with_file_name(name);
        if !header.is_file() {
            bail!("{} includes {name:?}, but its folder has no such file", path.display());
        }
        let header = header.canonicalize()?;
        if !headers.iter().any(|(known, _)| *known == header) {
            let text = workspace::read(&header)?;
            headers.push((header.clone(), text.clone()));
            add_headers(&header, &text, headers)?;
        }
    }
    Ok(())
}

fn quoted_include(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}

/// Makes compiled PTX reproducible. Replaces the compiler's header, which names a build of the compiler, by a header
/// with hashes. Removes unused constants of the toolkit's header files. Removes the `callseq` numbers of calls, which
/// NVRTC continues from one compilation of a process to the next.
pub(super) fn with_header(module: &PtxModule, ptx: &str, cubin: &[u8]) -> String {
    let body: Vec<&str> = ptx
        .lines()
        .skip_while(|line| line.trim().is_empty() || line.starts_with("//"))
        .filter(|line| !is_unused_constant(line, ptx))
        .map(|line| line.split("// callseq").next().unwrap_or(line).trim_end())
        .collect();
    format!(
        "// Made by `cargo xtask ptx` from {}; do not edit.\n// source-hash: {}\n// cubin-hash: {}\n// NVRTC {}, {}\n\n{}\n",
        module.file_name(),
        module.hash(),
        cubin_hash(cubin),
        NVRTC_VERSION,
        PTX_ARCHITECTURE,
        body.join("\n").trim_end(),
    )
}

/// Returns whether a line defines a constant of the header file `nv/target` that no other line uses.
fn is_unused_constant(line: &str, ptx: &str) -> bool {
    if !line.starts_with(".global .align 8 ") || !line.ends_with(';') {
        return false;
    }
    let name = line.split([' ', '[', ';']).find(|word| word.contains("2nv6target"));
    name.is_some_and(|name| ptx.matches(name).count() == 1)
}

/// Returns the hash of the source in the header of a PTX file.
pub(super) fn hash_in(ptx: &str) -> Option<&str> {
    ptx.lines().take(5).find_map(|line| line.strip_prefix("// source-hash: "))
}

/// Returns the hash of the machine code in the header of a PTX file.
pub(super) fn cubin_hash_in(ptx: &str) -> Option<&str> {
    ptx.lines().take(5).find_map(|line| line.strip_prefix("// cubin-hash: "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn module(files: &[(&str, &str)]) -> Result<PtxModule> {
        let dir = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for (name, text) in files {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), text).unwrap();
        }
        PtxModule::read(&root, &root.join(files[0].0))
    }

    #[test]
    fn each_included_header_is_read_once() {
        let files = [
            (
                "add/add.cu",
                "#include \"own.cuh\"\n# include  \"all.cuh\"\n#include <cuda_fp16.h>\n",
            ),
            ("add/own.cuh", "#include \"all.cuh\"\n"),
            ("add/all.cuh", "#include \"all.cuh\"\nint x;\n"),
        ];
        let read = module(&files).unwrap();
        let names: Vec<_> =
            read.headers.iter().map(|(p, _)| workspace::relative(&read.sources, p)).collect();
        assert_eq!(names, ["add/own.cuh", "add/all.cuh"]);

        let mut changed = files;
        changed[2].1 = "#include \"all.cuh\"\nint y;\n";
        let hash = PtxModule::hash;
        assert_ne!(hash(&read), hash(&module(&changed).unwrap()));
        assert_eq!(hash(&read), hash(&module(&files).unwrap()), "the folder's path is not hashed");
    }

    #[test]
    fn call_numbers_of_earlier_compilations_are_removed() {
        let module = module(&[("a.cu", "")]).unwrap();
        let compiled = |number: u32| {
            let ptx = format!(
                "// a build\n\n.func f\n\t{{ // callseq {number}, 0\n\t}} // callseq {number}\n"
            );
            with_header(&module, &ptx, &[])
        };
        assert_eq!(compiled(1), compiled(22));
        assert!(compiled(1).ends_with("\n\n.func f\n\t{\n\t}\n"), "{}", compiled(1));
    }

    #[test]
    fn a_missing_header_is_named() {
        let error = module(&[("a.cu", "#include \"gone.cuh\"\n")]).unwrap_err().to_string();
        assert!(error.contains("gone.cuh") && error.contains("a.cu"), "{error}");
    }

    #[test]
    fn line_ends_do_not_change_the_hash() {
        let unix = module(&[("a.cu", "int x;\nint y;\n")]).unwrap();
        let dos = module(&[("a.cu", "int x;\r\nint y;\r\n")]).unwrap();
        assert_eq!(unix.hash(), dos.hash());
    }

    #[test]
    fn the_compilers_header_is_replaced() {
        let module = module(&[("a.cu", "int x;\n")]).unwrap();
        let ptx = "//\n// Compiler Build ID: CL-1\n//\n\n.version 8.0\n\t// inline asm  \nret;\n\n";
        let text = with_header(&module, ptx, b"code");
        assert!(!text.contains("Build ID"), "{text}");
        assert!(text.ends_with("\n\n.version 8.0\n\t// inline asm\nret;\n"), "{text}");
        assert_eq!(hash_in(&text), Some(module.hash().as_str()));
        assert_eq!(cubin_hash_in(&text), Some(cubin_hash(b"code").as_str()));
        assert_eq!(hash_in(".version 8.0"), None);
    }

    #[test]
    fn only_unused_constants_of_the_toolkit_are_removed() {
        let constant =
            |name: &str| format!(".global .align 8 .u64 _ZN1k2nv6target6detail{name} = 1;");
        let (used, unused) = (constant("4usedE"), constant("6unusedE"));
        let bytes = ".global .align 8 .b8 _ZN1k2nv6target7is_hostE[8] = {1, 0};";
        let own = ".global .align 8 .u64 _ZN3ownE = 1;";
        let body = "ld.global.u64 %rd1, [_ZN1k2nv6target6detail4usedE];";
        let ptx = format!(".version 8.0\n{used}\n{unused}\n{bytes}\n{own}\n{body}\n");
        let module = module(&[("a.cu", "int x;\n")]).unwrap();
        let text = with_header(&module, &ptx, b"code");
        assert!(text.ends_with(&format!(".version 8.0\n{used}\n{own}\n{body}\n")), "{text}");
    }
}
