//! Settings of products and convolutions that trade precision for speed, as in `torch.backends`.
//!
//! Precisions of `float32` form a tree. Its root is the generic precision. Below it is the precision of CUDA, and below
//! that are the precisions of products, convolutions and recurrent layers. A part that is not set has the precision of
//! its parent. Convolutions and recurrent layers use TF32 if neither they nor their parents are set.
//!
//! PyTorch's older settings (`allow_tf32` and `float32_matmul_precision`) store a second value beside the tree. Reading
//! an older setting fails if its value contradicts the tree, because then the program has used both interfaces.

use std::sync::PoisonError;

use warpline_sync::{Mutex, MutexGuard};

use crate::{Error, Result};

/// A precision of `float32` as it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Set {
    /// Never set.
    #[default]
    Unset,
    /// Set to `none`: use the precision of the parent.
    Parent,
    Ieee,
    Tf32,
    Bf16,
}

/// A part of the library with a precision of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrecisionOf {
    /// All backends (`torch.backends.fp32_precision`).
    Generic,
    /// All ops on CUDA (`torch.backends.cudnn.fp32_precision`).
    Cuda,
    /// Matrix products on CUDA (`torch.backends.cuda.matmul.fp32_precision`).
    Matmul,
    /// Convolutions on CUDA (`torch.backends.cudnn.conv.fp32_precision`).
    Conv,
    /// Recurrent layers on CUDA (`torch.backends.cudnn.rnn.fp32_precision`).
    Rnn,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// In the order of [`PrecisionOf`].
    set: [Set; 5],
    /// The precision of products on the CPU, which only [`Precision::set_float32_matmul_precision`] sets.
    cpu_matmul: Set,
    /// The older setting `float32_matmul_precision` of products: `highest`, `high` or `medium`.
    matmul: &'static str,
    /// The older setting `allow_tf32` of convolutions and recurrent layers.
    cudnn_tf32: bool,
    fp16_reduction: bool,
    bf16_reduction: bool,
    fp16_accumulation: bool,
}

impl Settings {
    /// Returns the precision of a part, from its own setting or its parents'.
    fn resolve(&self, of: PrecisionOf) -> Set {
        let own = self.set[of as usize];
        let parents: &[PrecisionOf] = match of {
            PrecisionOf::Generic => &[],
            PrecisionOf::Cuda => &[PrecisionOf::Generic],
            _ => &[PrecisionOf::Cuda, PrecisionOf::Generic],
        };
        let all = std::iter::once(own).chain(parents.iter().map(|of| self.set[*of as usize]));
        match all.into_iter().find(|set| !matches!(set, Set::Unset | Set::Parent)) {
            // CUDA has no products of float32 in bfloat16.
            Some(Set::Bf16) if of != PrecisionOf::Generic => Set::Parent,
            Some(set) => set,
            None if own == Set::Unset && matches!(of, PrecisionOf::Conv | PrecisionOf::Rnn) => {
                Set::Tf32
            }
            None => Set::Parent,
        }
    }

    fn is_tf32(&self, of: PrecisionOf) -> bool {
        self.resolve(of) == Set::Tf32
    }

    fn set(&mut self, of: PrecisionOf, set: Set) {
        self.set[of as usize] = set;
    }
}

/// The settings of a runtime for precision and speed, with PyTorch's names.
#[derive(Debug)]
pub struct Precision(Mutex<Settings>);

impl Default for Precision {
    fn default() -> Self {
        Self(Mutex::new(Settings {
            set: [Set::Unset; 5],
            cpu_matmul: Set::Unset,
            matmul: "highest",
            cudnn_tf32: true,
            fp16_reduction: true,
            bf16_reduction: true,
            fp16_accumulation: false,
        }))
    }
}

/// Defines the functions that read and set a boolean setting.
macro_rules! switches {
    ($($(#[$doc:meta])* $field:ident $get:ident $set:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $get(&self) -> bool {
            self.lock().$field
        }

        #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
        pub fn $set(&self, allow: bool) {
            self.lock().$field = allow;
        }
    )*};
}

impl Precision {
    fn lock(&self) -> MutexGuard<'_, Settings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether matrix products of `float32` may round their factors to TF32.
    #[must_use]
    pub fn matmul_uses_tf32(&self) -> bool {
        self.lock().is_tf32(PrecisionOf::Matmul)
    }

    /// Returns whether convolutions of `float32` may round their factors to TF32.
    #[must_use]
    pub fn conv_uses_tf32(&self) -> bool {
        self.lock().is_tf32(PrecisionOf::Conv)
    }

    /// Returns whether recurrent layers of `float32` may round their factors to TF32.
    #[must_use]
    pub fn rnn_uses_tf32(&self) -> bool {
        self.lock().is_tf32(PrecisionOf::Rnn)
    }

