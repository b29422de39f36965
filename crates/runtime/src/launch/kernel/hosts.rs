//! CPU implementations of typed kernels.

use std::marker::PhantomData;

use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

use super::DTYPES;
use crate::DType;

/// The CPU implementations of a kernel with the parameters `P`, by dtype. For each dtype, also names the program's
/// variant that a GPU runs. Made by [`hosts!`](crate::hosts).
#[derive(Clone, Copy, Debug)]
pub struct Hosts<P> {
    pub(super) by_dtype: [Option<HostVariant>; DTYPES],
    params: PhantomData<fn(&P)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HostVariant {
    pub(super) variant: &'static str,
    pub(super) host: HostKernel,
}

impl<P> Hosts<P> {
    #[doc(hidden)]
    #[must_use]
    pub const fn none() -> Self {
        Self { by_dtype: [None; DTYPES], params: PhantomData }
    }

    /// Adds a CPU implementation. `host` is the function that is called. `_typed` is the same function with typed
    /// parameters. It is never called, and only lets the compiler check that its parameters are a `P`.
    ///
    /// # Safety
    /// `host` does nothing but call `_typed` with its own argument and the [`params`](crate::host::params) of that
    /// argument.
    #[doc(hidden)]
    #[must_use]
    pub const unsafe fn with(
        mut self,
        dtype: DType,
        variant: &'static str,
        _typed: unsafe fn(&HostLaunch<'_>, &P),
        host: HostKernel,
    ) -> Self {
        self.by_dtype[dtype as usize] = Some(HostVariant { variant, host });
        self
    }

    /// Adds the CPU implementations of `other` for the dtypes that `self` lacks.
    #[must_use]
    pub const fn or(mut self, other: Self) -> Self {
        let mut dtype = 0;
        while dtype < DTYPES {
            if self.by_dtype[dtype].is_none() {
                self.by_dtype[dtype] = other.by_dtype[dtype];
            }
            dtype += 1;
        }
        self
    }

    /// Sets the program's variant for all dtypes. The CPU implementations stay as they are.
    /// Default: the variants that [`hosts!`](crate::hosts) lists.
    #[must_use]
    pub const fn in_variant(mut self, variant: &'static str) -> Self {
        let mut dtype = 0;
        while dtype < DTYPES {
            if let Some(HostVariant { host, .. }) = self.by_dtype[dtype] {
                self.by_dtype[dtype] = Some(HostVariant { variant, host });
            }
            dtype += 1;
        }
        self
    }

    /// Sets the program's variants by the dtypes' sizes: `u8`, `u16`, `u32` and `u64`.
    #[doc(hidden)]
    #[must_use]
    pub const fn by_size(mut self) -> Self {
        let mut dtype = 0;
        while dtype < DTYPES {
            let variant = ["u8", "u16", "u32", "u64"][DType::ALL[dtype].size().ilog2() as usize];
            self = self.with_variant(DType::ALL[dtype], variant);
            dtype += 1;
        }
        self
    }

    /// Sets the program's variant for one dtype.
    ///
    /// # Panics
    /// If there is no CPU implementation for `dtype`. In a `static` this is a compile error.
    #[must_use]
    pub const fn with_variant(mut self, dtype: DType, variant: &'static str) -> Self {
        let Some(HostVariant { host, .. }) = self.by_dtype[dtype as usize] else {
            panic!("there is no host function for this dtype")
        };
        self.by_dtype[dtype as usize] = Some(HostVariant { variant, host });
        self
    }
}

/// Makes the [`Hosts`](crate::launch::Hosts) of a kernel from a function that is generic over the element type:
/// `hosts!(float T => cpu::rows::<T>)`.
///
/// | form | dtypes | variants |
/// |---|---|---|
/// | `all T => f::<T>` | all; bool is [`Truth`](crate::host::Truth) | the suffixes of the dtypes |
/// | `number T => f::<T>` | all but bool | the same |
/// | `float T => f::<T>` | floats | the same |
/// | `F32 \| F64, T => f::<T>` | the listed ones | the same |
/// | `bits T => f::<T>` | all; `T` is an integer of the dtype's size | `u8`, `u16`, `u32` or `u64`, by size |
/// | `any f` | all | the one variant, which has no name |
///
/// The functions are `unsafe fn(&HostLaunch<'_>, &P)`, with the kernel's parameters. A function
/// with different parameters than the [`Kernel`](crate::launch::Kernel) does not compile:
///
/// ```compile_fail,E0308
/// # use warpline_runtime::{cuda_struct, hosts, host::HostLaunch, launch::Kernel, module::{Program, Source}};
/// cuda_struct! { struct Rows { rows: u64 } }
/// cuda_struct! { struct Count { count: u64 } }
/// static PROGRAM: Program = Program::new("op", &[""], &[""], |_, _| Source::new().with::<Rows>());
/// unsafe fn on_host(_: &HostLaunch<'_>, _: &Count) {}
/// static KERNEL: Kernel<Rows, 1> = unsafe { Kernel::new(&PROGRAM, "", hosts!(any on_host)) };
/// ```
#[macro_export]
macro_rules! hosts {
    (all $t:ident => $f:expr) => {
        $crate::hosts!(Bool | U8 | I8 | I16 | I32 | I64 | F16 | BF16 | F32 | F64, $t => $f)
    };
    (number $t:ident => $f:expr) => {
        $crate::hosts!(U8 | I8 | I16 | I32 | I64 | F16 | BF16 | F32 | F64, $t => $f)
    };
    (float $t:ident => $f:expr) => { $crate::hosts!(F16 | BF16 | F32 | F64, $t => $f) };
    (bits $t:ident => $f:expr) => {{
        let hosts = $crate::launch::Hosts::none();
        let hosts = $crate::hosts!(@add hosts, $t => $f, Bool = u8, U8 = u8, I8 = u8);
        let hosts = $crate::hosts!(@add hosts, $t => $f, I16 = i16, F16 = i16, BF16 = i16);
        let hosts = $crate::hosts!(@add hosts, $t => $f, I32 = i32, F32 = i32, I64 = i64, F64 = i64);
        hosts.by_size()
    }};
    (any $f:expr) => {
        $crate::hosts!(bits T => $f).in_variant("")
    };
    ($($dtype:ident)|+, $t:ident => $f:expr) => {{
        let hosts = $crate::launch::Hosts::none();
        $(let hosts = $crate::hosts!(
            @add hosts, $t => $f, $dtype = $crate::dtype_type!($dtype)
        );)+
        hosts
    }};
    (@add $hosts:expr, $t:ident => $f:expr, $($dtype:ident = $ty:ty),+) => {{
        let hosts = $hosts;
        $(
            #[allow(unused_unsafe)] // the macro may be called in an unsafe block
            let hosts = {
                #[allow(dead_code)] // a function may be the same for all types
                type $t = $ty;
                unsafe fn host(launch: &$crate::host::HostLaunch<'_>) {
                    let function = $f;
                    // SAFETY: a launch passes the parameters of its kernel, whose type `with` compares,
                    // and pointers that are valid for the declared elements of the operands.
                    unsafe { function(launch, &$crate::host::params(launch)) }
                }
                let (dtype, typed) = ($crate::DType::$dtype, $f);
                // SAFETY: `host` only calls the same function, with its own argument and its parameters.
                unsafe { hosts.with(dtype, dtype.suffix(), typed, host) }
            };
        )+
        hosts
    }};
}
