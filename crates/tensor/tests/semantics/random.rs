//! Tests of row S30: random fills in place, seeds, and PyTorch's values.

use serde_json::Value;
use warpline::{
    DType, Device, ErrorKind, Result, ResultExt, Tensor, empty, manual_seed, rand, randint, randn,
    randperm, zeros,
};

use crate::common::{self, World};

rows! {
    worlds(1) s30_seeds_repeat gpu_s30_seeds_repeat => seeds;
    worlds(1) s30_fills_follow_their_distributions gpu_s30_fills_follow_their_distributions => fills;
    worlds(1) s30_values_are_pytorchs gpu_s30_values_are_pytorchs => goldens;
    worlds(1) s30_bad_arguments_are_refused gpu_s30_bad_arguments_are_refused => refusals;
}

fn seeds(world: &World) -> Result<()> {
    for at in world.places() {
        manual_seed(5);
        let (a, b) = (rand([100], at)?, rand([100], at)?);
        assert_ne!(a.to_vec::<f32>()?, b.to_vec::<f32>()?);
        manual_seed(5);
        assert_eq!(rand([100], at)?.to_vec::<f32>()?, a.to_vec::<f32>()?);
        assert_eq!(rand([100], at)?.to_vec::<f32>()?, b.to_vec::<f32>()?);
        manual_seed(6);
        assert_ne!(rand([100], at)?.to_vec::<f32>()?, a.to_vec::<f32>()?);
    }
    // Every device has its own generator with the same seed.
    manual_seed(5);
    let firsts =
        (0..world.devices).map(|i| rand([100], i)?.to_vec::<f32>()).collect::<Result<Vec<_>>>()?;
    assert!(firsts.iter().all(|f| *f == firsts[0]));
    Ok(())
}

fn mean_of(t: &Tensor) -> Result<f64> {
    t.to(DType::F64)?.mean(())?.item()
}

fn fills(world: &World) -> Result<()> {
    manual_seed(1);
    for at in world.places() {
        let t = empty([40, 250], at)?;
        let near = |expected: f64, tolerance: f64| -> Result<()> {
            let mean = mean_of(&t)?;
            assert!((mean - expected).abs() < tolerance, "{at}: {mean}, expected {expected}");
            Ok(())
        };
        t.normal_((3.0, 2.0))?;
        near(3.0, 0.1)?;
        t.uniform_((-1.0, 5.0))?;
        near(2.0, 0.1)?;
        assert!(t.to_vec::<f32>()?.iter().all(|v| (-1.0..5.0).contains(v)));
        t.bernoulli_(0.25)?;
        near(0.25, 0.03)?;
        assert!(t.to_vec::<f32>()?.iter().all(|v| *v == 0.0 || *v == 1.0));
        t.exponential_(2.0)?;
        near(0.5, 0.03)?;
        t.random_(10, 20)?;
        near(14.5, 0.15)?;
        assert!(t.to_vec::<f32>()?.iter().all(|v| (10.0..20.0).contains(v) && v.fract() == 0.0));
        t.fill_(4)?;
        assert_eq!(mean_of(&t)?, 4.0);
        t.zero_()?;
        assert_eq!(mean_of(&t)?, 0.0);
        // A fill of a view leaves the other elements unchanged.
        let columns = t.narrow(1, 0, 2)?;
        columns.fill_(1.0)?;
        columns.normal_(())?;
        assert_eq!(t.narrow(1, 2, 248)?.to_vec::<f32>()?, vec![0.0; 40 * 248]);
        assert!(columns.to_vec::<f32>()?.iter().all(|v| *v != 0.0));
    }
    Ok(())
}

