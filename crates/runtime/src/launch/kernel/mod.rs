//! Typed kernels: the safe way for an op to run a kernel.
//!
//! # Types
//!
//! - [`Program`] is the unit of compilation: CUDA source, its variants, and the names of the kernels in each.
//! - [`Hosts<P>`](Hosts), which [`hosts!`](crate::hosts) makes, holds for each dtype that an op supports the CPU
//!   implementation and the name of the program's variant. Each CPU implementation takes a `&P`.
//! - [`Kernel<P, N>`](Kernel) is one kernel of a program with `N` operands and the parameters `P`. A family declares
//!   each kernel as a `static` beside its program.
//! - [`Grid`] is the number of blocks and threads of a launch.
//!
//! [`iter::Kernels`](crate::iter::Kernels) is a second typed kernel, because a kernel over elements takes the layouts
//! of its views with its arguments, and a launch chooses between a flat, a strided and a converting kernel by them.
//!
//! The parameters are declared once, in Rust. [`cuda_struct!`](crate::cuda_struct) makes the `#[repr(C)]` struct and
//! the text of CUDA's struct of the same name from this declaration.
//!
//! # Invariants
//!
//! - **Names are resolved by the compiler.** [`Kernel::new`] turns the names of kernel and variants into numbers
//!   while the `static` is evaluated. A name that the program lacks does not compile. A launch reads one entry of a
//!   table and compares no strings.
//! - **The dtype of one operand selects variant and CPU implementation together**, so that they
//!   agree with each other and with the memory of this operand.
//! - **Kernel and CPU implementation take the same struct.** A CPU implementation that takes another struct does not
//!   compile. The simulator compares the size of `P` and the number of operands with the committed PTX.
//! - **The type of the parameters shows whether the kernel checks indices**: it does if and only if their first field
//!   is a [`Report`].
//!
//! [`Report`]: super::Report
//!
//! # Unsafe code
//!
//! Declaring a kernel is unsafe, launching it is safe. A family's author guarantees once, at the `static`, that all
//! launches that the visibility of the `static` permits are sound. So a `Kernel` is private to its family, and so are
//! the functions that make its parameters. These check the views and store their sizes and strides in the parameters. A
//! [`LibraryOp`] has a [`LibraryCall`] instead of a kernel; implementing that is also unsafe.
//!
//! # Calls
//!
//! A family's public function checks its views ([`check_operands`](super::check_operands)), makes the parameters, picks
//! the kernel, and calls [`Kernel::launch`].

mod grid;
mod hosts;
mod library;
mod source_check;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use bytemuck::Pod;
use warpline_cuda_sys_safe::HostKernel;

use super::{Call, Code, Target, run};
use crate::module::{CudaType, Program};
use crate::{DType, ErrorKind, Operand, Result, Site};

pub use grid::Grid;
use hosts::HostVariant;
pub use hosts::Hosts;
pub use library::{LibraryCall, LibraryOp};
pub(crate) use source_check::check_definition;

/// Number of dtypes.
const DTYPES: usize = DType::ALL.len();

