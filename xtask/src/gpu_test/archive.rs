//! An archive of the tests, for a host with neither cargo nor a network.
//!
//! The archive is a `.tar.gz` file with two entries. `tar xf FILE xtask` extracts the first, the program `xtask` that
//! wrote it. The second, `files.tar.lzma`, contains `manifest.json`, the programs in `tests/`, and the test data of
//! every crate below `crates/`. The programs share most of their code, at distances that exceed the window of gzip but
//! not that of LZMA. `xtask` unpacks LZMA itself, so the host needs no tool for it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter};
use serde::{Deserialize, Serialize};
use warpline_files::NewFile;

use super::build::{self, ARCHIVE_PROFILE, TestProgram};
use crate::workspace::{self, Crate};

/// The content of an archive. In the archive, paths are relative to the folder that it is unpacked into.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ArchiveManifest {
    /// The commit that the programs were built from.
    pub(super) commit: String,
    /// Architecture and system that the programs run on.
    pub(super) host: String,
    pub(super) tests: Vec<TestProgram>,
}

/// A file and its name in the archive.
type ArchiveEntry = (PathBuf, String);

const MANIFEST: &str = "manifest.json";

const FILES: &str = "files.tar.lzma";

/// Size of the LZMA dictionary, in bytes: large enough for several programs, so that their common code is stored once.
const DICTIONARY_BYTES: u32 = 256 << 20;

/// Maximum size of an archive, in bytes, so that copying it to a GPU host stays fast.
const MAX_BYTES: u64 = 44_000_000;

pub(super) fn write(root: &Path, file: &Path) -> Result<()> {
    let folder = xshell::Shell::new()?.create_temp_dir()?;
    let xtask = stripped(std::env::current_exe()?, &folder.path().join("xtask"));
    let built = ArchiveManifest {
        commit: commit(root),
        host: host(),
        tests: build::tests(root, ARCHIVE_PROFILE)?,
    };
    let data = test_data(root, &build::layers(root)?)?;
    pack(root, file, &xtask, &built, &data)?;
    let size = fs::metadata(file)?.len();
    println!(
        "{}: {} test programs, {} data files, {:.1} MB",
        file.display(),
        built.tests.len(),
        data.len(),
        megabytes(size),
    );
    check_size(size)?;
    println!("on the GPU host: tar xf FILE xtask && ./xtask gpu-test --from FILE");
    Ok(())
}

