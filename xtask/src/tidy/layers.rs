//! Checks that crates depend only on lower layers.

use super::Complaint;
use crate::workspace::{Crate, LAYERS};

const RULE: &str = "layers";

/// Checks the dependencies of `member` on other crates of the workspace. `members` are the names of all crates,
/// `manifest` is the path of the crate's `Cargo.toml`, and `text` the content.
pub(super) fn check(
    member: &Crate,
    members: &[&str],
    manifest: &str,
    text: &str,
) -> Vec<Complaint> {
    // Above all layers: maintenance commands, programs that must not compile, and parsers on hostile input.
    if ["xtask", "warpline-misuse", "warpline-parsers"].contains(&member.name.as_str()) {
        return Vec::new();
    }
    let complaint = |line, text: String| Complaint::error(manifest, line, RULE, text);
    let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == member.name) else {
        let text = format!("{} has no layer; add it to LAYERS", member.name);
        return vec![complaint(1, text)];
    };
    let mut complaints = Vec::new();
    for dependency in &member.dependencies {
        let name = dependency.name.as_str();
        // A crate is its own dev-dependency if its tests need optional features.
        if !members.contains(&name) || name == member.name {
            continue;
        }
        let line = line_of(text, name);
        if !allowed.contains(&name) {
            let text =
                format!("{} must not depend on {name}, which is not a lower layer", member.name);
            complaints.push(complaint(line, text));
        } else if member.name == "warpline-alloc" && name != "warpline-sync" && !dependency.optional
        {
            let text = format!("the dependency of {} on {name} must be optional", member.name);
            complaints.push(complaint(line, text));
        }
    }
    complaints
}

/// Returns the line of a manifest that names a dependency.
pub(super) fn line_of(manifest: &str, name: &str) -> usize {
    let names = |line: &str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
            || line.contains(&format!("\"{name}\""))
            || line.ends_with(&format!("dependencies.{name}]"))
    };
    let mut lines = manifest.lines().enumerate();
    // Skip the table of the package, which may contain the same names.
    lines.find(|(_, line)| line.contains("dependencies")).map_or(1, |(start, line)| {
        if names(line) {
            return start + 1;
        }
        lines.find(|(_, line)| names(line)).map_or(start + 1, |(at, _)| at + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::CrateDependency;

    fn complaints(name: &str, dependencies: &[(&str, bool)]) -> Vec<Complaint> {
        let mut text = format!("[package]\nname = \"{name}\"\n\n[dependencies]\n");
        for (dependency, _) in dependencies {
            text += &format!("{dependency}.workspace = true\n");
        }
        let dependencies = dependencies
            .iter()
            .map(|&(name, optional)| CrateDependency {
                name: name.to_owned(),
                optional,
                kind: None,
            })
            .collect();
        let member = Crate {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            manifest_path: "Cargo.toml".into(),
            dependencies,
            targets: Vec::new(),
        };
        let mut members: Vec<&str> = LAYERS.iter().map(|(name, _)| *name).collect();
        members.push("xtask");
        check(&member, &members, "Cargo.toml", &text)
    }

    #[test]
    fn downward_edges_pass() {
        assert!(complaints("warpline", &[("warpline-kernels", false), ("half", false)]).is_empty());
        assert!(complaints("warpline-alloc", &[("warpline-cuda-sys-safe", true)]).is_empty());
        for above in ["xtask", "warpline-misuse", "warpline-parsers"] {
            assert!(complaints(above, &[("warpline", false)]).is_empty());
        }
    }

    #[test]
    fn upward_edges_are_reported_with_their_line() {
        let found = complaints("warpline-stream", &[("half", false), ("warpline-kernels", false)]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].rule), (6, RULE));
        assert!(found[0].text.contains("warpline-kernels"));
    }

    #[test]
    fn alloc_and_stream_do_not_depend_on_each_other() {
        assert_eq!(complaints("warpline-alloc", &[("warpline-stream", true)]).len(), 1);
        assert_eq!(complaints("warpline-stream", &[("warpline-alloc", false)]).len(), 1);
    }

    #[test]
    fn nothing_depends_on_xtask() {
        assert_eq!(complaints("warpline", &[("xtask", false)]).len(), 1);
    }

    #[test]
    fn the_allocator_stays_usable_without_cuda() {
        assert_eq!(complaints("warpline-alloc", &[("warpline-cuda-sys-safe", false)]).len(), 1);
        assert!(complaints("warpline-alloc", &[("warpline-sync", false)]).is_empty());
    }

    #[test]
    fn a_new_crate_needs_a_layer() {
        assert!(complaints("warpline-new", &[])[0].text.contains("LAYERS"));
    }
}
