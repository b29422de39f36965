//! Checks that the crates compile for other systems whose standard library is installed.

use std::path::Path;

use xshell::{Shell, cmd};

use super::CiStep;

/// Systems, named as in `std::env::consts::OS`. One target per system is checked: the first that is installed.
const SYSTEMS: [(&str, &[&str]); 3] = [
    ("linux", &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]),
    ("macos", &["aarch64-apple-darwin", "x86_64-apple-darwin"]),
    ("windows", &["x86_64-pc-windows-msvc", "x86_64-pc-windows-gnu"]),
];

/// Returns the checks for systems other than this one, and a message for each skipped system.
pub(super) fn steps(sh: &Shell) -> (Vec<CiStep>, Vec<String>) {
    other_systems(std::env::consts::OS, |target| has_std(sh, target))
}

fn other_systems(here: &str, has_std: impl Fn(&str) -> bool) -> (Vec<CiStep>, Vec<String>) {
    let mut steps = Vec::new();
    let mut skipped = Vec::new();
    for (system, targets) in SYSTEMS.into_iter().filter(|(system, _)| *system != here) {
        let name = format!("check for {system}");
        match targets.iter().find(|target| has_std(target)) {
            Some(target) => {
                steps.push(CiStep::new(name, &["check", "--workspace", "--target", target], &[]));
            }
            None => {
                let [target, ..] = targets else { continue };
                skipped.push(format!("{name:<40} SKIPPED  needs `rustup target add {target}`"));
            }
        }
    }
    (steps, skipped)
}

/// Returns whether the standard library of a target is installed.
fn has_std(sh: &Shell, target: &str) -> bool {
    let folder = cmd!(sh, "rustc --print target-libdir --target {target}").quiet().read();
    folder.is_ok_and(|folder| Path::new(&folder).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_other_system_is_checked_by_one_target_or_skipped_with_a_message() {
        let (steps, skipped) = other_systems("linux", |target| target.contains("gnu"));
        assert_eq!(steps.iter().map(|s| s.args[3]).collect::<Vec<_>>(), ["x86_64-pc-windows-gnu"]);
        let [macos] = &skipped[..] else { panic!("{skipped:?}") };
        assert!(macos.starts_with("check for macos") && macos.contains("SKIPPED"), "{macos}");
        assert!(macos.contains("rustup target add aarch64-apple-darwin"), "{macos}");
        assert_eq!(other_systems("macos", |_| true).0.len(), 2);
        assert_eq!(other_systems("windows", |_| false).1.len(), 2);
    }
}