/// A kernel with `N` operands and the parameters `P`, in all variants of its program.
///
/// ```
/// use warpline_runtime::host::{HostLaunch, SharedPtr};
/// use warpline_runtime::launch::{Grid, Kernel, check_operands};
/// use warpline_runtime::module::{Program, Source};
/// use warpline_runtime::{Result, Target, View, cuda_struct, hosts};
///
/// cuda_struct! {
///     /// Number of elements.
///     struct Count {
///         numel: u64,
///     }
/// }
///
/// static NEGATE: Program = Program::new("negate", &["f32", "f64"], &[""], |_, ty| {
///     Source::new().with::<Count>().push(&format!(
///         r#"extern "C" __global__ void negate_{ty}({ty}* x, const __grid_constant__ Count p) {{
///             const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
///             if (i < p.numel) x[i] = -x[i];
///         }}"#
///     ))
/// });
///
/// // SAFETY: both functions touch the first `numel` elements of their operand, each by one thread. `negate`, the
/// // only caller, launches with a contiguous view of as many elements.
/// static KERNEL: Kernel<Count, 1> =
///     unsafe { Kernel::new(&NEGATE, "", hosts!(F32 | F64, T => on_host::<T>)) };
///
/// /// # Safety
/// /// The conditions of `HostKernel`, for an operand of `T`.
/// unsafe fn on_host<T: Copy + std::ops::Neg<Output = T>>(launch: &HostLaunch<'_>, p: &Count) {
///     let x = SharedPtr::<T>::operand(launch, 0);
///     for i in 0..p.numel as isize {
///         // SAFETY: `i` is an element of the operand.
///         unsafe { x.write(i, -x.read(i)) };
///     }
/// }
///
/// /// Negates the elements of a contiguous view in place.
/// fn negate(target: Target<'_>, x: View<'_>) -> Result<()> {
///     assert!(x.layout.is_contiguous());
///     check_operands("negate", &[x.read_write()])?;
///     let params = Count { numel: x.numel() as u64 };
///     KERNEL.launch(target, "negate", &[x.read_write()], &params, Grid::cover(x.numel(), 256))
/// }
/// # use warpline_runtime::{DType, Layout, Runtime, RuntimeConfig, Storage};
/// # let reason = warpline_cuda_sys_safe::DriverError::NoDevice { reason: "an example".into() };
/// # let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
/// # let (storage, layout) = (Storage::pageable(&runtime, 8)?, Layout::contiguous(&[2])?);
/// # warpline_runtime::launch::write_bytes((&storage, 0), &[0; 8])?;
/// # negate(Target::Cpu(&runtime), View { storage: &storage, layout: &layout, dtype: DType::F32 })?;
/// # Ok::<(), warpline_runtime::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Kernel<P, const N: usize> {
    program: &'static Program,
    /// Number of the kernel in each variant.
    number: usize,
    /// Indexed by dtype.
    variants: [Option<Variant>; DTYPES],
    /// Index of the operand whose dtype selects the variant.
    selector: usize,
    params: PhantomData<fn(&P)>,
}

/// A kernel's code for one dtype.
#[derive(Clone, Copy, Debug)]
struct Variant {
    /// Number of the program's variant.
    number: usize,
    host: HostKernel,
}

impl<P: CudaType + Pod, const N: usize> Kernel<P, N> {
    /// Declares the kernel that `program` lists as `name`. The dtype of the first operand selects variant and CPU
    /// implementation.
    ///
    /// # Panics
    /// If the program has no kernel `name`, or lacks a variant that `hosts` names. In a `static` either is a
    /// compile error:
    ///
    /// ```compile_fail,E0080
    /// # use warpline_runtime::{cuda_struct, hosts, host::HostLaunch, launch::Kernel, module::{Program, Source}};
    /// # cuda_struct! { struct Rows { rows: u64 } }
    /// # unsafe fn on_host(_: &HostLaunch<'_>, _: &Rows) {}
    /// static SUM: Program = Program::new("sum", &[""], &["rows"], |_, _| Source::new().with::<Rows>());
    /// static COLUMNS: Kernel<Rows, 1> = unsafe { Kernel::new(&SUM, "columns", hosts!(any on_host)) };
    /// ```
    ///
    /// # Safety
    /// [`Kernel::launch`] is safe, so the caller makes these promises for every launch by code that
    /// can name the `static`: keep it private to code that the caller has read. The type guarantees
    /// that the CPU implementation takes a `P`, that the variant is the one that `hosts` names for
    /// the dtype of the selecting operand, and that the launch expects reports if and only if `P`
    /// begins with a [`Report`](super::Report). The launch ensures the order of work, the lifetimes
    /// of memory, and the addresses passed to the code. The caller guarantees the remainder:
    ///
    /// - **The operands lie in their storages**: [`View::check_inside`](crate::View::check_inside)
    ///   succeeds for each. [`check_operands`](super::check_operands) checks all.
    /// - **The code accesses only its operands.** The kernel and the CPU implementation both read only elements of
    ///   operands that are declared as read, and write only elements of operands that are declared as written. The
    ///   elements of an operand are those that the view's layout reaches from the operand's pointer, which points to
    ///   the element at index zero; strides may be negative. Of an operand declared as
    ///   [`View::write`](crate::View::write), every element is written and none is read before it is written. Memory
    ///   that the code accesses in other ways, such as through an address in the parameters, must also consist of these
    ///   elements. Therefore make the parameters of a launch from the same views that are its operands.
    /// - **Indices are checked before use.** Indices come from memory and may have any value. For
    ///   an index out of range, the code accesses nothing but the report
    ///   ([`Report::check_index`](super::Report::check_index), `check_index` in CUDA), continues as
    ///   if the index were not there, and still writes all its results.
    /// - **The parameters match the kernel.** The kernel takes `N` pointers, in the order of the
    ///   operands, and then one `P` by value, whose CUDA definition is generated from `P`
    ///   ([`cuda_struct!`](crate::cuda_struct)).
    /// - **The element types match.** Kernel and CPU implementation treat the operands' elements as
    ///   values of the views' dtypes, and accept any bytes in them, such as a bool other than 0 and
    ///   1.
    /// - **Threads do not race.** If a thread of the launch writes an element, no other thread accesses it, except with
    ///   atomics or with a barrier of the block between. Therefore, unless the code is made for such operands, a view
    ///   that is written has no two indices at one address, and no operand shares memory with an operand that is
    ///   written; [`check_operands`](super::check_operands) rejects such operands.
    /// - **The kernel runs with the launch's grid**, and terminates. If the kernel is compiled for
    ///   fewer threads, the driver returns an error.
    /// - **The CPU implementation is self-contained.** It runs while locks of its operands are
    ///   held, possibly on a thread of the simulator: it launches nothing and uses no tensors. All
    ///   its threads have finished when it returns.
    #[must_use]
    pub const unsafe fn new(program: &'static Program, name: &str, hosts: Hosts<P>) -> Self {
        const { assert!(N > 0, "the dtype of an operand selects the variant") };
        let Some(number) = program.kernel_number(name) else {
            panic!("the program has no kernel of this name")
        };
        let mut variants = [None; DTYPES];
        let mut dtype = 0;
        while dtype < DTYPES {
            if let Some(HostVariant { variant, host }) = hosts.by_dtype[dtype] {
                let Some(number) = program.variant_number(variant) else {
                    panic!("the program lacks a variant that the host functions name")
                };
                variants[dtype] = Some(Variant { number, host });
            }
            dtype += 1;
        }
        Self { program, number, variants, selector: 0, params: PhantomData }
    }

