//! From an op's PyTorch name to the call here.

use serde_json::Value;
use warpline::{DType, Device, IntoDims, Result, RoundingMode, Tensor, TensorOrScalar, by_name};

use super::cases::{Input, bad, int, number};

/// Calls an op; `None` if there is none of that name.
pub(crate) fn call(
    op: &str,
    inputs: &[Input],
    attrs: &Value,
    device: Device,
) -> Option<Result<Vec<Tensor>>> {
    let args = Args { inputs, attrs };
    let one = |r: Result<Tensor>| Some(r.map(|t| vec![t]));
    macro_rules! unary {
        ($method:ident) => {
            one(args.tensor(0).and_then(Tensor::$method))
        };
    }
    macro_rules! reduction {
        ($method:ident $keep:ident) => {
            reduction!($method $keep, args.dims())
        };
        ($method:ident $keep:ident, $dims:expr) => {
            one(args.tensor(0).and_then(|a| {
                if args.flag("keepdim") { a.$keep($dims) } else { a.$method($dims) }
            }))
        };
    }
    match op {
        "gelu" if attrs["approximate"] == "tanh" => unary!(gelu_tanh),
        "add" if !attrs["alpha"].is_null() => one(args
            .tensor(0)
            .and_then(|a| a.add_scaled(args.tensor(1)?, number(&attrs["alpha"])?))),
        "sum" => reduction!(sum sum_keepdim),
        "mean" => reduction!(mean mean_keepdim),
        "prod" => reduction!(prod prod_keepdim),
        "amax" => reduction!(amax amax_keepdim),
        "amin" => reduction!(amin amin_keepdim),
        "any" => reduction!(any any_keepdim),
        "all" => reduction!(all all_keepdim),
        "argmax" => reduction!(argmax argmax_keepdim, args.dim()),
        "argmin" => reduction!(argmin argmin_keepdim, args.dim()),
        "max" => Some(args.tensor(0).and_then(|a| pair(a.max(args.int("dim")?)))),
        "min" => Some(args.tensor(0).and_then(|a| pair(a.min(args.int("dim")?)))),
        "softmax" => one(args.tensor(0).and_then(|a| a.softmax(args.int("dim")?))),
        "log_softmax" => one(args.tensor(0).and_then(|a| a.log_softmax(args.int("dim")?))),
        "matmul" => one(args.tensor(0).and_then(|a| a.matmul(args.tensor(1)?))),
        "index_select" | "gather" | "embedding" => one(args.tensor(0).and_then(|a| {
            let index = args.tensor(1)?;
            match op {
                "index_select" => a.index_select(args.int("dim")?, index),
                "gather" => a.gather(args.int("dim")?, index),
                _ => warpline::embedding(a, index),
            }
        })),
        "to" => one(args.tensor(0).and_then(|a| a.to(args.dtype()?))),
        "arange" | "linspace" | "eye" | "full" => one(args.factory(op, device)),
        "cat" => one(args.list(0).and_then(|l| warpline::cat(l, args.int("dim")?))),
        "stack" => one(args.list(0).and_then(|l| warpline::stack(l, args.int("dim")?))),
        "split" => Some(
            args.tensor(0)
                .and_then(|a| a.split(args.int("split_size")? as usize, args.int("dim")?)),
        ),
        "chunk" => Some(
            args.tensor(0).and_then(|a| a.chunk(args.int("chunks")? as usize, args.int("dim")?)),
        ),
        "reshape" | "permute" | "transpose" | "flatten" | "squeeze" | "unsqueeze" | "expand"
        | "narrow" | "select" => one(args.tensor(0).and_then(|a| args.view(op, a))),
        _ => elementwise(&args, op).map(|result| result.map(|t| vec![t])),
    }
}

/// Ops of the table: by their names, but for those with parameters.
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
        "isclose" => a.isclose(args.tensor(1)?, 1e-5, 1e-8, false)?,
        "nan_to_num" => {
            let at = |name: &str| args.attrs[name].as_f64();
            a.nan_to_num(at("nan"), at("posinf"), at("neginf"))?
        }
        "softplus" => a.softplus(float("beta", 1.0), float("threshold", 20.0))?,
        "elu" => a.elu(float("alpha", 1.0))?,
        "celu" => a.celu(float("alpha", 1.0))?,
        "leaky_relu" => a.leaky_relu(float("negative_slope", 0.01))?,
        "hardtanh" => a.hardtanh(float("min_val", -1.0), float("max_val", 1.0))?,
        "relu6" => a.relu6()?,
        "logit" => a.logit(args.attrs["eps"].as_f64())?,
        "signbit" => a.signbit()?,
        _ => return Ok(None),
    }))
}

