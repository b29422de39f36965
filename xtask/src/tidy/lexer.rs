//! Rust source taken apart into code and comments, line by line, as far as tidy needs it.

/// One line, with string and character literals emptied.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) code: String,
    pub(super) comment: String,
}

impl Line {
    /// Whether `word` stands in the code on its own, not as part of a longer name.
    pub(super) fn has_word(&self, word: &str) -> bool {
        self.words(word).next().is_some()
    }

    /// What follows each place in the code where `word` stands on its own.
    pub(super) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        self.code.match_indices(word).filter_map(move |(at, _)| {
            let rest = &self.code[at + word.len()..];
            let joined = self.code[..at].ends_with(is_name) || rest.starts_with(is_name);
            (!joined).then_some(rest)
        })
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

enum State {
    Code,
    LineComment,
    BlockComment { depth: usize },
    Text,
    RawText { hashes: usize },
}

/// Splits `text` into lines of code and comment.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        if c == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            lines.push(Line::default());
            i += 1;
            continue;
        }
        let last = lines.len() - 1;
        let line = &mut lines[last];
        let mut taken = 1;
        match state {
            State::Code => match (c, at(i + 1)) {
                ('/', '/') => {
                    state = State::LineComment;
                    line.comment.push_str("//");
                    taken = 2;
                }
                ('/', '*') => {
                    state = State::BlockComment { depth: 1 };
                    taken = 2;
                }
                ('"', _) => {
                    state = State::Text;
                    line.code.push('"');
                }
                ('r', '"' | '#') if !ends_in_name(&line.code) => {
                    let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
                    if at(i + 1 + hashes) == '"' {
                        state = State::RawText { hashes };
                        line.code.push('"');
                        taken = 2 + hashes;
                    } else {
                        line.code.push(c);
                    }
                }
                ('\'', next) => {
                    taken = char_literal(next, &chars[i..]).unwrap_or(1);
                    line.code.push('\'');
                }
                _ => line.code.push(c),
            },
            State::LineComment => line.comment.push(c),
            State::BlockComment { depth } => match (c, at(i + 1)) {
                ('*', '/') => {
                    taken = 2;
                    state = match depth {
                        1 => State::Code,
                        _ => State::BlockComment { depth: depth - 1 },
                    };
                }
                ('/', '*') => {
                    taken = 2;
                    state = State::BlockComment { depth: depth + 1 };
                }
                _ => line.comment.push(c),
            },
            State::Text => match c {
                '\\' if at(i + 1) != '\n' => taken = 2,
                '"' => {
                    state = State::Code;
                    line.code.push('"');
                }
                _ => {}
            },
            State::RawText { hashes } => {
                if c == '"' && (1..=hashes).all(|k| at(i + k) == '#') {
                    state = State::Code;
                    line.code.push('"');
                    taken = 1 + hashes;
                }
            }
        }
        i += taken;
    }
    if text.ends_with('\n') {
        lines.pop();
    }
    lines
}

/// Whether a following `r` is part of a name; `b` and `c` before it make a prefix of a literal.
fn ends_in_name(code: &str) -> bool {
    let before = code.strip_suffix(['b', 'c']).unwrap_or(code);
    before.ends_with(is_name)
}

/// The length of the character literal at the start of `rest`, or `None` for a lifetime.
fn char_literal(next: char, rest: &[char]) -> Option<usize> {
    if next == '\\' {
        let end = rest.iter().skip(3).position(|c| *c == '\'')?;
        return Some(end + 4);
    }
    (rest.get(2) == Some(&'\'')).then_some(3)
}

/// Marks the lines of items under `#[cfg(test)]`.
pub(super) fn test_lines(lines: &[Line]) -> Vec<bool> {
    let mut marks = vec![false; lines.len()];
    let mut i = 0;
    while i < lines.len() {
        let code = &lines[i].code;
        if !code.contains("#[cfg(test)]") && !code.contains("#[cfg(all(test") {
            i += 1;
            continue;
        }
        let mut depth = 0i64;
        let mut opened = false;
        while i < lines.len() {
            marks[i] = true;
            let mut ended = false;
            for c in lines[i].code.chars() {
                match c {
                    '{' => (depth, opened) = (depth + 1, true),
                    '}' => depth -= 1,
                    ';' if !opened => ended = true,
                    _ => {}
                }
                ended |= opened && depth == 0;
            }
            i += 1;
            if ended {
                break;
            }
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(code("a // b\n/* c /* d */ e */ f\n"), ["a ", " f"]);
        assert_eq!(code("x(\"un\\\"safe\", 'u', '\\'', '\\u{41}')"), ["x(\"\", ', ', ')"]);
        assert_eq!(code("r\"a\\\" b"), ["\"\" b"]);
        assert_eq!(code("br#\"a\" // \"# c r#type"), ["b\"\" c r#type"]);
        assert_eq!(code("\"two\n// lines\" z"), ["\"", "\" z"]);
        assert_eq!(code("fn f<'a>(x: &'a str) // 'q"), ["fn f<'a>(x: &'a str) "]);
    }

    #[test]
    fn comments_are_kept() {
        let lines = lines("f(); // one\n/* two\nthree */ g();\n");
        let comments: Vec<_> = lines.iter().map(|l| l.comment.trim()).collect();
        assert_eq!(comments, ["// one", "two", "three"]);
    }

    #[test]
    fn words_stand_alone() {
        let line = &lines("unsafe_code not_unsafe unsafe { }")[0];
        assert_eq!(line.words("unsafe").collect::<Vec<_>>(), [" { }"]);
        assert!(!line.has_word("code"));
    }

    #[test]
    fn test_modules_end_at_their_brace() {
        let text = "a\n#[cfg(test)]\nmod tests {\n  fn f() { }\n}\nb\n#[cfg(test)]\nmod t;\nc\n";
        let expected = [false, true, true, true, true, false, true, true, false];
        assert_eq!(test_lines(&lines(text)), expected);
    }
}
