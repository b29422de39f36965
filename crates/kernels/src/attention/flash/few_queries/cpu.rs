//! CPU implementation of attention of few queries. It converts rows to `f32` first.

use std::f32::consts::LN_2;

use warpline_runtime::host::{self, HostElement, HostLaunch, SharedPtr};

use super::FewQueries;
use crate::attention::flash::Steps;
use crate::attention::flash::cpu::{floats, products, weighted_sum, write};
use crate::math::exp;

/// # Safety
/// The conditions of [`HostKernel`](host::HostKernel). The operands are queries, keys and values
/// (`T`), the mask, the lengths and the result.
pub(super) unsafe fn few_queries<T: HostElement<Compute = f32>>(
    launch: &HostLaunch<'_>,
    p: &FewQueries,
) {
    let common = &p.common;
    let [q, k, v, mask, out] = [0, 1, 2, 3, 5].map(|i| SharedPtr::<T>::operand(launch, i));
    let lengths = SharedPtr::<i64>::operand(launch, 4);
    let (width, of_keys) = (common.width as usize, &common.of_keys());
    let batches = (common.outer * common.inner) as usize;
    host::parallel_for(launch.parallel, batches, 1, |batches| {
        for batch in batches {
            let keys = if p.has_lengths != 0 {
                let outer = (batch as u64 / common.inner) as i64;
                // SAFETY: the operand has a length for each outer batch.
                let length = unsafe { lengths.read((outer * p.length) as isize) };
                length.clamp(0, common.keys as i64)
            } else {
                common.keys as i64
            };
            let key_batch = batch / common.group as usize;
            let of =
                |of, steps: Steps| floats::<T>(of, (of_keys, steps, key_batch), 0..keys as usize);
            let (key_rows, value_rows) = (of(k, common.k), of(v, common.v));
            let own = floats(q, (common, common.q, batch), 0..common.queries as usize);
            for (query, own) in own.chunks(width).enumerate() {
                let last = if p.has_lengths != 0 { keys - common.queries as i64 } else { 0 };
                let seen = if common.causal != 0 { last + query as i64 + 1 } else { keys };
                let mut weights = products(own, &key_rows, seen.clamp(0, keys) as usize);
                for (key, score) in weights.iter_mut().enumerate() {
                    *score = *score * common.scale_log2 + common.added(mask, batch, query, key);
                }
                let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let base = if most == f32::NEG_INFINITY { 0.0 } else { most };
                weights.iter_mut().for_each(|score| *score = (*score - base) * LN_2);
                exp(&mut weights);
                let total: f32 = weights.iter().sum();
                let sums = weighted_sum(&weights, &value_rows, width).into_iter();
                let weighted = sums.map(|sum| if total > 0.0 { sum / total } else { 0.0 });
                write(out, (common, common.out, batch), query, weighted);
            }
        }
    });
}