    /// Declares several kernels with the same operands, parameters and CPU implementations.
    ///
    /// # Panics
    /// The same as [`Kernel::new`].
    ///
    /// # Safety
    /// The conditions of [`Kernel::new`], for each of the kernels.
    #[must_use]
    pub const unsafe fn array<const M: usize>(
        program: &'static Program,
        names: [&str; M],
        hosts: Hosts<P>,
    ) -> [Self; M] {
        // SAFETY: the caller guarantees that every launch of this kernel is sound.
        let mut all = [unsafe { Self::new(program, names[0], hosts) }; M];
        let mut at = 1;
        while at < M {
            // SAFETY: the caller guarantees that every launch of this kernel is sound.
            all[at] = unsafe { Self::new(program, names[at], hosts) };
            at += 1;
        }
        all
    }

    /// Lets the dtype of operand `index` select variant and CPU implementation. Default: 0.
    ///
    /// # Panics
    /// If there is no such operand. In a `static` this is a compile error.
    #[must_use]
    pub const fn selected_by(self, index: usize) -> Self {
        assert!(index < N, "there is no such operand");
        Self { selector: index, ..self }
    }

    /// Returns an error for a dtype that the kernel does not support. [`Kernel::launch`] returns the same error; call
    /// this method to fail before other checks.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDType`] if the kernel has no variant for `dtype`.
    #[inline]
    #[track_caller]
    pub fn check_dtype(&self, op: &'static str, dtype: DType) -> Result<()> {
        self.variant(op, dtype).map(drop)
    }

    #[inline]
    #[track_caller]
    fn variant(&self, op: &'static str, dtype: DType) -> Result<Variant> {
        let Some(variant) = self.variants[dtype as usize] else {
            return Err(ErrorKind::UnsupportedDType { dtype }.of(op));
        };
        Ok(variant)
    }

