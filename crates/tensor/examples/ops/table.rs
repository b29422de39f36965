//! The table of measured ops. For each op, `torch.py` has an entry with the same name.

use warpline::autograd::{GradOptions, grad};
use warpline::{DType, Result, Scalar, Tensor, cat, empty, zeros};

use super::spec::{Spec, causal_attention};

/// A measured op.
pub(crate) struct Op {
    pub(crate) name: &'static str,
    work: Work,
    make: fn(&Spec) -> Result<Call>,
}

/// A closure that calls the op on operands that already exist.
pub(crate) type Call = Box<dyn FnMut() -> Result<()>>;

/// The work of a call, for rates.
#[derive(Clone, Copy)]
enum Work {
    /// Memory traffic: this factor times the bytes of an operand.
    Times(f64),
    /// Memory traffic: the bytes of an operand, plus this number of bytes for each written element.
    Into(usize),
    /// Floating-point operations of a matrix product.
    Product,
    /// No rate.
    Calls,
}

use Work::{Calls, Into, Product, Times};

/// The amount of work of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Amount {
    Bytes(f64),
    Flops(f64),
    Nothing,
}

impl Op {
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        OPS.iter().find(|op| op.name == name)
    }

    pub(crate) fn call(&self, spec: &Spec) -> Result<Call> {
        (self.make)(spec)
    }

    pub(crate) fn amount(&self, spec: &Spec) -> Amount {
        let (numel, size) = (spec.numel() as f64, spec.dtype.size() as f64);
        match self.work {
            Times(n) => Amount::Bytes(n * numel * size),
            Into(bytes) => Amount::Bytes(numel * (size + bytes as f64)),
            Product => Amount::Flops(2.0 * numel),
            Calls => Amount::Nothing,
        }
    }
}

macro_rules! ops {
    ($($name:literal, $work:expr, ($($x:ident: $make:ident $(($op:expr))?),*) => $call:expr;)*) => {
        pub(crate) const OPS: &[Op] = &[$(Op {
            name: $name,
            work: $work,
            make: |spec| {
                let _ = spec; // some ops need no operand
                $(let $x = spec.$make($($op)?)?;)*
                Ok(Box::new(move || { $call?; Ok(()) }))
            },
        }),*];
    };
}

/// Computes the gradients of the inputs from a gradient of the output. Keeps the recorded graph, so that it can
/// be called repeatedly.
fn gradients<const N: usize>(
    (out, inputs): &(Tensor, [Tensor; N]),
    gradient: &Tensor,
) -> Result<()> {
    let options = GradOptions::new().retain_graph(true);
    grad(&[out], &inputs.each_ref(), options.grad_outputs(&[Some(gradient)])).map(drop)
}

ops! {
    "copy_", Times(2.0), (x: operand, y: operand) => y.copy_(&x, true);
    "clone", Times(2.0), (x: operand) => x.copy();
    "add", Times(3.0), (x: operand, y: operand) => x.add(&y);
    "add_", Times(3.0), (x: operand, y: operand) => x.add_(&y);
    "mul by a number", Times(2.0), (x: operand) => x.mul(Scalar::Int(2));
    "exp", Times(2.0), (x: operand) => x.exp();
    "gelu", Times(2.0), (x: operand) => x.gelu();
    "fill_", Times(1.0), (x: operand) => x.fill_(1);
    "eq", Times(2.25), (x: operand, y: operand) => x.eq(&y);
    "to float32", Into(4), (x: operand) => x.to(DType::F32);
    "to bfloat16", Into(2), (x: operand) => x.to(DType::BF16);
    "normal_", Times(1.0), (x: operand) => x.normal_(());
    "uniform_", Times(1.0), (x: operand) => x.uniform_(());
    "sum", Times(1.0), (x: operand) => x.sum(());
    "sum of rows", Times(1.0), (x: operand) => x.sum(-1);
    "sum of columns", Times(1.0), (x: operand) => x.sum(0);
    "sum of dim 1", Times(1.0), (x: operand) => x.sum(1);
    "sum of dims 0, 2", Times(1.0), (x: operand) => x.sum([0, 2]);
    "mean of rows", Times(1.0), (x: operand) => x.mean(-1);
    "amax of rows", Times(1.0), (x: operand) => x.amax(-1);
    "amax of columns", Times(1.0), (x: operand) => x.amax(0);
    "argmax of rows", Times(1.0), (x: operand) => x.argmax(-1);
    "argmax of columns", Times(1.0), (x: operand) => x.argmax(0);
    "softmax of rows", Times(2.0), (x: operand) => x.softmax(-1);
    "softmax of columns", Times(2.0), (x: operand) => x.softmax(0);
    "log_softmax of rows", Times(2.0), (x: operand) => x.log_softmax(-1);
    "gradients of layer_norm's weight and bias", Times(2.0), (n: normalized, g: operand) => gradients(&n, &g);
    "causal attention", Calls, (q: operand, k: operand, v: operand) => causal_attention(&q, &k, &v);
    "gradients of causal attention", Calls, (a: attended) => gradients(&a.0, &a.1);
    "gradient of gelu", Times(3.0), (a: recorded(|[x]| x.gelu())) => gradients(&a.0, &a.1);
    "gradient of mish", Times(3.0), (a: recorded(|[x]| x.mish())) => gradients(&a.0, &a.1);
    "gradient of erf", Times(3.0), (a: recorded(|[x]| x.erf())) => gradients(&a.0, &a.1);
    "gradients of mul", Times(5.0), (a: recorded(|[x, y]| x.mul(y))) => gradients(&a.0, &a.1);
    "gradients of div", Times(5.0), (a: recorded(|[x, y]| x.div(y))) => gradients(&a.0, &a.1);
    "transpose", Times(2.0), (x: operand) => x.t()?.contiguous();
    "permute 0213", Times(2.0), (x: operand) => x.permute([0, 2, 1, 3])?.contiguous();
    "permute 0231", Times(2.0), (x: operand) => x.permute([0, 2, 3, 1])?.contiguous();
    "permute 0312", Times(2.0), (x: operand) => x.permute([0, 3, 1, 2])?.contiguous();
    "permute 210", Times(2.0), (x: operand) => x.permute([2, 1, 0])?.contiguous();
    "add a row", Times(2.0), (x: operand, r: row) => x.add(&r);
    "add a column", Times(2.0), (x: operand, c: column) => x.add(&c);
    "add between", Times(2.0), (x: operand, b: between) => x.add(&b);
    "add transposed", Times(3.0), (x: operand) => x.add(&x.t()?);
    "cat rows", Times(4.0), (x: operand) => cat(&[&x, &x], 0);
    "cat columns", Times(4.0), (x: operand) => cat(&[&x, &x], 1);
    "index_select of rows", Times(2.0), (x: operand, i: index) => x.index_select(0, &i);
    "matmul", Product, (a: left, b: right) => a.matmul(&b);
    "matmul, left transposed", Product, (a: left_t, b: right) => a.matmul(&b);
    "matmul, right transposed", Product, (a: left, b: right_t) => a.matmul(&b);
    "matmul by a vector", Times(1.0), (a: left, b: vector) => a.matmul(&b);
    "empty", Calls, () => empty([1024], "cuda");
    "zeros", Calls, () => zeros([1024], "cuda");
    "view", Calls, (x: operand) => x.view([-1]);
    "20 additions of a number", Calls, (x: operand) => (0..20).try_fold(x.clone(), |y, _| y.add(1));
}
