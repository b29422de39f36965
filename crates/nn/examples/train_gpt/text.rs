//! Tokenizes a text by characters and cuts it into training samples.

use std::collections::BTreeSet;

use warpline::data::Dataset;
use warpline::{Device, Result, Tensor, tensor};

/// The distinct characters of a text. A token is the index of a character.
#[derive(Clone, Debug)]
pub(crate) struct Characters(Vec<char>);

impl Characters {
    pub(crate) fn of(text: &str) -> Self {
        let all: BTreeSet<char> = text.chars().collect();
        Self(all.into_iter().collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Converts a text to tokens. Skips unknown characters.
    pub(crate) fn encode(&self, text: &str) -> Vec<i64> {
        text.chars().filter_map(|c| self.0.binary_search(&c).ok()).map(|i| i as i64).collect()
    }

    pub(crate) fn decode(&self, token: i64) -> char {
        usize::try_from(token).ok().and_then(|i| self.0.get(i)).copied().unwrap_or('\u{fffd}')
    }
}

/// The data set of all sequences of `context` tokens. The target of a sequence is the sequence shifted by one token.
#[derive(Debug)]
pub(crate) struct Pieces {
    tokens: Tensor,
    context: usize,
}

impl Pieces {
    pub(crate) fn new(tokens: Vec<i64>, context: usize) -> Result<Self> {
        Ok(Self { tokens: tensor(tokens, Device::Cpu)?, context })
    }
}

impl Dataset for Pieces {
    type Sample = (Tensor, Tensor);

    fn len(&self) -> usize {
        self.tokens.numel().saturating_sub(self.context)
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        let from = index as isize;
        Ok((
            self.tokens.narrow(0, from, self.context)?,
            self.tokens.narrow(0, from + 1, self.context)?,
        ))
    }
}
