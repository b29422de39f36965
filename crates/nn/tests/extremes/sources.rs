//! Finds the integer parameters of public functions, the integer options and the public integer fields, in the sources.

use std::path::Path;

use proc_macro2::TokenTree::{self, Group, Ident};
use proc_macro2::{Delimiter, TokenStream};

use super::parser::{self, Function, split_list};

/// Functions and types that need no row in the tables, each with the reason.
pub(crate) const ELSEWHERE: &[(&str, &str)] = &[
    ("manual_seed", "any seed is valid"),
    ("manual_seed_all", "any seed is valid"),
    ("seed", "any seed is valid"),
    ("SimulatedOptions::new", "the number of devices is that of `simulated`"),
    ("priority", "a priority, which is clamped; needs a GPU's stream"),
    ("group", "a number of a group, which the scheduler's constructor checks"),
    ("GraphedOptions", "`num_warmup_iters` is a number of runs, each of which the caller asks for"),
    ("exclusive_stream", "a priority, which is clamped; a row replaces the device"),
    ("LambdaLR::new", "the user's function takes the integer"),
    ("over", "takes memory of another owner"),
    ("sort_in_parts", "the number of pairs is clamped; a row replaces the dimension"),
    ("has_attention", "reads a device's properties"),
    ("has_few_queries", "reads a device's properties"),
    ("is_condition", "dtypes alone"),
    ("gradient", "indices of an op's own operands"),
    ("domain", "indices of an op's own operands"),
    ("uses", "indices of an op's own operands"),
    ("launches", "indices of an op's own operands"),
    ("widths", "a number of operands, from which it computes nothing"),
    ("is_rounded", "indices of an op's own operands"),
    ("saved", "indices of an op's own inputs"),
    ("needs", "indices of an op's own inputs"),
    ("sizes", "indices of an op's own inputs"),
    ("dtype", "indices of an op's own inputs"),
    ("get", "returns `None` for an index out of range"),
    ("Unflatten::new", "stores its arguments for `unflatten`, whose rows call it too"),
    ("Progress", "a report, which no function takes"),
    ("ParamState", "a state that an update rule keeps for itself"),
];

/// Types of parameters that contain integers.
const TYPES: [&str; 17] = [
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
    "CudaDeviceArg",
    "Scalar",
];

/// An integer that users can pass: a parameter of a function, an option that has a setter, or a public field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) file: String,
    /// The name by which the table lists the function. For an option or a field, the name of the type.
    pub(crate) owner: String,
    /// The position in the list of parameters, without `self`. `None` for an option or a field.
    pub(crate) position: Option<usize>,
    pub(crate) name: String,
}

/// Returns all integer parameters, options and fields of the public interface.
pub(crate) fn parameters() -> Vec<Parameter> {
    // Cargo runs tests in the folder of the package.
    let crates = Path::new("..");
    let mut found = Vec::new();
    for name in ["tensor", "kernels", "nn"] {
        for file in parser::files(&crates.join(name).join("src")) {
            let text = std::fs::read_to_string(&file).expect("a source");
            let shown = file.strip_prefix(crates).unwrap_or(&file).display().to_string();
            found.extend(in_text(&shown, &text));
        }
    }
    assert!(found.len() > 250, "the scanner found {} parameters", found.len());
    found
}

