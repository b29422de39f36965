//! CPU implementation of attention of few queries. It converts rows to `f32` first.

use std::f32::consts::{LN_2, LOG2_E};

use warpline_runtime::host::{self, HostElement, HostLaunch, SharedPtr};

use super::{BOOLEAN, FewQueries};
use crate::attention::fused::cpu::{floats, products, weighted_sum, write};
use crate::attention::fused::{Attention, Steps};
use crate::math::exp;

/// # Safety
/// The conditions of [`HostKernel`](host::HostKernel). The operands are queries, keys and values of
/// `T`, the mask, the lengths and the result.
pub(super) unsafe fn few_queries<T: HostElement<Compute = f32>>(
    launch: &HostLaunch<'_>,
    p: &FewQueries,
) {
    let common = &p.common;
    let [q, k, v, out] = [0, 1, 2, 5].map(|i| SharedPtr::<T>::operand(launch, i));
    let (bools, added) = (SharedPtr::<u8>::operand(launch, 3), SharedPtr::<T>::operand(launch, 3));
    let lengths = SharedPtr::<i64>::operand(launch, 4);
    let width = common.width as usize;
    let heads = common.inner * p.group;
    // Heads of queries, as batches of the queries and of the result.
    let by_head = &Attention { inner: heads, ..*common };
    host::parallel_for(launch.parallel, (common.outer * heads) as usize, 1, |batches| {
        for batch in batches {
            let (outer, head) = (batch as i64 / heads as i64, batch as i64 % heads as i64);
            let keys = if p.has_lengths != 0 {
                // SAFETY: the operand has a length for each outer batch.
                let length = unsafe { lengths.read((outer * p.length) as isize) };
                length.clamp(0, common.keys as i64)
            } else {
                common.keys as i64
            };
            let own_head = (outer * common.inner as i64 + head / p.group as i64) as usize;
            let of =
                |of, steps: Steps| floats::<T>(of, (common, steps, own_head), 0..keys as usize);
            let (key_rows, value_rows) = (of(k, common.k), of(v, common.v));
            let own = floats(q, (by_head, common.q, batch), 0..common.queries as usize);
            for (query, own) in own.chunks(width).enumerate() {
                let last = if p.has_lengths != 0 { keys - common.queries as i64 } else { 0 };
                let seen = if common.causal != 0 { last + query as i64 + 1 } else { keys };
                let seen = seen.clamp(0, keys) as usize;
                let mut weights = products(own, &key_rows, seen);
                let mask = outer * p.mask.outer + head * p.mask.inner + query as i64 * p.mask.row;
                for (key, score) in (0..).zip(&mut weights) {
                    *score *= common.scale_log2;
                    let at = (mask + key * p.mask.column) as isize;
                    // SAFETY: the mask, if there is one, has an element for each query and key.
                    *score += match p.masks {
                        0 => 0.0,
                        BOOLEAN => match unsafe { bools.read(at) } {
                            0 => f32::NEG_INFINITY,
                            _ => 0.0,
                        },
                        // SAFETY: an added mask has an element of `T` for each query and key.
                        _ => unsafe { added.read(at) }.get() * LOG2_E,
                    };
                }
                let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let base = if most == f32::NEG_INFINITY { 0.0 } else { most };
                weights.iter_mut().for_each(|score| *score = (*score - base) * LN_2);
                exp(&mut weights);
                let total: f32 = weights.iter().sum();
                let sums = weighted_sum(&weights, &value_rows, width).into_iter();
                let weighted = sums.map(|sum| if total > 0.0 { sum / total } else { 0.0 });
                write(out, (by_head, common.out, batch), query, weighted);
            }
        }
    });
}
