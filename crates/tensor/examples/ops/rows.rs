//! The rows of the table: ops with their dtypes and sizes.

use warpline::DType;

use super::spec::{Spec, Timing, View};

const F32: DType = DType::F32;
const BF16: DType = DType::BF16;
const F16: DType = DType::F16;

/// Times a graph of 32 calls, for ops whose launch takes the host longer than the device takes for the op
/// itself.
const GRAPH: Timing = Timing::Graph(32);

/// Bytes of an operand that no device can keep in its cache: more than four times the size of an H200's cache.
const LARGE: usize = 1 << 28;

fn row(part: &'static str, op: &'static str, dtype: DType, sizes: &[usize]) -> Spec {
    let (timing, target_ms) = match part {
        "host" => (Timing::Host, 2.0),
        "cpu" => (Timing::Host, 50.0),
        "sizes" => (GRAPH, 3.0),
        _ => (Timing::Events, 6.0),
    };
    let sizes = sizes.to_vec();
    Spec { part, op, dtype, sizes, view: View::Contiguous, timing, target_ms }
}

/// The copy with which other rows are compared. It is the first row.
pub(crate) fn copy() -> Spec {
    row("table", "copy_", F32, &[1 << 28])
}

/// The rows on a GPU.
pub(crate) fn gpu() -> Vec<Spec> {
    let parts = [
        table(),
        sizes(),
        lengths(),
        views(),
        dimensions(),
        dtypes(),
        products(),
        gradients(),
        host(),
        graphs(),
    ];
    parts.into_iter().flatten().collect()
}

fn table() -> Vec<Spec> {
    let part = |op, dtype, sizes: &[usize]| row("table", op, dtype, sizes);
    let large = ["add", "mul by a number", "exp", "gelu", "fill_", "eq", "to bfloat16"];
    let random = ["normal_", "uniform_"];
    let matrix = [
        "sum of rows",
        "sum of columns",
        "amax of rows",
        "argmax of rows",
        "softmax of rows",
        "log_softmax of rows",
        "softmax of columns",
        "transpose",
        "add transposed",
        "add a row",
        "add a column",
        "cat rows",
        "cat columns",
        "index_select of rows",
    ];
    let mut rows = vec![copy()];
    rows.extend(large.into_iter().chain(random).map(|op| part(op, F32, &[1 << 28])));
    rows.extend(random.into_iter().map(|op| part(op, BF16, &[1 << 28])));
    rows.extend([1 << 28, 1 << 24].map(|n| part("sum", F32, &[n])));
    rows.extend([F32, BF16].map(|dtype| part("add", dtype, &[1 << 24])));
    rows.extend(matrix.map(|op| part(op, F32, &[16384, 16384])));
    rows.push(part("mean of rows", F32, &[64, 2048, 1024]));
    rows.extend([F32, BF16].map(|dtype| part("softmax of rows", dtype, &[32, 16, 512, 512])));
    rows.push(part("permute 0213", F32, &[64, 2048, 16, 64]));
    rows
}

/// Small tensors, and sums over rows as in a training step.
fn sizes() -> Vec<Spec> {
    let flat = ["copy_", "add", "exp", "to bfloat16", "sum"];
    let matrix =
        ["sum of rows", "sum of columns", "softmax of rows", "transpose", "add a row", "cat rows"];
    let mut rows = Vec::new();
    for n in [1 << 16, 1 << 18, 1 << 20, 1 << 22] {
        rows.extend(flat.map(|op| row("sizes", op, F32, &[n])));
        rows.extend(matrix.map(|op| row("sizes", op, F32, &[n / 1024, 1024])));
    }
    // Sums over rows: gradients of biases, and of the parameters of layer norms.
    rows.extend([256, 768, 1024].map(|n| row("sizes", "sum of columns", BF16, &[1024, n])));
    for (count, size) in [(1024, 256), (1024, 768), (8192, 768), (65536, 1024)] {
        let op = "gradients of layer_norm's weight and bias";
        rows.extend([BF16, F32].map(|dtype| row("sizes", op, dtype, &[count, size])));
    }
    rows
}

