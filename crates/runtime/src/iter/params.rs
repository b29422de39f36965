//! The parameter block of this layer's kernels.

use crate::cuda_struct;

cuda_struct! {
    /// A kernel's parameter block: the elements to visit, then the arguments.
    pub struct Params<S, A> {
        /// The elements to visit.
        pub space: S,
        /// The arguments of the op.
        pub args: A,
    }
}
