//! Tests of every op in an autocast region. The dtypes of results must equal those of a call outside
//! the region with operands that are converted by the entry's category, and PyTorch's dtypes, which
//! `goldens/autocast.py` writes. An op that is not kept needs a golden entry.

use std::collections::BTreeMap;
use std::fmt::Debug;

use warpline::{DType, Device, Result, Tensor, amp};
use warpline_kernels::autocast::Policy;

use super::entry::{Entry, F32_ON_GPU, floats};
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
        Entry::new(name, F32_ON_GPU, floats, [vec![x(&[2, 3])]], move |x: &[Tensor]| call(&x[0]))
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

/// Converts arguments as a region of dtype `low` does under `policy`. Returns `None` if the region
/// refuses the op.
fn converted(policy: Policy, low: DType, args: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
    let is_eligible = |x: &&Tensor| matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let dtype = match policy {
        Policy::Low => low,
        Policy::F32 => DType::F32,
        Policy::Widest => {
            args.iter().filter(is_eligible).map(Tensor::dtype).fold(low, DType::promote)
        }
        Policy::Refuse => return Ok(None),
        Policy::Keep | Policy::KeepAll => return Ok(Some(args.to_vec())),
    };
    let convert = |x: &Tensor| if is_eligible(&x) { x.to(dtype) } else { Ok(x.clone()) };
    args.iter().map(convert).collect::<Result<_>>().map(Some)
}

fn name_of(dtype: DType, low: DType) -> String {
    if dtype == low { "half".into() } else { dtype.to_string().replace("torch.", "") }
}

fn walk(device: Device, low: DType, goldens: &Goldens) -> Result<()> {
    let (mut count, mut failures) = (0, Vec::new());
    for entry in registry().into_iter().chain(forms()) {
        let (title, name) = (entry.title(), golden_name(&entry));
        let policy = entry.category[usize::from(device == Device::Cpu)];
        let golden =
            goldens.get(&name).or_else(|| goldens.get(&name.replace("Tensor", "functional")));
        let is_checked = entry.takes(DType::F32) && entry.takes(low);
        if policy != Policy::Keep && (golden.is_none() || !is_checked) {
            failures
                .push(format!("{title}: no golden shows that PyTorch's category is {policy:?}"));
        }
        if !is_checked {
            continue;
        }
        // In these entries, the other operand has a fixed dtype.
        let golden = golden.filter(|_| !entry.variant.starts_with("mixed with"));
        let sample = &entry.samples[0];
        let numeric: Vec<usize> = (0..sample.len()).filter(|&k| sample[k].is_numeric()).collect();
        for (mixture, is_single) in MIXTURES.iter().enumerate() {
            if numeric.len() < 2 && mixture > 1 {
                continue;
            }
            let maker = Maker { dtype: DType::F32, device, layout: Layout::Contiguous };
            let mut args = maker.args(sample)?;
            for (place, &k) in numeric.iter().enumerate() {
                args[k] = args[k].to(if is_single(place) { DType::F32 } else { low })?;
            }
            let call = |args: &[Tensor]| -> Result<Vec<String>> {
                let dtypes = (entry.call)(args)?.into_iter().map(|t| name_of(t.dtype(), low));
                // The sum that `add_layer_norm` also returns is kept.
                Ok(dtypes.take(if policy == Policy::Keep { usize::MAX } else { 1 }).collect())
            };
            let here = amp::autocast(device, low, || call(&args));
            let mut fail = |expected: &dyn Debug| {
                failures.push(format!("{title}, mixture {mixture}: {here:?}, not {expected:?}"));
            };
            count += 1;
            let is_mixed_on_cpu = |name| entry.name == name && device == Device::Cpu && mixture > 1;
            let outside = converted(policy, low, &args)?.and_then(|args| call(&args).ok());
            // On the CPU, each product of an `einsum` has a category of its own.
            if here.as_ref().ok() != outside.as_ref() && !is_mixed_on_cpu("einsum") {
                fail(&(policy, outside));
            }
            // PyTorch's kernels support fewer mixtures than ours. Mixtures of `addmv` on the CPU are
            // left out, because PyTorch's list for the CPU lacks `addmv`.
            let is_left_out = |golden: &str| {
                (golden == "error" && mixture > 0) || is_mixed_on_cpu("Tensor::addmv")
            };
            // Further results are indices, or have the dtype of the first result.
            let first = here.as_ref().map_or("error", |found| &found[0]);
            if let Some(golden) = golden.and_then(|golden| golden.get(mixture))
                && !is_left_out(golden)
                && first != golden
            {
                fail(golden);
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
