//! Appends keys and values to a cache whose length is on the device.
//!
//! One launch copies the keys and the values of all new positions and advances the length. Every
//! block reads the length first. The block that arrives last at a counter writes the new length, so
//! that all blocks read the old length. That block also sets the counter back to 0 for the next
//! launch or replay.
//!
//! A length that leaves no room for the new positions causes [`ErrorKind::IndexCheck`]. The kernel
//! then changes nothing.

mod cpu;

use crate::programs::{BITS, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::{BLOCK, Walk};
use warpline_runtime::launch::{self, Grid, Kernel, Report, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View, cuda_struct};

pub(crate) const PROGRAMS: &[&Program] = &[&KV_CACHE_APPEND];

/// Bytes that a thread copies at a time if all operands are aligned.
const WIDEST: usize = 16;
/// The dimension of positions in keys, values and caches.
const POSITIONS: usize = 2;

kernels! {
    KV_CACHE_APPEND = "kv_cache_append", BITS, |_, ty| {
        let of = Source::new().with::<Append>().push(module::REPORT).push(module::WALK);
        let of = of.push(&format!("#define BLOCK {BLOCK}")).push(include_str!("append.cuh"));
        of.push(&format!("APPEND({ty}, elements, {ty})\nAPPEND({ty}, vectors, u128)"))
    } => {
        // SAFETY: `append` makes all `Append`s, with the sizes and strides of the launch's operands.
        // The kernel writes the caches only at positions below the report's size, which is their
        // capacity. Each element belongs to one thread. `vectors` is launched only if all operands are
        // aligned to vectors.
        unsafe APPENDS: [Kernel<Append, 5>; 2] = bits cpu::kv_cache_append[elements, vectors];
    }
}

cuda_struct! {
    /// `count` new positions, and `rows` rows of `units` units of `width` elements. Strides are in
    /// units: `step` between positions of the caches, `steps` along the rows of keys and values.
    /// `walk` covers the rows of keys, values and both caches. `lanes` is the binary logarithm of
    /// the number of threads per row.
    struct Append {
        report: Report,
        count: u64,
        rows: u64,
        units: u64,
        width: u64,
        lanes: u64,
        step: i64,
        steps: [i64; 2],
        walk: Walk<4>,
    }
}

/// The memory of a cache.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a> {
    /// Keys, `[batch, heads, capacity, width]`. The elements of the last dimension are neighbours.
    pub keys: View<'a>,
    /// Values, with the sizes, strides and dtype of the keys.
    pub values: View<'a>,
    /// Two `int64`: the length, and a counter that is 0 between launches.
    pub state: View<'a>,
}

/// Copies keys and values of `[batch, heads, new positions, width]` to the positions of the cache
/// from its length on, and advances the length.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if keys and values do not have the cache's dtype, or the state
///   does not have dtype `int64`.
/// - [`ErrorKind::ShapeMismatch`] if keys, values and cache do not have four dimensions, or differ in a size other than
///   the number of positions; if `k` and `v` differ in sizes; if `cache.values` does not have the sizes and strides of
///   `cache.keys`, or elements of the last dimension are not neighbours; or if the state is not two contiguous
///   elements.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of the cache overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if a view of the cache shares memory with another operand.
/// - [`ErrorKind::IndexCheck`] if the length leaves no room for the new positions; on a GPU, a later
///   wait or read of the cache returns this error.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn append(
    target: Target<'_>,
    op: &'static str,
    cache: &KvCache<'_>,
    k: View<'_>,
    v: View<'_>,
) -> Result<()> {
    cache.check(op, k, v)?;
    let views = [k, v, cache.keys, cache.values];
    let [k_read, v_read] = [k.read(), v.read()];
    let [keys, values, state] = [cache.keys, cache.values, cache.state].map(View::read_write);
    let operands = [k_read, v_read, keys, values, state];
    check_operands(op, &operands)?;
    let (count, capacity) = (k.sizes()[POSITIONS], cache.keys.sizes()[POSITIONS]);
    if count == 0 {
        return Ok(());
    }
    let is_vector = matches!(target, Target::Cuda(..)) && k.numel() > 0 && has_vectors(op, &views)?;
    let unit = if is_vector { WIDEST / k.dtype.size() } else { 1 };
    let strides = |d: usize| views.map(|view| view.strides()[d]);
    // A vector's strides are multiples of its size, except along its own dimension.
    let in_units = |strides: [isize; 4]| strides.map(|stride| stride / unit as isize);
    let rows = (0..3).rev().map(|d| (k.sizes()[d], in_units(strides(d))));
    let walk = Walk::new(op, rows)?;
    let units = k.sizes()[3] / unit;
    let lanes = units.next_power_of_two().min(BLOCK as usize);
    let along = |view: View<'_>| if is_vector { 1 } else { view.strides()[3] as i64 };
    let params = Append {
        report: Report::new(POSITIONS, capacity),
        count: count as u64,
        rows: walk.numel() as u64,
        units: units as u64,
        width: unit as u64,
        lanes: lanes.ilog2().into(),
        step: in_units(strides(POSITIONS))[2] as i64,
        steps: [along(k), along(v)],
        walk,
    };
    // Without rows, one block still advances the length.
    let grid = Grid::cover(walk.numel().saturating_mul(lanes).max(1), BLOCK);
    APPENDS[usize::from(is_vector)].launch(target, op, &operands, &params, grid)
}

impl KvCache<'_> {
    /// Checks dtypes and sizes.
    #[track_caller]
    fn check(&self, op: &'static str, k: View<'_>, v: View<'_>) -> Result<()> {
        for view in [self.values, k, v] {
            view.check_dtype(op, self.keys.dtype)?;
        }
        self.state.check_dtype(op, DType::I64)?;
        let (keys, values) = (self.keys, self.values);
        let is_cache = keys.sizes().len() == 4
            && keys.sizes() == values.sizes()
            && keys.strides() == values.strides()
            && (keys.strides()[3] == 1 || keys.sizes()[3] <= 1)
            && self.state.numel() == 2
            && self.state.layout.is_contiguous();
        let fits = |k: View<'_>| {
            let at = |d: usize| k.sizes()[d] == keys.sizes()[d];
            k.sizes().len() == 4 && [0, 1, 3].into_iter().all(at)
        };
        if is_cache && fits(k) && v.sizes() == k.sizes() {
            return Ok(());
        }
        let reason = format!(
            "the new keys have sizes {:?}, the new values {:?} and the cache {:?}; all must be \
             equal, except for the number of positions (dimension 2)",
            k.sizes(),
            v.sizes(),
            keys.sizes()
        );
        Err(Error::shape(op, reason))
    }
}

/// Returns whether rows consist of aligned vectors of [`WIDEST`] bytes in each operand.
#[track_caller]
fn has_vectors(op: &'static str, views: &[View<'_>; 4]) -> Result<bool> {
    for view in views {
        let unit = WIDEST / view.dtype.size();
        let whole = |d: usize| {
            view.sizes()[d] <= 1 || view.strides()[d].unsigned_abs().is_multiple_of(unit)
        };
        let is_dense = view.strides()[3] == 1 && view.sizes()[3].is_multiple_of(unit);
        if !is_dense
            || !(0..3).all(whole)
            || !launch::address(op, view)?.addr().is_multiple_of(WIDEST as u64)
        {
            return Ok(false);
        }
    }
    Ok(true)
}
