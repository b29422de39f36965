//! The ops of a gradient scaler: one checks and unscales all gradients, the other computes the next
//! scale.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use warpline_cuda_sys_safe::HostLaunch;
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::host::{GRAIN, HostElement, SharedPtr, parallel_for};
use warpline_runtime::iter::BLOCK;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{Error, Result, Target, View, cuda_struct};

use super::cpu::UpdateFloat;
use super::{CHUNK, Part, check_number, takes};
use crate::programs::{FLOATS, kernels};

/// Gradients per launch.
const GRADS: usize = 64;

// SAFETY, for `CHECK`: only `check_and_unscale` makes the parameters and operands. The gradients
// are contiguous, of one dtype, and have `numel` elements. Each element belongs to one thread,
// which writes it only if `writes` is set; `check_and_unscale` then declares the gradients as
// written and has checked that the scale has one element. `found_inf` has one element, which
// threads change with atomics. For `NEXT`: only `update_scale` launches it, with operands of one
// element each and one thread.
kernels! {
    pub(super) UNSCALE = "amp_unscale", FLOATS, |_, ty| source(ty) => {
        unsafe CHECK: Kernel<Unscale, { GRADS + 2 }> = float self::amp_unscale;
    }
    pub(super) UPDATE_SCALE = "amp_update_scale", &[""], |_, _| {
        Source::new().with::<UpdateScale>().push(include_str!("update_scale.cuh"))
    } => {
        unsafe NEXT: Kernel<UpdateScale, 3> = any self::amp_update_scale;
    }
}

cuda_struct! {
    struct Unscale {
        tensors: [Part; GRADS],
        /// Blocks for all gradients together.
        blocks: u32,
        /// 1: multiply the gradients by the reciprocal of the scale, in place. 0: only check them.
        writes: u32,
    }
}

cuda_struct! {
    struct UpdateScale {
        growth_factor: f64,
        backoff_factor: f64,
        growth_interval: i64,
    }
}

fn source(ty: &str) -> Source {
    let mut code = format!("extern \"C\" __global__ void amp_unscale_{ty}(\n");
    for tensor in 0..GRADS {
        let _ = write!(code, "{ty}* t{tensor}, ");
    }
    code.push_str(
        "const f32* scale, f32* found_inf, const __grid_constant__ Unscale u) {\nu32 which;\n",
    );
    let _ = writeln!(code, "{ty}* x;");
    select(&mut code, 0..GRADS);
    let _ = write!(code, "unscale<{ty}>(x, scale, found_inf, u, which);\n}}\n");
    let of = Source::new().with::<Unscale>().push(module::ELEMENT);
    let of = of.push(&format!("#define BLOCK {BLOCK}\n#define CHUNK {CHUNK}"));
    of.push(include_str!("unscale.cuh")).push(&code)
}

/// Writes code that selects the block's tensor by binary search. The parameters of a kernel cannot
/// be indexed, so the code has a branch for each of them.
fn select(code: &mut String, among: Range<usize>) {
    if among.len() == 1 {
        let _ = writeln!(code, "which = {0}; x = t{0};", among.start);
        return;
    }
    let middle = among.start.midpoint(among.end);
    let _ = writeln!(code, "if (blockIdx.x < u.tensors[{middle}].first) {{");
    select(code, among.start..middle);
    code.push_str("} else {\n");
    select(code, middle..among.end);
    code.push_str("}\n");
}

/// Sets `found_inf` to 1 if an element of `grads` is infinite or NaN, and leaves `found_inf`
/// unchanged otherwise. With a `scale`, also multiplies the gradients by the reciprocal of the
/// scale, in place (`torch._amp_foreach_non_finite_check_and_unscale_`). The gradients must all
/// have the same dtype. Each launch processes up to 64 gradients.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if [`takes`] returns `false` for a gradient, or if `scale` or `found_inf` does not
///   have exactly one `float32` element.
/// - [`ErrorKind::DTypeMismatch`] if the gradients have different dtypes.
/// - [`ErrorKind::OverlappingOperands`] if `found_inf` shares memory with another view, or, with a `scale`, if a
///   gradient does.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn check_and_unscale(
    target: Target<'_>,
    grads: &[View<'_>],
    scale: Option<View<'_>>,
    found_inf: View<'_>,
) -> Result<()> {
    const OP: &str = "check_and_unscale";
    let Some(first) = grads.first() else { return Ok(()) };
    for view in grads {
        view.check_dtype(OP, first.dtype)?;
        if !takes(*view) {
            let reason = "gradients must be contiguous and floating-point, with fewer than 2³¹ elements each";
            return Err(Error::invalid(OP, reason));
        }
    }
    check_number(OP, "found_inf", found_inf)?;
    if let Some(scale) = scale {
        check_number(OP, "the scale", scale)?;
    }
    for grads in grads.chunks(GRADS) {
        let mut params = Unscale {
            tensors: [Part { first: u32::MAX, numel: 0 }; GRADS],
            blocks: 0,
            writes: u32::from(scale.is_some()),
        };
        let mut operands = [first.untouched(); GRADS + 2];
        for ((part, operand), grad) in params.tensors.iter_mut().zip(&mut operands).zip(grads) {
            *part = Part { first: params.blocks, numel: grad.numel() as u32 };
            params.blocks += part.numel.div_ceil(CHUNK);
            *operand = if scale.is_some() { grad.read_write() } else { grad.read() };
        }
        if params.blocks == 0 {
            continue;
        }
        if let Some(scale) = scale {
            operands[GRADS] = scale.read();
        }
        operands[GRADS + 1] = found_inf.read_write();
        check_operands(OP, &operands)?;
        let grid = Grid::linear(params.blocks as usize, BLOCK);
        CHECK.launch(target, OP, &operands, &params, grid)?;
    }
    Ok(())
}

