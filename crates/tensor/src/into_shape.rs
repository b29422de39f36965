//! Types that can be given as a shape.

use smallvec::SmallVec;
use warpline_runtime::Sizes;

/// The sizes of a new tensor: `[2, 3]`, `&[2, 3]`, `(2, 3)`, a slice or `Vec` of `usize`, one `usize` for a tensor of
/// one dimension, or `()` for a tensor without dimensions.
///
/// ```
/// # use warpline::zeros;
/// for t in [zeros([2, 3], ())?, zeros(&[2, 3], ())?, zeros((2, 3), ())?, zeros(vec![2, 3], ())?] {
///     assert_eq!(t.size(), [2, 3]);
/// }
/// assert_eq!((zeros(3, ())?.size(), zeros((), ())?.dim()), (&[3][..], 0));
/// # Ok::<(), warpline::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shape of a new tensor",
    label = "expected sizes such as `[2, 3]`",
    note = "sizes are `usize`: an array, a reference to one, a slice, a `Vec`, a tuple, one number, or `()`"
)]
pub trait IntoShape {
    /// Returns the sizes.
    fn into_shape(self) -> Sizes;
}

/// An integer argument, such as a dimension or an index: a `usize`, `isize`, `i32` or `i64`. A negative dimension or
/// index counts from the end.
///
/// ```
/// # use warpline::zeros;
/// let t = zeros([2, 3], ())?;
/// let last = t.dim() - 1;
/// assert_eq!(t.softmax(last)?.size(), t.softmax(-1)?.size());
/// # Ok::<(), warpline::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integer argument",
    label = "expected an integer such as `-1`",
    note = "integers are `usize`, `isize`, `i32` and `i64`"
)]
pub trait Integer: Copy {
    /// Returns the integer. An integer above `isize::MAX`, which is no tensor's dimension, index or size, becomes
    /// `isize::MAX`.
    fn into_isize(self) -> isize;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Integer for $int {
            fn into_isize(self) -> isize {
                isize::try_from(self).unwrap_or(if self > 0 { isize::MAX } else { isize::MIN })
            }
        }
    )*};
}

integers!(i32, i64, isize, usize);

/// The sizes that [`reshape`](crate::Tensor::reshape) and similar methods take. A size may be -1: `reshape`
/// computes it from the other sizes. Sizes are an array, a slice or a `Vec` of [`Integer`]s, a tuple of up to six
/// [`Integer`]s, whose types may differ, one [`Integer`], or `()`.
///
/// ```
/// # use warpline::arange;
/// let t = arange(6, ())?;
/// assert_eq!(t.reshape([2, -1])?.size(), [2, 3]);
/// let rows: usize = 3;
/// assert_eq!(t.reshape((rows, -1))?.size(), [3, 2]);
/// assert_eq!(t.reshape(arange(6, ())?.reshape([3, 2])?.size())?.reshape(-1)?.size(), [6]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shape",
    label = "expected sizes such as `[2, -1]`",
    note = "sizes are integers: an array, a reference to one, a slice, a `Vec`, a tuple, one number, or `()`"
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

impl<I: Integer> IntoSizes for I {
    fn into_sizes(self) -> SmallVec<[isize; 6]> {
        SmallVec::from_iter([self.into_isize()])
    }
}

macro_rules! sizes {
    ($([$($generic:tt)*] $ty:ty;)*) => {$(
        impl<I: Integer, $($generic)*> IntoSizes for $ty {
            fn into_sizes(self) -> SmallVec<[isize; 6]> {
                self.iter().map(|size| size.into_isize()).collect()
            }
        }
    )*};
}

sizes! {
    [const N: usize] [I; N];
    [const N: usize] &[I; N];
    [] &[I];
    [] Vec<I>;
    [] &Vec<I>;
    [] &SmallVec<[I; 6]>;
}

macro_rules! shape_tuples {
    ($($usize:ty)+) => {
        impl IntoShape for ($($usize,)+) {
            fn into_shape(self) -> Sizes {
                Sizes::from_slice(&<[usize; _]>::from(self))
            }
        }
    };
}

shape_tuples!(usize);
shape_tuples!(usize usize);
shape_tuples!(usize usize usize);
shape_tuples!(usize usize usize usize);
shape_tuples!(usize usize usize usize usize);
shape_tuples!(usize usize usize usize usize usize);

/// Implements, for tuples of up to six parts, a trait whose method returns the list of parts. `convert` is the method
/// that turns a part into an item of the list.
macro_rules! list_tuples {
    ($name:ident::$method:ident -> [$item:ty], $part:path, $convert:ident) => {
        crate::into_shape::list_tuples! {
            @ $name::$method -> [$item], $part, $convert;
            A;
            A B;
            A B C;
            A B C D;
            A B C D E;
            A B C D E F;
        }
    };
    (@ $name:ident::$method:ident -> [$item:ty], $part:path, $convert:ident;) => {};
    (@ $name:ident::$method:ident -> [$item:ty], $part:path, $convert:ident; $($ty:ident)+; $($rest:tt)*) => {
        impl<$($ty: $part),+> $name for ($($ty,)+) {
            fn $method(self) -> SmallVec<[$item; 6]> {
                #[allow(non_snake_case)] // the tuple's parts are named after their types
                let ($($ty,)+) = self;
                SmallVec::from_iter([$($ty.$convert()),+])
            }
        }
        crate::into_shape::list_tuples! { @ $name::$method -> [$item], $part, $convert; $($rest)* }
    };
}
pub(crate) use list_tuples;

list_tuples!(IntoSizes::into_sizes -> [isize], Integer, into_isize);
