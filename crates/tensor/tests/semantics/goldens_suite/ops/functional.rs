//! Functions of `torch.nn.functional`, apart from activations, convolutions and pools.

use warpline::functional::{
    self as f, AttentionOptions, BatchNormOptions, CrossEntropyLossOptions, InstanceNormOptions,
    NLLLossOptions, PadMode, Reduction,
};
use warpline::{Device, Result, Tensor};

use super::{Args, Outcome, one};
use crate::goldens_suite::cases::bad;

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    match op {
        "pad" | "glu" | "softmin" | "normalize" | "cosine_similarity" | "pixel_shuffle"
        | "pixel_unshuffle" | "linear" => one(simple(op, args)),
        "layer_norm" | "rms_norm" | "group_norm" | "batch_norm" | "instance_norm" => {
            one(norm(op, args))
        }
        "scaled_dot_product_attention" => one(attention(args)),
        "cross_entropy"
        | "nll_loss"
        | "mse_loss"
        | "l1_loss"
        | "smooth_l1_loss"
        | "huber_loss"
        | "binary_cross_entropy"
        | "binary_cross_entropy_with_logits"
        | "kl_div" => one(loss(op, args)),
        _ => None,
    }
}

fn float(args: &Args<'_>, name: &str, default: f64) -> f64 {
    args.attrs[name].as_f64().unwrap_or(default)
}

fn simple(op: &str, args: &Args<'_>) -> Result<Tensor> {
    let a = args.tensor(0)?;
    match op {
        "pad" => {
            let mode = match args.attrs["mode"].as_str() {
                None | Some("constant") => PadMode::default(),
                Some("reflect") => PadMode::Reflect,
                Some("replicate") => PadMode::Replicate,
                _ => PadMode::Circular,
            };
            f::pad(a, args.ints("pad"), mode)
        }
        "glu" => f::glu(a, args.int("dim")?),
        "softmin" => f::softmin(a, args.int("dim")?),
        "normalize" => f::normalize(
            a,
            f::NormalizeOptions::new().p(float(args, "p", 2.0)).dim(args.int("dim")?),
        ),
        "cosine_similarity" => f::cosine_similarity(
            a,
            args.tensor(1)?,
            f::CosineSimilarityOptions::new().dim(args.int("dim")?),
        ),
        "pixel_shuffle" => f::pixel_shuffle(a, args.int("upscale_factor")? as usize),
        "pixel_unshuffle" => f::pixel_unshuffle(a, args.int("downscale_factor")? as usize),
        _ => f::linear(a, args.tensor(1)?, args.tensor(2).ok()),
    }
}

fn norm(op: &str, args: &Args<'_>) -> Result<Tensor> {
    let (a, eps) = (args.tensor(0)?, float(args, "eps", 1e-5));
    let shape: Vec<usize> = args.ints("normalized_shape").iter().map(|&n| n as usize).collect();
    let (weight, bias) = (args.tensor(1).ok(), args.tensor(2).ok());
    match op {
        "layer_norm" => {
            f::layer_norm(a, shape, f::LayerNormOptions::new().weight(weight).bias(bias).eps(eps))
        }
        "rms_norm" => f::rms_norm(a, shape, f::RMSNormOptions::new().weight(weight).eps(eps)),
        "group_norm" => f::group_norm(
            a,
            args.int("num_groups")? as usize,
            f::GroupNormOptions::new().weight(weight).bias(bias).eps(eps),
        ),
        "instance_norm" => {
            let options = InstanceNormOptions::new().eps(eps);
            f::instance_norm(a, None, None, options)
        }
        _ => {
            let training = args.flag("training");
            let options =
                BatchNormOptions::new().weight(weight).bias(bias).training(training).eps(eps);
            f::batch_norm(a, args.tensor(3).ok(), args.tensor(4).ok(), options)
        }
    }
}

fn attention(args: &Args<'_>) -> Result<Tensor> {
    let options = AttentionOptions::new()
        .attn_mask(args.tensor(3).ok())
        .is_causal(args.flag("is_causal"))
        .scale(args.attrs["scale"].as_f64())
        .enable_gqa(args.flag("enable_gqa"));
    f::scaled_dot_product_attention(args.tensor(0)?, args.tensor(1)?, args.tensor(2)?, options)
}

fn loss(op: &str, args: &Args<'_>) -> Result<Tensor> {
    let (a, target, weight) = (args.tensor(0)?, args.tensor(1)?, args.tensor(2).ok());
    let reduction = match args.attrs["reduction"].as_str() {
        None | Some("mean") => Reduction::Mean,
        Some("sum") => Reduction::Sum,
        Some("none") => Reduction::None,
        Some("batchmean") => Reduction::BatchMean,
        Some(other) => return Err(bad(format!("no reduction {other}"))),
    };
    match op {
        "cross_entropy" => {
            let label_smoothing = float(args, "label_smoothing", 0.0);
            let options = CrossEntropyLossOptions::new()
                .weight(weight)
                .reduction(reduction)
                .label_smoothing(label_smoothing);
            f::cross_entropy(a, target, options)
        }
        "nll_loss" => {
            let options = NLLLossOptions::new().weight(weight).reduction(reduction);
            f::nll_loss(a, target, options)
        }
        "mse_loss" => f::mse_loss(a, target, reduction),
        "l1_loss" => f::l1_loss(a, target, reduction),
        "smooth_l1_loss" => f::smooth_l1_loss(
            a,
            target,
            f::SmoothL1LossOptions::from(reduction).beta(float(args, "beta", 1.0)),
        ),
        "huber_loss" => f::huber_loss(
            a,
            target,
            f::HuberLossOptions::from(reduction).delta(float(args, "delta", 1.0)),
        ),
        "binary_cross_entropy" => {
            f::binary_cross_entropy(a, target, f::BCELossOptions::from(reduction).weight(weight))
        }
        "kl_div" => f::kl_div(
            a,
            target,
            f::KLDivLossOptions::from(reduction).log_target(args.flag("log_target")),
        ),
        _ => f::binary_cross_entropy_with_logits(
            a,
            target,
            f::BCEWithLogitsLossOptions::from(reduction).weight(weight),
        ),
    }
}
