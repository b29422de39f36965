//! The macro that records reductions. It has a file of its own, which a test includes to show that a reduction without
//! a gradient does not compile.

/// Declares the function that records a reduction. The argument gives for each reduction an expression for the struct
/// that the backward pass needs, in terms of the input, the result and the reduced dimensions. It gives `none` for a
/// reduction without a gradient. The code does not compile if a reduction is missing.
macro_rules! record_reduction {
    ($($op:ident $gradient:tt;)*) => {
        /// Records a reduction of `a`, whose result is `out`.
        #[track_caller]
        fn record_reduction(op: ReduceOp, a: &Tensor, out: Tensor, reduced: ReducedDims) -> Result<Tensor> {
            match op {$(
                ReduceOp::$op => record_reduction!(@gradient $gradient, op, a, out, reduced),
            )*}
        }
    };
    (@gradient none, $op:ident, $a:ident, $out:ident, $reduced:ident) => {
        no_gradient($op, $a, $out)
    };
    (
        @gradient { ($x:tt, $result:tt, $dims:tt) => $saved:expr },
        $op:ident, $a:ident, $out:ident, $reduced:ident
    ) => {{
        let ($x, $result, $dims) = ($a, &$out, $reduced);
        let saved = $saved;
        record($op.name(), $out, &[$a], saved)
    }};
}
pub(super) use record_reduction;
