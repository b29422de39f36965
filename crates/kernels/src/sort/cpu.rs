//! CPU implementations of sorting and of the search in sorted rows.

use warpline_cuda_sys_safe::HostLaunch;

use super::search::Search;
use super::{Sort, SortPair};
use warpline_runtime::Scalar;
use warpline_runtime::host::{self, GRAIN, HostElement, Number, SharedPtr};

/// Returns an unsigned integer with the order of the values: a smaller value has a smaller key.
/// Both zeros have the same key, and a NaN has the largest key.
fn key_of<C: Number>(value: C) -> u64 {
    match value.to_scalar() {
        _ if value.is_nan() => u64::MAX,
        Scalar::Float(v) => {
            let bits = if v == 0.0 { 0 } else { v.to_bits() };
            if bits >> 63 != 0 { !bits } else { bits | 1 << 63 }
        }
        v => v.to_i64() as u64 ^ 1 << 63,
    }
}

impl Sort {
    fn pair<T: HostElement>(&self, value: T, index: u64) -> SortPair {
        let key = key_of(value.get());
        SortPair { key: if self.descending != 0 { !key } else { key }, index }
    }
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the source (`T`), the
/// values (`T`) and the indices (`i64`).
pub(super) unsafe fn sort_row<T: HostElement>(launch: &HostLaunch<'_>, p: &Sort) {
    let (source, values) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let index = SharedPtr::<i64>::operand(launch, 2);
    let [a, b, c] = p.steps.map(|step| step as isize);
    let grain = GRAIN / 16 / p.size as usize;
    host::parallel_for(launch.parallel, p.rows as usize, grain, |rows| {
        let mut pairs = Vec::new();
        for row in rows {
            let [from, to, at] = p.walk.offsets(row);
            pairs.clear();
            // SAFETY: `i` is less than the size of a row, and the launch declares the source as
            // read.
            let read = |i: u64| unsafe { source.read(from + i as isize * a) };
            pairs.extend((0..p.size).map(|i| p.pair(read(i), i)));
            pairs.sort_unstable();
            for (i, pair) in (0..).zip(&pairs) {
                // SAFETY: `i` is less than the size of a row, and the rows of the results belong to
                // this thread.
                unsafe {
                    values.write(to + i * b, read(pair.index));
                    index.write(at + i * c, pair.index as i64);
                }
            }
        }
    });
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the source (`T`) and
/// the pairs.
pub(super) unsafe fn sort_keys<T: HostElement>(launch: &HostLaunch<'_>, p: &Sort) {
    let (source, pairs) =
        (SharedPtr::<T>::operand(launch, 0), SharedPtr::<SortPair>::operand(launch, 1));
    for t in 0..p.rows << p.log {
        let [from, ..] = p.walk.offsets((p.first + (t >> p.log)) as usize);
        let i = t & (p.padded - 1);
        // SAFETY: the source is read only for `i` less than the size of a row, and there are `rows
        // * padded` pairs.
        unsafe {
            let pair = if i < p.size {
                p.pair(source.read(from + i as isize * p.steps[0] as isize), i)
            } else {
                SortPair { key: u64::MAX, index: u64::MAX }
            };
            pairs.write(t as isize, pair);
        }
    }
}

/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operands are the source (`T`), the
/// pairs, the values (`T`) and the indices (`i64`).
pub(super) unsafe fn sort_write<T: HostElement>(launch: &HostLaunch<'_>, p: &Sort) {
    let (source, pairs) =
        (SharedPtr::<T>::operand(launch, 0), SharedPtr::<SortPair>::operand(launch, 1));
    let (values, index) =
        (SharedPtr::<T>::operand(launch, 2), SharedPtr::<i64>::operand(launch, 3));
    let [a, b, c] = p.steps.map(|step| step as isize);
    for row in 0..p.rows {
        let [from, to, at] = p.walk.offsets((p.first + row) as usize);
        for i in 0..p.size as isize {
            // SAFETY: `i` is less than the size of a row, and so are the indices of the first
            // `p.size` pairs of a sorted row.
            unsafe {
                let origin = pairs.read((row << p.log) as isize + i).index as isize;
                values.write(to + i * b, source.read(from + origin * a));
                index.write(at + i * c, origin as i64);
            }
        }
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// sorted rows (`T`), the values (`T`) and the result (`i64`).
pub(super) unsafe fn searchsorted<T: HostElement>(launch: &HostLaunch<'_>, p: &Search) {
    let (sorted, values) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let out = SharedPtr::<i64>::operand(launch, 2);
    host::parallel_for(launch.parallel, p.elements as usize, GRAIN / 8, |range| {
        for e in range {
            let [row, at, to] = p.walk.offsets(e);
            // SAFETY: `middle` stays within the sorted row. The element of the result belongs to
            // this thread.
            unsafe {
                let value = values.read(at).get();
                let (mut first, mut last) = (0, p.size as isize);
                while first < last {
                    let middle = first + (last - first) / 2;
                    let other = sorted.read(row + middle * p.step as isize).get();
                    let is_behind = if p.right != 0 { other > value } else { other >= value };
                    if is_behind { last = middle } else { first = middle + 1 }
                }
                out.write(to, first as i64);
            }
        }
    });
}
