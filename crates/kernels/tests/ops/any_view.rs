//! Ops on views of any sizes and strides, including empty and reversed views, compared with plain
//! loops.

use proptest::prelude::*;
use warpline_kernels::elementwise;
use warpline_kernels::indexing::gather;
use warpline_kernels::reduce::{ReduceOp, reduce};
use warpline_kernels::softmax::softmax;
use warpline_kernels::{copy, matmul};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target};
use warpline_runtime::{DType, Layout, Target};

/// Recipe for a view: the order of its dimensions in memory and, for each dimension, the distance
/// of neighbours, whether it is reversed, and whether it repeats one element.
#[derive(Clone, Debug)]
struct ViewRecipe {
    order: Vec<usize>,
    dims: Vec<(usize, bool, bool)>,
}

fn view_recipe(ndim: usize) -> impl Strategy<Value = ViewRecipe> {
    let order = Just((0..ndim).collect::<Vec<_>>()).prop_shuffle();
    let dims = prop::collection::vec((1usize..4, any::<bool>(), prop::bool::weighted(0.2)), ndim);
    (order, dims).prop_map(|(order, dims)| ViewRecipe { order, dims })
}

fn tensor(
    target: Target<'_>,
    dtype: DType,
    sizes: &[usize],
    how: &ViewRecipe,
    written: bool,
) -> Tensor {
    let (mut strides, mut offset, mut step) = (vec![0isize; sizes.len()], 0, 1);
    for &d in &how.order {
        let (gap, backwards, repeats) = how.dims[d];
        if repeats && !written {
            continue;
        }
        let stride = (step * gap) as isize;
        strides[d] = if backwards { -stride } else { stride };
        let last = sizes[d].saturating_sub(1);
        offset += if backwards { last * step * gap } else { 0 };
        step *= gap * sizes[d].max(1);
    }
    let values: Vec<f64> = (0..step).map(|i| (i * 7 % 11) as f64 - 5.0).collect();
    let memory = Tensor::new(target, dtype, &[step], &values);
    let layout = Layout::from_parts(sizes.into(), strides.as_slice().into(), offset);
    Tensor { layout, ..memory }
}

