//! Measures the time of ops, of Warpline and of PyTorch in the same run, and writes a table as JSON and
//! Markdown.
//!
//! Run `cargo run --release -p warpline --example ops -- --python PATH`, or the program alone on a machine
//! without cargo. In each round, both libraries measure the row, one after the other. Without `--python`, only
//! Warpline is measured.

mod report;
mod rows;
mod spec;
mod table;
mod timing;
mod torch;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use warpline::{RuntimeConfig, cuda, with_runtime};

use report::About;
use spec::Spec;
use table::Op;
use torch::Torch;

/// The environment variable that sets the number of threads of CPU ops.
const THREADS: &str = "RAYON_NUM_THREADS";

/// Measures ops of Warpline, and of PyTorch too if `--python` is given.
#[derive(Debug, Parser)]
#[command(name = "ops")]
struct Options {
    /// The Python interpreter that has PyTorch
    #[arg(long)]
    python: Option<String>,
    /// Compare with NumPy instead of PyTorch; `--python` names an interpreter that has NumPy
    #[arg(long, requires = "python", requires = "cpu")]
    numpy: bool,
    /// Measure ops on the CPU instead of a GPU
    #[arg(long)]
    cpu: bool,
    /// Number of CPU threads on both sides. Default: all cores
    #[arg(long)]
    threads: Option<usize>,
    /// Number of rounds. The results are medians over rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure only rows whose name (`PART/OP DTYPE SIZES`) starts with this text
    #[arg(long, default_value = "")]
    only: String,
    /// List the rows without measuring
    #[arg(long)]
    list: bool,
    /// The folder for `ops.json` and `ops.md`
    #[arg(long, default_value = "target/ops")]
    out: PathBuf,
    /// The commit of this program, if git is not available
    #[arg(long)]
    commit: Option<String>,
    /// The driver: `cuda`, or `sim:1` for a simulated GPU, whose times are meaningless
    #[arg(long, default_value = "cuda")]
    driver: String,
    /// Use tiny tensors, to check that everything runs
    #[arg(long)]
    tiny: bool,
}

