//! Tests of races that are logged.

use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};
use warpline_cuda_sys_safe::Access::{Read, Write};

use super::cases::{BYTES, run, runtime, streams, the_race, whole};
use crate::{RaceReport, Storage};

/// Collects the text of events.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

impl tracing::field::Visit for Lines {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn fmt::Debug) {
        let line = (Level::TRACE, format!("{value:?}"));
        self.0.lock().unwrap().push(line);
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
        self.0.lock().unwrap().last_mut().unwrap().0 = *event.metadata().level();
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_race_can_be_logged() {
    let runtime = runtime(RaceReport::Log);
    let [a, b] = streams(&runtime);
    let x = Storage::device(&runtime, BYTES, &a).unwrap();
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        run(&a, "ones", &[whole(&x, Write)]).unwrap();
        run(&b, "sum", &[whole(&x, Read)]).unwrap();
    });
    let race = the_race(&runtime);
    assert_eq!(*lines.0.lock().unwrap(), [(Level::WARN, format!("{race:#}"))]);
}
