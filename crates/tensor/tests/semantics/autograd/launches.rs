//! Tests of the number of launches in a training step. Launches take most of the time of a small
//! network.

use warpline::autograd::{self, GradOptions};
use warpline::functional::{
    AttentionOptions, BatchNormOptions, ConvOptions, KvCache, LayerNormOptions, RMSNormOptions,
    add_rms_norm, batch_norm, conv2d, cross_entropy, layer_norm, linear, linear_silu_mul,
    rotary_embedding, scaled_dot_product_attention, silu_mul,
};
use warpline::{
    DType, Device, MemoryFormat, Result, Tensor, TensorOrScalar, apply_elementwise, ones, randint,
    randn, tensor,
};
use warpline_cuda_sys_safe::sim::CallKind;
use warpline_kernels::elementwise::{Op, table};

use crate::boxes::SimBox;

/// Returns the weight and the bias of a linear layer.
fn layer(inputs: usize, outputs: usize) -> Result<[Tensor; 2]> {
    let options = (DType::F32, Device::cuda(0));
    let weight = randn([outputs, inputs], options)?.requires_grad_(true)?;
    Ok([weight, randn([outputs], options)?.requires_grad_(true)?])
}

/// Runs `f` and returns the number of launches, copies and fills that it enqueued.
fn enqueued<R>(sim: &SimBox, f: impl FnOnce() -> Result<R>) -> Result<(R, u64)> {
    let all = || {
        [CallKind::Launch, CallKind::MemcpyAsync, CallKind::MemsetAsync]
            .iter()
            .map(|&kind| sim.count(kind))
            .sum::<u64>()
    };
    let before = all();
    let result = f()?;
    Ok((result, all() - before))
}

#[test]
fn a_linear_layer_takes_two_launches_forward_and_three_backward() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let [weight, bias] = layer(32, 16)?;
        let x = randn([8, 32], Device::cuda(0))?.requires_grad_(true)?;
        let grad = randn([8, 16], Device::cuda(0))?;
        let (y, forward) = enqueued(&sim, || linear(&x, &weight, &bias))?;
        let ((), backward) = enqueued(&sim, || y.backward_with(&grad))?;
        assert_eq!((forward, backward), (2, 3));
        Ok(())
    });
}

#[test]
fn three_layers_take_ten_launches_forward_and_twelve_backward() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let layers = [layer(256, 256)?, layer(256, 256)?, layer(256, 10)?];
        let x = randn([64, 256], Device::cuda(0))?;
        let classes = randint(0, 10, [64], Device::cuda(0))?;
        let (loss, forward) = enqueued(&sim, || {
            let x = linear(&x, &layers[0][0], &layers[0][1])?.relu()?;
            let x = linear(&x, &layers[1][0], &layers[1][1])?.relu()?;
            let logits = linear(&x, &layers[2][0], &layers[2][1])?;
            cross_entropy(&logits, &classes, ())
        })?;
        let ((), backward) = enqueued(&sim, || loss.backward())?;
        // Forward: three products, three bias sums, two activations, and two launches for the loss.
        // Backward: the loss's initial 1 and its gradient, five products (the input needs no
        // gradient), three bias gradients and two activations.
        assert_eq!((forward, backward), (10, 12));
        loss.item::<f32>()?;
        Ok(())
    });
}

#[test]
fn a_layer_norm_takes_one_launch_forward_and_two_backward() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let [weight, bias] = layer(1, 32)?;
        let weight = weight.reshape([-1])?.detach().requires_grad_(true)?;
        let x = randn([8, 32], Device::cuda(0))?.requires_grad_(true)?;
        let grad = randn([8, 32], Device::cuda(0))?;
        let options = LayerNormOptions::new().weight(&weight).bias(&bias);
        let (y, forward) = enqueued(&sim, || layer_norm(&x, 32, options))?;
        let ((), backward) = enqueued(&sim, || y.backward_with(&grad))?;
        assert_eq!((forward, backward), (1, 2));
        Ok(())
    });
}

