//! Tests of `embedding_bag` on tensors: on the CPU, on simulated devices and on a GPU. Also tests of the committed PTX
//! and of the code in `docs/custom-ops.md`.

use std::path::Path;
use std::sync::Arc;

use warpline::autograd::{Context, Function, GradcheckOptions, Gradients, ToSave};
use warpline::autograd::{gradcheck, gradgradcheck};
use warpline::cuda;
use warpline::{DType, Error, ErrorKind, RaceReport, Result, Runtime, RuntimeConfig, SyncPolicy};
use warpline::{Race, Tensor, full, tensor, with_runtime, zeros};
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver, ViolationKind};
use warpline_runtime::IndexCheck;
use warpline_runtime::host::{HostLaunch, SharedPtr};
use warpline_runtime::launch::{Grid, Kernel};
use warpline_runtime::module::{Program, Source, stale};
use warpline_runtime::{Target, View, hosts};

use crate::embedding_bag::{PROGRAM, embedding_bag};

/// Applies the op to tensors.
#[track_caller]
fn bags(weight: &Tensor, indices: &Tensor) -> Result<Tensor> {
    let out = zeros([indices.size()[0], weight.size()[1]], (weight.dtype(), weight.device()))?;
    let exec = weight.exec()?;
    embedding_bag(exec.target(), weight.as_view(), indices.as_view(), out.as_view())?;
    Ok(out)
}

/// `embedding_bag` with its gradient.
struct EmbeddingBag;

impl Function for EmbeddingBag {
    const NAME: &'static str = "embedding_bag";

    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        save.tensor(inputs[1]);
        Ok(vec![bags(inputs[0], inputs[1])?])
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let indices = context.saved(0)?;
        let Some(grad) = &grads[0] else { return Ok([None, None].into_iter().collect()) };
        // Each row of the weight that a bag names receives the gradient of the bag.
        let rows = grad.repeat_interleave(indices.size()[1], 0)?;
        let weight = zeros(context.sizes(0), (grad.dtype(), grad.device()))?;
        let weight = weight.index_add(0, &indices.reshape([-1])?, &rows)?;
        Ok([Some(weight), None].into_iter().collect())
    }
}

const SCHEDULES: [Schedule; 6] = [
    Schedule::Eager,
    Schedule::Lazy,
    Schedule::Seeded(1),
    Schedule::Seeded(2),
    Schedule::Seeded(3),
    Schedule::Seeded(4),
];

/// Returns a simulated device that checks the accesses of kernels.
fn simulated(schedule: Schedule, sync_policy: SyncPolicy) -> (Arc<SimDriver>, Runtime) {
    let sim = SimConfig { schedule, check_footprints: true, ..SimConfig::new(1) }.build();
    let race_report = RaceReport::Error;
    let config = RuntimeConfig { sync_policy, race_report, ..RuntimeConfig::default() };
    (sim.clone(), Runtime::new(sim, config).unwrap())
}

/// Runs `body` on a simulated device under each schedule, with accesses checked against
/// declarations.
fn on_simulated(body: impl Fn() -> Result<()>) {
    for schedule in SCHEDULES {
        let (sim, runtime) = simulated(schedule, SyncPolicy::Auto);
        with_runtime(&runtime, &body).unwrap();
        assert!(sim.violations().is_empty(), "{schedule:?}: {:?}", sim.violations());
        assert!(sim.overruns().is_empty(), "{schedule:?}: {:?}", sim.overruns());
    }
}

/// Computes the result with a plain loop over row-major values.
fn expected(weight: &[f64], width: usize, indices: &[i64], bag: usize) -> Vec<f64> {
    let row = |of: &[i64], c: usize| of.iter().map(|i| weight[*i as usize * width + c]).sum();
    indices.chunks(bag).flat_map(|of| (0..width).map(move |c| row(of, c))).collect()
}

const SIZE: usize = 7;
const WIDTH: usize = 5;
const ROWS: usize = 150;
const BAG: usize = 4;

