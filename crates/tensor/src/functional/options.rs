//! Options of functions and modules: `()`, or a struct with one setter per optional argument.

use crate::Integer;

/// Defines a struct of options: its defaults, its setters, and the conversion from `()`. A field is
/// `name: type = default, type of the setter's argument`, followed by `=>` and a conversion if the two types differ.
/// The comment of a field documents the setter.
///
/// The fields are public so that functions of other crates can read them, and hidden from the documentation so that
/// callers use the setters.
#[doc(hidden)]
#[macro_export]
macro_rules! __options {
    (
        $(#[$meta:meta])*
        $name:ident [$($generics:tt)*] [$($params:tt)*] { $($fields:tt)* }
    ) => {
        $crate::__options! {
            @without_unit
            $(#[$meta])*
            $name [$($generics)*] [$($params)*] { $($fields)* }
        }

        impl<$($generics)*> From<()> for $name<$($params)*> {
            fn from((): ()) -> Self {
                Self::default()
            }
        }
    };
    // Without the conversion from `()`, for options that convert from every list of dimensions, `()` included.
    (
        @without_unit
        $(#[$meta:meta])*
        $name:ident [$($generics:tt)*] [$($params:tt)*] {
            $($(#[$doc:meta])* $field:ident: $ty:ty = $default:expr, $arg:ty $(=> $convert:expr)?;)*
        }
    ) => {
        $(#[$meta])*
        #[non_exhaustive]
        pub struct $name<$($generics)*> {
            $(#[doc(hidden)] pub $field: $ty,)*
        }

        impl<$($generics)*> Default for $name<$($params)*> {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl<$($generics)*> $name<$($params)*> {
            /// Creates options with the defaults.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            $(
                $(#[$doc])*
                #[must_use]
                pub fn $field(mut self, $field: $arg) -> Self {
                    self.$field = $crate::__options!(@value $field $($convert)?);
                    self
                }
            )*
        }
    };
    (@value $field:ident) => { $field };
    (@value $field:ident $convert:expr) => { ($convert)($field) };
}

/// Implements the conversion of a number into options, by the setter of one field.
#[doc(hidden)]
#[macro_export]
macro_rules! __options_from_number {
    ($($options:ident $field:ident;)*) => {$(
        impl From<f64> for $options {
            fn from($field: f64) -> Self {
                Self::new().$field($field)
            }
        }
    )*};
}

pub(crate) use crate::__options as options;
pub(crate) use crate::__options_from_number as from_number;

/// Implements the conversion of an [`Integer`] into options, by the setter of one field.
macro_rules! from_integer {
    ($($options:ident $field:ident;)*) => {$(
        impl<I: $crate::Integer> From<I> for $options {
            fn from($field: I) -> Self {
                Self::new().$field($field)
            }
        }
    )*};
}
pub(crate) use from_integer;

/// Numbers for `D` dimensions: one number for all dimensions, or an array or a tuple with a number per dimension. The
/// numbers are [`Integer`]s.
///
/// ```
/// use warpline::functional::max_pool2d;
///
/// let image = warpline::ones([1, 4, 4], ())?;
/// assert_eq!(max_pool2d(&image, 2, ())?.size(), [1, 2, 2]);
/// assert_eq!(max_pool2d(&image, [1, 2], ())?.size(), [1, 4, 2]);
/// assert_eq!(max_pool2d(&image, (1usize, 2i64), ())?.size(), [1, 4, 2]);
/// assert!(max_pool2d(&image, -1, ()).unwrap_err().to_string().contains("kernel_size"));
/// # Ok::<(), warpline::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number per dimension",
    label = "expected an integer for all dimensions, or an array or tuple of {D} integers"
)]
pub trait PerDimension<const D: usize> {
    /// Returns one number per dimension. A negative number `n` becomes `n as usize`, which is above `isize::MAX`;
    /// functions refuse such numbers.
    fn per_dimension(self) -> [usize; D];
}

impl<const D: usize, I: Integer> PerDimension<D> for I {
    fn per_dimension(self) -> [usize; D] {
        [number(self); D]
    }
}

impl<const D: usize, I: Integer> PerDimension<D> for [I; D] {
    fn per_dimension(self) -> [usize; D] {
        self.map(number)
    }
}

impl<A: Integer, B: Integer> PerDimension<2> for (A, B) {
    fn per_dimension(self) -> [usize; 2] {
        [number(self.0), number(self.1)]
    }
}

impl<A: Integer, B: Integer, C: Integer> PerDimension<3> for (A, B, C) {
    fn per_dimension(self) -> [usize; 3] {
        [number(self.0), number(self.1), number(self.2)]
    }
}

fn number(integer: impl Integer) -> usize {
    integer.into_isize() as usize
}
