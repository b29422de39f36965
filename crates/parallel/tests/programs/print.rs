//! Prints programs as Rust code.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::apply::Expect;
use crate::generate::Step;
use crate::ops;
use crate::plan::{Planned, plan};
use crate::row::Effect;

/// Returns the source of a Rust program that makes the calls, on the CPU and on simulated GPUs, and
/// prints the tensors that remain and the gradients of leaves.
pub(crate) fn source(program: &[Step], seed: u64, reason: &str) -> String {
    let plan = plan(program);
    let mut text = String::new();
    let reason = reason.replace('\n', "\n// ");
    let _ = writeln!(text, "// Program {seed}.\n// {reason}\n#![allow(unused)]\n");
    let _ =
        writeln!(text, "mod prelude {{\n{}}}\n", include_str!("prelude.rs").replace("//!", "//"));
    text += "use prelude::*;\nuse warpline::autograd::*;\nuse warpline::cuda::*;\n";
    text += "use warpline::functional::{ConvOptions, MaxPoolOptions, conv1d, max_pool2d};\nuse warpline::*;\n";
    text += "use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};\nuse std::thread::scope;\n";
    text += "use std::{sync::Arc, time::Duration};\nuse warpline::data::{DataLoader, DistributedSampler, RandomSampler, TensorDataset};\n";
    text += "use warpline::data::Sampler as _;\nuse warpline::multiprocessing::Channel;\nuse warpline_nn as nn;\n";
    text += "use warpline_nn::Module as _;\nuse warpline_nn::optim::Optimizer as _;\n";
    text += "use warpline_parallel::distributed::{Backend, HashStore, InitOptions, ReduceOptions, init_process_group};\n";
    text += "use warpline_parallel::{DataParallel, DataParallelOptions};\n\n";
    text += "fn program(world: &Runtime, streams: &[Vec<Stream>]) -> Result<()> {\n";
    for group in &plan.groups {
        if group.len() > 1 {
            let _ = writeln!(text, "    // The next {} steps run at the same time.", group.len());
        }
        plan.steps[group.clone()].iter().for_each(|planned| step(&mut text, planned));
    }
    for ((id, k), _) in &plan.live {
        let _ = writeln!(text, "    println!(\"v{id}_{k} = {{v{id}_{k}}}\");");
    }
    for (id, k) in &plan.leaves {
        let _ = writeln!(
            text,
            "    println!(\"gradient of v{id}_{k}: {{:?}}\", v{id}_{k}.grad().map(|g| g.to_string()));"
        );
    }
    text += "    Ok(())\n}\n\npub fn main() -> Result<()> {\n";
    let _ = writeln!(text, "    for spec in [\"\", \"sim:2,lazy\", \"sim:2,seed={seed}\"] {{");
    text += "        println!(\"-- {spec}\");
        let runtime = match spec {
            \"\" => Runtime::without_cuda(driver::DriverError::NoDevice { reason: String::new() }, &RuntimeConfig::default()),
            spec => open(spec, &RuntimeConfig::default())?,
        };
        with_runtime(&runtime, || -> Result<()> {
            warpline::manual_seed(1);
            let mut streams = vec![Vec::new(), Vec::new()];
            for device in 0..device_count()? {
                streams[device] = vec![Stream::new(device)?, Stream::new(device)?];
            }
            program(&runtime, &streams)
        })?;
    }
    Ok(())
}
";
    text
}

fn step(text: &mut String, planned: &Planned) {
    let step = &planned.step;
    let row = &ops::table()[step.row];
    let id = step.id;
    let name = |(id, k): &(usize, usize)| format!("v{id}_{k}");
    if row.effect == Effect::Drop {
        let _ = writeln!(text, "    drop({});", name(&step.tensors[0]));
        return;
    }
    let clones: Vec<String> = step.tensors.iter().map(|at| name(at) + ".clone()").collect();
    let expect = match &planned.expect {
        Expect::Ok(_) => "succeeds".to_owned(),
        Expect::Err(kinds) => format!("fails with {}", kinds.join(" or ")),
        Expect::Either(kinds) => format!("succeeds, or fails with {}", kinds.join(" or ")),
    };
    let _ = writeln!(text, "    // {}: {expect}.", row.name);
    let _ = writeln!(text, "    let mut r{id} = {{");
    let _ = writeln!(text, "        let t: &[Tensor] = &[{}];", clones.join(", "));
    let _ = writeln!(text, "        let n: &[i64] = &{:?};", step.numbers);
    let dense = if planned.dense { ".and_then(dense)" } else { "" };
    // The text is a closure: `|t, n| body`.
    let (parameters, body) = row.text[1..].split_once('|').expect("two parameters");
    let names: Vec<&str> = parameters.split(',').map(str::trim).collect();
    let _ = writeln!(
        text,
        "        let call = |{}: &[Tensor], {}: &[i64]| -> Result<Vec<Tensor>> {{ Results::list({}) }};",
        names[0],
        names[1],
        body.trim().replace("crate :: ", "").replace("crate::", "")
    );
    let _ = writeln!(text, "        let call = || {{");
    if step.stream > 0 {
        let _ = writeln!(
            text,
            "            let _guards = streams.iter().filter_map(|of| of.get({})).map(cuda::stream).collect::<Result<Vec<_>>>()?;",
            step.stream - 1
        );
    }
    let _ = writeln!(text, "            call(t, n){dense}\n        }};");
    let run = if step.thread {
        "scope(|s| s.spawn(|| with_runtime(world, call)).join().unwrap())"
    } else {
        "call()"
    };
    let _ = writeln!(text, "        {run}\n    }};");
    match &planned.expect {
        Expect::Ok(values) => {
            let _ = writeln!(text, "    let mut r{id} = r{id}?;");
            for k in 0..values.len() {
                let _ = writeln!(text, "    let v{id}_{k} = r{id}.remove(0);");
            }
        }
        Expect::Err(kinds) if kinds.contains(&"DeviceMismatch") => {
            let _ = writeln!(text, "    assert!(r{id}.is_err() || device_count()? == 0);");
        }
        Expect::Err(_) => {
            let _ = writeln!(text, "    assert!(r{id}.is_err());");
        }
        Expect::Either(_) => {}
    }
}