/// Compares several layouts of the operands, and empty bags, with the plain loop. Sums of these numbers are exact.
fn is_the_plain_loop(device: &str) -> Result<()> {
    let values: Vec<f64> = (0..SIZE * WIDTH).map(|i| (i as f64 - 11.0) / 4.0).collect();
    let indices: Vec<i64> = (0..ROWS * BAG).map(|i| (i * i % SIZE) as i64).collect();
    let result = expected(&values, WIDTH, &indices, BAG);
    let of = |data: &[f64], sizes: [isize; 2], dtype| -> Result<Tensor> {
        tensor(data, device)?.to(dtype)?.reshape(sizes)
    };
    let transposed: Vec<f64> =
        (0..WIDTH * SIZE).map(|i| values[i % SIZE * WIDTH + i / SIZE]).collect();
    let index = tensor(indices.as_slice(), device)?.reshape([ROWS as isize, BAG as isize])?;
    for dtype in [DType::F32, DType::F64] {
        let weight = of(&values, [SIZE as isize, WIDTH as isize], dtype)?;
        let turned = of(&transposed, [WIDTH as isize, SIZE as isize], dtype)?.t()?;
        assert_ne!(turned.stride(), weight.stride());
        for weight in [weight, turned] {
            assert_eq!(bags(&weight, &index)?.to(DType::F64)?.to_vec::<f64>()?, result);
            let part = index.narrow(0, 3, 20)?.narrow(1, 1, 2)?;
            let some: Vec<i64> = part.reshape([-1])?.to_vec()?;
            let some = expected(&values, WIDTH, &some, 2);
            assert_eq!(bags(&weight, &part)?.to(DType::F64)?.to_vec::<f64>()?, some);
        }
        let none =
            bags(&of(&values, [SIZE as isize, WIDTH as isize], dtype)?, &index.narrow(1, 0, 0)?)?;
        assert_eq!(none.to(DType::F64)?.to_vec::<f64>()?, [0.0; ROWS * WIDTH]);
    }
    Ok(())
}

#[test]
fn the_cpu_agrees_with_a_plain_loop() {
    is_the_plain_loop("cpu").unwrap();
}

#[test]
fn simulated_devices_do_under_every_schedule() {
    on_simulated(|| is_the_plain_loop("cuda"));
}

#[test]
fn streams_are_ordered_by_its_operands() {
    on_simulated(|| {
        let (one, other) = (cuda::Stream::new(())?, cuda::Stream::new(())?);
        let index = tensor([[0i64, 1], [1, 1]], "cuda")?;
        let weight = cuda::with_stream(&one, || full([2, 3], 1.0, "cuda")? * 3.0)?;
        let sums = cuda::with_stream(&other, || bags(&weight, &index))?;
        cuda::with_stream(&one, || weight.fill_(100.0))?;
        assert_eq!(sums.to_vec::<f32>()?, [6.0; 6]);
        Ok(())
    });
}

#[track_caller]
fn failed<T>(result: Result<T>) -> IndexCheck {
    let error = result.map(|_| ()).expect_err("an index is out of range");
    IndexCheck::of(&error).unwrap_or_else(|| panic!("another error: {error}"))
}

fn assert_is_of(failed: &IndexCheck, line: u32) {
    assert_eq!((failed.op, failed.index, failed.size, failed.dim), ("embedding_bag", 9, 2, 0));
    assert_eq!((failed.location.file(), failed.location.line()), (file!(), line));
}

#[test]
fn an_index_that_is_out_of_range_is_an_error_with_the_place_of_the_call() {
    let weight = full([2, 3], 1.0, "cpu").unwrap();
    let index = tensor([[0i64, 9]], "cpu").unwrap();
    let (result, line) = (bags(&weight, &index), line!());
    assert_is_of(&failed(result), line);
    on_simulated(|| {
        let (weight, index) = (full([2, 3], 1.0, "cuda")?, tensor([[0i64, 9]], "cuda")?);
        let (sums, line) = (bags(&weight, &index)?, line!());
        assert_is_of(&failed(sums.to_vec::<f32>()), line);
        assert_is_of(&failed((&sums + 1.0).and_then(|more| more.to_vec::<f32>())), line);
        // The device stays usable.
        let index = tensor([[0i64, 1]], "cuda")?;
        assert_eq!(bags(&weight, &index)?.to_vec::<f32>()?, [2.0; 3]);
        Ok(())
    });
}

