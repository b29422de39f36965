//! Convolutions.

use warpline::functional::{
    ConvOptions, ConvTransposeOptions, PadMode, Padding, conv_transpose1d, conv_transpose2d,
    conv_transpose3d, conv1d, conv2d, conv3d, pad,
};
use warpline::{Error, Result, Tensor, TensorOptions, empty};

use super::activation::forward;
use super::linear::uniform;
use crate::called::Called;
use crate::init::{FanMode, Nonlinearity, fans, kaiming_uniform_};
use crate::{Forward, Module, Parameter, input_device};

/// Draws weight and bias as PyTorch does: uniformly from ±1/√fan-in.
#[track_caller]
fn parameters(
    op: &'static str,
    sizes: &[usize],
    outputs: usize,
    bias: bool,
    options: &TensorOptions,
) -> Result<(Parameter, Option<Parameter>)> {
    let weight = empty(sizes, options)?;
    kaiming_uniform_(&weight, FanMode::FanIn, Nonlinearity::LeakyReLU(5f64.sqrt()))?;
    let (fan_in, _) = fans(op, &weight)?;
    let bound = 1.0 / (fan_in as f64).sqrt();
    let bias = bias.then(|| uniform([outputs], bound, options)).transpose()?;
    Ok((Parameter::new(weight)?, bias))
}

#[track_caller]
fn check_groups(op: &'static str, inputs: usize, outputs: usize, groups: usize) -> Result<()> {
    if groups > 0 && inputs.is_multiple_of(groups) && outputs.is_multiple_of(groups) {
        return Ok(());
    }
    let reason = format!("{groups} groups do not divide {inputs} and {outputs} channels");
    Err(Error::invalid(op, reason))
}

/// Options of a convolution or a transposed convolution.
trait ConvSettings: Copy {
    /// Pads the image in a mode other than zeros. Returns the padded image and the settings without the padding.
    #[track_caller]
    fn pad_input(self, x: &Tensor, _weight: &Tensor, _mode: PadMode) -> Result<(Tensor, Self)> {
        Ok((x.clone(), self))
    }
}

impl<const D: usize> ConvSettings for ConvTransposeOptions<D> {}

impl<const D: usize> ConvSettings for ConvOptions<D> {
    #[track_caller]
    fn pad_input(self, x: &Tensor, weight: &Tensor, mode: PadMode) -> Result<(Tensor, Self)> {
        // Leave strided `Same` padding to the convolution, which refuses it.
        let strided = self.padding == Padding::Same && self.stride != [1; D];
        if mode == PadMode::default() || strided {
            return Ok((x.clone(), self));
        }
        let mut sides = Vec::with_capacity(2 * D);
        // `pad` expects the last dimension first.
        for d in (0..D).rev() {
            let (before, after) = match self.padding {
                Padding::Zeros(sizes) => (sizes[d], sizes[d]),
                Padding::Same => {
                    let all =
                        self.dilation[d].saturating_mul(weight.size()[2 + d].saturating_sub(1));
                    (all / 2, all - all / 2)
                }
                Padding::Valid => (0, 0),
            };
            sides.extend([before, after].map(|n| isize::try_from(n).unwrap_or(isize::MAX)));
        }
        Ok((pad(x, &sides, mode)?, Self { padding: Padding::Valid, ..self }))
    }
}

macro_rules! convolutions {
    ($($name:ident $d:literal $function:ident $options:ident |$in:ident, $out:ident, $groups:ident| $sizes:expr;)*) => {$(
        #[doc = concat!("A convolution module (`torch.nn.", stringify!($name), "`): ")]
        #[doc = concat!("[`", stringify!($function), "`] with a learned weight and bias.")]
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            #[doc = concat!("The weight, in the layout of [`", stringify!($function), "`].")]
            pub weight: Parameter,
            /// The bias, `[out]`.
            pub bias: Option<Parameter>,
            #[module(skip)]
            options: $options<$d>,
            #[module(skip)]
            padding_mode: PadMode,
        }

        impl $name {
            /// Creates a convolution of `inputs` to `outputs` channels with a bias. Parameters are drawn uniformly from
            /// ±1/√fan-in, with PyTorch's values for a seed.
            ///
            /// # Errors
            /// The same as [`Self::with_bias`].
            #[track_caller]
            pub fn new(
                inputs: usize,
                outputs: usize,
                kernel_size: [usize; $d],
                settings: $options<$d>,
                options: impl Into<TensorOptions>,
            ) -> Result<Self> {
                Self::with_bias(inputs, outputs, kernel_size, settings, true, options)
            }

            /// Creates a convolution like [`Self::new`], without a bias if `bias` is false.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `settings.groups` does not
            /// divide `inputs` and `outputs`; errors of [`empty`] and [`Tensor::uniform_`].
            #[track_caller]
            pub fn with_bias(
                inputs: usize,
                outputs: usize,
                kernel_size: [usize; $d],
                settings: $options<$d>,
                bias: bool,
                options: impl Into<TensorOptions>,
            ) -> Result<Self> {
                let (op, ($in, $out, $groups)) = (stringify!($name), (inputs, outputs, settings.groups));
                check_groups(op, inputs, outputs, settings.groups)?;
                let sizes = [&$sizes[..], &kernel_size].concat();
                let (weight, bias) = parameters(op, &sizes, outputs, bias, &options.into()).of(op)?;
                Ok(Self { weight, bias, options: settings, padding_mode: PadMode::default() })
            }
        }

        forward!($name, this, x => {
            let op = stringify!($name);
            input_device::check(op, x, "weight", &this.weight)?;
            let (x, options) = this.options.pad_input(x, &this.weight, this.padding_mode).of(op)?;
            $function(&x, &this.weight, this.bias.as_deref(), &options)
        });
    )*};
}

convolutions! {
    Conv1d 1 conv1d ConvOptions |i, o, g| [o, i / g];
    Conv2d 2 conv2d ConvOptions |i, o, g| [o, i / g];
    Conv3d 3 conv3d ConvOptions |i, o, g| [o, i / g];
    ConvTranspose1d 1 conv_transpose1d ConvTransposeOptions |i, o, g| [i, o / g];
    ConvTranspose2d 2 conv_transpose2d ConvTransposeOptions |i, o, g| [i, o / g];
    ConvTranspose3d 3 conv_transpose3d ConvTransposeOptions |i, o, g| [i, o / g];
}

macro_rules! padding_modes {
    ($($name:ident)*) => {$(
        impl $name {
            /// Sets how the image is padded (`padding_mode`). Default: zeros.
            #[must_use]
            pub fn padding_mode(mut self, mode: PadMode) -> Self {
                self.padding_mode = mode;
                self
            }
        }
    )*};
}

padding_modes! { Conv1d Conv2d Conv3d }
