//! Rust structs as CUDA types. Their CUDA definitions are generated, never written by hand.

use std::fmt::Write;

/// A type of kernel parameters, with the same layout in Rust and CUDA.
///
/// [`cuda_struct!`](crate::cuda_struct) declares such a struct.
pub trait CudaType: Sized {
    /// Whether the first bytes are a [`Report`](crate::launch::Report). A kernel with such
    /// parameters checks indices.
    const BEGINS_WITH_REPORT: bool = false;

    /// Returns the CUDA declaration of a variable with this name, such as `u32 sizes[16]`.
    fn declare(name: &str) -> String;

    /// Adds the type's definition after those of its fields.
    fn define(_: &mut Definitions) {}
}

macro_rules! plain {
    ($($ty:ident)*) => {$(
        impl CudaType for $ty {
            fn declare(name: &str) -> String {
                format!(concat!(stringify!($ty), " {}"), name)
            }
        }
    )*};
}

plain! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }

impl<T: CudaType, const N: usize> CudaType for [T; N] {
    const BEGINS_WITH_REPORT: bool = N > 0 && T::BEGINS_WITH_REPORT;

    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }

    fn define(definitions: &mut Definitions) {
        T::define(definitions);
    }
}

/// A field of a struct: its declaration and size.
#[derive(Debug)]
pub struct Field {
    declaration: String,
    define: fn(&mut Definitions),
    size: usize,
}

/// Creates a field for [`Definitions::structure`]. The field has the type `T` that `_of` returns.
pub fn field<S, T: CudaType>(name: &str, _of: fn(S) -> T) -> Field {
    Field { declaration: T::declare(name), define: T::define, size: size_of::<T>() }
}

/// Returns the CUDA declaration of a variable whose type is a struct, which may be an instance of a template.
pub fn declaration(structure: &str, arguments: &[String], name: &str) -> String {
    match arguments {
        [] => format!("{structure} {name}"),
        _ => format!("{structure}<{}> {name}", arguments.join(", ")),
    }
}

/// The type definitions of a source, each once, in order of dependency.
#[derive(Debug, Default)]
pub struct Definitions {
    names: Vec<String>,
    text: String,
}

impl Definitions {
    /// Adds a struct. The CUDA source asserts that the struct has the same size in CUDA as in Rust. Because it has no
    /// padding, equal sizes mean that its fields also have equal offsets.
    ///
    /// # Panics
    /// If the sizes of `fields` do not add up to the size of `S`: the struct has padding, whose uninitialized bytes
    /// would be sent to the GPU, or `fields` lacks a field.
    pub fn structure<S>(&mut self, name: &str, fields: &[Field]) {
        self.define(name, fields, size_of::<S>());
    }