/// Computes the next scale after a step (`torch._amp_update_scale_`). If `found_inf` is not zero,
/// multiplies the scale by `backoff_factor` and sets `growth_tracker` to 0. Otherwise adds 1 to
/// `growth_tracker`. When `growth_tracker` reaches `growth_interval`, sets it to 0 and multiplies
/// the scale by `growth_factor`, unless the product is infinite.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if `scale` or `found_inf` does not have exactly one `float32` element, or
///   `growth_tracker` exactly one `int32` element.
/// - [`ErrorKind::OverlappingOperands`] if the tensors share memory.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn update_scale(
    target: Target<'_>,
    [scale, growth_tracker, found_inf]: [View<'_>; 3],
    (growth_factor, backoff_factor): (f64, f64),
    growth_interval: i64,
) -> Result<()> {
    const OP: &str = "update_scale";
    check_number(OP, "the scale", scale)?;
    check_number(OP, "found_inf", found_inf)?;
    if growth_tracker.dtype != warpline_runtime::DType::I32 || growth_tracker.numel() != 1 {
        return Err(Error::invalid(OP, "the growth tracker must be one `int32` element"));
    }
    let operands = [scale.read_write(), growth_tracker.read_write(), found_inf.read()];
    check_operands(OP, &operands)?;
    let params = UpdateScale { growth_factor, backoff_factor, growth_interval };
    NEXT.launch(target, OP, &operands, &params, Grid::linear(1, 1))
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are [`GRADS`] gradients (`T`),
/// then the scale and `found_inf` (one `f32` each).
unsafe fn amp_unscale<T: HostElement<Compute: UpdateFloat>>(launch: &HostLaunch<'_>, p: &Unscale) {
    let grads: [SharedPtr<T>; GRADS] = std::array::from_fn(|at| SharedPtr::operand(launch, at));
    let writes = p.writes != 0;
    let inverse = if writes {
        // SAFETY: `check_and_unscale` has checked that the scale has one element, because `writes`
        // is set.
        let scale = unsafe { SharedPtr::<f32>::operand(launch, GRADS).read(0) };
        (1.0 / f64::from(scale)) as f32
    } else {
        1.0
    };
    let factor = (inverse != 1.0).then(|| T::Compute::of(f64::from(inverse)));
    let (zero, chunk, found) = (T::Compute::of(0.0), CHUNK as usize, AtomicBool::new(false));
    parallel_for(launch.parallel, p.blocks as usize, (GRAIN / chunk).max(1), |blocks| {
        for block in blocks {
            let which = p.tensors.partition_point(|part| part.first as usize <= block) - 1;
            let (part, grad) = (p.tensors[which], grads[which]);
            let begin = (block - part.first as usize) * chunk;
            let mut is_finite = true;
            for i in begin..(begin + chunk).min(part.numel as usize) {
                // SAFETY: `i` is less than the gradient's number of elements.
                let x = unsafe { grad.read(i as isize) }.get();
                is_finite &= x * zero == zero;
                if let Some(factor) = factor {
                    // SAFETY: the gradient is declared as written, and element `i` belongs to this thread.
                    unsafe { grad.write(i as isize, T::put(x * factor)) };
                }
            }
            if !is_finite {
                found.store(true, Ordering::Relaxed);
            }
        }
    });
    if found.into_inner() {
        // SAFETY: `found_inf` has one element, and the other threads have finished.
        unsafe { SharedPtr::<f32>::operand(launch, GRADS + 1).write(0, 1.0) };
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the scale (`f32`), the growth
/// tracker (`i32`) and `found_inf` (`f32`), one element each.
unsafe fn amp_update_scale(launch: &HostLaunch<'_>, p: &UpdateScale) {
    let scale = SharedPtr::<f32>::operand(launch, 0);
    let tracker = SharedPtr::<i32>::operand(launch, 1);
    let found_inf = SharedPtr::<f32>::operand(launch, 2);
    // SAFETY: each operand has one element, and this is the only thread.
    let (old, successful, found) = unsafe { (scale.read(0), tracker.read(0), found_inf.read(0)) };
    let times = |factor: f64| (f64::from(old) * factor) as f32;
    let (new, successful) = if found != 0.0 {
        (times(p.backoff_factor), 0)
    } else {
        let successful = successful.wrapping_add(1);
        let grown = times(p.growth_factor);
        match i64::from(successful) == p.growth_interval {
            // The scale never becomes infinite.
            true if grown.is_finite() => (grown, 0),
            true => (old, 0),
            false => (old, successful),
        }
    };
    // SAFETY: each operand has one element, this is the only thread, and the launch declares both
    // operands as written.
    unsafe {
        scale.write(0, new);
        tracker.write(0, successful);
    }
}
