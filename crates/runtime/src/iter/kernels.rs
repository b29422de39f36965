//! The kernels of an op over elements, and their launch.

use std::marker::PhantomData;

use bytemuck::Pod;
use warpline_cuda_sys_safe::{HostKernel, HostLaunch};

use super::{BLOCK, Flat, Index, IterPlan, Params, Space, halves};
use crate::host::params;
use crate::launch::{self, Call, check_definition};
use crate::layout::is_same;
use crate::module::{CudaType, Program};
use crate::{DType, Error, ErrorKind, Operand, Result, Site, Target, View};

/// A CPU implementation for `N` operands of common sizes, with the arguments `A`.
///
/// # Safety
/// Both functions access memory only to read elements of the operands and to write elements of the
/// results, in the elements' own types, at the positions that they receive. They write every
/// element of the results. The results are the last [`RESULTS`](Self::RESULTS) views.
pub unsafe trait HostLoop<A, const N: usize> {
    /// Name of the program's variant that has this loop's element types.
    const VARIANT: &'static str;
    /// Number of results. Default: 1.
    const RESULTS: usize = 1;

    /// Runs over operands that are contiguous.
    ///
    /// # Safety
    /// The operands of `launch` have the loop's element types, and `space` covers their elements. No other
    /// code writes to these elements during the call.
    unsafe fn flat(launch: &HostLaunch<'_>, space: &Flat, args: &A) {
        // SAFETY: the index covers the elements of `space`, which the caller guarantees to be the operands'.
        unsafe { Self::strided(launch, &space.index(), args) }
    }

    /// Runs over operands with any strides.
    ///
    /// # Safety
    /// The conditions of [`HostLoop::flat`], for the elements of `index`.
    unsafe fn strided(launch: &HostLaunch<'_>, index: &Index<N>, args: &A);
}

unsafe fn flat<L: HostLoop<A, N>, A: CudaType + Pod, const N: usize>(launch: &HostLaunch<'_>) {
    let Params { space, args }: Params<Flat, A> = params(launch);
    // SAFETY: `Variant::enqueue` passes these parameters to this function. Its caller guarantees that
    // `space` covers the operands' elements and that the operands have the dtypes that the loop accesses.
    // `launch::run` keeps other code from writing to them.
    unsafe { L::flat(launch, &space, &args) }
}

unsafe fn strided<L: HostLoop<A, N>, A: CudaType + Pod, const N: usize>(launch: &HostLaunch<'_>) {
    let Params { space, args }: Params<Index<N>, A> = params(launch);
    // SAFETY: `Variant::enqueue` passes these parameters to this function. Its caller guarantees that
    // `space` covers the operands' elements and that the operands have the dtypes that the loop accesses.
    // `launch::run` keeps other code from writing to them.
    unsafe { L::strided(launch, &space, &args) }
}

/// Numbers of elements that a thread of an op's kernels processes.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    /// Elements per thread of the flat kernel, which is used only if operands are aligned to this
    /// number of elements.
    pub vector: usize,
    /// Elements per thread of the strided kernel.
    pub run: usize,
}

/// The kernels of one variant of a program, with their CPU implementations. They take [`Params`] of
/// the arguments `A`, with [`Flat`] or an [`Index`].
#[derive(Clone, Copy, Debug)]
pub struct Variant<A, const N: usize> {
    program: &'static Program,
    number: usize,
    flat: Code<Flat>,
    strided: Code<Index<N>>,
    /// The kernel for views of other dtypes. It has one element per thread.
    converting: Option<Code<Index<N>>>,
    dtypes: [DType; N],
    widths: Widths,
    results: usize,
    args: PhantomData<fn(&A)>,
}

/// A kernel over the elements of an `S`, and its CPU implementation.
#[derive(Clone, Copy, Debug)]
struct Code<S> {
    /// Number of the kernel in its program.
    number: usize,
    host: HostKernel,
    space: PhantomData<fn(&S)>,
}

