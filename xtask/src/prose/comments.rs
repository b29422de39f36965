//! Comments of Rust files.

use std::ops::Range;

use anyhow::{Result, anyhow};
use proc_macro2::{TokenStream, TokenTree};

/// Returns the text of all comments and doc comments. The result has one line per line of `text`, without code and
/// comment markers.
///
/// # Errors
/// An error with the line if `text` does not consist of Rust tokens.
pub(super) fn extract(path: &str, text: &str) -> Result<String> {
    let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
        anyhow!("{path}:{}: {error}", error.span().start().line)
    })?;
    let mut comments = text.as_bytes().to_vec();
    blank(tokens, text, &mut comments);
    let comments = String::from_utf8(comments)?;
    let lines = comments.lines().map(|line| {
        let line = line.trim();
        let line = line.trim_start_matches(['/', '*', '!']).trim_end_matches("*/");
        line.strip_prefix(' ').unwrap_or(line)
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Replaces all code by spaces. Ordinary comments are the text between tokens. A doc comment consists of the tokens of
/// an attribute, and each of them has the span of the comment.
fn blank(tokens: TokenStream, text: &str, comments: &mut [u8]) {
    for token in tokens {
        let span = token.span().byte_range();
        if text[span.clone()].starts_with("//") || text[span.clone()].starts_with("/*") {
            continue;
        }
        let mut code = |span: Range<usize>| {
            let bytes = comments[span].iter_mut().filter(|byte| **byte != b'\n');
            bytes.for_each(|byte| *byte = b' ');
        };
        match token {
            TokenTree::Group(group) => {
                code(group.span_open().byte_range());
                code(group.span_close().byte_range());
                blank(group.stream(), text, comments);
            }
            _ => code(span),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comments(text: &str) -> Vec<String> {
        extract("a.rs", text).unwrap().split('\n').map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn comments_remain_and_code_does_not() {
        let text = "//! a\nfn f() { g(\"// no\", '/', r#\"/* no\"#, 1 / 2) } // ä\n/// c `d`\nstruct S<'a>(&'a u8);";
        assert_eq!(comments(text), ["a", "ä", "c `d`", ""]);
    }

    #[test]
    fn comments_in_macros_and_blocks_remain() {
        let text = "m! {\n    /// a\n    // b\n    c /* d\n    * e */ f\n}\n/** g */ fn h() {}";
        assert_eq!(comments(text), ["", "a", "b", "d", "e", "", "g"]);
    }

    #[test]
    fn attributes_are_code() {
        assert_eq!(comments("#[doc = \"a\"]\n#[doc = include_str!(\"b\")]\nstruct S;"), [""; 3]);
    }

    #[test]
    fn a_file_that_is_not_rust_is_named() {
        let error = extract("crates/a/src/b.rs", "fn f() {\n").err().unwrap().to_string();
        assert!(error.starts_with("crates/a/src/b.rs:"), "{error}");
    }
}
