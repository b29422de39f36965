//! Tests that random values equal PyTorch's for the same seed: initialisers, initial parameters of modules,
//! dropout, indices drawn by weights, and the order of loaders (`random_nn.json`).

use serde_json::Value;
use warpline::data::{DataLoader, Dataset, DistributedSampler, Sampler};
use warpline::functional::{DropoutOptions, dropout, dropout2d};
use warpline::{
    DType, ErrorKind, Generator, Result, ResultExt, Tensor, arange_start, full, manual_seed, ones,
    zeros,
};
use warpline_nn::init::{self, Nonlinearity};
use warpline_nn::{
    Bilinear, Conv2d, Embedding, GRU, LSTM, Linear, Module, MultiheadAttention, RNNCell,
};

use crate::common::{World, golden_json, worlds};

/// Compares the first elements of a tensor, and the sum of all elements.
fn check(what: &str, tensor: &Tensor, values: &Value, sum: Option<&Value>) -> Result<()> {
    let all = tensor.to(DType::F64)?.to_vec::<f64>()?;
    let values: Vec<f64> = numbers(values);
    for (i, (own, golden)) in all.iter().zip(&values).enumerate() {
        let close = (own - golden).abs() <= 1e-5 * golden.abs().max(1e-3);
        assert!(close, "{what}: element {i} is {own} instead of {golden}");
    }
    assert!(values.len() == all.len().min(40), "{what}: {} of {}", values.len(), all.len());
    if let Some(sum) = sum.and_then(Value::as_f64) {
        let own: f64 = all.iter().sum();
        assert!((own - sum).abs() <= 1e-4 * sum.abs().max(1.0), "{what}: {own} {sum}");
    }
    Ok(())
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

/// Draws the tensor of a case. `None` if the case belongs to another test.
fn drawn(what: &str) -> Result<Option<Tensor>> {
    let (matrix, default) = (zeros([6, 4], ())?, Nonlinearity::Default);
    let t = &matrix;
    match what {
        "nn.init.xavier_uniform_ of 6x4" => init::xavier_uniform_(t, 1.0)?,
        "nn.init.xavier_normal_ of 6x4" => init::xavier_normal_(t, 1.0)?,
        "nn.init.kaiming_uniform_ of 6x4" => init::kaiming_uniform_(t, default)?,
        "nn.init.kaiming_normal_ of 6x4" => init::kaiming_normal_(t, default)?,
        "nn.init.orthogonal_ of 6x4" => init::orthogonal_(t, 1.0)?,
        "nn.init.trunc_normal_ of 6x4" => init::trunc_normal_(t, ())?,
        "nn.init.sparse_ of 6x4" => init::sparse_(t, 0.5, 0.01)?,
        _ => return Ok(None),
    };
    Ok(Some(matrix))
}

/// Creates the module of a case. `None` if the case belongs to another test.
fn module(what: &str) -> Result<Option<Box<dyn Module>>> {
    Ok(Some(match what.strip_prefix("init of nn.") {
        Some("Linear") => Box::new(Linear::new(7, 5, ())?),
        Some("Conv2d") => Box::new(Conv2d::new(3, 4, 3, ())?),
        Some("Embedding") => Box::new(Embedding::new(10, 3, ())?),
        Some("RNNCell") => Box::new(RNNCell::new(4, 3, ())?),
        Some("LSTM") => Box::new(LSTM::new(4, 3, ())?),
        Some("GRU") => Box::new(GRU::new(4, 3, ())?),
        Some("MultiheadAttention") => Box::new(MultiheadAttention::new(8, 2, ())?),
        Some("Bilinear") => Box::new(Bilinear::new(3, 4, 2, ())?),
        _ => return Ok(None),
    }))
}

fn seeded(seed: u64) -> Generator {
    let generator = Generator::new();
    generator.manual_seed(seed);
    generator
}

#[test]
fn initial_values_are_pytorchs() {
    let (mut initialisers, mut modules) = (0, 0);
    let Some(file) = golden_json("random_nn.json") else { return };
    for case in file["cases"].as_array().expect("cases") {
        let (what, seed) = (case["what"].as_str().expect("text"), case["seed"].as_u64());
        manual_seed(seed.expect("a seed"));
        if let Some(tensor) = drawn(what).unwrap() {
            initialisers += 1;
            check(what, &tensor, &case["values"], case.get("sum")).unwrap();
        } else if let Some(module) = module(what).unwrap() {
            modules += 1;
            let own = module.named_parameters();
            let golden = case["parameters"].as_object().expect("parameters");
            assert_eq!(own.len(), golden.len(), "{what}");
            for (name, tensor) in own {
                check(&format!("{what}: {name}"), &tensor, &golden[&name], None).unwrap();
            }
        }
    }
    assert_eq!((initialisers, modules), (14, 16));
}

/// Checks the dropout cases of a device. Returns their number.
fn dropouts(device: &str) -> Result<usize> {
    let mut count = 0;
    let Some(file) = golden_json("random_nn.json") else { return Ok(1) };
    for case in file["cases"].as_array().expect("cases") {
        let what = case["what"].as_str().expect("text");
        if case["device"] != device || !what.starts_with("dropout") {
            continue;
        }
        count += 1;
        manual_seed(case["seed"].as_u64().expect("a seed"));
        if what == "dropout2d of ones 3x4x5x5" {
            let out = dropout2d(&ones([3, 4, 5, 5], device)?, 0.5)?;
            let channels = out.select(3, 0)?.select(2, 0)?.flatten(())?;
            check(what, &channels, &case["values"], case.get("sum"))?;
            continue;
        }
        let (n, p) = (case["n"].as_u64().expect("n"), case["p"].as_f64().expect("p"));
        let dtype = if what.ends_with("bfloat16") { DType::BF16 } else { DType::F32 };
        let x = full([n as usize], 1.0, (dtype, device))?;
        let what = format!("{what} of {n} with {p} on {device}");
        check(&what, &dropout(&x, p)?, &case["values"], case.get("sum"))?;
        if let Some(second) = case.get("second") {
            check(&format!("{what}, again"), &dropout(&x, p)?, second, None)?;
        }
    }
    Ok(count)
}

#[test]
fn dropout_has_pytorchs_values_on_the_cpu() {
    assert_eq!(dropouts("cpu").unwrap(), 20);
}

/// Checks the `multinomial` cases of a device. Returns their number.
fn multinomials(device: &str) -> Result<usize> {
    let mut count = 0;
    let Some(file) = golden_json("random_nn.json") else { return Ok(6) };
    let weights = arange_start(1f32, 21f32, device)?;
    for case in file["cases"].as_array().expect("cases") {
        let what = case["what"].as_str().expect("text");
        if case["device"] != device || !what.starts_with("multinomial") {
            continue;
        }
        manual_seed(case["seed"].as_u64().expect("a seed"));
        let drawn = match what {
            "multinomial of 1..20, 30 with replacement" => weights.multinomial(30, true)?,
            "multinomial of 1..20, 7 without" => weights.multinomial(7, ())?,
            _ => weights.expand([3, 20])?.multinomial(5, true)?.flatten(())?,
        };
        check(&format!("{what} on {device}"), &drawn, &case["values"], case.get("sum"))?;
        count += 1;
    }
    Ok(count)
}

#[test]
fn indices_by_weights_are_pytorchs() {
    assert_eq!(multinomials("cpu").unwrap(), 6);
    let runtime = warpline::open("sim:1", &warpline::RuntimeConfig::default()).unwrap();
    warpline::with_runtime(&runtime, || assert_eq!(multinomials("cuda").unwrap(), 6));
}

/// A data set whose samples are their own indices.
struct Numbers(usize);

impl Dataset for Numbers {
    type Sample = i64;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<i64> {
        Ok(index as i64)
    }
}

/// Returns the batches of an epoch.
fn epoch(loader: &DataLoader<Numbers>) -> Result<Value> {
    let batches = loader.iter()?.map(|batch| Ok(Value::from(batch?.to_vec::<i64>()?)));
    Ok(Value::Array(batches.collect::<Result<_>>()?))
}

#[test]
fn loaders_and_samplers_have_pytorchs_order() {
    let mut count = 0;
    let Some(file) = golden_json("random_nn.json") else { return };
    for case in file["cases"].as_array().expect("cases") {
        let (what, seed) = (case["what"].as_str().expect("text"), case["seed"].as_u64());
        let seed = seed.expect("a seed");
        manual_seed(seed);
        let loader = || DataLoader::new(Numbers(11)).batch_size(4).unwrap();
        let own = match what {
            "DataLoader(shuffle) of 11 by 4, two epochs" => {
                let loader = loader().shuffle(true).num_workers(count % 2);
                Value::Array((0..2).map(|_| epoch(&loader).unwrap()).collect())
            }
            "DataLoader(shuffle, generator) of 11 by 4" => {
                epoch(&loader().shuffle(true).generator(&seeded(seed)).unwrap()).unwrap()
            }
            "DistributedSampler of 11 on 3, epochs 0 and 1" => {
                let epoch = |epoch: u64| -> Value {
                    let part = |rank| {
                        let sampler = DistributedSampler::new(11, 3, rank).unwrap().seed(seed);
                        sampler.set_epoch(epoch);
                        Value::from(sampler.indices())
                    };
                    (0..3).map(part).collect()
                };
                (0..2).map(epoch).collect()
            }
            _ => continue,
        };
        assert_eq!(own, case["values"], "{what} with {seed}");
        count += 1;
    }
    assert_eq!(count, 6);
}

#[test]
fn probabilities_are_checked_and_nothing_is_drawn_out_of_training() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let x = ones([4], place)?;
            assert!(matches!(dropout(&x, 1.5).kind(), Some(ErrorKind::InvalidArgument { .. })));
            assert!(dropout(&x, DropoutOptions::new().p(0.5).training(false))?.is_same(&x));
            assert_eq!(dropout(&x, 1.0)?.to_vec::<f32>()?, [0.0; 4]);
        }
        Ok(())
    });
}

#[test]
fn dropout_has_pytorchs_values_on_a_device() {
    let runtime = warpline::open("sim:1", &warpline::RuntimeConfig::default()).unwrap();
    warpline::with_runtime(&runtime, || assert_eq!(dropouts("cuda").unwrap(), 20));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_dropout_has_pytorchs_values() {
    assert_eq!(dropouts("cuda").unwrap(), 20);
}
