//! Tests that compare dtype promotion with PyTorch's.

use serde_json::Value;
use warpline::{DType, Result, Scalar, Tensor, empty, full, ones, promote_types, result_type};

use crate::common;

fn dtype(name: &str) -> DType {
    DType::from_name(name).unwrap_or_else(|| panic!("no dtype {name}"))
}

/// Returns the entries of a table, each as the names in its key and the resulting dtype.
fn entries(table: &Value) -> Vec<(Vec<&str>, DType)> {
    let table = table.as_object().expect("a table");
    assert!(!table.is_empty());
    table
        .iter()
        .map(|(key, value)| (key.split(',').collect(), dtype(value.as_str().expect("a name"))))
        .collect()
}

#[test]
fn s32_promotion_follows_pytorch() {
    let Some(goldens) = common::golden_json("dtypes.json") else { return };
    common::cpu(|_| {
        let of = |name: &str| empty([1], dtype(name));
        for (key, expected) in entries(&goldens["promote_types"]) {
            let [a, b] = key[..] else { panic!("{key:?}") };
            assert_eq!(promote_types(dtype(a), dtype(b)), expected, "{key:?}");
            assert_eq!(result_type(&of(a)?, &of(b)?), expected, "{key:?}");
        }
        for (key, expected) in entries(&goldens["result_type_with_scalar"]) {
            let [a, kind] = key[..] else { panic!("{key:?}") };
            let scalar = match kind {
                "bool" => Scalar::Bool(true),
                "int" => Scalar::Int(1),
                _ => Scalar::Float(1.0),
            };
            assert_eq!(scalar.result_type(dtype(a)), expected, "{key:?}");
        }
        Ok(())
    });
}

#[test]
fn s32_results_have_the_promoted_dtype() {
    let Some(goldens) = common::golden_json("dtypes.json") else { return };
    let on = |device: &str| -> Result<()> {
        let of = |name: &str| -> Result<Tensor> { ones([2], (dtype(name), device)) };
        for (key, expected) in entries(&goldens["promote_types"]) {
            assert_eq!((&of(key[0])? + &of(key[1])?)?.dtype(), expected, "add {key:?}");
            assert_eq!(of(key[0])?.lt(&of(key[1])?)?.dtype(), DType::Bool, "lt {key:?}");
        }
        for (key, expected) in entries(&goldens["true_div_dtype"]) {
            assert_eq!((&of(key[0])? / &of(key[1])?)?.dtype(), expected, "div {key:?}");
        }
        for (key, expected) in entries(&goldens["sum_dtype"]) {
            assert_eq!(of(key[0])?.sum(())?.dtype(), expected, "sum {key:?}");
        }
        for (key, expected) in entries(&goldens["result_type_with_scalar"]) {
            let scalar = match key[1] {
                "bool" => Scalar::Bool(true),
                "int" => Scalar::Int(1),
                _ => Scalar::Float(1.0),
            };
            assert_eq!(of(key[0])?.mul(scalar)?.dtype(), expected, "mul {key:?}");
        }
        Ok(())
    };
    common::cpu(|_| on("cpu"));
    common::worlds(1, |_| on("cuda"));
}

#[test]
fn s32_tensors_without_dimensions_only_raise_the_category() {
    common::cpu(|_| {
        let scalar = |dtype| full([], 1, dtype);
        let vector = |dtype| full([1], 1, dtype);
        for (a, b, expected) in [
            (vector(DType::F16)?, scalar(DType::F64)?, DType::F16),
            (vector(DType::U8)?, scalar(DType::I64)?, DType::U8),
            (vector(DType::I64)?, scalar(DType::F64)?, DType::F64),
            (vector(DType::Bool)?, scalar(DType::U8)?, DType::U8),
            (scalar(DType::F16)?, scalar(DType::F64)?, DType::F64),
            (vector(DType::I8)?, vector(DType::I64)?, DType::I64),
        ] {
            assert_eq!(result_type(&a, &b), expected, "{a:?} {b:?}");
            assert_eq!(result_type(&b, &a), expected, "{b:?} {a:?}");
            assert_eq!((&a + &b)?.dtype(), expected);
        }
        Ok(())
    });
}
