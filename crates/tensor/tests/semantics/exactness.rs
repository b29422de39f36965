//! Tests that reductions, norms and products are at least as exact as PyTorch's, against exact results for adversarial
//! rows. `goldens/exactness.py` explains the inputs, the file and the unit of errors.

use std::fmt::Write as _;

use half::{bf16, f16};
use serde_json::Value;
use warpline::functional::{LayerNormOptions, RMSNormOptions, layer_norm, rms_norm};
use warpline::{DType, Device, Element, Result, Tensor, TensorData, VectorNormOptions, stack};

use crate::common::{cpu, golden_json};

const ROWS: usize = 8;
const N: usize = 1027;
const COLUMNS: usize = 4;
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
/// Epsilon of the norms.
const EPSILON: f64 = 1.0 / 131_072.0;
/// Error in ulps that is allowed even if PyTorch's result is more exact: a few operations, each correctly rounded, have
/// such an error by chance.
const ALLOWED: f64 = 2.5;
/// Ops that are less exact than PyTorch's on the CPU for some inputs, by dtype. They are not compared.
const LESS_EXACT: [(&str, &[&str]); 2] = [("mm", &["f32", "f64"]), ("prod", &["f64"])];
const KINDS: [&str; 10] = [
    "near_one",
    "offset",
    "same_sign",
    "cancellation",
    "spread",
    "denormal",
    "huge",
    "nan",
    "inf",
    "infs",
];

/// A dtype of the file.
#[derive(Clone, Copy)]
struct Format {
    number: u64,
    name: &'static str,
    dtype: DType,
    /// Bits of the fraction.
    fraction: u32,
    /// Smallest and largest exponent of normal numbers.
    exponents: [i64; 2],
    bits: u32,
}

const FORMATS: [Format; 4] = [
    Format::new(0, "f16", DType::F16, 10, [-14, 15], 16),
    Format::new(1, "bf16", DType::BF16, 7, [-126, 127], 16),
    Format::new(2, "f32", DType::F32, 23, [-126, 127], 32),
    Format::new(3, "f64", DType::F64, 52, [-1022, 1023], 64),
];

impl Format {
    const fn new(
        number: u64,
        name: &'static str,
        dtype: DType,
        fraction: u32,
        exponents: [i64; 2],
        bits: u32,
    ) -> Self {
        Self { number, name, dtype, fraction, exponents, bits }
    }

    fn sign(self) -> u64 {
        1 << (self.bits - 1)
    }

    fn infinity(self) -> u64 {
        self.sign() - (1 << self.fraction)
    }

    /// Returns a mask of the lowest `bits` of the fraction.
    fn low(self, bits: u32) -> u64 {
        (1 << bits) - 1
    }

    fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    fn value(self, bits: u64) -> f64 {
        match self.dtype {
            DType::F16 => f16::from_bits(bits as u16).into(),
            DType::BF16 => bf16::from_bits(bits as u16).into(),
            DType::F32 => f32::from_bits(bits as u32).into(),
            _ => f64::from_bits(bits),
        }
    }

    /// Returns the distance from a magnitude to the next larger one.
    fn ulp(self, bits: u64) -> f64 {
        let field = ((bits & !self.sign()) >> self.fraction) as i64;
        let exponent = self.exponents[0] + (field - 1).max(0) - i64::from(self.fraction);
        // Both factors are normal numbers; their product may be denormal.
        2f64.powi((exponent / 2) as i32) * 2f64.powi((exponent - exponent / 2) as i32)
    }

    /// Returns a normal number with an exponent in the inclusive range `first..=last`.
    fn normal(self, z: u64, first: i64, last: i64, signed: bool) -> u64 {
        let exponent = first + (z >> 52 & 0x7FF) as i64 % (last - first + 1);
        let sign = if signed { z >> 63 << (self.bits - 1) } else { 0 };
        sign | ((exponent - self.exponents[0] + 1) as u64) << self.fraction
            | z & self.low(self.fraction)
    }

    fn element(self, kind: &str, row: usize, z: u64) -> u64 {
        let [low, high] = self.exponents;
        let fraction = self.fraction;
        match kind {
            "near_one" if z >> 52 & 1 == 1 => {
                (-low as u64) << fraction | 15 << (fraction - 4) | z & self.low(fraction - 4)
            }
            "near_one" => ((1 - low) as u64) << fraction | z & self.low(fraction - 5),
            "offset" => (-low as u64) << fraction | z & self.low(fraction / 4),
            "cancellation" => self.normal(z, 0, 4, true),
            "spread" => self.normal(z, low, high - 12, true),
            "denormal" => z >> 63 << (self.bits - 1) | z & self.low(fraction),
            "huge" => self.normal(z, high - 8, high - 6, row.is_multiple_of(2)),
            _ => self.normal(z, -2, 2, false),
        }
    }

