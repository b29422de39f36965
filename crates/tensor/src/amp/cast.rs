//! Conversion of operands.
//!
//! An op calls [`casts`] first, which costs a read of the thread's modes outside regions. In a region, the op calls
//! itself with the operands from [`cast_operands`]. Autocast is disabled during this second call, so the inner ops keep
//! their operands.
//!
//! A `float32` leaf that requires a gradient is usually a parameter. The converted copy stays in the leaf's autograd
//! state until the leaf's version changes, for this region and later regions, or until an allocation on a GPU needs the
//! memory. If the thread's outermost region has no cache, copies end with that region. The recorded conversion belongs to
//! one region and thread, so a region that uses a parameter twice adds both gradients in the low precision, as PyTorch
//! does.
//!
//! Each replay must convert the current values of a leaf, so a capture reads only its own conversions, and no other work
//! reads the conversions of a capture. The body of a conditional node is a capture of its own, because a loop may change
//! a leaf between two runs of the body.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use smallvec::SmallVec;
use warpline_runtime::{Runtime, reclaim_before_out_of_memory};
use warpline_stream::Stream;

use super::Policy;
use crate::autograd::{AutocastMode, AutocastModes, LeafCast, ModeGuard, should_record};
use crate::exec::Exec;
use crate::{DType, Error, Result, Tensor};

/// The place of a leaf's converted copy.
pub(crate) type CastSlot = Mutex<Option<LeafCast>>;

/// Places with a copy, each with the identifier of the leaf's runtime, so that [`free_copies`] finds them.
static CONVERTED: Mutex<Vec<(usize, Weak<CastSlot>)>> = Mutex::new(Vec::new());

thread_local! {
    /// The converted leaves of this thread's region, by address and dtype. An entry has one conversion for each capture,
    /// and one for work outside captures.
    static CASTS: RefCell<HashMap<(usize, DType), Vec<RegionCast>>> = RefCell::default();
}

/// A converted leaf. Outside captures, the conversion is recorded as an op on the leaf.
struct RegionCast {
    leaf: Tensor,
    cast: LeafCast,
    /// A twin in the capture that contains the conversion.
    capture: Option<Stream>,
}

impl RegionCast {
    fn is_in(&self, capture: Option<&Stream>) -> bool {
        match (&self.capture, capture) {
            (None, None) => true,
            (Some(own), Some(other)) => own.shares_capture(other),
            _ => false,
        }
    }
}

/// Drops the conversions of this thread's region that captures contained, when the capture that owns this value has
/// ended. The conversions of other captures in progress stay.
pub(crate) struct CaptureCasts;

impl Drop for CaptureCasts {
    fn drop(&mut self) {
        let is_over =
            |cast: &mut RegionCast| cast.capture.as_ref().is_some_and(|twin| !twin.is_capturing());
        // The tensors are dropped outside the borrow, as in `drop_casts`.
        let ended = CASTS.try_with(|casts| -> Vec<_> {
            let mut casts = casts.borrow_mut();
            casts.values_mut().flat_map(|entry| entry.extract_if(.., is_over)).collect()
        });
        drop(ended);
    }
}

/// Drops the recorded conversions of this thread's region.
pub(crate) fn drop_casts() {
    // Drop the tensors outside the borrow, because their gradient functions may own values of the program, whose `Drop`
    // may run any code. The thread may be ending, and then the casts are gone.
    let casts = CASTS.try_with(|casts| std::mem::take(&mut *casts.borrow_mut()));
    drop(casts);
}

/// Records that a leaf of a runtime has a converted copy.
pub(crate) fn remember_converted(runtime: &Runtime, slot: &Arc<CastSlot>) {
    reclaim_before_out_of_memory(free_copies);
    let mut all = CONVERTED.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() == all.capacity() {
        all.retain(|(_, slot)| slot.strong_count() > 0);
        // A place whose copy was dropped and made again is in the list several times.
        all.sort_by_key(|(_, slot)| Weak::as_ptr(slot).addr());
        all.dedup_by(|a, b| Weak::ptr_eq(&a.1, &b.1));
        let len = all.len();
        all.reserve(len);
    }
    all.push((runtime.id(), Arc::downgrade(slot)));
}

