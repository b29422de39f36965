//! Pooling and upsampling.

use warpline::functional::{
    AvgPoolOptions, InterpolateOptions, MaxPoolOptions, PerDimension, adaptive_avg_pool1d,
    adaptive_avg_pool2d, adaptive_max_pool1d, adaptive_max_pool2d, avg_pool1d, avg_pool2d,
    avg_pool3d, interpolate, max_pool1d, max_pool2d, max_pool3d,
};
use warpline::{IntoOptions, Result, Tensor};

use super::activation::forward;
use crate::{Forward, Module};

macro_rules! pools {
    ($($doc:literal $name:ident $d:literal $function:ident $options:ident;)*) => {$(
        #[doc = concat!($doc, " of each window (`torch.nn.", stringify!($name), "`): [`", stringify!($function), "`].")]
        #[derive(Clone, Debug, Module)]
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
        }

        forward!($name, this, x => $function(x, this.kernel_size, this.options));
    )*};
}

pools! {
    "The largest element" MaxPool1d 1 max_pool1d MaxPoolOptions;
    "The largest element" MaxPool2d 2 max_pool2d MaxPoolOptions;
    "The largest element" MaxPool3d 3 max_pool3d MaxPoolOptions;
    "The mean" AvgPool1d 1 avg_pool1d AvgPoolOptions;
    "The mean" AvgPool2d 2 avg_pool2d AvgPoolOptions;
    "The mean" AvgPool3d 3 avg_pool3d AvgPoolOptions;
}

macro_rules! adaptive {
    ($($doc:literal $name:ident $d:literal $function:ident;)*) => {$(
        #[doc = concat!($doc, " of each window, with windows chosen for a given output size ")]
        #[doc = concat!("(`torch.nn.", stringify!($name), "`): [`", stringify!($function), "`].")]
        #[derive(Clone, Copy, Debug, Module)]
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
}

forward!(Upsample, this, x => interpolate(x, this.options.clone()));
