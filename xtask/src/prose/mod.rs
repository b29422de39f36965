//! `cargo xtask prose`: counts words that make comments and pages hard to read.
//!
//! The counts help editors; they are not a check. A sentence with such a word may be clear, and a sentence without such
//! words may be hard to read. Words in code blocks and inline code are not counted.

mod comments;
mod words;

use std::path::Path;

use anyhow::Result;

use self::words::{WordCounts, WordRates};
use crate::{markdown, workspace};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also print each sentence that begins with a question word, with its file and line
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root()?;
    let mut rows = Vec::new();
    for member in workspace::crates(&root)? {
        rows.push((member.name.clone(), read(&root, member.dir(), "rs", args.list)?));
    }
    rows.push(("docs".to_owned(), read(&root, &root.join("docs"), "md", args.list)?));
    println!("{:<24} {:>8} {:>10} {:>10}", "", "words", "what", "who, …");
    for (name, prose) in &rows {
        let WordRates { what, who } = prose.per_thousand();
        println!("{name:<24} {:>8} {what:>10.1} {who:>10.1}", prose.words);
    }
    println!(
        "occurrences per 1,000 words; the last column counts `who`, `whose`, `of which` and `so many`"
    );
    Ok(())
}

/// Counts the prose of all files with an extension in a folder. With `list`, prints the sentences that begin with a
/// question word.
fn read(root: &Path, folder: &Path, extension: &str, list: bool) -> Result<WordCounts> {
    let mut total = WordCounts::default();
    for path in workspace::files(folder, &[extension])? {
        let (name, text) = (workspace::relative(root, &path), workspace::read(&path)?);
        let text = if extension == "rs" { comments::extract(&name, &text)? } else { text };
        let prose = WordCounts::of(markdown::prose(&text));
        if list {
            prose.questions.iter().for_each(|(line, text)| println!("{name}:{line}: {text}"));
        }
        total.words += prose.words;
        total.what += prose.what;
        total.who += prose.who;
    }
    Ok(total)
}
