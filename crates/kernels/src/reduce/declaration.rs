//! The macro [`reductions!`], which declares reductions, and the types of a declaration.

use warpline_runtime::launch::{Hosts, Kernel};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, ErrorKind, Result};

use super::plan::{Access, BLOCK, Plan, UNROLL};
use crate::programs::cuda_type;
use crate::turn::TURN;

/// The declaration of a reduction.
#[derive(Debug)]
pub(super) struct Declaration {
    pub(super) name: &'static str,
    pub(super) result: ReducedDType,
    pub(super) flags: Flags,
    /// Returns the bits of the neutral element, which changes no result, repeated to fill eight bytes.
    pub(super) neutral: fn(DType) -> u64,
    pub(super) kernels: FoldKernels,
}

/// Dtype of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReducedDType {
    /// Dtype of the elements.
    Same,
    /// Dtype of the elements, which must be floating-point.
    Float,
    /// `int64` for integers and bool, otherwise the dtype of the elements.
    Wide,
    /// `int64`, for indices. Elements must not be bools.
    Index,
    /// Bool, but `uint8` if the elements are `uint8`. PyTorch keeps this exception from the time
    /// when it had no bools.
    Truth,
}

/// Properties of a reduction. Default: false.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags {
    /// The CUDA kernel uses the fold of the opposite reduction, such as the fold of the maximum for
    /// a minimum. The kernel flips the elements and the result: the bits of integers and bools, and
    /// the sign of floats.
    pub(super) flips: bool,
    /// The result is divided by the number of elements.
    pub(super) averages: bool,
    /// A result needs at least one element.
    pub(super) needs_elements: bool,
}

impl Flags {
    pub(super) const NONE: Self = Self { flips: false, averages: false, needs_elements: false };
}

impl Declaration {
    /// Returns the kernel for an access pattern. If `split` is true, several blocks share each
    /// result.
    pub(super) fn kernel(&self, access: Access, split: bool) -> &Kernel<Plan, 3> {
        &self.kernels[access as usize][usize::from(split)]
    }

    /// Returns [`ReduceOp::result_dtype`](super::ReduceOp::result_dtype) of the reduction.
    #[track_caller]
    pub(super) fn result_dtype(&self, dtype: DType) -> Result<DType> {
        let unsupported = ErrorKind::UnsupportedDType { dtype };
        Ok(match self.result {
            ReducedDType::Float if !dtype.is_float() => return Err(unsupported.of(self.name)),
            ReducedDType::Index if dtype == DType::Bool => return Err(unsupported.of(self.name)),
            ReducedDType::Wide if !dtype.is_float() => DType::I64,
            ReducedDType::Index => DType::I64,
            ReducedDType::Truth if dtype != DType::U8 => DType::Bool,
            _ => dtype,
        })
    }
}

/// Kernels of a fold, indexed by [`Access`]. In the first kernel of a pair, a block computes one or
/// several results; in the second kernel, several blocks share each result.
type FoldKernels = [[Kernel<Plan, 3>; 2]; 3];

/// Creates the kernels of a fold from its three programs, in the order of [`Access`].
///
/// # Safety
/// The conditions of [`Kernel::new`] hold for each program's kernels and `hosts`.
pub(super) const unsafe fn kernels(
    programs: &'static [Program; 3],
    hosts: Hosts<Plan>,
) -> FoldKernels {
    let names = ["", "split"];
    // SAFETY: the caller guarantees that each kernel and its CPU implementation access only their
    // operands, as declared, and take a `Plan`.
    unsafe {
        [
            Kernel::array(&programs[Access::Rows as usize], names, hosts),
            Kernel::array(&programs[Access::Columns as usize], names, hosts),
            Kernel::array(&programs[Access::Strided as usize], names, hosts),
        ]
    }
}

/// Returns the CUDA source of a program that applies the fold `fold`, which `own` defines, with the
/// access pattern `access` of `reduce.cuh`.
pub(super) fn source(
    program: &Program,
    variant: &str,
    fold: &str,
    own: &str,
    access: &str,
) -> Source {
    let (name, element) = (program.name(), cuda_type(variant));
    Source::new()
        .with::<Plan>()
        .push(module::ELEMENT)
        .push(include_str!("fold.cuh"))
        .push(&format!("#define BLOCK {BLOCK}\n#define UNROLL {UNROLL}"))
        .push(TURN)
        .push(include_str!("reduce.cuh"))
        .push(&format!("{own}\n{access}({name}_{variant}, {fold}, {element})"))
}

