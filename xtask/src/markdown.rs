//! Markdown text without its code.

/// Returns the lines outside code blocks, without inline code. Each line has its number, from 1.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let words = || line.split('`').step_by(2).collect::<Vec<_>>().concat();
        (!fenced && !fence).then(|| (at + 1, words()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_left_out() {
        let text = "a `b` c\n```rust\nd\n```\n  ```\ne\n  ```\nf";
        let lines: Vec<_> = prose(text).collect();
        assert_eq!(lines, [(1, "a  c".to_owned()), (8, "f".to_owned())]);
    }
}
