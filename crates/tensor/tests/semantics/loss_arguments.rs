//! Tests of arguments that losses reject or warn about, as in PyTorch 2.11.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use warpline::functional::{
    CrossEntropyLossOptions, NLLLossOptions, Reduction, SmoothL1LossOptions, binary_cross_entropy,
    cross_entropy, huber_loss, l1_loss, mse_loss, nll_loss, smooth_l1_loss,
};
use warpline::{DType, Result, ones, tensor, zeros};

use crate::common::bad_calls::{everywhere, refused};

/// Collects the texts of warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
                write!(self.0, "{value:?}").expect("a string");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn losses_warn_of_sizes_that_are_broadcast() -> Result<()> {
    everywhere(|at| {
        let (x, t) = (zeros([2, 3], at)?, ones([3], at)?);
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.clone(), || -> Result<()> {
            mse_loss(&x, &t, Reduction::Mean)?;
            l1_loss(&x, &t, Reduction::Mean)?;
            smooth_l1_loss(&x, &t, ())?;
            smooth_l1_loss(&x, &t, SmoothL1LossOptions::new().beta(0.0))?;
            huber_loss(&x, &t, ())?;
            mse_loss(&x, &x, Reduction::Mean).map(drop)
        })?;
        let texts = warnings.0.lock().unwrap().clone();
        let ops = ["mse_loss", "l1_loss", "smooth_l1_loss", "l1_loss", "huber_loss"];
        assert_eq!(texts.len(), ops.len(), "{texts:?}");
        for (text, op) in texts.iter().zip(ops) {
            assert!(text.starts_with(&format!("{op}: the target's sizes [3]")), "{text}");
            assert!(text.contains("loss_arguments.rs:"), "{text}");
        }
        Ok(())
    })
}

#[test]
#[ignore = "the next test runs it in a process without a subscriber"]
fn losses_of_three_lines() {
    let (x, t) = (zeros([2, 3], ()).unwrap(), ones([3], ()).unwrap());
    for _ in 0..3 {
        mse_loss(&x, &t, ()).unwrap();
        l1_loss(&x, &t, ()).unwrap();
    }
    for n in [1, 2, 1, 2] {
        mse_loss(&zeros([n, 3], ()).unwrap(), &t, ()).unwrap();
    }
}

#[test]
fn warnings_are_printed_once_per_line_and_text_without_a_subscriber() {
    let own = std::env::current_exe().unwrap();
    let (_, module) = module_path!().split_once("::").unwrap();
    let test = format!("{module}::losses_of_three_lines");
    let output = std::process::Command::new(own)
        .args([&test, "--exact", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let warnings: Vec<&str> = text.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(warnings.len(), 4, "two lines, and two texts of a third: {text}");
    for (line, op) in warnings.iter().zip(["mse_loss", "l1_loss", "mse_loss", "mse_loss"]) {
        assert!(line.starts_with(&format!("warning: {op}: the target's sizes [3]")), "{line}");
        assert!(line.contains("loss_arguments.rs:"), "{line}");
    }
}

#[test]
fn a_binary_cross_entropy_outside_0_to_1_is_refused() -> Result<()> {
    let (half, mean) = (tensor([0.5f32], "cpu")?, Reduction::Mean);
    for bad in [1.5f32, -0.1, f32::NAN] {
        let bad = tensor([bad], "cpu")?;
        let text = refused("binary_cross_entropy", binary_cross_entropy(&bad, &half, mean));
        assert!(text.contains("all elements of the input must be from 0 to 1"), "{text}");
        let text = refused("binary_cross_entropy", binary_cross_entropy(&half, &bad, mean));
        assert!(text.contains("all elements of the target must be from 0 to 1"), "{text}");
    }
    let ends = tensor([0f32, 1.0], "cpu")?;
    binary_cross_entropy(&ends, &ends, mean)?;
    Ok(())
}

#[test]
fn class_indices_of_other_integers_are_refused() -> Result<()> {
    everywhere(|at| {
        let x = zeros([2, 3], at)?;
        let (plain, nll) = (CrossEntropyLossOptions::default(), NLLLossOptions::default());
        for dtype in [DType::I32, DType::I16, DType::I8, DType::Bool, DType::F32] {
            let target = ones([2], (dtype, at))?;
            let text = refused("cross_entropy", cross_entropy(&x, &target, plain));
            assert!(text.contains("torch.int64"), "{text}");
            refused("nll_loss", nll_loss(&x, &target, nll));
        }
        for dtype in [DType::I64, DType::U8] {
            let loss = cross_entropy(&x, &ones([2], (dtype, at))?, plain)?.item::<f32>()?;
            assert!((loss - 3f32.ln()).abs() < 1e-6, "{loss}");
        }
        let (image, bytes) = (zeros([2, 3, 4], at)?, ones([2, 4], (DType::U8, at))?);
        refused("cross_entropy", cross_entropy(&image, &bytes, plain));
        Ok(())
    })
}