impl<S> Code<S> {
    /// Finds the kernel in its program.
    const fn find(program: &Program, name: &str, host: HostKernel) -> Option<Self> {
        match program.kernel_number(name) {
            Some(number) => Some(Self { number, host, space: PhantomData }),
            None => None,
        }
    }
}

impl<A: CudaType + Pod, const N: usize> Variant<A, N> {
    /// Describes the kernels `flat`, `strided` and, if the program has it, `converting`
    /// ([`KERNELS`](super::KERNELS), [`CONVERTING_KERNELS`](super::CONVERTING_KERNELS)) of the
    /// variant that the loop `L` names. `dtypes` are those of the views.
    ///
    /// # Panics
    /// If the program lacks the variant or a kernel. In a `static` this is a compile error:
    ///
    /// ```compile_fail,E0080
    /// # use warpline_runtime::{DType, host::HostLaunch};
    /// # use warpline_runtime::iter::{self, HostLoop, Index, Variant, Widths};
    /// # use warpline_runtime::module::{Program, Source};
    /// struct Singles;
    /// unsafe impl HostLoop<u32, 1> for Singles {
    ///     const VARIANT: &'static str = "f32";
    ///     unsafe fn strided(_: &HostLaunch<'_>, _: &Index<1>, _: &u32) {}
    /// }
    /// static DOUBLES: Program = Program::new("op", &["f64"], iter::KERNELS, |_, _| Source::new());
    /// const WIDTHS: Widths = Widths { vector: 1, run: 1 };
    /// static VARIANT: Variant<u32, 1> =
    ///     unsafe { Variant::new::<Singles>(&DOUBLES, [DType::F32], WIDTHS) };
    /// ```
    ///
    /// # Safety
    /// - The variant's kernels take `N` pointers and then [`Params`] of `A`, with the CUDA
    ///   definition that is generated from them.
    /// - Kernels and loop access memory only to read elements of the operands and to write
    ///   elements of the results, at the same index. They write every element of the results.
    /// - They access the views as elements of `dtypes`. The converting kernel and its loop access
    ///   them as elements of the dtypes in the arguments, with which every launch is made.
    /// - `widths` are those of the kernels.
    /// - If a launch declares views as untouched, kernels and loop do not access these views when
    ///   they receive its arguments.
    #[must_use]
    pub const unsafe fn new<L: HostLoop<A, N>>(
        program: &'static Program,
        dtypes: [DType; N],
        widths: Widths,
    ) -> Self {
        let Some(number) = program.variant_number(L::VARIANT) else {
            panic!("the program lacks the variant that the loop names")
        };
        let converting = Code::find(program, "converting", strided::<L, A, N>);
        let (Some(flat), Some(strided)) = (
            Code::find(program, "flat", flat::<L, A, N>),
            Code::find(program, "strided", strided::<L, A, N>),
        ) else {
            panic!("the program lacks the kernels `flat` and `strided`")
        };
        let (results, args) = (L::RESULTS, PhantomData);
        Self { program, number, flat, strided, converting, dtypes, widths, results, args }
    }
}

/// The kernels of an op on `N` views, by dtype. The views are first the operands, which are read,
/// then the [results](HostLoop::RESULTS).
///
/// Creating a [`Variant`] is unsafe and launching is safe, as for [`Kernel`](launch::Kernel). A
/// launch checks the views' dtypes. Keep a `Kernels` private to the family.
#[derive(Clone, Copy, Debug)]
pub struct Kernels<A, const N: usize> {
    by_dtype: [Option<Variant<A, N>>; DType::ALL.len()],
}

impl<A: CudaType + Pod, const N: usize> Kernels<A, N> {
    /// Creates a table of variants, in the order of [`DType::ALL`]: [`by_dtype!`](crate::by_dtype)
    /// makes it.
    #[must_use]
    pub const fn new(by_dtype: [Option<Variant<A, N>>; DType::ALL.len()]) -> Self {
        Self { by_dtype }
    }

