//! Programs compiled ahead of time: one compressed file each, with the PTX of all variants.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter};
use sha2::{Digest, Sha256};
use warpline_files::NewFile;

use super::{Compiler, Program, compiler};
use crate::{ErrorKind, Result};

/// Prefix of the line before a variant's PTX. The variant's name and the hash of its source follow.
const HEAD: &str = "//! variant ";

/// Dictionary size of the compression, in bytes. Variants resemble each other and are longer than
/// the 32 KiB to which gzip can refer back.
const REACH: u32 = 1 << 20;

/// Result of [`update`] for a program's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The file was up to date.
    UpToDate,
    /// The file was written.
    Written,
}

/// Returns the path of a program's file in a folder.
fn path(folder: &Path, program: &Program) -> PathBuf {
    folder.join(format!("{}.ptx.lzma", program.name()))
}

/// Returns the hash of a variant's source and of the compiler's options. Lines that hold only a
/// comment do not count, so that a changed comment does not make the PTX stale.
pub(super) fn hash(program: &Program, variant: usize) -> String {
    let mut hash = Sha256::new();
    compiler::options().iter().for_each(|option| hash.update(option));
    for line in program.source(variant).text().lines() {
        if !line.trim_start().starts_with("//") {
            hash.update(line);
            hash.update("\n");
        }
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn head(program: &Program, variant: usize) -> String {
    let name = program.variants()[variant];
    format!("{HEAD}{name} {}\n", hash(program, variant))
}

/// Returns a variant's PTX from the committed file of its program.
pub(super) fn committed(program: &Program, variant: usize) -> Option<&str> {
    let all = program.unpacked.get_or_init(|| unpack((program.committed)(program.name())?));
    section(all.as_deref()?, program.variants()[variant])
}

pub(super) fn unpack(compressed: &[u8]) -> Option<String> {
    let mut text = String::new();
    let mut reader = LzmaReader::new_mem_limit(compressed, REACH / 512, None).ok()?;
    reader.read_to_string(&mut text).ok()?;
    Some(text)
}

pub(super) fn compressed(text: &str) -> std::io::Result<Vec<u8>> {
    let options = LzmaOptions { dict_size: REACH, ..LzmaOptions::with_preset(9) };
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(text.len() as u64))?;
    writer.write_all(text.as_bytes())?;
    writer.finish()
}

/// Returns the PTX of a variant, without a check of its source.
pub(super) fn section<'a>(all: &'a str, variant: &str) -> Option<&'a str> {
    all.split(HEAD).skip(1).find_map(|part| {
        let (head, ptx) = part.split_once('\n')?;
        (head.rsplit_once(' ')?.0 == variant).then_some(ptx)
    })
}

/// Returns the programs whose file in `folder` is missing or out of date. A file that cannot be
/// read counts as missing.
pub fn stale<'a>(folder: &Path, programs: &[&'a Program]) -> Vec<&'a Program> {
    let is_stale = |program: &&&Program| {
        let all = fs::read(path(folder, program)).ok().and_then(|bytes| unpack(&bytes));
        let heads = (0..program.variants().len()).map(|variant| head(program, variant));
        all.is_none_or(|all| {
            let found: Vec<&str> = all.lines().filter(|line| line.starts_with(HEAD)).collect();
            !heads.eq(found.into_iter().map(|line| format!("{line}\n")))
        })
    };
    programs.iter().filter(is_stale).copied().collect()
}

/// Returns whether a program's file equals the result of compiling its source.
///
/// # Errors
/// [`ErrorKind::Driver`] if the compiler fails, and [`ErrorKind::NoGpuCode`] if the result cannot
/// be compressed.
pub fn agrees(folder: &Path, program: &Program, compiler: &Compiler) -> Result<bool> {
    let packed = pack(program, compiler)?;
    Ok(fs::read(path(folder, program)).is_ok_and(|file| file == packed))
}

/// Returns the compressed PTX of all variants, each after a line that names the variant.
fn pack(program: &Program, compiler: &Compiler) -> Result<Vec<u8>> {
    let mut text = format!("// {}: compiled by NVRTC {}\n", program.name(), compiler.version());
    for variant in 0..program.variants().len() {
        text += &head(program, variant);
        text += &compiler.ptx(program, variant)?;
    }
    compressed(&text).map_err(|e| ErrorKind::NoGpuCode { reason: e.to_string() }.of(program.name()))
}

/// Compiles a program and writes its file, unless the file is up to date.
///
/// # Errors
/// [`ErrorKind::Driver`] if the compiler fails, and [`ErrorKind::NoGpuCode`] if the result cannot be
/// compressed or the file cannot be written.
pub fn update(folder: &Path, program: &Program, compiler: &Compiler) -> Result<UpdateOutcome> {
    if stale(folder, &[program]).is_empty() {
        return Ok(UpdateOutcome::UpToDate);
    }
    let packed = pack(program, compiler)?;
    let failed = |e: std::io::Error| {
        ErrorKind::NoGpuCode {
            reason: format!("its file in {} cannot be written: {e}", folder.display()),
        }
        .of(program.name())
    };
    // Write a new file and rename it, because other processes may write or read the file.
    let mut file = NewFile::create(&path(folder, program)).map_err(failed)?;
    file.write_all(&packed).map_err(failed)?;
    file.commit().map_err(failed)?;
    Ok(UpdateOutcome::Written)
}
