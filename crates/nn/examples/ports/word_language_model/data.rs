//! The words of the text (`data.py`).

use std::collections::HashMap;

use warpline::{Result, Tensor, tensor};

/// The index of each word.
#[derive(Debug, Default)]
struct Dictionary(HashMap<String, i64>);

impl Dictionary {
    fn add_word(&mut self, word: &str) -> i64 {
        let next = self.0.len() as i64;
        *self.0.entry(word.to_owned()).or_insert(next)
    }
}

#[derive(Debug)]
pub(crate) struct Corpus {
    pub(crate) ntokens: usize,
    pub(crate) train: Tensor,
    pub(crate) valid: Tensor,
    pub(crate) test: Tensor,
}

impl Corpus {
    /// Divides a text into 90 % for training, 5 % for validation and 5 % for the test.
    pub(crate) fn new(text: &[&str]) -> Result<Self> {
        let mut dictionary = Dictionary::default();
        let (train, rest) = text.split_at(text.len() * 18 / 20);
        let (valid, test) = rest.split_at(rest.len() / 2);
        Ok(Self {
            train: Self::tokenize(&mut dictionary, train)?,
            valid: Self::tokenize(&mut dictionary, valid)?,
            test: Self::tokenize(&mut dictionary, test)?,
            ntokens: dictionary.0.len(),
        })
    }

    fn tokenize(dictionary: &mut Dictionary, lines: &[&str]) -> Result<Tensor> {
        let words = lines.iter().flat_map(|line| line.split_whitespace().chain(["<eos>"]));
        tensor(words.map(|word| dictionary.add_word(word)).collect::<Vec<i64>>(), ())
    }
}
