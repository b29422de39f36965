//! Tests of declared kernels: selection of their code by name and dtype, and launches.

use warpline_cuda_sys_safe::{DevicePtr, DriverError, HostLaunch, StreamHandle};

use super::*;
use crate::host::SharedPtr;
use crate::launch::Report;
use crate::module::Source;
use crate::testing::{Tensor, on_every_target};
use crate::{CudaDevice, Error, ErrorKind, IndexCheck, Site, cuda_struct, hosts};

cuda_struct! {
    /// Parameters without a report.
    struct Plain {
        number: u64,
    }
}

cuda_struct! {
    /// Parameters of a kernel that checks indices.
    struct Checked {
        report: Report,
        index: i64,
    }
}

static SOME: Program = Program::new("some", &["f16", "f64", "i32"], &["first", "second"], source);
static SIZES: Program = Program::new("sizes", &["u8", "u16", "u32", "u64"], &[""], source);
static ALL: Program = Program::new("all_dtypes", &DType::SUFFIXES, &[""], source);
static ONE: Program = Program::new("one", &[""], &[""], source);

fn source(_: &Program, _: &str) -> Source {
    Source::new()
}

/// Writes the size of the type and the number.
unsafe fn size_of_type<T>(launch: &HostLaunch<'_>, p: &Plain) {
    let out = SharedPtr::<u64>::operand(launch, launch.pointers.len() - 1);
    // SAFETY: the launches below have an operand of two words at the end.
    unsafe {
        out.write(0, size_of::<T>() as u64);
        out.write(1, p.number);
    }
}

// SAFETY: only two words of the last operand are touched, as each launch in this file declares.
static SECOND: Kernel<Plain, 2> =
    unsafe { Kernel::new(&SOME, "second", hosts!(I32 | F64, T => size_of_type::<T>)) };
// SAFETY: only two words of the last operand are touched.
static BITS: Kernel<Plain, 2> =
    unsafe { Kernel::new(&SIZES, "", hosts!(bits T => size_of_type::<T>)) };
// SAFETY: only two words of the last operand are touched.
static EACH: Kernel<Plain, 2> =
    unsafe { Kernel::new(&ALL, "", hosts!(all T => size_of_type::<T>)) };
// SAFETY: only two words of the last operand are touched.
static ANY: Kernel<Plain, 2> = unsafe { Kernel::new(&ONE, "", hosts!(any size_of_type::<u16>)) };
// SAFETY: only two words of the last operand are touched.
static BOTH: [Kernel<Plain, 2>; 2] = unsafe {
    let hosts = hosts!(float T => size_of_type::<T>).in_variant("f16");
    Kernel::array(&SOME, ["second", "first"], hosts.with_variant(DType::F64, "f64"))
};
// SAFETY: only two words of the last operand are touched.
static BY_LAST: Kernel<Plain, 2> =
    unsafe { Kernel::new(&ALL, "", hosts!(all T => size_of_type::<T>)) }.selected_by(1);
// SAFETY: only two words of the last operand are touched.
static EITHER: Kernel<Plain, 2> = unsafe {
    let hosts = hosts!(I32, T => size_of_type::<T>);
    Kernel::new(&SOME, "second", hosts.or(hosts!(I32 | F64, T => size_of_type::<u8>)))
};

// SAFETY: only two words of the last operand are touched.
static LIBRARY: LibraryOp<Plain, 2> =
    unsafe { LibraryOp::new(hosts!(I32 | F64, T => size_of_type::<T>)) };

fn numbers(kernel: &Kernel<Plain, 2>) -> Vec<Option<usize>> {
    kernel.variants.iter().map(|variant| variant.map(|variant| variant.number)).collect()
}

