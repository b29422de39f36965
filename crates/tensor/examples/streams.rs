//! The stream example of PyTorch's note on CUDA semantics. The example is incorrect in PyTorch: `sum` may begin
//! before `normal_` has finished. In Warpline, the second stream waits without a call of the program; under
//! `SyncPolicy::Manual`, the mistake is reported.

#[path = "support/mod.rs"]
pub(crate) mod support;

use support::Report;
use warpline::{Result, RuntimeConfig, SyncPolicy, cuda};

/// Runs the example on one device, under both policies.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    let expected = support::with_config(1, &RuntimeConfig::default(), |_| {
        warpline::manual_seed(0);
        let a = warpline::empty([100, 100], "cuda")?;
        a.normal_(())?;
        let expected = a.sum(())?.item::<f32>()?; // one stream: in order by itself

        warpline::manual_seed(0);
        let s = cuda::Stream::new(())?; // a new stream
        let a = warpline::empty([100, 100], "cuda")?;
        a.normal_(())?;
        let b = cuda::with_stream(&s, || a.sum(()))?; // in PyTorch, this may start too early
        let sum = b.item::<f32>()?;
        report.check("S12 right by default", sum == expected, format!("{sum} = {expected}"));
        Ok(expected)
    })?;

    let manual = RuntimeConfig { sync_policy: SyncPolicy::Manual, ..RuntimeConfig::default() };
    support::with_config(1, &manual, |runtime| {
        warpline::manual_seed(0);
        let s = cuda::Stream::new(())?;
        let a = warpline::empty([100, 100], "cuda")?;
        a.normal_(())?;
        let b = cuda::with_stream(&s, || a.sum(()))?;
        let races = runtime.take_races();
        let outcome = races.first().map_or("no race was reported".into(), ToString::to_string);
        let reported = races.len() == 1 && outcome.contains("normal_") && outcome.contains("sum");
        report.check("S12 reported in manual mode", reported, outcome);
        cuda::synchronize(())?;
        drop((a, b));

        // The correction that the note gives.
        warpline::manual_seed(0);
        let a = warpline::empty([100, 100], "cuda")?;
        a.normal_(())?;
        s.wait_stream(&cuda::current_stream(())?)?;
        let b = cuda::with_stream(&s, || a.sum(()))?;
        a.record_stream(&s)?;
        cuda::current_stream(())?.wait_stream(&s)?;
        let sum = b.item::<f32>()?;
        let races = runtime.take_races();
        let mended = sum == expected && races.is_empty();
        report.check("S13 wait_stream mends it", mended, format!("{sum}, {} race(s)", races.len()));
        Ok(())
    })
}

#[allow(dead_code)]
fn main() -> std::process::ExitCode {
    support::main_of("streams", run)
}