/// Copies the program to `to` without symbols. Returns the program itself on a host without `strip`.
fn stripped(program: PathBuf, to: &Path) -> PathBuf {
    let status = Command::new("strip").arg("-o").args([to, &program]).status();
    if status.is_ok_and(|status| status.success()) { to.to_owned() } else { program }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn check_size(bytes: u64) -> Result<()> {
    ensure!(
        bytes <= MAX_BYTES,
        "the archive has {:.1} MB, more than the limit of {} MB; find the target that grew",
        megabytes(bytes),
        MAX_BYTES / 1_000_000
    );
    Ok(())
}

fn commit(root: &Path) -> String {
    let mut git = Command::new("git");
    let output = git.args(["describe", "--always", "--dirty"]).current_dir(root).output();
    let output = output.ok().filter(|o| o.status.success());
    output.map_or("unknown".to_owned(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

fn host() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

/// Returns the files below the `tests` folders of the crates, except Rust sources.
fn test_data(root: &Path, layers: &[Crate]) -> Result<Vec<ArchiveEntry>> {
    let mut data = Vec::new();
    for layer in layers {
        for path in workspace::files(&layer.dir().join("tests"), &[])? {
            if path.extension().is_none_or(|e| e != "rs") {
                data.push((path.clone(), workspace::relative(root, &path)));
            }
        }
    }
    Ok(data)
}

/// Writes the archive. The manifest in the archive has relative paths.
fn pack(
    root: &Path,
    file: &Path,
    xtask: &Path,
    built: &ArchiveManifest,
    data: &[ArchiveEntry],
) -> Result<()> {
    let mut entries: Vec<ArchiveEntry> = vec![(xtask.to_owned(), "xtask".to_owned())];
    let tests = built.tests.iter().map(|test| {
        let path = format!("tests/{}/{}", test.package, test.name);
        entries.push((test.path.clone(), path.clone()));
        let dir = workspace::relative(root, &test.dir).into();
        TestProgram { path: path.into(), dir, ..test.clone() }
    });
    let tests = tests.collect();
    let manifest =
        ArchiveManifest { commit: built.commit.clone(), host: built.host.clone(), tests };
    entries.extend_from_slice(data);
    let mut names = BTreeSet::new();
    if let Some((_, twice)) = entries.iter().find(|(_, name)| !names.insert(name)) {
        bail!("two files have the name {twice} in the archive; rename one of the targets");
    }

    let target =
        NewFile::create(file).with_context(|| format!("cannot write {}", file.display()))?;
    let gzip = GzEncoder::new(BufWriter::new(target), Compression::default());
    let mut tar = tar::Builder::new(gzip);
    for (path, name) in &entries[..1] {
        tar.append_path_with_name(path, name)?;
    }
    let manifest = serde_json::to_vec_pretty(&manifest)?;
    append(&mut tar, FILES, &pack_files(&manifest, &entries[1..])?)?;
    let target = tar.into_inner()?.finish()?.into_inner().map_err(|error| error.into_error())?;
    target.commit().with_context(|| format!("cannot write {}", file.display()))
}

fn pack_files(manifest: &[u8], entries: &[ArchiveEntry]) -> Result<Vec<u8>> {
    let options = LzmaOptions { dict_size: DICTIONARY_BYTES, ..LzmaOptions::with_preset(2) };
    let mut tar = tar::Builder::new(LzmaWriter::new_use_header(Vec::new(), &options, None)?);
    append(&mut tar, MANIFEST, manifest)?;
    for (path, name) in entries {
        tar.append_path_with_name(path, name)
            .with_context(|| format!("cannot add {}", path.display()))?;
    }
    Ok(tar.into_inner()?.finish()?)
}

fn append(tar: &mut tar::Builder<impl Write>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    Ok(tar.append_data(&mut header, name, bytes)?)
}

/// Unpacks an archive into `dir` and returns its manifest with absolute paths.
pub(super) fn unpack(file: &Path, dir: &Path) -> Result<ArchiveManifest> {
    fs::create_dir_all(dir)?;
    let dir = dir.canonicalize()?;
    let reader = GzDecoder::new(BufReader::new(File::open(file)?));
    for entry in tar::Archive::new(reader).entries()? {
        let mut entry = entry?;
        match entry.path()?.as_os_str() == FILES {
            true => unpack_files(&mut entry, &dir)?,
            false => drop(entry.unpack_in(&dir)?),
        }
    }
    let text =
        fs::read(dir.join(MANIFEST)).context("the file is not an archive made by gpu-test")?;
    let mut manifest: ArchiveManifest = serde_json::from_slice(&text)?;
    ensure!(
        manifest.host == host(),
        "the archive was built for {}, but this host is {}",
        manifest.host,
        host()
    );
    for test in &mut manifest.tests {
        test.path = dir.join(&test.path);
        test.dir = dir.join(&test.dir);
        // The test runs in this folder. A crate without test data has no folder in the archive.
        fs::create_dir_all(&test.dir)?;
    }
    Ok(manifest)
}

fn unpack_files(files: &mut dyn Read, dir: &Path) -> Result<()> {
    let files = LzmaReader::new_mem_limit(BufReader::new(files), u32::MAX, None)?;
    Ok(tar::Archive::new(files).unpack(dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp() -> xshell::TempDir {
        xshell::Shell::new().unwrap().create_temp_dir().unwrap()
    }

    fn put(path: PathBuf, text: &str) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn binary(root: &Path, name: &str) -> TestProgram {
        TestProgram {
            package: "warpline".to_owned(),
            name: name.to_owned(),
            path: put(root.join("target").join(name), name),
            dir: root.join("crates/tensor"),
        }
    }

    #[test]
    fn an_unpacked_archive_has_every_file_at_its_path() {
        let (from, to) = (temp(), temp());
        let root = from.path();
        let built = ArchiveManifest {
            commit: "abc".to_owned(),
            host: host(),
            tests: vec![binary(root, "ops")],
        };
        let data = put(root.join("crates/tensor/tests/goldens/a.json"), "{}");
        let data = vec![(data, "crates/tensor/tests/goldens/a.json".to_owned())];
        let xtask = put(root.join("target/xtask"), "program");
        let file = root.join("tests.tar.gz");
        pack(root, &file, &xtask, &built, &data).unwrap();

        let manifest = unpack(&file, &to.path().join("new")).unwrap();
        let dir = to.path().join("new").canonicalize().unwrap();
        assert_eq!(manifest.commit, "abc");
        assert_eq!(manifest.tests[0].path, dir.join("tests/warpline/ops"));
        assert_eq!(fs::read_to_string(&manifest.tests[0].path).unwrap(), "ops");
        assert_eq!(manifest.tests[0].dir, dir.join("crates/tensor"));
        let data = manifest.tests[0].dir.join("tests/goldens/a.json");
        assert_eq!(fs::read_to_string(data).unwrap(), "{}");
        assert_eq!(fs::read_to_string(dir.join("xtask")).unwrap(), "program");
    }

    #[test]
    fn an_archive_above_the_limit_is_an_error() {
        check_size(MAX_BYTES).unwrap();
        let error = check_size(MAX_BYTES + 1_500_000).unwrap_err();
        assert!(
            error.to_string().starts_with("the archive has 45.5 MB, more than the limit of 44 MB")
        );
    }

    #[test]
    fn targets_with_the_same_name_are_refused() {
        let from = temp();
        let root = from.path();
        let tests = vec![binary(root, "warpline"), binary(root, "warpline")];
        let built = ArchiveManifest { tests, ..ArchiveManifest::default() };
        let xtask = put(root.join("target/xtask"), "program");
        let error = pack(root, &root.join("tests.tar.gz"), &xtask, &built, &[]).unwrap_err();
        assert!(error.to_string().contains("tests/warpline/warpline"), "{error}");
    }

    #[test]
    fn an_archive_for_another_machine_is_refused() {
        let (from, to) = (temp(), temp());
        let xtask = put(from.path().join("xtask"), "program");
        let file = from.path().join("tests.tar.gz");
        let built = ArchiveManifest { host: "vax-vms".to_owned(), ..ArchiveManifest::default() };
        pack(from.path(), &file, &xtask, &built, &[]).unwrap();
        let error = unpack(&file, to.path()).unwrap_err().to_string();
        assert!(error.contains("vax-vms"), "{error}");
    }

    #[test]
    fn test_data_excludes_rust_sources() {
        let dir = temp();
        let layer = Crate {
            name: "warpline".to_owned(),
            version: "0.1.0".to_owned(),
            manifest_path: dir.path().join("crates/tensor/Cargo.toml"),
            dependencies: Vec::new(),
            targets: Vec::new(),
        };
        for name in ["tests/ops.rs", "tests/common/mod.rs", "tests/data/b.bin", "tests/a.json"] {
            put(dir.path().join("crates/tensor").join(name), "");
        }
        let data = test_data(dir.path(), &[layer]).unwrap();
        let names: Vec<_> = data.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["crates/tensor/tests/a.json", "crates/tensor/tests/data/b.bin"]);
    }
}