#[test]
fn uses_that_nothing_orders_are_a_race_under_the_manual_policy() {
    let (_, runtime) = simulated(Schedule::Lazy, SyncPolicy::Manual);
    let raced = with_runtime(&runtime, || {
        let index = tensor([[0i64, 1]], "cuda")?;
        let weight = full([2, 3], 1.0, "cuda")?;
        cuda::synchronize(())?;
        let (one, other) = (cuda::Stream::new(())?, cuda::Stream::new(())?);
        cuda::with_stream(&one, || weight.fill_(2.0).map(drop))?;
        let (raced, line) = cuda::with_stream(&other, || Ok((bags(&weight, &index), line!())))?;
        let error = raced.expect_err("a race");
        let race = error.find::<Race>().expect("a race");
        assert_eq!((race.first.op, race.second.op), ("fill_", "embedding_bag"));
        assert_eq!((race.second.argument, race.second.location.line()), (0, line));
        other.wait_stream(&one)?;
        cuda::with_stream(&other, || bags(&weight, &index)?.to_vec::<f32>())
    });
    assert_eq!(raced.unwrap(), [4.0; 3], "once it is waited for");
}

#[test]
fn graphs_replay_it_and_its_check() {
    on_simulated(|| {
        let (weight, index) = (full([2, 3], 1.0, "cuda")?, tensor([[0i64, 1]], "cuda")?);
        let ((graph, sums), line) = (cuda::graph(|| bags(&weight, &index))?, line!());
        graph.replay()?;
        assert_eq!(sums.to_vec::<f32>()?, [2.0; 3]);
        weight.fill_(5.0)?;
        graph.replay()?;
        assert_eq!(sums.to_vec::<f32>()?, [10.0; 3]);
        index.fill_(9)?;
        graph.replay()?;
        assert_is_of(&failed(sums.to_vec::<f32>()), line);
        Ok(())
    });
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (weight, index) = (zeros([4, 4], DType::F64).unwrap(), zeros([4, 4], DType::I64).unwrap());
    let out = zeros([4, 4], DType::F64).unwrap();
    let run = |weight: &Tensor, index: &Tensor, out: &Tensor| {
        let exec = weight.exec()?;
        embedding_bag(exec.target(), weight.as_view(), index.as_view(), out.as_view())
    };
    run(&weight, &index, &out).unwrap();
    let refused = |result: Result<()>| result.unwrap_err();
    assert!(matches!(
        refused(run(&index, &index, &out)).kind(),
        ErrorKind::UnsupportedDType { .. }
    ));
    assert!(matches!(refused(run(&weight, &weight, &out)).kind(), ErrorKind::DTypeMismatch { .. }));
    let row = out.narrow(0, 0, 1).unwrap();
    assert!(matches!(refused(run(&weight, &index, &row)).kind(), ErrorKind::ShapeMismatch { .. }));
    let same = row.expand([4, 4]).unwrap();
    assert!(matches!(refused(run(&weight, &index, &same)).kind(), ErrorKind::OverlappingWrite));
    assert!(matches!(refused(run(&out, &index, &out)).kind(), ErrorKind::OverlappingOperands));
}

/// Writes two elements, although the launch declares only the first.
///
/// # Safety
/// Operand 1 has a second element of `f32`.
unsafe fn writes_two(launch: &HostLaunch<'_>, _: &u32) {
    let out = SharedPtr::<f32>::operand(launch, 1);
    // SAFETY: operand 1 has two elements of `f32`, as the caller guarantees.
    unsafe { (out.write(0, 1.0), out.write(1, 1.0)) };
}

/// Reads the element after the declared one, and writes its complement.
///
/// # Safety
/// Operand 0 has a second element of `u32`.
unsafe fn reads_next(launch: &HostLaunch<'_>, _: &u32) {
    let (of, out) = (SharedPtr::<u32>::operand(launch, 0), SharedPtr::<u32>::operand(launch, 1));
    // SAFETY: operand 0 has two elements of `u32`, as the caller guarantees.
    unsafe { out.write(0, !of.read(1)) };
}

