//! The reductions.

use warpline_runtime::module::Program;

use super::entry::reductions;

reductions! {
    SUM = "sum", "Sum", all {
        /// `torch.sum`: integers and bool add up to `int64`.
        Sum = "sum" => Wide, { T::Wide: Number::from_number(0i64), |x| x.wide(), |a, b| a.add(b) };
        /// `torch.mean`, of floats only.
        Mean = "mean" => Float, (Sum), averages;
    }
    PROD = "prod", "Prod", all {
        /// `torch.prod`: as the sum.
        Prod = "prod" => Wide, { T::Wide: Number::from_number(1i64), |x| x.wide(), |a, b| a.mul(b) };
    }
    EXTREME = "extreme", "Extreme", all {
        /// `torch.amax`; NaN is larger than anything.
        Max = "amax" => Same, { T::Own: Ordered::LOWEST, |x| x.own(), |a, b| a.maximum(b) },
            needs_elements;
        /// `torch.amin`; NaN is smaller than anything.
        Min = "amin" => Same, { T::Own: Ordered::HIGHEST, |x| x.own(), |a, b| a.minimum(b) },
            flips, needs_elements;
    }
    ARG_EXTREME = "arg_extreme", "ArgExtreme", number {
        /// `torch.argmax`: the first index of the largest value, `int64`.
        ArgMax = "argmax" => Index, (Arg<true>), needs_elements;
        /// `torch.argmin`: the first index of the smallest value, `int64`.
        ArgMin = "argmin" => Index, (Arg<false>), flips, needs_elements;
    }
    TRUTH = "truth", "Truth", truth {
        /// `torch.any`: whether any element is not zero.
        Any = "any" => Truth, { u8: 0, |x| x.truth(), |a, b| a | b };
        /// `torch.all`: whether no element is zero.
        All = "all" => Truth, { u8: 1, |x| x.truth(), |a, b| a & b }, flips;
    }
}
