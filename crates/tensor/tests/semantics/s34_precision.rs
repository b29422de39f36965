//! Tests of row S34: settings that trade precision for speed.

use serde_json::Value;
use warpline::backends::{cuda::matmul, cudnn};
use warpline::{
    DType, Device, Error, ErrorKind, Result, backends, get_float32_matmul_precision, ones, randn,
    set_float32_matmul_precision, simulated, with_runtime,
};

use crate::common::golden_json;

/// Applies a setting of the golden file.
fn set(name: &str, value: &Value) -> Result<()> {
    let word = value.as_str().unwrap_or_default();
    match name {
        "fp32_precision" => backends::set_fp32_precision(word),
        "cuda.matmul.fp32_precision" => matmul::set_fp32_precision(word),
        "cudnn.fp32_precision" => cudnn::set_fp32_precision(word),
        "cudnn.conv.fp32_precision" => cudnn::conv::set_fp32_precision(word),
        "cudnn.rnn.fp32_precision" => cudnn::rnn::set_fp32_precision(word),
        "float32_matmul_precision" => set_float32_matmul_precision(word),
        "cuda.matmul.allow_tf32" => {
            matmul::set_allow_tf32(value.as_bool().expect("a bool"));
            Ok(())
        }
        "cudnn.allow_tf32" => {
            cudnn::set_allow_tf32(value.as_bool().expect("a bool"));
            Ok(())
        }
        other => panic!("{other}"),
    }
}

/// Returns the current settings in the form of the golden file. A setting is `null` if its older
/// and newer interface were mixed.
fn read() -> Vec<Value> {
    let mixed = |value: Result<Value>| match value {
        Ok(value) => value,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("use only `fp32_precision`"), "{error}");
            Value::Null
        }
    };
    vec![
        backends::fp32_precision().into(),
        matmul::fp32_precision().into(),
        cudnn::fp32_precision().into(),
        cudnn::conv::fp32_precision().into(),
        cudnn::rnn::fp32_precision().into(),
        mixed(matmul::allow_tf32().map(Value::from)),
        mixed(cudnn::allow_tf32().map(Value::from)),
        mixed(get_float32_matmul_precision().map(Value::from)),
    ]
}

#[test]
fn s34_settings_read_back_as_pytorchs() -> Result<()> {
    let Some(golden) = golden_json("precision.json") else { return Ok(()) };
    let runs = golden.as_array().expect("runs");
    assert!(runs.len() >= 64);
    for run in runs {
        with_runtime(&simulated(1)?, || {
            let mut so_far = Vec::new();
            for step in run.as_array().expect("steps") {
                if let Some(name) = step["set"][0].as_str() {
                    set(name, &step["set"][1])?;
                    so_far.push(step["set"].to_string());
                }
                assert_eq!(&read(), step["read"].as_array().expect("values"), "{so_far:?}");
            }
            Ok::<(), Error>(())
        })?;
    }
    Ok(())
}

#[test]
fn s34_reductions_and_sums_are_switches() -> Result<()> {
    with_runtime(&simulated(1)?, || {
        assert!(matmul::allow_fp16_reduced_precision_reduction());
        assert!(matmul::allow_bf16_reduced_precision_reduction());
        assert!(!matmul::allow_fp16_accumulation());
        matmul::set_allow_fp16_reduced_precision_reduction(false);
        matmul::set_allow_fp16_accumulation(true);
        assert!(!matmul::allow_fp16_reduced_precision_reduction());
        assert!(matmul::allow_bf16_reduced_precision_reduction());
        assert!(matmul::allow_fp16_accumulation());
        Ok(())
    })
}

#[test]
fn s34_other_words_are_errors() -> Result<()> {
    with_runtime(&simulated(1)?, || {
        for error in [
            backends::set_fp32_precision("fast").unwrap_err(),
            matmul::set_fp32_precision("bf16").unwrap_err(),
            set_float32_matmul_precision("tf32").unwrap_err(),
        ] {
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("must be `"), "{error}");
        }
        assert_eq!(backends::fp32_precision(), "none");
        Ok(())
    })
}

/// The example of PyTorch's note on CUDA semantics, with smaller matrices. TF32 keeps 11 bits of
/// each factor.
#[test]
#[ignore = "needs a GPU"]
fn gpu_s34_products_in_tf32_lose_bits() {
    crate::common::gpu(1, warpline::SyncPolicy::Auto, |_| {
        // In TF32, 1 + 2⁻¹² is rounded to 1. The sums of 1024 squares then differ by 0.5.
        let a = ones([1024, 1024], "cuda")?.add(f64::from(2f32.powi(-12)))?;
        let first = |word: &str| {
            matmul::set_fp32_precision(word)?;
            a.matmul(&a)?.amax(())?.item::<f32>()
        };
        let (exact, fast) = (first("ieee")?, first("tf32")?);
        assert!(exact > 1024.4, "{exact}");
        assert_eq!(fast, 1024.0);
        assert!(first("none")? > 1024.4, "the generic precision is not set");
        Ok(())
    });
}

/// The example of PyTorch's note, with its relative errors: 0.0022 of the mean with TF32, 0.000039
/// without.
#[test]
#[ignore = "needs a GPU"]
fn gpu_s34_the_notes_product_has_its_errors() {
    crate::common::gpu(1, warpline::SyncPolicy::Auto, |_| {
        let make = || randn([10240, 10240], (DType::F64, Device::cuda(0)));
        let (a, b) = (make()?, make()?);
        let full = a.matmul(&b)?;
        let mean = full.abs()?.mean(())?.item::<f64>()?;
        let (a, b) = (a.to(DType::F32)?, b.to(DType::F32)?);
        let error = |precision: &str| {
            matmul::set_fp32_precision(precision)?;
            let error = a.matmul(&b)?.to(DType::F64)?.sub(&full)?.abs()?.amax(())?;
            Ok::<_, Error>(error.item::<f64>()? / mean)
        };
        let (tf32, ieee) = (error("tf32")?, error("ieee")?);
        matmul::set_fp32_precision("none")?;
        println!("relative errors: {tf32} in TF32, {ieee} in float32");
        assert!((1e-3..4e-3).contains(&tf32), "{tf32}");
        assert!(ieee < 1e-4, "{ieee}");
        Ok(())
    });
}