/// Writes nothing.
///
/// # Safety
/// None.
unsafe fn writes_none(_: &HostLaunch<'_>, _: &u32) {}

/// A program without GPU code, for kernels whose declarations are wrong.
static LIES: Program = Program::new("lies", &[""], &[""], |_, _| Source::new());

// SAFETY: the kernel writes more than `lie` declares, but within a tensor that no other work uses.
static WRITES_TWO: Kernel<u32, 2> = unsafe { Kernel::new(&LIES, "", hosts!(any writes_two)) };
// SAFETY: the kernel reads more than `lie` declares, but within a tensor that no other work uses.
static READS_NEXT: Kernel<u32, 2> = unsafe { Kernel::new(&LIES, "", hosts!(any reads_next)) };
// SAFETY: the kernel touches nothing.
static WRITES_NONE: Kernel<u32, 2> = unsafe { Kernel::new(&LIES, "", hosts!(any writes_none)) };

#[track_caller]
fn lie(target: Target<'_>, kernel: &Kernel<u32, 2>, of: View<'_>, out: View<'_>) -> Result<()> {
    let [of_first, out_first] = [of, out].map(|view| view.layout.narrow(0, 0, 1).unwrap());
    let operands =
        [View { layout: &of_first, ..of }.read(), View { layout: &out_first, ..out }.write()];
    kernel.launch(target, "lie", &operands, &0, Grid::new([1; 3], 1))
}

#[test]
fn an_op_that_lies_about_its_operands_is_found_out() {
    let lies = [
        (&WRITES_TWO, ViolationKind::UndeclaredWrite),
        (&READS_NEXT, ViolationKind::UndeclaredRead),
        (&WRITES_NONE, ViolationKind::MissingWrite),
    ];
    for (kernel, kind) in lies {
        let (sim, runtime) = simulated(Schedule::Lazy, SyncPolicy::Auto);
        let line = with_runtime(&runtime, || {
            let (of, out) = (full([4], 1.0, "cuda")?, full([4], 0.0, "cuda")?);
            let exec = of.exec()?;
            let line = line!() + 1;
            lie(exec.target(), kernel, of.as_view(), out.as_view())?;
            let error = cuda::synchronize(()).unwrap_err().to_string();
            assert!(error.contains("`lie` at") && error.contains("declare"), "{error}");
            Ok::<_, Error>(line)
        });
        let found = sim.violations();
        assert!(!found.is_empty());
        assert_eq!((found[0].op, found[0].kind), ("lie", kind));
        assert_eq!((found[0].location.file(), found[0].location.line()), (file!(), line.unwrap()));
    }
}

#[test]
fn its_ptx_is_of_its_source() {
    // Cargo runs tests in the package's folder.
    let folder = Path::new("ptx");
    assert!(stale(folder, &[&PROGRAM]).is_empty(), "run `cargo run --example ptx`");
    for variant in 0..2 {
        let ptx = PROGRAM.ptx(variant).unwrap();
        assert!(PROGRAM.kernels(variant).all(|name| ptx.contains(&format!(".entry {name}("))));
    }
}

#[test]
fn crates_contain_the_ptx_of_their_programs() {
    let programs = [warpline_kernels::programs(), warpline_runtime::module::programs()].concat();
    for program in programs {
        assert!(program.ptx(0).is_some(), "{} has no PTX", program.name());
    }
}

#[test]
fn its_gradients_agree_with_differences() {
    let check = |at: &str| {
        let weight = tensor([[0.5f64, -1.0], [2.0, 3.0], [0.0, 1.5]], at)?.requires_grad_(true)?;
        let indices = tensor([[0i64, 2], [2, 2]], at)?;
        let f = |inputs: &[Tensor]| EmbeddingBag.apply(&[&inputs[0], &indices]);
        gradcheck(f, std::slice::from_ref(&weight), GradcheckOptions::default())?;
        gradgradcheck(f, &[weight], GradcheckOptions::default())
    };
    check("cpu").unwrap();
    on_simulated(|| check("cuda"));
}

/// Checks that all Rust code in `docs/custom-ops.md` is built and tested here.
#[test]
fn the_page_shows_this_code() {
    let page = include_str!("../../../docs/custom-ops.md");
    let files = [
        include_str!("embedding_bag.rs"),
        include_str!("tests.rs"),
        include_str!("squareplus.rs"),
        include_str!("../examples/ptx.rs"),
    ];
    let blocks: Vec<&str> =
        page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 6, "{}", blocks.len());
    for block in blocks {
        assert!(files.iter().any(|file| file.contains(block)), "not as in the crate:\n{block}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_agrees_with_a_plain_loop() {
    is_the_plain_loop("cuda").unwrap();
    let (weight, index) =
        (full([2, 3], 1.0, "cuda").unwrap(), tensor([[0i64, 9]], "cuda").unwrap());
    let (sums, line) = (bags(&weight, &index).unwrap(), line!());
    assert_is_of(&failed(sums.to_vec::<f32>()), line);
}
