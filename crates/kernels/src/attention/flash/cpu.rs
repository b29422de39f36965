//! CPU implementations of fused attention. They convert rows to `f32` first.

use std::f32::consts::{LN_2, LOG2_E};

use warpline_runtime::host::{self, HostElement, HostLaunch, SharedPtr};

use super::{Attention, BOOLEAN, MaskSteps, ROWS, Steps, VECTOR};
use crate::math::{Loop, exp, vectorized};

// Kernels with and without a mask have the same functions, which read a mask if there is one.
pub(super) use attention as attention_masked;
pub(super) use attention_backward_keys as attention_masked_backward_keys;
pub(super) use attention_backward_queries as attention_masked_backward_queries;

impl Attention {
    fn batches(&self) -> usize {
        (self.outer * self.inner) as usize
    }

    /// Returns the parameters with the number of heads of keys as `inner`, for operands with one batch
    /// per head of keys.
    pub(super) fn of_keys(&self) -> Self {
        Self { inner: self.inner / self.group, ..*self }
    }

    fn start(&self, steps: Steps, batch: usize) -> isize {
        let (outer, inner) = (batch as i64 / self.inner as i64, batch as i64 % self.inner as i64);
        (outer * steps.outer + inner * steps.inner) as isize
    }

    /// Returns the number of keys that a query attends to.
    fn visible_keys(&self, query: usize) -> usize {
        let keys = self.keys as usize;
        if self.causal != 0 { keys.min(query + 1) } else { keys }
    }

    /// Calls `f` with each batch and each range of at most [`ROWS`] of its rows.
    fn each(&self, parallel: bool, rows: u64, f: impl Fn(usize, std::ops::Range<usize>) + Sync) {
        let (rows, blocks) = (rows as usize, (rows as usize).div_ceil(ROWS));
        host::parallel_for(parallel, self.batches() * blocks, 1, |pieces| {
            for piece in pieces {
                let first = piece % blocks * ROWS;
                f(piece / blocks, first..rows.min(first + ROWS));
            }
        });
    }

    /// Returns the value that the mask, operand 3 of a launch, adds to the score of a query and a key,
    /// in base 2.
    pub(super) fn added<T: HostElement<Compute = f32>>(
        &self,
        mask: SharedPtr<T>,
        batch: usize,
        query: usize,
        key: usize,
    ) -> f32 {
        let MaskSteps { outer, inner, row, column } = self.mask;
        let at = self.start(Steps { outer, inner, row }, batch)
            + (query as i64 * row + key as i64 * column) as isize;
        match self.masks {
            0 => 0.0,
            // SAFETY: a boolean mask has a byte for each query and key of each batch.
            BOOLEAN => match unsafe { SharedPtr(mask.0.cast::<u8>()).read(at) } {
                0 => f32::NEG_INFINITY,
                _ => 0.0,
            },
            // SAFETY: an added mask has an element of `T` for each query and key of each batch.
            _ => unsafe { mask.read(at) }.get() * LOG2_E,
        }
    }
}

/// Returns rows of one batch of an operand, converted to `f32`, without gaps.
pub(super) fn floats<T: HostElement<Compute = f32>>(
    of: SharedPtr<T>,
    (p, steps, batch): (&Attention, Steps, usize),
    rows: std::ops::Range<usize>,
) -> Vec<f32> {
    let start = p.start(steps, batch);
    let row = |row: usize| {
        let at = start + row as isize * steps.row as isize;
        // SAFETY: `rows` and the width are within the operand, which the launch declares as read.
        (0..p.width as isize).map(move |i| unsafe { of.read(at + i) }.get())
    };
    rows.flat_map(row).collect()
}

/// Writes one row of a result.
pub(super) fn write<T: HostElement<Compute = f32>>(
    to: SharedPtr<T>,
    (p, steps, batch): (&Attention, Steps, usize),
    row: usize,
    values: impl Iterator<Item = f32>,
) {
    let at = p.start(steps, batch) + row as isize * steps.row as isize;
    for (i, value) in (0..p.width as isize).zip(values) {
        // SAFETY: the row is within the result and belongs to this thread.
        unsafe { to.write(at + i, T::put(value)) };
    }
}

/// `to[i] = own · rows[i]`. Widths are multiples of [`VECTOR`].
struct Products<'a> {
    own: &'a [f32],
    rows: &'a [f32],
    to: &'a mut [f32],
}

