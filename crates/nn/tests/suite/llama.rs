//! Tests that the example `llama` computes the logits and the text of transformers, with and without graphs,
//! and that its errors say how to correct bad input.

#[allow(dead_code)] // its `main` reads the command line
#[path = "../../examples/llama/main.rs"]
mod program;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use program::{Args, Config, Generator, Llama, Sampling, read_tokenizer, run, tokens};
use serde::Deserialize;
use warpline::{DType, Device, Tensor, cat, manual_seed, tensor, with_runtime};
use warpline_nn::load_file;

use crate::common;

/// Models that `transformers.py` made.
const MODELS: [&str; 3] = ["grouped_heads", "tied_embeddings", "rope_scaling"];
const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };
const SAMPLED: Sampling = Sampling { temperature: 1.5, top_k: 20, top_p: 0.9 };

fn golden(model: &str) -> PathBuf {
    // A folder in `WARPLINE_GOLDENS` may lack these models.
    let given = common::goldens().join("llama");
    let root = if given.is_dir() { given } else { common::committed_goldens().join("llama") };
    root.join(model)
}

/// The text that transformers generates after a prompt.
#[derive(Deserialize)]
struct Expected {
    prompt: String,
    ids: Vec<i64>,
    new: Vec<i64>,
    text: String,
}

fn expected(folder: &Path) -> Result<Vec<Expected>> {
    let all: Vec<Expected> =
        serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json"))?)?;
    assert!(all.len() > 1 && all.iter().all(|each| each.new.len() == 64));
    Ok(all)
}

fn load(model: &str, dtype: DType, device: Device) -> Result<Llama> {
    let folder = golden(model);
    Llama::load(&folder, Config::read(&folder)?, (dtype, device))
}

/// Generates tokens without an end token, and checks their number.
fn generated(
    model: &Llama,
    sampling: Sampling,
    captures: bool,
    prompt: &[i64],
    seed: u64,
) -> Result<Vec<i64>> {
    let generator = Generator::new(model, sampling, prompt.len() + 64, captures)?;
    let mut printed = Vec::new();
    let generated = generator.generate(prompt, 64, &[], seed, |token| {
        printed.push(token);
        Ok(())
    })?;
    assert_eq!((printed.len(), generated.ended, generated.steps), (64, false, 63));
    assert_eq!(printed, generated.tokens);
    Ok(printed)
}

/// Returns the logits of each token, from one pass over all tokens, and from a pass over the first `prompt` tokens
/// followed by one token at a time.
fn logits(model: &Llama, ids: &[i64], prompt: usize, device: Device) -> Result<[Tensor; 2]> {
    let ids = tensor(ids, device)?.unsqueeze(0)?;
    let count = ids.size()[1];
    let at_once = model.forward(&ids, &model.caches(count)?, true)?;
    let caches = model.caches(count)?;
    let mut steps = vec![model.forward(&ids.narrow(1, 0, prompt)?, &caches, true)?];
    for at in prompt..count {
        steps.push(model.forward(&ids.narrow(1, at, 1)?, &caches, false)?);
    }
    Ok([at_once.squeeze(0)?, cat(&steps, 1)?.squeeze(0)?])
}

fn equals_transformers(device: Device) -> Result<()> {
    for name in MODELS {
        let (folder, model) = (golden(name), load(name, DType::F32, device)?);
        let tokenizer = read_tokenizer(&folder)?;
        let all_logits = load_file(folder.join("expected.safetensors"), "cpu")?;
        for (index, expected) in expected(&folder)?.into_iter().enumerate() {
            let ids = tokens(&tokenizer, &expected.prompt, &model.config)?;
            assert_eq!(ids, expected.ids, "{name}: tokens of `{}`", expected.prompt);

            let all = [&ids[..], &expected.new[..63]].concat();
            let theirs = all_logits.get(&format!("logits.{index}")).context("logits")?;
            for ours in logits(&model, &all, ids.len(), device)? {
                assert_eq!(ours.size(), theirs.size());
                let differences = ours.cpu()?.sub(theirs)?.abs()?.to_vec::<f32>()?;
                let largest = differences.iter().copied().fold(0.0, f32::max);
                // This assertion also fails for NaN.
                assert!(largest < 1e-4, "{name} on {device}, prompt {index}: {largest}");
                assert!(differences.iter().all(|difference| difference.is_finite()));
            }

            for captures in [false, true] {
                if captures && device.is_cpu() {
                    continue;
                }
                let new = generated(&model, GREEDY, captures, &ids, 0)?;
                assert_eq!(new, expected.new, "{name} on {device}, a graph: {captures}");
            }
            let mut stream = tokenizer.decode_stream(true);
            let mut text = String::new();
            for token in expected.new {
                let piece =
                    stream.step(u32::try_from(token)?).map_err(anyhow::Error::from_boxed)?;
                text.push_str(&piece.unwrap_or_default());
            }
            assert_eq!(text, expected.text, "{name}");
        }
    }
    Ok(())
}

