//! Times ops on the CPU in turns with candle's ops: small ones, whose time is the call, and layers of vision models.
//!
//! `cargo run --release -- PREFIX` times the rows whose name begins with PREFIX. Prints the median of 15 turns for both
//! and the ratio; below 1, Warpline is faster.

use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::Device;
use warpline::functional::{self, InterpolateOptions, MaxPoolOptions};

type Error = Box<dyn std::error::Error>;
/// One call of an op, whose result is dropped.
type Call = Box<dyn Fn()>;

/// An op here and in candle.
struct Row {
    name: &'static str,
    warpline: Call,
    candle: Call,
}

fn row<A, B>(
    name: &'static str,
    warpline: impl Fn() -> warpline::Result<A> + 'static,
    candle: impl Fn() -> candle_core::Result<B> + 'static,
) -> Row {
    Row {
        name,
        warpline: Box::new(move || drop(black_box(warpline().expect(name)))),
        candle: Box::new(move || drop(black_box(candle().expect(name)))),
    }
}

/// Returns the same `float32` values in both libraries.
fn pair(sizes: &[usize]) -> Result<(warpline::Tensor, candle_core::Tensor), Error> {
    let numel = sizes.iter().product::<usize>();
    let values: Vec<f32> = (0..numel).map(|i| (i % 251) as f32 * 0.01 - 1.0).collect();
    let candle = candle_core::Tensor::from_slice(&values, sizes, &Device::Cpu)?;
    Ok((warpline::Tensor::from_vec(values, sizes, ())?, candle))
}

/// Ops on four elements, whose time is that of the call.
fn small() -> Result<Vec<Row>, Error> {
    let ((a, x), (b, y)) = (pair(&[4])?, pair(&[4])?);
    let ((m, u), (n, v)) = (pair(&[2, 2])?, pair(&[2, 2])?);
    macro_rules! rows {
        ($($name:literal: |$($own:ident),+| $warpline:expr, |$($other:ident),+| $candle:expr;)*) => {
            vec![$({
                $(let $own = $own.clone();)+
                $(let $other = $other.clone();)+
                row(concat!("4 elements, ", $name), move || $warpline, move || $candle)
            }),*]
        };
    }
    Ok(rows! {
        "add": |a, b| a.add(&b), |x, y| x.add(&y);
        "mul": |a, b| a.mul(&b), |x, y| x.mul(&y);
        "mul by a number": |a| a.mul(2.0), |x| x.affine(2.0, 0.0);
        "exp": |a| a.exp(), |x| x.exp();
        "relu": |a| a.relu(), |x| x.relu();
        "sum": |a| a.sum(()), |x| x.sum_all();
        "matmul": |m, n| m.matmul(&n), |u, v| u.matmul(&v);
        "transpose": |m| m.t(), |u| u.t();
        "reshape": |a| a.reshape([2, 2]), |x| x.reshape((2, 2));
        "to_vec": |a| a.to_vec::<f32>(), |x| x.to_vec1::<f32>();
    })
}

/// Layers whose time is that of the elements.
fn layers() -> Result<Vec<Row>, Error> {
    let (image, other) = pair(&[8, 64, 56, 56])?;
    let (rows, others) = pair(&[4096, 768])?;
    let (weight, alpha) = pair(&[768])?;
    let (bias, beta) = pair(&[768])?;
    macro_rules! pools {
        ($($name:literal: $warpline:expr, $candle:expr;)*) => {
            vec![$({
                let (image, other) = (image.clone(), other.clone());
                row($name, move || $warpline(&image), move || $candle(&other))
            }),*]
        };
    }
    let mut all = pools! {
        "max_pool2d": |x: &warpline::Tensor| functional::max_pool2d(x, 2, MaxPoolOptions::new()),
            |x: &candle_core::Tensor| x.max_pool2d(2);
        "avg_pool2d": |x: &warpline::Tensor| functional::avg_pool2d(x, 2, ()), |x: &candle_core::Tensor| x.avg_pool2d(2);
        "nearest upsampling": |x: &warpline::Tensor| functional::interpolate(x, InterpolateOptions::new().size([112, 112])),
            |x: &candle_core::Tensor| x.upsample_nearest2d(112, 112);
    };
    let norm = functional::LayerNormOptions::new();
    let (w, b, r) = (weight.clone(), bias, rows.clone());
    let (c, d, s) = (alpha.clone(), beta, others.clone());
    all.push(row(
        "layer_norm",
        move || functional::layer_norm(&r, [768], norm.clone().weight(&w).bias(&b)),
        move || candle_nn::ops::layer_norm(&s, &c, &d, 1e-5),
    ));
    all.push(row(
        "rms_norm",
        move || functional::rms_norm(&rows, [768], functional::RMSNormOptions::new().weight(&weight).eps(1e-5)),
        move || candle_nn::ops::rms_norm(&others, &alpha, 1e-5),
    ));
    Ok(all)
}

/// Returns the time of a call, averaged over about five milliseconds.
fn time(call: &Call) -> Duration {
    let mut count = 1;
    loop {
        let start = Instant::now();
        (0..count).for_each(|_| call());
        let elapsed = start.elapsed();
        if elapsed > Duration::from_millis(5) {
            return elapsed / count;
        }
        count *= 2;
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> Result<(), Error> {
    let prefix = std::env::args().nth(1).unwrap_or_default();
    println!("| op | Warpline | candle | ratio |\n|---|---|---|---|");
    for row in small()?.into_iter().chain(layers()?).filter(|row| row.name.starts_with(&prefix)) {
        let (mut own, mut other) = (Vec::new(), Vec::new());
        for _ in 0..15 {
            own.push(time(&row.warpline));
            other.push(time(&row.candle));
        }
        let (own, other) = (median(own), median(other));
        let ratio = own.as_secs_f64() / other.as_secs_f64();
        println!("| {} | {own:.2?} | {other:.2?} | {ratio:.2} |", row.name);
    }
    Ok(())
}