impl Loop for Products<'_> {
    #[inline(always)]
    fn run(self) {
        for (to, row) in self.to.iter_mut().zip(self.rows.chunks_exact(self.own.len())) {
            let mut sums = [0f32; VECTOR];
            for (a, b) in self.own.chunks_exact(VECTOR).zip(row.chunks_exact(VECTOR)) {
                for i in 0..VECTOR {
                    sums[i] += a[i] * b[i];
                }
            }
            *to = sums.iter().sum();
        }
    }
}

/// `to += Σ by[i] · rows[i]`.
struct WeightedSum<'a> {
    by: &'a [f32],
    rows: &'a [f32],
    to: &'a mut [f32],
}

impl Loop for WeightedSum<'_> {
    #[inline(always)]
    fn run(self) {
        for (by, row) in self.by.iter().zip(self.rows.chunks_exact(self.to.len())) {
            self.to.iter_mut().zip(row).for_each(|(to, x)| *to += by * x);
        }
    }
}

/// Returns the products of a row with the first `count` of `rows`.
pub(super) fn products(own: &[f32], rows: &[f32], count: usize) -> Vec<f32> {
    let mut to = vec![0.0; count];
    vectorized(Products { own, rows, to: &mut to });
    to
}

/// Returns the sum of `rows`, weighted by `by`.
pub(super) fn weighted_sum(by: &[f32], rows: &[f32], width: usize) -> Vec<f32> {
    let mut to = vec![0.0; width];
    vectorized(WeightedSum { by, rows, to: &mut to });
    to
}

/// # Safety
/// The conditions of [`HostKernel`](host::HostKernel). The operands are queries, keys, values, mask and result (`T`),
/// and the logarithms (`f32`).
pub(super) unsafe fn attention<T: HostElement<Compute = f32>>(
    launch: &HostLaunch<'_>,
    p: &Attention,
) {
    let [q, k, v, mask, out] = [0, 1, 2, 3, 4].map(|i| SharedPtr::<T>::operand(launch, i));
    let (lse, width) = (SharedPtr::<f32>::operand(launch, 5), p.width as usize);
    let (of_keys, group) = (&p.of_keys(), p.group as usize);
    p.each(launch.parallel, p.queries, |batch, queries| {
        let seen = 0..p.visible_keys(queries.end - 1);
        let keys = floats(k, (of_keys, p.k, batch / group), seen.clone());
        let values = floats(v, (of_keys, p.v, batch / group), seen);
        let own = floats(q, (p, p.q, batch), queries.clone());
        for (query, own) in queries.zip(own.chunks(width)) {
            let mut weights = products(own, &keys, p.visible_keys(query));
            for (key, score) in weights.iter_mut().enumerate() {
                *score = *score * p.scale_log2 + p.added(mask, batch, query, key);
            }
            let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let base = if most == f32::NEG_INFINITY { 0.0 } else { most };
            weights.iter_mut().for_each(|score| *score = (*score - base) * LN_2);
            exp(&mut weights);
            let total: f32 = weights.iter().sum();
            let sums = weighted_sum(&weights, &values, width);
            // A query that attends to no key gets zeros, and an infinite logarithm makes its weights 0.
            let is_blind = total == 0.0;
            let (total, log) =
                if is_blind { (1.0, f32::INFINITY) } else { (total, most + total.log2()) };
            write(out, (p, p.out, batch), query, sums.into_iter().map(|sum| sum / total));
            // SAFETY: `lse` has one element per query, and the query belongs to this thread.
            unsafe { lse.write((batch * p.queries as usize + query) as isize, log) };
        }
    });
}

