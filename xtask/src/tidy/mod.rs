//! `cargo xtask tidy`: checks of the workspace that the compiler does not make.

mod dependencies;
mod imports;
mod layers;
mod links;
mod rows;
mod rules;
mod samples;
mod source_file;
mod unsafety;

use std::fmt;

use anyhow::{Result, bail};

use self::source_file::SourceFile;
use crate::workspace;

/// A violation of a rule, with its file and line.
#[derive(Debug, PartialEq, Eq)]
struct Complaint {
    path: String,
    line: usize,
    rule: &'static str,
    text: String,
    /// Whether the violation is only a warning, which does not make `tidy` fail.
    warning: bool,
}

impl Complaint {
    fn error(path: &str, line: usize, rule: &'static str, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, text: text.into(), warning: false }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "warning" } else { "error" };
        write!(f, "{}:{}: {kind} [{}] {}", self.path, self.line, self.rule, self.text)
    }
}

pub(crate) fn run() -> Result<()> {
    let root = workspace::root()?;
    let crates = workspace::crates(&root)?;
    let names: Vec<&str> = crates.iter().map(|member| member.name.as_str()).collect();
    let mut complaints = Vec::new();
    let mut files = 0;
    let mut rust_files = Vec::new();
    let mut rust_texts = Vec::new();
    let mut unsafe_files = Vec::new();
    let outside = root.join("tests");
    let folders = crates.iter().map(|member| (member.dir(), Some(member)));
    for (dir, member) in folders.chain([(outside.as_path(), None)]) {
        let mut sources = Vec::new();
        for path in workspace::files(dir, &["rs", "cu", "cuh"])? {
            let (name, text) = (workspace::relative(&root, &path), workspace::read(&path)?);
            complaints.extend(rules::length(&name, &text));
            files += 1;
            if name.ends_with(".rs") {
                let source = SourceFile::new(&name, &text)?;
                complaints.extend(rules::check(&source));
                complaints.extend(imports::check(&source));
                complaints.extend(unsafety::check(&source));
                if unsafety::has_unsafe(&source) {
                    unsafe_files.push(name.clone());
                }
                rust_files.push(name);
                rust_texts.push(text);
                sources.push(source);
            }
        }
        if let Some(member) = member {
            let manifest = workspace::relative(&root, &member.manifest_path);
            let text = workspace::read(&member.manifest_path)?;
            complaints.extend(layers::check(member, &names, &manifest, &text));
            complaints.extend(dependencies::check(member, &sources, &manifest, &text));
        }
    }
    let text = workspace::read(&root.join("Cargo.toml"))?;
    complaints.extend(dependencies::unused_entries("Cargo.toml", &text, &crates));
    complaints.extend(unsafety::stale(&unsafe_files));
    let page = workspace::read(&root.join(rows::PAGE))?;
    complaints.extend(rows::check(&page, &rust_files, |path| root.join(path).exists()));
    let page = workspace::read(&root.join(samples::PAGE))?;
    complaints.extend(samples::check(&page, rust_texts.iter().map(String::as_str)));
    for path in workspace::files(&root, &["md"])? {
        // The target of a symbolic link is checked at its own path.
        if !path.is_symlink() {
            let (name, text) = (workspace::relative(&root, &path), workspace::read(&path)?);
            let read = |name: &str| {
                let path = root.join(name);
                path.exists().then(|| workspace::read(&path).unwrap_or_default())
            };
            complaints.extend(links::check(&name, &text, read));
            files += 1;
        }
    }

    complaints.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    let errors = complaints.iter().filter(|c| !c.warning).count();
    if errors > 0 {
        bail!("tidy found {errors} errors in {files} files");
    }
    println!("tidy: no errors in {} crates and {files} files", crates.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_names_file_line_and_rule() {
        let source = SourceFile::new("crates/a/src/b.rs", "fn f() {}\n").unwrap();
        let text = source.complaint(3, "header", "no header").to_string();
        assert_eq!(text, "crates/a/src/b.rs:3: error [header] no header");
    }
}
