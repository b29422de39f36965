//! The CUDA kernels of an op: `flat` for contiguous operands, `strided` for operands with any strides,
//! and `converting` for operands of other dtypes.

use warpline_runtime::DType;
use warpline_runtime::iter::{Flat, Index, Params, Widths};
use warpline_runtime::module::{ELEMENT, SPACE, Source};

use super::entry::ResultDType;
use super::run::{NUMBER, Numbers};
use super::{Op, cuda_functions};
use crate::programs::cuda_type;

/// Returns the source of an op's kernels for a dtype.
pub fn source(op: &Op, variant: &str) -> Source {
    let structs = match op.entry.inputs.len() {
        1 => structs::<1, 2>(),
        2 => structs::<2, 3>(),
        3 => structs::<3, 4>(),
        _ => structs::<4, 5>(),
    };
    around(structs, op.entry.cuda, &kernels(op, variant))
}

/// Returns a source with the given structs and kernels, and with the functions that `expressions`
/// call.
pub(super) fn around(structs: Source, expressions: &str, kernels: &str) -> Source {
    let source = structs.push(ELEMENT).push(SPACE).push(&cuda_functions::called_by(expressions));
    let source = source.push(&format!("#define NUMBER {NUMBER}"));
    source.push(include_str!("elementwise.cuh")).push(kernels)
}

/// Declares the parameters of kernels with `I` operands. `N` counts operands and results.
pub(super) fn structs<const I: usize, const N: usize>() -> Source {
    Source::new().with::<Params<Flat, Numbers<I>>>().with::<Params<Index<N>, Numbers<I>>>()
}

/// Returns the code of an op: its function of one element, and the kernels that call this function.
fn kernels(op: &Op, variant: &str) -> String {
    let types =
        op.entry.inputs.iter().map(|i| if i.is_bool { "boolean" } else { cuda_type(variant) });
    let inputs: Vec<(bool, &str)> =
        op.entry.inputs.iter().map(|input| input.is_bool).zip(types).collect();
    let result = if op.entry.output == ResultDType::Bool { "boolean" } else { cuda_type(variant) };
    let parameters: Vec<String> = (op.entry.inputs.iter().zip(&inputs))
        .map(|(input, (_, ty))| format!("compute_t<{ty}> {}", input.name))
        .collect();
    let function = format!(
        "typedef compute_t<{}> C;\ntypedef compute_t<{result}> R;\n\
         __device__ __forceinline__ void function({}, R& result) {{ result = (R)({}); }}\n",
        cuda_type(variant),
        parameters.join(", "),
        op.entry.cuda,
    );
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.suffix() == variant);
    let Widths { vector, run } =
        dtype.map_or(Widths { vector: 1, run: 1 }, |dtype| op.widths(dtype));
    let name = format!("{}_{variant}", op.entry.name);
    function + &KernelSource { name, inputs: &inputs, results: &[result], vector, run }.text()
}

/// The kernels that call `function`, which takes one element of each operand and a reference to
/// each result.
pub(super) struct KernelSource<'a> {
    /// Prefix of the kernels' names.
    pub(super) name: String,
    /// For each operand, whether it is a condition, and its type in memory.
    pub(super) inputs: &'a [(bool, &'a str)],
    /// Types of the results in memory. If there are several, the dtype code [`NUMBER`] marks an
    /// unwanted one.
    pub(super) results: &'a [&'a str],
    /// Elements per thread of the flat kernel.
    pub(super) vector: usize,
    /// Elements per thread of the strided kernel.
    pub(super) run: usize,
}

