//! Normalisation modules.

use warpline::functional::{
    BatchNormOptions, InstanceNormOptions, batch_norm, group_norm, instance_norm, layer_norm,
    rms_norm,
};
use warpline::{DType, Error, IntoShape, Result, Tensor, TensorOptions, ones, zeros};

use super::activation::{floats, forward};
use crate::called::Called;
use crate::{Buffer, Forward, Module, Parameter, Training, input_device};

/// Creates a weight of ones and a bias of zeros.
#[track_caller]
fn affine(sizes: &[usize], options: &TensorOptions) -> Result<(Parameter, Parameter)> {
    let options = floats(options);
    Ok((Parameter::new(ones(sizes, &options)?)?, Parameter::new(zeros(sizes, &options)?)?))
}

/// Normalises the last dimensions to mean 0 and variance 1, then applies weight and bias (`torch.nn.LayerNorm`).
#[derive(Clone, Debug, Module)]
pub struct LayerNorm {
    /// Factor of each normalised element, of shape `normalized_shape`.
    pub weight: Option<Parameter>,
    /// Summand of each normalised element, of shape `normalized_shape`.
    pub bias: Option<Parameter>,
    normalized_shape: Vec<usize>,
    eps: f64,
}

impl LayerNorm {
    /// Creates a norm over the last dimensions, whose sizes are `normalized_shape`, with weight, bias and `eps` 1e-5.
    ///
    /// # Errors
    /// Errors of [`ones`] and [`zeros`].
    #[track_caller]
    pub fn new(
        normalized_shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let normalized_shape = normalized_shape.into_shape().to_vec();
        let (weight, bias) = affine(&normalized_shape, &options.into()).of("LayerNorm")?;
        Ok(Self { weight: Some(weight), bias: Some(bias), normalized_shape, eps: 1e-5 })
    }

    /// Sets the number that is added to the variance or mean square.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }
}

forward!(LayerNorm, this, x => {
    if let Some(weight) = &this.weight {
        input_device::check("LayerNorm", x, "weight", weight)?;
    }
    layer_norm(x, &this.normalized_shape, this.weight.as_deref(), this.bias.as_deref(), this.eps)
});

/// Divides by the root of the mean square of the last dimensions, then applies the weight (`torch.nn.RMSNorm`).
#[derive(Clone, Debug, Module)]
pub struct RMSNorm {
    /// Factor of each normalised element, of shape `normalized_shape`.
    pub weight: Option<Parameter>,
    normalized_shape: Vec<usize>,
    eps: Option<f64>,
}

impl RMSNorm {
    /// Creates a norm over the last dimensions, whose sizes are `normalized_shape`, with a weight. Default `eps`: the
    /// machine epsilon of the input's dtype.
    ///
    /// # Errors
    /// The same as [`ones`].
    #[track_caller]
    pub fn new(
        normalized_shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let normalized_shape = normalized_shape.into_shape().to_vec();
        let weight = ones(&normalized_shape, floats(options)).and_then(Parameter::new);
        Ok(Self { weight: Some(weight.of("RMSNorm")?), normalized_shape, eps: None })
    }

    /// Sets the number that is added to the variance or mean square.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = Some(eps);
        self
    }
}

forward!(RMSNorm, this, x => {
    if let Some(weight) = &this.weight {
        input_device::check("RMSNorm", x, "weight", weight)?;
    }
    rms_norm(x, &this.normalized_shape, this.weight.as_deref(), this.eps)
});

/// Normalises groups of channels to mean 0 and variance 1, then applies weight and bias (`torch.nn.GroupNorm`).
#[derive(Clone, Debug, Module)]
pub struct GroupNorm {
    /// Factor of each channel, `[channels]`.
    pub weight: Option<Parameter>,
    /// Summand of each channel, `[channels]`.
    pub bias: Option<Parameter>,
    num_groups: usize,
    eps: f64,
}

impl GroupNorm {
    /// Creates a norm with weight, bias and `eps` 1e-5.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `num_groups` does not divide `channels`;
    /// errors of [`ones`] and [`zeros`].
    #[track_caller]
    pub fn new(
        num_groups: usize,
        channels: usize,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        if num_groups == 0 || !channels.is_multiple_of(num_groups) {
            let reason = format!("{num_groups} groups do not divide {channels} channels");
            return Err(Error::invalid("GroupNorm", reason));
        }
        let (weight, bias) = affine(&[channels], &options.into()).of("GroupNorm")?;
        Ok(Self { weight: Some(weight), bias: Some(bias), num_groups, eps: 1e-5 })
    }

    /// Sets the number that is added to the variance or mean square.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }
}

forward!(GroupNorm, this, x => {
    if let Some(weight) = &this.weight {
        input_device::check("GroupNorm", x, "weight", weight)?;
    }
    group_norm(x, this.num_groups, this.weight.as_deref(), this.bias.as_deref(), this.eps)
});

