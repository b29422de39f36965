//! Functions of statistics: Γ, and the error function's relatives.

use super::host::scalars;
use super::real::{Real, digamma, erfinv};
use super::table::ops;

ops! {
    /// `torch.lgamma`.
    LGAMMA = "lgamma"(x), TO_FLOATS => Same, "lgamma_of(x)", {
        f32 = scalars(|x: f32| libm::lgamma(x.into()) as f32), f64 = scalars(libm::lgamma)
    }
    /// `torch.digamma`.
    DIGAMMA = "digamma"(x), TO_FLOATS => Same, "digamma_of(x)", {
        f32 = scalars(|x: f32| digamma(x.into()) as f32), f64 = scalars(digamma)
    }
    /// `torch.erfc`.
    ERFC = "erfc"(x), TO_FLOATS => Same, "erfc_of(x)", { f32 = scalars(libm::erfcf), f64 = scalars(libm::erfc) }
    /// `torch.erfinv`.
    ERFINV = "erfinv"(x), TO_FLOATS => Same, "erfinv_of(x)", {
        f32 = scalars(|x: f32| erfinv(x.into()) as f32), f64 = scalars(erfinv)
    }
    /// `torch.logit`; a negative `eps` stands for none.
    LOGIT = "logit"(x, eps), TO_FLOATS => Same, "logit_of(x, eps)", { float => x.logit(eps) }
    /// `torch.xlogy`: 0 where `x` is, unless `y` is NaN.
    XLOGY = "xlogy"(x, y), TO_FLOATS => Same, "y != y || x != (C)0 ? x * log_of(y) : (C)0", { float => x.times_log(y) }
    /// `torch.logaddexp`.
    LOGADDEXP = "logaddexp"(x, y), FLOATS => Same, "log_add_exp(x, y)", { float => x.log_add_exp(y) }
    /// `torch.logaddexp2`.
    LOGADDEXP2 = "logaddexp2"(x, y), FLOATS => Same, "log2_add_exp2(x, y)", { float => x.log2_add_exp2(y) }
    /// `torch.sinc`.
    SINC = "sinc"(x), TO_FLOATS => Same, "sinc_of(x)", { float => x.sinc() }
}
