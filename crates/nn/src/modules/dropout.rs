//! Dropout.

use warpline::functional::{DropoutOptions, dropout, dropout1d, dropout2d, dropout3d};
use warpline::{Error, IntoOptions, OrDefault, Result, Tensor};

use super::activation::forward;
use super::repr::float;
use crate::{Forward, Module, Training};

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
            /// Creates a module that drops with probability `p`, from 0 to 1. Default: 0.5.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `p` is not from 0 to 1.
            #[track_caller]
            pub fn new(p: impl IntoOptions<OrDefault<f64>>) -> Result<Self> {
                let p = p.into_options().or(0.5);
                if (0.0..=1.0).contains(&p) {
                    return Ok(Self { p, training: Training::default() });
                }
                let reason = format!("p must be a probability, from 0 to 1, but is {p}");
                Err(Error::invalid(stringify!($name), reason))
            }

            fn describe(&self) -> String {
                format!("p={}, inplace=False", float(self.p))
            }
        }

        forward!($name, this, x => $function(x, DropoutOptions::new().p(this.p).training(this.training.get())));
    )*};
}

dropouts! {
    "element" Dropout dropout;
    "channel" Dropout1d dropout1d;
    "channel" Dropout2d dropout2d;
    "channel" Dropout3d dropout3d;
}