/// Rows of odd lengths, and long rows.
fn lengths() -> Vec<Spec> {
    let ops = [
        "sum of rows",
        "amax of rows",
        "argmax of rows",
        "softmax of rows",
        "sum of columns",
        "amax of columns",
        "argmax of columns",
        "add a row",
        "transpose",
    ];
    let mut rows = Vec::new();
    for n in [1000, 4097, 50_257, 131_072] {
        let sizes = [(1 << 26) / n, n];
        rows.extend(ops.map(|op| row("rows", op, F32, &sizes)));
        rows.extend(["softmax of rows", "sum of rows"].map(|op| row("rows", op, BF16, &sizes)));
    }
    rows
}

/// Operands that do not start at a multiple of 16 bytes, or have gaps.
fn views() -> Vec<Spec> {
    let ops =
        ["clone", "add", "add_", "exp", "to bfloat16", "sum", "sum of rows", "softmax of rows"];
    let halves = ["add", "softmax of rows"];
    let mut rows = Vec::new();
    for view in [View::Offset, View::Step, View::Narrow] {
        let both = ops.map(|op| (op, F32)).into_iter().chain(halves.map(|op| (op, BF16)));
        rows.extend(
            both.map(|(op, dtype)| Spec { view, ..row("views", op, dtype, &[16384, 4096]) }),
        );
    }
    rows
}

/// Three and four dimensions.
fn dimensions() -> Vec<Spec> {
    let part = |op, dtype, sizes: &[usize]| row("dims", op, dtype, sizes);
    let attention = ["causal attention", "gradients of causal attention"];
    let heads = [[8, 12, 1024, 64], [4, 16, 2048, 128]];
    let halves = heads.map(|sizes| attention.map(|op| part(op, BF16, &sizes))).into_iter();
    let mut rows: Vec<Spec> = halves.flatten().collect();
    rows.extend([
        part("sum of dim 1", F32, &[64, 1024, 1024]),
        part("sum of dims 0, 2", F32, &[64, 1024, 1024]),
        part("add between", F32, &[64, 1024, 1024]),
        part("permute 210", F32, &[512, 256, 512]),
    ]);
    for dtype in [F32, BF16] {
        rows.push(part("permute 0213", dtype, &[64, 2048, 16, 64]));
        rows.push(part("permute 0231", dtype, &[64, 256, 64, 64]));
        rows.push(part("permute 0312", dtype, &[64, 64, 64, 256]));
    }
    rows
}

/// The rows of dtypes other than `float32`.
fn dtypes() -> Vec<Spec> {
    let all = [
        "fill_",
        "add",
        "add a row",
        "to float32",
        "to bfloat16",
        "sum",
        "sum of rows",
        "sum of columns",
        "amax of rows",
        "argmax of rows",
        "transpose",
        "cat rows",
        "cat columns",
        "index_select of rows",
    ];
    // Ops that PyTorch lacks, and conversions to the same dtype, are left out.
    let has =
        |dtype, op| !matches!((dtype, op), (DType::Bool, "argmax of rows") | (BF16, "to bfloat16"));
    let floats = ["exp", "softmax of rows", "log_softmax of rows"];
    let mut rows = Vec::new();
    let integers = [DType::I64, DType::I32, DType::I16, DType::I8, DType::U8, DType::Bool];
    for dtype in [F16, BF16, DType::F64].into_iter().chain(integers) {
        let sizes = [LARGE / dtype.size() / 4096, 4096];
        let all = all.into_iter().filter(|op| has(dtype, *op));
        rows.extend(all.map(|op| row("dtypes", op, dtype, &sizes)));
        if dtype.is_float() {
            rows.extend(floats.map(|op| row("dtypes", op, dtype, &sizes)));
        }
        let square = [64, LARGE / dtype.size() / (64 * 64 * 16), 16, 64];
        rows.push(row("dtypes", "permute 0213", dtype, &square));
    }
    rows
}

