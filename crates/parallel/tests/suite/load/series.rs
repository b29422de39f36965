//! Numbers that are sampled while a program runs, and the check that they do not grow.

use std::fmt;

/// The part of a run that does not count, because caches fill.
const WARM_UP: f64 = 0.25;
/// Relative growth that counts as noise.
const NOISE: f64 = 0.02;
/// The same in runs of less than a minute, where caches still fill after the warm-up.
const SHORT_NOISE: f64 = 0.2;
/// Growth that counts as noise, in standard errors of the fitted growth.
const STANDARD_ERRORS: f64 = 4.0;

/// Samples of one number.
#[derive(Clone, Debug)]
pub(super) struct Series {
    name: String,
    /// Growth that counts as noise, in the unit of the samples.
    noise: f64,
    /// Times in seconds, and values.
    samples: Vec<(f64, f64)>,
}

/// The line that fits the samples after the warm-up.
#[derive(Clone, Copy, Debug)]
struct Fit {
    mean: f64,
    /// Slope times the time from the first to the last sample.
    growth: f64,
    /// Standard error of `growth`, if the deviations of the samples from the line are independent.
    error: f64,
}

impl Series {
    pub(super) fn new(name: &str, noise: f64) -> Self {
        Self { name: name.to_owned(), noise, samples: Vec::new() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn push(&mut self, time: f64, value: f64) {
        self.samples.push((time, value));
    }

    /// Fits a line by least squares to the samples after the warm-up.
    fn fit(&self) -> Fit {
        let end = self.samples.last().map_or(0.0, |last| last.0);
        let first = self.samples.iter().position(|sample| sample.0 >= WARM_UP * end).unwrap_or(0);
        let samples = &self.samples[first..];
        let count = samples.len() as f64;
        assert!(count >= 3.0, "{}: {count} samples are too few for a slope", self.name);
        let mean_of = |f: fn(&(f64, f64)) -> f64| samples.iter().map(f).sum::<f64>() / count;
        let (time, mean) = (mean_of(|s| s.0), mean_of(|s| s.1));
        let spread: f64 = samples.iter().map(|s| (s.0 - time).powi(2)).sum();
        let slope = samples.iter().map(|s| (s.0 - time) * (s.1 - mean)).sum::<f64>() / spread;
        let deviation = |s: &(f64, f64)| (s.1 - mean - slope * (s.0 - time)).powi(2);
        let variance = samples.iter().map(deviation).sum::<f64>() / (count - 2.0);
        let length = end - samples[0].0;
        Fit { mean, growth: slope * length, error: (variance / spread).sqrt() * length }
    }

    /// Returns the growth that counts as noise.
    fn bound(&self, fit: &Fit) -> f64 {
        let short = self.samples.last().is_some_and(|last| last.0 < 60.0);
        let relative = if short { SHORT_NOISE } else { NOISE };
        (relative * fit.mean.abs()).max(self.noise).max(STANDARD_ERRORS * fit.error)
    }

    /// Returns whether the number grows by more than the noise.
    pub(super) fn grows(&self) -> bool {
        let fit = self.fit();
        fit.growth > self.bound(&fit)
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fit = self.fit();
        // The means of four equal parts of all samples show whether a number still approaches its final value.
        let quarters = self.samples.chunks(self.samples.len().div_ceil(4));
        let means = quarters.map(|q| q.iter().map(|s| s.1).sum::<f64>() / q.len() as f64);
        write!(f, "{:<24}", self.name)?;
        means.into_iter().try_for_each(|mean| write!(f, "{mean:>9.1}"))?;
        write!(f, "  growth {:>8.2}  noise {:>8.2}", fit.growth, self.bound(&fit))
    }
}

#[cfg(test)]
mod tests {
    use super::Series;
    use crate::endings::Numbers;

    /// Returns 100 samples around 1000 that deviate by up to `deviation` and grow by `growth` in total.
    fn series(deviation: usize, growth: f64) -> Series {
        let (mut series, mut numbers) = (Series::new("a number", 2.0), Numbers(1));
        for time in 0..100 {
            let noise = numbers.below(2 * deviation + 1) as f64 - deviation as f64;
            let filling = if time < 20 { -500.0 } else { 0.0 };
            let time = f64::from(time);
            series.push(time, 1000.0 + noise + filling + growth * time / 99.0);
        }
        series
    }

    #[test]
    fn growth_beyond_the_noise_is_found() {
        assert!(!series(0, 0.0).grows() && !series(200, 0.0).grows() && !series(0, 20.0).grows());
        assert!(series(0, 30.0).grows() && series(20, 40.0).grows() && series(100, 200.0).grows());
        assert!(!series(0, -500.0).grows(), "a number may shrink");
    }
}
