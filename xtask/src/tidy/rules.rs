//! Rules about single files: header, length, left-over macros, environment variables.

use super::{Complaint, Source};

/// Lines a file may have.
const MOST_LINES: usize = 600;
/// Lines from which on we say so.
const MANY_LINES: usize = 400;

/// Macros that must not stay in a product.
const LEFT_OVER: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Crates whose locks a checker of schedules must know.
const CHECKED: &[&str] =
    &["crates/alloc/src/", "crates/stream/src/", "crates/runtime/src/", "crates/kernels/src/"];
/// What they take from `warpline-sync`. Other things of the standard library stop no thread.
const LOCKS: &[&str] = &["Mutex", "RwLock", "Condvar", "MutexGuard", "Barrier"];

pub(super) fn check(source: &Source, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    if source.in_src() && !has_header(text) {
        complaints.push(source.complaint(
            1,
            "header",
            "the file must begin with a `//!` line that says what it holds",
        ));
    }
    for (at, line) in source.lines.iter().enumerate() {
        for name in LEFT_OVER {
            if source.in_src() && starts_a_word(&line.code, name) {
                complaints.push(source.complaint(at + 1, "left-over", format!("`{name}`")));
            }
        }
        let checked = CHECKED.iter().any(|dir| source.path.starts_with(dir)) && !source.test[at];
        if checked && line.code.contains("std::sync") && LOCKS.iter().any(|l| line.has_word(l)) {
            let text = "a lock of the standard library's: take `warpline_sync`'s";
            complaints.push(source.complaint(at + 1, "locks", text));
        }
        for name in ["set_var", "remove_var"] {
            if !source.test[at] && line.has_word(name) {
                let text = format!("`{name}`: pass configuration as an argument");
                complaints.push(source.complaint(at + 1, "environment", text));
            }
        }
    }
    complaints
}

pub(super) fn length(path: &str, text: &str) -> Option<Complaint> {
    let lines = text.lines().count();
    (lines > MANY_LINES).then(|| Complaint {
        path: path.to_owned(),
        line: lines,
        rule: "length",
        text: format!("{lines} lines; at most {MOST_LINES}, better under {MANY_LINES}: split it"),
        warning: lines <= MOST_LINES,
    })
}

/// Whether the first line that says something is a module comment. Inner attributes may precede.
fn has_header(text: &str) -> bool {
    text.lines()
        .find(|line| !line.trim().is_empty() && !line.starts_with("#!["))
        .is_some_and(|line| line.starts_with("//!"))
}

fn starts_a_word(code: &str, name: &str) -> bool {
    code.match_indices(name)
        .any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        check(&Source::new(path, text), text).iter().map(|c| (c.line, c.rule)).collect()
    }

    #[test]
    fn a_source_file_needs_a_header() {
        assert_eq!(rules("crates/a/src/b.rs", "use x;\n"), [(1, "header")]);
        assert_eq!(rules("crates/a/src/b.rs", "// one\n//! two\n"), [(1, "header")]);
        assert_eq!(rules("crates/a/src/b.rs", ""), [(1, "header")]);
        assert_eq!(rules("crates/a/src/b.rs", "//! What.\nuse x;\n"), []);
        assert_eq!(rules("crates/a/src/b.rs", "#![no_std]\n\n//! What.\n"), []);
        assert_eq!(rules("crates/a/tests/b.rs", "use x;\n"), []);
    }

    #[test]
    fn left_over_macros_are_found_in_code_only() {
        let text = "//! A.\nfn f() { todo!() }\nfn g() { dbg!(1); unimplemented!(\"\") }\n";
        let found = [(2, "left-over"), (3, "left-over"), (3, "left-over")];
        assert_eq!(rules("crates/a/src/b.rs", text), found);
        let text = "//! todo!\n// dbg!\nfn f() { x(\"todo!\"); my_dbg!(1); }\n";
        assert_eq!(rules("crates/a/src/b.rs", text), []);
        assert_eq!(rules("crates/a/tests/b.rs", "fn f() { dbg!(1); }\n"), []);
    }

    #[test]
    fn only_tests_set_variables() {
        let text = "//! A.\nfn f() { std::env::set_var(a, b) }\n";
        assert_eq!(rules("crates/a/src/b.rs", text), [(2, "environment")]);
        assert_eq!(rules("crates/a/tests/b.rs", text), []);
        let text = "//! A.\n#[cfg(test)]\nmod tests {\n    fn f() { set_var(a, b) }\n}\n";
        assert_eq!(rules("crates/a/src/b.rs", text), []);
        let text = format!("{text}fn g() {{ remove_var(a) }}\n");
        assert_eq!(rules("crates/a/src/b.rs", &text), [(6, "environment")]);
    }

    #[test]
    fn locks_are_those_that_the_checker_knows() {
        let text = "//! A.\nuse std::sync::{Arc, Mutex};\nuse std::sync::Arc;\n";
        assert_eq!(rules("crates/alloc/src/b.rs", text), [(2, "locks")]);
        assert_eq!(rules("crates/cuda-sys-safe/src/b.rs", text), []);
        assert_eq!(rules("crates/alloc/tests/b.rs", text), []);
        let text = "//! A.\nuse warpline_sync::Mutex;\nuse std::sync::{Arc, PoisonError};\n";
        assert_eq!(rules("crates/alloc/src/b.rs", text), []);
    }

    #[test]
    fn long_files_warn_then_fail() {
        let found = |lines: usize| length("a.rs", &"x\n".repeat(lines)).map(|c| c.warning);
        assert_eq!(found(400), None);
        assert_eq!(found(401), Some(true));
        assert_eq!(found(600), Some(true));
        assert_eq!(found(601), Some(false));
    }
}