    /// Runs the kernel. `op` is the name of the op for its users. Errors and race reports name the
    /// location of the call of this function.
    ///
    /// If no operand has elements, does nothing. On the CPU, waits for device work that the
    /// operands conflict with and runs the CPU implementation. On a device, enqueues the launch, in
    /// order with the operands' uses on other streams.
    ///
    /// If the kernel checks indices, a failed check is an error of this call on the CPU. On a device a failed check
    /// cannot stop the stream, so later work runs. The results are marked: each host read of them returns the error. If
    /// the thread that made the call has not received the error in this way, its next `synchronize` returns the error.
    ///
    /// # Errors
    /// - [`ErrorKind::UnsupportedDType`] if the kernel has no variant for the dtype of the
    ///   selecting operand.
    /// - [`ErrorKind::InvalidArgument`] on a GPU if the grid has 2³¹ blocks or more in x or the
    ///   stream is a twin, and on the CPU inside a closure that holds locks of host memory.
    /// - [`ErrorKind::RuntimeMismatch`] if operands, device or stream belong to different runtimes.
    /// - [`ErrorKind::DeviceMismatch`] if an operand is in memory that the device cannot access, or if
    ///   the target's stream is on another device.
    /// - [`ErrorKind::SharedHostMemory`] on the CPU if other processes may write to an operand.
    /// - [`ErrorKind::NotReplayed`] if an operand was made in a capture whose graph was not
    ///   replayed yet.
    /// - [`ErrorKind::NoGpuCode`] if a real device has no code for the op.
    /// - [`ErrorKind::Driver`] or [`ErrorKind::NotStarted`] if the driver refuses the launch, also
    ///   because of earlier work.
    /// - [`ErrorKind::Driver`] on the CPU if an operand is in device memory.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] on the CPU if device work that it waits for
    ///   has failed.
    /// - [`ErrorKind::TimedOut`] on the CPU if an operand depends on work of another process that is not
    ///   complete within the limit set on receipt.
    /// - [`ErrorKind::IndexCheck`], [`ErrorKind::Collective`] or [`ErrorKind::PeerGone`] if an
    ///   operand depends on work that is known to have failed.
    /// - [`ErrorKind::IndexCheck`] on the CPU if the op's own check fails.
    /// - [`ErrorKind::Race`] under [`SyncPolicy::Manual`](crate::SyncPolicy) with
    ///   [`RaceReport::Error`](crate::RaceReport::Error).
    #[inline]
    #[track_caller]
    pub fn launch(
        &self,
        target: Target<'_>,
        op: &'static str,
        operands: &[Operand<'_>; N],
        params: &P,
        grid: Grid,
    ) -> Result<()> {
        self.launch_at(target, Site::here(op), operands, params, grid)
    }

    /// Launches as [`Kernel::launch`] does, with the location of the op's call, for callers that
    /// are not `#[track_caller]`.
    ///
    /// # Errors
    /// The same as [`Kernel::launch`].
    #[inline]
    #[track_caller]
    pub fn launch_at(
        &self,
        target: Target<'_>,
        site: Site,
        operands: &[Operand<'_>; N],
        params: &P,
        grid: Grid,
    ) -> Result<()> {
        let variant = self.variant(site.op, operands[self.selector].view.dtype)?;
        let kernel = (self.program, variant.number, self.number);
        let code = Code::Kernel { kernel, grid: grid.blocks, threads: grid.threads };
        // SAFETY: the caller of `new` guarantees that kernel and CPU implementation access only
        // their operands, as declared, and match the parameters. `new` took both from one entry for
        // this dtype.
        unsafe { Self::run(target, site, operands, params, variant.host, code) }
    }

    /// # Safety
    /// `host`, which takes a `P`, and `code` fulfil the contract of [`run`] for these operands and parameters.
    #[inline]
    #[track_caller]
    unsafe fn run(
        target: Target<'_>,
        Site { op, location }: Site,
        operands: &[Operand<'_>; N],
        params: &P,
        host: HostKernel,
        code: Code<'_>,
    ) -> Result<()> {
        let params = bytemuck::bytes_of(params);
        let checks_indices = P::BEGINS_WITH_REPORT;
        // SAFETY: the caller guarantees that `host` and `code` access only the operands, as
        // declared, and match `params`. `P` begins with a `Report` if and only if
        // `BEGINS_WITH_REPORT` is true.
        unsafe { run(target, &Call { op, operands, params, checks_indices, host, code, location }) }
    }
}