/// Declares reductions, grouped by the CUDA fold whose programs they share. `docs/add-an-op.md`
/// explains the parts of a declaration. A module has at most one invocation, because the macro
/// defines the enum `ReduceOp`.
macro_rules! reductions {
    ($($programs:ident = $program:literal, $fold:literal, $own:literal, $elements:ident {
        $($(#[$doc:meta])* $op:ident = $name:literal => $output:ident, $cpu:tt $(, $flag:ident)*;)*
    })*) => {
        /// A reduction of elements to one result.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ReduceOp {$($($(#[$doc])* $op,)*)*}

        impl ReduceOp {
            /// Every reduction.
            #[doc(hidden)]
            pub const ALL: &[Self] = &[$($(Self::$op),*),*];

            /// Returns the declaration.
            pub(in $crate::reduce) fn declaration(self) -> &'static $crate::reduce::declaration::Declaration {
                use $crate::reduce::declaration::{self, Declaration, Flags, ReducedDType};
                match self {$($(Self::$op => {
                    static DECLARATION: Declaration = Declaration {
                        name: $name,
                        result: ReducedDType::$output,
                        flags: Flags { $($flag: true,)* ..Flags::NONE },
                        neutral: |dtype| warpline_runtime::dispatch!(dtype, all T => {
                            $crate::reduce::fold::neutral::<folds::$op, T>()
                        }),
                        // SAFETY: only `reduce::run` makes plans, from the operands of the launch,
                        // so a plan reaches only elements of these operands. The kernels keep
                        // counters and partial results in the scratch memory, which has a word for
                        // each. The CPU implementation uses no scratch memory.
                        kernels: unsafe {
                            declaration::kernels(&$programs, reductions!(@hosts $elements folds::$op))
                        },
                    };
                    &DECLARATION
                })*)*}
            }
        }

        /// The CPU implementations, named after their reductions.
        pub(in $crate::reduce) mod folds {
            use warpline_runtime::host::Number;

            use $crate::reduce::declaration::reductions;
            #[allow(unused_imports)] // by declarations without sums and extremes
            use $crate::reduce::fold::{self, Arg, Fold, ReduceElement};

            $($(reductions! { @fold $op $cpu })*)*
        }

        #[allow(dead_code)] // by declarations that tests add
        pub(crate) const PROGRAMS: &[&Program] =
            &[$(&$programs[0], &$programs[1], &$programs[2]),*];

        // Indexed by [`Access`].
        $(static $programs: [Program; 3] = [
            reductions!(@program $program "_rows", $fold, $own, $elements, "ROWS"),
            reductions!(@program $program "_columns", $fold, $own, $elements, "COLUMNS"),
            reductions!(@program $program "_strided", $fold, $own, $elements, "STRIDED"),
        ];)*
    };
    (@program $name:literal $suffix:literal, $fold:literal, $own:literal, $elements:ident, $access:literal) => {
        Program::new(
            concat!($name, $suffix),
            reductions!(@variants $elements),
            &["", "split"],
            |program, variant| $crate::reduce::declaration::source(program, variant, $fold, $own, $access),
        )
        .with_ptx($crate::programs::committed)
    };
    (@variants all) => { &warpline_runtime::DType::SUFFIXES };
    (@variants number) => { $crate::programs::NUMBERS };
    (@variants truth) => { &$crate::programs::TRUTHS };
    (@hosts truth $fold:ty) => {
        reductions!(@hosts all $fold)
            .with_variant(warpline_runtime::DType::Bool, "u8")
            .with_variant(warpline_runtime::DType::I8, "u8")
    };
    (@hosts $elements:ident $fold:ty) => {
        warpline_runtime::hosts!($elements T => $crate::reduce::cpu::reduce::<$fold, T>)
    };
    (@fold $op:ident ($fold:ty)) => {
        pub(in $crate::reduce) type $op = $fold;
    };
    (@fold $op:ident {
        $acc:ty: $identity:expr, |$x:ident| $make:expr, |$a:ident, $b:ident| $merge:expr
    }) => {
        pub(in $crate::reduce) struct $op;

        impl<T: ReduceElement> Fold<T> for $op {
            type Acc = $acc;
            type Result = $acc;
            #[inline(always)]
            fn identity() -> $acc {
                $identity
            }
            #[inline(always)]
            fn make($x: T, _: usize) -> $acc {
                $make
            }
            #[inline(always)]
            fn merge($a: $acc, $b: $acc) -> $acc {
                $merge
            }
            fn result(acc: $acc) -> $acc {
                acc
            }
        }
    };
}
pub(super) use reductions;
