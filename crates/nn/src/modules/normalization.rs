//! Normalisation modules.

use std::ops::{Deref, DerefMut};

use warpline::__Called as _;
use warpline::functional::{self, batch_norm, group_norm, instance_norm, layer_norm, rms_norm};
use warpline::{
    CallScope, DType, Error, IntoOptions, IntoShape, Result, Tensor, TensorOptions, ones, zeros,
};

use super::activation::{floats, forward};
use super::options::parameter_options;
use super::repr::{boolean, float, optional, tuple};
use crate::{Buffer, Forward, Module, Parameter, Training, input_device};

/// Creates a weight of ones, if the norm is affine, and a bias of zeros, if it is affine and has a bias.
#[track_caller]
fn affine(
    sizes: &[usize],
    [is_affine, has_bias]: [bool; 2],
    options: &TensorOptions,
) -> Result<(Option<Parameter>, Option<Parameter>)> {
    let options = floats(options);
    let weight = is_affine.then(|| ones(sizes, &options).and_then(Parameter::new));
    let bias = (is_affine && has_bias).then(|| zeros(sizes, &options).and_then(Parameter::new));
    Ok((weight.transpose()?, bias.transpose()?))
}

parameter_options! {
    /// Options of [`LayerNorm`].
    LayerNormOptions [] [] {
        /// Sets the number that is added to the variance. Default: 1e-5.
        eps: f64 = 1e-5, f64;
        /// Sets whether the norm has a weight and a bias. Default: `true`.
        elementwise_affine: bool = true, bool;
        /// Sets whether an affine norm has a bias. Default: `true`.
        bias: bool = true, bool;
    }
}

parameter_options! {
    /// Options of [`RMSNorm`].
    RMSNormOptions [] [] {
        /// Sets the number that is added to the mean square. Default: the machine epsilon of the input's dtype.
        eps: Option<f64> = None, impl Into<Option<f64>> => Into::into;
        /// Sets whether the norm has a weight. Default: `true`.
        elementwise_affine: bool = true, bool;
    }
}

parameter_options! {
    /// Options of [`GroupNorm`].
    GroupNormOptions [] [] {
        /// Sets the number that is added to the variance. Default: 1e-5.
        eps: f64 = 1e-5, f64;
        /// Sets whether the norm has a weight and a bias. Default: `true`.
        affine: bool = true, bool;
    }
}

parameter_options! {
    /// Options of [`BatchNorm1d`], [`BatchNorm2d`] and [`BatchNorm3d`].
    BatchNormOptions [] [] {
        /// Sets the number that is added to the variance. Default: 1e-5.
        eps: f64 = 1e-5, f64;
        /// Sets the weight of a batch's statistics in the running statistics. Default: 0.1. `None`: the running
        /// statistics are averages over all batches, and the host waits for the device once per batch.
        momentum: Option<f64> = Some(0.1), impl Into<Option<f64>> => Into::into;
        /// Sets whether the norm has a weight and a bias for each channel. Default: `true`.
        affine: bool = true, bool;
        /// Sets whether the norm keeps a running mean and variance. Without them the batch's statistics are also used
        /// in evaluation. Default: `true`.
        track_running_stats: bool = true, bool;
    }
}

parameter_options! {
    /// Options of [`InstanceNorm1d`], [`InstanceNorm2d`] and [`InstanceNorm3d`].
    InstanceNormOptions [] [] {
        /// Sets the number that is added to the variance. Default: 1e-5.
        eps: f64 = 1e-5, f64;
        /// Sets the weight of a batch's statistics in the running statistics. Default: 0.1. `None`: the running
        /// statistics do not change.
        momentum: Option<f64> = Some(0.1), impl Into<Option<f64>> => Into::into;
        /// Sets whether the norm has a weight and a bias for each channel. Default: `false`.
        affine: bool = false, bool;
        /// Sets whether the norm keeps a running mean and variance, and uses them in evaluation. Default: `false`.
        track_running_stats: bool = false, bool;
    }
}

