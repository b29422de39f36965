//! The model of a program: shapes, dtypes, places, aliasing, gradients and memory, but no values.

use std::collections::BTreeMap;

use warpline::{Category, DType};

/// Names of the [`warpline::ErrorKind`]s with which a wrong call may fail.
pub(crate) type Kinds = &'static [&'static str];

/// The prediction of a row for a call whose outcome it does not know. Such a call is not generated.
pub(crate) const UNKNOWN: Kinds = &["unknown"];

/// The prediction of a row without results whose call may succeed or fail in any way, but must not
/// panic, crash or hang.
pub(crate) const ANY: Kinds = &["any"];

/// The results of a call, or the kinds of its error.
pub(crate) type Predict = Result<Vec<Out>, Kinds>;

/// A result of a call.
#[derive(Clone, Debug)]
pub(crate) enum Out {
    /// A new contiguous tensor.
    New { dtype: DType, place: usize, sizes: Vec<usize> },
    /// A view of an argument.
    View { of: usize, sizes: Vec<usize>, strides: Vec<isize>, offset: usize },
    /// An argument itself.
    Same(usize),
    /// A new tensor that shares the memory of an argument but is not connected to its recorded
    /// graph.
    Detached(usize),
}

/// The state of a tensor in autograd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Track {
    /// Requires no gradient.
    No,
    /// A leaf that requires a gradient.
    Leaf,
    /// Computed from a leaf.
    Node,
    /// May require a gradient.
    Maybe,
}

/// The agreement between the values on the CPU and on a simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Blur {
    /// The values are equal.
    Exact,
    /// Equal up to rounding.
    Close,
    /// Not compared: computed from rounded values, or random.
    Free,
}

/// A tensor of the model.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    /// A number that all handles of the same tensor share.
    pub(crate) identity: usize,
    pub(crate) storage: usize,
    pub(crate) dtype: DType,
    pub(crate) place: usize,
    pub(crate) sizes: Vec<usize>,
    pub(crate) strides: Vec<isize>,
    pub(crate) offset: usize,
    pub(crate) track: Track,
    /// Whether the tensor is a view of a leaf, which no in-place op may change.
    pub(crate) of_leaf: bool,
}

impl Value {
    pub(crate) fn ndim(&self) -> usize {
        self.sizes.len()
    }

    pub(crate) fn numel(&self) -> usize {
        self.sizes.iter().product()
    }

    pub(crate) fn is_float(&self) -> bool {
        self.dtype.is_float()
    }

    pub(crate) fn tracked(&self) -> bool {
        self.track != Track::No
    }

    /// Returns whether the elements are adjacent in row-major order.
    pub(crate) fn contiguous(&self) -> bool {
        let mut step = 1;
        self.numel() == 0
            || self.sizes.iter().zip(&self.strides).rev().all(|(&n, &stride)| {
                let fits = n == 1 || stride == step;
                step *= n as isize;
                fits
            })
    }

    /// Returns the positions of all elements in the storage.
    pub(crate) fn positions(&self) -> Vec<isize> {
        let mut all = vec![self.offset as isize];
        for (&n, &stride) in self.sizes.iter().zip(&self.strides) {
            all = all.iter().flat_map(|at| (0..n as isize).map(move |i| at + i * stride)).collect();
        }
        all
    }

    /// Returns whether two indices refer to the same address.
    pub(crate) fn overlaps_itself(&self) -> bool {
        let mut all = self.positions();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        all.len() < count
    }
}

/// The row-major strides of sizes.
pub(crate) fn dense_strides(sizes: &[usize]) -> Vec<isize> {
    let mut step = 1isize;
    let mut strides: Vec<isize> = sizes
        .iter()
        .rev()
        .map(|&n| {
            let stride = step;
            step *= n.max(1) as isize;
            stride
        })
        .collect();
    strides.reverse();
    strides
}

/// The memory of a storage.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: usize,
    pub(crate) place: usize,
    pub(crate) blur: Blur,
    /// Whether a tensor in the memory is or was a leaf.
    pub(crate) has_leaf: bool,
}

/// The state after a number of steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// Live tensors by step and result.
    pub(crate) values: BTreeMap<(usize, usize), Value>,
    pub(crate) memory: BTreeMap<usize, Memory>,
    /// Whether a backward pass may fail, because a saved tensor may have been changed or a graph
    /// may have been freed.
    pub(crate) hazard: bool,
    /// Whether a tensor ever required a gradient. A graph may then own memory.
    pub(crate) graphs: bool,
    /// Whether some values on the CPU and the GPU may differ, by rounding or because they are
    /// random.
    pub(crate) blurred: bool,
    next: usize,
}

impl Model {
    /// Returns a number that is not in use.
    pub(crate) fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    pub(crate) fn blur(&self, value: &Value) -> Blur {
        self.memory[&value.storage].blur
    }

    /// Returns the number of bytes of all live tensors of a device, rounded as the allocator counts
    /// them.
    pub(crate) fn allocated(&self, place: usize) -> usize {
        let live = |storage: &usize| self.values.values().any(|value| value.storage == *storage);
        let here = self.memory.iter().filter(|(id, memory)| memory.place == place && live(id));
        here.map(|(_, memory)| memory.bytes.next_multiple_of(512)).sum()
    }
}

// Rules that several rows use.

