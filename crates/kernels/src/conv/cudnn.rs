//! Convolutions by cuDNN: the supported convolutions, their plans, and their calls.
//!
//! cuDNN takes batches of images without gaps, contiguous or with the channels innermost, in every
//! floating-point dtype. Operands that are read and have another order are copied first. A
//! convolution for which cuDNN has no plan or a known fault, or whose result has another order, runs
//! on this crate's kernels.

use std::num::NonZeroUsize;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use lru::LruCache;
use warpline_cuda_sys_safe::cudnn::{
    Convolution, ConvolutionKind, ConvolutionPlan, Cudnn, CudnnHandle, Float, TensorLayout,
};
use warpline_cuda_sys_safe::{DevicePtr, DriverError, StreamHandle};
use warpline_runtime::launch::{LibraryCall, LibraryOp};
use warpline_runtime::{
    CudaDevice, DType, Error, ErrorKind, MemoryFormat, Result, Target, View, cuda_struct, hosts,
};
use warpline_sync::{LazyLock, Mutex, MutexGuard};

use super::{Geometry, Window, cpu};
use crate::library::is_usable;
use crate::scratch::{ScratchTensor, in_format};
use crate::window::Taps;

// SAFETY: `run` makes all `Conv`s from the launch's operands, whose sizes `Geometry` has checked.
// Each plane of the result is written by one thread.
static FORWARD: LibraryOp<Conv, 4> =
    unsafe { LibraryOp::new(hosts!(float T => cpu::forward::<T>)) };
// SAFETY: `run` makes all `Conv`s from the launch's operands, whose sizes `Geometry` has checked.
// Each plane of the images is written by one thread.
static INPUT_GRADIENT: LibraryOp<Conv, 4> =
    unsafe { LibraryOp::new(hosts!(float T => cpu::input_gradient::<T>)) };
// SAFETY: `run` makes all `Conv`s from the launch's operands, whose sizes `Geometry` has checked.
// Each window of the weight is written by one thread.
static WEIGHT_GRADIENT: LibraryOp<Conv, 4> =
    unsafe { LibraryOp::new(hosts!(float T => cpu::weight_gradient::<T>)) };

/// Maximum number of cached plans.
const MAX_CACHED_PLANS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Maximum number of plans that are timed for a convolution, or tried after the first plan failed.
const MAX_TRIED_PLANS: usize = 10;
/// Number of timed calls of each tried plan, after one untimed call.
const TIMED: u32 = 3;

cuda_struct! {
    /// The parameters of the CPU implementations: the window, counts, and the strides of batch (or
    /// outputs), channels and the three spatial dimensions.
    pub(super) struct Conv {
        pub(super) taps: Taps,
        pub(super) batch: u32,
        pub(super) channels: u32,
        pub(super) outputs: u32,
        pub(super) groups: u32,
        pub(super) image: [i64; 5],
        pub(super) weight: [i64; 5],
        pub(super) result: [i64; 5],
    }
}

/// A cached choice of a plan.
struct CachedPlan {
    /// `None` if cuDNN does not support the convolution.
    plan: Option<ConvolutionPlan>,
    /// Whether the plan was chosen by trial.
    tried: bool,
}

static PLANS: LazyLock<Mutex<LruCache<(usize, Convolution), CachedPlan>>> =
    LazyLock::new(|| Mutex::new(LruCache::new(MAX_CACHED_PLANS)));

fn cached_plans() -> MutexGuard<'static, LruCache<(usize, Convolution), CachedPlan>> {
    // Ignore poisoning, because a panic of another thread leaves the cache consistent.
    PLANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of convolutions whose cuDNN plans are cached, at most 4,096. The least recently used plan is
/// dropped first.
#[must_use]
pub fn plans_kept() -> usize {
    cached_plans().iter().filter(|(_, cached)| cached.plan.is_some()).count()
}

/// Drops all cached cuDNN plans. Later convolutions choose their plans again.
pub fn clear_plans() {
    cached_plans().clear();
}