fn list(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn doubles(t: &Tensor) -> Result<Vec<f64>> {
    t.to(DType::F64)?.to_vec()
}

/// Compares values with PyTorch's: the values that the golden file has and, for some cases, the last
/// value and the sum.
fn check(case: &Value, name: &str, t: &Tensor, tolerance: f64) -> Result<()> {
    let got = doubles(t)?;
    // The golden file has `float32` values, but with the digits of `float64`.
    let close =
        |a: f64, b: f64| a as f32 == b as f32 || (a - b).abs() <= tolerance * b.abs().max(1.0);
    let want = list(&case[name]);
    assert!(!want.is_empty(), "{name} of {case}");
    // For long results, the golden file has values at equal distances, and the sum of all.
    let sum = case[format!("{name}_sum")].as_f64();
    let step = if sum.is_some() { got.len() / want.len() + 1 } else { 1 };
    for (i, (g, w)) in got.iter().step_by(step).zip(&want).enumerate() {
        assert!(close(*g, *w), "{name}[{i}] is {g}, not {w}, of {case}");
    }
    if let (Some(want), Some(&got)) = (case[format!("{name}_last")].as_f64(), got.last()) {
        assert!(close(got, want), "{name}, the last, is {got}, not {want}, of {case}");
    }
    if let Some(want) = sum {
        let sum: f64 = got.iter().sum();
        assert!((sum - want).abs() < 0.5, "{name}, the sum, is {sum}, not {want}");
    }
    Ok(())
}

fn golden(at: Device) -> Result<()> {
    let Some(goldens) = common::golden_json("rng.json") else { return Ok(()) };
    let kind = if at.is_cuda() { "cuda" } else { "cpu" };
    // Normal values depend on the machine's logarithm, sine and cosine.
    let near = 1e-5;
    let cases = goldens["cases"].as_array().expect("cases");
    let mut seen = 0;
    for case in cases.iter().filter(|c| c["device"] == kind) {
        let n = case["n"].as_i64().expect("n");
        if n == -1 {
            continue; // the kernels' tests cover these fills
        }
        seen += 1;
        let n = n as usize;
        manual_seed(case["seed"].as_u64().expect("seed"));
        check(case, "rand", &rand([n], at)?, 0.0)?;
        check(case, "randn", &randn([n], at)?, near)?;
        if !case["randint"].is_null() {
            check(case, "randint", &randint(0, 100, [n], at)?, 0.0)?;
            check(case, "randperm", &randperm(n, at)?, 0.0)?;
        }
    }
    assert!(seen > 0);
    Ok(())
}

fn goldens(world: &World) -> Result<()> {
    golden(Device::Cpu)?;
    if world.real && cuda_is_not_the_goldens()? {
        return Ok(());
    }
    golden(Device::cuda(world.devices - 1))
}

/// Returns whether the current GPU gives different values than the golden file. As in PyTorch,
/// values on CUDA depend on the number of multiprocessors; the golden values come from a GPU with
/// 132.
fn cuda_is_not_the_goldens() -> Result<bool> {
    Ok(warpline::cuda::get_device_properties(())?.multiprocessor_count != 132)
}

fn refusals(world: &World) -> Result<()> {
    for at in world.places() {
        let t = zeros([3], at)?;
        let results = [
            t.normal_((0.0, -1.0)),
            t.normal_((f64::NAN, 1.0)),
            t.uniform_((1.0, 0.0)),
            t.uniform_((0.0, f64::INFINITY)),
            t.bernoulli_(1.5),
            t.bernoulli_(f64::NAN),
            t.exponential_(0.0),
            t.exponential_(-1.0),
            t.random_(5, 5),
            t.fill_(1e300),
        ];
        for result in results {
            assert!(matches!(result.kind(), Some(ErrorKind::InvalidArgument { .. })), "{result:?}");
        }
        assert_eq!(t.to_vec::<f32>()?, [0.0; 3], "untouched");
        let bytes = zeros([3], (DType::U8, at))?;
        assert!(matches!(bytes.normal_(()).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        assert!(matches!(bytes.fill_(300).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(bytes.random_(0, 1000).kind(), Some(ErrorKind::InvalidArgument { .. })));
        let expanded = zeros([1], at)?.expand([3])?;
        assert!(matches!(expanded.fill_(1.0).kind(), Some(ErrorKind::OverlappingWrite)));
        assert!(matches!(expanded.normal_(()).kind(), Some(ErrorKind::OverlappingWrite)));
    }
    Ok(())
}
