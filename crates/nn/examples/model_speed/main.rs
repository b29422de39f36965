//! Measures the time and peak memory of training steps, matrix products and decoding on a GPU, and compares with
//! PyTorch in the same run:
//!
//! ```text
//! cargo run --release -p warpline-nn --example model_speed -- --python python3 [--only mlp] [--benchmark] [--json]
//! ```
//!
//! PyTorch's side of ResNet-50 needs torchvision. With `--benchmark`, cuDNN's plans are chosen by trial on both sides.
//! The output is a Markdown table, or with `--json` a JSON object per line: first the conditions, then each row.
//! Without `--python` there is no comparison. `WARPLINE_DRIVER=sim:1` only checks that the program runs; its times are
//! meaningless.

mod decoder;
mod models;
#[path = "../resnet/model.rs"]
mod resnet;

use std::process::Command;
use std::time::Instant;

use decoder::{Decoder, DecoderSizes, Decoding, FusedDecoder, FusedDecoding};
use models::{Gpt, GptSizes, mlp};
use resnet::ResNet;
use serde_json::{Value, json};
use warpline::amp::autocast;
use warpline::autograd::no_grad;
use warpline::backends::cuda::matmul::set_fp32_precision;
use warpline::backends::cudnn;
use warpline::functional::cross_entropy;
use warpline::{DType, MemoryFormat, Result, Tensor, cuda, randint, randn};
use warpline_nn::Module;
use warpline_nn::amp::GradScaler;
use warpline_nn::optim::{AdamW, AdamWOptions, Optimizer, SGD, SGDOptions};

/// A measurement. `pytorch.py` prints the measurement of the same step under the same name.
struct Figure {
    name: &'static str,
    micros: f64,
    /// Peak of the allocated memory, in bytes.
    peak: usize,
}

/// PyTorch's measurement: the step's name, its microseconds, and the peak of the allocated memory in bytes.
type TorchFigure = (String, f64, f64);

impl Figure {
    /// Formats the row for a Markdown table.
    fn markdown(&self, torch: Option<&TorchFigure>) -> String {
        let (time, ratio, memory) = match torch {
            Some((_, micros, peak)) => (
                format!("{micros:.1} µs"),
                format!("{:.2}", micros / self.micros),
                format!("{:.2} GiB", gib(*peak)),
            ),
            None => <(String, String, String)>::default(),
        };
        let (name, micros, peak) = (self.name, self.micros, gib(self.peak as f64));
        format!("| {name} | {micros:.1} µs | {time} | {ratio} | {peak:.2} GiB | {memory} |")
    }

    /// Formats the row as JSON: times in microseconds, peaks in bytes.
    fn json(&self, torch: Option<&TorchFigure>) -> Value {
        json!({
            "step": self.name,
            "warpline": { "us": self.micros, "peak": self.peak },
            "pytorch": torch.map(|(_, micros, peak)| json!({ "us": micros, "peak": peak })),
            "ratio": torch.map(|(_, micros, _)| micros / self.micros),
        })
    }
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag);
        at.and_then(|at| args.get(at + 1)).cloned()
    };
    let only = after("--only").unwrap_or_default();
    let by_trial = args.iter().any(|arg| arg == "--benchmark");
    cudnn::set_benchmark(by_trial);
    let figures = ours(&only)?;
    let theirs = match after("--python") {
        Some(python) => torch(&python, &only, by_trial)?,
        None => Vec::new(),
    };
    let json = args.iter().any(|arg| arg == "--json");
    if json {
        let cores = std::thread::available_parallelism()?;
        println!("{}", json!({ "device": cuda::get_device_name(())?, "cores": cores }));
    } else {
        println!("| step | Warpline | PyTorch | ratio | peak, Warpline | peak, PyTorch |");
        println!("|---|---|---|---|---|---|");
    }
    for figure in figures {
        let torch = theirs.iter().find(|(name, ..)| name == figure.name);
        if json {
            println!("{}", figure.json(torch));
        } else {
            println!("{}", figure.markdown(torch));
        }
    }
    Ok(())
}

fn gib(bytes: f64) -> f64 {
    bytes / (1u64 << 30) as f64
}

/// PyTorch's script, embedded so that a single file is enough on a GPU host.
const PYTORCH: &str = include_str!("pytorch.py");

