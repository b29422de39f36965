//! Extraction of a single kernel from a module's PTX.

/// Returns the part of a variant's PTX that one kernel needs, without the other kernels and the
/// functions that only they call. The driver then compiles only kernels that are launched.
#[must_use]
pub fn single(ptx: &str, kernel: &str) -> String {
    let mut parts: Vec<&str> = parts(ptx);
    parts.retain(|part| named(part, ".entry ").is_none_or(|name| name == kernel));
    // Repeat, because a removed function may have been the only caller of another. One pass in
    // order is not enough: a function may be declared before its callers and defined after them.
    loop {
        let names: Vec<Option<&str>> = parts.iter().map(|part| function(part)).collect();
        let is_called = |name: &str| {
            let others = parts.iter().zip(&names).filter(|(_, other)| **other != Some(name));
            others.into_iter().any(|(part, _)| part.contains(name))
        };
        let keep: Vec<bool> = names.iter().map(|name| name.is_none_or(is_called)).collect();
        if keep.iter().all(|keep| *keep) {
            return parts.concat();
        }
        let mut keep = keep.into_iter();
        parts.retain(|_| keep.next().unwrap_or(true));
    }
}

/// Splits PTX into kernels, functions, and the text between them.
fn parts(ptx: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), ptx);
    let mut end = 0;
    for line in ptx.split_inclusive('\n') {
        end += line.len();
        let begins = line.starts_with(".visible .entry ") || line.starts_with(".func ");
        if begins && end > line.len() {
            let (before, after) = rest.split_at(end - line.len());
            parts.push(before);
            (rest, end) = (after, line.len());
        }
        // Inner blocks are indented, so an unindented brace ends a definition. A declaration ends
        // with a semicolon on a line of its own.
        if matches!(line.trim_end(), "}" | ";") || line.ends_with("{ ret; }\n") {
            let (part, after) = rest.split_at(end);
            parts.push(part);
            (rest, end) = (after, 0);
        }
    }
    parts.push(rest);
    parts
}

/// Returns the text after `word` in a part's first line, up to a parenthesis.
fn named<'a>(part: &'a str, word: &str) -> Option<&'a str> {
    Some(part.lines().next()?.split_once(word)?.1.split('(').next()?.trim())
}

/// Returns the name of a function. In PTX, the name follows the return type, if there is one.
fn function(part: &str) -> Option<&str> {
    let head = part.strip_prefix(".func ")?.trim_start();
    let name = if head.starts_with('(') { head.split_once(')')?.1 } else { head };
    name.split(['(', ' ', '\n']).find(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_kernels_and_their_functions_are_left_out() {
        let of = |name: &str, calls: &str| {
            format!(
                ".visible .entry {name}(\n\t.param .u64 {name}_param_0\n)\n{{\n\t{{\n\tcall.uni (r), \
                 {calls},\n\t}}\n\tret;\n}}\n"
            )
        };
        let function = |name: &str, calls: &str| {
            format!(
                ".func  (.param .b32 r) {name}(\n\t.param .b32 x\n)\n{{\n\tcall {calls};\n\tret;\n}}\n"
            )
        };
        let head = ".version 8.0\n.target sm_75\n";
        let table = ".global .u8 table[2] = {1, 2};\n";
        let plain = ".func third(\n\t.param .b32 x\n)\n{\n\tret;\n}\n";
        let declared = ".func  (.param .b32 r) first\n(\n\t.param .b32 x\n)\n;\n";
        let (f, g) = (function("first", "third"), function("second", "none"));
        let (a, b) = (of("a", "first"), of("a_flat", "second"));
        let ptx = [head, declared, table, &a, plain, &f, &g, &b].concat();
        assert_eq!(single(&ptx, "a"), [head, declared, table, &a, plain, &f].concat());
        assert_eq!(single(&ptx, "a_flat"), [head, table, &g, &b].concat());
        let names = ".visible .entry b() { ret; }\n.visible .entry c() { ret; }\n";
        assert_eq!(single(names, "c"), ".visible .entry c() { ret; }\n");
    }
}
