//! Tests that compare printed tensors with PyTorch's text. The expressions in `print.json` are
//! Python; the module `python` evaluates them.

use warpline::{SyncPolicy, Tensor};

use crate::{common, python};

fn run(cuda: bool) {
    let Some(goldens) = common::golden_json("print.json") else { return };
    let (mut passed, mut unknown, mut failures) = (0, Vec::new(), Vec::new());
    for case in goldens["cases"].as_array().expect("cases") {
        let (code, expected) = (&case["code"], &case["repr"]);
        let (code, expected) = (code.as_str().expect("code"), expected.as_str().expect("repr"));
        if code.contains("cuda") && !cuda {
            continue;
        }
        match python::eval(code) {
            None => unknown.push(code),
            Some(Err(error)) => failures.push(format!("{code}: {error}")),
            Some(Ok(tensor)) => {
                let printed = shown(&tensor);
                if printed == expected {
                    passed += 1;
                } else {
                    failures.push(format!("{code}:\n{printed}\ninstead of\n{expected}"));
                }
            }
        }
    }
    println!("{passed} printed as in PyTorch; not understood: {unknown:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(passed > 0);
}

fn shown(tensor: &Tensor) -> String {
    tensor.to_string()
}

#[test]
fn s25_cpu_tensors_print_as_in_pytorch() {
    common::cpu(|_| {
        run(false);
        Ok(())
    });
}

#[test]
fn s25_tensors_on_a_device_print_as_in_pytorch() {
    common::worlds(1, |_| {
        run(true);
        Ok(())
    });
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s25_tensors_print_as_in_pytorch() {
    common::gpu(1, SyncPolicy::Auto, |_| {
        run(true);
        Ok(())
    });
}

#[test]
fn s25_every_case_of_the_copy_is_understood() {
    let Some(goldens) = common::golden_json("print.json") else { return };
    if std::env::var_os("WARPLINE_GOLDENS").is_some() {
        return;
    }
    common::worlds(1, |_| {
        for case in goldens["cases"].as_array().expect("cases") {
            let code = case["code"].as_str().expect("code");
            assert!(python::eval(code).is_some(), "{code}");
        }
        Ok(())
    });
}

#[test]
fn s25_cases_outside_the_goldens_print_as_in_pytorch() {
    common::cpu(|_| {
        use warpline::{DType, full, tensor, zeros};
        let cases = [
            (tensor([f32::NEG_INFINITY, 1.5], ())?, "tensor([  -inf, 1.5000])"),
            (tensor([f32::NAN, 2.0], ())?, "tensor([nan, 2.])"),
            (tensor([-0.0f32, 0.0], ())?, "tensor([-0., 0.])"),
            (tensor([[true], [false]], ())?, "tensor([[ True],\n        [False]])"),
            (zeros([0], DType::I64)?, "tensor([], dtype=torch.int64)"),
            (zeros([0, 2], DType::F64)?, "tensor([], size=(0, 2), dtype=torch.float64)"),
            (full([1, 1], 2.5, DType::F16)?, "tensor([[2.5000]], dtype=torch.float16)"),
        ];
        for (tensor, expected) in cases {
            assert_eq!(tensor.to_string(), expected);
        }
        // A suffix that does not fit in the line starts a new line.
        let long = full([7], 12345678, DType::I32)?.to_string();
        assert!(long.ends_with("12345678],\n       dtype=torch.int32)"), "{long}");
        Ok(())
    });
}
