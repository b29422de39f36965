//! The kernels of an op over elements, and their launch.

use std::marker::PhantomData;

use bytemuck::Pod;
use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

use super::{BLOCK, Flat, Index, IterPlan, Params, Space, halves};
#[cfg(doc)]
use crate::ErrorKind;
use crate::host::params;
use crate::launch::{self, Call, Code};
use crate::module::Program;
use crate::{Error, Operand, Result, Site, Target, View};

/// Numbers of the kernels in their programs.
const FLAT: usize = 0;
const STRIDED: usize = 1;
const CONVERTING: usize = 2;

/// A CPU implementation for `N` operands of common sizes, with the arguments `A`.
///
/// # Safety
/// Both functions access memory only to read elements of the operands and to write elements of the
/// results, in the elements' own types, at the positions that they receive. They write every
/// element of the results.
pub unsafe trait HostLoop<A, const N: usize> {
    /// Name of the program's variant for the same types of elements.
    const VARIANT: &'static str;

    /// Runs over operands that are contiguous.
    ///
    /// # Safety
    /// The operands of `launch` have the loop's element types and the elements of `space`. No other
    /// code writes to these elements during the call.
    unsafe fn flat(launch: &HostLaunch<'_>, space: &Flat, args: &A) {
        // SAFETY: the index has the elements of `space`, which the caller guarantees to be the operands'.
        unsafe { Self::strided(launch, &space.index(), args) }
    }

    /// Runs over operands with any strides.
    ///
    /// # Safety
    /// The conditions of [`HostLoop::flat`], for the elements of `index`.
    unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<N>, args: &A);
}

unsafe fn flat<L: HostLoop<A, N>, A: Pod, const N: usize>(launch: &HostLaunch<'_>) {
    let Params { space, args }: Params<Flat, A> = params(launch);
    // SAFETY: `Kernels::enqueue` passes these parameters to this function. The caller of
    // `Kernels::new` guarantees that the operands have the loop's types.
    unsafe { L::flat(launch, &space, &args) }
}

unsafe fn strided<L: HostLoop<A, N>, A: Pod, const N: usize>(launch: &HostLaunch<'_>) {
    let Params { space, args }: Params<Index<N>, A> = params(launch);
    // SAFETY: `Kernels::enqueue` passes these parameters to this function. The caller of
    // `Kernels::new` guarantees that the operands have the loop's types.
    unsafe { L::strided(launch, &space, &args) }
}

/// The kernels of an op on `N` views, in one variant of a program. The kernels take [`Params`] of
/// the arguments `A`, with [`Flat`] or an [`Index`]. The views are the operands, which are read, and
/// after them the [results](Kernels::with_results).
///
/// Creating a `Kernels` is unsafe and launching it is safe, as for [`Kernel`](launch::Kernel). Keep
/// it private to the family.
#[derive(Clone, Copy, Debug)]
pub struct Kernels<A, const N: usize> {
    program: &'static Program,
    variant: usize,
    /// The CPU implementations of the flat kernel, and of the strided and the converting kernel.
    hosts: [HostKernel; 2],
    vector: usize,
    run: usize,
    results: usize,
    converts: bool,
    args: PhantomData<fn(&A)>,
}

impl<A: Pod, const N: usize> Kernels<A, N> {
    /// Describes the kernels of the variant that the loop `L` names: [`KERNELS`](super::KERNELS) or
    /// [`CONVERTING_KERNELS`](super::CONVERTING_KERNELS).
    ///
    /// # Panics
    /// If the program lacks the variant. In a `static` this is a compile error:
    ///
    /// ```compile_fail,E0080
    /// # use warpline_runtime::host::HostLaunch;
    /// # use warpline_runtime::iter::{self, HostLoop, Index, Kernels};
    /// # use warpline_runtime::module::{Program, Source};
    /// struct Singles;
    /// unsafe impl HostLoop<u32, 1> for Singles {
    ///     const VARIANT: &'static str = "f32";
    ///     unsafe fn strided(_: &HostLaunch<'_>, _: &Index<1>, _: &u32) {}
    /// }
    /// static DOUBLES: Program = Program::new("op", &["f64"], iter::KERNELS, |_, _| Source::new());
    /// static KERNELS: Kernels<u32, 1> = unsafe { Kernels::new::<Singles>(&DOUBLES) };
    /// ```
    ///
    /// # Safety
    /// - The variant's kernels take `N` pointers and then [`Params`] of `A`, with the CUDA
    ///   definition that is generated from them.
    /// - Kernels and loop access memory only to read elements of the operands and to write
    ///   elements of the results, at the same index. They write every element of the results.
    /// - The numbers that are set afterwards ([`with_vector`](Self::with_vector) and others) match
    ///   the kernels.
    /// - Every launch has views with the dtypes of kernels and loop. If a launch declares views as
    ///   untouched, kernels and loop do not access these views when they receive its arguments.
    #[must_use]
    pub const unsafe fn new<L: HostLoop<A, N>>(program: &'static Program) -> Self {
        let Some(variant) = program.variant_number(L::VARIANT) else {
            panic!("the program lacks the variant that the loop names")
        };
        let (hosts, args) = ([flat::<L, A, N>, strided::<L, A, N>], PhantomData);
        Self { program, variant, hosts, vector: 1, run: 1, results: 1, converts: false, args }
    }

    /// Sets the number of elements that a thread of the flat kernel processes. The flat kernel is used only if operands
    /// are aligned to this number of elements. Default: 1.
    #[must_use]
    pub const fn with_vector(self, vector: usize) -> Self {
        Self { vector, ..self }
    }