/// Normalises the last dimensions to mean 0 and variance 1, then applies weight and bias (`torch.nn.LayerNorm`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct LayerNorm {
    /// Factor of each normalised element, of shape `normalized_shape`.
    pub weight: Option<Parameter>,
    /// Summand of each normalised element, of shape `normalized_shape`.
    pub bias: Option<Parameter>,
    normalized_shape: Vec<usize>,
    eps: f64,
}

impl LayerNorm {
    /// Creates a norm over the last dimensions, whose sizes are `normalized_shape`.
    ///
    /// # Errors
    /// Errors of [`ones`] and [`zeros`].
    #[track_caller]
    pub fn new(
        normalized_shape: impl IntoShape,
        options: impl IntoOptions<LayerNormOptions>,
    ) -> Result<Self> {
        let LayerNormOptions { eps, elementwise_affine, bias, tensor } = options.into_options();
        let normalized_shape = normalized_shape.into_shape().to_vec();
        let (weight, bias) =
            affine(&normalized_shape, [elementwise_affine, bias], &tensor).of("LayerNorm")?;
        Ok(Self { weight, bias, normalized_shape, eps })
    }

    fn describe(&self) -> String {
        let (shape, eps) = (tuple(&self.normalized_shape), float(self.eps));
        format!("{shape}, eps={eps}, elementwise_affine={}", boolean(self.weight.is_some()))
    }
}

forward!(LayerNorm, this, x => {
    if let Some(weight) = &this.weight {
        input_device::check("LayerNorm", x, "weight", weight)?;
    }
    let options = functional::LayerNormOptions::new()
        .weight(this.weight.as_deref())
        .bias(this.bias.as_deref())
        .eps(this.eps);
    layer_norm(x, &this.normalized_shape, options)
});

/// Divides by the root of the mean square of the last dimensions, then applies the weight (`torch.nn.RMSNorm`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct RMSNorm {
    /// Factor of each normalised element, of shape `normalized_shape`.
    pub weight: Option<Parameter>,
    normalized_shape: Vec<usize>,
    eps: Option<f64>,
}

impl RMSNorm {
    /// Creates a norm over the last dimensions, whose sizes are `normalized_shape`.
    ///
    /// # Errors
    /// The same as [`ones`].
    #[track_caller]
    pub fn new(
        normalized_shape: impl IntoShape,
        options: impl IntoOptions<RMSNormOptions>,
    ) -> Result<Self> {
        let RMSNormOptions { eps, elementwise_affine, tensor } = options.into_options();
        let normalized_shape = normalized_shape.into_shape().to_vec();
        let (weight, _) =
            affine(&normalized_shape, [elementwise_affine, false], &tensor).of("RMSNorm")?;
        Ok(Self { weight, normalized_shape, eps })
    }

    fn describe(&self) -> String {
        let (shape, eps) = (tuple(&self.normalized_shape), optional(self.eps.map(float)));
        format!("{shape}, eps={eps}, elementwise_affine={}", boolean(self.weight.is_some()))
    }
}

forward!(RMSNorm, this, x => {
    if let Some(weight) = &this.weight {
        input_device::check("RMSNorm", x, "weight", weight)?;
    }
    let options = functional::RMSNormOptions::new().weight(this.weight.as_deref()).eps(this.eps);
    rms_norm(x, &this.normalized_shape, options)
});

/// Normalises groups of channels to mean 0 and variance 1, then applies weight and bias (`torch.nn.GroupNorm`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct GroupNorm {
    /// Factor of each channel, `[channels]`.
    pub weight: Option<Parameter>,
    /// Summand of each channel, `[channels]`.
    pub bias: Option<Parameter>,
    num_groups: usize,
    num_channels: usize,
    eps: f64,
}

