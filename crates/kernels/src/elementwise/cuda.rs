//! The kernels of an op: one for operands that lie alike, one for all others.

use std::fmt::Write;

use warpline_runtime::DType;
use warpline_runtime::iter::{Flat, Index, Params};
use warpline_runtime::module::{ELEMENT, SPACE, Source};

use super::run::{NUMBER, Numbers};
use super::{Op, Output, functions};
use crate::programs::cuda_type;

/// The source of an op's kernels for a dtype.
pub(super) fn source(op: &Op, variant: &str) -> Source {
    let source = match op.inputs.len() {
        1 => structs::<1, 2>(),
        2 => structs::<2, 3>(),
        3 => structs::<3, 4>(),
        _ => structs::<4, 5>(),
    };
    let source = source.push(ELEMENT).push(SPACE).push(&functions::called_by(op.cuda));
    let source = source.push(&format!("#define NUMBER {NUMBER}"));
    source.push(include_str!("elementwise.cuh")).push(&kernels(op, variant))
}

fn structs<const I: usize, const N: usize>() -> Source {
    Source::new().with::<Params<Flat, Numbers<I>>>().with::<Params<Index<N>, Numbers<I>>>()
}

/// What computes one element, and the loops around it.
fn kernels(op: &Op, variant: &str) -> String {
    let out = if op.output == Output::Bool { "boolean" } else { cuda_type(variant) };
    let types = op.inputs.iter().map(|i| if i.is_bool { "boolean" } else { cuda_type(variant) });
    let inputs: Vec<(usize, &str, &str)> =
        op.inputs.iter().zip(types).enumerate().map(|(k, (i, ty))| (k, i.name, ty)).collect();
    let each = |f: &dyn Fn(usize, &str, &str) -> String, between: &str| {
        let parts: Vec<String> = inputs.iter().map(|&(k, name, ty)| f(k, name, ty)).collect();
        parts.join(between)
    };
    let parameters = each(&|_, name, ty| format!("compute_t<{ty}> {name}"), ", ");
    let pointers = each(&|k, _, ty| format!("const {ty}* in{k}"), ", ");
    let count = inputs.len();
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.suffix() == variant);
    let (vector, run) = dtype.map_or((1, 1), |dtype| (op.vector(dtype), op.run(dtype)));
    let name = format!("{}_{variant}", op.name);
    let mut text = format!(
        "typedef compute_t<{}> C;\ntypedef compute_t<{out}> R;\n\
         __device__ __forceinline__ R function({parameters}) {{ return (R)({}); }}\n",
        cuda_type(variant),
        op.cuda,
    );
    let results = format!(
        "        R r[V];\n#pragma unroll\n        for (int k = 0; k < V; k++) r[k] = function({});\n",
        each(&|k, _, _| format!("x{k}[k]"), ", "),
    );
    // One condition says what is loaded, and no load waits for a branch: small tensors take as long as that.
    let loads = each(
        &|k, _, ty| {
            format!(
                "    Raw<V * sizeof({ty})> v{k};\n    if (whole & !is_number<{k}>(p.args)) \
                 v{k} = *(const Raw<V * sizeof({ty})>*)(in{k} + i);\n"
            )
        },
        "",
    );
    let vectors = each(
        &|k, _, ty| {
            format!(
                "        compute_t<{ty}> x{k}[V];\n        operand<{k}, {ty}>(v{k}, p.args, x{k});\n"
            )
        },
        "",
    );
    let _ = write!(
        text,
        "extern \"C\" __global__ void {name}_flat({pointers}, {out}* out, \
         const __grid_constant__ Params<Flat, Numbers<{count}>> p) {{\n    constexpr int V = {vector};\n    \
         const u32 n = p.space.numel;\n    u32 i = (u32)thread() * V;\n    \
         const bool whole = i + V <= n;\n{loads}    if (whole) {{\n{vectors}{results}        store_vec(out + i, r);\n        return;\n    }}\n\
         #pragma unroll 1\n    for (; i < n; i++) store(out[i], function({}));\n}}\n",
        each(&|k, _, _| format!("operand<{k}>(in{k} + i, p.args)"), ", "),
    );
    let runs = each(
        &|k, _, ty| {
            format!(
                "        compute_t<{ty}> x{k}[V];\n        \
                 operand<{k}>(in{k}, p.space.dims[0].strides[{k}], run, p.args, x{k});\n"
            )
        },
        "",
    );
    let _ = write!(
        text,
        "extern \"C\" __global__ void {name}_strided({pointers}, {out}* out, \
         const __grid_constant__ Params<Index<{operands}>, Numbers<{count}>> p) {{\n    constexpr int V = {run};\n    \
         Run<{operands}> run;\n    if (run_of<V>(p.space, (u32)thread(), out, run)) {{\n{runs}{results}        \
         store_run(out + run.at[{count}], p.space.dims[0].strides[{count}], run, r);\n    }}\n}}\n",
        operands = count + 1,
    );
    let elements = op.inputs.iter().zip(&inputs).map(|(input, (k, _, ty))| match input.is_bool {
        true => format!("condition<{k}>(in{k}, at[{k}], p.args)"),
        false => format!("element<{k}, {ty}>(in{k}, at[{k}], p.args)"),
    });
    let _ = write!(
        text,
        "extern \"C\" __global__ void {name}_converting({}, void* out, \
         const __grid_constant__ Params<Index<{operands}>, Numbers<{count}>> p) {{\n    \
         const u32 i = (u32)thread();\n    if (i >= p.space.numel) return;\n    \
         i32 at[{operands}];\n    offsets(p.space, i, at);\n    \
         convert_to<{out}>(out, at[{count}], dtype<{count}>(p.args), Element<{out}>::store(function({})));\n}}\n",
        each(&|k, _, _| format!("const void* in{k}"), ", "),
        elements.collect::<Vec<_>>().join(", "),
        operands = count + 1,
    );
    text
}
