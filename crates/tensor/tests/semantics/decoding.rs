//! Tests that compare fused functions for decoders with compositions of separate ops, and tests of
//! the cache of keys and values.

use warpline::autograd::{GradcheckOptions, gradcheck, gradgradcheck};
use warpline::cuda::{self, CudaGraph};
use warpline::functional::{
    KvCache, LayerNormOptions, RMSNormOptions, RotaryEmbeddingOptions, add_layer_norm,
    add_rms_norm, layer_norm, linear, linear_silu_mul, rms_norm, rotary_embedding, silu, silu_mul,
};
use warpline::{
    DType, Device, ErrorKind, IsCloseOptions, Result, Tensor, arange, cat, full, randn, stack,
    tensor,
};

use crate::common::{self, World};
use crate::s08_index_check::failed;

crate::rows! {
    worlds(1) gates_are_products_of_silu gpu_gates_are_products_of_silu => gates;
    worlds(1) gated_products_are_compositions
        gpu_gated_products_are_compositions => gated_products;
    worlds(1) norms_of_sums_are_compositions gpu_norms_of_sums_are_compositions => norms;
    worlds(1) rotations_are_compositions gpu_rotations_are_compositions => rotations;
    schedules(1) a_graph_appends_at_the_device_s_length
        gpu_a_graph_appends_at_the_device_s_length => replayed_appends;
    schedules(1) a_full_cache_is_reported_until_its_reset
        gpu_a_full_cache_is_reported_until_its_reset => full_cache;
}

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Asserts that a result equals a composition, up to the precision of the result's dtype.
#[track_caller]
fn assert_close(result: &Tensor, expected: &Tensor, context: &str) {
    let tolerance = match result.dtype() {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::F32 => 1e-5,
        _ => 1e-12,
    };
    assert_eq!(result.size(), expected.size(), "{context}");
    let compared = result.to(DType::F64).and_then(|wide| {
        wide.allclose(
            &expected.to(DType::F64)?,
            IsCloseOptions::new().rtol(tolerance).atol(tolerance),
        )
    });
    assert!(compared.expect("a comparison"), "{context}: {result} instead of {expected}");
}

/// Returns two tensors of shape `[a, b, c]`: one is contiguous, the other is a transposed view.
fn layouts([a, b, c]: [usize; 3], dtype: DType, device: Device) -> Result<[Tensor; 2]> {
    let make = |sizes: [usize; 3]| randn(sizes, (DType::F64, device))?.to(dtype);
    Ok([make([a, b, c])?, make([b, a, c])?.transpose(0, 1)?])
}

fn wide(t: &Tensor) -> Result<Tensor> {
    t.to(DType::F64)
}

fn gates(world: &World) -> Result<()> {
    for device in world.places() {
        for dtype in FLOATS {
            for gate in layouts([2, 3, 5], dtype, device)? {
                for up in layouts([2, 3, 5], dtype, device)? {
                    let expected = silu(&wide(&gate)?)?.mul(&wide(&up)?)?;
                    assert_close(&silu_mul(&gate, &up)?, &expected, "silu_mul");
                }
            }
        }
    }
    Ok(())
}

fn gated_products(world: &World) -> Result<()> {
    for device in world.places() {
        for dtype in FLOATS {
            for (rows, features, width) in [(1, 128, 16), (3, 160, 520), (17, 128, 24), (2, 6, 5)] {
                let weight = randn([features, width], (DType::F64, device))?.to(dtype)?;
                for x in layouts([1, rows, width], dtype, device)? {
                    let halves = linear(&x, &weight, None)?.chunk(2, -1)?;
                    let expected = silu_mul(&halves[0], &halves[1])?;
                    assert_close(&linear_silu_mul(&x, &weight)?, &expected, "linear_silu_mul");
                }
            }
        }
        let leaf = |sizes| randn(sizes, (DType::F64, device))?.requires_grad_(true);
        let [x, weight] = [leaf([2, 3])?, leaf([4, 3])?];
        let call = |x: &[Tensor]| Ok(vec![linear_silu_mul(&x[0], &x[1])?]);
        gradcheck(call, &[x, weight], GradcheckOptions::default())?;
        let x = randn([2, 3], device)?;
        for sizes in [vec![3], vec![5, 3], vec![2, 2, 3]] {
            let error = linear_silu_mul(&x, &randn(&sizes[..], device)?).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        }
    }
    Ok(())
}

