//! Tests that half-width floats combined with numbers, or with tensors without dimensions, are
//! rounded as in PyTorch.

use serde_json::Value;
use warpline::{
    DType, Result, RoundingMode, Tensor, TensorOrScalar, simulated, tensor, with_runtime,
};

/// Written by `goldens/number_operands.py`.
const GOLDENS: &str = include_str!("../goldens/number_operands.json");

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(number).collect()
}

/// Reads a number. A bool counts as 0 or 1.
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
        "floor_divide" => a.floor_divide(b),
        "div_trunc" => a.div_rounded(b, RoundingMode::Trunc),
        "remainder" => a.remainder(b),
        "fmod" => a.fmod(b),
        "pow" => a.abs()?.div(16)?.pow(&b.abs()?),
        "eq" => a.eq(b),
        "lt" => a.lt(b),
        "lerp" => a.lerp(&a.mul(3)?, b),
        "addcmul" => a.addcmul(a, b, 1),
        other => panic!("no op {other}"),
    }
}

fn call_plain(op: &str, a: &Tensor, number: f64, number_first: bool) -> Result<Tensor> {
    match op {
        "add" => a.add(number),
        "sub" if number_first => number - a,
        "sub" => a.sub(number),
        "mul" => a.mul(number),
        "div" => a.div(number),
        "floor_divide" => a.floor_divide(number),
        "div_trunc" => a.div_rounded(number, RoundingMode::Trunc),
        "remainder" => a.remainder(number),
        "fmod" => a.fmod(number),
        "pow" if number_first => a.abs()?.rpow(number.abs() / 16.0),
        "pow" => a.abs()?.div(16)?.pow(number.abs()),
        "eq" => a.eq(number),
        "lt" => a.lt(number),
        "lerp" => a.lerp(&a.mul(3)?, number),
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

    /// Returns the operand as a tensor without dimensions, if the case has one.
    fn tensor(&self) -> Result<Option<Tensor>> {
        let Some(dtype) = self.case["number_dtype"].as_str() else { return Ok(None) };
        let dtype = DType::from_name(dtype).expect("a dtype");
        tensor(number(&self.case["number"]), (dtype, "cpu")).map(Some)
    }

    fn call(&self, values: &Tensor) -> Result<Tensor> {
        match self.tensor()? {
            Some(number) => call(self.op, values, &number, self.number_first),
            None => call_plain(self.op, values, number(&self.case["number"]), self.number_first),
        }
    }

    /// Calls the op in place. Returns `None` if it has no in-place form.
    fn call_in_place(&self, values: &Tensor) -> Result<Option<Tensor>> {
        let tensor = self.tensor()?;
        let number = match &tensor {
            Some(tensor) => TensorOrScalar::from(tensor),
            None => number(&self.case["number"]).into(),
        };
        let values = values.copy()?;
        match self.op {
            "add" => values.add_(number)?,
            "sub" => values.sub_(number)?,
            "mul" => values.mul_(number)?,
            "div" => values.div_(number)?,
            _ => return Ok(None),
        };
        Ok(Some(values))
    }

    fn check(&self, out: &Tensor) -> Result<()> {
        let dtype = self.case["output_dtype"].as_str().and_then(DType::from_name);
        assert_eq!(Some(out.dtype()), dtype, "{}", self.case);
        let own = out.to(DType::F32)?.to_vec::<f32>()?;
        // Compare in `f32`, because `serde_json` misreads the last bit of long numbers.
        let expected: Vec<f32> = numbers(&self.case["output"]).iter().map(|&x| x as f32).collect();
        assert_eq!(own, expected, "{} on {}", self.case, out.device());
        Ok(())
    }
}

#[test]
fn a_number_is_rounded_as_in_pytorch() {
    let goldens: Value = serde_json::from_str(GOLDENS).expect("JSON");
    crate::common::cpu(|_| {
        for golden in Golden::all(&goldens) {
            let values = golden.input("cpu")?;
            golden.check(&golden.call(&values)?)?;
            if !golden.number_first
                && let Some(changed) = golden.call_in_place(&values)?
            {
                golden.check(&changed)?;
            }
        }
        Ok(())
    });
}

/// As in PyTorch's CUDA kernels, `add`, `sub`, `mul` and `div` read a number in `f32`. The other
/// ops first round the number to the dtype of the half-width floats, as on the CPU.
#[test]
fn a_number_with_halves_on_a_gpu_is_rounded_as_in_pytorchs_kernels() -> Result<()> {
    let goldens: Value = serde_json::from_str(GOLDENS).expect("JSON");
    with_runtime(&simulated(1)?, || {
        for golden in Golden::all(&goldens) {
            let out = golden.call(&golden.input("cuda")?)?;
            if !["add", "sub", "mul", "div"].contains(&golden.op) {
                golden.check(&out)?;
                continue;
            }
            let values = golden.input("cuda")?.to(DType::F32)?;
            let expected = golden.call(&values)?.to(golden.dtype)?.to(DType::F32)?;
            let (own, expected) = (out.to(DType::F32)?.to_vec::<f32>()?, expected.to_vec::<f32>()?);
            assert_eq!(own, expected, "{}", golden.case);
        }
        Ok(())
    })
}
