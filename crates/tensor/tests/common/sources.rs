//! A parser of the public functions in a crate's sources, including functions that macros declare.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// A public function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The type of the `impl` block, empty if a macro's argument names the type. `None` for a free
    /// function.
    pub(crate) owner: Option<String>,
    pub(crate) name: String,
    /// The text between the parentheses.
    pub(crate) parameters: String,
    /// The text of the returned type. Empty for `()`.
    pub(crate) output: String,
    /// Whether the name comes from the arguments of a macro call.
    pub(crate) from_macro: bool,
}

/// Returns the Rust files of a folder, sorted, without test files.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
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

/// Returns the public functions of a file's text.
pub(crate) fn functions(text: &str) -> Vec<Function> {
    let text = without_comments(text);
    let (impls, macros) = (impls(&text), macros(&text));
    let heads = ["pub fn ", "pub const fn "];
    let mut found = Vec::new();
    for (at, head) in heads.iter().flat_map(|head| text.match_indices(head)) {
        let rest = &text[at + head.len()..];
        let word_end = rest.find(|c| !is_word(c) && c != '$').unwrap_or(rest.len());
        let (word, rest) = rest.split_at(word_end);
        let Some((parameters, output)) = signature(rest) else { continue };
        let innermost = impls.iter().rfind(|(range, _)| range.contains(&at));
        let function = |name: &str, from_macro| Function {
            owner: innermost.map(|(_, owner)| owner.clone()),
            name: name.to_owned(),
            parameters: parameters.to_owned(),
            output: output.to_owned(),
            from_macro,
        };
        match word.strip_prefix('$') {
            None => found.push((at, function(word, false))),
            Some(variable) => {
                let Some(rules) = macros.iter().find(|rules| rules.body.contains(&at)) else {
                    continue;
                };
                found.extend(rules.names(&text, variable).map(|name| (at, function(name, true))));
            }
        }
    }
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, function)| function).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn without_comments(text: &str) -> String {
    let code = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    code.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the range between the bracket at the start of `from` and the closing bracket.
fn group(text: &str, from: usize) -> Option<Range<usize>> {
    let mut depth = 0;
    let end = text[from..].find(|c| {
        depth += i32::from(matches!(c, '(' | '{' | '[')) - i32::from(matches!(c, ')' | '}' | ']'));
        depth == 0
    })?;
    Some(from + 1..from + end)
}

/// Splits the text after a function's name into the parameters and the returned type.
fn signature(rest: &str) -> Option<(&str, &str)> {
    let parameters = group(rest, rest.find('(')?)?;
    let behind = &rest[parameters.end + 1..];
    let end = behind.find(['{', ';']).unwrap_or(behind.len());
    let output = behind[..end].split("where").next().unwrap_or_default().trim();
    Some((&rest[parameters], output.strip_prefix("->").unwrap_or_default().trim()))
}

/// Returns each `impl` block with the name of its type.
fn impls(text: &str) -> Vec<(Range<usize>, String)> {
    let starts = text.match_indices("impl").filter(|(at, _)| {
        let line = text[..*at].rfind('\n').map_or(0, |end| end + 1);
        text[line..*at].trim().is_empty()
    });
    let blocks = starts.filter_map(|(at, word)| {
        let open = at + text[at..].find('{')?;
        let mut head = text[at + word.len()..open].trim();
        if head.starts_with('<') {
            let mut depth = 0;
            let end = head.find(|c| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth == 0
            })?;
            head = &head[end + 1..];
        }
        let owner = head.split_once(" for ").map_or(head, |(_, owner)| owner).trim();
        let owner: String = owner.chars().take_while(|c| is_word(*c)).collect();
        Some((group(text, open)?, owner))
    });
    blocks.collect()
}

/// A macro that takes entries of names, each closed by a semicolon.
struct Rules<'a> {
    name: &'a str,
    body: Range<usize>,
    /// The matcher's variables for identifiers, in order.
    variables: Vec<&'a str>,
}

fn macros(text: &str) -> Vec<Rules<'_>> {
    let found = text.match_indices("macro_rules! ").filter_map(|(at, word)| {
        let from = at + word.len();
        let name = &text[from..from + text[from..].find(|c| !is_word(c))?];
        let body = group(text, from + text[from..].find('{')?)?;
        let matcher = &text[group(text, body.start + text[body.clone()].find('(')?)?];
        let variables = matcher.split('$').filter_map(|part| part.split_once(":ident"));
        let variables = variables.map(|(name, _)| name).collect();
        Some(Rules { name, body, variables })
    });
    found.collect()
}

impl Rules<'_> {
    /// Returns the values of a variable in all calls of the macro in a file.
    fn names<'a>(&self, text: &'a str, variable: &str) -> impl Iterator<Item = &'a str> {
        let place = self.variables.iter().position(|name| *name == variable);
        let call = format!("\n{}! {{", self.name);
        let starts: Vec<usize> =
            text.match_indices(&call).map(|(at, call)| at + call.len()).collect();
        let bodies = starts.into_iter().filter_map(|at| Some(&text[group(text, at - 1)?]));
        let entries = bodies.flat_map(|body| body.split(';'));
        entries.filter_map(move |entry| {
            let entry = entry.trim();
            // Attributes come before the names.
            let names = entry.rfind(']').filter(|_| entry.starts_with('#'));
            let names = names.map_or(entry, |end| &entry[end + 1..]);
            let end = names.find(|c: char| !is_word(c) && !c.is_whitespace());
            names[..end.unwrap_or(names.len())].split_whitespace().nth(place?)
        })
    }
}
