//! Selection of the functions in `functions.cuh` that an op's expression calls. A change of a
//! function thereby changes only the GPU code of its callers.

use std::collections::HashSet;

/// Text of `functions.cuh`. Empty lines separate its definitions. Each use of a macro also counts as a definition.
const FILE: &str = include_str!("functions.cuh");

/// A definition in the file.
struct Definition {
    text: String,
    /// Names that the definition declares.
    names: Vec<&'static str>,
}

fn definitions() -> Vec<Definition> {
    let mut definitions = Vec::new();
    for text in FILE.split("\n\n") {
        let mut rest = String::new();
        let (mut names, mut uses) = (Vec::new(), Vec::new());
        for line in text.lines().filter(|line| !line.starts_with("//")) {
            if let Some(name) = declared_by_macro(line) {
                uses.push(Definition { text: format!("{line}\n"), names: vec![name] });
                continue;
            }
            names.extend(declared(line));
            rest += line;
            rest.push('\n');
        }
        definitions.push(Definition { text: rest, names });
        definitions.extend(uses);
    }
    definitions
}

/// Returns the name that a line `FUNCTION(name, …)` declares.
fn declared_by_macro(line: &'static str) -> Option<&'static str> {
    let (name, arguments) = line.split_once('(')?;
    let is_macro = name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    is_macro.then(|| arguments.split([',', ')']).next())?
}

/// Returns the name that a line declares with `#define NAME(…)` or as a function.
fn declared(line: &'static str) -> Option<&'static str> {
    if let Some(rest) = line.strip_prefix("#define ") {
        return rest.split('(').next();
    }
    let starts = ["__device__", "template"].iter().any(|start| line.starts_with(start));
    let (head, _) = line.split_once('(')?;
    starts.then(|| words(head).last())?
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns the definitions that an expression needs, in the order of the file.
pub(super) fn called_by(expression: &str) -> String {
    let definitions = definitions();
    let mut needed = vec![false; definitions.len()];
    let mut called: HashSet<&str> = words(expression).collect();
    loop {
        let next = (0..definitions.len())
            .find(|&k| !needed[k] && definitions[k].names.iter().any(|name| called.contains(name)));
        let Some(next) = next else { break };
        needed[next] = true;
        called.extend(words(&definitions[next].text));
    }
    let texts = definitions.iter().zip(needed).filter(|(_, needed)| *needed);
    texts.map(|(definition, _)| definition.text.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_called_function_comes_with_the_functions_that_it_calls() {
        assert_eq!(called_by("x + y"), "");
        let gelu = called_by("gelu_of(x)");
        for definition in ["#define FUNCTION(", "FUNCTION(erf_of, erf)", "C gelu_of(C x)"] {
            assert!(gelu.contains(definition), "{definition} is not in\n{gelu}");
        }
        assert!(!gelu.contains("tanh_of"), "{gelu}");
        assert_eq!(gelu.matches("FUNCTION(").count(), 2, "{gelu}");
    }
}