/// Computes a convolution or a gradient with cuDNN. `operands` are images, weight and result. `kind` names the operand
/// that is computed; the other two operands are read. Returns `false` if cuDNN does not compute the operand.
#[track_caller]
pub(super) fn run(
    op: &'static str,
    target: Target<'_>,
    kind: ConvolutionKind,
    of: &Geometry<'_>,
    operands: [View<'_>; 3],
) -> Result<bool> {
    let Target::Cuda(runtime, device, stream) = target else { return Ok(false) };
    let is_empty = operands.iter().any(|view| view.numel() == 0);
    if is_empty || !runtime.cudnn().enabled() || !is_usable(op, device, Cudnn::load)? {
        return Ok(false);
    }
    let (operation, computed) = match kind {
        ConvolutionKind::Forward => (&FORWARD, 2),
        ConvolutionKind::InputGradient => (&INPUT_GRADIENT, 0),
        ConvolutionKind::WeightGradient => (&WEIGHT_GRADIENT, 1),
    };
    let Some(format) = format_of(operands, computed) else { return Ok(false) };
    let Some(padding) = padding(of.window) else { return Ok(false) };
    let mut copies = [None, None, None];
    let mut packed = operands;
    for (i, copied) in copies.iter_mut().enumerate().filter(|(i, _)| *i != computed) {
        packed[i] = in_format(target, operands[i], format, copied)?;
    }
    let Some(convolution) = describe(target, kind, of.window, padding, packed, format) else {
        return Ok(false);
    };
    let params = of.params(op, packed)?;
    let launch = Launch { op, target, operation, params, operands: packed, computed };
    // Only the real driver calls cuDNN. A simulated device runs the CPU implementation, which needs no plan.
    if device.driver().name() != "cuda" {
        return launch.run(None).map(|()| true);
    }
    let cudnn = Cudnn::load().map_err(|error| Error::driver(op, error))?;
    if has_fault(cudnn.version(), &convolution) {
        return Ok(false);
    }
    let driver = &**device.driver();
    let handle = cudnn.handle(driver, device.index()).map_err(|error| Error::driver(op, error))?;
    let plans = |most| {
        let plans = handle.convolution_plans(driver, &convolution, most);
        plans.map_err(|error| Error::driver(op, error))
    };
    let by_trial = runtime.cudnn().benchmark() && !stream.is_capturing();
    let key = (device.index(), convolution);
    let keep = |plan, tried| cached_plans().put(key, CachedPlan { plan, tried });
    let cached = {
        let mut plans = cached_plans();
        let cached = plans.get(&key).filter(|cached| cached.tried || !by_trial);
        cached.map(|cached| cached.plan.clone())
    };
    let plan = match cached {
        Some(plan) => plan,
        None => {
            let mut plans = plans(if by_trial { MAX_TRIED_PLANS } else { 1 })?;
            let best = match plans.len() {
                0 | 1 => 0,
                _ => fastest(&plans, || stream.synchronize(), |p| launch.run(Some((&handle, p)))),
            };
            let plan = (best < plans.len()).then(|| plans.swap_remove(best));
            keep(plan.clone(), by_trial);
            plan
        }
    };
    let Some(plan) = plan else { return Ok(false) };
    match launch.run(Some((&handle, &plan))) {
        Err(error) if is_of_plan(&error) => {}
        done => return done.map(|()| true),
    }
    // The plan needs more memory than is free, or cannot run. As in PyTorch, try the other plans.
    for plan in plans(MAX_TRIED_PLANS)? {
        match launch.run(Some((&handle, &plan))) {
            Err(error) if is_of_plan(&error) => {}
            done => {
                keep(Some(plan), by_trial);
                return done.map(|()| true);
            }
        }
    }
    Ok(false)
}

/// The launch of a convolution, with any plan.
struct Launch<'a> {
    op: &'static str,
    target: Target<'a>,
    operation: &'static LibraryOp<Conv, 4>,
    params: Conv,
    operands: [View<'a>; 3],
    computed: usize,
}

impl Launch<'_> {
    /// Launches the call. Only a GPU needs a plan.
    #[track_caller]
    fn run(&self, plan: Option<(&CudnnHandle, &ConvolutionPlan)>) -> Result<()> {
        let bytes = plan.map_or(0, |(_, plan)| plan.workspace());
        let scratch = ScratchTensor::new(self.target, &[bytes], DType::U8)?;
        let [images, weight, result] = self.operands.map(View::read);
        let mut all = [images, weight, result, scratch.view().read_write()];
        all[self.computed] = self.operands[self.computed].write();
        self.operation.launch(self.target, self.op, &all, &Call { params: self.params, plan })
    }
}