#[test]
fn names_select_kernels_and_variants() {
    assert_eq!((SECOND.number, BOTH[0].number, BOTH[1].number), (1, 1, 0));
    let none = [None; 4];
    let of_second = [&none[..], &[Some(2)], &none, &[Some(1)]].concat();
    assert_eq!(numbers(&SECOND), of_second, "i32 and f64 are the third and the second variant");
    assert_eq!(numbers(&EITHER), of_second);
    let sizes = DType::ALL.map(|dtype| Some([0, 1, 1, 2, 2, 2, 2, 3][dtype.size() - 1]));
    assert_eq!(numbers(&BITS), sizes);
    assert_eq!(numbers(&EACH), (0..10).map(Some).collect::<Vec<_>>());
    assert_eq!(numbers(&ANY), [Some(0); 10]);
    let halves_and_double =
        [None, None, None, None, None, None, Some(0), Some(0), Some(0), Some(1)];
    assert_eq!(numbers(&BOTH[1]), halves_and_double);
}

/// Runs a kernel on an operand of `dtype` and a result of two words. Returns the words.
fn launched(kernel: &Kernel<Plain, 2>, target: Target<'_>, dtype: DType) -> Result<Vec<f64>> {
    let (x, out) =
        (Tensor::new(target, dtype, &[1], &[0.0]), Tensor::garbage(target, DType::I64, &[2]));
    let operands = [x.view().read(), out.view().write()];
    kernel.launch(target, "sizes", &operands, &Plain { number: 5 }, Grid::cover(1, 32))?;
    Ok(out.floats(target))
}

#[test]
fn the_dtype_of_the_selecting_operand_selects_the_cpu_implementation() {
    on_every_target(|target| {
        for dtype in DType::ALL {
            let size = [dtype.size() as f64, 5.0];
            assert_eq!(launched(&EACH, target, dtype).unwrap(), size, "{dtype}");
            assert_eq!(launched(&BITS, target, dtype).unwrap(), size, "{dtype}");
            assert_eq!(launched(&ANY, target, dtype).unwrap(), [2.0, 5.0], "{dtype}");
            assert_eq!(launched(&BY_LAST, target, dtype).unwrap(), [8.0, 5.0], "{dtype}");
        }
        assert_eq!(launched(&BOTH[0], target, DType::BF16).unwrap(), [2.0, 5.0]);
        assert_eq!(launched(&EITHER, target, DType::I32).unwrap(), [4.0, 5.0], "the first list's");
        assert_eq!(launched(&EITHER, target, DType::F64).unwrap(), [1.0, 5.0], "the second list's");
    });
}

/// A library call that no target of these tests makes.
struct Never(Plain);

// SAFETY: nothing is enqueued.
unsafe impl LibraryCall<2> for Never {
    type Params = Plain;

    fn params(&self) -> &Plain {
        &self.0
    }

    unsafe fn enqueue(
        &self,
        _: &CudaDevice,
        _: StreamHandle,
        _: &[DevicePtr; 2],
    ) -> Result<(), DriverError> {
        unreachable!("there is no GPU")
    }
}

#[test]
fn a_library_op_runs_its_cpu_implementation_without_a_gpu() {
    on_every_target(|target| {
        let run = |dtype| {
            let x = Tensor::new(target, dtype, &[1], &[0.0]);
            let out = Tensor::garbage(target, DType::I64, &[2]);
            let operands = [x.view().read(), out.view().write()];
            LIBRARY.launch(target, "library", &operands, &Never(Plain { number: 5 }))?;
            Ok(out.floats(target))
        };
        assert_eq!(run(DType::I32).unwrap(), [4.0, 5.0]);
        let refused: Error = run(DType::F32).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::UnsupportedDType { dtype: DType::F32 }));
        assert_eq!(refused.location().expect("the line of the call").file(), file!());
    });
}

#[test]
fn dtypes_without_a_variant_are_refused() {
    on_every_target(|target| {
        let refused = launched(&SECOND, target, DType::F32).unwrap_err();
        assert_eq!(refused.op(), "sizes");
        assert!(
            matches!(refused.kind(), ErrorKind::UnsupportedDType { dtype: DType::F32 }),
            "{refused}"
        );
        let location = refused.location().expect("the line of the call");
        assert_eq!(location.file(), file!());
        assert!(SECOND.check_dtype("sizes", DType::F32).is_err());
        assert!(SECOND.check_dtype("sizes", DType::F64).is_ok());
    });
}

