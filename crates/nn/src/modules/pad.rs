//! Padding, and rearrangements of pixels and channels.

use warpline::functional::{PadMode, pad, pixel_shuffle, pixel_unshuffle};
use warpline::{Error, IntoSizes, Result, Scalar, Tensor};

use super::activation::forward;
use super::repr::{float, tuple};
use crate::{Forward, Module};

/// Returns a padding of `2 * dims` numbers. One number stands for all sides.
#[track_caller]
fn sides(name: &'static str, padding: impl IntoSizes, dims: usize) -> Result<Vec<isize>> {
    match &padding.into_sizes()[..] {
        [all] => Ok(vec![*all; 2 * dims]),
        sides if sides.len() == 2 * dims => Ok(sides.to_vec()),
        other => {
            let reason =
                format!("the padding must be one number or {} numbers, not {other:?}", 2 * dims);
            Err(Error::invalid(name, reason))
        }
    }
}

/// Defines paddings whose values come from the input, or are zero.
macro_rules! pads {
    ($($doc:literal $name:ident $dims:literal $mode:expr;)*) => {$(
        #[doc = concat!("Pads the last dimensions, ", stringify!($dims), " in number, with ", $doc)]
        #[doc = concat!("(`torch.nn.", stringify!($name), "`).")]
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            #[module(skip)]
            padding: Vec<isize>,
        }

        impl $name {
            /// Creates the padding. `padding` is one number for all sides, or the numbers before and after each
            /// dimension, beginning with the last dimension.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `padding` has another number of
            /// elements.
            #[track_caller]
            pub fn new(padding: impl IntoSizes) -> Result<Self> {
                Ok(Self { padding: sides(stringify!($name), padding, $dims)? })
            }

            fn describe(&self) -> String {
                tuple(&self.padding)
            }
        }

        forward!($name, this, x => pad(x, &this.padding, $mode));
    )*};
}

pads! {
    "the elements at the same distance inside the edge" ReflectionPad1d 1 PadMode::Reflect;
    "the elements at the same distance inside the edge" ReflectionPad2d 2 PadMode::Reflect;
    "the elements at the same distance inside the edge" ReflectionPad3d 3 PadMode::Reflect;
    "the elements at the edge" ReplicationPad1d 1 PadMode::Replicate;
    "the elements at the edge" ReplicationPad2d 2 PadMode::Replicate;
    "the elements at the edge" ReplicationPad3d 3 PadMode::Replicate;
    "the elements at the opposite end" CircularPad1d 1 PadMode::Circular;
    "the elements at the opposite end" CircularPad2d 2 PadMode::Circular;
    "the elements at the opposite end" CircularPad3d 3 PadMode::Circular;
    "zeros" ZeroPad1d 1 ();
    "zeros" ZeroPad2d 2 ();
    "zeros" ZeroPad3d 3 ();
}

/// Defines paddings with a number.
macro_rules! constant_pads {
    ($($name:ident $dims:literal;)*) => {$(
        #[doc = concat!("Pads the last dimensions, ", stringify!($dims), " in number, with one value")]
        #[doc = concat!("(`torch.nn.", stringify!($name), "`).")]
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            #[module(skip)]
            padding: Vec<isize>,
            #[module(skip)]
            value: Scalar,
        }

        impl $name {
            /// Creates the padding. `padding` is one number for all sides, or the numbers before and after each
            /// dimension, beginning with the last dimension.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `padding` has another number of
            /// elements.
            #[track_caller]
            pub fn new(padding: impl IntoSizes, value: impl Into<Scalar>) -> Result<Self> {
                Ok(Self { padding: sides(stringify!($name), padding, $dims)?, value: value.into() })
            }

            fn describe(&self) -> String {
                let value = match self.value {
                    Scalar::Bool(value) => super::repr::boolean(value).to_owned(),
                    Scalar::Int(value) => value.to_string(),
                    Scalar::Float(value) => float(value),
                };
                format!("padding={}, value={value}", tuple(&self.padding))
            }
        }

        forward!($name, this, x => pad(x, &this.padding, PadMode::Constant(this.value)));
    )*};
}

constant_pads! {
    ConstantPad1d 1;
    ConstantPad2d 2;
    ConstantPad3d 3;
}

/// Defines rearrangements by a factor.
macro_rules! pixels {
    ($($doc:literal $name:ident $function:ident $factor:ident;)*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`): [`", stringify!($function), "`].")]
        #[derive(Clone, Copy, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            $factor: usize,
        }

        impl $name {
            /// Creates the rearrangement by a factor. Factor 0 is an error in the forward pass.
            #[must_use]
            pub fn new($factor: usize) -> Self {
                Self { $factor }
            }

            fn describe(&self) -> String {
                format!(concat!(stringify!($factor), "={}"), self.$factor)
            }
        }

        forward!($name, this, x => $function(x, this.$factor));
    )*};
}

pixels! {
    "Moves channels to pixels, for a finer image" PixelShuffle pixel_shuffle upscale_factor;
    "Moves pixels to channels, for a coarser image" PixelUnshuffle pixel_unshuffle downscale_factor;
}
