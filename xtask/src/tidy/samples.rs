//! The samples of the page on adding an op, which are parts of the workspace's sources.

use super::Complaint;

/// The page's path below the workspace's root.
pub(super) const PAGE: &str = "docs/add-an-op.md";

/// Checks that each Rust sample of the page occurs in one of `sources`, word for word.
pub(super) fn check<'a>(
    page: &str,
    sources: impl Iterator<Item = &'a str> + Clone,
) -> Vec<Complaint> {
    let is_copied = |sample: &str| sources.clone().any(|source| source.contains(sample));
    let unknown = samples(page).into_iter().filter(|(_, sample)| !is_copied(sample));
    unknown
        .map(|(line, _)| Complaint::error(PAGE, line, "samples", "no source contains this sample"))
        .collect()
}

/// Returns the text of each Rust block, with the number of its first line.
fn samples(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if line.starts_with("```rust") {
            let block = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            found.push((at + 2, block.flat_map(|line| [line, "\n"]).collect()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rust_sample_is_part_of_a_source() {
        let page = "# Title\n```rust\n    fn f() {}\n\n    fn g() {}\n```\n```sh\nls\n```\n```rust\nfn h() {}\n```\n";
        let lines = |sources: &[&str]| -> Vec<usize> {
            check(page, sources.iter().copied()).into_iter().map(|c| c.line).collect()
        };
        let first = "impl A {\n    fn f() {}\n\n    fn g() {}\n}\n";
        assert_eq!(lines(&[first, "fn h() {}\n"]), [0; 0]);
        assert_eq!(lines(&[first, "fn h() {} // changed\n"]), [11]);
        assert_eq!(lines(&["    fn f() {}\n    fn g() {}\n", "fn h() {}\n"]), [3]);
    }
}
