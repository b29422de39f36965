//! Tests of options and errors of losses, normalizations and attention.

use warpline::functional::{
    AttentionOptions, BatchNormOptions, CrossEntropyLossOptions, HuberLossOptions,
    InstanceNormOptions, LayerNormOptions, NLLLossOptions, PadMode, Reduction, SmoothL1LossOptions,
    add_layer_norm, add_rms_norm, batch_norm, cross_entropy, glu, group_norm, huber_loss,
    instance_norm, layer_norm, linear, mse_loss, nll_loss, pad, pixel_shuffle, rms_norm,
    scaled_dot_product_attention, smooth_l1_loss,
};
use warpline::{
    DType, ErrorKind, IsCloseOptions, Result, Tensor, arange, full, manual_seed, ones, tensor,
    zeros,
};

use crate::common;

fn close(actual: &Tensor, expected: &[f64]) -> Result<()> {
    let actual = actual.to((DType::F64, "cpu"))?.reshape([-1])?;
    let expected = tensor(expected, ())?;
    assert!(
        actual.allclose(&expected, IsCloseOptions::new().atol(1e-6).equal_nan(true))?,
        "{actual} instead of {expected}"
    );
    Ok(())
}

#[test]
fn ignored_targets_count_nowhere() {
    common::worlds(1, |world| {
        for place in world.places() {
            let log = tensor([[-1f32, -2.0], [-3.0, -4.0], [-5.0, -6.0]], place)?;
            let target = tensor([0i64, -100, 1], place)?;
            let plain = NLLLossOptions::default();
            close(&nll_loss(&log, &target, plain)?, &[3.5])?;
            let none = plain.reduction(Reduction::None);
            close(&nll_loss(&log, &target, none)?, &[1.0, 0.0, 6.0])?;
            let weight = tensor([1f32, 3.0], place)?;
            let weighed = plain.weight(&weight);
            close(&nll_loss(&log, &target, weighed)?, &[19.0 / 4.0])?;
            let other = plain.ignore_index(1);
            close(&nll_loss(&log, &tensor([0i64, 1, 1], place)?, other)?, &[1.0])?;
            let all = full([3], -100, place)?;
            assert!(nll_loss(&log, &all, plain)?.item::<f32>()?.is_nan());
            // A single element without a batch dimension.
            close(&nll_loss(&log.select(0, 0)?, &tensor(1i64, place)?, plain)?, &[2.0])?;
        }
        Ok(())
    });
}

#[test]
fn half_width_losses_may_have_sums_that_do_not_fit() {
    common::cpu(|_| {
        // Each row's loss is 10, and their sum of 81920 exceeds the range of float16.
        let logits = tensor([10f32, 0.0], DType::F16)?.unsqueeze(0)?.expand([8192, 2])?;
        let loss = cross_entropy(&logits, &ones([8192], DType::I64)?, ())?;
        assert_eq!(loss.dtype(), DType::F16);
        close(&loss, &[10.0])
    });
}

#[test]
fn an_index_of_no_class_is_an_error() {
    common::cpu(|_| {
        let logits = zeros([2, 3], ())?;
        let options = CrossEntropyLossOptions::default();
        let error = cross_entropy(&logits, &tensor([0i64, 3], ())?, options).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::IndexCheck { .. }), "{error}");
        let error = cross_entropy(&logits, &tensor([0i64], ())?, options).unwrap_err();
        assert!(error.to_string().contains("must have sizes [2], but has [1]"), "{error}");
        let weight = ones([2], ())?;
        let options = options.weight(&weight);
        let error = cross_entropy(&logits, &tensor([0i64, 1], ())?, options).unwrap_err();
        assert!(error.to_string().contains("each of 3 classes"), "{error}");
        let options = CrossEntropyLossOptions::new().label_smoothing(1.5);
        assert!(cross_entropy(&logits, &tensor([0i64, 1], ())?, options).is_err());
        let batch = mse_loss(&logits, &logits, Reduction::BatchMean).unwrap_err();
        assert!(batch.to_string().contains("kl_div"), "{batch}");
        assert!(smooth_l1_loss(&logits, &logits, SmoothL1LossOptions::new().beta(-1.0)).is_err());
        assert!(huber_loss(&logits, &logits, HuberLossOptions::new().delta(0.0)).is_err());
        Ok(())
    });
}

#[test]
fn running_statistics_follow_the_batches() {
    common::worlds(1, |world| {
        for place in world.places() {
            let x = tensor([[1f32, 10.0], [3.0, 14.0]], place)?;
            let (mean, var) = (zeros([2], place)?, ones([2], place)?);
            let options = BatchNormOptions::new().training(true).eps(0.0);
            close(&batch_norm(&x, &mean, &var, options)?, &[-1.0, -1.0, 1.0, 1.0])?;
            close(&mean, &[0.2, 1.2])?;
            // The unbiased variances are 2 and 8.
            close(&var, &[1.1, 1.7])?;
            let evaluated = options.training(false);
            let (mean, var) = (tensor([1f32, 2.0], place)?, tensor([4f32, 16.0], place)?);
            close(&batch_norm(&x, &mean, &var, evaluated)?, &[0.0, 2.0, 1.0, 3.0])?;
            close(&mean, &[1.0, 2.0])?;
            let images = arange(8, (DType::F32, place))?.reshape([2, 2, 2])?;
            let (mean, var) = (zeros([2], place)?, ones([2], place)?);
            let options = InstanceNormOptions::new().momentum(1.0);
            instance_norm(&images, &mean, &var, options)?;
            close(&mean, &[2.5, 4.5])?;
            close(&var, &[0.5, 0.5])?;
        }
        Ok(())
    });
}