/// Returns a file's integer parameters, options and fields, except those of functions whose names a macro generates.
fn in_text(file: &str, text: &str) -> Vec<Parameter> {
    let mut found = Vec::new();
    for function in parser::functions(text).into_iter().filter(|f| !f.from_macro) {
        let all = split_list(&function.parameters);
        let all = all.into_iter().filter(|p| p.contains(':')).enumerate();
        let integers = integer_generics(&function.generics);
        let is_integer = |kind: &str| {
            words(kind).any(|word| TYPES.contains(&word) || integers.iter().any(|i| i == word))
        };
        let all = all.filter_map(|(position, parameter)| {
            let (name, kind) = parameter.split_once(':')?;
            is_integer(kind).then(|| (position, words(name).last().unwrap_or(name).to_owned()))
        });
        let all: Vec<(usize, String)> = all.collect();
        let Some(owner) = qualified(function) else { continue };
        found.extend(all.into_iter().map(|(position, name)| Parameter {
            file: file.to_owned(),
            owner: owner.clone(),
            position: Some(position),
            name,
        }));
    }
    let tokens: TokenStream = text.parse().expect("a Rust file");
    let mut add = |owner, name| {
        found.push(Parameter { file: file.to_owned(), owner, position: None, name });
    };
    options(tokens.clone(), &mut add);
    fields(tokens, &mut add);
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns the names of the type parameters that have an integer bound.
fn integer_generics(generics: &str) -> Vec<String> {
    let list = generics.trim_start_matches('<').trim_end_matches('>');
    let bounded = split_list(list).into_iter().filter_map(|one| one.split_once(':'));
    let integers = bounded.filter(|(_, bound)| words(bound).any(|word| TYPES.contains(&word)));
    integers.map(|(name, _)| name.to_owned()).collect()
}

/// Calls `found` with the type and the name of each integer option in calls of the macros that define options.
fn options(tokens: TokenStream, found: &mut impl FnMut(String, String)) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let Group(group) = token else { continue };
        let is_definition = match &tokens[..at] {
            [.., Ident(name), TokenTree::Punct(mark)] => {
                mark.as_char() == '!' && name.to_string().ends_with("options")
            }
            _ => false,
        };
        if !is_definition {
            options(group.stream(), found);
            continue;
        }
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        let name = tokens.windows(2).find_map(|pair| match pair {
            [Ident(name), Group(list)] if list.delimiter() == Delimiter::Bracket => Some(name),
            _ => None,
        });
        let (Some(name), Some(Group(fields))) = (name, tokens.last()) else { continue };
        let fields: Vec<TokenTree> = fields.stream().into_iter().collect();
        for field in fields.split(|token| is_mark(token, ';')) {
            let Some(colon) = field.iter().position(|token| is_mark(token, ':')) else { continue };
            let equals = field.iter().position(|token| is_mark(token, '='));
            let Some(Ident(option)) = field[..colon].last() else { continue };
            let kind = field[colon + 1..equals.unwrap_or(field.len())].iter();
            let argument = field.iter().skip_while(|token| !is_mark(token, ','));
            let kinds = parser::text(kind.chain(argument).cloned().collect());
            if words(&kinds).any(|word| TYPES.contains(&word)) {
                found(name.to_string(), option.to_string());
            }
        }
    }
}

/// Calls `found` with the type and the name of each public integer field of a public struct.
fn fields(tokens: TokenStream, found: &mut impl FnMut(String, String)) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match &tokens[at..] {
            [Ident(word), Ident(item), Ident(owner), rest @ ..]
                if word == "pub" && item == "struct" =>
            {
                let end = |token: &&TokenTree| matches!(token, Group(_)) || is_mark(token, ';');
                let Some(Group(body)) = rest.iter().find(end) else { continue };
                let body: Vec<TokenTree> = body.stream().into_iter().collect();
                let is_pub = |token: &TokenTree| matches!(token, Ident(word) if word == "pub");
                for field in body.split(is_pub).skip(1) {
                    let [Ident(name), colon, kind @ ..] = field else { continue };
                    let rest = parser::text(kind.iter().cloned().collect());
                    let kind = split_list(&rest).first().copied().unwrap_or_default();
                    if is_mark(colon, ':') && words(kind).any(|word| TYPES.contains(&word)) {
                        found(owner.to_string(), name.to_string());
                    }
                }
            }
            _ => {
                if let Group(group) = token {
                    fields(group.stream(), found);
                }
            }
        }
    }
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

/// Method names that several types share. In the table, the name of the type precedes them.
const SHARED: [&str; 3] = ["new", "set_epoch", "step_to"];

/// Returns the name by which the table lists a function. `None` if that name includes the name of the type, and a macro
/// generates the latter.
fn qualified(function: Function) -> Option<String> {
    match function.owner {
        Some(owner) if SHARED.contains(&function.name.as_str()) => {
            (!owner.is_empty()).then(|| format!("{owner}::{}", function.name))
        }
        _ => Some(function.name),
    }
}

#[test]
fn the_scanner_finds_integer_parameters_options_and_fields() {
    let text = "pub fn a(x: usize) {} pub fn b(y: f32) {}\n\
        impl T { pub fn c<D: X + IntoDim>(&self, f: impl Fn(u8) -> u8, dim: D, (n, m): (u64, u64)) {} }\n\
        fn d(n: usize) {}\n\
        crate::__options! { #[derive(Debug)] Options [] [] { /// An option.\n\
        eps: f64 = 1e-5, f64; width: Option<usize> = None, usize => Some; dim: isize = 1, impl IntoDim; } }\n\
        /// A struct.\npub struct S<'a> { /// A size.\npub sizes: [usize; 3], /// A name.\npub name: &'a str,\n\
        /// A value.\nvalue: i64, /// A number.\npub number: Option<Scalar>, other: u64 }";
    let found: Vec<String> = in_text("", text)
        .into_iter()
        .map(|p| format!("{} {:?} {}", p.owner, p.position, p.name))
        .collect();
    let parameters = ["a Some(0) x", "c Some(1) dim", "c Some(2) m"];
    let options = ["Options None width", "Options None dim"];
    let fields = ["S None sizes", "S None number"];
    assert_eq!(found, [&parameters[..], &options, &fields].concat());
}
