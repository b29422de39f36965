//! Options of modules that have parameters.

use warpline::{Error, Result};

/// Largest number of equal layers that a module creates, far above that of any network. Without a limit, a number that
/// is far too large would fill the memory of the host before the call fails.
const MAX_LAYERS: usize = 1 << 16;

/// Refuses a number of layers above [`MAX_LAYERS`].
#[track_caller]
pub(super) fn check_layers(op: &'static str, num_layers: usize) -> Result<()> {
    if num_layers <= MAX_LAYERS {
        return Ok(());
    }
    Err(Error::invalid(op, format!("num_layers can be at most {MAX_LAYERS}, but is {num_layers}")))
}

/// Defines options of a module, as [`warpline::__options`] does, with the dtype and the device of its parameters.
macro_rules! parameter_options {
    (
        $(#[$meta:meta])*
        $name:ident [$($generics:tt)*] [$($params:tt)*] { $($fields:tt)* }
    ) => {
        warpline::__options! {
            $(#[$meta])*
            ///
            /// A dtype, a device, a pair of them, and [`warpline::TensorOptions`] convert into options.
            #[derive(Clone, Debug)]
            $name [$($generics)*] [$($params)*] {
                $($fields)*
                #[doc(hidden)]
                tensor: warpline::TensorOptions = warpline::TensorOptions::new(),
                    impl Into<warpline::TensorOptions> => Into::into;
            }
        }

        impl<$($generics)*> $name<$($params)*> {
            /// Sets the dtype of the parameters. Default: `float32`.
            #[must_use]
            pub fn dtype(mut self, dtype: warpline::DType) -> Self {
                self.tensor = self.tensor.dtype(dtype);
                self
            }

            /// Sets the device of the parameters. Default: the CPU. An invalid name becomes an error of the
            /// constructor.
            #[must_use]
            pub fn device(mut self, device: impl warpline::IntoDevice) -> Self {
                self.tensor = self.tensor.device(device);
                self
            }
        }

        parameter_options!(@from $name [$($generics)*] [$($params)*]
            warpline::DType, warpline::Device, &warpline::Device, &str, warpline::TensorOptions,
            &warpline::TensorOptions);

        impl<D_: warpline::IntoDevice, $($generics)*> From<(warpline::DType, D_)> for $name<$($params)*> {
            fn from(options: (warpline::DType, D_)) -> Self {
                Self::new().tensor(options)
            }
        }
    };
    (@from $name:ident $generics:tt $params:tt $($from:ty),*) => {
        $(parameter_options!(@one $name $generics $params $from);)*
    };
    (@one $name:ident [$($generics:tt)*] [$($params:tt)*] $from:ty) => {
        impl<$($generics)*> From<$from> for $name<$($params)*> {
            fn from(options: $from) -> Self {
                Self::new().tensor(options)
            }
        }
    };
}

pub(super) use parameter_options;
