//! Finds the public functions with integer parameters in the sources.

use std::path::Path;

use super::parser::{self, Function};

/// Functions that are not in the table, each with the reason.
pub(crate) const ELSEWHERE: &[(&str, &str)] = &[
    ("manual_seed", "any seed is valid"),
    ("manual_seed_all", "any seed is valid"),
    ("seed", "any seed is valid"),
    ("simulated", "the number of devices is that of `simulated`"),
    ("SimulatedOptions::new", "the number of devices is that of `simulated`"),
    ("priority", "a priority, which is clamped; needs a GPU's stream"),
    ("TransformerEncoder::new", "copies as many layers as it is asked for"),
    ("group", "a number of a group, which the scheduler's constructor checks"),
    ("exclusive_stream", "a priority, which is clamped; needs a GPU's stream"),
    ("num_workers", "starts as many threads as it is asked for"),
    ("TrackedCommunicator::new", "the number of an operation that the caller enqueued"),
    ("LambdaLR::new", "the user's function takes the integer"),
    ("over", "takes memory of another owner"),
    ("has_attention", "reads a device's properties"),
    ("has_few_queries", "reads a device's properties"),
    ("is_condition", "dtypes alone"),
    ("gradient", "indices of an op's own operands"),
    ("domain", "indices of an op's own operands"),
    ("uses", "indices of an op's own operands"),
    ("launches", "indices of an op's own operands"),
    ("is_short", "a number of operands, from which it computes nothing"),
    ("widths", "a number of operands, from which it computes nothing"),
    ("is_rounded", "indices of an op's own operands"),
    ("saved", "indices of an op's own inputs"),
    ("needs", "indices of an op's own inputs"),
    ("sizes", "indices of an op's own inputs"),
    ("dtype", "indices of an op's own inputs"),
    ("device", "indices of an op's own inputs"),
    ("get", "returns `None` for an index out of range"),
    ("Unflatten::new", "stores its arguments for `unflatten`"),
];

/// Types of parameters that contain integers.
const TYPES: [&str; 15] = [
    "usize",
    "isize",
    "i64",
    "i32",
    "u64",
    "u32",
    "IntoShape",
    "IntoSizes",
    "IntoDims",
    "IntoDim",
    "Integer",
    "IndexRange",
    "IntoIndices",
    "PerDimension",
    "Window",
];

/// Returns the file and the name of each public function with integer parameters.
pub(crate) fn functions() -> Vec<(String, String)> {
    // Cargo runs tests in the folder of the package.
    let crates = Path::new("..");
    let mut found = Vec::new();
    for name in ["tensor", "kernels", "nn"] {
        for file in parser::files(&crates.join(name).join("src")) {
            let text = std::fs::read_to_string(&file).expect("a source");
            let shown = file.strip_prefix(crates).unwrap_or(&file).display().to_string();
            found.extend(in_text(&text).into_iter().map(|name| (shown.clone(), name)));
        }
    }
    assert!(found.len() > 150, "the scanner found {} functions", found.len());
    found
}

/// Returns the names of a file's public functions with integer parameters, except names that macros generate.
fn in_text(text: &str) -> Vec<String> {
    let has_integer = |function: &Function| {
        let mut words = function.parameters.split(|c: char| !c.is_alphanumeric());
        words.any(|word| TYPES.contains(&word))
    };
    let functions = parser::functions(text).into_iter();
    functions.filter(|f| !f.from_macro && has_integer(f)).filter_map(qualified).collect()
}

/// Method names that several types share. In the table, the name of the type precedes them.
const SHARED: [&str; 3] = ["new", "set_epoch", "step_to"];

/// Returns the name of a function in the table. `None` for a method of a type whose name a macro generates.
fn qualified(function: Function) -> Option<String> {
    match function.owner {
        Some(owner) if SHARED.contains(&function.name.as_str()) => {
            (!owner.is_empty()).then(|| format!("{owner}::{}", function.name))
        }
        _ => Some(function.name),
    }
}

#[test]
fn the_scanner_finds_functions_by_their_parameters() {
    let text = "pub fn a(x: usize) {} pub fn b(y: f32) {}\npub fn c<T: X>(\n dims: impl IntoDims,\n) {} fn d(n: usize) {}";
    assert_eq!(in_text(text), ["a", "c"]);
}
