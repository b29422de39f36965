//! The CUDA programs of all ops, and the macro that declares programs with their kernels.

use bytemuck::Pod;
use warpline_runtime::DType;
use warpline_runtime::launch::Kernel;
use warpline_runtime::module::{CudaType, Program};

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
/// A variant for each dtype except bool and `int8`. Bool and `int8` use the variant of `uint8`,
/// because all three test a byte against zero.
pub(crate) const TRUTHS: [&str; 1 + WIDER.len()] = {
    let mut variants = [DType::U8.suffix(); 1 + WIDER.len()];
    variants.split_at_mut(1).1.copy_from_slice(WIDER);
    variants
};
/// A variant for each dtype of more than one byte.
const WIDER: &[&str] = DType::suffixes(DType::I16, DType::F64);
/// A variant for each element size, for kernels that only move elements: 1, 2, 4 and 8 bytes.
pub(crate) const BITS: &[&str] = &["u8", "u16", "u32", "u64"];
/// A variant for each size of a unit, for kernels that move several elements at once: 1 to 16 bytes.
pub(crate) const UNITS: &[&str] = &["u8", "u16", "u32", "u64", "u128"];

/// CUDA functions that multiply small matrices of half-width floats on tensor cores.
pub(crate) const TENSOR_CORES: &str = include_str!("tensor_cores.cuh");
/// CUDA functions that reduce values across the lanes of a warp or the threads of a block.
pub(crate) const LANES: &str = include_str!("lanes.cuh");

/// Declares programs, each with its kernels. A kernel has a type, the dtypes that
/// [`hosts!`](warpline_runtime::hosts) lists, the CPU function, which is generic over the element
/// type unless the dtypes are `any`, and, if its variant depends on the dtype of an operand other
/// than the first, the number of this operand.
///
/// The name of the CPU function is also that of the kernel: `pool_backward` is the kernel `backward`
/// of the program `pool`. A CPU function may implement several kernels, such as
/// `pool_backward[rows, columns]`, which are the kernels `backward_rows` and `backward_columns`.
macro_rules! kernels {
    ($($vis:vis $program:ident = $name:literal, $variants:expr, $source:expr => {
        $($keyword:tt $kernel:ident: $ty:ty = $($dtype:ident)|+ $module:ident::$function:ident
            $([$($suffix:tt),+])? $(.$method:ident($($arg:expr),*))* $(, selected_by $at:literal)?;)+
    })+) => {$(
        $vis static $program: Program = Program::new($name, $variants, {
            const FUNCTIONS: &[&[&str]] = &[$($crate::programs::kernels!(@names $function $([$($suffix),+])?)),+];
            const NAMES: [&str; $crate::programs::count(FUNCTIONS)] =
                $crate::programs::kernel_names($name, FUNCTIONS);
            &NAMES
        }, $source)
        .with_ptx($crate::programs::committed);

        $(static $kernel: $ty = $keyword {
            const FUNCTIONS: &[&str] = $crate::programs::kernels!(@names $function $([$($suffix),+])?);
            const NAMES: [&str; FUNCTIONS.len()] = $crate::programs::kernel_names($name, &[FUNCTIONS]);
            let hosts = $crate::programs::kernels!(@hosts $module $function $($dtype)|+)$(.$method($($arg),*))*;
            let kernels = Kernel::array(&$program, NAMES, hosts);
            $(let kernels = $crate::programs::selected_by(kernels, $at);)?
            $crate::programs::kernels!(@kernels kernels $([$($suffix),+])?)
        };
        $crate::programs::test_sources!($kernel);)+
    )+};
    (@names $function:ident) => { &[stringify!($function)] };
    (@names $function:ident [$($suffix:tt),+]) => {
        &[$(concat!(stringify!($function), "_", stringify!($suffix))),+]
    };
    (@hosts $module:ident $function:ident any) => { warpline_runtime::hosts!(any $module::$function) };
    (@hosts $module:ident $function:ident $dtypes:ident) => {
        warpline_runtime::hosts!($dtypes T => $module::$function::<T>)
    };
    (@hosts $module:ident $function:ident $($dtype:ident)|+) => {
        warpline_runtime::hosts!($($dtype)|+, T => $module::$function::<T>)
    };
    (@kernels $kernels:ident) => { $kernels[0] };
    (@kernels $kernels:ident $suffixes:tt) => { $kernels };
}
pub(crate) use kernels;

