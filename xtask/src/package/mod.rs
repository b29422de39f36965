//! `cargo xtask package`: makes the packages that would be published, and builds each crate from its package alone.

mod contents;
mod pack;

use anyhow::{Result, bail};
use xshell::{Shell, cmd};

pub(crate) use self::pack::{pack, unpack_all};
use crate::workspace::{self, Crate, LAYERS};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Make the packages and check their content, but do not build them
    #[arg(long)]
    no_verify: bool,
}

/// Returns the published crates, from the bottom layer up.
pub(crate) fn published(members: &[Crate]) -> Vec<&Crate> {
    LAYERS.iter().filter_map(|(name, _)| members.iter().find(|c| c.name == *name)).collect()
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root()?;
    let members = workspace::crates(&root)?;
    let crates = published(&members);
    let sh = Shell::new()?;
    sh.change_dir(&root);
    if args.no_verify {
        pack(&sh, &crates)?;
    } else {
        // Cargo unpacks each package and builds it with the packages of its dependencies.
        let names: Vec<&str> = crates.iter().flat_map(|c| ["-p", c.name.as_str()]).collect();
        let cargo = workspace::cargo();
        cmd!(sh, "{cargo} package --allow-dirty --offline {names...}").run()?;
    }
    let mut complaints = Vec::new();
    for (member, (name, folder)) in crates.iter().zip(unpack_all(&root, &crates)?) {
        let packed = pack::archive(&root, member);
        let bytes = std::fs::metadata(packed)?.len();
        let found = contents::check(&root, member.dir(), &folder, bytes)?;
        println!("{name:<24} {:>8.1} kB", bytes as f64 / 1e3);
        complaints.extend(found.into_iter().map(|text| format!("{name}: {text}")));
    }
    if !complaints.is_empty() {
        bail!("the packages cannot be published:\n  {}", complaints.join("\n  "));
    }
    Ok(())
}
