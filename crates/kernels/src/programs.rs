//! The CUDA programs of all ops, and the macro that declares programs with their kernels.

use warpline_runtime::DType;
use warpline_runtime::module::Program;

/// The name and the compressed PTX of each program, sorted by name. The PTX is the file in `ptx`
/// that `cargo xtask ptx` writes.
const COMMITTED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

pub(crate) fn committed(program: &str) -> Option<&'static [u8]> {
    let at = COMMITTED.binary_search_by_key(&program, |(name, _)| name).ok()?;
    Some(COMMITTED[at].1)
}

/// A variant for each dtype except bool.
pub(crate) const NUMBERS: &[&str] = DType::suffixes(DType::U8, DType::F64);
/// A variant for each floating-point dtype.
pub(crate) const FLOATS: &[&str] = DType::suffixes(DType::F16, DType::F64);
/// A variant for each half-width floating-point dtype.
pub(crate) const HALVES: &[&str] = &["f16", "bf16"];
/// A variant for each dtype except bool and `int8`. These use the variant of `uint8`, because all
/// three test a byte against zero.
pub(crate) const TRUTHS: [&str; 1 + WIDER.len()] = {
    let mut variants = [DType::U8.suffix(); 1 + WIDER.len()];
    variants.split_at_mut(1).1.copy_from_slice(WIDER);
    variants
};
/// A variant for each dtype of more than one byte.
const WIDER: &[&str] = DType::suffixes(DType::I16, DType::F64);
/// A variant for each element size, for kernels that only move elements: 1, 2, 4 and 8 bytes.
pub(crate) const BITS: &[&str] = &["u8", "u16", "u32", "u64"];

/// CUDA functions that multiply small matrices of half-width floats on tensor cores.
pub(crate) const TENSOR_CORES: &str = include_str!("tensor_cores.cuh");
/// CUDA functions that reduce values across the lanes of a warp or the threads of a block.
pub(crate) const LANES: &str = include_str!("lanes.cuh");

/// Declares programs, each with its kernels. A kernel has a type, a name in the program, CPU
/// implementations and, if its variant depends on the dtype of an operand other than the first, the
/// number of this operand.
macro_rules! kernels {
    ($($vis:vis $program:ident = $name:literal, $variants:expr, $source:expr => {
        $($keyword:tt $kernel:ident: $ty:ty = $kernel_name:literal, $hosts:expr $(, selected_by $at:literal)?;)+
    })+) => {$(
        $vis static $program: Program =
            Program::new($name, $variants, &[$($kernel_name),+], $source).with_ptx(committed);

        $(
            static $kernel: $ty =
                $keyword { Kernel::new(&$program, $kernel_name, $hosts) }$(.selected_by($at))?;
        )+
    )+};
}
pub(crate) use kernels;

/// Returns the variant of [`BITS`] for elements of `size` bytes.
pub(crate) const fn bits(size: usize) -> &'static str {
    BITS[size.ilog2() as usize]
}

/// Returns the name of a dtype's element type in CUDA. `suffix` is the dtype's suffix.
pub(crate) fn cuda_type(suffix: &str) -> &str {
    // The code has its own type for bools, because CUDA's `bool` must not hold a byte other than 0
    // or 1.
    if suffix == "bool" { "boolean" } else { suffix }
}