    /// Returns the bits of the rows of a kind of input, in row-major order.
    fn inputs(self, kind: &str) -> Vec<u64> {
        let at = KINDS.iter().position(|k| *k == kind).expect("a kind");
        let seed = (self.number * 16 + at as u64) << 32;
        let mut all = Vec::new();
        for row in 0..ROWS {
            let draws: Vec<u64> = (0..N).map(|i| splitmix(seed, row * N + i)).collect();
            let mut of: Vec<u64> = draws.iter().map(|&z| self.element(kind, row, z)).collect();
            let place = place(row);
            match kind {
                "nan" => of[place] = self.infinity() | 1 << (self.fraction - 1),
                "inf" => of[place] = self.infinity() | (self.sign() * (row as u64 % 2)),
                "infs" => {
                    of[place] = self.infinity();
                    of[(place + 500) % N] = self.infinity() | self.sign();
                }
                "cancellation" | "huge" if kind != "huge" || row % 2 == 0 => {
                    of[N / 2] = 0;
                    for i in N / 2 + 1..N {
                        of[i] =
                            of[N - 1 - i] ^ self.sign() ^ draws[i] & self.low(self.fraction / 2);
                    }
                }
                _ => {}
            }
            all.append(&mut of);
        }
        all
    }

    /// Returns the bits of the second factor of products.
    fn factors(self) -> Vec<u64> {
        let seed = (self.number * 16 + 15) << 32;
        let draw = |at: usize| {
            let (i, j) = (at / COLUMNS, at % COLUMNS);
            splitmix(seed, i.min(N - 1 - i) * COLUMNS + j)
        };
        (0..N * COLUMNS).map(|at| self.normal(draw(at), -1, 0, true)).collect()
    }

    fn tensor(self, bits: &[u64], sizes: [usize; 2], device: Device) -> Result<Tensor> {
        fn make<T: TensorData + Element>(
            bits: &[u64],
            sizes: [usize; 2],
            device: Device,
            of: fn(u64) -> T,
        ) -> Result<Tensor> {
            Tensor::from_vec(bits.iter().map(|&b| of(b)).collect(), sizes, device)
        }
        match self.dtype {
            DType::F16 => make(bits, sizes, device, |b| f16::from_bits(b as u16)),
            DType::BF16 => make(bits, sizes, device, |b| bf16::from_bits(b as u16)),
            DType::F32 => make(bits, sizes, device, |b| f32::from_bits(b as u32)),
            _ => make(bits, sizes, device, f64::from_bits),
        }
    }

    fn bits_of(self, t: &Tensor) -> Result<Vec<u64>> {
        assert_eq!(t.dtype(), self.dtype);
        fn read<T: Element>(t: &Tensor, of: fn(T) -> u64) -> Result<Vec<u64>> {
            Ok(t.to_vec::<T>()?.into_iter().map(of).collect())
        }
        match self.dtype {
            DType::F16 => read(t, |x: f16| x.to_bits().into()),
            DType::BF16 => read(t, |x: bf16| x.to_bits().into()),
            DType::F32 => read(t, |x: f32| x.to_bits().into()),
            _ => read(t, f64::to_bits),
        }
    }

    /// Returns the error of a result in ulps, or `None` if its class is wrong.
    fn error(self, exact: &str, result: u64) -> Option<f64> {
        if exact == "nan" {
            return self.is_nan(result).then_some(0.0);
        }
        let (bits, rest) = exact.split_once(':').unwrap_or((exact, "0"));
        let expected = u64::from_str_radix(bits, 16).expect("bits");
        if [expected, result].iter().any(|bits| !self.value(*bits).is_finite()) {
            return (expected == result).then_some(0.0);
        }
        let rest: f64 = rest.parse().expect("thousandths of an ulp");
        let apart = self.value(result) - self.value(expected);
        Some((apart / self.ulp(expected) - rest / 1000.0).abs().min(1e30))
    }
}