/// Frees the converted copies of all parameters of the current runtime, and drops the conversions of these parameters
/// that this thread's region has recorded (`torch.clear_autocast_cache`). Later regions convert parameters again.
///
/// ```
/// use warpline::{amp, ones};
///
/// let weight = ones([3, 2], ())?.requires_grad_(true)?;
/// amp::autocast("cpu", (), || ones([4, 3], ())?.matmul(&weight))?;
/// amp::clear_autocast_cache();
/// # Ok::<(), warpline::Error>(())
/// ```
pub fn clear_autocast_cache() {
    let runtime = crate::runtime();
    let casts = CASTS.try_with(|casts| -> Vec<_> {
        let is_own = |cast: &RegionCast| cast.leaf.storage().runtime().same_as(&runtime);
        casts.borrow_mut().extract_if(|_, entry| entry.iter().any(is_own)).collect()
    });
    drop(casts);
    free_copies(&runtime);
}

/// Frees the converted copies of all parameters of a runtime. Returns whether there were any.
fn free_copies(runtime: &Runtime) -> bool {
    let mut all = CONVERTED.lock().unwrap_or_else(PoisonError::into_inner);
    let own = all.extract_if(.., |(id, _)| *id == runtime.id());
    let slots: Vec<Arc<CastSlot>> = own.filter_map(|(_, slot)| slot.upgrade()).collect();
    drop(all);
    let copy = |slot: &Arc<CastSlot>| slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    let copies: Vec<LeafCast> = slots.iter().filter_map(copy).collect();
    !copies.is_empty()
}

/// Returns whether this thread is in a region, so that ops have to call [`cast_operands`].
#[inline]
pub(crate) fn casts() -> bool {
    AutocastModes::current().is_on()
}

/// Converted tensors, and a guard that disables autocast while the op computes with these tensors.
type Cast<T> = (SmallVec<[T; 4]>, ModeGuard);

/// Converts an op's operands by its policy on GPUs or on the CPU. Returns for each operand the converted tensor, or
/// `None` if the operand stays as it is, and a guard that disables autocast. Returns `None` instead if the region keeps
/// all operands of this op, or if no region is open for their kind of device.
#[cold]
#[track_caller]
pub(crate) fn cast_operands(
    [gpu, cpu]: [Policy; 2],
    operands: &[Option<&Tensor>],
) -> Result<Option<Cast<Option<Tensor>>>> {
    let tensors = || operands.iter().copied().flatten();
    let Some(main) = main_tensor(tensors()) else { return Ok(None) };
    let mut modes = AutocastModes::current();
    let AutocastMode { enabled: true, dtype: low } = *modes.of(main.device()) else {
        return Ok(None);
    };
    let policy = if main.is_cuda() { gpu } else { cpu };
    let dtype = match policy {
        Policy::Keep => return Ok(None),
        Policy::KeepAll => return Ok(Some((SmallVec::from_elem(None, operands.len()), closed()))),
        Policy::Refuse => {
            let reason = "it is not safe in autocast; compute the logits' loss with \
                          `binary_cross_entropy_with_logits`, or call it in a region with `enabled(false)`";
            return Err(Error::invalid("binary_cross_entropy", reason));
        }
        Policy::Low => low,
        Policy::F32 => DType::F32,
        Policy::Widest => {
            let eligible = tensors().filter(|tensor| is_eligible(tensor, main));
            match eligible.map(Tensor::dtype).reduce(DType::promote) {
                Some(widest) => widest.promote(low),
                None => return Ok(None),
            }
        }
    };
    let mut cast = SmallVec::new();
    for operand in operands {
        cast.push(match *operand {
            Some(tensor) if is_eligible(tensor, main) && tensor.dtype() != dtype => {
                Some(to(tensor, dtype, modes)?)
            }
            _ => None,
        });
    }
    Ok(Some((cast, closed())))
}