#[test]
fn a_training_step_changes_statistics_without_a_gradient() {
    common::cpu(|_| {
        let x = tensor([[1f64], [2.0], [4.0]], ())?.requires_grad_(true)?;
        let (mean, var) = (zeros([1], DType::F64)?, ones([1], DType::F64)?);
        let options = BatchNormOptions::new().training(true);
        batch_norm(&x, &mean, &var, options)?.square()?.sum(())?.backward()?;
        assert!(x.grad().is_some() && !mean.requires_grad() && !var.requires_grad());
        Ok(())
    });
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    common::cpu(|_| {
        let x = zeros([2, 4], ())?;
        let says = |result: Result<Tensor>, words: &str| {
            let text = result.expect_err(words).to_string();
            assert!(text.contains(words), "{text}");
        };
        says(layer_norm(&x, 3, ()), "normalized_shape [3]");
        says(
            layer_norm(&x, 4, LayerNormOptions::new().weight(&ones(2, ())?)),
            "the weight must have shape [4]",
        );
        says(rms_norm(&x, (), ()), "normalized_shape []");
        says(layer_norm(&x.to(DType::I64)?, 4, ()), "torch.int64");
        let first = |(normalized, _): (Tensor, Tensor)| normalized;
        says(
            add_rms_norm(&x, &zeros(4, ())?, 4, ()).map(first),
            "the residual must have shape [2, 4]",
        );
        says(add_layer_norm(&x, &x, 3, ()).map(first), "normalized_shape [3]");
        says(group_norm(&x, 3, ()), "3 groups must divide 4 channels");
        let training = BatchNormOptions::new().training(true);
        says(batch_norm(&x.narrow(0, 0, 1)?, None, None, training), "more than one value");
        says(batch_norm(&x, None, None, ()), "running_mean and running_var");
        says(
            batch_norm(&x, &ones(3, ())?, None, training),
            "running_mean must have one element per channel",
        );
        says(instance_norm(&x, None, None, ()), "more than one value");
        says(glu(&zeros(3, ())?, 0), "must have an even size, not 3");
        says(pad(&x, [1], ()), "two numbers");
        says(pad(&x, [4, 0], PadMode::Reflect), "cannot be padded by 4");
        says(pad(&x, [-3, -2], ()), "more than dimension 1 has");
        says(pixel_shuffle(&zeros([3, 2, 2], ())?, 2), "must divide 3 channels");
        says(linear(&x, &zeros([5, 3], ())?, None), "cannot be multiplied");
        Ok(())
    });
}

#[test]
fn attention_names_unsupported_arguments() {
    common::cpu(|_| {
        let (x, mask) = (zeros([1, 2, 3], ())?, zeros([2, 2], DType::I64)?);
        let says = |options: AttentionOptions<'_>, words: &str| {
            let error = scaled_dot_product_attention(&x, &x, &x, options).expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        };
        says(
            AttentionOptions::new().attn_mask(&mask),
            "must have dtype torch.bool, but has dtype torch.int64",
        );
        let float = zeros([2, 2], ())?;
        let both = AttentionOptions::new().attn_mask(&float).is_causal(true);
        says(both, "cannot be given both");
        says(AttentionOptions::new().dropout_p(1.5), "dropout_p");
        let heads = zeros([3, 2, 3], ())?;
        let gqa = AttentionOptions::new().enable_gqa(true);
        let error = scaled_dot_product_attention(&zeros([4, 2, 3], ())?, &heads, &heads, gqa);
        assert!(error.is_err_and(|e| e.to_string().contains("do not divide")));
        Ok(())
    });
}

#[test]
fn dropped_weights_are_zero_and_the_others_larger() {
    common::worlds(1, |world| {
        for place in world.places() {
            manual_seed(5);
            let (q, k) = (zeros([1, 64, 2], place)?, zeros([1, 1, 2], place)?);
            let dropped = |dropout_p| {
                let options = AttentionOptions::new().dropout_p(dropout_p);
                let out = scaled_dot_product_attention(&q, &k, &ones([1, 1, 1], place)?, options);
                out?.to_vec::<f32>()
            };
            let half = dropped(0.5)?;
            assert!(half.iter().all(|w| [0.0, 2.0].contains(w)), "{half:?}");
            assert!(half.contains(&0.0) && half.contains(&2.0), "{half:?}");
            assert_eq!(dropped(1.0)?, [0.0; 64]);
        }
        Ok(())
    });
}