/// Products of matrices, of sizes `[…, m, k, n]`.
fn products() -> Vec<Spec> {
    let part = |op, dtype, sizes: &[usize]| row("products", op, dtype, sizes);
    let (left, right) = ("matmul, left transposed", "matmul, right transposed");
    let mut rows = Vec::new();
    for (dtype, n) in [
        (BF16, 8192),
        (BF16, 4096),
        (BF16, 512),
        (F16, 8192),
        (F16, 512),
        (F32, 8192),
        (F32, 512),
        (DType::F64, 2048),
    ] {
        rows.push(part("matmul", dtype, &[n, n, n]));
    }
    for dtype in [BF16, F32] {
        rows.extend([left, right].map(|op| part(op, dtype, &[2048, 2048, 2048])));
        rows.push(part("matmul", dtype, &[512, 1024, 64, 128]));
        rows.push(part("matmul by a vector", dtype, &[16384, 16384, 1]));
    }
    rows.push(part(right, BF16, &[64, 16, 512, 64, 512]));
    rows.push(part(right, BF16, &[1, 4096, 14336]));
    // Products of a few rows and the weights of a decoder.
    for [k, n] in [[2048, 512], [2048, 2048], [2048, 8192], [8192, 2048], [2048, 128_256]] {
        for (dtype, m) in
            [(BF16, 1), (BF16, 5), (BF16, 16), (F16, 1), (F32, 1), (F32, 4), (F32, 16)]
        {
            rows.push(part(right, dtype, &[m, k, n]));
        }
    }
    rows
}

/// Backward passes of elementwise ops.
fn gradients() -> Vec<Spec> {
    let ops = [
        "gradient of gelu",
        "gradient of mish",
        "gradient of erf",
        "gradients of mul",
        "gradients of div",
    ];
    ops.into_iter()
        .flat_map(|op| [F32, BF16].map(|dtype| row("gradients", op, dtype, &[1 << 26])))
        .collect()
}

/// Small ops, to measure the host time of a call.
fn host() -> Vec<Spec> {
    let part = |op, sizes: &[usize]| row("host", op, F32, sizes);
    let mut rows: Vec<Spec> =
        ["add", "add_", "sum", "view", "empty", "zeros"].map(|op| part(op, &[1024])).into();
    rows.push(part("matmul", &[32, 32, 32]));
    rows.push(part("softmax of rows", &[32, 32]));
    rows
}

/// A chain of small ops, replayed.
fn graphs() -> Vec<Spec> {
    let chain = row("graph", "20 additions of a number", F32, &[1024]);
    vec![Spec { timing: Timing::Graph(1), ..chain }]
}

/// The rows on the CPU.
pub(crate) fn cpu() -> Vec<Spec> {
    let part = |op, dtype, sizes: &[usize]| row("cpu", op, dtype, sizes);
    let flat = [
        "copy_",
        "add",
        "add_",
        "mul by a number",
        "exp",
        "gelu",
        "to bfloat16",
        "sum",
        "normal_",
        "uniform_",
    ];
    let matrix = [
        "softmax of rows",
        "log_softmax of rows",
        "sum of rows",
        "sum of columns",
        "amax of rows",
        "argmax of rows",
        "transpose",
        "add a row",
        "add a column",
        "cat rows",
        "index_select of rows",
    ];
    let mut rows: Vec<Spec> = flat.map(|op| part(op, F32, &[1 << 24])).into();
    rows.extend([DType::F64, DType::I64, BF16].map(|dtype| part("add", dtype, &[1 << 24])));
    rows.extend([DType::F64, DType::I64, BF16].map(|dtype| part("to float32", dtype, &[1 << 24])));
    rows.extend(matrix.map(|op| part(op, F32, &[4096, 4096])));
    for (dtype, n) in [(F32, 2048), (DType::F64, 2048), (BF16, 1024), (F32, 128)] {
        rows.push(part("matmul", dtype, &[n, n, n]));
    }
    rows.extend([F32, DType::F64].map(|dtype| part("matmul by a vector", dtype, &[4096, 4096, 1])));
    rows.push(part("add", F32, &[16]));
    rows
}