fn simulated(test: impl Fn(Device) -> Result<()>) -> Result<()> {
    with_runtime(&warpline::simulated(1)?, || test(Device::cuda(0)))
}

fn gpu(test: impl Fn(Device) -> Result<()>) -> Result<()> {
    let runtime = warpline::open(&common::gpu_spec(), &warpline::RuntimeConfig::default())?;
    with_runtime(&runtime, || test(Device::cuda(0)))
}

#[test]
fn logits_and_text_equal_those_of_transformers_on_the_cpu() -> Result<()> {
    equals_transformers(Device::Cpu)
}

#[test]
fn logits_and_text_equal_those_of_transformers_on_a_simulated_gpu() -> Result<()> {
    simulated(equals_transformers)
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_logits_and_text_equal_those_of_transformers() -> Result<()> {
    gpu(equals_transformers)
}

/// Decoding in a graph generates the same tokens as eager decoding, with greedy choice and with sampling, in
/// `bfloat16` and `float32`.
fn graphs_equal_eager(device: Device) -> Result<()> {
    for (name, dtype) in MODELS.into_iter().flat_map(|m| [(m, DType::BF16), (m, DType::F32)]) {
        let model = load(name, dtype, device)?;
        let prompt = &expected(&golden(name))?[1].ids;
        for sampling in [GREEDY, SAMPLED, Sampling { top_k: 0, top_p: 1.0, ..SAMPLED }] {
            let eager = generated(&model, sampling, false, prompt, 7)?;
            let captured = generated(&model, sampling, true, prompt, 7)?;
            assert_eq!(captured, eager, "{name} in {dtype} with {sampling:?}");
            let other = generated(&model, sampling, true, prompt, 8)?;
            assert_eq!(other == eager, sampling.temperature == 0.0, "the seed decides");
        }
    }
    Ok(())
}

#[test]
fn a_graph_generates_the_tokens_of_eager_decoding_on_a_simulated_gpu() -> Result<()> {
    simulated(graphs_equal_eager)
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_graph_generates_the_tokens_of_eager_decoding() -> Result<()> {
    gpu(graphs_equal_eager)
}

/// Returns the tokens that are drawn from probabilities of 1/2, 1/4, 1/8 and 1/8.
fn drawn(sampling: Sampling, device: Device) -> Result<Vec<i64>> {
    let logits = tensor([[0.125f32, 0.5, 0.125, 0.25]], device)?.log()?;
    manual_seed(3);
    let draw = |_| Ok(sampling.choose(&logits)?.item::<i64>()?);
    let mut tokens = (0..100).map(draw).collect::<Result<Vec<_>>>()?;
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

fn draws_likely_tokens(device: Device) -> Result<()> {
    for (temperature, top_k, top_p, tokens) in [
        (0.0, 0, 1.0, &[1][..]),
        (1.0, 0, 1.0, &[0, 1, 2, 3]),
        (1.0, 9, 1.0, &[0, 1, 2, 3]),
        (1.0, 2, 1.0, &[1, 3]),
        (1.0, 0, 0.7, &[1, 3]),
        (1.0, 0, 1e-9, &[1]),
        // The two remaining tokens have probabilities 2/3 and 1/3.
        (1.0, 2, 0.6, &[1]),
        (0.01, 0, 1.0, &[1]),
    ] {
        let sampling = Sampling { temperature, top_k, top_p };
        assert_eq!(drawn(sampling, device)?, tokens, "{sampling:?} on {device}");
    }
    Ok(())
}

#[test]
fn only_tokens_within_top_k_and_top_p_are_drawn() -> Result<()> {
    draws_likely_tokens(Device::Cpu)?;
    simulated(draws_likely_tokens)
}

fn ends(device: Device) -> Result<()> {
    let model = load("rope_scaling", DType::F32, device)?;
    let Expected { ids, new, .. } = expected(&golden("rope_scaling"))?.swap_remove(1);
    let end = new.iter().position(|token| model.config.end().contains(token));
    let end = end.context("the text of the golden has no end")?;
    assert!(end > 0);
    let generator = Generator::new(&model, GREEDY, ids.len() + 64, device.is_cuda())?;
    // A generator can generate several texts.
    for _ in 0..2 {
        let text = generator.generate(&ids, 64, model.config.end(), 0, |_| Ok(()))?;
        assert_eq!((&text.tokens[..], text.ended, text.steps), (&new[..end], true, end));
        let text = generator.generate(&ids, 3, &[], 0, |_| Ok(()))?;
        assert_eq!((&text.tokens[..], text.ended, text.steps), (&new[..3], false, 2));
        assert!(generator.generate(&ids, 0, &[], 0, |_| Ok(()))?.tokens.is_empty());
    }
    assert!(generator.generate(&ids, 65, &[], 0, |_| Ok(())).is_err());
    assert!(generator.generate(&[], 1, &[], 0, |_| Ok(())).is_err());
    Ok(())
}

#[test]
fn a_text_ends_at_an_end_token_or_at_its_length() -> Result<()> {
    ends(Device::Cpu)?;
    simulated(ends)
}

/// Runs the program with these arguments and returns its output.
fn output(arguments: &[&str], device: Device) -> Result<String> {
    let mut out = Vec::new();
    let args = Args::try_parse_from([&["llama"], arguments].concat())?;
    run(&args, device, &mut out)?;
    Ok(String::from_utf8(out)?)
}

fn runs(device: Device) -> Result<()> {
    let text = |arguments: &[&str]| {
        let out = output(&[&["--max-new-tokens", "12"], arguments].concat(), device)?;
        let (text, report) = out.rsplit_once("\n\nprefill: 16 tokens, ").context("a report")?;
        assert!(text.contains("\n\nOnce upon a time"), "{out}");
        ensure!(report.contains("decode: 12 tokens, ") && report.contains("MiB"), "{out}");
        Ok(text.to_owned())
    };
    let first = text(&[])?;
    assert_eq!(text(&["--no-graph"])?, first, "a graph and eager decoding draw the same tokens");
    assert_ne!(text(&["--seed", "1"])?, first);
    assert_ne!(text(&["--temperature", "0", "--dtype", "bf16"])?, first);
    Ok(())
}

#[test]
fn the_program_makes_a_model_and_continues_a_prompt() -> Result<()> {
    runs(Device::Cpu)?;
    simulated(runs)
}

/// A copy of a golden folder, removed on drop.
struct Copied(PathBuf);

impl Copied {
    fn new(model: &str) -> Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("warpline-llama-test-{}-{number}", std::process::id());
        let copy = Self(std::env::temp_dir().join(name));
        std::fs::create_dir(&copy.0)?;
        for file in std::fs::read_dir(golden(model))? {
            let file = file?;
            std::fs::copy(file.path(), copy.0.join(file.file_name()))?;
        }
        Ok(copy)
    }

    fn replace(&self, file: &str, from: &str, to: &str) -> Result<()> {
        let path = self.0.join(file);
        let text = std::fs::read_to_string(&path)?;
        ensure!(text.contains(from), "{file} has no `{from}`");
        Ok(std::fs::write(path, text.replace(from, to))?)
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bad_input_is_an_error_that_says_what_to_do() -> Result<()> {
    let tied = ("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    type Damage<'a> = &'a dyn Fn(&Copied) -> Result<()>;
    let remove =
        |file: &'static str| move |copy: &Copied| Ok(std::fs::remove_file(copy.0.join(file))?);
    let config = |from: &'static str, to: &'static str| {
        move |copy: &Copied| copy.replace("config.json", from, to)
    };
    let cases: [(&str, Damage<'_>, &str); 9] = [
        ("grouped_heads", &remove("config.json"), "--model is the folder of a Hugging Face model"),
        ("grouped_heads", &remove("tokenizer.json"), "must have the tokenizer as tokenizer.json"),
        ("tied_embeddings", &remove("model.safetensors"), "download the weights"),
        ("grouped_heads", &remove("model-00002-of-00002.safetensors"), "00002-of-00002"),
        ("grouped_heads", &config("LlamaFor", "OtherFor"), "only LlamaForCausalLM"),
        ("grouped_heads", &config("\"vocab_size\": 80", "\"vocab_size\": 81"), "implies [81, 32]"),
        ("grouped_heads", &config("\"vocab_size\": 80", "\"vocab_size\": 7"), "different models"),
        (
            "rope_scaling",
            &config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"),
            "is not a tensor of the model",
        ),
        ("tied_embeddings", &config(tied.1, tied.0), "no `lm_head.weight`"),
    ];
    for (model, damage, message) in cases {
        let copy = Copied::new(model)?;
        let folder = copy.0.to_str().context("a path of UTF-8")?;
        assert!(output(&["--model", folder, "--max-new-tokens", "1"], Device::Cpu).is_ok());
        damage(&copy)?;
        let error = output(&["--model", folder], Device::Cpu).unwrap_err();
        assert!(format!("{error:#}").contains(message), "{message}: {error:#}");
    }
    let long = "a".repeat(256);
    for (arguments, message) in [
        (&["--model", "/nowhere"][..], "/nowhere"),
        (&["--prompt", ""], "give a --prompt"),
        (&["--prompt", &long], "give a shorter --prompt"),
        (&["--temperature=-1"], "--temperature"),
        (&["--top-p", "0"], "--top-p"),
        (&["--dtype", "i8"], "give --dtype f32, bf16 or f16"),
    ] {
        let error = output(arguments, Device::Cpu).unwrap_err();
        assert!(format!("{error:#}").contains(message), "{message}: {error:#}");
    }
    let out = output(&["--prompt", &long[..250]], Device::Cpu)?;
    ensure!(out.contains("the model's context is full"), "{out}");
    Ok(())
}