    /// Sets the number of elements that a thread of the strided kernel processes. Default: 1.
    #[must_use]
    pub const fn with_run(self, run: usize) -> Self {
        Self { run, ..self }
    }

    /// Sets the number of results. Default: 1.
    #[must_use]
    pub const fn with_results(self, results: usize) -> Self {
        Self { results, ..self }
    }

    /// Sets whether views have different dtypes than the kernels. The converting kernel then runs,
    /// with one element per thread, and with the parameters and the loop of the strided kernel.
    /// Default: false.
    #[must_use]
    pub const fn converting(self, converts: bool) -> Self {
        Self { converts, ..self }
    }

    /// Runs the op on views of the same sizes.
    ///
    /// # Errors
    /// - [`ErrorKind::ShapeMismatch`] if the views have different sizes.
    /// - [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`] or
    ///   [`ErrorKind::OutOfStorage`] by the rules of [`launch::check_in_place`].
    /// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
    /// - The errors of [`Kernel::launch`](launch::Kernel::launch).
    #[track_caller]
    pub fn launch(
        &self,
        target: Target<'_>,
        site: Site,
        views: [View<'_>; N],
        args: A,
    ) -> Result<()> {
        self.launch_some(target, site, views, 0, args)
    }

    /// Runs the op as [`Kernels::launch`] does, but accesses no view whose bit in `untouched` is set. Such views are
    /// operands that the arguments replace by numbers, and results that are not needed. In `views`, pass a result that
    /// is needed in place of each such view.
    ///
    /// # Errors
    /// The same as [`Kernels::launch`].
    #[track_caller]
    pub fn launch_some(
        &self,
        target: Target<'_>,
        site: Site,
        views: [View<'_>; N],
        untouched: u64,
        args: A,
    ) -> Result<()> {
        let out = views[N - 1];
        for view in &views[..N - 1] {
            if view.sizes() != out.sizes() {
                let reason = format!(
                    "the operands have different sizes, {:?} and {:?}",
                    view.sizes(),
                    out.sizes()
                );
                return Err(Error::shape(site.op, reason));
            }
        }
        let declared = self.operands(views, untouched);
        launch::check_in_place(site.op, &declared)?;
        self.launch_part(target, site, views, &declared, untouched, args)
    }

    /// Returns the kernels' access to each view.
    fn operands<'a>(&self, views: [View<'a>; N], untouched: u64) -> [Operand<'a>; N] {
        std::array::from_fn(|k| match views[k] {
            view if untouched >> k & 1 == 1 => view.untouched(),
            view if k + self.results >= N => view.write(),
            view => view.read(),
        })
    }

    #[track_caller]
    fn launch_part(
        &self,
        target: Target<'_>,
        site: Site,
        views: [View<'_>; N],
        declared: &[Operand<'_>; N],
        untouched: u64,
        args: A,
    ) -> Result<()> {
        let sizes = views[N - 1].sizes();
        let numel = views[N - 1].numel();
        if numel == 0 {
            return Ok(());
        }
        let plan = IterPlan::new(sizes, views.map(|v| v.strides()));
        if !plan.fits() {
            return halves(&views, |part| {
                let declared = self.operands(part, untouched);
                self.launch_part(target, site, part, &declared, untouched, args)
            });
        }
        let aligned = |v: &View<'_>| v.layout.offset().is_multiple_of(self.vector);
        if !self.converts && plan.is_contiguous() && views.iter().all(aligned) {
            // The number of elements is below 2³¹, because the plan fits.
            let space = Flat { numel: numel as u32 };
            let threads = numel.div_ceil(self.vector);
            // SAFETY: `space` has the elements of the views, which `launch_some` has checked.
            return unsafe { self.enqueue(target, site, FLAT, declared, space, args, threads) };
        }
        let (kernel, index, threads) = if self.converts {
            (CONVERTING, plan.index(site.op)?, numel)
        } else {
            let index = plan.in_runs(site.op, self.run, views[N - 1].layout.offset())?;
            (STRIDED, index, index.runs().threads())
        };
        // SAFETY: `index` has the elements of the views, which `launch_some` has checked.
        unsafe { self.enqueue(target, site, kernel, declared, index, args, threads) }
    }

    /// Launches a kernel with one thread per element or run, because many short blocks keep a device busier than fewer
    /// blocks that loop.
    ///
    /// # Safety
    /// `kernel` and its loop take a `space` of this type, which has the elements of the operands.
    /// The operands lie in their storages and overlap only as the kernels allow.
    #[track_caller]
    #[allow(clippy::too_many_arguments)]
    unsafe fn enqueue<S: Pod>(
        &self,
        target: Target<'_>,
        Site { op, location }: Site,
        kernel: usize,
        operands: &[Operand<'_>; N],
        space: S,
        args: A,
        threads: usize,
    ) -> Result<()> {
        let host = self.hosts[kernel.min(STRIDED)];
        let blocks = launch::blocks(threads.div_ceil(BLOCK as usize));
        let kernel = (self.program, self.variant, kernel);
        let code = Code::Kernel { kernel, grid: [blocks, 1, 1], threads: BLOCK };
        let (params, checks_indices) = (Params { space, args }, false);
        let params = bytemuck::bytes_of(&params);
        let call = Call { op, operands, params, checks_indices, host, code, location };
        // SAFETY: the caller of `new` guarantees that kernel and loop take these parameters and access only the
        // operands. The caller of this function guarantees that `space` has the operands' elements.
        unsafe { launch::run(target, &call) }
    }
}
