//! The committed PTX of all programs.

use std::collections::HashSet;
use std::path::Path;

use warpline_kernels::programs;
use warpline_kernels::{reduce, scan};
use warpline_runtime::module::{Program, single, specialized, stale};
use warpline_runtime::testing::on_gpu;

#[test]
fn names_are_given_once_and_files_are_of_these_sources() {
    let programs = programs();
    let names: HashSet<&str> = programs.iter().map(|program| program.name()).collect();
    assert_eq!(names.len(), programs.len());
    // Cargo runs tests in the package's folder.
    let stale = stale(Path::new("ptx"), &programs);
    let stale: Vec<&str> = stale.into_iter().map(Program::name).collect();
    assert!(stale.is_empty(), "run `cargo xtask ptx`: {stale:?}");
    let files = std::fs::read_dir("ptx").unwrap().map(|file| file.unwrap().file_name());
    let files: Vec<String> = files.map(|file| file.into_string().unwrap()).collect();
    let committed: Vec<&str> = files.iter().filter_map(|f| f.strip_suffix(".ptx.lzma")).collect();
    assert_eq!(committed.len(), programs.len());
    let orphans: Vec<_> = committed.iter().filter(|name| !names.contains(*name)).collect();
    assert!(orphans.is_empty(), "files of programs that are no more: {orphans:?}");
}

/// Kernels are looked up by these names.
#[test]
fn modules_have_every_kernel_and_no_other() {
    for program in programs() {
        for variant in 0..program.variants().len() {
            let ptx = program.ptx(variant).unwrap();
            let entries =
                ptx.lines().filter_map(|line| line.split_once(".entry ")?.1.split('(').next());
            let mut entries: Vec<&str> = entries.map(str::trim).collect();
            let mut names: Vec<String> = program.kernels(variant).collect();
            entries.sort_unstable();
            names.sort_unstable();
            assert_eq!(entries, names, "in {}", program.name());
        }
    }
}

/// A kernel is loaded alone, so its PTX must define every symbol it uses and no other kernel.
#[test]
fn single_kernels_define_all_that_they_use() {
    for program in programs() {
        for variant in 0..program.variants().len() {
            let ptx = program.ptx(variant).unwrap();
            let all = defined(ptx);
            for kernel in program.kernels(variant) {
                let part = single(ptx, &kernel);
                let entries: Vec<&str> =
                    part.lines().filter(|line| line.contains(".entry ")).collect();
                assert_eq!(entries.len(), 1, "in {kernel}: {entries:?}");
                assert!(entries[0].contains(&format!(" {kernel}(")), "{entries:?}");
                for head in [".version ", ".target ", ".address_size "] {
                    assert!(part.lines().any(|line| line.starts_with(head)), "{kernel}");
                }
                let own = defined(&part);
                let used: HashSet<&str> = words(&part).filter(|word| all.contains(word)).collect();
                let missing: Vec<_> = used.difference(&own).collect();
                assert!(missing.is_empty(), "{kernel} lacks {missing:?}");
                for name in called(&part) {
                    assert!(own.contains(name), "{kernel} calls {name}");
                }
            }
        }
    }
}

#[test]
fn newer_devices_round_to_bf16_by_an_instruction() {
    let add = programs().into_iter().find(|program| program.name() == "add").unwrap();
    let bf16 = add.variants().iter().position(|variant| *variant == "bf16").unwrap();
    let ptx = single(add.ptx(bf16).unwrap(), "add_bf16_flat");
    let rounds = ptx.matches("/* sm_80: cvt.rn.bf16.f32 ").count();
    assert!(rounds > 8, "a vector, and the one element of the rest");
    assert!(ptx.contains(".target sm_75\n"), "older ones do it by hand");
    let newer = specialized(ptx, (8, 0));
    assert!(newer.contains(".target sm_80\n"));
    let instructions = newer.lines().filter(|line| line.trim().starts_with("cvt.rn.bf16.f32 "));
    assert_eq!(instructions.count(), rounds);
    assert!(!newer.contains("bfe.u32"), "{newer}");
}

/// A wait in the middle of a kernel must precede all branches and all accesses to global memory.
#[test]
fn products_of_few_rows_wait_before_they_access_global_memory() {
    let programs = programs();
    let programs = programs.iter().filter(|program| program.name().starts_with("few_rows"));
    let mut kernels = 0;
    for program in programs {
        for variant in 0..program.variants().len() {
            for kernel in program.kernels(variant) {
                let ptx = single(program.ptx(variant).unwrap(), &kernel);
                let (before, _) = ptx.split_once("/* wait after: ").unwrap();
                let (_, before) = before.split_once("\n{\n").unwrap();
                for other in ["ld.global", "st.global", "bra", "$L", "call", "bar."] {
                    assert!(!before.contains(other), "{kernel} has {other} before its wait");
                }
                kernels += 1;
            }
        }
    }
    assert_eq!(kernels, 12);
}

/// The identifiers of `ptx`, in order of appearance.
fn words(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.split(|c: char| !(c.is_alphanumeric() || "_$%.".contains(c)))
}

/// The callees of all calls. NVRTC splits a call over several lines.
fn called(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.split("call.uni").skip(1).map(|call| {
        let call = call.split(';').next().unwrap().trim();
        let call = if call.starts_with('(') { call.split_once(')').unwrap().1 } else { call };
        words(call).find(|word| !word.is_empty()).unwrap()
    })
}

/// The names of functions with a body, and of variables outside of functions.
fn defined(ptx: &str) -> HashSet<&str> {
    let functions = ptx.split("\n.func ").skip(1).filter_map(|function| {
        let (head, rest) = function.split_once("\n)").unwrap();
        let head = head.trim_start();
        let head = if head.starts_with('(') { head.split_once(')').unwrap().1 } else { head };
        (!rest.trim_start().starts_with(';')).then(|| words(head).find(|w| !w.is_empty()))?
    });
    let is_variable = |line: &&str| {
        [".global ", ".const ", ".shared ", ".visible .", ".extern .", ".weak ."]
            .iter()
            .any(|space| line.starts_with(space))
            && !line.contains(".entry ")
            && !line.contains(".func ")
    };
    let variables = ptx
        .lines()
        .filter(is_variable)
        .filter_map(|line| line.split(['=', ';', '[']).next().unwrap().split_whitespace().last());
    functions.chain(variables).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_added_declarations_are_compiled_on_first_use() {
    on_gpu(reduce::added::squares);
    on_gpu(reduce::added::largest);
    on_gpu(scan::added::compare_with_a_loop);
}
