//! The reductions.

use warpline_runtime::module::Program;

use super::declaration::reductions;

reductions! {
    SUM = "sum", "Sum", all {
        /// `torch.sum`. Integers and bool are summed in `int64`.
        Sum = "sum" => Wide, { T::Wide: Number::from_number(0i64), |x| x.wide(), |a, b| a.add(b) };
        /// `torch.mean`. Supports only floats.
        Mean = "mean" => Float, (Sum), averages;
    }
    PROD = "prod", "Prod", all {
        /// `torch.prod`. Integers and bool are multiplied in `int64`.
        Prod = "prod" => Wide, { T::Wide: Number::from_number(1i64), |x| x.wide(), |a, b| a.mul(b) };
    }
    EXTREME = "extreme", "Extreme", all {
        /// `torch.amax`. NaN if an element is NaN.
        Max = "amax" => Same, { T::Own: Number::LOWEST, |x| x.own(), |a, b| a.maximum(b) },
            needs_elements;
        /// `torch.amin`. NaN if an element is NaN.
        Min = "amin" => Same, { T::Own: Number::HIGHEST, |x| x.own(), |a, b| a.minimum(b) },
            flips, needs_elements;
    }
    ARG_EXTREME = "arg_extreme", "ArgExtreme", number {
        /// `torch.argmax`: the index of the first largest value, as `int64`. A NaN is larger than
        /// any number. Does not support bool.
        ArgMax = "argmax" => Index, (Arg<true>), needs_elements;
        /// `torch.argmin`: the index of the first smallest value, as `int64`. A NaN is smaller than
        /// any number. Does not support bool.
        ArgMin = "argmin" => Index, (Arg<false>), flips, needs_elements;
    }
    TRUTH = "truth", "Truth", truth {
        /// `torch.any`: whether any element is not zero. The result is bool, or `uint8` for
        /// `uint8`.
        Any = "any" => Truth, { u8: 0, |x| x.truth(), |a, b| a | b };
        /// `torch.all`: whether no element is zero. The result is bool, or `uint8` for `uint8`.
        All = "all" => Truth, { u8: 1, |x| x.truth(), |a, b| a & b }, flips;
    }
}