impl GroupNorm {
    /// Creates a norm of `channels` channels in `num_groups` groups.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `num_groups` does not divide `channels`;
    /// errors of [`ones`] and [`zeros`].
    #[track_caller]
    pub fn new(
        num_groups: usize,
        channels: usize,
        options: impl IntoOptions<GroupNormOptions>,
    ) -> Result<Self> {
        let GroupNormOptions { eps, affine: is_affine, tensor } = options.into_options();
        if num_groups == 0 || !channels.is_multiple_of(num_groups) {
            let reason = format!("{num_groups} groups do not divide {channels} channels");
            return Err(Error::invalid("GroupNorm", reason));
        }
        let (weight, bias) = affine(&[channels], [is_affine, true], &tensor).of("GroupNorm")?;
        Ok(Self { weight, bias, num_groups, num_channels: channels, eps })
    }

    fn describe(&self) -> String {
        let (eps, affine) = (float(self.eps), boolean(self.weight.is_some()));
        format!("{}, {}, eps={eps}, affine={affine}", self.num_groups, self.num_channels)
    }
}

forward!(GroupNorm, this, x => {
    if let Some(weight) = &this.weight {
        input_device::check("GroupNorm", x, "weight", weight)?;
    }
    let options = functional::GroupNormOptions::new()
        .weight(this.weight.as_deref())
        .bias(this.bias.as_deref())
        .eps(this.eps);
    group_norm(x, this.num_groups, options)
});

/// The members of batch and instance norms, such as [`BatchNorm2d`], which dereference to this type.
#[derive(Clone, Debug, Module)]
pub struct ChannelNorm {
    /// Factor of each channel, `[channels]`. `None` if the norm is not affine.
    pub weight: Option<Parameter>,
    /// Summand of each channel, `[channels]`. `None` if the norm is not affine.
    pub bias: Option<Parameter>,
    /// Running mean of each channel, `[channels]`. `None` if the norm does not track statistics.
    pub running_mean: Option<Buffer>,
    /// Running variance of each channel, `[channels]`. `None` if the norm does not track statistics.
    pub running_var: Option<Buffer>,
    /// Number of batches in the running statistics, without dimensions. `None` if the norm does not track statistics.
    /// Stays 0 in an instance norm.
    pub num_batches_tracked: Option<Buffer>,
    training: Training,
    num_features: usize,
    eps: f64,
    momentum: Option<f64>,
}

impl ChannelNorm {
    #[track_caller]
    fn new(channels: usize, norm: BatchNormOptions) -> Result<Self> {
        let options = floats(norm.tensor);
        let (weight, bias) = affine(&[channels], [norm.affine, true], &options)?;
        let (mut running_mean, mut running_var, mut num_batches_tracked) = (None, None, None);
        if norm.track_running_stats {
            running_mean = Some(Buffer::new(zeros([channels], &options)?));
            running_var = Some(Buffer::new(ones([channels], &options)?));
            num_batches_tracked = Some(Buffer::new(zeros((), options.dtype(DType::I64))?));
        }
        let (eps, momentum, training) = (norm.eps, norm.momentum, Training::default());
        Ok(Self {
            weight,
            bias,
            running_mean,
            running_var,
            num_batches_tracked,
            training,
            num_features: channels,
            eps,
            momentum,
        })
    }

    fn describe(&self) -> String {
        format!(
            "{}, eps={}, momentum={}, affine={}, track_running_stats={}",
            self.num_features,
            float(self.eps),
            optional(self.momentum.map(float)),
            boolean(self.weight.is_some()),
            boolean(self.running_mean.is_some())
        )
    }

    /// Counts a batch in training. Returns the weight of the batch in the running statistics.
    #[track_caller]
    fn count_batch(&self) -> Result<f64> {
        let Some(count) = self.num_batches_tracked.as_ref().filter(|_| self.training.get()) else {
            return Ok(self.momentum.unwrap_or(0.0));
        };
        count.add_(1)?;
        match self.momentum {
            Some(momentum) => Ok(momentum),
            None => Ok(1.0 / count.item::<i64>()? as f64),
        }
    }