    fn define(&mut self, name: &str, fields: &[Field], size: usize) {
        let used: usize = fields.iter().map(|field| field.size).sum();
        assert_eq!(used, size, "{name} has padding, or fields that were left out");
        if self.names.iter().any(|known| known == name) {
            return;
        }
        fields.iter().for_each(|field| (field.define)(self));
        self.names.push(name.to_owned());
        let text = &mut self.text;
        let template = match name.split_once('<') {
            Some((base, arguments)) => {
                let kind = |argument: &str| {
                    let number = argument.trim().trim_end_matches('>').parse::<usize>().is_ok();
                    if number { "int" } else { "class" }
                };
                let kinds: Vec<&str> = arguments.split(',').map(kind).collect();
                let _ = writeln!(text, "template <{}> struct {base};", kinds.join(", "));
                "template <> "
            }
            None => "",
        };
        let _ = writeln!(text, "{template}struct {name} {{");
        for field in fields {
            let _ = writeln!(text, "    {};", field.declaration);
        }
        let _ = writeln!(text, "}};\nstatic_assert(sizeof({name}) == {size}, \"\");");
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

/// Returns [`CudaType::BEGINS_WITH_REPORT`] of the field that `_of` returns.
#[doc(hidden)]
pub const fn is_report<S, T: CudaType>(_of: fn(S) -> T) -> bool {
    T::BEGINS_WITH_REPORT
}

/// Declares a struct of plain fields that kernels take, for Rust and CUDA at once.
///
/// In Rust the struct is `#[repr(C)]` and [`Pod`](bytemuck::Pod). A [`Source`](super::Source) that
/// receives the type ([`Source::with`](super::Source::with)) contains the CUDA definition of a
/// struct with the same name. The struct must have no padding. The crate that uses the macro
/// depends on `bytemuck` with its feature `derive`.
///
/// ```
/// use warpline_runtime::{cuda_struct, module::Source};
///
/// cuda_struct! {
///     /// A factor, and the sizes of a matrix.
///     struct Args {
///         scale: f64,
///         sizes: [u32; 2],
///     }
/// }
///
/// let source = Source::new().with::<Args>();
/// assert!(source.text().contains("u32 sizes[2];"));
/// ```
///
/// A struct may have a const parameter: `struct Args<const N: usize> { .. }`. All its fields must then have the same
/// alignment, so that the struct has no padding for any `N`. This struct does not compile:
///
/// ```compile_fail,E0080
/// warpline_runtime::cuda_struct! {
///     struct Args<const N: usize> {
///         scales: [f32; N],
///         size: u64,
///     }
/// }
/// ```
///
/// A struct may also be generic over types: `struct Args<S, A> { .. }`. It is then `#[repr(C, packed)]`. A program does
/// not compile if the struct has padding in CUDA with the program's types:
///
/// ```compile_fail,E0080
/// use warpline_runtime::{cuda_struct, module::Source};
///
/// cuda_struct! {
///     struct Args<S, A> {
///         space: S,
///         args: A,
///     }
/// }
///
/// let source = Source::new().with::<Args<u32, u64>>();
/// ```
///
/// `cuda_struct!(Args { scale, sizes })` implements `CudaType` for a struct that is declared elsewhere. It must name
/// all fields of the struct.
#[macro_export]
macro_rules! cuda_struct {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ty),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, ::bytemuck::Pod, ::bytemuck::Zeroable)]
        #[repr(C)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $ty),*
        }
        $crate::cuda_struct!($name { $($field),* });
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident<const $n:ident: usize> {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ty),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        $vis struct $name<const $n: usize> {
            $($(#[$field_meta])* $field_vis $field: $ty),*
        }

        const _: () = {
            const fn same<const $n: usize>() -> bool {
                $(align_of::<$ty>() == align_of::<$name<$n>>() &&)* true
            }
            assert!(same::<1>(), "the fields of a struct with a const parameter must have the same alignment");
            const fn plain<T: ::bytemuck::Pod>() {}
            const fn fields<const $n: usize>() {
                $(plain::<$ty>();)*
            }
            fields::<1>();
        };
        // SAFETY: all fields are `Pod`, as `fields` requires for any const argument.
        unsafe impl<const $n: usize> ::bytemuck::Zeroable for $name<$n> {}
        // SAFETY: all fields are `Pod`, as `fields` requires for any const argument. In `repr(C)`, fields of the same
        // alignment have no padding. An array has the alignment of its elements for any length.
        unsafe impl<const $n: usize> ::bytemuck::Pod for $name<$n> {}

        $crate::cuda_struct!($name<$n> { $($field),* });
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident<$($param:ident),+> {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ty),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, ::bytemuck::Pod, ::bytemuck::Zeroable)]
        #[repr(C, packed)]
        $vis struct $name<$($param),+> {
            $($(#[$field_meta])* $field_vis $field: $ty),*
        }

        impl<$($param: ::bytemuck::Pod + $crate::module::CudaType),+> $name<$($param),+> {
            const NO_PADDING: () = assert!(
                $(::std::mem::offset_of!(Self, $field) % align_of::<$ty>() == 0
                    && size_of::<Self>() % align_of::<$ty>() == 0 &&)* true,
                "the struct has padding in CUDA; add fields in its place"
            );
        }

        $crate::cuda_struct!(
            @impl [$($param: ::bytemuck::Pod + $crate::module::CudaType),+] $name<$($param),+>,
            [$($param::declare("").trim_end()),+], false, Self::NO_PADDING, { $($field),* }
        );
    };
    ($name:ident $(<$n:ident>)? { $first:ident $(, $field:ident)* $(,)? }) => {
        $crate::cuda_struct!(
            @impl [$(const $n: usize)?] $name$(<$n>)?, [$($n)?],
            $crate::module::is_report(|own: Self| own.$first), (), { $first $(, $field)* }
        );
    };
    (
        @impl [$($bounds:tt)*] $name:ident$(<$($param:ident),+>)?, [$($argument:expr),*],
        $begins_with_report:expr, $check:expr, { $($field:ident),* }
    ) => {
        impl<$($bounds)*> $crate::module::CudaType for $name$(<$($param),+>)? {
            const BEGINS_WITH_REPORT: bool = $begins_with_report;

            fn declare(name: &str) -> String {
                let arguments: &[String] = &[$($argument.to_string()),*];
                $crate::module::declaration(stringify!($name), arguments, name)
            }

            fn define(definitions: &mut $crate::module::Definitions) {
                let () = $check;
                // A pattern without `..` fails to compile if a field is missing.
                let _ = |Self { $($field: _),* }: Self| ();
                let own = Self::declare("");
                definitions.structure::<Self>(own.trim_end(), &[
                    $($crate::module::field::<Self, _>(stringify!($field), |own| own.$field)),*
                ]);
            }
        }
    };
}