/// Returns the number of elements. Fails with [`UNKNOWN`] if there are too many for the model.
pub(crate) fn count(sizes: &[usize]) -> Result<usize, Kinds> {
    if sizes.iter().any(|&n| n > 1 << 20) {
        return Err(UNKNOWN);
    }
    let count = sizes.iter().try_fold(1usize, |count, &n| count.checked_mul(n));
    count.filter(|&count| count <= 4096).ok_or(UNKNOWN)
}

/// Predicts a new tensor on the device of `like`.
pub(crate) fn new(like: &Value, dtype: DType, sizes: &[usize]) -> Predict {
    count(sizes)?;
    Ok(vec![Out::New { dtype, place: like.place, sizes: sizes.to_vec() }])
}

/// Returns the index of a dimension. A tensor without dimensions accepts 0 and -1.
pub(crate) fn dim(t: &Value, dim: i64) -> Result<usize, Kinds> {
    let count = t.ndim().max(1) as i64;
    if !(-count..count).contains(&dim) {
        return Err(&["DimOutOfRange"]);
    }
    Ok(dim.rem_euclid(count) as usize)
}

/// Returns the size of a dimension, which is 1 for a tensor without dimensions.
pub(crate) fn size(t: &Value, d: usize) -> usize {
    t.sizes.get(d).copied().unwrap_or(1)
}

/// Predicts the failure of a call with mistakes, each with the kinds of its error. Of several mistakes the call may
/// report any.
pub(crate) fn only(mistakes: &[(bool, Kinds)]) -> Result<(), Kinds> {
    let mut made = mistakes.iter().filter(|(made, _)| *made).map(|(_, kinds)| *kinds);
    match made.next() {
        None => Ok(()),
        Some(kinds) if made.all(|other| other == kinds) => Err(kinds),
        Some(_) => Err(UNKNOWN),
    }
}

/// Checks that numbers are in the range for which the model predicts a call.
pub(crate) fn within(numbers: &[i64], low: i64, high: i64) -> Result<(), Kinds> {
    if numbers.iter().all(|n| (low..=high).contains(n)) { Ok(()) } else { Err(UNKNOWN) }
}

/// Returns the dtype with a number.
pub(crate) fn dtype(number: i64) -> Result<DType, Kinds> {
    let dtype = usize::try_from(number).ok().and_then(|k| DType::ALL.get(k));
    dtype.copied().ok_or(UNKNOWN)
}

/// Predicts the failure of an op that does not support a dtype.
pub(crate) fn takes(takes: bool) -> Result<(), Kinds> {
    if takes { Ok(()) } else { Err(&["UnsupportedDType"]) }
}

pub(crate) fn is_int(dtype: DType) -> bool {
    dtype.category() == Category::Int
}

/// The dtype of an op whose results are floats.
pub(crate) fn float_of(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

/// Returns the sizes to which two shapes broadcast.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, Kinds> {
    let n = a.len().max(b.len());
    let at = |sizes: &[usize], d: usize| (d + sizes.len()).checked_sub(n).map_or(1, |d| sizes[d]);
    (0..n)
        .map(|d| match (at(a, d), at(b, d)) {
            (1, b) => Ok(b),
            (a, b) if a == b || b == 1 => Ok(a),
            _ => Err(&["BroadcastMismatch"] as Kinds),
        })
        .collect()
}

/// Returns the dtype to which two dtypes are promoted.
pub(crate) fn promote(a: DType, b: DType) -> DType {
    use DType::{BF16, Bool, F16, F32, I16, U8};
    match (a, b) {
        _ if a == b => a,
        (Bool, other) | (other, Bool) => other,
        (F16, BF16) | (BF16, F16) => F32,
        _ if a.is_float() && b.is_float() => {
            if a.size() > b.size() {
                a
            } else {
                b
            }
        }
        _ if a.is_float() => a,
        _ if b.is_float() => b,
        // The smallest dtype that represents all values of `uint8` and negative numbers is `int16`.
        (U8, other) | (other, U8) => {
            if other.size() > 1 {
                other
            } else {
                I16
            }
        }
        _ => {
            if a.size() > b.size() {
                a
            } else {
                b
            }
        }
    }
}

/// Returns the dtype of the result of an op with two operands. If only one operand has no dimensions,
/// it affects the dtype only if its category is higher.
pub(crate) fn result_type(a: &Value, b: &Value) -> DType {
    if (a.ndim() == 0) == (b.ndim() == 0) {
        return promote(a.dtype, b.dtype);
    }
    let (first, second) = if a.ndim() > 0 { (a, b) } else { (b, a) };
    let (first, second) = (first.dtype, second.dtype);
    if second.category() > first.category() { promote(first, second) } else { first }
}

/// Predicts the failure of an op that writes to a tensor whose elements share addresses. If the
/// strides are not nested, the op may refuse the tensor even if no elements share an address.
pub(crate) fn writable(t: &Value) -> Result<(), Kinds> {
    if t.overlaps_itself() {
        return Err(&["OverlappingWrite"]);
    }
    let steps = t.sizes.iter().zip(&t.strides).filter(|(n, _)| **n > 1);
    let mut steps: Vec<(isize, isize)> =
        steps.map(|(&n, &stride)| (stride, n as isize - 1)).collect();
    steps.sort_unstable();
    let mut reach = 0;
    for (stride, bound) in steps {
        if stride <= reach && t.numel() > 0 {
            return Err(UNKNOWN);
        }
        reach += stride * bound;
    }
    Ok(())
}
