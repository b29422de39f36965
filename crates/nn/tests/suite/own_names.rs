//! Tests that the guide lists every public name that PyTorch does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::sources;

/// The names of PyTorch's functions, methods, classes and constants: all definitions without a leading underscore in
/// `torch` (2.11), its type stubs, `torch.amp`, `autograd`, `backends.cuda` and `cudnn`, `cuda`, `distributed`,
/// `linalg`, `multiprocessing`, `nn`, `optim`, `special` and `utils.data`, and the hooks of `DistributedDataParallel`.
const PYTORCH: &str = include_str!("../names/pytorch.txt");

/// Public names that users do not need, so the guide does not list them. Each has its reason.
const HIDDEN: &[(&str, &str)] = &[
    ("Ambient", MARKER),
    ("Anneal", ALIASED),
    ("AsDyn", MACROS),
    ("Chained", ALIASED),
    ("Compare", MACROS),
    ("Called", CRATES),
    ("Constant", ALIASED),
    ("Cosine", ALIASED),
    ("DeferredDrops", CRATES),
    ("FieldRef", MACROS),
    ("FormulaCall", MACROS),
    ("FormulaNumber", MACROS),
    ("FormulaOperand", MACROS),
    ("HookList", PRIVATE),
    ("Lambdas", ALIASED),
    ("Line", ALIASED),
    ("Milestones", ALIASED),
    ("Modes", PRIVATE),
    ("NoModule", MACROS),
    ("NumberTerm", MACROS),
    ("Numeric", MACROS),
    ("OtherTerm", MACROS),
    ("Powers", ALIASED),
    ("Reclaimed", CRATES),
    ("Steps", ALIASED),
    ("TensorTerm", MACROS),
    ("Term", MACROS),
    ("Unchecked", PRIVATE),
    ("UnwrapValue", MACROS),
    ("as_dyn", MACROS),
    ("as_dyn_mut", MACROS),
    ("assert_module", MACROS),
    ("begin", CRATES),
    ("check_variables", TESTS),
    ("current", PRIVATE),
    ("delete", PRIVATE),
    ("from_variables", TESTS),
    ("here", CRATES),
    ("is_making_graphed_callables", CRATES),
    ("of", CRATES),
    ("operand", MACROS),
    ("show", MACROS),
    ("show_mut", MACROS),
    ("tensor_of_literals", MACROS),
    ("to_device", FOREIGN),
    ("to_dtype", FOREIGN),
    ("unwrap_value", MACROS),
    ("warn", CRATES),
    ("within", PRIVATE),
];

const MACROS: &str = "only the code of macros calls it";
const ALIASED: &str = "public names are aliases such as `StepLR`";
const PRIVATE: &str = "its module is private";
const MARKER: &str = "keeps implementations of two crates apart";
const TESTS: &str = "hidden; only tests use it";
const CRATES: &str = "hidden; only the other crates of this workspace use it";
const FOREIGN: &str = "does not compile, and names the right call";

/// Returns the public names of the sources, with a file of each.
fn public() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    // Cargo runs tests in the package's folder.
    for name in ["tensor", "nn", "parallel"] {
        for file in sources::files(&Path::new("..").join(name).join("src")) {
            let text = std::fs::read_to_string(&file).expect("a source");
            let functions = sources::functions(&text).into_iter().map(|function| function.name);
            // The guide does not list the conversions of arguments.
            let methods = sources::trait_methods(&text).into_iter();
            let methods = methods.filter(|name| !name.starts_with("into_"));
            let names = functions.chain(methods).chain(sources::exports(&text)).chain(types(&text));
            let file = file.display().to_string();
            found.extend(names.map(|name| (name, file.clone())));
        }
    }
    assert!(found.len() > 900, "the scanner found {} names", found.len());
    found
}

/// Returns the names of the public types in a file's text.
fn types(text: &str) -> impl Iterator<Item = String> {
    let heads = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
    let rests = text
        .lines()
        .filter_map(move |line| heads.iter().find_map(|head| line.trim().strip_prefix(head)));
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    rests
        .map(move |rest| rest.chars().take_while(is_word).collect())
        .filter(|name: &String| !name.is_empty())
}

#[test]
fn the_guide_lists_every_name_that_pytorch_does_not_have() {
    let page = std::fs::read_to_string("../../docs/from-pytorch.md").expect("the guide");
    let section = page.split("## Names that are only here").nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("the section");
    let section = section.replace("(`…Options`)", "").replace("(`into_…`)", "");
    let mut listed = BTreeSet::new();
    for name in section.split('`').skip(1).step_by(2) {
        assert!(listed.insert(name), "{name} is there twice");
    }
    let pytorch: BTreeSet<&str> = PYTORCH.lines().collect();
    assert!(["relu_", "DataLoader", "all_reduce"].iter().all(|name| pytorch.contains(name)));
    let public = public();
    let is_hidden = |name: &str| HIDDEN.iter().any(|(hidden, _)| *hidden == name);
    let mut failures = Vec::new();
    for (name, file) in &public {
        let is_ours = !pytorch.contains(&name[..]) && !name.ends_with("Options");
        if is_ours && !is_hidden(name) && !listed.contains(&name[..]) {
            failures.push(format!(
                "{name} of {file} is not in `Names that are only here` of docs/from-pytorch.md"
            ));
        }
    }
    for name in &listed {
        if !public.contains_key(*name) {
            failures.push(format!("there is no {name}"));
        } else if pytorch.contains(name) || is_hidden(name) {
            failures.push(format!("{name} should not be on the page"));
        }
    }
    for (name, _) in HIDDEN.iter().filter(|(name, _)| !public.contains_key(*name)) {
        failures.push(format!("there is no {name}, which HIDDEN lists"));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_scanner_finds_methods_of_traits_and_exports() {
    let text = "
pub trait Public<T>: Clone where T: Copy {
    const N: usize;
    /// A hidden state.
    fn first(&self, f: fn(T) -> T);
    #[doc(hidden)]
    fn second(&self) { one() }
    #[must_use]
    fn third() -> Self { two() }
}
trait Private { fn fourth(); }
pub use a::{b, c::{D, self as e}, f as g};
pub use h::*;
pub use i as _;
pub(crate) use j::k;
macro_rules! m { () => { pub use l::M; } }
";
    assert_eq!(sources::trait_methods(text), ["first", "third"]);
    assert_eq!(sources::exports(text), ["b", "D", "e", "g", "M"]);
}

/// The lines of a block, without blanks at both ends.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_guide_shows_parts_of_the_ports() {
    let page = std::fs::read_to_string("../../docs/from-pytorch.md").expect("the guide");
    let section = page.split("## A model and a closure").nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("the section");
    let shown: Vec<&str> = section
        .split("```rust,ignore\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("a block"))
        .collect();
    let vae = include_str!("../../examples/ports/vae.rs");
    let sequence = include_str!("../../examples/ports/time_sequence_prediction.rs");
    let gat = include_str!("../../examples/ports/gat.rs");
    assert_eq!(shown.len(), 3);
    for (block, program) in shown.into_iter().zip([vae, sequence, gat]) {
        let (block, program) = (lines(block), lines(program));
        // The closing brace of the loop comes later in the program.
        let block = block.strip_suffix(&["}"]).unwrap_or(&block);
        assert!(program.windows(block.len()).any(|part| part == block), "{block:#?}");
    }
}