    #[track_caller]
    fn check(&self, op: &'static str, x: &Tensor, dims: &[usize]) -> Result<()> {
        if let Some(weight) = &self.weight {
            input_device::check(op, x, "weight", weight)?;
        } else if let Some(mean) = &self.running_mean {
            input_device::check(op, x, "running_mean", mean)?;
        }
        if dims.contains(&x.dim()) {
            return Ok(());
        }
        let counts = dims.iter().map(usize::to_string).collect::<Vec<_>>().join(" or ");
        let sizes = x.size();
        let reason = format!("expects an input of {counts} dimensions, not one of sizes {sizes:?}");
        Err(Error::invalid(op, reason))
    }
}

/// Defines a norm of channels and its constructor.
macro_rules! channel_norm {
    ($name:ident, $options:ident, $doc:expr) => {
        #[doc = $doc]
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            #[module(name = "")]
            channels: ChannelNorm,
        }

        impl $name {
            /// Creates a norm of `channels` channels.
            ///
            /// # Errors
            /// Errors of [`ones`] and [`zeros`].
            #[track_caller]
            pub fn new(channels: usize, options: impl IntoOptions<$options>) -> Result<Self> {
                let $options { eps, momentum, affine, track_running_stats, tensor } =
                    options.into_options();
                let options =
                    BatchNormOptions { eps, momentum, affine, track_running_stats, tensor };
                let channels = ChannelNorm::new(channels, options);
                Ok(Self { channels: channels.of(stringify!($name))? })
            }

            fn describe(&self) -> String {
                self.channels.describe()
            }
        }

        impl Deref for $name {
            type Target = ChannelNorm;

            fn deref(&self) -> &ChannelNorm {
                &self.channels
            }
        }

        impl DerefMut for $name {
            fn deref_mut(&mut self) -> &mut ChannelNorm {
                &mut self.channels
            }
        }
    };
}

macro_rules! batch_norms {
    ($($name:ident $dims:expr;)*) => {$(
        channel_norm!(
            $name,
            BatchNormOptions,
            concat!(
                "Normalises each channel to mean 0 and variance 1 (`torch.nn.", stringify!($name),
                "`). Training uses the batch's statistics and updates the running statistics; evaluation uses the latter."
            )
        );

        forward!($name, this, x => {
            let c = &this.channels;
            c.check(stringify!($name), x, &$dims)?;
            let _call = CallScope::enter("batch_norm");
            let own = c.training.get() || c.running_mean.is_none();
            let options = functional::BatchNormOptions::new()
                .weight(c.weight.as_deref())
                .bias(c.bias.as_deref())
                .training(own)
                .momentum(c.count_batch()?)
                .eps(c.eps);
            batch_norm(x, c.running_mean.as_deref(), c.running_var.as_deref(), options)
        });
    )*};
}

batch_norms! {
    BatchNorm1d [2, 3];
    BatchNorm2d [4];
    BatchNorm3d [5];
}

macro_rules! instance_norms {
    ($($name:ident $dims:expr;)*) => {$(
        channel_norm!(
            $name,
            InstanceNormOptions,
            concat!(
                "Normalises each channel of each sample to mean 0 and variance 1 (`torch.nn.", stringify!($name), "`)."
            )
        );

        forward!($name, this, x => {
            let c = &this.channels;
            c.check(stringify!($name), x, &$dims)?;
            let _call = CallScope::enter("instance_norm");
            let options = functional::InstanceNormOptions::new()
                .weight(c.weight.as_deref())
                .bias(c.bias.as_deref())
                .use_input_stats(c.training.get() || c.running_mean.is_none())
                .momentum(c.momentum.unwrap_or(0.0))
                .eps(c.eps);
            let (mean, var) = (c.running_mean.as_deref(), c.running_var.as_deref());
            if x.dim() == $dims[0] {
                // A single sample without a batch dimension.
                return instance_norm(&x.unsqueeze(0)?, mean, var, options)?.squeeze(0);
            }
            instance_norm(x, mean, var, options)
        });
    )*};
}

instance_norms! {
    InstanceNorm1d [2, 3];
    InstanceNorm2d [3, 4];
    InstanceNorm3d [4, 5];
}