/// Sizes, and recipes for three views of these sizes.
fn case(most: usize) -> impl Strategy<Value = (Vec<usize>, [ViewRecipe; 3])> {
    prop::collection::vec(0usize..5, 0..most).prop_flat_map(|sizes| {
        let n = sizes.len();
        (Just(sizes), [view_recipe(n), view_recipe(n), view_recipe(n)])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn elementwise_ops_take_any_view((sizes, [a, b, out]) in case(6)) {
        on_every_target(|target| {
            let (x, y) = (
                tensor(target, DType::F32, &sizes, &a, false),
                tensor(target, DType::F32, &sizes, &b, false),
            );
            let sum = tensor(target, DType::F32, &sizes, &out, true);
            let operands = [x.view().into(), y.view().into()];
            elementwise::apply(target, &elementwise::SUB, DType::F32, &operands, sum.view()).unwrap();
            let expected: Vec<f64> =
                x.floats(target).iter().zip(y.floats(target)).map(|(x, y)| x - y).collect();
            assert_close(DType::F32, &sum.floats(target), &expected, "sub");
            let copied = tensor(target, DType::I16, &sizes, &b, true);
            copy::copy(target, x.view(), copied.view()).unwrap();
            assert_close(DType::I16, &copied.floats(target), &x.floats(target), "copy");
        });
    }

    #[test]
    fn reductions_take_any_view((sizes, [a, out, _]) in case(6), mask in any::<u8>(), keepdim: bool) {
        let n = sizes.len();
        let dims: Vec<usize> = (0..n).filter(|d| mask >> d & 1 == 1).collect();
        let reduced = |d: usize| dims.is_empty() || dims.contains(&d);
        let extent: usize = (0..n).filter(|&d| reduced(d)).map(|d| sizes[d]).product();
        let to: Vec<usize> = (0..n)
            .filter(|&d| keepdim || !reduced(d))
            .map(|d| if reduced(d) { 1 } else { sizes[d] })
            .collect();
        let order = out.order.iter().copied().filter(|&d| d < to.len()).collect();
        let out = ViewRecipe { order, ..out };
        on_every_target(|target| {
            let x = tensor(target, DType::F32, &sizes, &a, false);
            let values = x.floats(target);
            let mut groups = vec![Vec::new(); to.iter().product()];
            for (i, v) in values.iter().enumerate() {
                let (mut rest, mut at, mut step) = (i, 0, 1);
                for d in (0..n).rev() {
                    if !reduced(d) {
                        at += rest % sizes[d] * step;
                        step *= sizes[d];
                    }
                    rest /= sizes[d];
                }
                groups[at].push(*v);
            }
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::ArgMin] {
                let dtype = op.result_dtype(DType::F32).unwrap();
                let y = tensor(target, dtype, &to, &out, true);
                let answer = reduce(target, op, x.view(), &dims, y.view());
                let indices = op == ReduceOp::ArgMin;
                if indices && dims.len() > 1 && dims.len() < n
                    || op != ReduceOp::Sum && extent == 0
                {
                    assert!(answer.is_err());
                    continue;
                }
                answer.unwrap();
                let one = |group: &Vec<f64>| match op {
                    ReduceOp::Sum => group.iter().sum(),
                    ReduceOp::Max => group.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                    _ => {
                        let least = group.iter().copied().fold(f64::INFINITY, f64::min);
                        group.iter().position(|&v| v == least).unwrap() as f64
                    }
                };
                let expected: Vec<f64> = groups.iter().map(one).collect();
                assert_close(dtype, &y.floats(target), &expected, op.name());
            }
        });
    }

    #[test]
    fn ops_over_rows_take_any_view((sizes, [a, out, _]) in case(5), dim in 0usize..5) {
        let dim = dim % sizes.len().max(1);
        on_every_target(|target| {
            let x = tensor(target, DType::F64, &sizes, &a, false);
            let y = tensor(target, DType::F64, &sizes, &out, true);
            softmax(target, x.view(), dim, y.view(), false).unwrap();
            let (size, step) = match sizes.get(dim) {
                Some(&size) => (size, sizes[dim + 1..].iter().product::<usize>()),
                None => (1, 1),
            };
            let values = x.floats(target);
            let expected: Vec<f64> = (0..values.len())
                .map(|i| {
                    let first = i / (size * step) * size * step + i % step;
                    let sum: f64 = (0..size).map(|k| values[first + k * step].exp()).sum();
                    values[i].exp() / sum
                })
                .collect();
            assert_close(DType::F64, &y.floats(target), &expected, "softmax");
        });
    }

    #[test]
    fn gathers_take_any_view((sizes, [a, b, out]) in case(5), dim in 0usize..5) {
        let dim = dim % sizes.len().max(1);
        on_every_target(|target| {
            let x = tensor(target, DType::I16, &sizes, &a, false);
            let size = sizes.get(dim).copied().unwrap_or(1) as i64;
            let index = tensor(target, DType::I64, &sizes, &b, true);
            // Maps the values in memory to valid indices.
            let wrapped = |v: f64| (v as i64).rem_euclid(size.max(1)) as f64;
            let values = index.floats(target).into_iter().map(wrapped);
            let in_range = Tensor::new(target, DType::I64, &sizes, &values.collect::<Vec<_>>());
            copy::copy(target, in_range.view(), index.view()).unwrap();
            let y = tensor(target, DType::I16, &sizes, &out, true);
            gather(target, x.view(), dim, index.view(), y.view()).unwrap();
            let (values, which) = (x.floats(target), index.floats(target));
            let step: usize = sizes.iter().skip(dim + 1).product();
            let expected: Vec<f64> = (0..values.len())
                .map(|i| {
                    let own = i / step % size as usize;
                    values[i - own * step + which[i] as usize * step]
                })
                .collect();
            assert_close(DType::I16, &y.floats(target), &expected, "gather");
        });
    }

    #[test]
    fn products_take_any_view(
        [batch, m, n, k] in [0usize..3, 0usize..6, 0usize..6, 0usize..6],
        [a, b, out] in [view_recipe(3), view_recipe(3), view_recipe(3)],
        dtype in prop::sample::select(vec![DType::F16, DType::F32, DType::F64, DType::I32]),
    ) {
        on_every_target(|target| {
            let x = tensor(target, dtype, &[batch, m, k], &a, false);
            let y = tensor(target, dtype, &[batch, k, n], &b, false);
            let z = tensor(target, dtype, &[batch, m, n], &out, true);
            matmul::matmul(target, x.view(), y.view(), z.view()).unwrap();
            let (p, q) = (x.floats(target), y.floats(target));
            let expected: Vec<f64> = (0..batch * m * n)
                .map(|i| {
                    let (of, row, column) = (i / (m * n), i / n % m, i % n);
                    (0..k).map(|d| p[(of * m + row) * k + d] * q[(of * k + d) * n + column]).sum()
                })
                .collect();
            assert_close(dtype, &z.floats(target), &expected, "matmul");
        });
    }
}
