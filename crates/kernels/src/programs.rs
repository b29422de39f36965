//! The GPU code of all ops.

use warpline_runtime::DType;
use warpline_runtime::module::Program;

/// What programs were compiled to, by name: the files in `ptx`, which `cargo xtask ptx` writes.
const COMMITTED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

pub(crate) fn committed(program: &str) -> Option<&'static [u8]> {
    let at = COMMITTED.binary_search_by_key(&program, |(name, _)| name).ok()?;
    Some(COMMITTED[at].1)
}

/// A variant for each dtype but bool.
pub(crate) const NUMBERS: &[&str] = DType::SUFFIXES.split_at(1).1;
/// A variant for each float.
pub(crate) const FLOATS: &[&str] = DType::SUFFIXES.split_at(DType::F16 as usize).1;
/// A variant for each size of elements that are moved and no more: 1, 2, 4, 8 bytes.
pub(crate) const BITS: &[&str] = &["u8", "u16", "u32", "u64"];

/// The variant of [`BITS`] for elements of this size.
pub(crate) const fn bits(size: usize) -> usize {
    size.ilog2() as usize
}

/// What a dtype's elements are called in CUDA, by its suffix.
pub(crate) fn cuda_type(suffix: &str) -> &str {
    // CUDA's own bool may be no byte but 0 or 1.
    if suffix == "bool" { "boolean" } else { suffix }
}

/// Every program of this crate.
#[must_use]
pub fn programs() -> Vec<&'static Program> {
    let families = [
        crate::copy::PROGRAMS,
        crate::fill::PROGRAMS,
        crate::indexing::PROGRAMS,
        crate::matmul::PROGRAMS,
        crate::random::PROGRAMS,
        crate::reduce::PROGRAMS,
        crate::softmax::PROGRAMS,
    ];
    families.into_iter().flatten().copied().chain(crate::elementwise::programs()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use warpline_runtime::module::stale;

    use super::*;

    #[test]
    fn names_are_given_once_and_files_are_of_these_sources() {
        let programs = programs();
        let names: HashSet<&str> = programs.iter().map(|program| program.name()).collect();
        assert_eq!(names.len(), programs.len());
        let stale = stale(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/ptx")), &programs);
        let stale: Vec<&str> = stale.into_iter().map(Program::name).collect();
        assert!(stale.is_empty(), "run `cargo xtask ptx`: {stale:?}");
        let orphans = COMMITTED.iter().filter(|(name, _)| !names.contains(name));
        assert_eq!(orphans.count(), 0, "files of programs that are no more");
    }

    /// Under the names by which they are looked for.
    #[test]
    fn modules_have_every_kernel_and_no_other() {
        for program in programs() {
            for variant in 0..program.variants().len() {
                let ptx = program.ptx(variant).unwrap();
                let entries =
                    ptx.lines().filter_map(|line| line.split_once(".entry ")?.1.split('(').next());
                let mut entries: Vec<&str> = entries.map(str::trim).collect();
                let mut names: Vec<String> = program.kernels(variant).collect();
                entries.sort_unstable();
                names.sort_unstable();
                assert_eq!(entries, names, "in {}", program.name());
            }
        }
    }

    #[test]
    fn sizes_have_their_variant() {
        assert_eq!([1, 2, 4, 8].map(|size| BITS[bits(size)]), ["u8", "u16", "u32", "u64"]);
        assert_eq!((NUMBERS[0], FLOATS[0]), ("u8", "f16"));
    }
}