/// Settings of batch and instance norms. The defaults are PyTorch's for batch norms; [`NormOptions::instance`] has
/// those for instance norms.
#[derive(Clone, Copy, Debug)]
pub struct NormOptions {
    /// Number that is added to the variance. Default: 1e-5.
    pub eps: f64,
    /// Weight of a batch's statistics in the running statistics. Default: 0.1. `None`: the running statistics of a
    /// batch norm are averages over all batches, which waits for the device once per batch; those of an instance norm
    /// do not change.
    pub momentum: Option<f64>,
    /// Creates a weight and a bias for each channel. Default: true.
    pub affine: bool,
    /// Keeps a running mean and variance. Without them the batch's statistics are also used in evaluation. Default:
    /// true.
    pub track_running_stats: bool,
}

impl Default for NormOptions {
    fn default() -> Self {
        Self { eps: 1e-5, momentum: Some(0.1), affine: true, track_running_stats: true }
    }
}

impl NormOptions {
    /// Returns PyTorch's settings for instance norms: neither parameters nor running statistics.
    #[must_use]
    pub fn instance() -> Self {
        Self { affine: false, track_running_stats: false, ..Self::default() }
    }
}

/// The common part of batch and instance norms.
#[derive(Clone, Debug, Module)]
struct ChannelNorm {
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    running_mean: Option<Buffer>,
    running_var: Option<Buffer>,
    num_batches_tracked: Option<Buffer>,
    training: Training,
    eps: f64,
    #[module(skip)]
    momentum: Option<f64>,
}

impl ChannelNorm {
    #[track_caller]
    fn new(channels: usize, norm: NormOptions, options: TensorOptions) -> Result<Self> {
        let options = floats(options);
        let (mut weight, mut bias) = (None, None);
        if norm.affine {
            let (ones, zeros) = affine(&[channels], &options)?;
            (weight, bias) = (Some(ones), Some(zeros));
        }
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
            eps,
            momentum,
        })
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
        let reason = format!("expects an input of {dims:?} dimensions, but got {:?}", x.size());
        Err(Error::invalid(op, reason))
    }
}

/// Defines a norm of channels and its constructors. `$settings` are PyTorch's.
macro_rules! channel_norm {
    ($name:ident, $settings:expr, $doc:expr, $default:expr) => {
        #[doc = $doc]
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            #[module(name = "")]
            channels: ChannelNorm,
        }

        impl $name {
            #[doc = $default]
            ///
            /// # Errors
            /// Errors of [`ones`] and [`zeros`].
            #[track_caller]
            pub fn new(channels: usize, options: impl Into<TensorOptions>) -> Result<Self> {
                Self::with_settings(channels, $settings, options)
            }

            /// Creates a norm of `channels` channels with the given settings.
            ///
            /// # Errors
            /// Errors of [`ones`] and [`zeros`].
            #[track_caller]
            pub fn with_settings(
                channels: usize,
                settings: NormOptions,
                options: impl Into<TensorOptions>,
            ) -> Result<Self> {
                let channels = ChannelNorm::new(channels, settings, options.into());
                Ok(Self { channels: channels.of(stringify!($name))? })
            }
        }
    };
}

macro_rules! batch_norms {
    ($($name:ident $dims:expr;)*) => {$(
        channel_norm!(
            $name,
            NormOptions::default(),
            concat!(
                "Normalises each channel to mean 0 and variance 1 (`torch.nn.", stringify!($name),
                "`). Training uses the batch's statistics and updates the running statistics; evaluation uses the latter."
            ),
            "Creates a norm of `channels` channels with PyTorch's settings."
        );

        forward!($name, this, x => {
            let c = &this.channels;
            c.check(stringify!($name), x, &$dims)?;
            let own = c.training.get() || c.running_mean.is_none();
            let options = BatchNormOptions {
                weight: c.weight.as_deref(),
                bias: c.bias.as_deref(),
                training: own,
                momentum: c.count_batch()?,
                eps: c.eps,
            };
            batch_norm(x, c.running_mean.as_deref(), c.running_var.as_deref(), &options)
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
            NormOptions::instance(),
            concat!(
                "Normalises each channel of each sample to mean 0 and variance 1 (`torch.nn.", stringify!($name), "`)."
            ),
            "Creates a norm of `channels` channels with PyTorch's settings: neither parameters nor running statistics."
        );

        forward!($name, this, x => {
            let c = &this.channels;
            c.check(stringify!($name), x, &$dims)?;
            let options = InstanceNormOptions {
                weight: c.weight.as_deref(),
                bias: c.bias.as_deref(),
                use_input_stats: c.training.get() || c.running_mean.is_none(),
                momentum: c.momentum.unwrap_or(0.0),
                eps: c.eps,
            };
            let (mean, var) = (c.running_mean.as_deref(), c.running_var.as_deref());
            if x.dim() == $dims[0] {
                // A single sample without a batch dimension.
                return instance_norm(&x.unsqueeze(0)?, mean, var, &options)?.squeeze(0);
            }
            instance_norm(x, mean, var, &options)
        });
    )*};
}

instance_norms! {
    InstanceNorm1d [2, 3];
    InstanceNorm2d [3, 4];
    InstanceNorm3d [4, 5];
}