/// Returns every program of this crate.
#[must_use]
pub fn programs() -> Vec<&'static Program> {
    let families = [
        crate::attention::PROGRAMS,
        crate::cat::PROGRAMS,
        crate::conv::PROGRAMS,
        crate::copy::PROGRAMS,
        crate::fill::PROGRAMS,
        crate::indexing::PROGRAMS,
        crate::kv_cache::PROGRAMS,
        crate::loss::PROGRAMS,
        crate::matmul::PROGRAMS,
        crate::normalization::PROGRAMS,
        crate::optim::PROGRAMS,
        crate::pool::PROGRAMS,
        crate::random::PROGRAMS,
        crate::reduce::PROGRAMS,
        crate::scan::PROGRAMS,
        crate::scatter::PROGRAMS,
        crate::resample::PROGRAMS,
        crate::rotary::PROGRAMS,
        crate::softmax::PROGRAMS,
        crate::sort::PROGRAMS,
    ];
    families.into_iter().flatten().copied().chain(crate::elementwise::programs()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use warpline_runtime::module::{single, specialized, stale};

    use super::*;

    #[test]
    fn names_are_unique_and_ptx_files_match_the_sources() {
        let programs = programs();
        let names: HashSet<&str> = programs.iter().map(|program| program.name()).collect();
        assert_eq!(names.len(), programs.len());
        // Cargo runs tests in the package's folder.
        let stale = stale(Path::new("ptx"), &programs);
        let stale: Vec<&str> = stale.into_iter().map(Program::name).collect();
        assert!(stale.is_empty(), "run `cargo xtask ptx`: {stale:?}");
        let orphans = COMMITTED.iter().filter(|(name, _)| !names.contains(name));
        assert_eq!(orphans.count(), 0, "`ptx` has a file for a program that no longer exists");
    }

    /// The runtime looks kernels up by name, so the PTX must contain exactly the declared kernels.
    #[test]
    fn ptx_contains_exactly_the_declared_kernels() {
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

    /// The runtime loads each kernel on its own, so the PTX of a kernel must define every symbol
    /// that the kernel uses, and no other kernel.
    #[test]
    fn single_kernels_define_every_symbol_that_they_use() {
        for program in programs() {
            for variant in 0..program.variants().len() {
                let ptx = program.ptx(variant).unwrap();
                let all = defined(ptx);
                for kernel in program.kernels(variant) {
                    let part = single(ptx, &kernel);
                    let entries: Vec<&str> =
                        part.lines().filter(|line| line.contains(".entry ")).collect();
                    assert_eq!(entries.len(), 1, "in {kernel}: {entries:?}");
                    assert!(entries[0].contains(&format!(" {kernel}(")), "{entries:?}");
                    for head in [".version ", ".target ", ".address_size "] {
                        assert!(part.lines().any(|line| line.starts_with(head)), "{kernel}");
                    }
                    let own = defined(&part);
                    let used: HashSet<&str> =
                        words(&part).filter(|word| all.contains(word)).collect();
                    let missing: Vec<_> = used.difference(&own).collect();
                    assert!(missing.is_empty(), "{kernel} lacks {missing:?}");
                    for name in called(&part) {
                        assert!(own.contains(name), "{kernel} calls {name}");
                    }
                }
            }
        }
    }

    #[test]
    fn newer_devices_round_to_bf16_with_an_instruction() {
        let add = programs().into_iter().find(|program| program.name() == "add").unwrap();
        let bf16 = add.variants().iter().position(|variant| *variant == "bf16").unwrap();
        let ptx = single(add.ptx(bf16).unwrap(), "add_bf16_flat");
        let rounds = ptx.matches("/* sm_80: cvt.rn.bf16.f32 ").count();
        assert!(rounds > 8, "conversions for a vector and for a single element");
        assert!(
            ptx.contains(".target sm_75\n"),
            "devices before sm_80 round without the instruction"
        );
        let newer = specialized(ptx, (8, 0));
        assert!(newer.contains(".target sm_80\n"));
        let instructions = newer.lines().filter(|line| line.trim().starts_with("cvt.rn.bf16.f32 "));
        assert_eq!(instructions.count(), rounds);
        assert!(!newer.contains("bfe.u32"), "{newer}");
    }

    /// Returns the identifiers of `ptx`, in order of appearance.
    fn words(ptx: &str) -> impl Iterator<Item = &str> {
        ptx.split(|c: char| !(c.is_alphanumeric() || "_$%.".contains(c)))
    }

    /// Returns the callees of all calls. NVRTC splits a call over several lines.
    fn called(ptx: &str) -> impl Iterator<Item = &str> {
        ptx.split("call.uni").skip(1).map(|call| {
            let call = call.split(';').next().unwrap().trim();
            let call = if call.starts_with('(') { call.split_once(')').unwrap().1 } else { call };
            words(call).find(|word| !word.is_empty()).unwrap()
        })
    }

    /// Returns the names of functions with a body, and of variables outside functions.
    fn defined(ptx: &str) -> HashSet<&str> {
        let functions = ptx.split("\n.func ").skip(1).filter_map(|function| {
            let (head, rest) = function.split_once("\n)").unwrap();
            let head = head.trim_start();
            let head = if head.starts_with('(') { head.split_once(')').unwrap().1 } else { head };
            (!rest.trim_start().starts_with(';')).then(|| words(head).find(|w| !w.is_empty()))?
        });
        let is_variable = |line: &&str| {
            [".global ", ".const ", ".shared ", ".visible .", ".extern .", ".weak ."]
                .iter()
                .any(|space| line.starts_with(space))
                && !line.contains(".entry ")
                && !line.contains(".func ")
        };
        let variables = ptx.lines().filter(is_variable).filter_map(|line| {
            line.split(['=', ';', '[']).next().unwrap().split_whitespace().last()
        });
        functions.chain(variables).collect()
    }

    #[test]
    fn every_size_has_its_variant() {
        assert_eq!([1, 2, 4, 8].map(bits), ["u8", "u16", "u32", "u64"]);
        assert_eq!((NUMBERS[0], FLOATS[0]), ("u8", "f16"));
        assert_eq!(TRUTHS, ["u8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"]);
    }
}
