//! Rules for `unsafe`: its allowed places, and the `// SAFETY:` comment above each use.

use std::mem;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ExprUnsafe, ItemImpl, ItemStatic, Meta, Stmt};

use super::{Complaint, SourceFile};

/// The only files and folders below a crate's `src` that may contain `unsafe`, each with the reason.
pub(super) const UNSAFE_ALLOWED: &[(&str, &str)] = &[
    ("crates/cuda-sys-safe/src/", "the layer that calls CUDA"),
    ("crates/runtime/src/launch/", "launches that pass raw addresses to kernels"),
    ("crates/runtime/src/graph/mod.rs", "graph replays that use memory kept by the graph"),
    ("crates/runtime/src/host/", "host views of storages, under the storages' locks"),
    ("crates/runtime/src/storage/", "data that locks guard and threads share"),
    ("crates/runtime/src/semaphore/mod.rs", "semaphore values that streams write and wait for"),
    ("crates/runtime/src/testing.rs", "test access to the bytes of tensors"),
    (
        "crates/runtime/src/graph/conditional.rs",
        "the declared kernel that sets a graph's condition",
    ),
    (
        "crates/runtime/src/graph/philox.rs",
        "the declared kernel that sets the random generator's offset",
    ),
    ("crates/runtime/src/iter/", "declarations and launches of kernels over elements"),
    ("crates/runtime/src/module/cuda_type.rs", "kernel parameters with a const generic"),
    // A family declares its kernels, whose launches are then safe. CPU implementations work on raw operands.
    ("crates/kernels/src/attention/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/cat/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/collective/", "calls of collectives"),
    ("crates/kernels/src/conv/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/copy/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/elementwise/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/fill/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/indexing/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/kv_cache/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/loss/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/matmul/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/normalization/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/optim/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/pool/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/random/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/reduce/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/resample/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/rotary/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/scan/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/scatter/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/softmax/", "declared kernels and CPU implementations"),
    ("crates/kernels/src/sort/", "declared kernels and CPU implementations"),
    ("crates/alloc/examples/cudarc/src/", "a separate project: its backend, launches and copies"),
    ("tests/parsers/src/peak.rs", "an allocator that measures memory"),
    ("tests/custom-op/src/", "an op of another crate: its declared kernel and CPU implementation"),
];

/// Crate roots that must forbid `unsafe`.
const SAFE_CRATES: &[&str] = &[
    "crates/sync/src/lib.rs",
    "crates/types/src/lib.rs",
    "crates/files/src/lib.rs",
    "crates/alloc/src/lib.rs",
    "crates/stream/src/lib.rs",
    "crates/macros/src/lib.rs",
    "crates/tensor/src/lib.rs",
    "crates/nn/src/lib.rs",
    "crates/parallel/src/lib.rs",
    "xtask/src/main.rs",
];

pub(super) fn check(source: &SourceFile) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    if SAFE_CRATES.contains(&source.path.as_str()) && !source.file.attrs.iter().any(forbids_unsafe)
    {
        let text = "the crate must have `#![forbid(unsafe_code)]`";
        complaints.push(source.complaint(1, "forbid-unsafe", text));
    }
    if source.in_src() && allowance(&source.path).is_none() {
        let text = "`unsafe` is allowed only in the files and folders of UNSAFE_ALLOWED";
        let lines = source.lines_with("unsafe");
        complaints.extend(lines.map(|line| source.complaint(line, "unsafe", text)));
    }
    let text = source.text.lines().collect();
    let mut undocumented = UndocumentedUnsafe { text, statement: 1, found: Vec::new() };
    undocumented.visit_file(&source.file);
    let text = "the `unsafe` has no `// SAFETY:` comment directly above it";
    let lines = undocumented.found.into_iter();
    complaints.extend(lines.map(|line| source.complaint(line, "safety", text)));
    complaints
}

pub(super) fn has_unsafe(source: &SourceFile) -> bool {
    source.lines_with("unsafe").next().is_some()
}

fn forbids_unsafe(attribute: &Attribute) -> bool {
    matches!(&attribute.meta, Meta::List(list)
        if list.path.is_ident("forbid") && list.tokens.to_string() == "unsafe_code")
}

/// Finds entries of [`UNSAFE_ALLOWED`] without `unsafe` in their files.
pub(super) fn stale(files_with_unsafe: &[String]) -> Vec<Complaint> {
    let unused = |prefix: &str| !files_with_unsafe.iter().any(|file| file.starts_with(prefix));
    UNSAFE_ALLOWED
        .iter()
        .filter(|(prefix, _)| unused(prefix))
        .map(|(prefix, _)| {
            let text = "there is no `unsafe` here; remove the entry from UNSAFE_ALLOWED";
            Complaint::error(prefix, 1, "unsafe", text)
        })
        .collect()
}

/// Returns the reason why a file may contain `unsafe`. `None` if it may not.
fn allowance(path: &str) -> Option<&'static str> {
    UNSAFE_ALLOWED.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, why)| *why)
}

/// Lines of unsafe blocks and impls without a `// SAFETY:` comment. Clippy's `undocumented_unsafe_blocks` finds them in
/// the code of the workspace that is compiled for this system, macros included. This check also covers code for other
/// systems and projects outside the workspace.
struct UndocumentedUnsafe<'a> {
    text: Vec<&'a str>,
    /// First line of the innermost statement or `static`.
    statement: usize,
    found: Vec<usize>,
}

