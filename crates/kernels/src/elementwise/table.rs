//! How an op is entered.

/// Entries of ops. Each has its documentation; its name; the names of its operands, with their
/// [`domain`](super::Op::domain) if it is not the default; the dtypes that
/// it is computed in; whether the result's elements are of the same or bools; CUDA's expression; and
/// the CPU's, of which each is for some of the compute types:
///
/// - `all` for any [`Number`](warpline_runtime::host::Number), or `bool`, `int` (any width), `float`
///   (`f32` and `f64`) for these alone, or `f32` and `f64` each; `C` in `all` is the compute type;
/// - `f32 = function, f64 = function` for functions that change a slice of one input in place;
///
/// then `rounds OnCpu` or `rounds Always`, if kernels for halves round a number operand
/// ([`NumberRounding`](super::NumberRounding));
///
/// and, for differentiable ops, `gradients(g, out) { operand: formula }` ([`formula`](super::formula)), where `g` is
/// the gradient of the result and `out` the result. The forward pass saves the operands and results that the formulas
/// of the wanted gradients read, and nothing else.
macro_rules! ops {
    ($($(#[$doc:meta])* $id:ident = $name:literal($($input:ident $(: $kind:ident)? $(in $domain:expr)?),+),
        $dtypes:ident => $output:ident, $cuda:literal, { $($cpu:tt)* }
        $(, rounds $rounds:ident)?
        $(, gradients($g:ident $(, $out:ident)?) { $($operand:ident: $gradient:expr),+ $(,)? })?)*) => {
        /// The entries of this file.
        pub(super) const OPS: &[&$crate::elementwise::Op] = &[$(&$id),*];

        $($(#[$doc])*
        pub static $id: $crate::elementwise::Op = {
            use $crate::elementwise::{DTypes, Input, Op, Output, cuda, host, is_short, table};

            /// What the CPU computes.
            #[derive(Debug)]
            struct Function;

            const DTYPES: DTypes = $crate::elementwise::$dtypes;
            const INPUTS: &[Input] = &[$(Input {
                name: stringify!($input),
                is_bool: table::is_bool!($($kind)?),
                domain: table::domain!($($domain)?),
            }),+];

            table::cpu! { Function, $output, [$($input),+], $($cpu)* }

            Op {
                name: $name,
                inputs: INPUTS,
                dtypes: DTYPES,
                output: Output::$output,
                cuda: $cuda,
                short: is_short($cuda, INPUTS.len()),
                host: |dtype| table::host!(dtype, Function, $output, [$($input),+], $($cpu)*),
                rounds: table::rounds!($($rounds)?),
                backward: table::backward!(
                    $name, [$($input $(: $kind)?),+] $(, $g [$($out)?] $($operand: $gradient),+)?
                ),
                program: warpline_runtime::module::Program::new(
                    $name,
                    DTYPES.variants(),
                    warpline_runtime::iter::CONVERTING_KERNELS,
                    |_, variant| cuda::source(&$id, variant),
                )
                .with_ptx($crate::programs::committed),
            }
        };)*
    };
}

macro_rules! backward {
    ($name:expr, $inputs:tt) => {
        None
    };
    (
        $name:expr, [$($input:ident $(: $kind:ident)?),+],
        $g:ident [$($out:ident)?] $($operand:ident: $gradient:expr),+
    ) => {
        Some($crate::elementwise::Backward::new($name, concat!($name, "_backward"), |builder| {
            $(
                #[allow(unused_variables)]
                let $input = table::operand!(builder $(, $kind)?);
            )+
            #[allow(unused_variables)]
            let $g = builder.gradient();
            $(let $out = builder.result();)?
            $(
                let gradient = $gradient;
                builder.set($operand, gradient);
            )+
        }))
    };
}

macro_rules! operand {
    ($builder:ident) => {
        $builder.operand()
    };
    ($builder:ident, bool) => {
        $builder.condition()
    };
}

macro_rules! domain {
    () => {
        -2.0..2.0
    };
    ($domain:expr) => {
        $domain
    };
}

macro_rules! rounds {
    () => {
        $crate::elementwise::NumberRounding::Never
    };
    ($rounds:ident) => {
        $crate::elementwise::NumberRounding::$rounds
    };
}

macro_rules! is_bool {
    () => {
        false
    };
    (bool) => {
        true
    };
}

/// The function of each compute type.
macro_rules! cpu {
    ($f:ident, $output:ident, $inputs:tt,) => {};
    ($f:ident, $output:ident, [$($input:ident),+], all => $body:expr) => {
        impl<C: warpline_runtime::host::Number> host::Function<C, { table::count!($($input)+) }> for $f {
            type Out = table::out!($output, C);

            unsafe fn run(inputs: [*const C; table::count!($($input)+)], out: *mut Self::Out, n: usize) {
                // SAFETY: the caller's promise.
                unsafe {
                    host::each(inputs, out, n, #[inline(always)] |[$($input),+]: [C; table::count!($($input)+)]| $body);
                }
            }
        }
    };
    ($f:ident, $output:ident, $inputs:tt, bool => $body:expr $(, $($rest:tt)*)?) => {
        table::cpu_of! { $f, $output, $inputs, $body, bool }
        $(table::cpu! { $f, $output, $inputs, $($rest)* })?
    };
    ($f:ident, $output:ident, $inputs:tt, int => $body:expr $(, $($rest:tt)*)?) => {
        table::cpu_of! { $f, $output, $inputs, $body, u8 i8 i16 i32 i64 }
        $(table::cpu! { $f, $output, $inputs, $($rest)* })?
    };
    ($f:ident, $output:ident, $inputs:tt, float => $body:expr $(, $($rest:tt)*)?) => {
        table::cpu_of! { $f, $output, $inputs, $body, f32 f64 }
        $(table::cpu! { $f, $output, $inputs, $($rest)* })?
    };
    ($f:ident, $output:ident, $inputs:tt, f32 => $single:expr, f64 => $double:expr) => {
        table::cpu_of! { $f, $output, $inputs, $single, f32 }
        table::cpu_of! { $f, $output, $inputs, $double, f64 }
    };
    ($f:ident, $output:ident, $inputs:tt, $ty:ident = $function:expr $(, $($rest:tt)*)?) => {
        impl host::Function<$ty, 1> for $f {
            type Out = $ty;

            unsafe fn run([input]: [*const $ty; 1], out: *mut $ty, n: usize) {
                // SAFETY: the caller's promise.
                unsafe { host::in_slices(input, out, n, $function) };
            }
        }
        $(table::cpu! { $f, $output, $inputs, $($rest)* })?
    };
}

macro_rules! cpu_of {
    ($f:ident, $output:ident, $inputs:tt, $body:expr, $($ty:ident)*) => {
        $(table::cpu_one! { $f, $output, $inputs, $body, $ty })*
    };
}

macro_rules! cpu_one {
    ($f:ident, $output:ident, [$($input:ident),+], $body:expr, $ty:ident) => {
        impl host::Function<$ty, { table::count!($($input)+) }> for $f {
            type Out = table::out!($output, $ty);

            unsafe fn run(inputs: [*const $ty; table::count!($($input)+)], out: *mut Self::Out, n: usize) {
                // SAFETY: the caller's promise.
                unsafe {
                    host::each(inputs, out, n, #[inline(always)] |[$($input),+]: [$ty; table::count!($($input)+)]| $body);
                }
            }
        }
    };
}

/// The loops of a dtype, if the op has it.
macro_rules! host {
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, all => $($_:tt)*) => {
        warpline_runtime::dispatch!($dtype, all T => table::kernels!($f, $output, $inputs, T))
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, bool => $b:expr, int => $i:expr, float => $e:expr) => {
        warpline_runtime::dispatch!($dtype, all T => table::kernels!($f, $output, $inputs, T))
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, bool => $b:expr, int => $i:expr) => {
        match $dtype {
            warpline_runtime::DType::Bool => table::kernels!($f, $output, $inputs, warpline_runtime::host::Truth),
            other => warpline_runtime::dispatch!(other, int T => table::kernels!($f, $output, $inputs, T), _ => None),
        }
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, int => $i:expr) => {
        warpline_runtime::dispatch!($dtype, int T => table::kernels!($f, $output, $inputs, T), _ => None)
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, int => $i:expr, float => $e:expr) => {
        warpline_runtime::dispatch!($dtype, number T => table::kernels!($f, $output, $inputs, T), _ => None)
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, float => $e:expr) => {
        warpline_runtime::dispatch!($dtype, float T => table::kernels!($f, $output, $inputs, T), _ => None)
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, f32 => $($_:tt)*) => {
        warpline_runtime::dispatch!($dtype, float T => table::kernels!($f, $output, $inputs, T), _ => None)
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, f32 = $($_:tt)*) => {
        warpline_runtime::dispatch!($dtype, float T => table::kernels!($f, $output, $inputs, T), _ => None)
    };
}

macro_rules! kernels {
    ($f:ident, $output:ident, [$($input:ident),+], $ty:ty) => {
        Some($crate::elementwise::Host {
            kernels: host::kernels::<
                $f, $ty, table::element!($output, $ty), { table::count!($($input)+) }, { 1 + table::count!($($input)+) }
            >(),
            slices: host::slices::<$f, $ty, table::element!($output, $ty), { table::count!($($input)+) }>,
        })
    };
}

macro_rules! out {
    (Same, $c:ty) => {
        $c
    };
    (Bool, $c:ty) => {
        bool
    };
}

macro_rules! element {
    (Same, $t:ty) => {
        $t
    };
    (Bool, $t:ty) => {
        warpline_runtime::host::Truth
    };
}

macro_rules! count {
    ($a:ident) => {
        1
    };
    ($a:ident $b:ident) => {
        2
    };
    ($a:ident $b:ident $c:ident) => {
        3
    };
    ($a:ident $b:ident $c:ident $d:ident) => {
        4
    };
}

pub(super) use {
    backward, count, cpu, cpu_of, cpu_one, domain, element, host, is_bool, kernels, operand, ops,
    out, rounds,
};
