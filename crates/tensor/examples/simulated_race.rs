//! Tests a program's streams without a GPU. On simulated GPUs that run work as late as CUDA allows, a missing
//! wait is found and shows in the data. `cargo test --example simulated_race` runs the tests.

use warpline::{Result, Tensor, cuda, zeros};

/// Fills a tensor on one stream and sums it on another under `SyncPolicy::Manual`, which is PyTorch's rule.
/// Waits between the two if `waits` is set.
fn program(waits: bool) -> Result<(Tensor, f32)> {
    let x = zeros([1000], "cuda")?;
    let side = cuda::Stream::new(())?;
    side.wait_stream(&cuda::current_stream(())?)?;
    cuda::with_stream(&side, || x.fill_(1).map(drop))?;
    if waits {
        cuda::current_stream(())?.wait_stream(&side)?;
    }
    let sum = x.sum(())?.item()?;
    x.record_stream(&side)?;
    Ok((x, sum))
}

fn main() -> Result<()> {
    let runtime = warpline::open("sim:1,lazy", &Default::default())?;
    warpline::with_runtime(&runtime, || {
        cuda::set_sync_policy(warpline::SyncPolicy::Manual);
        for waits in [true, false] {
            let (_x, sum) = program(waits)?;
            println!("waits: {waits}, sum: {sum}");
            for race in cuda::take_races() {
                println!("{race:#}");
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use warpline::{RuntimeConfig, SyncPolicy, open, with_runtime};

    use super::*;

    /// Runs a test on a simulated GPU that runs work as late as possible, and on 16 that run work in random
    /// orders.
    fn everywhere(test: impl Fn() -> Result<()>) -> Result<()> {
        let seeded = (0..16).map(|seed| format!("sim:1,seed={seed}"));
        for spec in std::iter::once("sim:1,lazy".to_owned()).chain(seeded) {
            let config = RuntimeConfig { sync_policy: SyncPolicy::Manual, ..Default::default() };
            with_runtime(&open(&spec, &config)?, &test)?;
        }
        Ok(())
    }

    #[test]
    fn the_sum_waits_for_the_fill() -> Result<()> {
        everywhere(|| {
            assert_eq!(program(true)?.1, 1000.0);
            assert!(cuda::take_races().is_empty());
            Ok(())
        })
    }

    #[test]
    fn without_the_wait_there_is_a_race() -> Result<()> {
        everywhere(|| {
            program(false)?;
            let races = cuda::take_races();
            assert_eq!((races[0].first.op, races[0].second.op), ("fill_", "sum"));
            Ok(())
        })
    }
}
