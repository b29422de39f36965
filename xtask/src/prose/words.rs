//! Counts words, and finds sentences that begin with a question word.

/// Words that begin a question. `When` is not among them, because it usually begins a condition.
const QUESTIONS: [&str; 8] = ["What", "Who", "Whose", "Whom", "Which", "Where", "Why", "How"];

/// Word counts of one or more texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WordCounts {
    pub(super) words: usize,
    /// Occurrences of `what`.
    pub(super) what: usize,
    /// Occurrences of `who`, `whose`, `of which` and `so many`.
    pub(super) who: usize,
    /// Sentences that begin with a question word: the line number, and the text from there to the end of the line.
    pub(super) questions: Vec<(usize, String)>,
}

/// Occurrences per 1,000 words.
#[derive(Debug, PartialEq)]
pub(super) struct WordRates {
    pub(super) what: f64,
    pub(super) who: f64,
}

impl WordCounts {
    /// Counts the words of numbered lines.
    pub(super) fn of(lines: impl Iterator<Item = (usize, String)>) -> Self {
        let mut prose = Self::default();
        let mut former = String::new();
        let mut begins = true;
        let mut last = 0;
        for (number, line) in lines {
            let sign = |text: &str| text.starts_with(['#', '-', '*', '|']);
            begins |= number != last + 1 || line.trim().is_empty() || sign(line.trim_start());
            last = number;
            for text in line.split_whitespace() {
                let word = text.trim_matches(|c: char| !c.is_alphanumeric());
                if word.contains(char::is_alphabetic) {
                    if begins && QUESTIONS.contains(&word) {
                        let at = text.as_ptr() as usize - line.as_ptr() as usize;
                        prose.questions.push((number, line[at..].trim_end().to_owned()));
                    }
                    prose.add(&former, &word.to_lowercase());
                    former = word.to_lowercase();
                    begins = false;
                }
                let end = text.trim_end_matches(['*', '"', '”', ')', '_']);
                begins |= end.ends_with(['.', '?', '!', '|']);
            }
        }
        prose
    }

    fn add(&mut self, former: &str, word: &str) {
        self.words += 1;
        match (former, word) {
            (_, "what") => self.what += 1,
            (_, "who" | "whose") | ("of", "which") | ("so", "many") => self.who += 1,
            _ => {}
        }
    }

    pub(super) fn per_thousand(&self) -> WordRates {
        let rate = |count: usize| 1e3 * count as f64 / self.words.max(1) as f64;
        WordRates { what: rate(self.what), who: rate(self.who) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> WordCounts {
        WordCounts::of(text.lines().enumerate().map(|(at, line)| (at + 1, line.to_owned())))
    }

    #[test]
    fn words_are_counted_over_the_ends_of_lines() {
        let prose = of("What it is, of\nwhich so many (who?) know; \"whose\" = 1 whatsoever.");
        assert_eq!((prose.words, prose.what, prose.who), (11, 1, 4));
        assert_eq!(prose.per_thousand(), WordRates { what: 1e3 / 11.0, who: 4e3 / 11.0 });
        assert_eq!(WordCounts::default().per_thousand(), WordRates { what: 0.0, who: 0.0 });
    }

    #[test]
    fn sentences_that_begin_with_a_question_word_are_found() {
        let text = "Which it is. Who asks\nWhat is no beginning.\nHow. **Why** not\n\nWhere\n- What\n| a | Whose |";
        let lines: Vec<_> =
            of(text).questions.into_iter().map(|(line, text)| format!("{line} {text}")).collect();
        let expected = [
            "1 Which it is. Who asks",
            "1 Who asks",
            "3 How. **Why** not",
            "3 **Why** not",
            "5 Where",
            "6 What",
            "7 Whose |",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_line_after_code_begins_a_sentence() {
        let lines = [(1, "such as:".to_owned()), (5, "Which".to_owned()), (6, "Who".to_owned())];
        assert_eq!(WordCounts::of(lines.into_iter()).questions, [(5, "Which".to_owned())]);
    }
}
