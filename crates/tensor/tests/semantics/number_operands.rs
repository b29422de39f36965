//! Tensors without dimensions as numbers beside tensors of halves, against PyTorch's rounding.

use serde_json::Value;
use warpline::{DType, Result, Tensor, simulated, tensor, with_runtime};

/// Made by `number_operands.py` beside it.
const GOLDENS: &str = include_str!("../goldens/number_operands.json");

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(number).collect()
}

/// A number, or a bool as one.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| f64::from(value.as_bool().expect("a number or a bool")))
}

fn call(op: &str, values: &Tensor, number: &Tensor, number_first: bool) -> Result<Tensor> {
    let (a, b) = if number_first { (number, values) } else { (values, number) };
    match op {
        "add" => a.add(b),
        "sub" => a.sub(b),
        "mul" => a.mul(b),
        "div" => a.div(b),
        "maximum" => a.maximum(b),
        "remainder" => a.remainder(b),
        "fmod" => a.fmod(b),
        "eq" => a.eq(b),
        "lt" => a.lt(b),
        "lerp" => a.lerp(&a.mul(3)?, b),
        "addcmul" => a.addcmul(a, b, 1),
        other => panic!("no op {other}"),
    }
}

struct Golden<'a> {
    case: &'a Value,
    op: &'a str,
    dtype: DType,
    number_first: bool,
}

impl<'a> Golden<'a> {
    fn all(goldens: &'a Value) -> impl Iterator<Item = Self> {
        let cases = goldens["cases"].as_array().expect("cases").iter();
        cases.map(|case| Self {
            case,
            op: case["op"].as_str().expect("an op"),
            dtype: DType::from_name(case["dtype"].as_str().expect("a dtype")).expect("a dtype"),
            number_first: case["number_first"].as_bool().expect("a bool"),
        })
    }

    fn input(&self, at: &str) -> Result<Tensor> {
        tensor(numbers(&self.case["input"]), (self.dtype, at))
    }

    fn number(&self) -> Result<Tensor> {
        let dtype = self.case["number_dtype"].as_str().and_then(DType::from_name);
        tensor(number(&self.case["number"]), (dtype.expect("a dtype"), "cpu"))
    }

    fn check(&self, out: &Tensor) -> Result<()> {
        let dtype = self.case["output_dtype"].as_str().and_then(DType::from_name);
        assert_eq!(Some(out.dtype()), dtype, "{}", self.case);
        let (own, expected) = (out.to(DType::F64)?.to_vec::<f64>()?, numbers(&self.case["output"]));
        assert_eq!(own, expected, "{} on {}", self.case, out.device());
        Ok(())
    }
}

#[test]
fn a_tensor_without_dimensions_is_rounded_as_in_pytorch() {
    let goldens: Value = serde_json::from_str(GOLDENS).expect("JSON");
    crate::common::cpu(|_| {
        for golden in Golden::all(&goldens) {
            let (values, number) = (golden.input("cpu")?, golden.number()?);
            golden.check(&call(golden.op, &values, &number, golden.number_first)?)?;
            if golden.number_first {
                continue;
            }
            match golden.op {
                "mul" => golden.check(values.copy()?.mul_(&number)?)?,
                "div" => golden.check(values.copy()?.div_(&number)?)?,
                _ => {}
            }
        }
        Ok(())
    });
}

/// PyTorch's CUDA kernels of `add` and its like read a number of the host in `f32`. Those of comparisons, `remainder`,
/// `fmod` and `lerp` round it to the halves first, as on the CPU.
#[test]
fn a_number_of_the_host_beside_a_gpus_halves_is_rounded_as_pytorchs_kernels_do() -> Result<()> {
    let goldens: Value = serde_json::from_str(GOLDENS).expect("JSON");
    with_runtime(&simulated(1)?, || {
        for golden in Golden::all(&goldens) {
            let (values, number) = (golden.input("cuda")?, golden.number()?);
            let out = call(golden.op, &values, &number, golden.number_first)?;
            match golden.op {
                "add" | "sub" | "mul" | "div" => {
                    let (wide, number) = (values.to(DType::F32)?, number.to(DType::F32)?);
                    let wide = call(golden.op, &wide, &number, golden.number_first)?;
                    let expected = wide.to(golden.dtype)?.to(DType::F64)?.to_vec::<f64>()?;
                    let own = out.to(DType::F64)?.to_vec::<f64>()?;
                    assert_eq!(own, expected, "{}", golden.case);
                }
                // PyTorch's kernel takes the last operand alone from the host, rounded; the golden's is rounded, too.
                _ => golden.check(&out)?,
            }
        }
        Ok(())
    })
}
