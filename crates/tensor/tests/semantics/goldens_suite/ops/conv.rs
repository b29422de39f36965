//! Convolutions, pools and resizing.

use serde_json::Value;
use warpline::Device;
use warpline::functional::{
    self as f, AvgPoolOptions, ConvOptions, ConvTransposeOptions, FoldOptions, InterpolateMode,
    InterpolateOptions, MaxPoolOptions, Padding,
};

use super::{Args, Outcome, one, pair};

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    let input = || args.tensor(0);
    let bias = || args.tensor(2).ok();
    macro_rules! conv {
        ($name:ident) => {
            one(input().and_then(|x| f::$name(x, args.tensor(1)?, bias(), options(args))))
        };
    }
    macro_rules! conv_transpose {
        ($name:ident) => {
            one(input().and_then(|x| f::$name(x, args.tensor(1)?, bias(), transposed(args))))
        };
    }
    macro_rules! max_pool {
        ($name:ident $with_indices:ident) => {{
            let kernel = sizes(args, "kernel_size", 1);
            if args.flag("return_indices") {
                pair(input().and_then(|x| f::$with_indices(x, kernel, max_options(args))))
            } else {
                one(input().and_then(|x| f::$name(x, kernel, max_options(args))))
            }
        }};
    }
    macro_rules! avg_pool {
        ($name:ident) => {
            one(input().and_then(|x| f::$name(x, sizes(args, "kernel_size", 1), avg_options(args))))
        };
    }
    macro_rules! adaptive {
        ($name:ident) => {
            one(input().and_then(|x| f::$name(x, sizes(args, "output_size", 1))))
        };
    }
    match op {
        "conv1d" => conv!(conv1d),
        "conv2d" => conv!(conv2d),
        "conv3d" => conv!(conv3d),
        "conv_transpose1d" => conv_transpose!(conv_transpose1d),
        "conv_transpose2d" => conv_transpose!(conv_transpose2d),
        "conv_transpose3d" => conv_transpose!(conv_transpose3d),
        "max_pool1d" => max_pool!(max_pool1d max_pool1d_with_indices),
        "max_pool2d" => max_pool!(max_pool2d max_pool2d_with_indices),
        "avg_pool1d" => avg_pool!(avg_pool1d),
        "avg_pool2d" => avg_pool!(avg_pool2d),
        "adaptive_avg_pool2d" => adaptive!(adaptive_avg_pool2d),
        "adaptive_max_pool2d" => adaptive!(adaptive_max_pool2d),
        "im2col" => {
            let options = FoldOptions::new()
                .stride(sizes(args, "stride", 1))
                .padding(sizes(args, "padding", 0))
                .dilation(sizes(args, "dilation", 1));
            one(input().and_then(|x| f::unfold(x, sizes(args, "kernel_size", 1), options)))
        }
        "interpolate" => {
            let numbers = |name: &str| args.attrs[name].as_array().into_iter().flatten();
            let factor = args.attrs["scale_factor"].as_f64();
            let factors: Vec<f64> =
                numbers("scale_factor").filter_map(Value::as_f64).chain(factor).collect();
            let size: Vec<usize> = args.ints("size").iter().map(|&n| n as usize).collect();
            let mode = match args.attrs["mode"].as_str() {
                Some("nearest-exact") => InterpolateMode::NearestExact,
                Some("linear") => InterpolateMode::Linear,
                Some("bilinear") => InterpolateMode::Bilinear,
                Some("bicubic") => InterpolateMode::Bicubic,
                Some("trilinear") => InterpolateMode::Trilinear,
                Some("area") => InterpolateMode::Area,
                _ => InterpolateMode::Nearest,
            };
            let mut options =
                InterpolateOptions::new().mode(mode).align_corners(args.flag("align_corners"));
            if !size.is_empty() {
                options = options.size(size);
            }
            if !factors.is_empty() {
                options = options.scale_factor(&factors[..]);
            }
            one(input().and_then(|x| f::interpolate(x, options)))
        }
        _ => None,
    }
}

/// Reads a number for each dimension, or one number for all.
fn sizes<const D: usize>(args: &Args<'_>, name: &str, default: usize) -> [usize; D] {
    let (values, all) = (args.ints(name), args.int(name).ok());
    std::array::from_fn(|d| values.get(d).copied().or(all).map_or(default, |v| v as usize))
}

fn options<const D: usize>(args: &Args<'_>) -> ConvOptions<D> {
    let padding = match args.attrs["padding"].as_str() {
        Some("same") => Padding::Same,
        Some(_) => Padding::Valid,
        None => Padding::Zeros(sizes(args, "padding", 0)),
    };
    ConvOptions::new()
        .stride(sizes(args, "stride", 1))
        .padding(padding)
        .dilation(sizes(args, "dilation", 1))
        .groups(args.int("groups").unwrap_or(1) as usize)
}

fn transposed<const D: usize>(args: &Args<'_>) -> ConvTransposeOptions<D> {
    ConvTransposeOptions::new()
        .stride(sizes(args, "stride", 1))
        .padding(sizes(args, "padding", 0))
        .output_padding(sizes(args, "output_padding", 0))
        .dilation(sizes(args, "dilation", 1))
        .groups(args.int("groups").unwrap_or(1) as usize)
}

fn max_options<const D: usize>(args: &Args<'_>) -> MaxPoolOptions<D> {
    let options = MaxPoolOptions::new()
        .padding(sizes(args, "padding", 0))
        .dilation(sizes(args, "dilation", 1))
        .ceil_mode(args.flag("ceil_mode"));
    if args.attrs["stride"].is_null() { options } else { options.stride(sizes(args, "stride", 1)) }
}

fn avg_options<const D: usize>(args: &Args<'_>) -> AvgPoolOptions<D> {
    let options = AvgPoolOptions::new()
        .padding(sizes(args, "padding", 0))
        .ceil_mode(args.flag("ceil_mode"))
        .count_include_pad(args.attrs["count_include_pad"].as_bool().unwrap_or(true))
        .divisor_override(args.int("divisor_override").ok().map(|v| v as i64));
    if args.attrs["stride"].is_null() { options } else { options.stride(sizes(args, "stride", 1)) }
}
