//! Ops of the elementwise table by name, and other elementwise ops.

use warpline::functional::{HardtanhOptions, SoftplusOptions};
use warpline::{Device, NanToNumOptions, Result, RoundingMode, Tensor};

use super::{Args, Outcome, one};
use crate::by_name;
use crate::goldens_suite::cases::{Input, number};

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    match op {
        "gelu" if args.attrs["approximate"] == "tanh" => {
            one(args.tensor(0).and_then(Tensor::gelu_tanh))
        }
        "add" if !args.attrs["alpha"].is_null() => one(args
            .tensor(0)
            .and_then(|a| a.add_scaled(args.tensor(1)?, number(&args.attrs["alpha"])?))),
        "to" => one(args.tensor(0).and_then(|a| a.to(args.dtype()?))),
        _ => elementwise(args, op).map(|result| result.map(|t| vec![t])),
    }
}

/// Calls an op of the table. [`with_parameters`] calls those that have parameters.
fn elementwise(args: &Args<'_>, op: &str) -> Option<Result<Tensor>> {
    if let (Some(Input::Scalar(base)), "pow") = (args.inputs.first(), op) {
        return Some(args.tensor(1).and_then(|exponent| exponent.rpow(*base)));
    }
    if let Some(Input::Tensor(a)) = args.inputs.first()
        && let Some(result) = with_parameters(args, op, a).transpose()
    {
        return Some(result);
    }
    if let Some(method) = by_name::unary(op) {
        return Some(args.tensor(0).and_then(method));
    }
    let method = by_name::binary(op)?;
    Some(args.tensor(0).and_then(|a| method(a, args.operand(1)?)))
}

fn with_parameters(args: &Args<'_>, op: &str, a: &Tensor) -> Result<Option<Tensor>> {
    let float = |name: &str, default: f64| args.attrs[name].as_f64().unwrap_or(default);
    let bound = |i: usize, name: &str| match args.inputs.get(i) {
        Some(_) => args.operand(i).map(Some),
        None if args.attrs[name].is_null() => Ok(None),
        None => number(&args.attrs[name]).map(|n| Some(n.into())),
    };
    Ok(Some(match op {
        "pow" => a.pow(args.operand(1)?)?,
        "fmax" => a.fmax(args.operand(1)?)?,
        "fmin" => a.fmin(args.operand(1)?)?,
        "div" if args.attrs["rounding_mode"] == "floor" => {
            a.div_rounded(args.operand(1)?, RoundingMode::Floor)?
        }
        "div" if args.attrs["rounding_mode"] == "trunc" => {
            a.div_rounded(args.operand(1)?, RoundingMode::Trunc)?
        }
        "where" => warpline::where_cond(a, args.operand(1)?, args.operand(2)?)?,
        "masked_fill" => a.masked_fill(args.tensor(1)?, number(&args.attrs["value"])?)?,
        "clamp" => match (bound(1, "min")?, bound(2, "max")?) {
            (Some(min), Some(max)) => a.clamp(min, max)?,
            (Some(min), None) => a.clamp_min(min)?,
            (None, Some(max)) => a.clamp_max(max)?,
            (None, None) => return Ok(None),
        },
        "lerp" => a.lerp(args.tensor(1)?, bound(2, "weight")?.unwrap_or(0.into()))?,
        "addcmul" => a.addcmul(args.tensor(1)?, args.tensor(2)?, float("value", 1.0))?,
        "addcdiv" => a.addcdiv(args.tensor(1)?, args.tensor(2)?, float("value", 1.0))?,
        "isclose" => a.isclose(args.tensor(1)?, ())?,
        "nan_to_num" => {
            let at = |name: &str| args.attrs[name].as_f64();
            a.nan_to_num(
                NanToNumOptions::new().nan(at("nan")).posinf(at("posinf")).neginf(at("neginf")),
            )?
        }
        "softplus" => a.softplus(
            SoftplusOptions::new().beta(float("beta", 1.0)).threshold(float("threshold", 20.0)),
        )?,
        "elu" => a.elu(float("alpha", 1.0))?,
        "celu" => a.celu(float("alpha", 1.0))?,
        "leaky_relu" => a.leaky_relu(float("negative_slope", 0.01))?,
        "hardtanh" => a.hardtanh(
            HardtanhOptions::new().min_val(float("min_val", -1.0)).max_val(float("max_val", 1.0)),
        )?,
        "relu6" => a.relu6()?,
        "logit" => match args.attrs["eps"].as_f64() {
            Some(eps) => a.logit(eps)?,
            None => a.logit(())?,
        },
        "signbit" => a.signbit()?,
        _ => return Ok(None),
    }))
}