fn norms(world: &World) -> Result<()> {
    for device in world.places() {
        for dtype in FLOATS {
            let weight = randn([5], (DType::F64, device))?.to(dtype)?;
            let bias = randn([5], (DType::F64, device))?.to(dtype)?;
            for x in layouts([2, 3, 5], dtype, device)? {
                for residual in layouts([2, 3, 5], dtype, device)? {
                    let sum = x.add(&residual)?;
                    let options = LayerNormOptions::new().weight(&weight).bias(&bias);
                    let (normalized, own) = add_layer_norm(&x, &residual, 5, options)?;
                    assert!(own.equal(&sum)?, "the rounded sum");
                    assert_close(&normalized, &layer_norm(&sum, 5, options)?, "add_layer_norm");
                    let options = RMSNormOptions::new().weight(&weight);
                    let (normalized, own) = add_rms_norm(&x, &residual, 5, options)?;
                    assert!(own.equal(&sum)?, "the rounded sum");
                    assert_close(&normalized, &rms_norm(&sum, 5, options)?, "add_rms_norm");
                }
            }
        }
        // Operands of two dtypes are promoted.
        let x = randn([2, 5], (DType::F32, device))?;
        let residual = randn([2, 5], (DType::F64, device))?;
        let (normalized, sum) = add_rms_norm(&x, &residual, 5, ())?;
        assert_eq!((normalized.dtype(), sum.dtype()), (DType::F64, DType::F64));
        assert_close(&normalized, &rms_norm(&x.add(&residual)?, 5, ())?, "of two dtypes");
    }
    Ok(())
}

/// Rotates pairs of elements from both halves of a row, as `transformers` does: `x * cos +
/// rotate_half(x) * sin`.
fn rotated_halves(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = x.size()[x.dim() - 1] / 2;
    let (first, second) = (x.narrow(-1, 0, half)?, x.narrow(-1, half as isize, half)?);
    let turned = cat(&[&second.neg()?, &first], -1)?;
    x.mul(cos)?.add(&turned.mul(sin)?)
}

/// Rotates pairs of neighbouring elements, as Llama's paper does, with one angle per pair.
fn rotated_pairs(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let sizes = x.size().iter().map(|&n| n as isize);
    let half = x.size()[x.dim() - 1] as isize / 2;
    let paired: Vec<isize> = sizes.take(x.dim() - 1).chain([half, 2]).collect();
    let pairs = x.reshape(&paired)?;
    let (a, b) = (pairs.select(-1, 0)?, pairs.select(-1, 1)?);
    let first = a.mul(cos)?.sub(&b.mul(sin)?)?;
    let second = b.mul(cos)?.add(&a.mul(sin)?)?;
    let whole: Vec<isize> = x.size().iter().map(|&n| n as isize).collect();
    stack(&[&first, &second], -1)?.reshape(&whole)
}

