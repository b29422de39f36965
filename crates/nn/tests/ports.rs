//! Tests that the ports of PyTorch's example programs and of nanoGPT learn, on the CPU and on a simulated GPU, and
//! that they have at most 1.4 times as many lines as the original programs.

use std::env::consts::EXE_EXTENSION;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// A port, and how to test it.
struct Port {
    /// The name of the port and of its module.
    name: &'static str,
    /// Lines of PyTorch's program without blanks and comments.
    pytorch_lines: usize,
    /// Options that make the run short.
    args: &'static str,
    /// The text that the port prints before each number that shows its progress.
    before: &'static str,
    /// Whether the first and the last of these numbers show that the program learns.
    learns: fn(f64, f64) -> bool,
}

const PORTS: &[Port] = &[
    Port {
        name: "mnist",
        pytorch_lines: 119,
        args: "--steps 31 --small",
        before: "Loss: ",
        learns: |first, last| last < 0.8 * first,
    },
    Port {
        name: "vae",
        pytorch_lines: 106,
        args: "--steps 21",
        before: "Loss: ",
        learns: |first, last| last < 0.9 * first,
    },
    Port {
        name: "dcgan",
        pytorch_lines: 216,
        args: "--steps 10 --small",
        before: "Loss_D: ",
        learns: |first, last| last < 0.9 * first,
    },
    Port {
        name: "actor_critic",
        pytorch_lines: 91,
        args: "--steps 50 --small",
        before: "Average reward: ",
        learns: |first, last| last > 2.0 * first,
    },
    Port {
        name: "time_sequence_prediction",
        pytorch_lines: 88,
        args: "--steps 1 --small",
        before: "\nloss: ",
        learns: |first, last| last < 0.2 * first,
    },
    Port {
        name: "gat",
        pytorch_lines: 179,
        args: "--steps 20 --small",
        before: "acc_train: ",
        learns: |first, last| last > 1.2 * first,
    },
    Port {
        name: "word_language_model",
        pytorch_lines: 333,
        args: "--steps 1 --small",
        before: "| loss ",
        learns: |first, last| last < 0.95 * first,
    },
    Port {
        name: "word_language_model_transformer",
        pytorch_lines: 333,
        args: "--steps 1 --small",
        before: "| loss ",
        learns: |first, last| last < 0.95 * first,
    },
    Port {
        name: "nanogpt",
        pytorch_lines: 453,
        args: "--steps 15 --small",
        before: "train loss ",
        learns: |first, last| last < 0.97 * first,
    },
];

#[test]
fn the_ports_learn_on_both_kinds_of_devices() {
    let own = std::env::current_exe().expect("this test's file");
    let folder = own.parent().and_then(Path::parent).expect("target folder, profile, deps");
    let target = folder.parent().expect("target folder");
    let profile = match folder.file_name().and_then(OsStr::to_str).expect("a profile") {
        "debug" => "dev",
        other => other,
    };
    // Build with the features of the whole workspace, which `cargo test --workspace` has built
    // already.
    let mut build = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    build.args(["build", "--quiet", "--workspace", "--profile", profile, "--target-dir"]);
    let output = build.arg(target).args(["--example", "ports"]).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let program = folder.join("examples").join("ports").with_extension(EXE_EXTENSION);
    // The programs run on one core for most of their time.
    let program = &program;
    std::thread::scope(|scope| {
        for device in ["cpu", "cuda"] {
            scope.spawn(move || PORTS.iter().for_each(|port| learns(program, port, device)));
        }
    });
}

fn learns(program: &Path, port: &Port, device: &str) {
    let (name, begin) = (port.name, std::time::Instant::now());
    let output = Command::new(program)
        .args([name, "--device", device])
        .args(port.args.split(' '))
        .env("WARPLINE_DRIVER", "sim:1")
        .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
        .env_remove("CUDA_VISIBLE_DEVICES")
        .output()
        .expect(name);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} on {device}: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = numbers(&text, port.before);
    println!("{name} on {device}: {:.1} s, {numbers:?}", begin.elapsed().as_secs_f64());
    assert!(numbers.len() > 1, "{name} on {device} prints `{}`: {text}", port.before);
    let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
    assert!((port.learns)(first, last), "{name} on {device}: {first} to {last}\n{text}");
}

/// Returns the numbers that follow `before`.
fn numbers(text: &str, before: &str) -> Vec<f64> {
    let number = |part: &str| part.split_whitespace().next()?.trim_end_matches(',').parse().ok();
    text.split(before).skip(1).filter_map(number).collect()
}

#[test]
fn the_ports_are_about_as_long_as_in_pytorch() {
    for Port { name, pytorch_lines, .. } in PORTS {
        let lines = lines_of(Path::new("examples/ports"), name.trim_end_matches("_transformer"));
        println!("{name}: {lines} lines, {pytorch_lines} in PyTorch");
        assert!(
            lines * 10 <= pytorch_lines * 14,
            "{name}: {lines} lines, {pytorch_lines} in PyTorch"
        );
    }
}

/// Returns the number of lines without blanks and comments of a module: a file, or a folder of files.
fn lines_of(folder: &Path, module: &str) -> usize {
    let files = match std::fs::read_dir(folder.join(module)) {
        Ok(files) => files.map(|file| file.expect("a file").path()).collect(),
        Err(_) => vec![folder.join(format!("{module}.rs"))],
    };
    let lines = |file: &std::path::PathBuf| {
        let text = std::fs::read_to_string(file).expect("a source file");
        let code = text.lines().map(str::trim);
        code.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
    };
    files.iter().map(lines).sum()
}
