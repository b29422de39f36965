//! Tests that compare the registry with the public functions in the sources.

use std::collections::BTreeSet;
use std::path::Path;

use super::{registry, report};
use crate::common::sources::{self, Function};

const AUTOGRAD: &str = "autograd plumbing";
const STATE: &str = "reads the state of a random generator";

/// Public functions that return tensors but are not ops, each with the reason.
const NO_OPS: &[(&str, &str)] = &[
    ("autograd::Context::saved", AUTOGRAD),
    ("autograd::Tensor::requires_grad_", AUTOGRAD),
    ("autograd::Tensor::grad", AUTOGRAD),
    ("autograd::grad", AUTOGRAD),
    ("autograd::checkpoint", "runs the program's own function"),
    ("autograd::reachable_leaves", AUTOGRAD),
    ("autograd::moved_to", AUTOGRAD),
    ("Generator::get_state", STATE),
    ("get_rng_state", STATE),
    ("cuda::get_rng_state", STATE),
    ("multiprocessing::Channel::recv", "receives another process's tensor"),
    ("tensor_of_literals", "the function `tensor`, with the default dtype"),
    ("Tensor::iter", "the views of `unbind`"),
    ("Tensor::zeros", FOREIGN),
    ("Tensor::ones", FOREIGN),
    ("Tensor::new", FOREIGN),
    ("Tensor::to_dtype", FOREIGN),
    ("Tensor::to_device", FOREIGN),
    ("apply_elementwise", "calls the table's entries, which the registry has"),
    ("cuda::GraphedCallable::call", "runs the program's own function"),
    ("functional::KvCache::keys", MEMORY),
    ("functional::KvCache::values", MEMORY),
    ("functional::KvCache::len", MEMORY),
    ("functional::celu_", METHOD),
    ("functional::elu_", METHOD),
    ("functional::hardtanh_", METHOD),
    ("functional::leaky_relu_", METHOD),
    ("functional::relu_", METHOD),
    ("functional::selu_", METHOD),
    ("functional::threshold_", METHOD),
    ("functional::celu", METHOD),
    ("functional::elu", METHOD),
    ("functional::gelu", METHOD),
    ("functional::hardshrink", METHOD),
    ("functional::hardsigmoid", METHOD),
    ("functional::hardswish", METHOD),
    ("functional::hardtanh", METHOD),
    ("functional::leaky_relu", METHOD),
    ("functional::log_softmax", METHOD),
    ("functional::logsigmoid", METHOD),
    ("functional::mish", METHOD),
    ("functional::relu", METHOD),
    ("functional::relu6", METHOD),
    ("functional::selu", METHOD),
    ("functional::sigmoid", METHOD),
    ("functional::silu", METHOD),
    ("functional::softmax", METHOD),
    ("functional::softplus", METHOD),
    ("functional::softshrink", METHOD),
    ("functional::softsign", METHOD),
    ("functional::tanh", METHOD),
    ("functional::tanhshrink", METHOD),
    ("functional::threshold", METHOD),
];

const FOREIGN: &str = "does not compile, and names the right call";
const MEMORY: &str = "returns a cache's memory";
const METHOD: &str = "calls the method of the same name";

/// Returns the name of a function in the registry, such as `Tensor::add`.
fn path(file: &Path, function: &Function) -> String {
    let mut folders = file.components().map(|part| part.as_os_str().to_string_lossy());
    let module = match folders.next().as_deref() {
        Some("methods") | None => "",
        Some("functional") => "functional::",
        Some("cuda") => "cuda::",
        Some("autograd") => "autograd::",
        Some("multiprocessing") => "multiprocessing::",
        Some(_) => "",
    };
    let owner = function.owner.as_ref().map_or(String::new(), |owner| format!("{owner}::"));
    format!("{module}{owner}{}", function.name)
}

/// Returns the names of all public functions of the crate that return tensors.
pub(super) fn public() -> BTreeSet<String> {
    // Cargo runs tests in the package's folder.
    let folder = Path::new("src");
    let mut found = BTreeSet::new();
    for file in sources::files(folder) {
        let text = std::fs::read_to_string(&file).expect("a source");
        let inner = file.strip_prefix(folder).expect("a file of the folder");
        let is_tensors = |f: &&Function| f.owner.as_deref() == Some("Tensor");
        let gives = |f: &&Function| {
            f.output.contains("Tensor") || (is_tensors(f) && f.output.contains("Self"))
        };
        let functions = sources::functions(&text);
        found.extend(functions.iter().filter(gives).map(|function| path(inner, function)));
    }
    assert!(found.len() > 480, "the scanner found {} functions", found.len());
    found
}

#[test]
fn every_public_function_is_an_op_or_listed() {
    let public = public();
    let ops: BTreeSet<String> = registry().into_iter().map(|entry| entry.name).collect();
    let table: BTreeSet<String> = warpline_kernels::elementwise::table()
        .map(|op| format!("elementwise::{}", op.name()))
        .collect();
    let listed: BTreeSet<String> = NO_OPS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut failures = Vec::new();
    for name in public.union(&table).filter(|name| !ops.contains(*name) && !listed.contains(*name))
    {
        failures
            .push(format!("{name} has no entry: add it to by_name.rs if it is a line of unary.rs or binary.rs, otherwise to its family's file in registry/, or to NO_OPS if it is not an op"));
    }
    for name in ops.union(&listed).filter(|name| !public.contains(*name) && !table.contains(*name))
    {
        failures.push(format!("{name} does not exist"));
    }
    for name in ops.intersection(&listed) {
        failures.push(format!("{name} is in the registry and on the list of other functions"));
    }
    report("completeness", public.len() + table.len(), &failures);
}

#[test]
fn entries_have_titles_of_their_own_and_reasons() {
    let mut titles = BTreeSet::new();
    for entry in registry() {
        let title = entry.title();
        assert!(!entry.samples.is_empty(), "{title} has no sample");
        assert_ne!(entry.without_gradient, Some(""), "{title} has no reason");
        assert_ne!(entry.differs, Some(""), "{title} has no reason");
        assert!(titles.insert(title.clone()), "{title} is there twice");
    }
    assert!(NO_OPS.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn the_scanner_finds_functions_of_macros_and_their_types() {
    let text = "
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $keep:ident($($parameter:ident),+) $op:ident;)*) => {
        impl Tensor {$(
            pub fn $name(&self) -> Result<Self> { one() }
            pub fn $keep(&self, x: impl Fn(i32) -> i32) -> Result<&Self> { one() }
        )*}
    };
}
methods! {
    /// Documentation; with a semicolon.
    sum sum_keepdim(a) Sum;
    #[doc(alias = \"x\")]
    any any_keepdim(a, b) Any;
}
impl<const D: usize> Default for Options<D> { pub fn of(x: [u8; 2]) -> Self where Self: Sized { y() } }
pub fn free<T: Copy>(n: usize) -> Result<Tensor> { x() }
";
    let found: Vec<String> = sources::functions(text)
        .iter()
        .map(|f| format!("{:?} {} -> {}", f.owner.as_deref().unwrap_or("-"), f.name, f.output))
        .collect();
    assert_eq!(
        found,
        [
            "\"Tensor\" sum -> Result<Self>",
            "\"Tensor\" any -> Result<Self>",
            "\"Tensor\" sum_keepdim -> Result<&Self>",
            "\"Tensor\" any_keepdim -> Result<&Self>",
            "\"Options\" of -> Self",
            "\"-\" free -> Result<Tensor>",
        ]
    );
}