/// A block of a ResNet. A copy to another memory format would be an additional launch.
#[test]
fn a_residual_block_takes_as_many_launches_in_each_memory_format() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        for format in [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast] {
            let leaf = |sizes: &[usize]| {
                let t = randn(sizes, Device::cuda(0))?;
                let t = if sizes.len() == 4 { t.contiguous_in(format)? } else { t };
                t.requires_grad_(true)
            };
            let x = leaf(&[2, 8, 6, 6])?;
            let kernels = [leaf(&[8, 8, 3, 3])?, leaf(&[8, 8, 3, 3])?];
            let (gain, shift) = (leaf(&[8])?, leaf(&[8])?);
            let (mean, var) = (ones([8], Device::cuda(0))?, ones([8], Device::cuda(0))?);
            let grad = randn([2, 8, 6, 6], Device::cuda(0))?.contiguous_in(format)?;
            let layer = |x: &Tensor, kernel: &Tensor| {
                let y = conv2d(x, kernel, None, ConvOptions::new().padding(1))?;
                let options = BatchNormOptions::new().weight(&gain).bias(&shift).training(true);
                batch_norm(&y, &mean, &var, options)
            };
            let (y, forward) = enqueued(&sim, || {
                let y = layer(&layer(&x, &kernels[0])?.relu()?, &kernels[1])?;
                y.add(&x)?.relu()
            })?;
            let ((), backward) = enqueued(&sim, || y.backward_with(&grad))?;
            // Forward: two convolutions, two launches for each norm, two activations, and the sum with
            // the residual. Backward: two launches for each convolution and each norm, two
            // activations, and three sums of two gradients: of the image, and of the weight and the
            // bias that both norms share.
            assert_eq!((forward, backward), (9, 13), "{format:?}");
        }
        Ok(())
    });
}

#[test]
fn a_norm_of_a_sum_takes_as_many_launches_as_the_norm() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let leaf = |sizes: &[usize]| randn(sizes, Device::cuda(0))?.requires_grad_(true);
        let (x, residual, weight) = (leaf(&[8, 32])?, leaf(&[8, 32])?, leaf(&[32])?);
        let options = RMSNormOptions::new().weight(&weight);
        let ((y, sum), forward) = enqueued(&sim, || add_rms_norm(&x, &residual, 32, options))?;
        let grads = [randn([8, 32], Device::cuda(0))?, randn([8, 32], Device::cuda(0))?];
        let grads = grads.each_ref().map(Some);
        let inputs = [&x, &residual, &weight];
        let (_, backward) = enqueued(&sim, || {
            autograd::grad(&[&y, &sum], &inputs, GradOptions::new().grad_outputs(&grads))
        })?;
        assert_eq!((forward, backward), (1, 2));
        Ok(())
    });
}

#[test]
fn functions_of_a_decoder_take_one_launch_each() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let options = (DType::BF16, Device::cuda(0));
        let heads = |n: usize| randn([1, 3, n, 8], options)?.transpose(1, 2);
        let (q, v, angles) = (heads(4)?, heads(2)?, randn([3, 8], options)?);
        let q = q.detach().requires_grad_(true)?;
        let (rotated, count) = enqueued(&sim, || rotary_embedding(&q, &angles, &angles, ()))?;
        assert_eq!(count, 1);
        let grad = randn([1, 4, 3, 8], options)?;
        let (_, count) = enqueued(&sim, || {
            autograd::grad(&[&rotated], &[&q], GradOptions::new().grad_outputs(&[Some(&grad)]))
        })?;
        assert_eq!(count, 1);
        let cache = KvCache::new([1, 2, 16, 8], options)?;
        assert_eq!(enqueued(&sim, || cache.append(&v, &v))?.1, 1);
        assert_eq!(enqueued(&sim, || silu_mul(&v, &v))?.1, 1);
        let (x, weight) = (randn([1, 1, 64], options)?, randn([128, 64], options)?);
        assert_eq!(enqueued(&sim, || linear_silu_mul(&x, &weight))?.1, 1);
        Ok(())
    });
}

#[test]
fn parts_of_a_split_are_joined_by_one_launch() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let x = randn([8, 12], Device::cuda(0))?.requires_grad_(true)?;
        let parts = x.split(4, 1)?;
        let y = parts[0].mul(&parts[1])?.mul(&parts[2])?;
        let grad = randn([8, 4], Device::cuda(0))?;
        let ((), backward) = enqueued(&sim, || y.backward_with(&grad))?;
        assert_eq!(backward, 2 + 1);
        Ok(())
    });
}

