//! Tests of programs that need no compiler: definitions, files, loaded kernels.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use warpline_cuda_sys_safe::null::NullDriver;

use super::*;
use crate::cuda_struct;
use crate::iter::{Flat, Index, Params};

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Args {
    scale: f32,
    codes: [[u16; 2]; 3],
    last: u32,
}

cuda_struct!(Args { scale, codes, last });

#[test]
fn structs_are_defined_once_after_their_fields() {
    let text = Source::new().with::<Params<Flat, Args>>().with::<Args>().push("// end").text();
    for line in [
        "    f32 scale;\n    u16 codes[3][2];\n    u32 last;\n};\nstatic_assert(sizeof(Args) == 20, \"\");",
        "template <> struct Params<Flat, Args> {\n    Flat space;\n    Args args;\n};",
        "#define DTYPE_bf16 7\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert_eq!(text.matches("struct Args {").count(), 1);
    let at = |what: &str| text.find(what).unwrap();
    assert!(at("struct Flat {") < at("struct Params<Flat, Args> {"));
    assert!(at("struct Params<Flat, Args> {") < at("// end"));
    let text = Source::new().with::<Index<3>>().text();
    assert!(
        text.contains("template <> struct Index<3> {") && text.contains("IndexDim<3> dims[16];")
    );
}

fn of_args(program: &Program, variant: &str) -> Source {
    Source::new().with::<Args>().push(&format!("// {} of {variant}", program.name()))
}

static PROGRAM: Program = Program::new("test_program", &["f32", "f64"], &["flat", ""], of_args);

#[test]
fn kernels_are_named_after_program_variant_and_kernel() {
    let names: Vec<String> = PROGRAM.kernels(1).collect();
    assert_eq!(names, ["test_program_f64_flat", "test_program_f64"]);
}

#[test]
fn a_comment_on_its_own_line_is_not_part_of_the_hash() {
    fn program(source: fn(&Program, &str) -> Source) -> String {
        artefact::hash(&Program::new("commented", &[""], &[""], source), 0)
    }
    let bare = program(|_, _| Source::new().push("int a;"));
    let commented = program(|_, _| Source::new().push("  // The first.\nint a;\n// The end."));
    assert_eq!(bare, commented);
    assert_ne!(bare, program(|_, _| Source::new().push("int b;")));
}

#[test]
fn a_file_is_stale_when_its_source_has_changed() {
    let folder = std::env::temp_dir().join(format!("warpline-stale-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |text: &str| {
        let packed = artefact::compressed(text).unwrap();
        std::fs::write(folder.join("test_program.ptx.lzma"), packed).unwrap();
    };
    let is_stale = || !stale(&folder, &[&PROGRAM]).is_empty();
    assert!(is_stale(), "there is no file");
    let head = |variant| {
        format!(
            "//! variant {} {}\n",
            PROGRAM.variants()[variant],
            artefact::hash(&PROGRAM, variant)
        )
    };
    write(&format!("// made\n{}.one\n{}.two\n", head(0), head(1)));
    assert!(!is_stale());
    write(&format!("// made\n{}.one\n", head(0)));
    assert!(is_stale(), "a variant is missing");
    write(&format!("// made\n{}.one\n{}.two\n", head(0).replace("f32 ", "f32 0"), head(1)));
    assert!(is_stale(), "another source");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn variants_are_numbered_consecutively() {
    assert_eq!(PROGRAM.module_id(0) + 1, PROGRAM.module_id(1));
    let driver: Arc<dyn warpline_cuda_sys_safe::Driver> = Arc::new(NullDriver::new(1));
    let cache = KernelCache::new(None);
    let first = cache.function(&driver, 0, (&PROGRAM, 0, 0)).unwrap();
    assert_eq!(cache.function(&driver, 0, (&PROGRAM, 0, 0)).unwrap().0.raw(), first.0.raw());
    assert!(cache.function(&driver, 0, (&PROGRAM, 1, 2)).is_err(), "there are two kernels");
}

/// The file may be truncated or corrupt, so sizes in its header are checked before any allocation.
/// The file has no checksum: it is compiled in, and repositories and packages check their files.
#[test]
fn damaged_files_do_not_panic() {
    let ptx = |file: &[u8]| Some(artefact::section(&artefact::unpack(file)?, "f64")?.to_owned());
    let text = "// made\n//! variant f32 00\none\n//! variant f64 00\ntwo two two two two two\n";
    let whole = artefact::compressed(text).unwrap();
    assert_eq!(ptx(&whole).as_deref(), Some("two two two two two two\n"));
    // The decoder may not need the last bytes, which flush the encoder.
    for end in 0..whole.len() - 5 {
        assert_eq!(ptx(&whole[..end]), None, "cut off at {end}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            // Any result is accepted, as long as nothing panics.
            ptx(&changed);
        }
    }
    // Headers that claim a dictionary of 4 GiB, and a text of 2^60 bytes.
    let mut large = whole.clone();
    large[1..13].fill(0xff);
    assert_eq!(ptx(&large), None);
    let mut large = whole;
    large[5..13].copy_from_slice(&(1u64 << 60).to_le_bytes());
    assert_eq!(ptx(&large), None);
}