/// Printed programs compile. Together, they call every row of the table.
#[test]
fn printed_programs_compile() {
    // Compiling takes long, so the text consists of the programs that call most rows for their length.
    let mut programs = Vec::new();
    let mut missing: BTreeSet<usize> = (0..ops::table().len()).collect();
    let mut reached = BTreeSet::<usize>::new();
    for seed in 0..4000 {
        if reached.len() == missing.len() {
            break;
        }
        let program = crate::generate::program(seed);
        let called: BTreeSet<usize> = plan(&program).steps.iter().map(|p| p.step.row).collect();
        reached.extend(called.iter().copied());
        programs.push((seed, source(&program, seed, "no reason"), called));
    }
    let mut text = String::from("#![allow(dead_code)]\nfn main() {}\n");
    let length_per_row =
        |missing: &BTreeSet<usize>, (_, text, called): &(u64, String, BTreeSet<usize>)| {
            let new = called.intersection(missing).count();
            text.len().checked_div(new).unwrap_or(usize::MAX)
        };
    while let Some((seed, program, called)) =
        programs.iter().min_by_key(|program| length_per_row(&missing, program))
        && !called.is_disjoint(&missing)
    {
        let _ = writeln!(text, "mod program{seed} {{\n{program}}}");
        missing.retain(|row| !called.contains(row));
    }
    let missing: Vec<&str> = missing.iter().map(|&row| ops::table()[row].name).collect();
    assert!(missing.is_empty(), "no program calls {missing:?}");
    compile(&text);
}

/// Type-checks a program against the library with which this test was built.
fn compile(text: &str) {
    let folder = std::env::temp_dir().join(format!("warpline-printed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let file = folder.join("program.rs");
    std::fs::write(&file, text).expect("a temporary file");
    let exe = std::env::current_exe().expect("this program");
    let deps = exe.parent().expect("a folder");
    // There may also be libraries that were built with other features, so the newest come first.
    let libraries = |name: &str| {
        let start = format!("lib{name}-");
        let all = std::fs::read_dir(deps).expect("the folder of libraries").flatten();
        let named = all.filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with(&start) && name.ends_with(".rlib")
        });
        let mut found: Vec<_> = named
            .map(|entry| (entry.metadata().and_then(|m| m.modified()).ok(), entry.path()))
            .collect();
        found.sort();
        let newest = found.into_iter().rev();
        newest.map(|(_, path)| format!("{name}={}", path.display())).collect::<Vec<_>>()
    };
    let mut sets: Vec<Vec<String>> = vec![vec![]];
    for name in ["warpline_cuda_sys_safe", "warpline", "warpline_nn", "warpline_parallel"] {
        let found = libraries(name);
        let with =
            |set: &Vec<String>, path: &String| [&set[..], std::slice::from_ref(path)].concat();
        sets = sets.iter().flat_map(|set| found.iter().map(|path| with(set, path))).collect();
    }
    let mut errors = String::from("no library found");
    for set in sets {
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let output = std::process::Command::new(rustc)
            .args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "-Awarnings"])
            .arg("--out-dir")
            .arg(&folder)
            .arg("-L")
            .arg(format!("dependency={}", deps.display()))
            .args(set.iter().flat_map(|library| ["--extern", library]))
            .arg(&file)
            .output()
            .expect("rustc runs");
        if output.status.success() {
            std::fs::remove_dir_all(&folder).expect("the folder is removed");
            return;
        }
        errors = String::from_utf8_lossy(&output.stderr).into_owned();
    }
    panic!("{} does not compile:\n{errors}", file.display());
}
