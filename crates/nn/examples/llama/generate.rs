//! Generates tokens: the prompt in one pass, then one token at a time.

use std::time::{Duration, Instant};

use warpline::functional::KvCache;
use warpline::{DType, Pending, Result, SortOptions, Tensor, cuda, manual_seed, tensor, zeros};

use super::model::Llama;

/// The choice of a token from the logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    /// Divides the logits. A value below 1 favours likely tokens, and 0 always chooses the most likely token.
    pub(crate) temperature: f64,
    /// Number of most likely tokens to choose from. 0: all.
    pub(crate) top_k: usize,
    /// Chooses from the smallest set of most likely tokens whose probabilities sum to this value or more.
    pub(crate) top_p: f64,
}

impl Sampling {
    /// Chooses a token, `[1, 1]`, from the logits, `[1, vocabulary]`.
    pub(crate) fn choose(&self, logits: &Tensor) -> Result<Tensor> {
        if self.temperature == 0.0 {
            return logits.argmax_keepdim(-1);
        }
        let logits = logits.to(DType::F32)?.div(self.temperature)?;
        let vocabulary = logits.size()[1];
        let sorted = match self.top_k {
            0 if self.top_p >= 1.0 => None,
            0 => Some(logits.sort(SortOptions::new().descending(true))?),
            k => Some(logits.topk(k.min(vocabulary), ())?),
        };
        let Some((logits, tokens)) = sorted else {
            return logits.softmax(-1)?.multinomial(1, true);
        };
        let mut likely = logits.softmax(-1)?;
        if self.top_p < 1.0 {
            // A token is left out if the sum of the more likely tokens reaches `top_p`.
            let more_likely = likely.cumsum(-1)?.sub(&likely)?;
            likely = likely.masked_fill(&more_likely.ge(self.top_p)?, 0.0)?;
        }
        tokens.gather(-1, &likely.multinomial(1, true)?)
    }
}

/// The state of text generation. A generator can generate several texts, one after another.
pub(crate) struct Generator<'a> {
    model: &'a Llama,
    sampling: Sampling,
    caches: Vec<KvCache>,
    /// Number of tokens for which the caches have room.
    capacity: usize,
    /// The newest token, `[1, 1]`, which each step replaces by its successor.
    token: Tensor,
    /// The captured step.
    graph: Option<cuda::CudaGraph>,
}

/// Tokens and times of a generated text.
#[derive(Debug, Default)]
pub(crate) struct Generated {
    pub(crate) tokens: Vec<i64>,
    /// Whether an end token ended the text. `tokens` does not contain the end token.
    pub(crate) ended: bool,
    /// Time until the first token.
    pub(crate) prefill: Duration,
    /// Number of tokens after the first, including the end token, if any.
    pub(crate) steps: usize,
    /// Time of these tokens.
    pub(crate) decode: Duration,
}

impl<'a> Generator<'a> {
    /// Allocates the caches for texts of up to `capacity` tokens and, if wanted, captures the step of decoding.
    pub(crate) fn new(
        model: &'a Llama,
        sampling: Sampling,
        capacity: usize,
        captures: bool,
    ) -> Result<Self> {
        let token = zeros([1, 1], (DType::I64, model.device()))?;
        let caches = model.caches(capacity)?;
        let mut generator = Self { model, sampling, caches, capacity, token, graph: None };
        // A first step loads the kernels, before any time is measured and before a capture.
        generator.step()?;
        if captures {
            generator.graph = Some(cuda::graph(|| generator.step())?.0);
        }
        Ok(generator)
    }

    /// Returns the number of bytes of the caches.
    pub(crate) fn bytes(&self) -> usize {
        let each = |cache: &KvCache| 2 * cache.keys().numel() * cache.keys().dtype().size();
        self.caches.iter().map(each).sum()
    }

    /// Appends the newest token to the caches and chooses its successor.
    fn step(&self) -> Result<()> {
        if let Some(graph) = &self.graph {
            return graph.replay();
        }
        self.append(&self.token)
    }

    /// Runs a step and starts the copy of its token to the host.
    fn next_token(&self) -> Result<Pending<Vec<i64>>> {
        self.step()?;
        self.token.to_vec_async()
    }

    /// Appends tokens, `[1, n]`, to the caches and chooses their successor.
    fn append(&self, tokens: &Tensor) -> Result<()> {
        let logits = self.model.forward(tokens, &self.caches, false)?.select(1, 0)?;
        self.token.copy_(&self.sampling.choose(&logits)?, ())?;
        Ok(())
    }

    /// Generates up to `length` tokens after `prompt`. Stops early when a token of `end` is chosen. Calls `each`
    /// with each token before that.
    pub(crate) fn generate(
        &self,
        prompt: &[i64],
        length: usize,
        end: &[i64],
        seed: u64,
        mut each: impl FnMut(i64) -> anyhow::Result<()>,
    ) -> anyhow::Result<Generated> {
        let (all, capacity) = (prompt.len() + length, self.capacity);
        anyhow::ensure!(all <= capacity, "{all} tokens do not fit into caches of {capacity}");
        anyhow::ensure!(!prompt.is_empty(), "a text begins with one token or more");
        self.caches.iter().try_for_each(KvCache::reset)?;
        manual_seed(seed);
        let prompt = tensor(prompt, self.token.device())?.unsqueeze(0)?;
        let mut generated = Generated::default();
        if length == 0 {
            return Ok(generated);
        }
        let begin = Instant::now();
        self.append(&prompt)?;
        let mut pending = self.token.to_vec_async::<i64>()?;
        for number in 1..=length {
            let is_last = number == length;
            // A GPU computes the next token while the host waits for this one and prints it.
            let ahead = !is_last && self.token.is_cuda();
            let next = ahead.then(|| self.next_token()).transpose()?;
            let token = pending.wait()?[0];
            if number == 1 {
                generated.prefill = begin.elapsed();
            }
            generated.steps = number - 1;
            generated.decode = begin.elapsed() - generated.prefill;
            generated.ended = end.contains(&token);
            if generated.ended {
                break;
            }
            generated.tokens.push(token);
            each(token)?;
            pending = match next {
                Some(next) => next,
                None if is_last => break,
                None => self.next_token()?,
            };
        }
        Ok(generated)
    }
}
