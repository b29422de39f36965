//! Runs both frameworks and prints their figures beside each other.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};

use super::Args;
use super::launch::{Folder, pytorch, warpline};

/// Largest relative difference of a loss from PyTorch's.
const TOLERANCE: f64 = 1e-5;

/// The name of a framework, and the tokens per second of its run with one rank, if there was one.
type Side = (&'static str, Option<f64>);

pub(super) fn speed(args: &Args) -> anyhow::Result<()> {
    let folder = Folder::new()?;
    let mut sides: Vec<Side> = vec![("warpline", None)];
    if args.python.is_some() {
        sides.push(("pytorch", None));
    }
    if args.json {
        let cores = std::thread::available_parallelism()?;
        println!("{}", json!({ "cores": cores, "settings": args.settings() }));
    }
    for &ranks in &args.nproc {
        let mut row = Map::from_iter([("ranks".to_owned(), json!(ranks))]);
        for (name, one) in &mut sides {
            let measured = match &args.python {
                Some(python) if *name == "pytorch" => pytorch(args, python, &folder, ranks)?,
                _ => warpline(args, ranks)?,
            };
            let figures = derive(args, ranks, measured, one)?;
            if !args.json {
                println!("{name:8} {}", text(ranks, &figures));
            }
            row.insert((*name).to_owned(), figures);
        }
        if args.json {
            println!("{}", Value::from(row));
        }
    }
    Ok(())
}

/// Adds the figures that follow from the measured times: tokens per second, scaling, and communication that is not
/// hidden behind the backward pass.
fn derive(
    args: &Args,
    ranks: usize,
    mut measured: Value,
    one: &mut Option<f64>,
) -> anyhow::Result<Value> {
    let time = |name: &str| measured[name].as_f64();
    let step = time("step_us").context("no time of a step")?;
    let tokens = (ranks * args.batch * args.length) as f64;
    let exposed = time("no_sync_us").map(|alone| step - alone);
    let graph = time("graph_us").map(|step| tokens / step * 1e6);
    let each = tokens / step * 1e6 / ranks as f64;
    if ranks == 1 {
        *one = Some(each);
    }
    measured["tokens_per_s"] = json!(tokens / step * 1e6);
    measured["graph_tokens_per_s"] = json!(graph);
    measured["scaling"] = json!(one.map(|one| each / one));
    measured["not_hidden_us"] = json!(exposed);
    Ok(measured)
}

fn text(ranks: usize, figures: &Value) -> String {
    let mut line = format!("{ranks} rank(s):");
    for (name, label, unit) in [
        ("tokens_per_s", "", "tokens/s"),
        ("step_us", "step", "us"),
        ("graph_us", "step as a graph", "us"),
        ("scaling", "scaling", ""),
        ("no_sync_us", "without communication", "us"),
        ("not_hidden_us", "not hidden", "us"),
        ("last_all_reduce_us", "all-reduce of the last bucket", "us"),
    ] {
        if let Some(value) = figures[name].as_f64() {
            let digits = if name == "scaling" { 3 } else { 1 };
            line += &format!("  {label} {value:.digits$} {unit}");
        }
    }
    line
}

/// Compares the losses of the first steps.
pub(super) fn losses(args: &Args) -> anyhow::Result<()> {
    let python: &PathBuf = args.python.as_ref().context("--check needs --python")?;
    let folder = Folder::new()?;
    let mut args = args.clone();
    args.weights = Some(folder.path().join("initial.safetensors"));
    for &ranks in &args.nproc {
        let own = warpline(&args, ranks)?;
        let theirs = pytorch(&args, python, &folder, ranks)?;
        let losses = |row: &Value| -> Vec<f64> {
            row["losses"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let (own, theirs) = (losses(&own), losses(&theirs));
        ensure!(!own.is_empty() && own.len() == theirs.len(), "losses are missing");
        ensure!(own.iter().chain(&theirs).all(|loss| loss.is_finite()), "a loss is not finite");
        let differences = own.iter().zip(&theirs).map(|(a, b)| (a - b).abs() / b.abs());
        let largest = differences.fold(0.0, f64::max);
        if args.json {
            let row = json!({
                "ranks": ranks, "warpline": own, "pytorch": theirs, "largest_relative_difference": largest,
            });
            println!("{row}");
        } else {
            for (step, (own, theirs)) in own.iter().zip(&theirs).enumerate() {
                println!("{ranks} rank(s), step {step:2}: {own:.7}, PyTorch {theirs:.7}");
            }
            println!("{ranks} rank(s): largest relative difference {largest:.1e}");
        }
        ensure!(largest <= TOLERANCE, "the losses differ by a relative {largest:.1e}");
    }
    Ok(())
}
