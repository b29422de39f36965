//! Generates text from a model.

use warpline::autograd::no_grad;
use warpline::{Result, tensor};
use warpline_nn::{Forward, Module};

use super::model::Gpt;
use super::train::Training;

/// Samples `length` tokens after `start` from the model's probabilities. A `temperature` below 1 favours likely tokens.
pub(crate) fn generate(
    training: &mut Training,
    context: usize,
    start: &[i64],
    length: usize,
    temperature: f64,
) -> Result<Vec<i64>> {
    training.model.eval();
    let written = no_grad(|| {
        let mut tokens = start.to_vec();
        for _ in 0..length {
            let seen = &tokens[tokens.len().saturating_sub(context)..];
            let next = next_token(&training.model, seen, temperature, training.device)?;
            tokens.push(next);
        }
        Ok(tokens.split_off(start.len()))
    });
    training.model.train();
    written
}

fn next_token(
    model: &Gpt,
    seen: &[i64],
    temperature: f64,
    device: warpline::Device,
) -> Result<i64> {
    let logits = model.forward(tensor(seen, device)?.unsqueeze(0)?)?.select(1, -1)?;
    let likely = logits.div(temperature)?.softmax(-1)?;
    // Draw in the same way as `torch.multinomial`: the index of the largest quotient of probability and
    // exponential random number.
    let waiting = likely.empty_like(())?;
    waiting.exponential_(1.0)?;
    likely.div(&waiting)?.argmax(-1)?.item()
}
