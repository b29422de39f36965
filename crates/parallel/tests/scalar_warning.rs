//! `DataParallel` logs its warning about scalar outputs once per process. The test needs its own process, because the
//! warning is logged only once.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use warpline::{Result, RuntimeConfig, Tensor, ones, open, with_runtime};
use warpline_nn::{Forward, Module};
use warpline_parallel::DataParallel;

/// Collects the text of warnings.
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

/// Sums the input to a scalar or to a vector of one element.
#[derive(Clone, Module)]
struct Sums;

impl Forward<(Tensor, bool)> for Sums {
    type Output = Tensor;

    fn forward(&self, (x, scalar): (Tensor, bool)) -> Result<Tensor> {
        let sum = x.sum(())?;
        if scalar { Ok(sum) } else { sum.view([1]) }
    }
}

#[test]
fn gathering_scalars_logs_one_warning() {
    let runtime = open("sim:2,lazy", &RuntimeConfig::default()).unwrap();
    let warnings = Warnings::default();
    let found = Arc::clone(&warnings.0);
    tracing::subscriber::with_default(warnings, || {
        with_runtime(&runtime, || {
            let net = DataParallel::new(Sums, ()).unwrap();
            let x = ones([4], 0).unwrap();
            net.forward((x.clone(), false)).unwrap();
            assert!(found.lock().unwrap().is_empty());
            for _ in 0..2 {
                net.forward((x.clone(), true)).unwrap();
            }
        });
    });
    assert_eq!(
        *found.lock().unwrap(),
        [
            "Was asked to gather along dimension 0, but all input tensors were scalars; will instead \
          unsqueeze and return a vector."
        ]
    );
}
