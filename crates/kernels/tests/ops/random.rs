//! Tests of random fills and permutations: PyTorch's values, views, and refused arguments.

use std::path::PathBuf;

use serde_json::Value;
use warpline_kernels::random::*;
use warpline_runtime::DType::{BF16, F16, F32, F64, I64};
use warpline_runtime::generator::{CudaGenerator, DEFAULT_SEED};
use warpline_runtime::testing::{Tensor, gpu_is_simulated, on_every_target, on_gpu};
use warpline_runtime::{DType, ErrorKind, Result, ResultExt as _, Target, View};

/// Creates a contiguous tensor of `n` elements and applies an op to it.
fn filled(
    target: Target<'_>,
    dtype: DType,
    n: usize,
    f: impl FnOnce(Target<'_>, View<'_>) -> Result<()>,
) -> Vec<f64> {
    let out = Tensor::garbage(target, dtype, &[n]);
    f(target, out.view()).unwrap();
    out.floats(target)
}

/// Returns the golden cases for the device of a target.
fn goldens(target: Target<'_>) -> Vec<Value> {
    let device = if matches!(target, Target::Cpu(_)) { "cpu" } else { "cuda" };
    let folder = std::env::var_os("WARPLINE_GOLDENS").map_or_else(
        || {
            let root = std::env::var_os("CARGO_MANIFEST_DIR")
                .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
            root.join("tests/goldens")
        },
        PathBuf::from,
    );
    let text = std::fs::read_to_string(folder.join("rng.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let cases = all["cases"].as_array().unwrap().iter();
    let cases: Vec<Value> = cases.filter(|c| c["device"] == device).cloned().collect();
    assert!(cases.len() >= 12, "the goldens of {device} are incomplete");
    cases
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// Selects the values that the golden file contains: the first `n` values of a small result, or `n`
/// values at regular distances of a large one.
fn sample(values: &[f64], n: usize) -> Vec<f64> {
    let step = if values.len() > 1000 { values.len() / n + 1 } else { 1 };
    values.iter().step_by(step).take(n).copied().collect()
}

#[track_caller]
fn close(ours: &[f64], theirs: &Value, tolerance: f64, context: &str) {
    let theirs = floats(theirs);
    let ours = sample(ours, theirs.len());
    assert_eq!(ours.len(), theirs.len(), "{context}");
    for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * b.abs().max(1.0),
            "{context}, element {i}: {a} is not {b}"
        );
    }
}

/// Compares every golden case. `tolerance` is the maximum error of normal and exponential values:
/// relative for values above 1, otherwise absolute.
fn check_goldens(target: Target<'_>, tolerance: f64) {
    for case in goldens(target) {
        let seed = case["seed"].as_u64().unwrap();
        target.runtime().manual_seed(seed);
        let Ok(n) = usize::try_from(case["n"].as_i64().unwrap()) else {
            check_other_dtypes(target, &case, tolerance);
            continue;
        };
        let context = format!("seed {seed}, n {n}");
        let rand = filled(target, F32, n, |t, v| uniform(t, v, 0.0, 1.0));
        close(&rand, &case["rand"], 0.0, &context);
        let randn = filled(target, F32, n, |t, v| normal(t, v, 0.0, 1.0));
        close(&randn, &case["randn"], tolerance, &context);
        if let Some(sum) = case["rand_sum"].as_f64() {
            assert!((rand.iter().sum::<f64>() - sum).abs() < 1e-3);
            let sum = case["randn_sum"].as_f64().unwrap();
            assert!((randn.iter().sum::<f64>() - sum).abs() < 0.5);
            continue;
        }
        assert_eq!(rand[n - 1], case["rand_last"].as_f64().unwrap(), "{context}");
        let last = case["randn_last"].as_f64().unwrap();
        assert!((randn[n - 1] - last).abs() <= tolerance * last.abs().max(1.0), "{context}");
        let integers = filled(target, I64, n, |t, v| randint(t, v, 0, 100));
        close(&integers, &case["randint"], 0.0, &context);
        let mut order = filled(target, I64, n, randperm);
        close(&order, &case["randperm"], 0.0, &context);
        order.sort_unstable_by(f64::total_cmp);
        assert!(order.iter().enumerate().all(|(i, &v)| v == i as f64), "{context}");
    }
}

/// Compares the golden case of other dtypes and distributions. Its fills, in this order, are: 1000
/// `float64` with `normal_(2, 3)`, 100 `float16` with `uniform_`, 100 `bfloat16` with `normal_`,
/// 100 `float32` with `bernoulli_(0.3)`, and 100 `float32` with `exponential_(1)`.
fn check_other_dtypes(target: Target<'_>, case: &Value, tolerance: f64) {
    let exact = tolerance == 0.0;
    let ours = filled(target, F64, 1000, |t, v| normal(t, v, 2.0, 3.0));
    close(&ours, &case["f64_normal"], if exact { 0.0 } else { 1e-14 }, "normal of doubles");
    let ours = filled(target, F16, 100, |t, v| uniform(t, v, 0.0, 1.0));
    close(&ours, &case["f16_rand"], 0.0, "rand of halves");
    let ours = filled(target, BF16, 100, |t, v| normal(t, v, 0.0, 1.0));
    // The tolerance is one unit in the last place of `bfloat16`.
    close(&ours, &case["bf16_randn"], if exact { 0.0 } else { 4e-3 }, "randn of bfloat16");
    let ours = filled(target, F32, 100, |t, v| bernoulli(t, v, 0.3));
    close(&ours, &case["bern"], 0.0, "bernoulli");
    let ours = filled(target, F32, 100, |t, v| exponential(t, v, 1.0));
    close(&ours, &case["expo"], tolerance, "exponential");
}

#[test]
fn values_equal_pytorchs() {
    on_every_target(|target| check_goldens(target, 1e-6));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_values_equal_pytorchs() {
    on_gpu(|target| {
        let Target::Cuda(_, device, _) = target else { return };
        // The values of large fills depend on the number of multiprocessors. The golden values come
        // from a device with 132.
        if device.properties().multiprocessor_count == 132 {
            // Simulated devices compute logarithms with the host's math library, whose results
            // differ in the last digits.
            check_goldens(target, if gpu_is_simulated() { 1e-6 } else { 0.0 });
        }
    });
}

#[test]
fn the_first_seed_equals_pytorchs() {
    on_every_target(|target| {
        let default = filled(target, F32, 8, |t, v| uniform(t, v, 0.0, 1.0));
        target.runtime().manual_seed(DEFAULT_SEED);
        assert_eq!(default, filled(target, F32, 8, |t, v| uniform(t, v, 0.0, 1.0)));
        target.runtime().manual_seed(1);
        assert_ne!(default, filled(target, F32, 8, |t, v| uniform(t, v, 0.0, 1.0)));
    });
}

fn check_views(target: Target<'_>) {
    for dtype in DType::ALL {
        target.runtime().manual_seed(3);
        let flat = filled(target, dtype, 24, |t, v| randint(t, v, 0, 2));
        target.runtime().manual_seed(3);
        let base = Tensor::garbage(target, dtype, &[4, 6]);
        let turned = base.with(|l| l.transpose(0, 1));
        randint(target, turned.view(), 0, 2).unwrap();
        assert_eq!(
            base.floats(target),
            flat,
            "{dtype}: a transposed view is filled in memory order"
        );

        let base = Tensor::garbage(target, dtype, &[4, 6]);
        let part = base.with(|l| l.narrow(1, 1, 3));
        target.runtime().manual_seed(3);
        bernoulli(target, part.view(), 0.5).unwrap();
        let values = base.floats(target);
        let untouched = Tensor::garbage(target, dtype, &[1]).floats(target)[0];
        for (i, &v) in values.iter().enumerate() {
            assert_eq!(
                (1..4).contains(&(i % 6)),
                v != untouched || (dtype == DType::Bool && (1..4).contains(&(i % 6))),
                "{dtype}: element {i} is {v}"
            );
        }
    }
}

#[test]
fn views_are_filled_in_memory_order_and_other_memory_is_unchanged() {
    on_every_target(check_views);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_views_are_filled_in_memory_order_and_other_memory_is_unchanged() {
    on_gpu(check_views);
}

/// A view with an offset or gaps receives the same values as a contiguous tensor, and memory
/// outside the view is unchanged.
fn check_places(target: Target<'_>) {
    const N: usize = 600_001;
    if matches!(target, Target::Cpu(_)) {
        // As in PyTorch, the CPU assigns random numbers to a view with gaps in a different order.
        return;
    }
    for dtype in [F16, BF16, F32, DType::F64] {
        let fill = |view: View<'_>| {
            target.runtime().manual_seed(5);
            normal(target, view, 0.0, 1.0).unwrap();
        };
        let flat = Tensor::garbage(target, dtype, &[N]);
        fill(flat.view());
        let expected = flat.floats(target);
        let untouched = Tensor::garbage(target, dtype, &[1]).floats(target)[0];
        for offset in [1, 2, 5, 7] {
            let base = Tensor::garbage(target, dtype, &[N + 16]);
            fill(base.with(|l| l.narrow(0, offset, N)).view());
            let (offset, values) = (offset as usize, base.floats(target));
            assert!(values[offset..][..N] == expected, "{dtype}, behind {offset} elements");
            let rest = values[..offset].iter().chain(&values[offset + N..]);
            assert!(rest.eq(&[untouched; 16]), "{dtype}, behind {offset} elements");
        }
        let base = Tensor::garbage(target, dtype, &[2 * N]);
        fill(base.with(|l| l.slice(0, 0, 2 * N, 2)).view());
        let values = base.floats(target);
        assert!(values.iter().step_by(2).eq(&expected), "{dtype}, every second element");
        assert!(values.iter().skip(1).step_by(2).all(|v| *v == untouched), "{dtype}");
    }
}

#[test]
fn values_do_not_depend_on_offset_or_stride() {
    on_every_target(check_places);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_values_do_not_depend_on_offset_or_stride() {
    on_gpu(check_places);
}

fn check_integers(target: Target<'_>) {
    for (low, high) in [(-5, 6), (0, 1 << 40), (i64::MIN, i64::MAX), (-(1 << 27), 1 << 27)] {
        let values = filled(target, I64, 5000, |t, v| randint(t, v, low, high));
        assert!(values.iter().all(|&v| v >= low as f64 && v <= high as f64), "{low}..{high}");
        let mean = values.iter().sum::<f64>() / 5000.0;
        let middle = low as f64 / 2.0 + (high as f64 - 1.0) / 2.0;
        let spread = (high as f64 - low as f64) / 12f64.sqrt() / 5000f64.sqrt();
        assert!((mean - middle).abs() < 6.0 * spread, "{low}..{high}: mean {mean}");
    }
    for n in [2048, 2049, 10_000, 70_000] {
        let mut order = filled(target, DType::I32, n, randperm);
        assert!(order.iter().zip(0..).filter(|&(&v, i)| v == f64::from(i)).count() < 20);
        order.sort_unstable_by(f64::total_cmp);
        assert!(order.iter().enumerate().all(|(i, &v)| v == i as f64), "{n}");
    }
}

#[test]
fn integers_cover_their_range() {
    on_every_target(check_integers);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_integers_cover_their_range() {
    on_gpu(check_integers);
}

#[test]
fn bad_arguments_are_refused() {
    on_every_target(|target| {
        let out = |dtype| Tensor::garbage(target, dtype, &[4]);
        let float = out(F32);
        assert!(uniform(target, float.view(), 2.0, 1.0).is_err());
        assert!(uniform(target, float.view(), f64::NAN, 1.0).is_err());
        assert!(uniform(target, float.view(), -3e38, 3e38).is_err());
        assert!(normal(target, float.view(), 0.0, -1.0).is_err());
        assert!(exponential(target, float.view(), 0.0).is_err());
        assert!(bernoulli(target, float.view(), 1.5).is_err());
        assert!(bernoulli(target, float.view(), f64::NAN).is_err());
        assert!(randint(target, float.view(), 3, 3).is_err());
        assert!(randint(target, out(DType::I8).view(), 0, 129).is_err());
        assert!(randint(target, out(DType::I8).view(), 0, 128).is_ok());
        assert!(matches!(
            uniform(target, out(I64).view(), 0.0, 1.0).kind(),
            Some(ErrorKind::UnsupportedDType { .. })
        ));
        assert!(matches!(
            randperm(target, out(DType::Bool).view()).kind(),
            Some(ErrorKind::UnsupportedDType { .. })
        ));
        let bytes = Tensor::garbage(target, DType::I8, &[200]);
        assert!(randperm(target, bytes.view()).is_err());
        let spread = out(F32).with(|l| l.narrow(0, 0, 1)?.expand(&[3]));
        assert!(matches!(
            uniform(target, spread.view(), 0.0, 1.0).kind(),
            Some(ErrorKind::OverlappingWrite)
        ));
        assert_eq!(float.floats(target), [77.0; 4]);
    });
}

#[test]
fn a_view_beyond_its_storage_is_refused() {
    on_every_target(|target| {
        let mut out = Tensor::garbage(target, DType::F32, &[4]);
        out.layout = warpline_runtime::Layout::contiguous(&[1000]).unwrap();
        let answers = [
            uniform(target, out.view(), 0.0, 1.0),
            randint(target, out.view(), 0, 9),
            randperm(target, out.view()),
        ];
        for answer in answers {
            assert!(
                matches!(answer.kind(), Some(warpline_runtime::ErrorKind::OutOfStorage { .. })),
                "{answer:?}"
            );
        }
    });
}

#[test]
fn generator_offsets_are_rounded_up_to_multiples_of_four() {
    let mut generator = CudaGenerator::default();
    for (asked, place) in [(0, 0), (5, 8), (u64::MAX - 4, u64::MAX - 3), (u64::MAX, 0)] {
        generator.set_offset(asked);
        assert_eq!(generator.offset(), place);
    }
}

/// A stream or device of another runtime is rejected before the op advances the generator.
#[test]
fn a_refused_op_draws_nothing() {
    let runtimes = [(); 2].map(|()| {
        let sim = warpline_runtime::testing::small_sim(1).build();
        warpline_runtime::Runtime::new(sim, Default::default()).unwrap()
    });
    let devices = runtimes.each_ref().map(|runtime| runtime.device(0).unwrap());
    let [here, there] = devices.map(|device| device.device().stream_from_pool(0).unwrap());
    let ours = Target::Cuda(&runtimes[0], devices[0], &here);
    let out = Tensor::garbage(ours, DType::I64, &[8]);
    let state = || format!("{:?}", devices[0].generator());
    let before = state();
    for target in [
        Target::Cuda(&runtimes[0], devices[0], &there),
        Target::Cuda(&runtimes[0], devices[1], &there),
    ] {
        for answer in [randint(target, out.view(), 0, 9), randperm(target, out.view())] {
            assert!(matches!(answer.kind(), Some(ErrorKind::RuntimeMismatch)), "{answer:?}");
        }
    }
    assert_eq!(state(), before);
}
