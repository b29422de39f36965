//! Checks that every dependency is used.

use super::layers::line_of;
use super::{Complaint, SourceFile};
use crate::workspace::Crate;

const RULE: &str = "dependencies";

/// Finds dependencies of `member` that no source of the crate names. `manifest` is the path of its `Cargo.toml`, and
/// `text` the content.
pub(super) fn check(
    member: &Crate,
    sources: &[SourceFile],
    manifest: &str,
    text: &str,
) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for dependency in &member.dependencies {
        let name = dependency.name.as_str();
        let is_product = dependency.kind.is_none();
        let mut sources = sources.iter().filter(|source| source.in_src() || !is_product);
        // A crate is its own dev-dependency if its tests need optional features.
        if name == member.name || sources.any(|source| names(source, &name.replace('-', "_"))) {
            continue;
        }
        let scope = if is_product { "its library or program" } else { "any of its sources" };
        let complaint = format!("{} does not use {name} in {scope}", member.name);
        complaints.push(Complaint::error(manifest, line_of(text, name), RULE, complaint));
    }
    complaints
}

/// Finds entries of `[workspace.dependencies]` that no crate uses.
pub(super) fn unused_entries(manifest: &str, text: &str, crates: &[Crate]) -> Vec<Complaint> {
    let table =
        text.lines().enumerate().skip_while(|(_, line)| *line != "[workspace.dependencies]");
    let entries = table.skip(1).take_while(|(_, line)| !line.starts_with('['));
    let named = entries.filter_map(|(at, line)| Some((at, line.split_once([' ', '='])?.0)));
    let used =
        |name: &str| crates.iter().flat_map(|member| &member.dependencies).any(|d| d.name == name);
    let is_unused =
        |(_, name): &(usize, &str)| !name.is_empty() && !name.starts_with('#') && !used(name);
    let complaint = |(at, name): (usize, &str)| {
        let text = format!("no crate of the workspace depends on {name}");
        Complaint::error(manifest, at + 1, RULE, text)
    };
    named.filter(is_unused).map(complaint).collect()
}

/// Returns whether a path in a source begins with a crate, in code or in a documented example.
fn names(source: &SourceFile, crate_name: &str) -> bool {
    source.has_path_from(crate_name) || source.documents(&format!("{crate_name}::"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::CrateDependency;

    fn member(dependencies: &[(&str, Option<&str>)]) -> Crate {
        let dependency = |&(name, kind): &(&str, Option<&str>)| CrateDependency {
            name: name.to_owned(),
            optional: false,
            kind: kind.map(str::to_owned),
        };
        Crate {
            name: "a".to_owned(),
            version: "0.1.0".to_owned(),
            manifest_path: "Cargo.toml".into(),
            dependencies: dependencies.iter().map(dependency).collect(),
            targets: Vec::new(),
        }
    }

    fn complaints(dependencies: &[(&str, Option<&str>)]) -> Vec<String> {
        let text = "[dependencies]\nused-crate = \"1\"\nunused = \"1\"\n";
        let sources = [
            SourceFile::new(
                "crates/a/src/lib.rs",
                "// unused\nuse used_crate::Name;\nfn unused() {}\n",
            ),
            SourceFile::new("crates/a/tests/b.rs", "use of_tests::Name;\n"),
            SourceFile::new("crates/a/src/c.rs", "//! ```\n//! use of_examples::Name;\n//! ```\n"),
        ]
        .map(Result::unwrap);
        let found = check(&member(dependencies), &sources, "Cargo.toml", text);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_unused_dependency_is_reported_with_its_line() {
        let text =
            "Cargo.toml:3: error [dependencies] a does not use unused in its library or program";
        assert_eq!(complaints(&[("used-crate", None), ("unused", None)]), [text]);
    }

    #[test]
    fn dev_dependencies_may_be_used_by_tests_alone() {
        assert!(complaints(&[("of-tests", Some("dev")), ("of-examples", Some("dev"))]).is_empty());
        assert_eq!(complaints(&[("of-tests", None)]).len(), 1);
        assert_eq!(complaints(&[("unused", Some("dev"))]).len(), 1);
    }

    #[test]
    fn an_unused_workspace_dependency_is_reported() {
        let text = "[workspace.dependencies]\n# First.\nused = \"1\"\nunused = { path = \"b\" }\n\n[profile]\nx = 1\n";
        let found = unused_entries("Cargo.toml", text, &[member(&[("used", None)])]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].rule), (4, RULE));
    }
}
