//! Pooling and upsampling.

use warpline::functional::{
    AvgPoolOptions, InterpolateMode, InterpolateOptions, MaxPoolOptions, PerDimension,
    adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_max_pool1d, adaptive_max_pool2d, avg_pool1d,
    avg_pool2d, avg_pool3d, interpolate, max_pool1d, max_pool2d, max_pool3d,
};
use warpline::{IntoOptions, Result, Tensor};

use super::activation::forward;
use super::repr::{boolean, float, one_or_tuple, tuple};
use crate::{Forward, Module};

macro_rules! pools {
    ($($doc:literal $name:ident $d:literal $function:ident $options:ident $describe:ident;)*) => {$(
        #[doc = concat!($doc, " of each window (`torch.nn.", stringify!($name), "`): [`", stringify!($function), "`].")]
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            #[module(skip)]
            kernel_size: [usize; $d],
            #[module(skip)]
            options: $options<$d>,
        }

        impl $name {
            /// Creates a pool with windows of `kernel_size`: one number, or one per dimension. The default stride is
            /// the window's size.
            #[must_use]
            pub fn new(
                kernel_size: impl PerDimension<$d>,
                options: impl IntoOptions<$options<$d>>,
            ) -> Self {
                Self { kernel_size: kernel_size.per_dimension(), options: options.into_options() }
            }

            fn describe(&self) -> String {
                $describe(self.kernel_size, &self.options)
            }
        }

        forward!($name, this, x => $function(x, this.kernel_size, this.options));
    )*};
}

fn describe_max<const D: usize>(kernel_size: [usize; D], options: &MaxPoolOptions<D>) -> String {
    let [kernel_size, stride, padding, dilation] =
        [kernel_size, options.stride.unwrap_or(kernel_size), options.padding, options.dilation]
            .map(|sizes| one_or_tuple(&sizes));
    let ceil_mode = boolean(options.ceil_mode);
    format!(
        "kernel_size={kernel_size}, stride={stride}, padding={padding}, dilation={dilation}, ceil_mode={ceil_mode}"
    )
}

fn describe_avg<const D: usize>(kernel_size: [usize; D], options: &AvgPoolOptions<D>) -> String {
    // PyTorch prints the numbers of `AvgPool1d` as tuples.
    let print = |sizes: &[usize]| if D == 1 { tuple(sizes) } else { one_or_tuple(sizes) };
    let [kernel_size, stride, padding] =
        [kernel_size, options.stride.unwrap_or(kernel_size), options.padding]
            .map(|sizes| print(&sizes));
    format!("kernel_size={kernel_size}, stride={stride}, padding={padding}")
}

pools! {
    "The largest element" MaxPool1d 1 max_pool1d MaxPoolOptions describe_max;
    "The largest element" MaxPool2d 2 max_pool2d MaxPoolOptions describe_max;
    "The largest element" MaxPool3d 3 max_pool3d MaxPoolOptions describe_max;
    "The mean" AvgPool1d 1 avg_pool1d AvgPoolOptions describe_avg;
    "The mean" AvgPool2d 2 avg_pool2d AvgPoolOptions describe_avg;
    "The mean" AvgPool3d 3 avg_pool3d AvgPoolOptions describe_avg;
}

macro_rules! adaptive {
    ($($doc:literal $name:ident $d:literal $function:ident;)*) => {$(
        #[doc = concat!($doc, " of each window, with windows chosen for a given output size ")]
        #[doc = concat!("(`torch.nn.", stringify!($name), "`): [`", stringify!($function), "`].")]
        #[derive(Clone, Copy, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            #[module(skip)]
            output_size: [usize; $d],
        }

        impl $name {
            /// Creates a pool with outputs of these spatial sizes: one number, or one per dimension.
            #[must_use]
            pub fn new(output_size: impl PerDimension<$d>) -> Self {
                Self { output_size: output_size.per_dimension() }
            }

            fn describe(&self) -> String {
                format!("output_size={}", one_or_tuple(&self.output_size))
            }
        }

        forward!($name, this, x => $function(x, this.output_size));
    )*};
}

adaptive! {
    "The mean" AdaptiveAvgPool1d 1 adaptive_avg_pool1d;
    "The mean" AdaptiveAvgPool2d 2 adaptive_avg_pool2d;
    "The largest element" AdaptiveMaxPool1d 1 adaptive_max_pool1d;
    "The largest element" AdaptiveMaxPool2d 2 adaptive_max_pool2d;
}

/// Resizes images (`torch.nn.Upsample`): [`interpolate()`].
#[derive(Clone, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct Upsample {
    #[module(skip)]
    options: InterpolateOptions,
}

impl Upsample {
    /// Creates a module that resizes by these options, which must set `size` or `scale_factor`.
    #[must_use]
    pub fn new(options: impl IntoOptions<InterpolateOptions>) -> Self {
        Self { options: options.into_options() }
    }

    fn describe(&self) -> String {
        let size = match (&self.options.scale_factor, &self.options.size) {
            (Some(factor), _) => {
                let factors: Vec<String> = factor.factors().iter().copied().map(float).collect();
                match &factors[..] {
                    [one] => format!("scale_factor={one}"),
                    all => format!("scale_factor={}", tuple(all)),
                }
            }
            (None, size) => format!("size={}", one_or_tuple(size.as_deref().unwrap_or(&[]))),
        };
        let mode = match self.options.mode {
            InterpolateMode::Nearest => "nearest",
            InterpolateMode::NearestExact => "nearest-exact",
            InterpolateMode::Linear => "linear",
            InterpolateMode::Bilinear => "bilinear",
            InterpolateMode::Bicubic => "bicubic",
            InterpolateMode::Trilinear => "trilinear",
            InterpolateMode::Area => "area",
        };
        format!("{size}, mode='{mode}'")
    }
}

forward!(Upsample, this, x => interpolate(x, this.options.clone()));
