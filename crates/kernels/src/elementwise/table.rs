//! The macro that declares elementwise ops.

/// Declares elementwise ops with their gradients. Each op is a `static` [`Op`](crate::elementwise::Op).
///
/// `docs/add-an-op.md` in the repository explains the parts of an entry. With the head `unsafe;`,
/// GPU code is compiled on first use. With the head `unsafe ptx committed;`, the function
/// `committed` takes a program's name and returns its compressed PTX, or `None`.
///
/// # Safety
///
/// CUDA's expression computes a value from the operands, terminates, and has no other effect.
/// `committed` returns the output of NVRTC for the programs' sources. The `unsafe` in the head
/// states that the author of the entries vouches for this.
///
/// The operands' names are also names in CUDA, so they must not be keywords of C++, nor `C`, `R`,
/// `NUMBER` or `result`. A module has at most one invocation, because the macro defines `OPS`, the
/// list of its entries.
///
/// # Examples
///
/// ```
/// use warpline_kernels::elementwise_ops;
///
/// elementwise_ops! {
///     // SAFETY: CUDA's expression is arithmetic on the operand.
///     unsafe;
///
///     /// `2 x`.
///     DOUBLED = "doubled"(x), FLOATS => Same, "x + x", { float => x + x }, gradients(g) { x: g * 2.0 }
/// }
///
/// assert_eq!(DOUBLED.name(), "doubled");
/// ```
///
/// A formula can name only the operands, the gradient and the result. The forward pass saves the
/// tensors that it names.
///
/// ```compile_fail,E0425
/// warpline_kernels::elementwise_ops! {
///     // SAFETY: CUDA's expression is arithmetic on the operand.
///     unsafe;
///
///     /// `x²`, whose gradient names an operand that the op does not have.
///     SQUARED = "squared"(x), FLOATS => Same, "x * x", { float => x * x }, gradients(g) { x: g * y }
/// }
/// ```
///
/// A condition is not a number.
///
/// ```compile_fail,E0277
/// warpline_kernels::elementwise_ops! {
///     // SAFETY: CUDA's expression is arithmetic on the operands.
///     unsafe;
///
///     /// `x` where `c` holds, else 0.
///     KEPT = "kept"(c: bool, x), FLOATS => Same, "c ? x : (C)0", { float => if c != 0.0 { x } else { 0.0 } },
///         gradients(g) { x: g * c }
/// }
/// ```
#[macro_export]
macro_rules! elementwise_ops {
    (@ $unsafe:tt $committed:tt
        $($(#[$doc:meta])* $id:ident = $name:literal($($input:ident $(: $kind:ident)? $(in $domain:expr)?),+),
        $dtypes:ident => $output:ident, $cuda:literal, { $($cpu:tt)* }
        $(, rounds $rounds:ident)?
        $(, rules [$($rule:ident),+])?
        $(, gradients($g:ident $(, $out:ident)?) $(rounded($($rounded:ident),+))? { $($operand:ident: $gradient:expr),+ $(,)? })?)*) => {
        /// The entries of this file.
        #[allow(dead_code)]
        pub(crate) const OPS: &[&$crate::elementwise::Op] = &[$(&$id),*];

        $($(#[$doc])*
        pub static $id: $crate::elementwise::Op = {
            use $crate::elementwise::entry::{self, DTypes, Entry, Input, Output};

            /// The CPU implementation.
            #[derive(Debug)]
            struct Function;

            const DTYPES: DTypes = $crate::elementwise::entry::$dtypes;
            const INPUTS: &[Input] = &[$(Input {
                name: stringify!($input),
                is_bool: $crate::__elementwise_is_bool!($($kind)?),
                domain: $crate::__elementwise_domain!($($domain)?),
            }),+];

            const { assert!(entry::conditions_come_first(INPUTS), "the condition of an op is its first operand") };

            $crate::__elementwise_cpu! { Function, $output, [$($input),+], $($cpu)* }

            let entry = Entry {
                name: $name,
                inputs: INPUTS,
                dtypes: DTYPES,
                output: Output::$output,
                cuda: $cuda,
                short: entry::is_short($cuda, INPUTS.len()),
                host: |dtype| $crate::__elementwise_host!(dtype, Function, $output, [$($input),+], $($cpu)*),
                rounds: $crate::__elementwise_rounds!($($rounds)?),
                rules: &[$($($crate::elementwise::OperandRule::$rule),+)?],
                backward: $crate::__elementwise_backward!(
                    $unsafe, $id, $name, [$($input $(: $kind)?),+], $committed $(, $g [$($out)?] [$($($rounded)+)?] $($operand: $gradient),+)?
                ),
                program: $crate::__elementwise_committed!(
                    entry::program($name, DTYPES, |_, variant| entry::op_source(&$id, variant)), $committed
                ),
            };
            // SAFETY: the author of the entry vouches for CUDA's expression. This macro makes the
            // rest of the entry.
            $unsafe { $crate::elementwise::Op::new(entry) }
        };)*
    };
    ($unsafe:tt; $($entries:tt)*) => {
        $crate::elementwise_ops! { @ $unsafe [] $($entries)* }
    };
    ($unsafe:tt ptx $committed:path; $($entries:tt)*) => {
        $crate::elementwise_ops! { @ $unsafe [$committed] $($entries)* }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_backward {
    ($unsafe:tt, $id:ident, $name:expr, $inputs:tt, $committed:tt) => {
        None
    };
    (
        $unsafe:tt, $id:ident, $name:expr, [$($input:ident $(: $kind:ident)?),+], $committed:tt,
        $g:ident [$($out:ident)?] [$($rounded:ident)*] $($operand:ident: $gradient:expr),+
    ) => {
        Some({
            let program = $crate::__elementwise_committed!(
                $crate::elementwise::entry::Backward::program_of(
                    concat!($name, "_backward"),
                    |_, variant| $crate::elementwise::entry::backward_source($id.backward(), variant),
                ),
                $committed
            );
            let build: fn(&mut $crate::elementwise::entry::Builder) = |builder| {
                $(
                    #[allow(unused_variables)]
                    let $input = $crate::__elementwise_operand!(builder $(, $kind)?);
                )+
                #[allow(unused_variables)]
                let $g = builder.gradient();
                $(builder.round($rounded);)*
                $(let $out = builder.result();)?
                $(
                    let gradient = $gradient;
                    builder.set($operand, gradient);
                )+
            };
            // SAFETY: `program_of` made the program for this name and `backward_source`, and
            // `build` has no state.
            $unsafe { $crate::elementwise::entry::Backward::new($name, program, build) }
        })
    };
}

/// Attaches the committed PTX to a program, if there is any.
#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_committed {
    ($program:expr, []) => {
        $program
    };
    ($program:expr, [$committed:path]) => {
        $program.with_ptx($committed)
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_operand {
    ($builder:ident) => {
        $builder.operand()
    };
    ($builder:ident, bool) => {
        $builder.condition()
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_domain {
    () => {
        -2.0..2.0
    };
    ($domain:expr) => {
        $domain
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_rounds {
    () => {
        $crate::elementwise::entry::NumberRounding::Never
    };
    ($rounds:ident) => {
        $crate::elementwise::entry::NumberRounding::$rounds
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_is_bool {
    () => {
        false
    };
    (bool) => {
        true
    };
}

/// The CPU function for each compute type.
#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_cpu {
    ($f:ident, $output:ident, $inputs:tt,) => {};
    ($f:ident, $output:ident, [$($input:ident),+], all => $body:expr) => {
        // SAFETY: `each` accesses only `n` elements of each pointer.
        unsafe impl<C: $crate::elementwise::entry::runtime::host::Number> $crate::elementwise::entry::Function<C, { $crate::__elementwise_count!($($input)+) }> for $f {
            type Out = $crate::__elementwise_out!($output, C);

            unsafe fn run(inputs: [*const C; $crate::__elementwise_count!($($input)+)], out: *mut Self::Out, n: usize) {
                let f = $crate::elementwise::entry::of_elements(
                    #[inline(always)] |[$($input),+]: [C; $crate::__elementwise_count!($($input)+)]| $body
                );
                // SAFETY: the caller of `run` passes pointers that are valid for `n` elements.
                unsafe { $crate::elementwise::entry::each(inputs, out, n, f) };
            }
        }
    };
    ($f:ident, $output:ident, $inputs:tt, bool => $body:expr $(, $($rest:tt)*)?) => {
        $crate::__elementwise_cpu_of! { $f, $output, $inputs, $body, bool }
        $($crate::__elementwise_cpu! { $f, $output, $inputs, $($rest)* })?
    };
    ($f:ident, $output:ident, $inputs:tt, int => $body:expr $(, $($rest:tt)*)?) => {
        $crate::__elementwise_cpu_of! { $f, $output, $inputs, $body, u8 i8 i16 i32 i64 }
        $($crate::__elementwise_cpu! { $f, $output, $inputs, $($rest)* })?
    };
    ($f:ident, $output:ident, $inputs:tt, float => $body:expr $(, $($rest:tt)*)?) => {
        $crate::__elementwise_cpu_of! { $f, $output, $inputs, $body, f32 f64 }
        $($crate::__elementwise_cpu! { $f, $output, $inputs, $($rest)* })?
    };
    ($f:ident, $output:ident, $inputs:tt, f32 => $single:expr, f64 => $double:expr) => {
        $crate::__elementwise_cpu_of! { $f, $output, $inputs, $single, f32 }
        $crate::__elementwise_cpu_of! { $f, $output, $inputs, $double, f64 }
    };
    ($f:ident, $output:ident, $inputs:tt, $ty:ident = $function:expr $(, $($rest:tt)*)?) => {
        // SAFETY: `in_slices` accesses only `n` elements of each pointer.
        unsafe impl $crate::elementwise::entry::Function<$ty, 1> for $f {
            type Out = $ty;

            unsafe fn run([input]: [*const $ty; 1], out: *mut $ty, n: usize) {
                let f = $function;
                // SAFETY: the caller of `run` passes pointers that are valid for `n` elements.
                unsafe { $crate::elementwise::entry::in_slices(input, out, n, f) };
            }
        }
        $($crate::__elementwise_cpu! { $f, $output, $inputs, $($rest)* })?
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_cpu_of {
    ($f:ident, $output:ident, $inputs:tt, $body:expr, $($ty:ident)*) => {
        $($crate::__elementwise_cpu_one! { $f, $output, $inputs, $body, $ty })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_cpu_one {
    ($f:ident, $output:ident, [$($input:ident),+], $body:expr, $ty:ident) => {
        // SAFETY: `each` accesses only `n` elements of each pointer.
        unsafe impl $crate::elementwise::entry::Function<$ty, { $crate::__elementwise_count!($($input)+) }> for $f {
            type Out = $crate::__elementwise_out!($output, $ty);

            unsafe fn run(inputs: [*const $ty; $crate::__elementwise_count!($($input)+)], out: *mut Self::Out, n: usize) {
                let f = $crate::elementwise::entry::of_elements(
                    #[inline(always)] |[$($input),+]: [$ty; $crate::__elementwise_count!($($input)+)]| $body
                );
                // SAFETY: the caller of `run` passes pointers that are valid for `n` elements.
                unsafe { $crate::elementwise::entry::each(inputs, out, n, f) };
            }
        }
    };
}

/// The CPU loops for a dtype, if the op supports it.
#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_host {
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, all => $($_:tt)*) => {
        $crate::elementwise::entry::runtime::dispatch!($dtype, all T => $crate::__elementwise_kernels!($f, $output, $inputs, T))
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, bool => $b:expr, int => $i:expr, float => $e:expr) => {
        $crate::elementwise::entry::runtime::dispatch!($dtype, all T => $crate::__elementwise_kernels!($f, $output, $inputs, T))
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, bool => $b:expr, int => $i:expr) => {
        match $dtype {
            $crate::elementwise::entry::runtime::DType::Bool => $crate::__elementwise_kernels!($f, $output, $inputs, $crate::elementwise::entry::runtime::host::Truth),
            other => $crate::elementwise::entry::runtime::dispatch!(other, int T => $crate::__elementwise_kernels!($f, $output, $inputs, T), _ => None),
        }
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, int => $i:expr) => {
        $crate::elementwise::entry::runtime::dispatch!($dtype, int T => $crate::__elementwise_kernels!($f, $output, $inputs, T), _ => None)
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, int => $i:expr, float => $e:expr) => {
        $crate::elementwise::entry::runtime::dispatch!($dtype, number T => $crate::__elementwise_kernels!($f, $output, $inputs, T), _ => None)
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, float => $e:expr) => {
        $crate::elementwise::entry::runtime::dispatch!($dtype, float T => $crate::__elementwise_kernels!($f, $output, $inputs, T), _ => None)
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, f32 => $($_:tt)*) => {
        $crate::elementwise::entry::runtime::dispatch!($dtype, float T => $crate::__elementwise_kernels!($f, $output, $inputs, T), _ => None)
    };
    ($dtype:ident, $f:ident, $output:ident, $inputs:tt, f32 = $($_:tt)*) => {
        $crate::elementwise::entry::runtime::dispatch!($dtype, float T => $crate::__elementwise_kernels!($f, $output, $inputs, T), _ => None)
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_kernels {
    ($f:ident, $output:ident, [$($input:ident),+], $ty:ty) => {
        Some($crate::elementwise::entry::Host {
            kernels: $crate::elementwise::entry::kernels::<
                $f, $ty, $crate::__elementwise_element!($output, $ty), { $crate::__elementwise_count!($($input)+) }, { 1 + $crate::__elementwise_count!($($input)+) }
            >(),
            slices: $crate::elementwise::entry::slices::<$f, $ty, $crate::__elementwise_element!($output, $ty), { $crate::__elementwise_count!($($input)+) }>,
        })
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_out {
    (Same, $c:ty) => {
        $c
    };
    (Bool, $c:ty) => {
        bool
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_element {
    (Same, $t:ty) => {
        $t
    };
    (Bool, $t:ty) => {
        $crate::elementwise::entry::runtime::host::Truth
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_count {
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