    /// Checks, for tests, that the source of each variant defines the parameters of its kernels.
    ///
    /// # Errors
    /// A message that names the kernel and the struct, if the source lacks it.
    #[doc(hidden)]
    pub fn check_sources(&self) -> std::result::Result<(), String> {
        for variant in self.by_dtype.iter().flatten() {
            let text = variant.program.source(variant.number).text();
            let name = variant.program.name();
            check_definition::<Params<Flat, A>>(name, &text)?;
            check_definition::<Params<Index<N>, A>>(name, &text)?;
        }
        Ok(())
    }

    /// Runs the variant for `dtype` on views of the same sizes.
    ///
    /// # Errors
    /// - [`ErrorKind::UnsupportedDType`] if there is no variant for `dtype`.
    /// - [`ErrorKind::DTypeMismatch`] if a view has another dtype than the variant, unless the
    ///   program has a kernel that converts elements.
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
        dtype: DType,
        views: [View<'_>; N],
        args: A,
    ) -> Result<()> {
        self.launch_some(target, site, dtype, views, 0, args)
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
        dtype: DType,
        views: [View<'_>; N],
        untouched: u64,
        args: A,
    ) -> Result<()> {
        let Some(variant) = &self.by_dtype[dtype as usize] else {
            return Err(ErrorKind::UnsupportedDType { dtype }.of(site.op));
        };
        let out = views[N - 1];
        for view in &views[..N - 1] {
            if !is_same(view.sizes(), out.sizes()) {
                let reason = format!(
                    "the operands have different sizes, {:?} and {:?}",
                    view.sizes(),
                    out.sizes()
                );
                return Err(Error::shape(site.op, reason));
            }
        }
        let mut converting = None;
        for (k, (view, expected)) in views.iter().zip(variant.dtypes).enumerate() {
            if untouched >> k & 1 == 0 && view.dtype != expected {
                converting = variant.converting;
                if converting.is_none() {
                    view.check_dtype(site.op, expected)?;
                }
            }
        }
        let operands = variant.operands(views, untouched);
        if converting.is_none()
            && variant.results == 1
            && let Some(numel) = alike_elements(&views)
            && variant.is_aligned(&views)
        {
            // SAFETY: the views have `numel` elements of the variant's dtypes. `alike_elements` makes the checks below.
            return unsafe { variant.launch_flat(target, site, &operands, numel, args) };
        }
        launch::check_in_place(site.op, &operands)?;
        variant.launch(target, site, views, untouched, converting, args)
    }
}

/// Returns the number of elements of views with the same sizes if it is from 1 to 2³¹ - 1, all views are row-major and
/// lie in their storages, and each view either is the last one or lies in another storage. Most launches have such
/// views, which need neither [`launch::check_in_place`] nor an [`IterPlan`].
fn alike_elements<const N: usize>(views: &[View<'_>; N]) -> Option<usize> {
    let result = views[N - 1];
    let numel = result.numel();
    let is_alike = |view: &View<'_>| {
        let (offset, item) = (view.layout.offset(), view.dtype.size());
        let is_inside = offset
            .checked_add(numel)
            .and_then(|end| end.checked_mul(item))
            .is_some_and(|end| end <= view.storage.bytes());
        is_same(view.strides(), result.strides())
            && is_inside
            && (!view.storage.same_as(result.storage)
                || offset == result.layout.offset() && item == result.dtype.size())
    };
    let fits = (1..=i32::MAX as usize).contains(&numel) && result.layout.is_contiguous();
    (fits && views.iter().all(is_alike)).then_some(numel)
}

impl<A: CudaType + Pod, const N: usize> Variant<A, N> {
    /// Returns the kernels' access to each view.
    fn operands<'a>(&self, views: [View<'a>; N], untouched: u64) -> [Operand<'a>; N] {
        std::array::from_fn(|k| match views[k] {
            view if untouched >> k & 1 == 1 => view.untouched(),
            view if k + self.results >= N => view.write(),
            view => view.read(),
        })
    }

    /// Launches the kernel for the layouts of the views, or `converting`. The caller has checked
    /// the views.
    #[track_caller]
    fn launch(
        &self,
        target: Target<'_>,
        site: Site,
        views: [View<'_>; N],
        untouched: u64,
        converting: Option<Code<Index<N>>>,
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
                self.launch(target, site, part, untouched, converting, args)
            });
        }
        let operands = &self.operands(views, untouched);
        if let Some(converting) = converting {
            let index = plan.index(site.op)?;
            // SAFETY: `index` covers the elements of the views. The caller has checked the views.
            return unsafe { self.enqueue(target, site, converting, operands, index, args, numel) };
        }
        if plan.is_contiguous() && self.is_aligned(&views) {
            // SAFETY: the views have `numel` elements, fewer than 2³¹ because the plan fits. The caller has checked them.
            return unsafe { self.launch_flat(target, site, operands, numel, args) };
        }
        let index = plan.in_runs(site.op, self.widths.run, views[N - 1].layout.offset())?;
        let threads = index.runs().threads();
        // SAFETY: `index` covers the elements of the views. The caller has checked the views.
        unsafe { self.enqueue(target, site, self.strided, operands, index, args, threads) }
    }

    /// Returns whether the views begin at whole vectors.
    fn is_aligned(&self, views: &[View<'_>; N]) -> bool {
        // Most offsets are 0, and a division takes longer than a comparison.
        let is_aligned = |at: usize| at == 0 || at.is_multiple_of(self.widths.vector);
        views.iter().all(|view| is_aligned(view.layout.offset()))
    }

    /// Launches the flat kernel.
    ///
    /// # Safety
    /// The operands have `numel` elements of the variant's dtypes, fewer than 2³¹, are contiguous and aligned, lie in
    /// their storages, and overlap only as the kernel allows.
    #[track_caller]
    unsafe fn launch_flat(
        &self,
        target: Target<'_>,
        site: Site,
        operands: &[Operand<'_>; N],
        numel: usize,
        args: A,
    ) -> Result<()> {
        let (space, threads) = (Flat { numel: numel as u32 }, numel.div_ceil(self.widths.vector));
        // SAFETY: `space` covers the elements of the operands. The caller guarantees the rest.
        unsafe { self.enqueue(target, site, self.flat, operands, space, args, threads) }
    }

    /// Launches a kernel with one thread per element, vector or run, because many short blocks keep a device busier
    /// than fewer blocks that loop.
    ///
    /// # Safety
    /// `space` covers the elements of the operands. The operands lie in their storages, overlap only
    /// as the kernels allow, and have the dtypes that `code` accesses.
    #[track_caller]
    #[allow(clippy::too_many_arguments)]
    unsafe fn enqueue<S: Pod>(
        &self,
        target: Target<'_>,
        Site { op, location }: Site,
        code: Code<S>,
        operands: &[Operand<'_>; N],
        space: S,
        args: A,
        threads: usize,
    ) -> Result<()> {
        let host = code.host;
        let blocks = launch::blocks(threads.div_ceil(BLOCK as usize));
        let kernel = (self.program, self.number, code.number);
        let code = launch::Code::Kernel { kernel, grid: [blocks, 1, 1], threads: BLOCK };
        let (params, checks_indices) = (Params { space, args }, false);
        let params = bytemuck::bytes_of(&params);
        let call = Call { op, operands, params, checks_indices, host, code, location };
        // SAFETY: the caller of `new` guarantees that kernel and loop take these parameters and access only the
        // operands. The caller of this function guarantees that `space` covers the operands' elements.
        unsafe { launch::run(target, &call) }
    }
}
