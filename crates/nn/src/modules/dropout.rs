//! Dropout.

use warpline::functional::{self, dropout, dropout1d, dropout2d, dropout3d};
use warpline::{Error, IntoOptions, Result, Tensor};

use super::activation::forward;
use super::repr::float;
use crate::{Forward, Module, Training};

warpline::__options! {
    /// Options of [`Dropout`] and of the dropouts of channels. A probability converts into options.
    #[derive(Clone, Copy, Debug)]
    DropoutOptions [] [] {
        /// Sets the probability of an element or channel to be set to zero, from 0 to 1. Default: 0.5.
        p: f64 = 0.5, f64;
    }
}

warpline::__options_from_number! { DropoutOptions p; }

macro_rules! dropouts {
    ($($doc:literal $name:ident $function:ident;)*) => {$(
        #[doc = concat!("Zeroes each ", $doc, " with probability `p` in training, and multiplies the others by 1 / (1 - p) ")]
        #[doc = concat!("(`torch.nn.", stringify!($name), "`). Returns its input in evaluation.")]
        #[derive(Clone, Copy, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            p: f64,
            training: Training,
        }

        impl $name {
            /// Creates a module. `options` is `()`, the probability `p`, or [`DropoutOptions`].
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `p` is not from 0 to 1.
            #[track_caller]
            pub fn new(options: impl IntoOptions<DropoutOptions>) -> Result<Self> {
                let DropoutOptions { p } = options.into_options();
                if (0.0..=1.0).contains(&p) {
                    return Ok(Self { p, training: Training::default() });
                }
                let reason = format!("p is a probability, from 0 to 1, but is {p}");
                Err(Error::invalid(stringify!($name), reason))
            }

            fn describe(&self) -> String {
                format!("p={}, inplace=False", float(self.p))
            }
        }

        forward!($name, this, x => $function(x, functional::DropoutOptions::new().p(this.p).training(this.training.get())));
    )*};
}

dropouts! {
    "element" Dropout dropout;
    "channel" Dropout1d dropout1d;
    "channel" Dropout2d dropout2d;
    "channel" Dropout3d dropout3d;
}
