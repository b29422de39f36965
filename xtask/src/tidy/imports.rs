//! Checks that some modules do not use others of the same crate.

use proc_macro2::Ident;
use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, Path, UseTree};

use super::rules::is_test_only;
use super::{Complaint, SourceFile};

/// Files and folders, the modules that they must not use, and the reason.
const FORBIDDEN: &[(&[&str], &[&str], &str)] = &[
    (
        &[
            "crates/alloc/src/malloc.rs",
            "crates/alloc/src/block.rs",
            "crates/alloc/src/core.rs",
            "crates/alloc/src/growth.rs",
            "crates/alloc/src/release.rs",
            "crates/alloc/src/shard/",
        ],
        &["policy"],
        "a hit in the allocator uses no policy",
    ),
    (
        &["crates/cuda-sys-safe/src/sim/state/"],
        &["exec", "driver"],
        "the simulator's state depends on neither execution nor calls",
    ),
];

pub(super) fn check(source: &SourceFile) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (places, modules, reason) in FORBIDDEN {
        if places.iter().any(|place| source.path.starts_with(place)) && !source.is_test() {
            let mut uses = ModuleUses { modules, found: Vec::new() };
            uses.visit_file(&source.file);
            for (line, module) in uses.found {
                let text = format!("this file must not use the module `{module}`: {reason}");
                complaints.push(source.complaint(line, "imports", text));
            }
        }
    }
    complaints
}

/// Uses of `modules` outside tests, each with its line.
struct ModuleUses<'a> {
    modules: &'a [&'a str],
    found: Vec<(usize, String)>,
}

impl ModuleUses<'_> {
    fn module(&mut self, ident: &Ident) {
        if self.modules.iter().any(|module| ident == module) {
            self.found.push((ident.span().start().line, ident.to_string()));
        }
    }

    fn import(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                self.module(&path.ident);
                self.import(&path.tree);
            }
            UseTree::Name(item) => self.module(&item.ident),
            UseTree::Rename(item) => self.module(&item.ident),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree)),
            UseTree::Glob(_) => {}
        }
    }
}

impl<'ast> Visit<'ast> for ModuleUses<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(is_test_only) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !item.attrs.iter().any(is_test_only) {
            self.import(&item.tree);
        }
    }

    /// The last segment of a path is an item, not a module.
    fn visit_path(&mut self, path: &'ast Path) {
        let modules = path.segments.len().saturating_sub(1);
        path.segments.iter().take(modules).for_each(|segment| self.module(&segment.ident));
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let complaints = check(&SourceFile::new(path, text).unwrap());
        complaints.iter().map(|complaint| complaint.line).collect()
    }

    #[test]
    fn forbidden_modules_are_found_in_imports_and_paths() {
        for path in ["crates/alloc/src/malloc.rs", "crates/alloc/src/shard/cell/a.rs"] {
            assert_eq!(lines(path, "use crate::policy;\nuse crate::policy::Arena;"), [1, 2]);
            assert_eq!(lines(path, "use crate::{\nheap,\npolicy::{A, B},\n};"), [3]);
            assert_eq!(lines(path, "fn f() {\n    crate::policy::run();\n}"), [2]);
        }
        let state = "crates/cuda-sys-safe/src/sim/state/a.rs";
        assert_eq!(
            lines(state, "use super::super::{exec, driver::Call};\nfn f(_: super::exec::A) {}"),
            [1, 1, 2]
        );
    }

    #[test]
    fn other_files_tests_and_items_of_the_same_name_pass() {
        let text = "use crate::policy::Arena;";
        assert!(lines("crates/alloc/src/miss.rs", text).is_empty());
        assert!(lines("crates/alloc/src/shard/tests.rs", text).is_empty());
        let text = "#[cfg(test)]\nmod tests {\n    use crate::policy::Arena;\n}";
        assert!(lines("crates/alloc/src/block.rs", text).is_empty());
        let text = "fn f(c: &Config) -> Policy { Config::policy(c.policy) }";
        assert!(lines("crates/alloc/src/block.rs", text).is_empty());
    }
}
