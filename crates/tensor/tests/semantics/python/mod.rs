//! Evaluates the Python expressions in `goldens/print.json`: `torch.f(args)` with literals as
//! arguments, optionally followed by `.reshape(…)` or `[:n]`.

use std::collections::HashMap;

use warpline::{DType, Result, Scalar, Tensor, TensorOptions};

#[derive(Clone, Debug)]
enum Value {
    Number(Scalar),
    Name(String),
    List(Vec<Value>),
}

struct Parser<'a> {
    text: &'a str,
}

struct Args {
    positional: Vec<Value>,
    named: HashMap<String, Value>,
}

/// Evaluates an expression. Returns `None` if the expression is not supported.
pub(crate) fn eval(code: &str) -> Option<Result<Tensor>> {
    let mut parser = Parser { text: code.strip_prefix("torch.")? };
    let name = parser.word()?;
    let args = parser.args()?;
    let mut tensor = match call(&name, &args)? {
        Ok(tensor) => tensor,
        Err(error) => return Some(Err(error)),
    };
    while !parser.text.is_empty() {
        let next = if parser.eat(".reshape") {
            let shape: Option<Vec<isize>> = parser.args()?.positional.iter().map(int).collect();
            tensor.reshape(&shape?)
        } else if parser.eat("[:") {
            let Value::Number(end) = parser.value()? else { return None };
            parser.eat("]").then_some(())?;
            tensor.i(..end.to_i64() as isize)
        } else {
            return None;
        };
        match next {
            Ok(next) => tensor = next,
            Err(error) => return Some(Err(error)),
        }
    }
    Some(Ok(tensor))
}

fn call(name: &str, args: &Args) -> Option<Result<Tensor>> {
    let mut options = TensorOptions::new();
    for (key, value) in &args.named {
        let Value::Name(text) = value else { return None };
        options = match key.as_str() {
            "dtype" => options.dtype(DType::from_name(text.strip_prefix("torch.")?)?),
            "device" => options.device(text),
            _ => return None,
        };
    }
    let positional = args.positional.as_slice();
    let number = |i: usize| match positional.get(i) {
        Some(Value::Number(n)) => Some(*n),
        _ => None,
    };
    let sizes = || -> Option<Vec<usize>> {
        let list = match positional {
            [Value::List(list)] => list.as_slice(),
            other => other,
        };
        list.iter().map(|v| int(v).map(|n| n as usize)).collect()
    };
    Some(match name {
        "tensor" => tensor(positional.first()?, options)?,
        "empty" => warpline::empty(&sizes()?, options),
        "zeros" => warpline::zeros(&sizes()?, options),
        "ones" => warpline::ones(&sizes()?, options),
        "full" => {
            let Value::List(list) = positional.first()? else { return None };
            let sizes: Option<Vec<usize>> =
                list.iter().map(|v| int(v).map(|n| n as usize)).collect();
            warpline::full(&sizes?, number(1)?, options)
        }
        "arange" if positional.len() == 1 => warpline::arange(number(0)?, options),
        "linspace" => {
            let steps = number(2)?.to_i64() as usize;
            warpline::linspace(number(0)?, number(1)?, steps, options)
        }
        "eye" => warpline::eye(number(0)?.to_i64() as usize, options),
        _ => return None,
    })
}

/// Evaluates `torch.tensor`. As in Python, the dtype is that of the highest category (bool,
/// integer, float) among the numbers.
fn tensor(value: &Value, options: TensorOptions) -> Option<Result<Tensor>> {
    let (mut numbers, mut shape) = (Vec::new(), Vec::new());
    flatten(value, 0, &mut numbers, &mut shape)?;
    let dtype =
        numbers.iter().max_by_key(|n| n.category()).map_or(DType::F32, |n| n.default_dtype());
    let options = match options.requested_dtype() {
        Some(_) => options,
        None => options.dtype(dtype),
    };
    // Use the widest type of each kind, so that no digits are lost.
    let flat = if dtype.is_float() {
        warpline::tensor(numbers.iter().map(|n| n.to_f64()).collect::<Vec<_>>(), options)
    } else {
        warpline::tensor(numbers.iter().map(|n| n.to_i64()).collect::<Vec<_>>(), options)
    };
    Some(flat.and_then(|t| t.reshape(&shape)))
}

fn flatten(
    value: &Value,
    depth: usize,
    numbers: &mut Vec<Scalar>,
    shape: &mut Vec<isize>,
) -> Option<()> {
    match value {
        Value::Number(n) => numbers.push(*n),
        Value::List(list) => {
            if shape.len() == depth {
                shape.push(list.len() as isize);
            }
            for item in list {
                flatten(item, depth + 1, numbers, shape)?;
            }
        }
        Value::Name(_) => return None,
    }
    Some(())
}

fn int(value: &Value) -> Option<isize> {
    match value {
        Value::Number(Scalar::Int(v)) => Some(*v as isize),
        _ => None,
    }
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        self.text = self.text.trim_start();
        match self.text.strip_prefix(token) {
            Some(rest) => {
                self.text = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> Option<String> {
        self.text = self.text.trim_start();
        let stop = |c: char| !(c.is_alphanumeric() || "_.+-".contains(c));
        let end = self.text.find(stop).unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        (!word.is_empty()).then(|| word.to_owned())
    }

    fn args(&mut self) -> Option<Args> {
        self.eat("(").then_some(())?;
        let mut args = Args { positional: Vec::new(), named: HashMap::new() };
        while !self.eat(")") {
            match self.value()? {
                Value::Name(key) if self.eat("=") => {
                    args.named.insert(key, self.value()?);
                }
                value => args.positional.push(value),
            }
            self.eat(",");
        }
        Some(args)
    }

    fn value(&mut self) -> Option<Value> {
        for (open, close) in [("[", "]"), ("(", ")")] {
            if self.eat(open) {
                let mut items = Vec::new();
                while !self.eat(close) {
                    items.push(self.value()?);
                    self.eat(",");
                }
                return Some(Value::List(items));
            }
        }
        if self.eat("'") {
            let (text, rest) = self.text.split_once('\'')?;
            let text = text.to_owned();
            self.text = rest;
            return Some(Value::Name(text));
        }
        let word = self.word()?;
        Some(match word.as_str() {
            "True" => Value::Number(Scalar::Bool(true)),
            "False" => Value::Number(Scalar::Bool(false)),
            "nan" => Value::Number(Scalar::Float(f64::NAN)),
            "inf" => Value::Number(Scalar::Float(f64::INFINITY)),
            _ => match (word.parse::<i64>(), word.parse::<f64>()) {
                (Ok(n), _) => Value::Number(Scalar::Int(n)),
                (_, Ok(n)) => Value::Number(Scalar::Float(n)),
                _ => Value::Name(word),
            },
        })
    }
}
