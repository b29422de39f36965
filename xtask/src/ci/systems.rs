//! Checks that the crates compile for other systems, where their std is installed.

use std::path::Path;

use xshell::{Shell, cmd};

use super::{Step, step};

/// Systems, by `std::env::consts::OS`, with the targets of which one is enough.
const SYSTEMS: [(&str, &[&str]); 3] = [
    ("linux", &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]),
    ("macos", &["aarch64-apple-darwin", "x86_64-apple-darwin"]),
    ("windows", &["x86_64-pc-windows-msvc", "x86_64-pc-windows-gnu"]),
];

/// Checks that the crates compile for systems other than this one, and what to say of those for
/// which there is no std.
pub(super) fn steps(sh: &Shell) -> (Vec<Step>, Vec<String>) {
    other_systems(std::env::consts::OS, |target| has_std(sh, target))
}

fn other_systems(here: &str, has_std: impl Fn(&str) -> bool) -> (Vec<Step>, Vec<String>) {
    let mut steps = Vec::new();
    let mut skipped = Vec::new();
    for (system, targets) in SYSTEMS.into_iter().filter(|(system, _)| *system != here) {
        let name = format!("check for {system}");
        match targets.iter().find(|target| has_std(target)) {
            Some(target) => {
                steps.push(step(name, &["check", "--workspace", "--target", target], &[]));
            }
            None => {
                let [target, ..] = targets else { continue };
                skipped.push(format!("{name:<40} SKIPPED  needs `rustup target add {target}`"));
            }
        }
    }
    (steps, skipped)
}

/// Whether rustc finds a target's std.
fn has_std(sh: &Shell, target: &str) -> bool {
    let folder = cmd!(sh, "rustc --print target-libdir --target {target}").quiet().read();
    folder.is_ok_and(|folder| Path::new(&folder).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_other_system_is_checked_by_one_target_or_skipped_aloud() {
        let (steps, skipped) = other_systems("linux", |target| target.contains("gnu"));
        assert_eq!(steps.iter().map(|s| s.args[3]).collect::<Vec<_>>(), ["x86_64-pc-windows-gnu"]);
        let [macos] = &skipped[..] else { panic!("{skipped:?}") };
        assert!(macos.starts_with("check for macos") && macos.contains("SKIPPED"), "{macos}");
        assert!(macos.contains("rustup target add aarch64-apple-darwin"), "{macos}");
        assert_eq!(other_systems("macos", |_| true).0.len(), 2);
        assert_eq!(other_systems("windows", |_| false).1.len(), 2);
    }
}