fn main() -> ExitCode {
    match start(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: &Options) -> Result<ExitCode> {
    if let Some(threads) = options.threads
        && std::env::var(THREADS).ok().as_deref() != Some(&*threads.to_string())
    {
        // The variable is read at the first use of threads, and a process cannot safely set it for itself.
        let mut again = Command::new(std::env::current_exe()?);
        let status =
            again.args(std::env::args_os().skip(1)).env(THREADS, threads.to_string()).status()?;
        return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let specs = specs(options);
    if options.list {
        specs.iter().for_each(|spec| println!("{}", spec.name()));
        return Ok(ExitCode::SUCCESS);
    }
    let start = |python| Torch::start(python, options.threads, options.numpy);
    let torch = options.python.as_deref().map(start);
    let rows = run(options, &specs, torch.transpose()?)?;
    println!("{}", options.out.join("ops.md").display());
    let failed = rows.iter().filter(|row| row.warpline.error.is_some()).count();
    if failed > 0 {
        eprintln!("error: {failed} rows failed");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the selected rows. On a GPU they always include the copy with which the other rows are compared.
fn specs(options: &Options) -> Vec<Spec> {
    let all = if options.cpu { rows::cpu() } else { rows::gpu() };
    let asked = |spec: &Spec| spec.name().starts_with(&options.only);
    let measure = if options.cpu { None } else { Some(rows::copy().name()) };
    all.into_iter()
        .filter(|spec| asked(spec) || Some(spec.name()) == measure)
        .map(|spec| if options.tiny { spec.tiny() } else { spec })
        .collect()
}

fn run(options: &Options, specs: &[Spec], torch: Option<Torch>) -> Result<Vec<report::Row>> {
    if options.cpu {
        return measure_all(options, specs, torch, "CPU only".to_owned());
    }
    let runtime = warpline::open(&options.driver, &RuntimeConfig::default());
    // Warpline's errors include their causes.
    let runtime = runtime.map_err(|error| anyhow!("{error}"))?;
    with_runtime(&runtime, || {
        // Captures need a stream other than the default.
        let stream = cuda::Stream::new(())?;
        let _on = cuda::stream(&stream)?;
        let name = cuda::get_device_name(())?;
        let real = options.driver == "cuda";
        measure_all(options, specs, torch, if real { name } else { format!("simulated {name}") })
    })
}

fn measure_all(
    options: &Options,
    specs: &[Spec],
    mut torch: Option<Torch>,
    device: String,
) -> Result<Vec<report::Row>> {
    let about = About {
        device,
        cpu: cpu_model(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        threads: options.threads,
        driver: match &*options.driver {
            _ if options.cpu => "none".to_owned(),
            "cuda" => driver_version(),
            simulated => simulated.to_owned(),
        },
        commit: options.commit.clone().unwrap_or_else(commit),
        beside: if options.numpy { "NumPy" } else { "PyTorch" },
        pytorch: torch.as_ref().map(|torch| torch.version.clone()),
        rounds: options.rounds,
    };
    let mut rows = Vec::new();
    let (mut copy, mut part) = (None, "");
    for spec in specs {
        if part != spec.part {
            part = spec.part;
            // Write after each part, so that an interrupted run leaves the completed parts.
            report::write(&options.out, &about, &rows)?;
            if !options.cpu {
                cuda::empty_cache();
            }
            torch.iter_mut().try_for_each(|torch| torch.forget(true))?;
        }
        let mut row = measure(options, spec, torch.as_mut())?;
        torch.iter_mut().try_for_each(|torch| torch.forget(false))?;
        row.conclude(copy);
        if spec.op == "copy_" && copy.is_none() {
            copy = row.fastest_rate();
            row.conclude(copy);
        }
        println!("{}", row.line(about.beside));
        rows.push(row);
    }
    report::write(&options.out, &about, &rows)?;
    Ok(rows)
}

/// Measures a row with both libraries, in turns. If one library fails, its error is recorded in the row and the
/// other library is still measured.
fn measure(options: &Options, spec: &Spec, torch: Option<&mut Torch>) -> Result<report::Row> {
    let op = Op::find(spec.op).with_context(|| format!("there is no op `{}`", spec.op))?;
    let mut row = report::Row::new(spec, op.amount(spec));
    let mut ours = keep(&mut row.warpline, timing::Row::new(op, spec));
    let mut theirs =
        torch.and_then(|torch| keep(&mut row.pytorch, torch.prepare(spec).map(|()| torch)));
    for round in 0..options.rounds {
        // The sides take turns at going first.
        for our_turn in [round % 2 == 0, round % 2 != 0] {
            if our_turn && let Some(prepared) = &mut ours {
                match keep(&mut row.warpline, prepared.measure()) {
                    Some(seconds) => row.warpline.seconds.push(seconds),
                    None => ours = None,
                }
            }
            if !our_turn && let Some(torch) = &mut theirs {
                match keep(&mut row.pytorch, torch.measure(spec.target_ms)) {
                    Some(seconds) => row.pytorch.seconds.push(seconds),
                    None => theirs = None,
                }
            }
        }
    }
    Ok(row)
}

fn keep<T, E: std::fmt::Display>(side: &mut report::Side, result: Result<T, E>) -> Option<T> {
    result.map_err(|error| side.error = Some(format!("{error:#}"))).ok()
}

fn commit() -> String {
    first_line(Command::new("git").args(["describe", "--always", "--dirty"]))
}

fn driver_version() -> String {
    let query = ["--query-gpu=driver_version", "--format=csv,noheader"];
    first_line(Command::new("nvidia-smi").args(query))
}

/// Returns the first line that a program prints, or `unknown`.
fn first_line(command: &mut Command) -> String {
    let output = command.output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.as_deref().and_then(|text| text.lines().next()).unwrap_or("unknown").trim().to_owned()
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn options(args: &[&str]) -> Options {
        Options::parse_from([&["ops"], args].concat())
    }

    #[test]
    fn every_row_has_an_op_and_a_name_of_its_own() {
        let rows: Vec<Spec> = rows::gpu().into_iter().chain(rows::cpu()).collect();
        let names: BTreeSet<String> = rows.iter().map(Spec::name).collect();
        assert_eq!(names.len(), rows.len());
        let used: BTreeSet<&str> = rows.iter().map(|row| row.op).collect();
        assert_eq!(used, table::OPS.iter().map(|op| op.name).collect());
        assert_eq!(rows::gpu()[0].name(), rows::copy().name());
    }

    #[test]
    fn rows_are_asked_for_by_the_start_of_their_names() {
        let found = specs(&options(&["--only", "host/add"]));
        let names: Vec<String> = found.iter().map(Spec::name).collect();
        assert_eq!(
            names,
            ["table/copy_ float32 2^28", "host/add float32 1024", "host/add_ float32 1024"]
        );
        let found = specs(&options(&["--cpu", "--only", "cpu/matmul f"]));
        assert_eq!(found.len(), 3);
    }

    fn runs(args: &[&str]) {
        let dir = format!("ops-{}-{}", args.join("-").replace(':', ""), std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let out = dir.to_str().unwrap();
        let options = options(&[args, &["--tiny", "--rounds", "1", "--out", out]].concat());
        let specs = specs(&options);
        let rows = run(&options, &specs, None).unwrap();
        let failed: Vec<String> = rows
            .iter()
            .filter(|row| row.warpline.error.is_some())
            .map(|row| row.line("PyTorch"))
            .collect();
        assert!(failed.is_empty(), "{failed:#?}");
        assert!(rows.iter().all(|row| row.warpline.seconds.len() == 1));
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let (json, table) = (read("ops.json"), read("ops.md"));
        std::fs::remove_dir_all(&dir).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["rows"].as_array().unwrap().len(), specs.len());
        for spec in &specs {
            let row = format!("| {} | {} |", spec.op, spec.operands());
            assert!(table.contains(&row), "no row {row} in\n{table}");
        }
    }

    #[test]
    fn every_row_runs_on_a_simulated_device() {
        runs(&["--driver", "sim:1"]);
    }

    #[test]
    fn every_row_runs_on_the_cpu() {
        runs(&["--cpu"]);
    }
}
