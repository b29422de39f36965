//! Printing in the format of PyTorch's `repr`.

use std::fmt;

use warpline_runtime::printed;

use super::indexing::basic::row_major;
use crate::{Category, RaceReport, Result, Scalar, SyncPolicy, Tensor};

/// Maximum number of elements that are printed in full. A larger tensor prints only the edges of each
/// dimension with more than `2 * EDGE` indices.
const THRESHOLD: usize = 1000;
/// Number of elements that are printed at each edge.
const EDGE: usize = 3;
/// Maximum line length, in characters.
const LINE_WIDTH: usize = 80;
/// Start of the text. Later lines are indented by its length.
const PREFIX: &str = "tensor(";

/// Prints the tensor as PyTorch does. Waits for the device and copies the printed elements to the host. If that
/// fails, the error is printed in place of the values.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut suffixes = Vec::new();
        if self.device().is_cuda() {
            suffixes.push(format!("device='{}'", self.device()));
        }
        let name = || format!("dtype={}", self.dtype());
        let mut text = String::from(PREFIX);
        if self.numel() == 0 {
            if self.dim() != 1 {
                let sizes: Vec<String> = self.size().iter().map(usize::to_string).collect();
                suffixes.push(format!("size=({})", sizes.join(", ")));
            }
            if self.dtype() != crate::DType::F32 {
                suffixes.push(name());
            }
            text.push_str("[]");
        } else {
            if !matches!(self.dtype(), crate::DType::F32 | crate::DType::I64 | crate::DType::Bool) {
                suffixes.push(name());
            }
            match collect_for_print(&self.detach()) {
                Ok(values) => text.push_str(&format_values(&values, self.dtype().category())),
                Err(error) => text.push_str(&format!("<{error}>")),
            }
        }
        match self.grad_fn() {
            Some(name) => suffixes.push(format!("grad_fn=<{name}>")),
            None if self.requires_grad() => suffixes.push("requires_grad=True".into()),
            None => {}
        }
        append_suffixes(&mut text, &suffixes);
        f.write_str(&text)
    }
}

/// Prints sizes, strides, dtype, device, and the gradient function or `requires_grad`, but no elements.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tensor");
        shown
            .field("size", &self.size())
            .field("stride", &self.stride())
            .field("dtype", &self.dtype().name())
            .field("device", &self.device().to_string());
        match self.grad_fn() {
            Some(name) => shown.field("grad_fn", &name).finish(),
            None if self.requires_grad() => shown.field("requires_grad", &true).finish(),
            None => shown.finish(),
        }
    }
}

/// The elements to print: all elements or, along the dimensions in `cut`, only those at the edges.
struct PrintedElements {
    values: Vec<Scalar>,
    sizes: Vec<usize>,
    cut: Vec<bool>,
}

/// Calls [`collect_elements`]. If a race may be reported, calls it inside `printed`, so that the report names the
/// line of the program that prints, not a line of this file.
#[track_caller]
fn collect_for_print(tensor: &Tensor) -> Result<PrintedElements> {
    let runtime = tensor.storage().runtime();
    let watched = runtime.sync_policy() == SyncPolicy::Manual
        && runtime.race_report() != RaceReport::Off
        && (tensor.is_cuda() || tensor.is_pinned());
    if watched {
        return printed("methods/print.rs", || collect_elements(tensor));
    }
    collect_elements(tensor)
}

fn collect_elements(tensor: &Tensor) -> Result<PrintedElements> {
    let summarize = tensor.numel() > THRESHOLD;
    let cut: Vec<bool> = tensor.size().iter().map(|&n| summarize && n > 2 * EDGE).collect();
    let sizes: Vec<usize> =
        tensor.size().iter().zip(&cut).map(|(&n, &c)| if c { 2 * EDGE } else { n }).collect();
    let mut values = vec![Scalar::Int(0); sizes.iter().product()];
    corner(tensor, &cut, 0, &mut vec![0; sizes.len()], &sizes, &mut values)?;
    Ok(PrintedElements { values, sizes, cut })
}

/// Copies `part` to `values`, which has the sizes `sizes`. Of each dimension in `cut` with index `dim` or
/// higher, copies only the edges. `at` is the position of `part` in `values`.
#[track_caller]
fn corner(
    part: &Tensor,
    cut: &[bool],
    dim: usize,
    at: &mut Vec<usize>,
    sizes: &[usize],
    values: &mut [Scalar],
) -> Result<()> {
    if dim < cut.len() {
        if !cut[dim] {
            return corner(part, cut, dim + 1, at, sizes, values);
        }
        let end = part.size()[dim] - EDGE;
        for (start, to) in [(0, 0), (end, EDGE)] {
            at[dim] = to;
            let edge = part.narrow(dim as isize, start as isize, EDGE)?;
            corner(&edge, cut, dim + 1, at, sizes, values)?;
        }
        at[dim] = 0;
        return Ok(());
    }
    let elements = part.to_scalars()?;
    let strides = row_major(sizes);
    let own = row_major(part.size());
    for (i, &value) in elements.iter().enumerate() {
        let mut flat = 0;
        for d in 0..sizes.len() {
            let index = i / own[d] % part.size()[d];
            flat += (index + at[d]) * strides[d];
        }
        values[flat] = value;
    }
    Ok(())
}

