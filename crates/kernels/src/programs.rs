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
    use super::*;

    #[test]
    fn each_size_has_its_variant() {
        assert_eq!([1, 2, 4, 8].map(bits), ["u8", "u16", "u32", "u64"]);
        assert_eq!((NUMBERS[0], FLOATS[0]), ("u8", "f16"));
        assert_eq!(TRUTHS, ["u8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"]);
    }
}
