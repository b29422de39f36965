//! Rules for single files: header, length and locks.

use proc_macro2::Ident;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, Macro, Meta, Path, UseTree};

use super::{Complaint, SourceFile, source_file};

/// Maximum number of lines of a file.
const MAX_LINES: usize = 600;
/// Number of lines above which a file gets a warning.
const WARNING_LINES: usize = 400;

/// Crates whose code runs in shuttle's tests of thread schedules. Shuttle must control all locks of these crates.
const SHUTTLE_CRATES: &[&str] =
    &["crates/alloc/src/", "crates/stream/src/", "crates/runtime/src/", "crates/kernels/src/"];
/// Types that block a thread. The crates must use those of `warpline-sync`.
const BLOCKING_TYPES: &[&str] = &["Mutex", "RwLock", "Condvar", "MutexGuard", "Barrier"];

pub(super) fn check(source: &SourceFile) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    if source.in_src() && !has_header(source) {
        let text = "the file must begin with a `//!` comment that describes the module";
        complaints.push(source.complaint(1, "header", text));
    }
    if SHUTTLE_CRATES.iter().any(|dir| source.path.starts_with(dir)) && !source.is_test() {
        let mut locks = LockVisitor::default();
        locks.visit_file(&source.file);
        let text = "use the lock of `warpline_sync` instead of the standard library's";
        complaints.extend(locks.lines.iter().map(|line| source.complaint(*line, "locks", text)));
    }
    complaints
}

pub(super) fn length(path: &str, text: &str) -> Option<Complaint> {
    let lines = text.lines().count();
    (lines > WARNING_LINES).then(|| Complaint {
        path: path.to_owned(),
        line: lines,
        rule: "length",
        text: format!(
            "the file has {lines} lines; split it (at most {MAX_LINES}, better {WARNING_LINES})"
        ),
        warning: lines <= MAX_LINES,
    })
}

/// Returns whether the file begins with a module comment. Other inner attributes may precede it.
fn has_header(source: &SourceFile) -> bool {
    let attributes = &source.file.attrs;
    let before = attributes.first().map_or(0, |first| first.span().start().line - 1);
    attributes.iter().any(|attribute| attribute.path().is_ident("doc"))
        && source.text.lines().take(before).all(|line| line.trim().is_empty())
}

/// Lines outside tests that name a lock of the standard library.
#[derive(Debug, Default)]
struct LockVisitor {
    lines: Vec<usize>,
}

impl LockVisitor {
    /// Visits the names that a `use` imports from the module `path`.
    fn import(&mut self, path: &[&Ident], tree: &UseTree) {
        match tree {
            UseTree::Path(module) => self.import(&[path, &[&module.ident]].concat(), &module.tree),
            UseTree::Name(item) => self.name(&[path, &[&item.ident]].concat()),
            UseTree::Rename(item) => self.name(&[path, &[&item.ident]].concat()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(path, tree)),
            UseTree::Glob(_) => {}
        }
    }

    fn name(&mut self, path: &[&Ident]) {
        if let [root, module, item, ..] = path
            && *root == "std"
            && *module == "sync"
            && BLOCKING_TYPES.iter().any(|lock| *item == lock)
        {
            self.lines.push(item.span().start().line);
        }
    }
}

impl<'ast> Visit<'ast> for LockVisitor {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(is_test_only) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast Path) {
        self.name(&path.segments.iter().map(|segment| &segment.ident).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let names = source_file::idents(call.tokens.clone());
        names.windows(3).for_each(|path| self.name(&path.iter().collect::<Vec<_>>()));
    }
}

/// Returns whether an attribute is `#[cfg(test)]` or `#[cfg(all(test, …))]`.
pub(super) fn is_test_only(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    let names = source_file::idents(list.tokens.clone());
    let all = usize::from(names.first().is_some_and(|name| name == "all"));
    list.path.is_ident("cfg") && names.get(all).is_some_and(|name| name == "test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        check(&SourceFile::new(path, text).unwrap()).iter().map(|c| (c.line, c.rule)).collect()
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
    fn locks_of_the_standard_library_are_refused_in_shuttle_crates() {
        let text = "//! A.\nuse std::sync::{Arc, Mutex};\nuse std::sync::Arc;\n";
        assert_eq!(rules("crates/alloc/src/b.rs", text), [(2, "locks")]);
        assert_eq!(rules("crates/cuda-sys-safe/src/b.rs", text), []);
        assert_eq!(rules("crates/alloc/tests/b.rs", text), []);
        let text = "//! A.\nuse warpline_sync::Mutex;\nuse std::sync::{Arc, PoisonError};\n";
        assert_eq!(rules("crates/alloc/src/b.rs", text), []);
    }

    #[test]
    fn locks_are_found_in_imports_paths_and_macros() {
        let found = |text: &str| rules("crates/alloc/src/b.rs", &format!("//! A.\n{text}\n"));
        assert_eq!(found("use std::{\nsync::{Mutex as M, Condvar},\n};"), [(3, "locks"); 2]);
        assert_eq!(found("fn f(a: &std::sync::RwLock<u8>) {}"), [(2, "locks")]);
        assert_eq!(found("fn f() { g::<std::sync::Barrier>(std::sync::Mutex::new(1)); }").len(), 2);
        assert_eq!(found("thread_local! { static A: std::sync::Mutex<u8> = b(); }").len(), 1);
        assert_eq!(found("// std::sync::Mutex\nconst A: &str = \"std::sync::Mutex\";"), []);
    }

    #[test]
    fn tests_may_use_locks_of_the_standard_library() {
        let text = "//! A.\n#[cfg(test)]\nmod tests {\n    use std::sync::Mutex;\n}\n";
        assert_eq!(rules("crates/alloc/src/b.rs", text), []);
        assert_eq!(rules("crates/alloc/src/b.rs", &text.replace("test)", "all(test, unix))")), []);
        for attribute in ["cfg(not(test))", "cfg(any(test, unix))"] {
            let text = text.replace("cfg(test)", attribute);
            assert_eq!(rules("crates/alloc/src/b.rs", &text), [(4, "locks")]);
        }
        let text = format!("{text}use std::sync::Mutex;\n");
        assert_eq!(rules("crates/alloc/src/b.rs", &text), [(6, "locks")]);
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