fn pair(tensors: Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    tensors.map(|(a, b)| vec![a, b])
}

struct Args<'a> {
    inputs: &'a [Input],
    attrs: &'a Value,
}

impl<'a> Args<'a> {
    fn tensor(&self, i: usize) -> Result<&'a Tensor> {
        match self.inputs.get(i) {
            Some(Input::Tensor(tensor)) => Ok(tensor),
            other => Err(bad(format!("input {i} is {other:?}, not a tensor"))),
        }
    }

    fn operand(&self, i: usize) -> Result<TensorOrScalar<'a>> {
        match self.inputs.get(i) {
            Some(Input::Tensor(tensor)) => Ok(tensor.into()),
            Some(Input::Scalar(scalar)) => Ok((*scalar).into()),
            other => Err(bad(format!("input {i} is {other:?}"))),
        }
    }

    fn list(&self, i: usize) -> Result<&'a [Tensor]> {
        match self.inputs.get(i) {
            Some(Input::List(list)) => Ok(list),
            other => Err(bad(format!("input {i} is {other:?}, not a list"))),
        }
    }

    fn int(&self, name: &str) -> Result<isize> {
        int(&self.attrs[name]).ok_or_else(|| bad(format!("no integer `{name}`")))
    }

    fn ints(&self, name: &str) -> Vec<isize> {
        self.attrs[name].as_array().into_iter().flatten().filter_map(int).collect()
    }

    fn flag(&self, name: &str) -> bool {
        self.attrs[name].as_bool().unwrap_or(false)
    }

    fn dtype(&self) -> Result<DType> {
        let name = self.attrs["dtype"].as_str().unwrap_or_default();
        DType::from_name(name).ok_or_else(|| bad(format!("no dtype `{name}`")))
    }

    fn dim(&self) -> Option<isize> {
        int(&self.attrs["dim"])
    }

    /// `dim`: absent, one, or several.
    fn dims(&self) -> impl IntoDims + use<> {
        struct Dims(Vec<isize>);
        impl IntoDims for Dims {
            fn into_dims(self) -> smallvec::SmallVec<[isize; 6]> {
                self.0.into()
            }
        }
        match int(&self.attrs["dim"]) {
            Some(dim) => Dims(vec![dim]),
            None => Dims(self.ints("dim")),
        }
    }

    fn factory(&self, op: &str, device: Device) -> Result<Tensor> {
        let at = |name: &str| number(&self.attrs[name]);
        let size = |name: &str| self.int(name).map(|v| v as usize);
        match op {
            "arange" => warpline::arange_start_step(at("start")?, at("end")?, at("step")?, device),
            "linspace" => warpline::linspace(at("start")?, at("end")?, size("steps")?, device),
            "eye" => warpline::eye(size("n")?, size("m").ok(), device),
            _ => {
                let sizes: Vec<usize> = self.ints("size").iter().map(|&n| n as usize).collect();
                warpline::full(&sizes, at("fill_value")?, device)
            }
        }
    }

    fn view(&self, op: &str, a: &Tensor) -> Result<Tensor> {
        match op {
            "reshape" => a.reshape(self.ints("shape")),
            "permute" => a.permute(self.ints("dims")),
            "transpose" => a.transpose(self.int("dim0")?, self.int("dim1")?),
            "flatten" => a.flatten(self.int("start_dim")?, self.int("end_dim")?),
            "squeeze" => a.squeeze(int(&self.attrs["dim"])),
            "unsqueeze" => a.unsqueeze(self.int("dim")?),
            "expand" => a.expand(self.ints("sizes")),
            "narrow" => {
                a.narrow(self.int("dim")?, self.int("start")?, self.int("length")? as usize)
            }
            _ => a.select(self.int("dim")?, self.int("index")?),
        }
    }
}