impl KernelSource<'_> {
    pub(super) fn text(&self) -> String {
        self.flat() + &self.strided() + &self.converting()
    }

    /// Joins a text for each operand.
    fn inputs(&self, between: &str, f: impl Fn(usize, bool, &str) -> String) -> String {
        let parts = self.inputs.iter().enumerate().map(|(k, (is_bool, ty))| f(k, *is_bool, ty));
        parts.collect::<Vec<_>>().join(between)
    }

    /// Joins a text for each result. `f` receives the index among operands and results, then the
    /// index among results.
    fn results(&self, between: &str, f: impl Fn(usize, usize, &str) -> String) -> String {
        let first = self.inputs.len();
        let parts = self.results.iter().enumerate().map(|(k, ty)| f(first + k, k, ty));
        parts.collect::<Vec<_>>().join(between)
    }

    /// Returns statements that write the wanted results.
    fn stores(&self, indent: &str, store: impl Fn(usize, usize, &str) -> String) -> String {
        self.results("", |k, result, ty| {
            let wanted = match self.results {
                [_] => String::new(),
                _ => format!("if (!is_number<{k}>(p.args)) "),
            };
            format!("{indent}{wanted}{};\n", store(k, result, ty))
        })
    }

    /// Returns the signature and opening brace of a kernel whose operands and results are pointers.
    fn head(&self, kernel: &str, space: &str) -> String {
        format!(
            "extern \"C\" __global__ void {}_{kernel}({}, {}, \
             const __grid_constant__ Params<{space}, Numbers<{}>> p) {{\n",
            self.name,
            self.inputs(", ", |k, _, ty| format!("const {ty}* in{k}")),
            self.results(", ", |_, k, ty| format!("{ty}* out{k}")),
            self.inputs.len(),
        )
    }

    /// Returns code that calls the function for each of `V` elements.
    fn calls(&self) -> String {
        format!(
            "{}#pragma unroll\n        for (int k = 0; k < V; k++) function({}, {});\n",
            self.results("", |_, k, ty| format!("        compute_t<{ty}> r{k}[V];\n")),
            self.inputs(", ", |k, _, _| format!("x{k}[k]")),
            self.results(", ", |_, k, _| format!("r{k}[k]")),
        )
    }

    /// Returns code that calls the function with `arguments` for one element. The results are `r0`,
    /// `r1` and so on.
    fn call(&self, indent: &str, arguments: &str) -> String {
        format!(
            "{}{indent}function({arguments}, {});\n",
            self.results("", |_, k, ty| format!("{indent}compute_t<{ty}> r{k};\n")),
            self.results(", ", |_, k, _| format!("r{k}")),
        )
    }

    fn flat(&self) -> String {
        // Each load has one condition and does not wait for a branch, because loads limit the speed
        // for small tensors.
        let loads = self.inputs("", |k, _, ty| {
            format!(
                "    Raw<V * sizeof({ty})> v{k};\n    if (whole & !is_number<{k}>(p.args)) \
                 v{k} = *(const Raw<V * sizeof({ty})>*)(in{k} + i);\n"
            )
        });
        let vectors = self.inputs("", |k, _, ty| {
            format!(
                "        compute_t<{ty}> x{k}[V];\n        operand<{k}, {ty}>(v{k}, p.args, x{k});\n"
            )
        });
        let elements = self.inputs(", ", |k, _, _| format!("operand<{k}>(in{k} + i, p.args)"));
        format!(
            "{}    constexpr int V = {};\n    const u32 n = p.space.numel;\n    \
             u32 i = (u32)thread() * V;\n    const bool whole = i + V <= n;\n{loads}    \
             if (whole) {{\n{vectors}{}{}        return;\n    }}\n\
             #pragma unroll 1\n    for (; i < n; i++) {{\n{}{}    }}\n}}\n",
            self.head("flat", "Flat"),
            self.vector,
            self.calls(),
            self.stores("        ", |_, k, _| format!("store_vec(out{k} + i, r{k})")),
            self.call("        ", &elements),
            self.stores("        ", |_, k, _| format!("store(out{k}[i], r{k})")),
        )
    }

    fn strided(&self) -> String {
        let views = self.inputs.len() + self.results.len();
        let runs = self.inputs("", |k, _, ty| {
            format!(
                "        compute_t<{ty}> x{k}[V];\n        \
                 operand<{k}>(in{k}, p.space.dims[0].strides[{k}], run, p.args, x{k});\n"
            )
        });
        let stores = self.stores("        ", |k, result, _| {
            format!(
                "store_run(out{result} + run.at[{k}], p.space.dims[0].strides[{k}], run, r{result})"
            )
        });
        format!(
            "{}    constexpr int V = {};\n    Run<{views}> run;\n    \
             if (run_of<V>(p.space, (u32)thread(), out{}, run)) {{\n{runs}{}{stores}    }}\n}}\n",
            self.head("strided", &format!("Index<{views}>")),
            self.run,
            self.results.len() - 1,
            self.calls(),
        )
    }

    fn converting(&self) -> String {
        let views = self.inputs.len() + self.results.len();
        let elements = self.inputs(", ", |k, is_bool, ty| match is_bool {
            true => format!("condition<{k}>(in{k}, at[{k}], p.args)"),
            false => format!("element<{k}, {ty}>(in{k}, at[{k}], p.args)"),
        });
        let stores = self.stores("    ", |k, result, ty| {
            format!(
                "convert_to<{ty}>(out{result}, at[{k}], dtype<{k}>(p.args), Element<{ty}>::store(r{result}))"
            )
        });
        format!(
            "extern \"C\" __global__ void {}_converting({}, {}, \
             const __grid_constant__ Params<Index<{views}>, Numbers<{}>> p) {{\n    \
             const u32 i = (u32)thread();\n    if (i >= p.space.numel) return;\n    \
             i32 at[{views}];\n    offsets(p.space, i, at);\n{}{stores}}}\n",
            self.name,
            self.inputs(", ", |k, _, _| format!("const void* in{k}")),
            self.results(", ", |_, k, _| format!("void* out{k}")),
            self.inputs.len(),
            self.call("    ", &elements),
        )
    }
}
