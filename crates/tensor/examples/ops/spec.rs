//! The specification of a measurement: dtype and sizes of the operands, and the method of timing.

use serde::Serialize;
use warpline::{DType, Result, Tensor, functional, randint, randn};

/// A row of the table, before its measurement.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// The part of the table.
    pub(crate) part: &'static str,
    /// Name of the op in both programs.
    pub(crate) op: &'static str,
    pub(crate) dtype: DType,
    pub(crate) sizes: Vec<usize>,
    pub(crate) view: View,
    pub(crate) timing: Timing,
    /// Target time of a measurement, in milliseconds.
    pub(crate) target_ms: f64,
}

/// The layout of operands in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum View {
    Contiguous,
    /// One element after the start of the allocation.
    Offset,
    /// Every second element of the last dimension.
    Step,
    /// Part of each row. Each part starts at a multiple of 16 bytes.
    Narrow,
}

/// The method of timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// Time of the device: events around calls in a row.
    Events,
    /// Time of the device alone: events around replays of a graph of this many calls.
    Graph(u32),
    /// Time of the host: it enqueues work on a GPU, or computes on the CPU.
    Host,
}

impl Spec {
    pub(crate) fn device(&self) -> &'static str {
        if self.part == "cpu" { "cpu" } else { "cuda" }
    }

    /// Returns `PART/OP DTYPE SIZES`, followed by the view if there is one.
    pub(crate) fn name(&self) -> String {
        format!("{}/{} {}", self.part, self.op, self.operands())
    }

    /// Formats the operands.
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

    /// Returns the same row with sizes of at most 16 and a target time of 0.
    pub(crate) fn tiny(mut self) -> Self {
        self.sizes.iter_mut().for_each(|n| *n = (*n).min(16));
        self.target_ms = 0.0;
        self
    }

    pub(crate) fn numel(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Makes random elements: floats from the normal distribution, integers below 100, or bools.
    fn random(&self, sizes: &[usize]) -> Result<Tensor> {
        if self.dtype.is_float() {
            randn(sizes, self.device())?.to(self.dtype)
        } else if self.dtype == DType::Bool {
            randint(0, 2, sizes, (DType::U8, self.device()))?.to(self.dtype)
        } else {
            randint(0, 100, sizes, (self.dtype, self.device()))
        }
    }

    /// Makes an operand of the sizes, in the view.
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

    /// Makes an operand with the length of a row.
    pub(crate) fn row(&self) -> Result<Tensor> {
        self.random(&self.sizes[self.sizes.len() - 1..])
    }

    /// Computes the layer norm of an operand. Weight and bias require gradients.
    pub(crate) fn normalized(&self) -> Result<(Tensor, [Tensor; 2])> {
        let (x, size) = (self.operand()?, self.sizes[self.sizes.len() - 1]);
        let [weight, bias] = [self.row()?.requires_grad_(true)?, self.row()?.requires_grad_(true)?];
        let options = functional::LayerNormOptions::new().weight(&weight).bias(&bias);
        let y = functional::layer_norm(&x, size, options)?;
        Ok((y, [weight, bias]))
    }

    /// Computes attention of operands that require gradients. Also returns a gradient of the result.
    pub(crate) fn attended(&self) -> Result<((Tensor, [Tensor; 3]), Tensor)> {
        let leaf = || self.operand()?.requires_grad_(true);
        let operands = [leaf()?, leaf()?, leaf()?];
        let [q, k, v] = &operands;
        Ok(((causal_attention(q, k, v)?, operands), self.operand()?))
    }

    /// Computes an op of `N` operands that require gradients. Returns the result, the operands, and a gradient
    /// of the result.
    pub(crate) fn recorded<const N: usize>(
        &self,
        op: impl Fn(&[Tensor; N]) -> Result<Tensor>,
    ) -> Result<((Tensor, [Tensor; N]), Tensor)> {
        let leaf = || self.operand()?.requires_grad_(true);
        let operands: Vec<Tensor> = (0..N).map(|_| leaf()).collect::<Result<_>>()?;
        let Ok(operands) = <[Tensor; N]>::try_from(operands) else { unreachable!("N operands") };
        Ok(((op(&operands)?, operands), self.operand()?))
    }

    /// Makes an operand with one element per row.
    pub(crate) fn column(&self) -> Result<Tensor> {
        self.random(&[self.sizes[0], 1])
    }

    /// Makes an operand with the first and the last size, and size 1 between them.
    pub(crate) fn between(&self) -> Result<Tensor> {
        self.random(&[self.sizes[0], 1, self.sizes[2]])
    }

    /// Makes one random row index per row. Indices may repeat.
    pub(crate) fn index(&self) -> Result<Tensor> {
        let n = self.sizes[0];
        randint(0, n as i64, [n], (DType::I64, self.device()))
    }

    /// Makes the left factor of a product of sizes `[…, m, k, n]`.
    pub(crate) fn left(&self) -> Result<Tensor> {
        self.random(&self.sizes[..self.sizes.len() - 1])
    }

    /// Makes the right factor.
    pub(crate) fn right(&self) -> Result<Tensor> {
        let (batch, k, n) = self.factors();
        self.random(&[batch, &[k, n]].concat())
    }

    /// Makes the left factor, transposed.
    pub(crate) fn left_t(&self) -> Result<Tensor> {
        let (batch, k, _) = self.factors();
        let m = self.sizes[self.sizes.len() - 3];
        self.random(&[batch, &[k, m]].concat())?.transpose(-1, -2)
    }

    /// Makes the right factor, transposed.
    pub(crate) fn right_t(&self) -> Result<Tensor> {
        let (batch, k, n) = self.factors();
        self.random(&[batch, &[n, k]].concat())?.transpose(-1, -2)
    }

    /// Makes a vector as the right factor.
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

/// Causal attention of operands `[batch, heads, time, width]`.
pub(crate) fn causal_attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let options = functional::AttentionOptions::new().is_causal(true);
    functional::scaled_dot_product_attention(q, k, v, options)
}