#[test]
fn parameters_that_begin_with_a_report_check_indices() {
    unsafe fn check(_: &HostLaunch<'_>, p: &Checked) {
        // SAFETY: the report is that of the running launch.
        unsafe { p.report.check_index(p.index) };
    }
    // SAFETY: no element is touched.
    static CHECK: Kernel<Checked, 1> = unsafe { Kernel::new(&ONE, "", hosts!(any check)) };
    const { assert!(Checked::BEGINS_WITH_REPORT && !Plain::BEGINS_WITH_REPORT) };
    on_every_target(|target| {
        let x = Tensor::new(target, DType::F32, &[1], &[0.0]);
        let run = |index| {
            let params = Checked { report: Report::new(1, 4), index };
            let site = Site::here("check");
            let operands = [x.view().read_write()];
            CHECK.launch_at(target, site, &operands, &params, Grid::new([1; 3], 1))?;
            let Target::Cuda(_, _, stream) = target else { return Ok(()) };
            stream.synchronize()
        };
        run(3).unwrap();
        let failed = IndexCheck::of(&run(4).unwrap_err()).expect("a failed check");
        assert_eq!((failed.op, failed.index, failed.dim, failed.size), ("check", 4, 1, 4));
    });
}

#[test]
fn grids_cover_all_threads_and_saturate() {
    assert_eq!(Grid::cover(257, 256), Grid::new([2, 1, 1], 256));
    assert_eq!(Grid::cover(0, 256), Grid::linear(0, 256));
    assert_eq!(Grid::linear(usize::MAX, 1), Grid::new([u32::MAX, 1, 1], 1));
}

#[test]
fn both_forms_of_a_declaration_define_the_same_struct() {
    #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C)]
    struct Apart {
        report: Report,
        index: i64,
    }
    cuda_struct!(Apart { report, index });
    let [whole, apart] = [Source::new().with::<Checked>(), Source::new().with::<Apart>()];
    assert_eq!(whole.text().replace("Checked", "Apart"), apart.text());
    const { assert!(Apart::BEGINS_WITH_REPORT) };
}

#[test]
fn a_source_that_does_not_take_the_parameters_is_found() {
    fn source(_: &Program, variant: &str) -> Source {
        Source::new().with::<Plain>().with::<Checked>().push(&format!(
            "#define BOTH(V) extern \"C\" __global__ void both_##V##_rows(f32* x, const __grid_constant__ Plain p) {{}} \
             extern \"C\" __global__ void both_##V(f32* x, const __grid_constant__ Checked p) {{}}\nBOTH({variant})"
        ))
    }
    fn without(_: &Program, _: &str) -> Source {
        Source::new().push("extern \"C\" __global__ void lacks(const __grid_constant__ Plain p) {}")
    }
    static BOTH: Program = Program::new("both", &["f32", "f64"], &["", "rows"], source);
    static LACKS: Program = Program::new("lacks", &[""], &[""], without);
    fn check<P: CudaType + bytemuck::Pod>(
        program: &'static Program,
        kernel: &str,
        hosts: Hosts<P>,
    ) -> Result<(), String> {
        // SAFETY: the kernel is not launched.
        unsafe { Kernel::<P, 1>::new(program, kernel, hosts) }.check_source()
    }
    unsafe fn any<P, T>(_: &HostLaunch<'_>, _: &P) {}
    let plain = hosts!(F32 | F64, T => any::<Plain, T>);
    let checked = hosts!(F32 | F64, T => any::<Checked, T>);
    assert_eq!(check(&BOTH, "rows", plain), Ok(()));
    assert_eq!(check(&BOTH, "", checked), Ok(()));
    let message = check(&BOTH, "rows", checked).unwrap_err();
    assert_eq!(message, "both_f32_rows: its last parameter is not a `Checked`");
    let message = check(&BOTH, "", plain).unwrap_err();
    assert_eq!(message, "both_f32: its last parameter is not a `Plain`");
    let message = check(&LACKS, "", hosts!(any any::<Plain, ()>)).unwrap_err();
    assert_eq!(message, "lacks: its source does not define `Plain` as in Rust");
}
