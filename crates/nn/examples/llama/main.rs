//! Continues a prompt with a Llama model from a Hugging Face folder (`config.json`, `tokenizer.json` and the weights in
//! one or several safetensors files):
//!
//! ```text
//! cargo run --release -p warpline-nn --example llama -- --model Llama-3.2-1B --device cuda --prompt "Once upon a time"
//! ```
//!
//! On a GPU, a step of decoding is captured once and replayed for each token. The folder is that of a model of the
//! architecture `LlamaForCausalLM`, for example a download by `hf download NAME --local-dir FOLDER`. Without
//! `--model`, the program makes a tiny random model, whose text has no meaning. The tests compare logits and text with
//! those of transformers, for models that `transformers.py` makes.

mod config;
mod generate;
mod model;
#[path = "../support/mod.rs"]
mod support;
mod tiny;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use tokenizers::Tokenizer;
use warpline::{Device, cuda};

pub(crate) use config::Config;
pub(crate) use generate::{Generator, Sampling};
pub(crate) use model::Llama;
use tiny::TinyModel;

#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Folder of a Hugging Face model. Default: a tiny random model.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Text to continue.
    #[arg(long, default_value = "Once upon a time")]
    prompt: String,
    /// Maximum number of tokens to generate.
    #[arg(long, default_value_t = 128)]
    max_new_tokens: usize,
    /// Device: cpu, cuda, cuda:1, or sim:1 for a simulated GPU.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Dtype of weights and caches: f32, bf16 or f16. Default: that of the folder.
    #[arg(long)]
    dtype: Option<String>,
    /// Divisor of the logits. 0 chooses the most likely token each time.
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Choose from this many most likely tokens. 0: from all.
    #[arg(long, default_value_t = 40)]
    top_k: usize,
    /// Choose from the smallest set of most likely tokens whose probabilities sum to this value or more.
    #[arg(long, default_value_t = 0.95)]
    top_p: f64,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Enqueue each op of a step instead of replaying a graph.
    #[arg(long)]
    no_graph: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    support::on(&args.device, |device| run(&args, device, &mut std::io::stdout()))
}

/// Runs the program, and writes the text and the report to `out`.
pub(crate) fn run(args: &Args, device: Device, out: &mut dyn Write) -> Result<()> {
    let temperature = args.temperature;
    ensure!(temperature >= 0.0, "--temperature is {temperature}, but must be 0 or more");
    ensure!(args.top_p > 0.0, "--top-p is {}, but must be more than 0", args.top_p);
    match &args.model {
        Some(folder) => continue_prompt(args, folder, device, out),
        None => {
            let model = TinyModel::write()?;
            writeln!(out, "Without --model, the model is tiny and random.\n")?;
            continue_prompt(args, model.folder(), device, out)
        }
    }
}

fn continue_prompt(args: &Args, folder: &Path, device: Device, out: &mut dyn Write) -> Result<()> {
    let config = Config::read(folder)?;
    let tokenizer = read_tokenizer(folder)?;
    let prompt = tokens(&tokenizer, &args.prompt, &config)?;
    let context = config.max_position_embeddings;
    ensure!(
        prompt.len() < context,
        "the prompt has {} tokens, but the model's context has {context}; give a shorter --prompt",
        prompt.len()
    );
    let length = args.max_new_tokens.min(context - prompt.len());
    let dtype = config.dtype(args.dtype.as_deref())?;

    let model = Llama::load(folder, config, (dtype, device))
        .with_context(|| folder.display().to_string())?;
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p };
    let captures = device.is_cuda() && !args.no_graph;
    let generator = Generator::new(&model, sampling, prompt.len() + length, captures)?;

    write!(out, "{}", args.prompt)?;
    out.flush()?;
    let mut text = tokenizer.decode_stream(true);
    let generated =
        generator.generate(&prompt, length, model.config.end(), args.seed, |token| {
            let piece = text.step(u32::try_from(token)?).map_err(anyhow::Error::from_boxed)?;
            write!(out, "{}", piece.unwrap_or_default())?;
            Ok(out.flush()?)
        })?;

    let count = generated.tokens.len();
    let end = match count {
        _ if generated.ended => "the model ended the text",
        _ if length < args.max_new_tokens => "the model's context is full",
        _ => "--max-new-tokens is reached",
    };
    let mode = if captures { "in a graph" } else { "eagerly" };
    let speed = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(1e-9);
    let prefill = speed(prompt.len(), generated.prefill.as_secs_f64());
    // The first token comes from the pass over the prompt.
    let decode = speed(generated.steps, generated.decode.as_secs_f64());
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    writeln!(out, "\n\nprefill: {} tokens, {prefill:.1} tokens/s", prompt.len())?;
    writeln!(out, "decode: {count} tokens, {decode:.1} tokens/s {mode} on {device}; {end}")?;
    let (weights, caches) = (mib(model.bytes()), mib(generator.bytes()));
    write!(out, "memory: {weights:.1} MiB of weights, {caches:.1} MiB of keys and values")?;
    if device.is_cuda() {
        write!(out, ", {:.1} MiB at the peak", mib(cuda::max_memory_allocated(device)?))?;
    }
    Ok(writeln!(out)?)
}

pub(crate) fn read_tokenizer(folder: &Path) -> Result<Tokenizer> {
    let path = folder.join("tokenizer.json");
    Tokenizer::from_file(&path).map_err(|error| {
        let path = path.display();
        anyhow!("{path}: {error}; the folder must have the tokenizer as tokenizer.json")
    })
}

/// Returns the tokens of a text, with the special tokens that the tokenizer adds. Without any tokens, returns the token
/// that begins a text.
pub(crate) fn tokens(tokenizer: &Tokenizer, text: &str, config: &Config) -> Result<Vec<i64>> {
    let encoding = tokenizer.encode(text, true).map_err(anyhow::Error::from_boxed)?;
    let mut tokens: Vec<i64> = encoding.get_ids().iter().map(|&id| i64::from(id)).collect();
    if tokens.is_empty() {
        tokens.extend(config.begin());
    }
    ensure!(!tokens.is_empty(), "the prompt has no tokens; give a --prompt");
    if let Some(token) = tokens.iter().find(|&&token| token >= config.vocab_size as i64) {
        let size = config.vocab_size;
        anyhow::bail!(
            "tokenizer.json gives the token {token}, but config.json has {size} tokens; they belong \
             to different models"
        );
    }
    Ok(tokens)
}
