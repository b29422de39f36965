//! What an op is measured on: operands of a dtype and sizes, and how its time is taken.

use serde::Serialize;
use warpline::{DType, Result, Tensor, functional, randint, randn};

/// One row of the table to come.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// The part of the table that it belongs to.
    pub(crate) part: &'static str,
    /// The op's name in both programs.
    pub(crate) op: &'static str,
    pub(crate) dtype: DType,
    pub(crate) sizes: Vec<usize>,
    pub(crate) view: View,
    pub(crate) timing: Timing,
    /// Milliseconds that a measurement is to take.
    pub(crate) target_ms: f64,
}

/// How operands lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum View {
    Contiguous,
    /// One element behind where they were allocated.
    Offset,
    /// Every second element of the last dimension.
    Step,
    /// A part of each row, which starts at a multiple of 16 bytes.
    Narrow,
}

/// How time is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// The device's: events around calls in a row.
    Events,
    /// The device's alone: events around replays of a graph of so many calls.
    Graph(u32),
    /// The host's, of calls that enqueue; on the CPU, of calls that compute.
    Host,
}

impl Spec {
    pub(crate) fn device(&self) -> &'static str {
        if self.part == "cpu" { "cpu" } else { "cuda" }
    }

    /// `PART/OP DTYPE SIZES`, and the view if there is one.
    pub(crate) fn name(&self) -> String {
        format!("{}/{} {}", self.part, self.op, self.operands())
    }

    /// The operands in words.
    pub(crate) fn operands(&self) -> String {
        let sizes: Vec<String> = self.sizes.iter().map(|&n| size(n)).collect();
        let view = match self.view {
            View::Contiguous => "",
            View::Offset => ", offset",
            View::Step => ", every second",
            View::Narrow => ", part of rows",
        };
        format!("{} {}{view}", self.dtype.name(), sizes.join(" × "))
    }

    /// The same with no size above 16, measured as shortly as can be.
    pub(crate) fn tiny(mut self) -> Self {
        self.sizes.iter_mut().for_each(|n| *n = (*n).min(16));
        self.target_ms = 0.0;
        self
    }

    pub(crate) fn numel(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Random elements: floats of the normal distribution, integers below 100, bools of any kind.
    fn random(&self, sizes: &[usize]) -> Result<Tensor> {
        if self.dtype.is_float() {
            randn(sizes, self.device())?.to(self.dtype)
        } else if self.dtype == DType::Bool {
            randint(0, 2, sizes, (DType::U8, self.device()))?.to(self.dtype)
        } else {
            randint(0, 100, sizes, (self.dtype, self.device()))
        }
    }

    /// An operand of the sizes, in the view.
    pub(crate) fn operand(&self) -> Result<Tensor> {
        let last = self.sizes.len() - 1;
        let (dim, n) = (last as isize, self.sizes[last]);
        let wider = |n| [&self.sizes[..last], &[n]].concat();
        match self.view {
            View::Contiguous => self.random(&self.sizes),
            View::Offset => {
                let sizes: Vec<isize> = self.sizes.iter().map(|&n| n as isize).collect();
                self.random(&[self.numel() + 1])?.narrow(0, 1, self.numel())?.view(&sizes)
            }
            View::Step => self.random(&wider(2 * n))?.slice(dim, ..2 * n, 2),
            View::Narrow => self.random(&wider(n + 96))?.narrow(dim, 32, n),
        }
    }

    /// As long as a row.
    pub(crate) fn row(&self) -> Result<Tensor> {
        self.random(&self.sizes[self.sizes.len() - 1..])
    }

    /// The layer norm of an operand, and its weight and bias, which want gradients.
    pub(crate) fn normalized(&self) -> Result<(Tensor, [Tensor; 2])> {
        let (x, size) = (self.operand()?, self.sizes[self.sizes.len() - 1]);
        let [weight, bias] = [self.row()?.requires_grad_(true)?, self.row()?.requires_grad_(true)?];
        let y = functional::layer_norm(&x, size, &weight, &bias, 1e-5)?;
        Ok((y, [weight, bias]))
    }

    /// Attention and its operands, which want gradients, and its own.
    pub(crate) fn attended(&self) -> Result<((Tensor, [Tensor; 3]), Tensor)> {
        let leaf = || self.operand()?.requires_grad_(true);
        let operands = [leaf()?, leaf()?, leaf()?];
        let [q, k, v] = &operands;
        Ok(((causal_attention(q, k, v)?, operands), self.operand()?))
    }

    /// The result of an op of `N` operands that want gradients, with the operands and the result's gradient.
    pub(crate) fn recorded<const N: usize>(
        &self,
        op: impl Fn(&[Tensor; N]) -> Result<Tensor>,
    ) -> Result<((Tensor, [Tensor; N]), Tensor)> {
        let leaf = || self.operand()?.requires_grad_(true);
        let operands: Vec<Tensor> = (0..N).map(|_| leaf()).collect::<Result<_>>()?;
        let Ok(operands) = <[Tensor; N]>::try_from(operands) else { unreachable!("N operands") };
        Ok(((op(&operands)?, operands), self.operand()?))
    }

    /// An element for each row.
    pub(crate) fn column(&self) -> Result<Tensor> {
        self.random(&[self.sizes[0], 1])
    }

    /// Of the first and the last size, for any index between.
    pub(crate) fn between(&self) -> Result<Tensor> {
        self.random(&[self.sizes[0], 1, self.sizes[2]])
    }

    /// Indices of rows, in any order.
    pub(crate) fn index(&self) -> Result<Tensor> {
        let n = self.sizes[0];
        randint(0, n as i64, [n], (DType::I64, self.device()))
    }

    /// The left factor of sizes `[…, m, k, n]`.
    pub(crate) fn left(&self) -> Result<Tensor> {
        self.random(&self.sizes[..self.sizes.len() - 1])
    }

    /// The right factor.
    pub(crate) fn right(&self) -> Result<Tensor> {
        let (batch, k, n) = self.factors();
        self.random(&[batch, &[k, n]].concat())
    }

    /// The left factor, transposed.
    pub(crate) fn left_t(&self) -> Result<Tensor> {
        let (batch, k, _) = self.factors();
        let m = self.sizes[self.sizes.len() - 3];
        self.random(&[batch, &[k, m]].concat())?.transpose(-1, -2)
    }

    /// The right factor, transposed.
    pub(crate) fn right_t(&self) -> Result<Tensor> {
        let (batch, k, n) = self.factors();
        self.random(&[batch, &[n, k]].concat())?.transpose(-1, -2)
    }

    /// A vector as the right factor.
    pub(crate) fn vector(&self) -> Result<Tensor> {
        self.random(&[self.factors().1])
    }

    fn factors(&self) -> (&[usize], usize, usize) {
        let last = self.sizes.len() - 1;
        (&self.sizes[..last - 2], self.sizes[last - 1], self.sizes[last])
    }
}

fn size(n: usize) -> String {
    if n.is_power_of_two() && n >= 1 << 16 { format!("2^{}", n.ilog2()) } else { n.to_string() }
}

/// Of `[batch, heads, time, width]`.
pub(crate) fn causal_attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let options = functional::AttentionOptions { is_causal: true, ..Default::default() };
    functional::scaled_dot_product_attention(q, k, v, &options)
}