/// Calls the macro `$kernel` for each variant of [`UNITS`], with Rust's type of the unit and the
/// variant's name. Returns the kernels in an array, by the binary logarithm of the unit's size.
macro_rules! by_unit {
    ($kernel:ident) => {
        [
            $kernel!(u8, "u8"),
            $kernel!(u16, "u16"),
            $kernel!(u32, "u32"),
            $kernel!(u64, "u64"),
            $kernel!([u64; 2], "u128"),
        ]
    };
}
pub(crate) use by_unit;

/// Makes a test for each listed kernel or array of kernels: the sources define the parameters that
/// the kernels take. [`kernels!`] calls this macro for its kernels.
macro_rules! test_sources {
    ($($kernels:ident),+) => {$(
        #[cfg(test)]
        #[allow(non_snake_case)]
        mod $kernels {
            #[test]
            fn takes_the_struct_that_its_source_defines() {
                $crate::programs::CheckSources::check_sources(&super::$kernels);
            }
        }
    )+};
}
pub(crate) use test_sources;

/// Kernels whose sources a test checks.
#[cfg(test)]
pub(crate) trait CheckSources {
    /// # Panics
    /// If the source of a kernel does not define the kernel's parameters.
    fn check_sources(&self);
}

#[cfg(test)]
impl<P: CudaType + Pod, const N: usize> CheckSources for Kernel<P, N> {
    fn check_sources(&self) {
        self.check_source().unwrap();
    }
}

#[cfg(test)]
impl<K: CheckSources, const N: usize> CheckSources for [K; N] {
    fn check_sources(&self) {
        self.iter().for_each(K::check_sources);
    }
}

/// Returns the number of names in all lists.
pub(crate) const fn count(lists: &[&[&str]]) -> usize {
    let (mut count, mut list) = (0, 0);
    while list < lists.len() {
        count += lists[list].len();
        list += 1;
    }
    count
}

/// Returns the names that the kernels of `functions` have in `program`.
///
/// # Panics
/// If the name of a function does not begin with that of the program. In [`kernels!`] this is a
/// compile error.
pub(crate) const fn kernel_names<const N: usize>(
    program: &str,
    functions: &[&[&'static str]],
) -> [&'static str; N] {
    let (mut names, mut at, mut list) = ([""; N], 0, 0);
    while list < functions.len() {
        let mut function = 0;
        while function < functions[list].len() {
            names[at] = kernel_name(program.as_bytes(), functions[list][function]);
            at += 1;
            function += 1;
        }
        list += 1;
    }
    names
}

const fn kernel_name(program: &[u8], function: &'static str) -> &'static str {
    let (start, name) = function.split_at(program.len());
    let mut at = 0;
    while at < program.len() {
        assert!(start.as_bytes()[at] == program[at], "a CPU function is named after its program");
        at += 1;
    }
    if name.is_empty() {
        return name;
    }
    let (separator, name) = name.split_at(1);
    assert!(separator.as_bytes()[0] == b'_', "a CPU function is named after its program");
    name
}

/// Lets the dtype of operand `at` select the variants of all kernels.
pub(crate) const fn selected_by<P: CudaType + Pod, const N: usize, const M: usize>(
    mut kernels: [Kernel<P, N>; M],
    at: usize,
) -> [Kernel<P, N>; M] {
    let mut kernel = 0;
    while kernel < M {
        kernels[kernel] = kernels[kernel].selected_by(at);
        kernel += 1;
    }
    kernels
}

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
    fn kernels_are_named_after_their_functions() {
        let functions: &[&[&str]] = &[&["pool"], &["pool_rows_1", "pool_rows_2"]];
        assert_eq!(kernel_names::<3>("pool", functions), ["", "rows_1", "rows_2"]);
        assert_eq!(count(functions), 3);
    }

    #[test]
    #[should_panic(expected = "named after its program")]
    fn a_function_of_another_program_has_no_kernel() {
        kernel_names::<1>("pool", &[&["pad_rows"]]);
    }

    #[test]
    fn each_size_has_its_variant() {
        assert_eq!([1, 2, 4, 8].map(bits), ["u8", "u16", "u32", "u64"]);
        assert_eq!((NUMBERS[0], FLOATS[0]), ("u8", "f16"));
        assert_eq!(TRUTHS, ["u8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"]);
    }
}
