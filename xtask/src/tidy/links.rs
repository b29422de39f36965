//! Checks that the links of Markdown files lead to existing files and headings.

use std::path::Path;

use super::Complaint;
use crate::markdown::prose;

/// Checks the links of a Markdown file. `read` returns the text of a file, or `None` if neither a file nor a folder has
/// this path. For a folder or a binary file, `read` may return an arbitrary text.
pub(super) fn check(
    path: &str,
    text: &str,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (line, target) in links(text) {
        let mut complain = |text: String| {
            let (path, rule) = (path.to_owned(), "links");
            complaints.push(Complaint { path, line, rule, text, warning: false });
        };
        let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
        let linked = match file {
            "" => Some(text.to_owned()),
            file => resolve(path, file).and_then(|file| read(&file)),
        };
        match linked {
            None => complain(format!("`{target}` leads to no file")),
            Some(linked)
                if !heading.is_empty() && !anchors(&linked).iter().any(|a| a == heading) =>
            {
                complain(format!("`{target}` leads to no heading"));
            }
            Some(_) => {}
        }
    }
    complaints
}

/// Resolves a link in the file `path`. The result is relative to the root of the workspace; `None` above the root.
fn resolve(path: &str, link: &str) -> Option<String> {
    let folder = Path::new(path).parent()?.to_str()?;
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns the targets of relative links, `[text](target)` and `[name]: target`, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, prose) in prose(text) {
        let inline = prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        let named = prose.strip_prefix('[').and_then(|rest| Some(rest.split_once("]: ")?.1));
        let here = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
        found.extend(inline.chain(named).filter(here).map(|target| (line, target.to_owned())));
    }
    found
}

/// Returns the link anchors of the headings, which GitHub derives from their text.
fn anchors(text: &str) -> Vec<String> {
    let mut fenced = false;
    let headings = text.lines().filter(|line| {
        fenced ^= line.trim_start().starts_with("```");
        !fenced && line.starts_with('#')
    });
    let mut anchors: Vec<String> = Vec::new();
    for heading in headings {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let before = anchors.iter().filter(|known| **known == anchor).count();
        anchors.push(if before == 0 { anchor } else { format!("{anchor}-{before}") });
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        let read = |path: &str| match path {
            "docs/b.md" => {
                Some("# The `Title`, twice\n```\n# no heading\n```\n## A-b\n".to_owned())
            }
            "src" | "README.md" => Some(String::new()),
            _ => None,
        };
        check("docs/a.md", text, read).into_iter().map(|c| (c.line, c.text)).collect()
    }

    #[test]
    fn links_lead_to_existing_files() {
        assert_eq!(found("[x](b.md) and [y](../README.md), [z](../src)\n[n]: b.md\n"), []);
        assert_eq!(found("[x](https://a.b/c) [y](mailto:a@b)\n"), []);
        let none = |target: &str| format!("`{target}` leads to no file");
        let text = "one\n[`x`](c.md), [y](b.md)\n[n]: ../../b.md\n";
        assert_eq!(found(text), [(2, none("c.md")), (3, none("../../b.md"))]);
    }

    #[test]
    fn links_lead_to_existing_headings() {
        assert_eq!(found("# Own\n[x](b.md#the-title-twice) [y](b.md#a-b) [z](#own)\n"), []);
        let none = |target: &str| format!("`{target}` leads to no heading");
        let text = "[x](b.md#no-heading) [y](#own)\n";
        assert_eq!(found(text), [(1, none("b.md#no-heading")), (1, none("#own"))]);
        assert_eq!(anchors("# A\n# A\n"), ["a", "a-1"]);
    }

    #[test]
    fn links_in_code_are_not_checked() {
        assert_eq!(found("`[x](c.md)`\n```text\n[y](c.md)\n```\n"), []);
    }
}