impl UndocumentedUnsafe<'_> {
    /// Expects a `SAFETY:` comment on the line of `unsafe`, above this line, or above the statement.
    fn expect_comment(&mut self, keyword: Span, statement: usize) {
        let line = keyword.start().line;
        let explained = |line: &usize| {
            let above = self.text[..line - 1].iter().rev().map(|line| line.trim_start());
            let mut comment = above.take_while(|line| line.starts_with("//"));
            self.text[line - 1].contains("// SAFETY:") || comment.any(|l| l.contains("SAFETY:"))
        };
        if ![line, statement].iter().any(explained) {
            self.found.push(line);
        }
    }
}

impl<'ast> Visit<'ast> for UndocumentedUnsafe<'_> {
    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        let outer = mem::replace(&mut self.statement, stmt.span().start().line);
        visit::visit_stmt(self, stmt);
        self.statement = outer;
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        let outer = mem::replace(&mut self.statement, item.static_token.span.start().line);
        visit::visit_item_static(self, item);
        self.statement = outer;
    }

    fn visit_expr_unsafe(&mut self, block: &'ast ExprUnsafe) {
        self.expect_comment(block.unsafe_token.span, self.statement);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if let Some(keyword) = &item.unsafety {
            self.expect_comment(keyword.span, item.span().start().line);
        }
        visit::visit_item_impl(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        check(&SourceFile::new(path, text).unwrap()).iter().map(|c| (c.line, c.rule)).collect()
    }

    const DRIVER: &str = "crates/cuda-sys-safe/src/a.rs";

    #[test]
    fn the_safe_crates_forbid_unsafe() {
        let found = rules("crates/tensor/src/lib.rs", "//! `#![forbid(unsafe_code)]`\n");
        assert_eq!(found, [(1, "forbid-unsafe")], "a comment does not count");
        assert_eq!(rules("crates/tensor/src/lib.rs", "#![forbid(unsafe_code)]\n"), []);
        assert_eq!(rules("crates/kernels/src/lib.rs", "\n"), []);
    }

    #[test]
    fn unsafe_is_refused_outside_the_allowed_places() {
        let text = "unsafe fn f() {}\n";
        assert_eq!(rules("crates/kernels/src/unary/neg.rs", text), [(1, "unsafe")]);
        assert_eq!(rules("crates/alloc/src/a.rs", text), [(1, "unsafe")]);
        assert_eq!(rules("crates/runtime/src/launch/cuda.rs", text), []);
        assert_eq!(rules(DRIVER, text), []);
        assert_eq!(rules("crates/alloc/tests/counting.rs", text), []);
        assert_eq!(rules("crates/alloc/src/a.rs", "// unsafe\nconst A: &str = \"unsafe\";\n"), []);
    }

    #[test]
    fn blocks_and_impls_need_a_comment() {
        assert_eq!(rules(DRIVER, "fn f() {\n    unsafe { g() }\n}\n"), [(2, "safety")]);
        assert_eq!(rules(DRIVER, "unsafe impl Send for A {}\n"), [(1, "safety")]);
        assert_eq!(rules(DRIVER, "// SAFETY: a\nunsafe impl Send for A {}\n"), []);
        assert_eq!(rules(DRIVER, "// SAFETY: two\n// lines\n#[x]\nunsafe impl A for B {}\n"), []);
        assert_eq!(rules(DRIVER, "unsafe fn f(g: unsafe fn()) {}\n"), []);
        assert_eq!(
            rules("crates/alloc/tests/a.rs", "fn f() { unsafe { g() } }\n"),
            [(1, "safety")]
        );
    }

    #[test]
    fn the_comment_of_a_static_is_above_it() {
        assert_eq!(rules(DRIVER, "// SAFETY: a\nstatic A: B =\n    unsafe { B::new() };\n"), []);
        assert_eq!(
            rules(DRIVER, "/// A.\n// SAFETY: a\nstatic A: B =\n    unsafe { B::new() };\n"),
            []
        );
        assert_eq!(rules(DRIVER, "static A: B =\n    unsafe { B::new() };\n"), [(2, "safety")]);
    }

    #[test]
    fn the_comment_belongs_to_the_statement() {
        let rules = |body: &str| rules(DRIVER, &format!("fn f() {{\n{body}}}\n"));
        assert_eq!(rules("// SAFETY: a\nlet x =\n    unsafe { g() };\n"), []);
        assert_eq!(rules("let x =\n    // SAFETY: a\n    unsafe { g() };\n"), []);
        assert_eq!(rules("// SAFETY: two\n// lines\n#[x]\nunsafe { g() }\n"), []);
        let text = "// SAFETY: a\nlet y = 1;\nunsafe { g() };\n";
        assert_eq!(rules(text), [(4, "safety")]);
        let text = "// SAFETY: a\nunsafe { g() };\nunsafe { g() };\n";
        assert_eq!(rules(text), [(4, "safety")]);
        assert_eq!(rules("// SAFETY: a\n\nunsafe { g() };\n"), [(4, "safety")]);
    }

    #[test]
    fn unused_allowances_are_reported() {
        let all: Vec<String> = UNSAFE_ALLOWED.iter().map(|(p, _)| format!("{p}a.rs")).collect();
        assert!(stale(&all).is_empty());
        assert_eq!(stale(&all[1..])[0].path, UNSAFE_ALLOWED[0].0);
    }
}
