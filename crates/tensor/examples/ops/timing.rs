//! Measures the time of a call, by the same method as `Timed` in `common.py`.

use std::time::Instant;

use warpline::Result;
use warpline::cuda::{self, CudaGraph, Event, EventFlags};

use super::spec::{Spec, Timing};
use super::table::{Call, Op};

/// Maximum number of calls in a measurement of host time. With more calls enqueued, the host would wait for the device.
const MOST_ENQUEUED: f64 = 500.0;

/// A row that is being measured.
pub(crate) struct Row {
    call: Call,
    /// The graph of calls, if they are replayed. It uses the operands of `call`.
    graph: Option<CudaGraph>,
    timing: Timing,
    on_cuda: bool,
    target_ms: f64,
    /// Number of calls or replays in a measurement; `None` until it is known.
    reps: Option<u32>,
}

impl Row {
    /// Makes the operands and calls the op twice to warm up; the first call loads kernels.
    pub(crate) fn new(op: &Op, spec: &Spec) -> Result<Self> {
        let mut call = op.call(spec)?;
        call()?;
        call()?;
        let mut graph = None;
        if let Timing::Graph(calls) = spec.timing {
            let (captured, ()) = cuda::graph(|| (0..calls).try_for_each(|_| call()))?;
            captured.replay()?;
            graph = Some(captured);
        }
        let on_cuda = spec.device() == "cuda";
        Ok(Self {
            call,
            graph,
            timing: spec.timing,
            on_cuda,
            target_ms: spec.target_ms,
            reps: None,
        })
    }

    /// Returns the seconds per call, measured over enough calls to fill the target time, up to a maximum.
    pub(crate) fn measure(&mut self) -> Result<f64> {
        let reps = match self.reps {
            Some(reps) => reps,
            None => {
                let first = self.once(1)?.min(self.once(1)?).max(1e-9);
                let most = if self.timing == Timing::Host { MOST_ENQUEUED } else { 10_000.0 };
                let reps = (self.target_ms / 1e3 / first).clamp(1.0, most) as u32;
                self.once(reps)?;
                *self.reps.insert(reps)
            }
        };
        let calls = if let Timing::Graph(calls) = self.timing { calls } else { 1 };
        Ok(self.once(reps)? / f64::from(reps) / f64::from(calls))
    }

    /// Returns the seconds of `reps` calls.
    fn once(&mut self, reps: u32) -> Result<f64> {
        self.synchronize()?;
        if self.timing == Timing::Host {
            let start = Instant::now();
            for _ in 0..reps {
                self.run()?;
            }
            let seconds = start.elapsed().as_secs_f64();
            self.synchronize()?;
            return Ok(seconds);
        }
        let stream = cuda::current_stream(())?;
        let event = || Event::new(EventFlags::new().enable_timing(true));
        let (start, end) = (event(), event());
        start.record(&stream)?;
        for _ in 0..reps {
            self.run()?;
        }
        end.record(&stream)?;
        end.synchronize()?;
        Ok(f64::from(start.elapsed_time(&end)?) / 1e3)
    }

    fn run(&mut self) -> Result<()> {
        match &self.graph {
            Some(graph) => graph.replay(),
            None => (self.call)(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        if self.on_cuda { cuda::synchronize(()) } else { Ok(()) }
    }
}
