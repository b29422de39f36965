//! Finds the public functions with integer parameters in the sources.

use std::path::{Path, PathBuf};

/// Functions that the table does not call, each with the reason.
pub(crate) const ELSEWHERE: &[(&str, &str)] = &[
    ("manual_seed", "any seed is valid"),
    ("manual_seed_all", "any seed is valid"),
    ("seed", "any seed is valid"),
    ("simulated_with", "the number of devices is that of `simulated`"),
    ("exclusive_stream", "a priority, which is clamped; needs a GPU's stream"),
    ("num_workers", "starts as many threads as it is asked for"),
    ("Watched::new", "the number of an operation that the caller enqueued"),
    ("LambdaLR::new", "the user's function takes the integer"),
    ("over", "takes memory of another owner"),
    ("has_attention", "reads a device's properties"),
    ("is_condition", "dtypes alone"),
    ("gradient", "indices of an op's own operands"),
    ("domain", "indices of an op's own operands"),
    ("uses", "indices of an op's own operands"),
    ("saved", "indices of an op's own inputs"),
    ("needs", "indices of an op's own inputs"),
    ("sizes", "indices of an op's own inputs"),
    ("dtype", "indices of an op's own inputs"),
    ("device", "indices of an op's own inputs"),
];

/// Types that hold integers which a user gives.
const TYPES: [&str; 13] = [
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
    "IndexRange",
    "IntoIndices",
    "Window",
];

/// Returns the functions, each with its file.
pub(crate) fn functions() -> Vec<(String, String)> {
    // Cargo runs tests in the package's folder.
    let crates = Path::new("..");
    let mut found = Vec::new();
    for name in ["tensor", "kernels", "nn"] {
        for file in files(&crates.join(name).join("src")) {
            let text = std::fs::read_to_string(&file).expect("a source");
            let shown = file.strip_prefix(crates).unwrap_or(&file).display().to_string();
            found.extend(in_text(&text).into_iter().map(|name| (shown.clone(), name)));
        }
    }
    assert!(found.len() > 150, "the scanner found {} functions", found.len());
    found
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            all.extend(files(&path));
        } else if name.ends_with(".rs") && !name.contains("test") {
            all.push(path);
        }
    }
    all.sort();
    all
}

/// Names of a file's public functions with an integer, but for those that macros name.
fn in_text(text: &str) -> Vec<String> {
    let public = text.match_indices("pub fn ").chain(text.match_indices("pub const fn "));
    let named = public.filter_map(|(at, head)| {
        let rest = &text[at + head.len()..];
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let open = rest.find('(')?;
        let mut depth = 0;
        let end = rest[open..].find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        })?;
        let parameters = &rest[open..open + end];
        let words = parameters.split(|c: char| !c.is_alphanumeric());
        let has = words.into_iter().any(|word| TYPES.contains(&word));
        (has && !name.is_empty()).then(|| qualified(&text[..at], name)).flatten()
    });
    named.collect()
}

/// Names that several types have; they stand in the table with their type's.
const SHARED: [&str; 6] =
    ["new", "with_settings", "with_bias", "with_padding", "set_epoch", "step_to"];

/// Returns a function's name in the table; `None` for one of a type that a macro names.
fn qualified(before: &str, name: String) -> Option<String> {
    if !SHARED.contains(&name.as_str()) {
        return Some(name);
    }
    let is_impl = |line: &&str| line.trim_start().starts_with("impl");
    let head = before.lines().rev().find(is_impl)?.trim_start().strip_prefix("impl")?;
    let head = head.trim_start_matches(['<', '\'', ' ']);
    let of = head.find("> ").filter(|at| *at < 4).map_or(head, |at| &head[at + 2..]);
    let of: String = of.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!of.is_empty()).then(|| format!("{of}::{name}"))
}

#[test]
fn the_scanner_finds_functions_by_their_parameters() {
    let text = "pub fn a(x: usize) {} pub fn b(y: f32) {}\npub fn c<T: X>(\n dims: impl IntoDims,\n) {} fn d(n: usize) {}";
    assert_eq!(in_text(text), ["a", "c"]);
}