fn rotations(world: &World) -> Result<()> {
    let (batch, heads, positions, width) = (2, 3, 5, 8);
    let pairs = RotaryEmbeddingOptions::new().interleaved(true);
    for device in world.places() {
        for dtype in FLOATS {
            // In memory, the heads come before the positions in one input, and after them in the other.
            let sizes = [batch, heads, positions, width];
            let memory = randn([batch, positions, heads, width], (DType::F64, device))?;
            let apart = memory.to(dtype)?.transpose(1, 2)?;
            for x in [apart.contiguous()?, apart] {
                let of_angles = [dtype, if dtype == DType::F64 { DType::F64 } else { DType::F32 }];
                for angles in of_angles {
                    let table = randn([batch, positions, width / 2], (DType::F64, device))?;
                    let [cos, sin] = [table.cos()?.to(angles)?, table.sin()?.to(angles)?];
                    let [twice_cos, twice_sin] = [cat(&[&cos, &cos], -1)?, cat(&[&sin, &sin], -1)?];
                    let over_heads = |t: &Tensor| wide(t)?.unsqueeze(1);
                    let halves = rotated_halves(
                        &wide(&x)?,
                        &over_heads(&twice_cos)?,
                        &over_heads(&twice_sin)?,
                    )?;
                    let neighbours =
                        rotated_pairs(&wide(&x)?, &over_heads(&cos)?, &over_heads(&sin)?)?;
                    let context = format!("{dtype} with angles of {angles}");
                    assert_close(&rotary_embedding(&x, &cos, &sin, ())?, &halves, &context);
                    let out = rotary_embedding(&x, &twice_cos, &twice_sin, ())?;
                    assert_close(&out, &halves, &context);
                    assert_eq!((out.size(), out.stride()), (&sizes[..], x.stride()));
                    assert_close(&rotary_embedding(&x, &cos, &sin, pairs)?, &neighbours, &context);
                    // Pass each angle twice, once for each element of a pair.
                    let twice = |t: &Tensor| stack(&[t, t], -1)?.flatten((2, 3));
                    let out = rotary_embedding(&x, &twice(&cos)?, &twice(&sin)?, pairs)?;
                    assert_close(&out, &neighbours, &context);
                    // Angles that depend only on the position, and a rotation of only a part of
                    // each row.
                    let (cos, sin) = (cos.select(0, 0)?, sin.select(0, 0)?);
                    let part = RotaryEmbeddingOptions::new().rotary_dim(4);
                    let (cos, sin) = (cos.narrow(1, 0, 2)?, sin.narrow(1, 0, 2)?);
                    let out = rotary_embedding(&x, &cos, &sin, part)?;
                    let turned = rotated_halves(
                        &wide(&x.narrow(-1, 0, 4)?)?,
                        &wide(&cat(&[&cos, &cos], -1)?)?,
                        &wide(&cat(&[&sin, &sin], -1)?)?,
                    )?;
                    let expected = cat(&[&turned, &wide(&x.narrow(-1, 4, 4)?)?], -1)?;
                    assert_close(&out, &expected, &context);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn rotations_have_gradients_of_all_layouts() {
    common::cpu(|world| {
        for device in world.places() {
            let options = (DType::F64, device);
            let inputs = [randn([2, 3, 2, 6], options)?.transpose(1, 2)?.requires_grad_(true)?];
            let angles = randn([3, 2], options)?;
            let (cos, sin) = (angles.cos()?, angles.sin()?);
            for interleaved in [false, true] {
                let rotation = RotaryEmbeddingOptions::new().interleaved(interleaved).rotary_dim(4);
                let f = |x: &[Tensor]| Ok(vec![rotary_embedding(&x[0], &cos, &sin, rotation)?]);
                gradcheck(f, &inputs, GradcheckOptions::default())?;
                gradgradcheck(f, &inputs, GradcheckOptions::default())?;
            }
        }
        Ok(())
    });
}

#[test]
fn arguments_of_rotations_that_do_not_fit_are_refused() {
    common::cpu(|_| {
        let x = randn([2, 3, 8], ())?;
        let angles = |sizes: [usize; 2]| randn(sizes, ());
        let says = |cos: &Tensor, rotary_dim: Option<usize>, words: &str| {
            let options = RotaryEmbeddingOptions::new().rotary_dim(rotary_dim);
            let text = rotary_embedding(&x, cos, cos, options).expect_err(words).to_string();
            assert!(text.contains("rotary_embedding") && text.contains(words), "{text}");
        };
        says(&angles([3, 3])?, None, "their last size must be 4 or 8");
        says(&angles([2, 4])?, None, "of sizes [2, 4] do not fit an input of sizes [2, 3, 8]");
        says(&randn([4], ())?, None, "their last size must be 4 or 8");
        says(&angles([3, 4])?, Some(3), "at most 8, the input's last size, not 3");
        says(&angles([3, 4])?, Some(10), "at most 8, the input's last size, not 10");
        says(&angles([3, 4])?.requires_grad_(true)?, None, "no gradient");
        says(&angles([3, 4])?.to(DType::F64)?, None, "torch.float64");
        Ok(())
    });
}

#[test]
fn a_cache_appends_prompts_and_single_positions() {
    common::worlds(1, |world| {
        for device in world.places() {
            for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
                let cache = KvCache::new([2, 3, 6, 4], (dtype, device))?;
                assert_eq!(cache.keys().device(), device);
                // In memory, positions come before heads, as in the result of a projection.
                let rows = |n: usize| randn([2, n, 3, 4], (DType::F64, device))?.to(dtype);
                let [k, v] = [rows(5)?.transpose(1, 2)?, rows(5)?.transpose(1, 2)?];
                for (start, count) in [(0, 3), (3, 1), (4, 1)] {
                    cache.append(&k.narrow(2, start, count)?, &v.narrow(2, start, count)?)?;
                }
                assert_eq!(cache.len().to_vec::<i64>()?, [5]);
                for (cached, source) in [(cache.keys(), &k), (cache.values(), &v)] {
                    assert!(cached.narrow(2, 0, 5)?.equal(source)?);
                    assert_eq!(cached.narrow(2, 5, 1)?.count_nonzero(())?.item::<i64>()?, 0);
                }
                // A program may remove positions by setting the length.
                cache.len().fill_(2)?;
                cache.append(&k.narrow(2, 4, 1)?, &v.narrow(2, 4, 1)?)?;
                assert!(cache.keys().narrow(2, 2, 1)?.equal(&k.narrow(2, 4, 1)?)?);
                cache.reset()?;
                assert_eq!(cache.len().to_vec::<i64>()?, [0]);
                assert_eq!(cache.keys().count_nonzero(())?.item::<i64>()?, 0);
            }
        }
        Ok(())
    });
}

/// Tests a graph that is captured once and appends a position for two layers in each replay.
fn replayed_appends(_: &World) -> Result<()> {
    let device = Device::cuda(0);
    let layers = [(); 2].map(|()| KvCache::new([1, 2, 8, 4], (DType::F32, device)));
    let layers = layers.into_iter().collect::<Result<Vec<_>>>()?;
    let prompt = full([1, 2, 3, 4], 9.0, (DType::F32, device))?;
    for layer in &layers {
        layer.append(&prompt, &prompt)?;
    }
    let token = full([1, 2, 1, 4], 0.0, (DType::F32, device))?;
    let mut graph = CudaGraph::new();
    let position = graph.capture(|| {
        let position = layers[0].len().mul(1)?;
        for layer in &layers {
            layer.append(&token, &token.mul(-1.0)?)?;
        }
        Ok(position)
    })?;
    for step in 0..4u8 {
        token.fill_(f32::from(step))?;
        graph.replay()?;
        assert_eq!(position.to_vec::<i64>()?, [3 + i64::from(step)]);
    }
    let expected = [9.0, 9.0, 9.0, 0.0, 1.0, 2.0, 3.0, 0.0];
    for layer in &layers {
        assert_eq!(layer.len().to_vec::<i64>()?, [7]);
        let of = |t: &Tensor| t.select(1, 1)?.select(-1, 2)?.to_vec::<f32>();
        assert_eq!(of(layer.keys())?, expected);
        assert_eq!(of(layer.values())?, expected.map(|x| if x == 9.0 { x } else { -x }));
    }
    // Attention over the whole capacity must mask positions beyond the length.
    let mask = arange(8i64, device)?.lt(layers[0].len())?;
    assert_eq!(mask.to(DType::I64)?.sum(())?.item::<i64>()?, 7);
    Ok(())
}

/// Tests that an append beyond the capacity is reported, also in a replay, until the cache is reset.
fn full_cache(_: &World) -> Result<()> {
    let device = Device::cuda(0);
    let cache = KvCache::new([1, 1, 2, 4], (DType::F32, device))?;
    let token = full([1, 1, 1, 4], 1.0, (DType::F32, device))?;
    let mut graph = CudaGraph::new();
    graph.capture(|| cache.append(&token, &token))?;
    for replays in [false, true] {
        let append = || if replays { graph.replay() } else { cache.append(&token, &token) };
        for _ in 0..2 {
            append()?;
        }
        assert_eq!(cache.len().to_vec::<i64>()?, [2]);
        append()?;
        let check = failed(cache.keys().to_vec::<f32>());
        assert_eq!((check.op, check.index, check.dim, check.size), ("append", 2, 2, 2));
        assert_eq!(failed(cache.len().to_vec::<i64>()).index, 2);
        assert_eq!(failed(append()).index, 2);
        let _ = cuda::synchronize(0);
        cache.reset()?;
        assert_eq!(cache.len().to_vec::<i64>()?, [0]);
    }
    Ok(())
}

#[test]
fn arguments_of_a_cache_that_do_not_fit_are_refused() {
    common::cpu(|_| {
        let kind = |result: Result<()>| result.expect_err("refused").kind().clone();
        let new = KvCache::new([1, 2, 3], ()).map(drop);
        assert!(matches!(kind(new), ErrorKind::ShapeMismatch { .. }));
        let cache = KvCache::new([1, 2, 3, 4], ())?;
        let of = |sizes: [usize; 4]| randn(sizes, ());
        let one = of([1, 2, 1, 4])?;
        let append = |k: &Tensor, v: &Tensor| kind(cache.append(k, v));
        assert!(matches!(append(&one, &of([1, 2, 2, 4])?), ErrorKind::ShapeMismatch { .. }));
        assert!(matches!(append(&tensor(1f32, ())?, &one), ErrorKind::ShapeMismatch { .. }));
        let many = of([1, 2, 4, 4])?;
        assert!(matches!(append(&many, &many), ErrorKind::InvalidArgument { .. }));
        let double = one.to(DType::F64)?;
        assert!(matches!(append(&double, &double), ErrorKind::DTypeMismatch { .. }));
        let leaf = of([1, 2, 1, 4])?.requires_grad_(true)?;
        assert!(matches!(append(&leaf, &one), ErrorKind::Gradient { .. }));
        // The CPU returns the failed check at once.
        for _ in 0..3 {
            cache.append(&one, &one)?;
        }
        let full = append(&one, &one);
        assert!(matches!(full, ErrorKind::IndexCheck { index: 3, dim: 2, size: 3 }));
        assert_eq!(failed(cache.keys().to_vec::<f32>()).index, 3);
        cache.reset()?;
        cache.append(&one, &one)?;
        assert!(cache.keys().narrow(2, 0, 1)?.equal(&one)?);
        Ok(())
    });
}