fn splitmix(seed: u64, i: usize) -> u64 {
    let z = seed.wrapping_add((i as u64 + 1).wrapping_mul(GAMMA));
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// Returns the column of the special value of a row.
fn place(row: usize) -> usize {
    (389 * row + 101) % N
}

fn checksum(bits: &[u64]) -> String {
    let sum = bits.iter().fold(0u64, |sum, b| (sum.rotate_left(5) ^ b).wrapping_mul(GAMMA));
    format!("{sum:016x}")
}

/// Runs an op on the rows `x`. Of an op with a result per element, returns the results of the columns that count.
fn call(op: &str, x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let norm = |ord: f64| x.vector_norm(VectorNormOptions::new().ord(ord).dim(1));
    let of_elements = match op {
        "sum" => return x.sum(1),
        "mean" => return x.mean(1),
        "prod" => return x.prod(1),
        "var" => return x.var(1),
        "std" => return x.std(1),
        "norm" => return norm(2.0),
        "norm_1" => return norm(1.0),
        "norm_inf" => return norm(f64::INFINITY),
        "logsumexp" => return x.logsumexp(1),
        "dot" => {
            let of = factors.select(1, 0)?;
            let dots = (0..ROWS).map(|row| x.select(0, row)?.dot(&of));
            return stack(&dots.collect::<Result<Vec<_>>>()?, 0);
        }
        "mv" => return x.mv(&factors.select(1, 0)?),
        "mm" => return x.mm(factors),
        "softmax" => x.softmax(1)?,
        "log_softmax" => x.log_softmax(1)?,
        "cumsum" => x.cumsum(1)?,
        "layer_norm" => layer_norm(x, N, LayerNormOptions::new().eps(EPSILON))?,
        "rms_norm" => rms_norm(x, N, RMSNormOptions::new().eps(EPSILON))?,
        other => panic!("no op {other}"),
    };
    let samples = (0..ROWS).flat_map(|row| {
        [(131 * row + 7) % N, place(row), N - 1]
            .map(|column| of_elements.select(0, row)?.select(0, column))
    });
    stack(&samples.collect::<Result<Vec<_>>>()?, 0)
}

/// Compares the results on the CPU with PyTorch's errors. Prints the cases in which Warpline is least exact beside
/// PyTorch. The file also has PyTorch's errors on a GPU.
fn compare() -> Result<()> {
    let device = Device::Cpu;
    let Some(golden) = golden_json("exactness.json") else { return Ok(()) };
    let cases = golden["cases"].as_object().expect("cases");
    let (mut table, mut failures, mut compared) = (Vec::new(), String::new(), 0);
    for format in FORMATS {
        let second = format.factors();
        let expected = golden["inputs"][format!("factors.{}", format.name)].as_str();
        assert_eq!(expected, Some(&*checksum(&second)), "{}", format.name);
        let second = format.tensor(&second, [N, COLUMNS], device)?;
        for kind in KINDS {
            let end = format!(".{kind}.{}", format.name);
            let bits = format.inputs(kind);
            assert_eq!(golden["inputs"][&end[1..]].as_str(), Some(&*checksum(&bits)), "{end}");
            let rows = format.tensor(&bits, [ROWS, N], device)?;
            let columns = rows.t()?.contiguous()?.t()?;
            for (name, case) in cases.iter().filter(|(name, _)| name.ends_with(&end)) {
                let op = &name[..name.len() - end.len()];
                if is_less_exact(op, format.name) {
                    continue;
                }
                for (order, x, pair) in [("rows", &rows, 0), ("columns", &columns, 1)] {
                    let name = format!("{name} by {order}");
                    let results = format.bits_of(&call(op, x, &second)?)?;
                    let again = format.bits_of(&call(op, x, &second)?)?;
                    assert_eq!(results, again, "{name} differs from run to run");
                    compared += 1;
                    let verdict = Verdict::new(format, case, pair, &results);
                    if let Some(failure) = verdict.failure() {
                        writeln!(failures, "{name}: {failure}").expect("a string");
                    }
                    table.push((verdict.ours / verdict.theirs.max(ALLOWED), name, verdict));
                }
            }
        }
    }
    assert!(compared > 900, "only {compared} cases were compared");
    table.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("largest errors in ulps on {device}, the worst beside PyTorch first:");
    for (_, name, Verdict { ours, theirs, .. }) in table.iter().take(40) {
        println!("{name:40} {ours:12.4} PyTorch {theirs:12.4}");
    }
    assert!(failures.is_empty(), "on {device}:\n{failures}");
    Ok(())
}

fn is_less_exact(op: &str, dtype: &str) -> bool {
    LESS_EXACT.iter().any(|(name, dtypes)| *name == op && dtypes.contains(&dtype))
}

/// The comparison of the results of a case with PyTorch's.
struct Verdict {
    /// Largest errors in ulps.
    ours: f64,
    theirs: f64,
    /// Numbers of results whose class is wrong here and right in PyTorch.
    wrong: Vec<usize>,
}

impl Verdict {
    fn new(format: Format, case: &Value, pair: usize, results: &[u64]) -> Self {
        let exact: Vec<&str> = case[0].as_str().expect("results").split(' ').collect();
        assert_eq!(exact.len(), results.len());
        let theirs = case[1 + pair][0].as_f64().expect("an error");
        let wrong_there = case[1 + pair][1].as_u64().expect("a mask");
        let mut verdict = Self { ours: 0.0, theirs, wrong: Vec::new() };
        for (i, (exact, &result)) in exact.into_iter().zip(results).enumerate() {
            if wrong_there >> i & 1 == 1 {
                continue;
            }
            match format.error(exact, result) {
                Some(error) => verdict.ours = verdict.ours.max(error),
                None => verdict.wrong.push(i),
            }
        }
        verdict
    }

    fn failure(&self) -> Option<String> {
        // The file has four digits of PyTorch's errors.
        let is_exact = self.ours <= self.theirs.max(ALLOWED) * 1.001;
        (!is_exact || !self.wrong.is_empty()).then(|| {
            let Self { ours, theirs, wrong } = self;
            format!("error {ours}, PyTorch's {theirs}, results of the wrong class {wrong:?}")
        })
    }
}

#[test]
fn reductions_on_the_cpu_are_as_exact_as_pytorchs() {
    cpu(|_| compare());
}
