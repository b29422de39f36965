//! Types that can be given as a shape.

use smallvec::SmallVec;
use warpline_runtime::Sizes;

/// The sizes of a new tensor: `[2, 3]`, `&[2, 3]`, a slice or `Vec` of `usize`, one `usize` for a tensor of one
/// dimension, or `()` for a tensor without dimensions.
///
/// ```
/// # use warpline::zeros;
/// for t in [zeros([2, 3], ())?, zeros(&[2, 3], ())?, zeros(vec![2, 3], ())?] {
///     assert_eq!(t.size(), [2, 3]);
/// }
/// assert_eq!((zeros(3, ())?.size(), zeros((), ())?.dim()), (&[3][..], 0));
/// # Ok::<(), warpline::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no shape of a new tensor",
    label = "expected sizes such as `[2, 3]`",
    note = "sizes are `usize`: an array, a reference to one, a slice, a `Vec`, one number, or `()`"
)]
pub trait IntoShape {
    /// Returns the sizes.
    fn into_shape(self) -> Sizes;
}

/// The sizes that [`reshape`](crate::Tensor::reshape) and similar methods take. A size may be -1: `reshape`
/// computes it from the other sizes. Arrays, slices and `Vec`s of `i32`, `i64`, `isize` or `usize`, one number,
/// and `()` are sizes.
///
/// ```
/// # use warpline::arange;
/// let t = arange(6, ())?;
/// assert_eq!(t.reshape([2, -1])?.size(), [2, 3]);
/// assert_eq!(t.reshape(arange(6, ())?.reshape([3, 2])?.size())?.reshape(-1)?.size(), [6]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no shape",
    label = "expected sizes such as `[2, -1]`",
    note = "sizes are integers: an array, a reference to one, a slice, a `Vec`, one number, or `()`"
)]
pub trait IntoSizes {
    /// Returns the sizes.
    fn into_sizes(self) -> SmallVec<[isize; 6]>;
}

impl IntoShape for () {
    fn into_shape(self) -> Sizes {
        Sizes::new()
    }
}

impl IntoSizes for () {
    fn into_sizes(self) -> SmallVec<[isize; 6]> {
        SmallVec::new()
    }
}

impl IntoShape for usize {
    fn into_shape(self) -> Sizes {
        Sizes::from_slice(&[self])
    }
}

macro_rules! shapes {
    ($([$($generic:tt)*] $ty:ty;)*) => {$(
        impl $($generic)* IntoShape for $ty {
            fn into_shape(self) -> Sizes {
                Sizes::from_slice(&self[..])
            }
        }
    )*};
}

shapes! {
    [<const N: usize>] [usize; N];
    [<const N: usize>] &[usize; N];
    [] &[usize];
    [] Vec<usize>;
    [] &Vec<usize>;
    [] &Sizes;
}

macro_rules! sizes {
    ($($int:ty),*) => {$(
        sizes!(@list $int, [<const N: usize>] [$int; N]);
        sizes!(@list $int, [<const N: usize>] &[$int; N]);
        sizes!(@list $int, [] &[$int]);
        sizes!(@list $int, [] Vec<$int>);
        sizes!(@list $int, [] &Vec<$int>);
        sizes!(@list $int, [] &SmallVec<[$int; 6]>);

        impl IntoSizes for $int {
            fn into_sizes(self) -> SmallVec<[isize; 6]> {
                [self].into_sizes()
            }
        }
    )*};
    (@list $int:ty, [$($generic:tt)*] $ty:ty) => {
        impl $($generic)* IntoSizes for $ty {
            fn into_sizes(self) -> SmallVec<[isize; 6]> {
                // Saturates sizes that exceed `isize`: no tensor is as large as `isize::MAX`.
                self.iter().map(|&size| isize::try_from(size).unwrap_or(isize::MAX)).collect()
            }
        }
    };
}

sizes!(i32, i64, isize, usize);
