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
///     DOUBLED = "doubled"(x), FLOATS => Same, Keep, "x + x", { float => x + x }, gradients(g) { x: g * 2.0 }
/// }
///
/// assert_eq!(DOUBLED.name(), "doubled");
/// ```
///
/// A formula can name only the operands, the gradient and the result. The forward pass saves the
/// tensors that the formula names.
///
/// ```compile_fail,E0425
/// warpline_kernels::elementwise_ops! {
///     // SAFETY: CUDA's expression is arithmetic on the operand.
///     unsafe;
///
///     /// `x²`, whose gradient names an operand that the op does not have.
///     SQUARED = "squared"(x), FLOATS => Same, Keep, "x * x", { float => x * x }, gradients(g) { x: g * y }
/// }
/// ```
///
/// An entry without a policy for autocast does not compile.
///
/// ```compile_fail
/// warpline_kernels::elementwise_ops! {
///     // SAFETY: CUDA's expression is arithmetic on the operand.
///     unsafe;
///
///     /// `2 x`.
///     DOUBLED = "doubled"(x), FLOATS => Same, "x + x", { float => x + x }, gradients(g) { x: g * 2.0 }
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
///     KEPT = "kept"(c: bool, x), FLOATS => Same, Keep, "c ? x : (C)0", { float => if c != 0.0 { x } else { 0.0 } },
///         gradients(g) { x: g * c }
/// }
/// ```
#[macro_export]
macro_rules! elementwise_ops {
    (@ $unsafe:tt $committed:tt
        $($(#[$doc:meta])* $id:ident = $name:literal($($input:ident $(: $kind:ident)? $(in $domain:expr)?),+),
        $dtypes:ident => $output:ident, $autocast:ident, $cuda:literal, { $($cpu:tt)* }
        $(, rounds $rounds:ident)?
        $(, rules [$($rule:ident),+])?
        $(, gradients($g:ident $(, $out:ident)?) $(rounded($($rounded:ident),+))? { $($operand:ident: $gradient:expr),+ $(,)? })?)*) => {
        /// The entries of this file.
        #[allow(dead_code)]
        pub(crate) const OPS: &[&$crate::elementwise::Op] = &[$(&$id),*];

        $($(#[$doc])*
        pub static $id: $crate::elementwise::Op = {
            use $crate::elementwise::entry::{self, DTypes, Entry, Input, ResultDType};

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

            static PROGRAM: $crate::elementwise::entry::runtime::module::Program = $crate::__elementwise_committed!(
                entry::program($name, DTYPES, |_, variant| entry::op_source(&$id, variant)), $committed
            );

            let (kernels, slices) = $crate::__elementwise_hosts!([$unsafe $cuda $output [$($input),+]] $($cpu)*);
            let entry = Entry {
                name: $name,
                inputs: INPUTS,
                dtypes: DTYPES,
                output: ResultDType::$output,
                autocast: $crate::autocast::Policy::$autocast,
                cuda: $cuda,
                kernels,
                slices,
                rounds: $crate::__elementwise_rounds!($($rounds)?),
                rules: &[$($($crate::elementwise::OperandRule::$rule),+)?],
                backward: $crate::__elementwise_backward!(
                    $unsafe, $name, [$($input $(: $kind)?),+], $committed $(, $g [$($out)?] [$($($rounded)+)?] $($operand: $gradient),+)?
                ),
                program: &PROGRAM,
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
    ($unsafe:tt, $name:literal, $inputs:tt, $committed:tt) => {
        None
    };
    ($unsafe:tt, $name:literal, $inputs:tt, $committed:tt, $($gradients:tt)+) => {{
        static BACKWARD: $crate::elementwise::Backward = $crate::__elementwise_gradients!(
            BACKWARD, $unsafe, $name, $inputs, $committed, $($gradients)+
        );
        Some(&BACKWARD)
    }};
}

/// The value of the static `$backward`.
#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_gradients {
    (
        $backward:ident, $unsafe:tt, $name:literal, [$($input:ident $(: $kind:ident)?),+], $committed:tt,
        $g:ident [$($out:ident)?] [$($rounded:ident)*] $($operand:ident: $gradient:expr),+ $(,)?
    ) => {{
        use $crate::elementwise::entry::{Backward, BackwardKernels, BackwardPass, Builder, backward_source, runtime};

        struct Pass;

        impl BackwardPass for Pass {
            fn backward() -> &'static Backward {
                &$backward
            }
        }

        const INPUTS: usize =
            [$(stringify!($input),)+ stringify!($g) $(, stringify!($out))?].len();
        const VIEWS: usize = INPUTS + [$(stringify!($operand)),+].len();

        static PROGRAM: runtime::module::Program = $crate::__elementwise_committed!(
            Backward::program_of(concat!($name, "_backward"), |_, variant| backward_source(&$backward, variant)),
            $committed
        );

        // SAFETY: the program has the source of `Pass`, whose inputs and results are counted above,
        // and whose conditions are the operands marked `bool`.
        static KERNELS: BackwardKernels<INPUTS, VIEWS> =
            $unsafe { BackwardKernels::new::<Pass>(&PROGRAM, &[$($crate::__elementwise_is_bool!($($kind)?)),+]) };

        let build: fn(&mut Builder) = |builder| {
            $(
                #[allow(unused_variables)]
                let $input = $crate::__elementwise_operand!(builder $(, $kind)?);
            )+
            #[allow(unused_variables)]
            let $g = builder.gradient();
            $(let $out = builder.result();)?
            $(builder.round($rounded);)*
            $(
                let gradient = $gradient;
                builder.set($operand, gradient);
            )+
        };
        // SAFETY: the kernels are those of `Pass`. `build` has no state, and declares operands,
        // gradient and result in this order.
        $unsafe { Backward::new($name, &PROGRAM, &KERNELS, build) }
    }};
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
        unsafe impl<C: $crate::elementwise::entry::runtime::host::Number> $crate::elementwise::entry::Function<C, { [$(stringify!($input)),+].len() }> for $f {
            type Out = $crate::__elementwise_out!($output, C);

            unsafe fn run(inputs: [*const C; [$(stringify!($input)),+].len()], out: *mut Self::Out, n: usize) {
                let f = $crate::elementwise::entry::of_elements(
                    #[inline(always)] |[$($input),+]: [C; [$(stringify!($input)),+].len()]| $body
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
        unsafe impl $crate::elementwise::entry::Function<$ty, { [$(stringify!($input)),+].len() }> for $f {
            type Out = $crate::__elementwise_out!($output, $ty);

            unsafe fn run(inputs: [*const $ty; [$(stringify!($input)),+].len()], out: *mut Self::Out, n: usize) {
                let f = $crate::elementwise::entry::of_elements(
                    #[inline(always)] |[$($input),+]: [$ty; [$(stringify!($input)),+].len()]| $body
                );
                // SAFETY: the caller of `run` passes pointers that are valid for `n` elements.
                unsafe { $crate::elementwise::entry::each(inputs, out, n, f) };
            }
        }
    };
}

/// The kernels and the functions over slices of an op. A function that is written for a compute type is
/// instantiated for every dtype that is computed in that type.
#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_hosts {
    (@ $args:tt [$($dtype:ident)*] all => $e:expr) => {
        $crate::__elementwise_hosts!(@ $args [Bool U8 I8 I16 I32 I64 F16 BF16 F32 F64])
    };
    (@ $args:tt [$($dtype:ident)*] bool => $e:expr, $($rest:tt)*) => {
        $crate::__elementwise_hosts!(@ $args [$($dtype)* Bool] $($rest)*)
    };
    (@ $args:tt [$($dtype:ident)*] int => $e:expr $(, $($rest:tt)*)?) => {
        $crate::__elementwise_hosts!(@ $args [$($dtype)* U8 I8 I16 I32 I64] $($($rest)*)?)
    };
    (@ $args:tt [$($dtype:ident)*] $float:ident $($rest:tt)*) => {
        $crate::__elementwise_hosts!(@ $args [$($dtype)* F16 BF16 F32 F64])
    };
    (@ [$unsafe:tt $cuda:literal $output:ident $inputs:tt] [$($dtype:ident)*]) => {{
        use $crate::elementwise::entry::runtime::{DType, dtype_type, iter::Kernels};

        let (mut variants, mut slices) = ([None; DType::ALL.len()], [None; DType::ALL.len()]);
        $({
            type T = dtype_type!($dtype);
            type O = $crate::__elementwise_element!($output, T);
            // SAFETY: the program is that of this entry. Its author vouches for CUDA's expression.
            let host = $unsafe { entry::host::<Function, T, O, _, _>(&PROGRAM, DTYPES, INPUTS, $cuda) };
            if let Some((variant, function)) = host {
                variants[DType::$dtype as usize] = Some(variant);
                slices[DType::$dtype as usize] = Some(function);
            }
        })*
        ($crate::__elementwise_arity!($inputs)(Kernels::new(variants)), slices)
    }};
    ($args:tt $($cpu:tt)*) => {
        $crate::__elementwise_hosts!(@ $args [] $($cpu)*)
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

/// The variant of `OpKernels` for a number of inputs.
#[doc(hidden)]
#[macro_export]
macro_rules! __elementwise_arity {
    ([$a:ident]) => {
        $crate::elementwise::entry::OpKernels::Unary
    };
    ([$a:ident, $b:ident]) => {
        $crate::elementwise::entry::OpKernels::Binary
    };
    ([$a:ident, $b:ident, $c:ident]) => {
        $crate::elementwise::entry::OpKernels::Ternary
    };
    ([$a:ident, $b:ident, $c:ident, $d:ident]) => {
        $crate::elementwise::entry::OpKernels::Quaternary
    };
}