/// Runs PyTorch's script.
fn torch(python: &str, only: &str, by_trial: bool) -> anyhow::Result<Vec<TorchFigure>> {
    let mut command = Command::new(python);
    command.args(["-c", PYTORCH, only]);
    let output = command.args(by_trial.then_some("--benchmark")).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let line = |line: &str| {
        let mut parts = line.split('\t');
        let name = parts.next()?.to_owned();
        Some((name, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Returns the median time per call of `f` over `outer` runs of `inner` calls, after a warm-up.
fn median(
    name: &'static str,
    inner: u32,
    outer: usize,
    mut f: impl FnMut() -> Result<()>,
) -> Result<Figure> {
    cuda::reset_peak_memory_stats(())?;
    for _ in 0..3 {
        f()?;
    }
    cuda::synchronize(())?;
    let mut times = Vec::new();
    for _ in 0..outer {
        let start = Instant::now();
        for _ in 0..inner {
            f()?;
        }
        cuda::synchronize(())?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(inner));
    }
    times.sort_by(f64::total_cmp);
    Ok(Figure { name, micros: times[outer / 2], peak: cuda::max_memory_allocated(())? })
}

fn ours(only: &str) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if "mlp".starts_with(only) || only.starts_with("mlp") {
        figures.extend(small()?);
    }
    let narrow = GptSizes { width: 256, heads: 4, layers: 4, vocabulary: 1024, length: 1024 };
    let gpt2 = GptSizes { width: 768, heads: 12, layers: 12, vocabulary: 50304, length: 1024 };
    let (plain, bf16) = (Numbers::Are, DType::BF16);
    for (name, numbers, batch, length, sizes, outer) in [
        ("gpt 4 layers bf16 8x128", plain(bf16), 8, 128, narrow, 9),
        ("gpt2 124M bf16 8x1024", plain(bf16), 8, 1024, gpt2, 5),
        ("gpt2 124M f32 8x1024", plain(DType::F32), 8, 1024, gpt2, 5),
        ("gpt2 124M tf32 8x1024", Numbers::Tf32, 8, 1024, gpt2, 5),
        ("gpt2 124M autocast bf16 8x1024", Numbers::Autocast(bf16), 8, 1024, gpt2, 5),
        ("gpt2 124M autocast f16 8x1024", Numbers::Autocast(DType::F16), 8, 1024, gpt2, 5),
    ] {
        if name.starts_with(only) {
            figures.extend(gpt(name, numbers, (batch, length), sizes, outer)?);
        }
    }
    if "product".starts_with(only) || only.starts_with("product") {
        figures.extend(products()?);
    }
    if "llama".starts_with(only) || only.starts_with("llama") {
        figures.extend(decoding(only)?);
    }
    for (name, dtype, tf32, format, is_graph) in RESNETS {
        if name.starts_with(only) {
            figures.push(resnet50(name, dtype, tf32, format, is_graph)?);
        }
    }
    Ok(figures)
}

/// The rows of ResNet-50: name, dtype, whether TF32 is allowed, memory format, and whether the step is a graph.
const RESNETS: [(&str, DType, bool, MemoryFormat, bool); 5] = [
    ("resnet50 f32 64", DType::F32, false, MemoryFormat::Contiguous, false),
    ("resnet50 tf32 64", DType::F32, true, MemoryFormat::Contiguous, false),
    ("resnet50 bf16 64", DType::BF16, true, MemoryFormat::Contiguous, false),
    ("resnet50 bf16 channels last 64", DType::BF16, true, MemoryFormat::ChannelsLast, false),
    (
        "resnet50 bf16 channels last 64, a graph",
        DType::BF16,
        true,
        MemoryFormat::ChannelsLast,
        true,
    ),
];

/// Measures a training step of ResNet-50 with SGD on 64 images of 224 × 224.
fn resnet50(
    name: &'static str,
    dtype: DType,
    tf32: bool,
    format: MemoryFormat,
    is_graph: bool,
) -> Result<Figure> {
    cudnn::set_allow_tf32(tf32);
    let mut net = ResNet::new(50, 1000)?;
    net.to((dtype, "cuda"))?;
    net.to(format)?;
    let images = randn([64, 3, 224, 224], (dtype, "cuda"))?.contiguous_in(format)?;
    let classes = randint(0, 1000, [64], "cuda")?;
    let options = SGDOptions::new().lr(0.1).momentum(0.9);
    let mut sgd = SGD::new(net.parameters(), options)?;
    let mut step = || {
        sgd.zero_grad()?;
        cross_entropy(&net.forward(&images)?.to(DType::F32)?, &classes, ())?.backward()?;
        sgd.step()
    };
    if is_graph { captured(name, 5, step) } else { median(name, 5, 5, &mut step) }
}

/// The dtypes and the arithmetic of a step.
#[derive(Clone, Copy)]
enum Numbers {
    /// Parameters and matrix products have this dtype.
    Are(DType),
    /// Parameters of `float32`, whose products round their factors to TF32.
    Tf32,
    /// Parameters of `float32` in a region of autocast; with `GradScaler` if its dtype is `float16`.
    Autocast(DType),
}

/// Measures the product of PyTorch's note on TF32, in `float32` and in TF32.
fn products() -> Result<Vec<Figure>> {
    let (a, b) = (randn([10240, 10240], "cuda")?, randn([10240, 10240], "cuda")?);
    let mut figures = Vec::new();
    for (name, precision) in [("product 10240 f32", "ieee"), ("product 10240 tf32", "tf32")] {
        set_fp32_precision(precision)?;
        figures.push(median(name, 5, 5, || a.matmul(&b).map(drop))?);
    }
    set_fp32_precision("none")?;
    Ok(figures)
}

/// Measures a step of decoding, with plain and with fused functions, in four ways: with eager ops,
/// as single replays of a graph, as twenty replays in a row, and as a thousand replays in a row.
fn decoding(only: &str) -> Result<Vec<Figure>> {
    let sizes = DecoderSizes {
        width: 2048,
        heads: 32,
        key_heads: 8,
        hidden: 8192,
        layers: 16,
        vocabulary: 128_256,
        capacity: 1024,
    };
    let mut figures = Vec::new();
    if PLAIN.iter().any(|name| name.starts_with(only)) {
        let mut model = Decoder::new(sizes)?;
        model.to((DType::BF16, "cuda"))?;
        let state = Decoding::new(sizes)?;
        figures.extend(tokens(PLAIN, || state.step(&model), || Ok(()))?);
    }
    let mut model = FusedDecoder::new(sizes)?;
    model.to((DType::BF16, "cuda"))?;
    let state = FusedDecoding::new(sizes)?;
    figures.extend(tokens(FUSED, || state.step(&model), || state.reset())?);
    Ok(figures)
}

/// Names of the rows of decoding.
const PLAIN: [&str; 4] = [
    "llama 1.2B bf16, a token",
    "llama 1.2B bf16, a graph",
    "llama 1.2B bf16, a graph, 20 in a row",
    "llama 1.2B bf16, a graph, 1000 in a row",
];
/// Names of the rows of decoding with fused functions. PyTorch has no such functions.
const FUSED: [&str; 4] = [
    "llama 1.2B bf16 fused, a token",
    "llama 1.2B bf16 fused, a graph",
    "llama 1.2B bf16 fused, a graph, 20 in a row",
    "llama 1.2B bf16 fused, a graph, 1000 in a row",
];

/// Measures a step of decoding. `reset` empties the cache before each row.
fn tokens(
    [eager, one, twenty, thousand]: [&'static str; 4],
    step: impl Fn() -> Result<()>,
    reset: impl Fn() -> Result<()>,
) -> Result<Vec<Figure>> {
    let step = || no_grad(&step);
    reset()?;
    let mut figures = vec![median(eager, 20, 9, step)?];
    reset()?;
    let (graph, ()) = cuda::graph(step)?;
    for (name, inner, outer) in [(one, 1, 21), (twenty, 20, 9), (thousand, 1000, 1)] {
        reset()?;
        figures.push(median(name, inner, outer, || graph.replay())?);
    }
    Ok(figures)
}

/// Captures a step and returns the [`median`] of its replays.
fn captured(
    name: &'static str,
    inner: u32,
    mut step: impl FnMut() -> Result<()>,
) -> Result<Figure> {
    let side = cuda::Stream::new(())?;
    cuda::with_stream(&side, || (0..3).try_for_each(|_| step()))?;
    cuda::synchronize(())?;
    let (graph, ()) = cuda::graph(step)?;
    median(name, inner, 9, || graph.replay())
}

fn small() -> Result<Vec<Figure>> {
    let mut net = mlp()?;
    net.to("cuda")?;
    let (x, y) = (randn([64, 256], "cuda")?, randint(0, 10, [64], "cuda")?);
    let mut figures = Vec::new();
    let step = |optimizer: &mut dyn Optimizer| -> Result<()> {
        optimizer.zero_grad()?;
        cross_entropy(&net.forward(&x)?, &y, ())?.backward()?;
        optimizer.step()
    };
    let mut sgd = SGD::new(net.parameters(), SGDOptions::new().lr(0.01))?;
    figures.push(median("mlp 3x256 SGD", 100, 9, || step(&mut sgd))?);
    let mut adam = AdamW::new(net.parameters(), ())?;
    figures.push(median("mlp 3x256 AdamW", 100, 9, || step(&mut adam))?);
    let options = AdamWOptions::new().capturable(true);
    let mut adam = AdamW::new(net.parameters(), options)?;
    figures.push(captured("mlp 3x256 AdamW, a graph", 100, || step(&mut adam))?);
    let forward = || no_grad(|| net.forward(&x).map(drop));
    figures.push(median("mlp 3x256 forward", 200, 9, forward)?);
    Ok(figures)
}

/// Measures a training step of a GPT, and for the small model also the replay of the captured step.
fn gpt(
    name: &'static str,
    numbers: Numbers,
    (batch, length): (usize, usize),
    sizes: GptSizes,
    outer: usize,
) -> Result<Vec<Figure>> {
    let mut net = Gpt::new(sizes)?;
    let (dtype, region) = match numbers {
        Numbers::Are(dtype) => (dtype, None),
        Numbers::Tf32 => (DType::F32, None),
        Numbers::Autocast(region) => (DType::F32, Some(region)),
    };
    net.to((dtype, "cuda"))?;
    let tokens: Tensor = randint(0, sizes.vocabulary as i64, [batch, length], "cuda")?;
    let loss = || net.loss(&tokens, &tokens);
    let mut scaler = GradScaler::new(())?;
    let mut step = |adam: &mut AdamW| {
        adam.zero_grad()?;
        let loss = match region {
            Some(region) => autocast("cuda", region, loss)?,
            None => loss()?,
        };
        if region != Some(DType::F16) {
            loss.backward()?;
            return adam.step();
        }
        scaler.scale(&loss)?.backward()?;
        scaler.step(adam)?;
        scaler.update()
    };
    set_fp32_precision(if matches!(numbers, Numbers::Tf32) { "tf32" } else { "none" })?;
    let options = AdamWOptions::new().lr(1e-4);
    let mut adam = AdamW::new(net.parameters(), options)?;
    let mut figures = vec![median(name, 1, outer, || step(&mut adam))?];
    if let Some(name) = name.contains("4 layers").then_some("gpt 4 layers bf16, a graph") {
        let options = options.capturable(true);
        let mut adam = AdamW::new(net.parameters(), options)?;
        figures.push(captured(name, 10, || step(&mut adam))?);
    }
    set_fp32_precision("none")?;
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_json_have_the_same_figures() {
        let figure = Figure { name: "a step", micros: 2.0, peak: 1 << 30 };
        let torch = ("a step".to_owned(), 5.0, 2.0 * (1u64 << 30) as f64);
        let row = "| a step | 2.0 µs | 5.0 µs | 2.50 | 1.00 GiB | 2.00 GiB |";
        assert_eq!(figure.markdown(Some(&torch)), row);
        let expected = json!({
            "step": "a step",
            "warpline": { "us": 2.0, "peak": 1u64 << 30 },
            "pytorch": { "us": 5.0, "peak": 2.0 * (1u64 << 30) as f64 },
            "ratio": 2.5,
        });
        assert_eq!(figure.json(Some(&torch)), expected);
    }

    #[test]
    fn a_row_without_pytorch_has_no_ratio() {
        let figure = Figure { name: "a step", micros: 2.0, peak: 1 << 30 };
        assert_eq!(figure.markdown(None), "| a step | 2.0 µs |  |  | 1.00 GiB |  |");
        assert_eq!(figure.json(None)["ratio"], Value::Null);
    }

    /// The program runs from any folder without the script's file, because the script is embedded. A shell
    /// script takes the place of Python.
    #[test]
    #[cfg(unix)]
    fn pytorchs_side_is_found_without_its_file() {
        use std::process::Command;

        let folder =
            std::env::temp_dir().join(format!("warpline-model-speed-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let python = folder.join("python");
        let script = "#!/bin/sh\ncase \"$1|$2\" in\n-c*'import torch'*) printf \"$3 step\\t1.5\\t64\\n\";;\n*) exit 1;;\nesac\n";
        // A child writes the script, because a child that another test starts would keep a file of this process open
        // for writing, and such a file cannot run.
        let write = ["-c", "printf %s \"$1\" > \"$0\" && chmod +x \"$0\""];
        let written = Command::new("sh").args(write).arg(&python).arg(script).status().unwrap();
        assert!(written.success());
        let figures = torch(python.to_str().unwrap(), "mlp", false).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(figures, [("mlp step".to_owned(), 1.5, 64.0)]);
    }
}
