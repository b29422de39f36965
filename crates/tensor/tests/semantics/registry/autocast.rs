//! Tests of every op in an autocast region: the dtypes of results must equal PyTorch's, which
//! `goldens/autocast.py` writes. An op without a golden entry must have the same dtypes as outside
//! a region.

use std::collections::BTreeMap;

use warpline::{DType, Device, Result, Tensor, amp};

use super::entry::{Entry, floats};
use super::sample::{Layout, Maker, x};
use super::{on_simulated_gpu, registry, report};

/// Mixtures of dtypes. For each, whether operand `k` is `float32`; all other operands are
/// half-width: all operands, none, only the first, all except the first.
const MIXTURES: [fn(usize) -> bool; 4] = [|_| true, |_| false, |k| k == 0, |k| k > 0];

type Goldens = BTreeMap<String, Vec<String>>;

fn goldens(device: &str) -> Goldens {
    let all: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(include_str!("../../goldens/autocast.json")).expect("a table");
    serde_json::from_value(all[device].clone()).expect("lists of dtypes")
}

/// Returns forms of ops that the registry lacks.
fn forms() -> Vec<Entry> {
    let form = |name: &str, call: fn(&Tensor) -> Result<Tensor>| {
        Entry::new(name, floats, [vec![x(&[2, 3])]], move |x: &[Tensor]| call(&x[0]))
    };
    vec![
        form("rdiv", |x| 1.0 / x),
        form("Tensor::pow[2]", |x| x.pow(2)),
        form("Tensor::pow[-1.5]", |x| x.pow(-1.5)),
    ]
}

/// Returns the name under which the golden file has an entry.
fn golden_name(entry: &Entry) -> String {
    let variant = match entry.name.as_str() {
        "einsum" | "functional::interpolate" | "functional::pad" => {
            format!("[{}]", entry.variant.split('(').next().unwrap_or(""))
        }
        "elementwise::div" if entry.variant.starts_with("operand 0") => return "rdiv".to_owned(),
        _ => String::new(),
    };
    let name = entry.name.replace("elementwise::", "Tensor::");
    let name = ["_keepdim", "_with_indices", "_dims"]
        .iter()
        .fold(name, |name, end| name.strip_suffix(end).map(str::to_owned).unwrap_or(name));
    name + &variant
}

fn dtypes(results: &[Tensor], low: DType) -> Vec<String> {
    let name = |t: &Tensor| {
        if t.dtype() == low { "half".into() } else { t.dtype().to_string().replace("torch.", "") }
    };
    results.iter().map(name).collect()
}

fn walk(device: Device, low: DType, goldens: &Goldens) -> Result<()> {
    let (mut count, mut failures) = (0, Vec::new());
    for entry in registry().into_iter().chain(forms()) {
        if !entry.takes(DType::F32) || !entry.takes(low) {
            continue;
        }
        let (name, sample) = (golden_name(&entry), &entry.samples[0]);
        let golden =
            goldens.get(&name).or_else(|| goldens.get(&name.replace("Tensor", "functional")));
        // In these entries, the other operand has a fixed dtype.
        let golden = golden.filter(|_| !entry.variant.starts_with("mixed with"));
        let numeric: Vec<usize> = (0..sample.len()).filter(|&k| sample[k].is_numeric()).collect();
        for (mixture, is_single) in MIXTURES.iter().enumerate() {
            if numeric.len() < 2 && mixture > 1 {
                continue;
            }
            let args = |maker: Maker| {
                let mut args = maker.args(sample)?;
                for (place, &k) in numeric.iter().enumerate() {
                    args[k] = args[k].to(if is_single(place) { DType::F32 } else { low })?;
                }
                Ok::<_, warpline::Error>(args)
            };
            let maker = Maker { dtype: DType::F32, device, layout: Layout::Contiguous };
            let here = amp::autocast(device, low, || (entry.call)(&args(maker)?));
            let here = here.map(|results| dtypes(&results, low));
            let expected = match golden {
                Some(golden) => match golden.get(mixture) {
                    None => continue,
                    Some(golden)
                        if golden == "error" && entry.name.ends_with("::binary_cross_entropy") =>
                    {
                        assert!(here.is_err(), "{} is refused", entry.title());
                        continue;
                    }
                    // PyTorch's kernels support fewer mixtures than ours. Mixtures of `addmv` on the CPU
                    // are left out, because PyTorch's list for the CPU lacks `addmv`.
                    Some(golden) if golden == "error" => continue,
                    Some(_) if name == "Tensor::addmv" && device == Device::Cpu && mixture > 1 => {
                        continue;
                    }
                    Some(golden) => vec![golden.clone()],
                },
                None if mixture > 1 => continue,
                None => match (entry.call)(&args(maker)?) {
                    Ok(results) => dtypes(&results, low),
                    Err(_) => continue,
                },
            };
            count += 1;
            // Further results are indices, or have the dtype of the first result.
            let found = here.as_ref().map(|found| &found[..expected.len().min(found.len())]);
            if found.as_ref().ok() != Some(&&expected[..]) {
                let title = entry.title();
                failures.push(format!("{title}, mixture {mixture}: {here:?}, not {expected:?}"));
            }
        }
    }
    report(&format!("autocast on {device}"), count, &failures);
    Ok(())
}

#[test]
fn ops_on_the_cpu_have_pytorchs_dtypes_in_a_region() {
    walk(Device::Cpu, DType::BF16, &goldens("cpu")).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn ops_on_a_gpu_have_pytorchs_dtypes_in_a_region() {
    on_simulated_gpu(|device| walk(device, DType::F16, &goldens("cuda")));
}

/// A golden entry that matches no op would test nothing.
#[test]
fn every_golden_names_an_op() {
    let mut names: Vec<String> = registry().iter().chain(&forms()).map(golden_name).collect();
    names.extend(names.clone().iter().map(|name| name.replace("Tensor", "functional")));
    for device in ["cpu", "cuda"] {
        let unknown: Vec<String> =
            goldens(device).into_keys().filter(|name| !names.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
