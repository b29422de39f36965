//! Tests of named elements of sequences, of maps of modules, and of padded sequences.

use warpline::{DType, ErrorKind, Result, Tensor, arange, ones};
use warpline_nn::utils::rnn::{PadSequenceOptions, pad_sequence};
use warpline_nn::{Linear, Module, ModuleDict, ReLU, Sequential};

use crate::common::bad_calls::refused;

fn names(module: &impl Module) -> Vec<String> {
    module.state_dict().keys().map(str::to_owned).collect()
}

#[test]
fn elements_of_a_sequence_can_have_names() -> Result<()> {
    let mut net = Sequential::new().with_named("fc", Linear::new(2, 3, ())?)?.with(ReLU);
    net.push_named("out", Linear::new(3, 1, ())?)?;
    assert_eq!(names(&net), ["fc.weight", "fc.bias", "out.weight", "out.bias"]);
    let text = net.to_string();
    assert!(text.contains("(fc): Linear(") && text.contains("(1): ReLU()"), "{text}");
    assert!(net["out"].is::<Linear>() && net.get_named("1").is_none());
    assert_eq!(net.forward(&ones([4, 2], ())?)?.size(), [4, 1]);
    net.to(warpline::DType::F64)?;
    assert!(net.parameters().iter().all(|parameter| parameter.dtype() == warpline::DType::F64));
    assert_eq!(names(&net.clone())[0], "fc.weight");
    let indexed: Sequential = net.iter().cloned().collect();
    assert_eq!(names(&indexed), ["0.weight", "0.bias", "2.weight", "2.bias"]);
    for (name, reason) in
        [("", "empty"), ("a.b", "a dot"), ("0", "a number"), ("fc", "another element")]
    {
        let text = refused("Sequential", net.push_named(name, ReLU));
        assert!(text.contains(reason), "{text}");
    }
    assert_eq!(net.len(), 3, "a refused element is not added");
    Ok(())
}

#[test]
fn a_module_dict_keeps_the_order_of_insertion() -> Result<()> {
    let mut heads = ModuleDict::new();
    for (name, size) in [("z", 1), ("a", 2), ("m", 3)] {
        assert!(heads.insert(name, Linear::new(2, size, ())?)?.is_none());
    }
    assert_eq!(heads.keys().collect::<Vec<_>>(), ["z", "a", "m"]);
    assert_eq!(names(&heads)[..3], ["z.weight", "z.bias", "a.weight"]);
    assert!(heads.to_string().starts_with("ModuleDict(\n  (z): Linear("), "{heads}");
    assert!(heads.insert("a", Linear::new(2, 5, ())?)?.is_some());
    assert_eq!(heads["a"].weight.size(), [5, 2]);
    assert_eq!(heads.keys().nth(1), Some("a"), "a new module takes the place of the old one");
    heads.eval();
    heads.to(warpline::DType::F64)?;
    assert!(heads.values().all(|head| head.weight.dtype() == warpline::DType::F64));
    assert!(heads.remove("z").is_some() && heads.remove("z").is_none());
    assert!(!heads.contains_key("z") && heads.len() == 2 && !heads.is_empty());
    heads["m"].weight.requires_grad_(false)?;
    assert!(heads.get_mut("m").is_some_and(|head| !head.weight.requires_grad()));
    let error = heads.insert("a.b", Linear::new(2, 2, ())?).expect_err("a dot");
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    Ok(())
}

#[test]
fn sequences_are_padded_to_the_longest() -> Result<()> {
    let of = |n: usize| -> Result<Tensor> { arange(2 * n, ())?.reshape([n, 2]) };
    let sequences = [of(1)?, of(3)?];
    let padded = pad_sequence(&sequences, ())?;
    assert_eq!(padded.size(), [3, 2, 2]);
    assert_eq!(padded.i((.., 0))?.to_vec::<i64>()?, [0, 1, 0, 0, 0, 0]);
    assert_eq!(padded.i((.., 1))?.to_vec::<i64>()?, [0, 1, 2, 3, 4, 5]);
    let options = PadSequenceOptions::new().batch_first(true).padding_value(-1);
    let padded = pad_sequence(&sequences, options)?;
    assert_eq!(padded.i(0)?.to_vec::<i64>()?, [0, 1, -1, -1, -1, -1]);
    refused("pad_sequence", pad_sequence(&[ones([2], ())?, ones([], ())?], ()));
    let text =
        refused("pad_sequence", pad_sequence(&[of(1)?, of(2)?, ones([2, 3], DType::I64)?], ()));
    assert!(text.contains("sequence 2 has the sizes [3], and sequence 0 has [2]"), "{text}");
    let text = refused("pad_sequence", pad_sequence(&[of(1)?, ones([2, 2, 1], DType::I64)?], ()));
    assert!(text.contains("sequence 1 has the sizes [2, 1], and sequence 0 has [2]"), "{text}");
    refused("pad_sequence", pad_sequence(&[] as &[Tensor], ()));
    let weight = ones([2], ())?.requires_grad_(true)?;
    pad_sequence(&[weight.clone(), ones([3], ())?], ())?.sum(())?.backward()?;
    assert_eq!(weight.grad().map(|grad| grad.to_vec::<f32>()).transpose()?, Some(vec![1.0; 2]));
    Ok(())
}
