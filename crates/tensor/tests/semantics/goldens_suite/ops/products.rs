//! Products of matrices and vectors, and sums of products.

use warpline::{AddmmOptions, Device, Result, Scalar, Tensor};

use super::{Args, Outcome, one};
use crate::goldens_suite::cases::number;

pub(super) fn call(op: &str, args: &Args<'_>, _device: Device) -> Outcome {
    match op {
        "einsum" => one(args.list(0).and_then(|operands| {
            warpline::einsum(args.attrs["equation"].as_str().unwrap_or_default(), operands)
        })),
        "matmul" | "mm" | "bmm" | "mv" | "dot" | "outer" | "addmm" | "baddbmm" | "tensordot"
        | "kron" | "trace" => one(product(op, args)),
        _ => None,
    }
}

fn product(op: &str, args: &Args<'_>) -> Result<Tensor> {
    let a = args.tensor(0)?;
    let factor = |name: &str| number(&args.attrs[name]).unwrap_or(Scalar::Int(1));
    let (beta, alpha) = (factor("beta"), factor("alpha"));
    match op {
        "matmul" => a.matmul(args.tensor(1)?),
        "mm" => a.mm(args.tensor(1)?),
        "bmm" => a.bmm(args.tensor(1)?),
        "mv" => a.mv(args.tensor(1)?),
        "dot" => a.dot(args.tensor(1)?),
        "outer" => a.outer(args.tensor(1)?),
        "addmm" => {
            a.addmm(args.tensor(1)?, args.tensor(2)?, AddmmOptions::new().beta(beta).alpha(alpha))
        }
        "baddbmm" => {
            a.baddbmm(args.tensor(1)?, args.tensor(2)?, AddmmOptions::new().beta(beta).alpha(alpha))
        }
        "tensordot" => a.tensordot(args.tensor(1)?, args.int("dims")? as usize),
        "kron" => a.kron(args.tensor(1)?),
        _ => a.trace(),
    }
}
