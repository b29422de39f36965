//! Tests of `no_grad`, `enable_grad`, `inference_mode` and `detect_anomaly`.

use warpline::autograd::{
    self, ModeGuard, detect_anomaly, enable_grad, inference_mode, is_grad_enabled,
    is_inference_mode_enabled, no_grad,
};
use warpline::{DType, ErrorKind, ones};

use super::leaf;
use crate::common;

#[test]
fn modes_nest_and_a_panic_ends_them() {
    assert!(autograd::is_grad_enabled());
    no_grad(|| {
        assert!(!autograd::is_grad_enabled());
        enable_grad(|| {
            assert!(autograd::is_grad_enabled());
            Ok(())
        })?;
        assert!(!autograd::is_grad_enabled());
        Ok(())
    })
    .unwrap();
    let caught = std::panic::catch_unwind(|| no_grad::<()>(|| panic!("on purpose")));
    assert!(caught.is_err() && autograd::is_grad_enabled());
    no_grad(|| {
        let other = std::thread::spawn(autograd::is_grad_enabled).join();
        assert!(other.unwrap(), "another thread has its own");
        Ok(())
    })
    .unwrap();
}

#[test]
fn no_grad_records_no_ops() {
    common::cpu(|_| {
        let x = leaf(&[1.0])?;
        let y = no_grad(|| x.mul(2.0))?;
        assert!(!y.requires_grad() && y.is_leaf());
        assert!(no_grad(|| enable_grad(|| x.mul(2.0)))?.requires_grad());
        Ok(())
    });
}

#[test]
fn an_inference_tensor_enters_no_graph() {
    common::cpu(|_| {
        let x = leaf(&[1.0])?;
        let y = inference_mode(|| x.mul(2.0))?;
        assert!(y.is_inference() && !x.is_inference() && !y.requires_grad());
        for refused in [y.mul(&x), y.requires_grad_(true), x.mul(1.0)?.mul(&y)] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("inference mode"), "{text}");
        }
        assert!(y.copy()?.mul(&x)?.requires_grad());
        // `add` does not save `y`, so an inference tensor is allowed as its operand.
        assert!(y.add(&x)?.requires_grad());
        Ok(())
    });
}

#[test]
fn an_anomaly_is_an_error_that_names_the_forward_op() {
    common::cpu(|_| {
        let x = leaf(&[0.0, 1.0])?;
        let y = x.sqrt()?.mul(0.0)?.sum(())?;
        let error = detect_anomaly(|| y.backward()).unwrap_err();
        assert!(
            matches!((error.op(), error.kind()), ("sqrt", ErrorKind::Gradient { .. })),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("NaN") && text.contains("autograd/modes.rs"), "{text}");
        ones([1], DType::F32).map(drop)
    });
}

#[test]
fn a_guard_holds_a_mode_to_the_end_of_its_block() {
    {
        let _outer = ModeGuard::no_grad();
        assert!(!is_grad_enabled());
        {
            let _inner = ModeGuard::enable_grad();
            assert!(is_grad_enabled());
        }
        assert!(!is_grad_enabled());
    }
    assert!(is_grad_enabled());
    let guard = ModeGuard::inference_mode();
    assert!(is_inference_mode_enabled() && !is_grad_enabled());
    drop(guard);
    assert!(!is_inference_mode_enabled() && is_grad_enabled());
    let panicked = std::panic::catch_unwind(|| {
        let _guard = ModeGuard::set_grad_enabled(false);
        panic!("restores the mode");
    });
    assert!(panicked.is_err() && is_grad_enabled());
}