/// Converts the inputs of a custom function to a dtype. Returns the inputs and a guard that disables autocast, or
/// `None` outside regions.
#[track_caller]
pub(crate) fn cast_inputs(dtype: DType, inputs: &[&Tensor]) -> Result<Option<Cast<Tensor>>> {
    let mut modes = AutocastModes::current();
    let Some(main) = main_tensor(inputs.iter().copied()) else { return Ok(None) };
    if !modes.of(main.device()).enabled {
        return Ok(None);
    }
    let mut cast = SmallVec::new();
    for tensor in inputs {
        let converts = is_eligible(tensor, main) && tensor.dtype() != dtype;
        // Does not use the cache, because the function may change its inputs in place.
        cast.push(if converts { tensor.in_dtype(dtype)? } else { (*tensor).clone() });
    }
    Ok(Some((cast, closed())))
}

/// Returns the tensor whose device decides the region: the first tensor on a GPU, or the first tensor if none is on a
/// GPU.
fn main_tensor<'a>(tensors: impl Iterator<Item = &'a Tensor> + Clone) -> Option<&'a Tensor> {
    tensors.clone().find(|tensor| tensor.is_cuda()).or_else(|| tensors.clone().next())
}

/// Returns whether a region converts a tensor: a float of at most 32 bits on the region's kind of device.
fn is_eligible(tensor: &Tensor, main: &Tensor) -> bool {
    matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16)
        && tensor.is_cuda() == main.is_cuda()
}

/// Disables autocast for an op whose operands PyTorch never converts, such as an op in place, but whose inner ops would
/// convert their operands. `None` outside regions.
pub(crate) fn keep_operands() -> Option<ModeGuard> {
    casts().then(closed)
}

/// Disables autocast on this thread until the guard is dropped.
fn closed() -> ModeGuard {
    ModeGuard::autocast(AutocastModes::close)
}

/// Converts a tensor, or takes a leaf's conversion from the cache.
#[track_caller]
fn to(tensor: &Tensor, dtype: DType, modes: AutocastModes) -> Result<Tensor> {
    if tensor.dtype() != DType::F32 || !tensor.is_leaf_parameter() {
        return tensor.in_dtype(dtype);
    }
    if !modes.keeps {
        tensor.drop_cached_cast();
    }
    if !modes.cache {
        return tensor.in_dtype(dtype);
    }
    let capture = match tensor.exec()? {
        Exec::Cuda(_, _, stream) => stream.captured().map(|captured| captured.twin().clone()),
        Exec::Cpu(..) => None,
    };
    let key = (Arc::as_ptr(tensor.inner()).addr(), dtype);
    let records = should_record(&[tensor]);
    let known = CASTS.with_borrow(|casts| {
        let known = casts.get(&key)?.iter().find(|cast| cast.is_in(capture.as_ref()))?;
        known.cast.is_of(tensor).then(|| known.cast.clone())
    });
    let mut cast = match known {
        Some(cast) if !records => return Ok(cast.value.detach()),
        Some(cast) if cast.value.requires_grad() => return Ok(cast.value),
        Some(cast) => cast,
        None if capture.is_some() || !modes.keeps => tensor.new_cast(dtype)?,
        None => tensor.cached_cast(dtype)?,
    };
    if records {
        cast.value = tensor.recorded_copy("to_copy", cast.value.detach())?;
    } else if capture.is_none() && modes.keeps {
        return Ok(cast.value);
    }
    let value = cast.value.clone();
    let cast = RegionCast { leaf: tensor.clone(), cast, capture };
    let former = CASTS.with_borrow_mut(|casts| {
        let entry = casts.entry(key).or_default();
        match entry.iter_mut().find(|former| former.is_in(cast.capture.as_ref())) {
            Some(former) => Some(std::mem::replace(former, cast)),
            None => {
                entry.push(cast);
                None
            }
        }
    });
    drop(former);
    Ok(value)
}