    /// Returns a part's precision, from its own setting or its parents': `ieee`, `tf32`, `bf16`, or `none` if none of
    /// them names a precision. Default: `tf32` for convolutions and recurrent layers, `none` for other parts.
    #[must_use]
    pub fn fp32_precision(&self, of: PrecisionOf) -> &'static str {
        match self.lock().resolve(of) {
            Set::Unset | Set::Parent => "none",
            Set::Ieee => "ieee",
            Set::Tf32 => "tf32",
            Set::Bf16 => "bf16",
        }
    }

    /// Sets a part's precision to `ieee`, `tf32` or `none`; `none` means the precision of its parent. The generic
    /// precision may also be `bf16`, which no op on CUDA uses.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for any other value.
    #[track_caller]
    pub fn set_fp32_precision(&self, of: PrecisionOf, precision: &str) -> Result<()> {
        let set = match precision {
            "none" => Set::Parent,
            "ieee" => Set::Ieee,
            "tf32" => Set::Tf32,
            "bf16" if of == PrecisionOf::Generic => Set::Bf16,
            _ => {
                let bf16 = if of == PrecisionOf::Generic { ", `bf16`" } else { "" };
                let reason = format!(
                    "the precision is `{precision}`, but must be `ieee`, `tf32`{bf16} or `none`"
                );
                return Err(Error::invalid("set_fp32_precision", reason));
            }
        };
        self.lock().set(of, set);
        Ok(())
    }

    /// Returns the older setting of products: `highest`, `high` or `medium`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the present precision of products rounds
    /// more than this setting allows, for example because the program also called
    /// [`set_fp32_precision`](Self::set_fp32_precision).
    #[track_caller]
    pub fn float32_matmul_precision(&self) -> Result<&'static str> {
        let settings = *self.lock();
        let cpu = match settings.cpu_matmul {
            Set::Unset | Set::Parent => settings.resolve(PrecisionOf::Generic),
            set => set,
        };
        let differs = settings.is_tf32(PrecisionOf::Matmul) && settings.matmul == "highest"
            || cpu == Set::Bf16 && settings.matmul != "medium"
            || cpu == Set::Tf32 && settings.matmul != "high";
        if differs {
            return Err(mixed("get_float32_matmul_precision", "set_float32_matmul_precision"));
        }
        Ok(settings.matmul)
    }

    /// Sets the precision of products in PyTorch's older terms. On CUDA, `highest` is `ieee`; `high` and `medium` are
    /// `tf32`. On the CPU, `medium` is `bf16`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for any other value.
    #[track_caller]
    pub fn set_float32_matmul_precision(&self, precision: &str) -> Result<()> {
        let (matmul, cuda, cpu) = match precision {
            "highest" => ("highest", Set::Ieee, Set::Ieee),
            "high" => ("high", Set::Tf32, Set::Tf32),
            "medium" => ("medium", Set::Tf32, Set::Bf16),
            _ => {
                let reason = format!(
                    "the precision is `{precision}`, but must be `highest`, `high` or `medium`"
                );
                return Err(Error::invalid("set_float32_matmul_precision", reason));
            }
        };
        let mut settings = self.lock();
        (settings.matmul, settings.cpu_matmul) = (matmul, cpu);
        settings.set(PrecisionOf::Matmul, cuda);
        Ok(())
    }

    /// Returns whether products may use TF32 (the older setting `allow_tf32`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if this setting and the present precision
    /// differ, because the program also called [`set_fp32_precision`](Self::set_fp32_precision).
    #[track_caller]
    pub fn matmul_allow_tf32(&self) -> Result<bool> {
        let settings = *self.lock();
        let allows = settings.is_tf32(PrecisionOf::Matmul);
        if allows != (settings.matmul != "highest") {
            return Err(mixed("matmul.allow_tf32", "set_allow_tf32"));
        }
        Ok(allows)
    }

    /// Sets whether products may use TF32 (the older setting `allow_tf32`).
    pub fn set_matmul_allow_tf32(&self, allow: bool) {
        let mut settings = self.lock();
        settings.matmul = if allow { "high" } else { "highest" };
        settings.set(PrecisionOf::Matmul, if allow { Set::Tf32 } else { Set::Ieee });
    }

    /// Returns whether convolutions and recurrent layers may use TF32 (the older setting `allow_tf32`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if this setting and the present precision
    /// differ, because the program also called [`set_fp32_precision`](Self::set_fp32_precision).
    #[track_caller]
    pub fn cudnn_allow_tf32(&self) -> Result<bool> {
        let settings = *self.lock();
        let allows = [PrecisionOf::Conv, PrecisionOf::Rnn].map(|of| settings.is_tf32(of));
        if allows != [settings.cudnn_tf32; 2] {
            return Err(mixed("cudnn.allow_tf32", "set_allow_tf32"));
        }
        Ok(settings.cudnn_tf32)
    }

    /// Sets whether convolutions and recurrent layers may use TF32 (the older setting `allow_tf32`).
    pub fn set_cudnn_allow_tf32(&self, allow: bool) {
        let mut settings = self.lock();
        let set = if allow { Set::Tf32 } else { Set::Parent };
        settings.set(PrecisionOf::Conv, set);
        settings.set(PrecisionOf::Rnn, set);
        settings.cudnn_tf32 = allow;
    }

    switches! {
        /// Returns whether partial sums of `float16` products may be rounded to `float16` before they are added.
        fp16_reduction allow_fp16_reduced_precision_reduction set_allow_fp16_reduced_precision_reduction;
        /// Returns whether partial sums of `bfloat16` products may be rounded to `bfloat16` before they are added.
        bf16_reduction allow_bf16_reduced_precision_reduction set_allow_bf16_reduced_precision_reduction;
        /// Returns whether `float16` products may be summed in `float16`.
        fp16_accumulation allow_fp16_accumulation set_allow_fp16_accumulation;
    }
}

/// Returns the error of a program that uses both the older settings and `set_fp32_precision`.
#[track_caller]
fn mixed(op: &'static str, setter: &str) -> Error {
    let reason = format!(
        "the program has set precisions by both `{setter}` and `set_fp32_precision`, and they differ; use only \
         `fp32_precision`"
    );
    Error::invalid(op, reason)
}
