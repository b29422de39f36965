//! Padding.

use smallvec::SmallVec;

#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::autocast_operands;
use crate::{CallScope, Error, IntoOptions, IntoSizes, Result, Scalar, Tensor, cat};

/// The values around a padded tensor (`mode` and `value`). `()` stands for zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// A number (`"constant"`).
    Constant(Scalar),
    /// The elements at the same distance inside the edge, without the edge itself (`"reflect"`).
    Reflect,
    /// The element at the edge (`"replicate"`).
    Replicate,
    /// The elements at the opposite end (`"circular"`).
    Circular,
}

impl Default for PadMode {
    fn default() -> Self {
        Self::Constant(Scalar::Int(0))
    }
}

impl From<()> for PadMode {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// Pads dimensions with elements before and after them (`torch.nn.functional.pad`). The first two numbers of
/// `pad` are for the last dimension, the next two for the dimension before it, and so on. A negative number
/// cuts elements off.
///
/// ```
/// # use warpline::functional::{PadMode, pad};
/// # use warpline::tensor;
/// let t = tensor([1i64, 2, 3], ())?;
/// assert_eq!(pad(&t, [1, 2], ())?.to_vec::<i64>()?, [0, 1, 2, 3, 0, 0]);
/// assert_eq!(pad(&t, (2, 1), PadMode::Reflect)?.to_vec::<i64>()?, [3, 2, 1, 2, 3, 2]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `pad` has an odd number of elements, or more than two per dimension; if more
/// elements are cut off than there are; if there are fewer elements than [`PadMode::Reflect`] or [`PadMode::Circular`]
/// repeats, or none for [`PadMode::Replicate`]; or if the dtype cannot hold the number of [`PadMode::Constant`]. Errors
/// of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn pad(input: &Tensor, pad: impl IntoSizes, mode: impl IntoOptions<PadMode>) -> Result<Tensor> {
    let _call = CallScope::enter("pad");
    let (op, pad, mode) = ("pad", pad.into_sizes(), mode.into_options());
    if matches!(mode, PadMode::Reflect | PadMode::Replicate) {
        autocast_operands!(Keep, F32, [input] => self::pad(input, &pad[..], mode));
    }
    if !pad.len().is_multiple_of(2) || pad.len() / 2 > input.dim() {
        let reason = format!(
            "expects two numbers for each of at most {} dimensions, but was given {pad:?}",
            input.dim()
        );
        return Err(Error::invalid(op, reason));
    }
    let mut out = input.clone();
    for (i, sides) in pad.chunks_exact(2).enumerate() {
        let d = input.dim() - 1 - i;
        let (before, after) = (sides[0], sides[1]);
        if (before, after) == (0, 0) {
            continue;
        }
        out = match mode {
            PadMode::Constant(value) => constant(&out, d, before, after, value)?,
            _ => pad_by_gather(&out, d, before, after, mode)?,
        };
    }
    // Without positive padding, `out` may be the tensor itself or a view of it. The result must be a new tensor.
    if pad.iter().all(|n| *n <= 0) { out.copy() } else { Ok(out) }
}

#[track_caller]
fn constant(t: &Tensor, d: usize, before: isize, after: isize, value: Scalar) -> Result<Tensor> {
    let cut = before.min(0).unsigned_abs().saturating_add(after.min(0).unsigned_abs());
    let Some(rest) = t.size()[d].checked_sub(cut) else {
        let reason = format!("{before} and {after} cut off more than dimension {d} has");
        return Err(Error::invalid("pad", reason));
    };
    let kept = t.narrow(d as isize, before.min(0).unsigned_abs() as isize, rest)?;
    let mut parts: SmallVec<[Tensor; 3]> = SmallVec::new();
    for (side, size) in [before.max(0), rest as isize, after.max(0)].into_iter().enumerate() {
        if side == 1 {
            parts.push(kept.clone());
        } else if size > 0 {
            let mut sizes = t.size().to_vec();
            sizes[d] = size as usize;
            parts.push(t.new_full(&sizes, value, ())?);
        }
    }
    if parts.len() == 1 { Ok(kept) } else { cat(&parts, d as isize) }
}

/// Pads a dimension by gathering its elements.
#[track_caller]
fn pad_by_gather(
    t: &Tensor,
    d: usize,
    before: isize,
    after: isize,
    mode: PadMode,
) -> Result<Tensor> {
    let size = t.size()[d] as isize;
    let most = match mode {
        PadMode::Reflect => size - 1,
        PadMode::Circular => size,
        _ if size > 0 => isize::MAX,
        _ => 0,
    };
    let length = before.saturating_add(size).saturating_add(after);
    if before > most || after > most || length < 0 {
        let limit = match mode {
            PadMode::Reflect => "; a reflected pad must be smaller than the size",
            PadMode::Circular => "; a circular pad can be at most the size",
            _ => "",
        };
        let reason =
            format!("dimension {d} of size {size} cannot be padded by {before} and {after}{limit}");
        return Err(Error::invalid("pad", reason));
    }
    let places = t.arange_on_device(before.saturating_neg(), length as usize)?;
    let size = size as i64;
    let index = match mode {
        // Reflects at the start, then at the end.
        PadMode::Reflect => places.abs()?.sub(size - 1)?.abs()?.neg()?.add(size - 1)?,
        PadMode::Circular => places.remainder(size)?,
        _ => places.clamp(0, size - 1)?,
    };
    t.index_select(d as isize, &index)
}