/// Returns whether another plan may succeed after this error: there is no memory for the workspace,
/// or cuDNN refuses the plan.
fn is_of_plan(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Alloc)
        || matches!(error.driver_error(), Some(DriverError::LibraryCall { .. }))
}

/// Returns whether a version of cuDNN is known to compute this convolution wrongly.
fn has_fault(version: (u32, u32, u32), of: &Convolution) -> bool {
    let has_window = of.weight.sizes[2..of.dims + 2].iter().any(|&n| n != 1);
    let is_half = matches!(of.dtype, Float::F16 | Float::BF16);
    let broken_volumes = (9, 8, 0)..(9, 15, 0);
    // Offsets have 32 bits before 9.3.
    let is_large = [&of.images, &of.weight, &of.result]
        .iter()
        .any(|layout| layout.sizes.iter().product::<i64>() >= 1 << 31);
    of.dims == 3 && is_half && has_window && broken_volumes.contains(&version)
        || is_large && version < (9, 3, 0)
}

/// Returns the index of the plan whose calls take the least time. Skips plans of which a call fails, for example
/// because memory is exhausted. If all plans fail, returns 0.
fn fastest(
    plans: &[ConvolutionPlan],
    wait: impl Fn() -> Result<()>,
    launch: impl Fn(&ConvolutionPlan) -> Result<()>,
) -> usize {
    let time = |plan| -> Result<Duration> {
        launch(plan)?;
        wait()?;
        let start = Instant::now();
        (0..TIMED).try_for_each(|_| launch(plan))?;
        wait()?;
        Ok(start.elapsed())
    };
    let times = plans.iter().enumerate().filter_map(|(i, plan)| Some((time(plan).ok()?, i)));
    times.min().map_or(0, |(_, i)| i)
}