/// # Safety
/// The conditions of [`HostKernel`](host::HostKernel). The operands are queries, keys, values, mask, result and its
/// gradient (`T`), logarithms and `delta` (`f32`), and the gradient of the queries (`T`). The function writes to `delta`,
/// for each query, the dot product of the result and its gradient.
pub(super) unsafe fn attention_backward_queries<T: HostElement<Compute = f32>>(
    launch: &HostLaunch<'_>,
    p: &Attention,
) {
    let [q, k, v, mask, out, grad, dq] =
        [0, 1, 2, 3, 4, 5, 8].map(|i| SharedPtr::<T>::operand(launch, i));
    let (of_keys, group) = (&p.of_keys(), p.group as usize);
    let [lse, delta] = [6, 7].map(|i| SharedPtr::<f32>::operand(launch, i));
    let width = p.width as usize;
    p.each(launch.parallel, p.queries, |batch, queries| {
        let seen = 0..p.visible_keys(queries.end - 1);
        let keys = floats(k, (of_keys, p.k, batch / group), seen.clone());
        let values = floats(v, (of_keys, p.v, batch / group), seen);
        let of = |of, steps| floats(of, (p, steps, batch), queries.clone());
        let (own, outs, grads) = (of(q, p.q), of(out, p.out), of(grad, p.grad));
        for (i, query) in queries.clone().enumerate() {
            let [own, out, grad] = [&own, &outs, &grads].map(|rows| &rows[i * width..][..width]);
            let common = products(out, grad, 1)[0];
            let at = (batch * p.queries as usize + query) as isize;
            // SAFETY: `delta` and `lse` have one element per query, and the query belongs to this
            // thread.
            let log = unsafe {
                delta.write(at, common);
                lse.read(at)
            };
            let mut weights = products(own, &keys, p.visible_keys(query));
            for (key, score) in weights.iter_mut().enumerate() {
                let added = p.added(mask, batch, query, key);
                *score = (*score * p.scale_log2 + added - log) * LN_2;
            }
            exp(&mut weights);
            let slopes = products(grad, &values, p.visible_keys(query));
            let pairs = weights.iter_mut().zip(slopes);
            pairs.for_each(|(weight, slope)| *weight *= slope - common);
            let sums = weighted_sum(&weights, &keys, width);
            let slopes = sums.into_iter().map(|sum| sum * p.scale);
            write(dq, (p, p.dq, batch), query, slopes);
        }
    });
}

/// # Safety
/// The conditions of [`HostKernel`](host::HostKernel). The operands are queries, keys, values, mask and gradient of the
/// result (`T`), logarithms and `delta` (`f32`), and the gradients of keys and values (`T`).
pub(super) unsafe fn attention_backward_keys<T: HostElement<Compute = f32>>(
    launch: &HostLaunch<'_>,
    p: &Attention,
) {
    let [q, k, v, mask, grad, dk, dv] =
        [0, 1, 2, 3, 4, 7, 8].map(|i| SharedPtr::<T>::operand(launch, i));
    let [lse, delta] = [5, 6].map(|i| SharedPtr::<f32>::operand(launch, i));
    let (width, queries, group) = (p.width as usize, p.queries as usize, p.group as usize);
    let of_keys = &p.of_keys();
    of_keys.each(launch.parallel, p.keys, |key_batch, keys| {
        let of = |of, steps| floats(of, (of_keys, steps, key_batch), keys.clone());
        let (key_rows, value_rows) = (of(k, p.k), of(v, p.v));
        let mut by_key = vec![0f32; keys.len() * width];
        let mut by_value = by_key.clone();
        for batch in key_batch * group..(key_batch + 1) * group {
            // Under a causal mask, earlier queries attend to none of these keys.
            let before = if p.causal != 0 { keys.start.min(queries) } else { 0 };
            let own = floats(q, (p, p.q, batch), before..queries);
            let grads = floats(grad, (p, p.grad, batch), before..queries);
            for (i, key) in keys.clone().enumerate() {
                let row = i * width..(i + 1) * width;
                // The first query that attends to this key.
                let first = if p.causal != 0 { key.min(queries) } else { 0 };
                let skipped = (first - before) * width;
                let (own, grads, count) = (&own[skipped..], &grads[skipped..], queries - first);
                let mut weights = products(&key_rows[row.clone()], own, count);
                let mut slopes = products(&value_rows[row.clone()], grads, count);
                let at = (batch * queries + first) as isize;
                // SAFETY: `lse` and `delta` have one element per query, and the launch declares
                // both as read.
                let number = |of: SharedPtr<f32>, i: usize| unsafe { of.read(at + i as isize) };
                for (i, weight) in weights.iter_mut().enumerate() {
                    let added = p.added(mask, batch, first + i, key);
                    *weight = (*weight * p.scale_log2 + added - number(lse, i)) * LN_2;
                }
                exp(&mut weights);
                for (i, (slope, weight)) in slopes.iter_mut().zip(&weights).enumerate() {
                    *slope = weight * (*slope - number(delta, i));
                }
                for (sums, by, rows) in
                    [(&mut by_key, &slopes, own), (&mut by_value, &weights, grads)]
                {
                    let more = weighted_sum(by, rows, width);
                    sums[row.clone()].iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                }
            }
        }
        for (i, key) in keys.enumerate() {
            let row = i * width..(i + 1) * width;
            let slopes = by_key[row.clone()].iter().map(|sum| sum * p.scale);
            write(dk, (of_keys, p.dk, key_batch), key, slopes);
            write(dv, (of_keys, p.dv, key_batch), key, by_value[row].iter().copied());
        }
    });
}
