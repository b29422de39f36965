//! Convolutions.

use warpline::__Called as _;
use warpline::functional::{
    self, IntoPadding, PadMode, Padding, PerDimension, conv_transpose1d, conv_transpose2d,
    conv_transpose3d, conv1d, conv2d, conv3d, pad,
};
use warpline::{Error, IntoOptions, Result, Tensor, TensorOptions, empty};

use super::activation::forward;
use super::linear::uniform;
use super::options::parameter_options;
use super::repr::{size, tuple};
use crate::init::{Nonlinearity, fans, kaiming_uniform_};
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
    kaiming_uniform_(&weight, Nonlinearity::LeakyReLU(5f64.sqrt()))?;
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

parameter_options! {
    /// Options of [`Conv1d`], [`Conv2d`] and [`Conv3d`]. One number sets all `D` dimensions; an array sets each
    /// dimension.
    ConvOptions [const D: usize] [D] {
        /// Sets the distance from one window to the next, in elements. Default: 1.
        stride: [usize; D] = [1; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the padding around the image: elements on both sides, or a [`Padding`]. Default: none.
        padding: Padding<D> = Padding::Valid, impl IntoPadding<D> => IntoPadding::into_padding;
        /// Sets the distance from one element of the window to the next, in elements. Default: 1.
        dilation: [usize; D] = [1; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the number of channel groups, which must divide the numbers of channels. Default: 1.
        groups: usize = 1, usize;
        /// Sets whether the convolution adds a bias. Default: `true`.
        bias: bool = true, bool;
        /// Sets the values of the padding. Default: zeros.
        padding_mode: PadMode = PadMode::default(), impl Into<PadMode> => Into::into;
    }
}

parameter_options! {
    /// Options of [`ConvTranspose1d`], [`ConvTranspose2d`] and [`ConvTranspose3d`]. One number sets all `D` dimensions;
    /// an array sets each dimension.
    ConvTransposeOptions [const D: usize] [D] {
        /// Sets the stride of the convolution that is transposed, in elements. Default: 1.
        stride: [usize; D] = [1; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the padding of the convolution that is transposed: this many elements are cut off on both sides of the
        /// result. Default: 0.
        padding: [usize; D] = [0; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the additional size at the end of the result, in elements. It must be less than the stride or the
        /// dilation. Default: 0.
        output_padding: [usize; D] = [0; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the number of channel groups, which must divide the numbers of channels. Default: 1.
        groups: usize = 1, usize;
        /// Sets whether the module adds a bias. Default: `true`.
        bias: bool = true, bool;
        /// Sets the dilation of the convolution that is transposed, in elements. Default: 1.
        dilation: [usize; D] = [1; D], impl PerDimension<D> => PerDimension::per_dimension;
    }
}

impl<const D: usize> ConvOptions<D> {
    /// Returns the options of the function.
    fn of_function(&self) -> functional::ConvOptions<D> {
        functional::ConvOptions::new()
            .stride(self.stride)
            .padding(self.padding)
            .dilation(self.dilation)
            .groups(self.groups)
    }

    fn describe(&self, weight: &Tensor, has_bias: bool) -> String {
        let padding = match self.padding {
            Padding::Zeros(sizes) if sizes != [0; D] => format!(", padding={}", tuple(&sizes)),
            Padding::Same => ", padding=same".to_owned(),
            Padding::Zeros(_) | Padding::Valid => String::new(),
        };
        let mode = match self.padding_mode {
            PadMode::Reflect => ", padding_mode=reflect",
            PadMode::Replicate => ", padding_mode=replicate",
            PadMode::Circular => ", padding_mode=circular",
            _ => "",
        };
        let channels = [size(weight, 1).saturating_mul(self.groups), size(weight, 0)];
        let mut text = described(channels, weight, self.stride) + &padding;
        text += &unless_default("dilation", self.dilation, 1);
        text + &described_end(self.groups, has_bias) + mode
    }

    /// Pads the image if the padding mode is not zeros. Returns the image and the options for the convolution, whose
    /// padding is 0 if this function has padded the image.
    #[track_caller]
    fn pad_input(
        &self,
        x: &Tensor,
        weight: &Tensor,
    ) -> Result<(Tensor, functional::ConvOptions<D>)> {
        let options = self.of_function();
        // Leave strided `Same` padding to the convolution, which refuses it.
        let strided = self.padding == Padding::Same && self.stride != [1; D];
        if self.padding_mode == PadMode::default() || strided {
            return Ok((x.clone(), options));
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
        Ok((pad(x, &sides, self.padding_mode)?, options.padding(Padding::Valid)))
    }
}

impl<const D: usize> ConvTransposeOptions<D> {
    fn describe(&self, weight: &Tensor, has_bias: bool) -> String {
        let channels = [size(weight, 0), size(weight, 1).saturating_mul(self.groups)];
        let mut text = described(channels, weight, self.stride);
        text += &unless_default("padding", self.padding, 0);
        text += &unless_default("dilation", self.dilation, 1);
        text += &unless_default("output_padding", self.output_padding, 0);
        text + &described_end(self.groups, has_bias)
    }

    /// Returns the image, and the options of the function.
    #[track_caller]
    fn pad_input(
        &self,
        x: &Tensor,
        _weight: &Tensor,
    ) -> Result<(Tensor, functional::ConvTransposeOptions<D>)> {
        let options = functional::ConvTransposeOptions::new()
            .stride(self.stride)
            .padding(self.padding)
            .output_padding(self.output_padding)
            .dilation(self.dilation)
            .groups(self.groups);
        Ok((x.clone(), options))
    }
}

/// Returns the settings that PyTorch always prints.
fn described<const D: usize>(channels: [usize; 2], weight: &Tensor, stride: [usize; D]) -> String {
    let ([inputs, outputs], kernel_size) = (channels, weight.size().get(2..).unwrap_or(&[]));
    format!("{inputs}, {outputs}, kernel_size={}, stride={}", tuple(kernel_size), tuple(&stride))
}

/// Returns a setting that PyTorch prints if one of its numbers is not the default.
fn unless_default<const D: usize>(name: &str, numbers: [usize; D], default: usize) -> String {
    match numbers == [default; D] {
        true => String::new(),
        false => format!(", {name}={}", tuple(&numbers)),
    }
}

/// Returns the end of a module's description: the groups if there are several, and `bias=False` if
/// there is no bias.
fn described_end(groups: usize, has_bias: bool) -> String {
    let groups = if groups == 1 { String::new() } else { format!(", groups={groups}") };
    groups + if has_bias { "" } else { ", bias=False" }
}

macro_rules! convolutions {
    ($($name:ident $d:literal $function:ident $options:ident |$in:ident, $out:ident, $groups:ident| $sizes:expr;)*) => {$(
        #[doc = concat!("A convolution module (`torch.nn.", stringify!($name), "`): ")]
        #[doc = concat!("[`", stringify!($function), "`] with a learned weight and bias.")]
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            #[doc = concat!("The weight, in the layout of [`", stringify!($function), "`].")]
            pub weight: Parameter,
            /// The bias, `[out]`.
            pub bias: Option<Parameter>,
            #[module(skip)]
            options: $options<$d>,
        }

        impl $name {
            /// Creates a convolution of `inputs` to `outputs` channels. `kernel_size` is one number, or one per
            /// dimension. Parameters are drawn uniformly from ±1/√fan-in, with PyTorch's values for a seed.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `groups` does not divide
            /// `inputs` and `outputs`; errors of [`empty`] and [`Tensor::uniform_`].
            #[track_caller]
            pub fn new(
                inputs: usize,
                outputs: usize,
                kernel_size: impl PerDimension<$d>,
                options: impl IntoOptions<$options<$d>>,
            ) -> Result<Self> {
                let options = options.into_options();
                let (op, ($in, $out, $groups)) = (stringify!($name), (inputs, outputs, options.groups));
                check_groups(op, inputs, outputs, options.groups)?;
                let sizes = [&$sizes[..], &kernel_size.per_dimension()].concat();
                let (weight, bias) =
                    parameters(op, &sizes, outputs, options.bias, &options.tensor).of(op)?;
                Ok(Self { weight, bias, options })
            }

            fn describe(&self) -> String {
                self.options.describe(&self.weight, self.bias.is_some())
            }
        }

        forward!($name, this, x => {
            let op = stringify!($name);
            input_device::check(op, x, "weight", &this.weight)?;
            let (x, options) = this.options.pad_input(x, &this.weight).of(op)?;
            $function(&x, &this.weight, this.bias.as_deref(), options)
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
