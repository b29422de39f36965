//! The parameter block of this layer's kernels.

use bytemuck::{Pod, Zeroable};

use crate::module::{CudaType, Definitions, field};

/// Prevents the construction of [`Params`] other than by `new`.
#[derive(Clone, Copy, Debug)]
struct Private;

/// A kernel's parameter block: the elements to visit, then the arguments.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Params<S, A> {
    /// The elements to visit.
    pub space: S,
    /// The arguments of the op.
    pub args: A,
    private: Private,
}

impl<S: Pod, A: Pod> Params<S, A> {
    const NO_PADDING: () = assert!(
        size_of::<Self>() == size_of::<S>() + size_of::<A>(),
        "pad the arguments: a parameter block has no implicit padding"
    );

    /// Creates a parameter block. Does not compile if there were padding between or after the
    /// parts.
    pub fn new(space: S, args: A) -> Self {
        const { Self::NO_PADDING };
        Self { space, args, private: Private }
    }
}

// SAFETY: both parts may be zero.
unsafe impl<S: Zeroable, A: Zeroable> Zeroable for Params<S, A> {}
// SAFETY: both parts are plain data in `repr(C)`, and `new`, the only constructor besides copies of
// its bytes, does not compile where there would be padding between or after them.
unsafe impl<S: Pod, A: Pod> Pod for Params<S, A> {}

impl<S: CudaType, A: CudaType> CudaType for Params<S, A> {
    const BEGINS_WITH_REPORT: bool = S::BEGINS_WITH_REPORT;

    fn declare(name: &str) -> String {
        format!("Params<{}, {}> {name}", S::declare("").trim_end(), A::declare("").trim_end())
    }

    fn define(definitions: &mut Definitions) {
        let fields =
            [field("space", |own: &Self| &own.space), field("args", |own: &Self| &own.args)];
        definitions.structure::<Self>(Self::declare("").trim_end(), &fields);
    }
}