/// Returns the numbers of launches of the forward and the backward pass. Each head has 8 elements,
/// and the heads of queries, keys and values lie side by side in one tensor.
fn attention_over_packed_heads(dtype: DType) -> Result<(u64, u64)> {
    let sim = SimBox::lazy(1);
    let mut counts = (0, 0);
    sim.enter(|| {
        let [b, l, heads, width] = [2, 8, 2, 8];
        let of = |width| randn([b, l, width], (dtype, Device::cuda(0)));
        let packed = of(3 * heads * width)?.requires_grad_(true)?;
        let parts = packed.split(heads * width, 2)?;
        let apart = |t: &Tensor| t.view([b, l, heads, width].map(|n| n as isize))?.transpose(1, 2);
        let (q, k, v) = (apart(&parts[0])?, apart(&parts[1])?, apart(&parts[2])?);
        let grad = of(heads * width)?;
        let causal = AttentionOptions::new().is_causal(true);
        let (y, forward) = enqueued(&sim, || {
            let y = scaled_dot_product_attention(&q, &k, &v, causal)?;
            y.transpose(1, 2)?.reshape([b, l, heads * width].map(|n| n as isize))
        })?;
        let ((), backward) = enqueued(&sim, || y.backward_with(&grad))?;
        counts = (forward, backward);
        Ok(())
    });
    Ok(counts)
}

#[test]
fn attention_of_halves_takes_one_launch_forward_and_three_backward() {
    // Backward: one launch for the queries, one for keys and values, and one for the split.
    assert_eq!(attention_over_packed_heads(DType::BF16).unwrap(), (1, 3));
}

#[test]
fn attention_of_other_dtypes_takes_seven_launches_forward_and_ten_backward() {
    // Forward: copies of the three operands, two products, the weights, and a copy that puts the
    // heads side by side. Backward: a copy of the gradient, the gradients of weights and scores,
    // three products, three copies that put the heads side by side, and one launch for the split.
    assert_eq!(attention_over_packed_heads(DType::F32).unwrap(), (7, 10));
}

/// Returns operands in the op's domain. Each operand that can have a gradient requires one.
fn operands(op: &'static Op) -> Result<Vec<Tensor>> {
    let differentiable = |k| op.backward().is_some_and(|b| b.formula().gradient(k).is_some());
    let operand = |k: usize| {
        let values: Vec<f32> = (0..8)
            .map(|i| {
                let range = op.domain(k);
                (range.start + (range.end - range.start) * f64::from(2 * i + 1) / 16.0) as f32
            })
            .collect();
        match op.is_condition(k) {
            true => tensor((0..8).map(|i| i % 3 == 0).collect::<Vec<_>>(), Device::cuda(0)),
            false => tensor(values, Device::cuda(0))?.requires_grad_(differentiable(k)),
        }
    };
    (0..op.inputs()).map(operand).collect()
}

#[test]
fn a_backward_pass_of_an_elementwise_op_is_one_launch() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let ops = table().filter(|op| op.dtypes(DType::F32).is_ok() && op.backward().is_some());
        let mut passes = 0;
        for op in ops {
            let operands = operands(op)?;
            let given: Vec<TensorOrScalar<'_>> = operands.iter().map(Into::into).collect();
            let out = apply_elementwise(op, &given)?;
            let grad = ones([8], Device::cuda(0))?;
            let inputs: Vec<&Tensor> = operands.iter().filter(|t| t.requires_grad()).collect();
            let (grads, launches) = enqueued(&sim, || {
                autograd::grad(&[&out], &inputs, GradOptions::new().grad_outputs(&[Some(&grad)]))
            })?;
            assert_eq!(grads.len(), inputs.len(), "{}", op.name());
            assert!(launches <= 1, "{}: {launches}", op.name());
            passes += launches;
        }
        assert!(passes > 60, "{passes}");
        Ok(())
    });
}

#[test]
fn a_gradient_without_other_operands_runs_an_op() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let x = randn([8], Device::cuda(0))?.requires_grad_(true)?;
        let y = randn([8], Device::cuda(0))?;
        let grad = randn([8], Device::cuda(0))?;
        let product = x.mul(&y)?;
        let ((), backward) = enqueued(&sim, || product.backward_with(&grad))?;
        assert_eq!(backward, 1);
        Ok(())
    });
}

/// For grouped heads, neither keys nor values are copied or repeated.
#[test]
fn attention_of_few_queries_is_one_launch() {
    let sim = SimBox::lazy(1);
    sim.enter(|| {
        let of = |heads: usize, rows: usize| randn([1, heads, rows, 64], (DType::BF16, 0));
        let (q, k, v) = (of(8, 1)?, of(2, 100)?, of(2, 100)?);
        let mask = ones([1, 1, 1, 100], (DType::Bool, 0))?;
        let lengths = ones([1], (DType::I64, 0))?;
        for mask in [None, Some(&mask)] {
            let options = AttentionOptions::new().attn_mask(mask).key_lengths(&lengths);
            let options = options.enable_gqa(true);
            let run = || scaled_dot_product_attention(&q, &k, &v, options);
            assert_eq!(enqueued(&sim, run)?.1, 1);
        }
        Ok(())
    });
}