/// Returns the order of dimensions of the computed operand, if it has no gaps: row-major, or with
/// the channels innermost. If its layout is contiguous in both orders, because dimensions have size
/// 1, returns the order in which fewer of the other operands must be copied.
fn format_of(operands: [View<'_>; 3], computed: usize) -> Option<MemoryFormat> {
    let last = match operands[computed].sizes().len() {
        5 => MemoryFormat::ChannelsLast3d,
        _ => MemoryFormat::ChannelsLast,
    };
    let fits = |view: &View<'_>, format: MemoryFormat| view.layout.is_contiguous_in(format);
    let formats = [MemoryFormat::Contiguous, last].into_iter();
    formats
        .filter(|format| fits(&operands[computed], *format))
        .min_by_key(|format| operands.iter().filter(|view| !fits(view, *format)).count())
}

/// Returns the padding before and after the image. `None` if no padding at the end makes cuDNN's
/// result as large as the window's.
fn padding(w: &Window) -> Option<[[usize; 3]; 2]> {
    let mut after = w.padding;
    for (d, after) in after.iter_mut().enumerate() {
        let reach = (w.kernel[d] - 1) * w.dilation[d] + 1;
        let count = |after: usize| {
            (w.input[d] + w.padding[d] + after).checked_sub(reach).map(|n| n / w.stride[d] + 1)
        };
        let needed = (w.output[d] - 1) * w.stride[d] + reach;
        let least = needed.saturating_sub(w.input[d] + w.padding[d]);
        // Most engines need the same padding on both sides.
        *after = [w.padding[d], least].into_iter().find(|n| count(*n) == Some(w.output[d]))?;
    }
    Some([w.padding, after])
}

/// Describes the convolution to cuDNN. Returns `None` if the dtype is not floating-point.
fn describe(
    target: Target<'_>,
    kind: ConvolutionKind,
    w: &Window,
    padding: [[usize; 3]; 2],
    operands: [View<'_>; 3],
    format: MemoryFormat,
) -> Option<Convolution> {
    let dtype = match operands[0].dtype {
        DType::F16 => Float::F16,
        DType::BF16 => Float::BF16,
        DType::F32 => Float::F32,
        DType::F64 => Float::F64,
        _ => return None,
    };
    let dims = (operands[0].sizes().len() - 2).max(2);
    // A window has three dimensions; the last `dims` are those of the operands.
    let last = |values: [usize; 3]| {
        let mut all = [0; 3];
        all[..dims].copy_from_slice(&values[3 - dims..]);
        all.map(|n| n as i64)
    };
    let [images, weight, result] = operands.map(|view| layout(view.sizes(), dims, format));
    let settings = target.runtime().cudnn();
    let address =
        |view: View<'_>| view.storage.address() + (view.layout.offset() * view.dtype.size()) as u64;
    let alignment = operands.into_iter().map(|v| address(v).trailing_zeros()).min();
    Some(Convolution {
        kind,
        dtype,
        // Volumes in TF32 are wrong in some versions of cuDNN, so PyTorch does not use it for them.
        tf32: dtype == Float::F32 && dims == 2 && target.runtime().precision().conv_uses_tf32(),
        deterministic: settings.deterministic(),
        dims,
        images,
        weight,
        result,
        padding: padding.map(last),
        stride: last(w.stride),
        dilation: last(w.dilation),
        alignment: 1 << alignment.unwrap_or(0).min(6),
    })
}

/// Returns sizes and strides of an operand in a format, with at least two spatial dimensions.
/// Dimensions of size 1 get the stride that the format gives them, because cuDNN recognizes the
/// format by these strides.
fn layout(sizes: &[usize], dims: usize, format: MemoryFormat) -> TensorLayout {
    let mut all = [1; 5];
    (all[0], all[1]) = (sizes[0] as i64, sizes[1] as i64);
    for (to, size) in all[..2 + dims].iter_mut().rev().zip(sizes[2..].iter().rev()) {
        *to = *size as i64;
    }
    let outwards: &[usize] = match (format, dims) {
        (MemoryFormat::Contiguous, 2) => &[3, 2, 1, 0],
        (MemoryFormat::Contiguous, _) => &[4, 3, 2, 1, 0],
        (_, 2) => &[1, 3, 2, 0],
        _ => &[1, 4, 3, 2, 0],
    };
    let (mut strides, mut step) = ([1; 5], 1);
    for &d in outwards {
        strides[d] = step;
        step *= all[d];
    }
    TensorLayout { sizes: all, strides }
}

/// A call of cuDNN. Only a GPU needs a plan; without a plan, only the CPU implementation can run.
struct Call<'a> {
    params: Conv,
    plan: Option<(&'a CudnnHandle, &'a ConvolutionPlan)>,
}

// SAFETY: `Launch::run` makes all `Call`s, and launches them with scratch memory of the plan's size.
// The plan was made for this convolution or for one of the same description, so it fits the operands.
// cuDNN reads two operands and writes every element of the third.
unsafe impl LibraryCall<4> for Call<'_> {
    type Params = Conv;

    fn params(&self) -> &Conv {
        &self.params
    }

    unsafe fn enqueue(
        &self,
        _: &CudaDevice,
        stream: StreamHandle,
        &[images, weight, result, workspace]: &[DevicePtr; 4],
    ) -> Result<(), DriverError> {
        let Some((handle, plan)) = self.plan else {
            let reason = "there is no plan".to_owned();
            return Err(DriverError::InvalidArgument { call: "cudnnBackendExecute", reason });
        };
        // SAFETY: the caller passes a live stream, has made the context of the stream's device
        // current, and passes the addresses of valid operands. The operands have the layouts that
        // the plan was made for.
        unsafe { handle.execute(stream, plan, [images, weight, result], workspace) }
    }
}