/// Returns the text between `tensor(` and the suffixes, such as the device.
fn format_values(shown: &PrintedElements, category: Category) -> String {
    let formatter = Formatter::new(&shown.values, category);
    let mut out = String::new();
    formatter.tensor(shown, 0, &shown.values, PREFIX.len(), &mut out);
    out
}

enum NumberFormat {
    Exact,
    Integral,
    Fixed,
    Scientific,
}

struct Formatter {
    format: NumberFormat,
    width: usize,
}

impl Formatter {
    fn new(values: &[Scalar], category: Category) -> Self {
        let mut out = Self { format: NumberFormat::Exact, width: 1 };
        if category != Category::Float {
            out.width = out.widest(values.iter().copied(), 0);
            return out;
        }
        out.format = NumberFormat::Integral;
        let finite = || values.iter().map(|v| v.to_f64()).filter(|v| v.is_finite() && *v != 0.0);
        let (mut low, mut high, mut integral) = (f64::INFINITY, 0f64, true);
        for v in finite() {
            low = low.min(v.abs());
            high = high.max(v.abs());
            integral &= v == v.ceil();
        }
        if high == 0.0 {
            return out;
        }
        if high / low > 1000.0 || high > 1.0e8 || (!integral && low < 1.0e-4) {
            out.format = NumberFormat::Scientific;
        } else if !integral {
            out.format = NumberFormat::Fixed;
        }
        out.width = out.widest(finite().map(Scalar::Float), 1);
        out
    }

    fn widest(&self, values: impl Iterator<Item = Scalar>, least: usize) -> usize {
        values.map(|v| self.text(v).chars().count()).max().unwrap_or(0).max(least)
    }

    fn text(&self, value: Scalar) -> String {
        let v = match value {
            Scalar::Bool(true) => return "True".into(),
            Scalar::Bool(false) => return "False".into(),
            Scalar::Int(v) => return v.to_string(),
            Scalar::Float(v) => v,
        };
        if v.is_nan() {
            return "nan".into();
        }
        if v.is_infinite() {
            return if v > 0.0 { "inf" } else { "-inf" }.into();
        }
        match self.format {
            NumberFormat::Integral => format!("{v:.0}."),
            NumberFormat::Fixed | NumberFormat::Exact => format!("{v:.4}"),
            NumberFormat::Scientific => {
                let text = format!("{v:.4e}");
                let Some((mantissa, exponent)) = text.split_once('e') else { return text };
                let (sign, digits) = match exponent.strip_prefix('-') {
                    Some(digits) => ('-', digits),
                    None => ('+', exponent),
                };
                format!("{mantissa}e{sign}{digits:0>2}")
            }
        }
    }

    fn padded(&self, value: Scalar) -> String {
        format!("{:>1$}", self.text(value), self.width)
    }

    /// Writes the elements `values` of dimension `dim` and its inner dimensions.
    fn tensor(
        &self,
        shown: &PrintedElements,
        dim: usize,
        values: &[Scalar],
        indent: usize,
        out: &mut String,
    ) {
        let left = shown.sizes.len() - dim;
        if left == 0 {
            out.push_str(&self.padded(values[0]));
            return;
        }
        let size = shown.sizes[dim];
        out.push('[');
        if left == 1 {
            let mut items: Vec<String> = values.iter().map(|v| self.padded(*v)).collect();
            if shown.cut[dim] {
                items.insert(EDGE, " ...".into());
            }
            let per_line = (LINE_WIDTH.saturating_sub(indent) / (self.width + 2)).max(1);
            let lines: Vec<String> = items.chunks(per_line).map(|line| line.join(", ")).collect();
            out.push_str(&lines.join(&format!(",\n{}", " ".repeat(indent + 1))));
        } else {
            let separator = format!(",{}{}", "\n".repeat(left - 1), " ".repeat(indent + 1));
            let inner = values.len() / size;
            for (i, part) in values.chunks(inner).enumerate() {
                if i > 0 {
                    out.push_str(&separator);
                }
                if shown.cut[dim] && i == EDGE {
                    out.push_str("...");
                    out.push_str(&separator);
                }
                self.tensor(shown, dim + 1, part, indent + 1, out);
            }
        }
        out.push(']');
    }
}

/// Appends the suffixes and the closing parenthesis. A suffix that does not fit on the line starts a new
/// line.
fn append_suffixes(text: &mut String, suffixes: &[String]) {
    // PyTorch adds 2 to the length of the last line when it decides whether to start a new line.
    let mut column = text.len() - text.rfind('\n').map_or(0, |i| i + 1) + 2;
    for suffix in suffixes {
        if column + suffix.len() + 2 > LINE_WIDTH {
            text.push_str(",\n");
            text.push_str(&" ".repeat(PREFIX.len()));
            column = PREFIX.len() + suffix.len();
        } else {
            text.push_str(", ");
            column += suffix.len() + 2;
        }
        text.push_str(suffix);
    }
    text.push(')');
}
