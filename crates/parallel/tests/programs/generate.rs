//! Generates programs from seeds.

use warpline::DType;

use crate::apply::Expect;
use crate::model::{Blur, Model, Track, UNKNOWN, Value};
use crate::ops::{self, FROM_VEC};
use crate::random::Random;
use crate::row::{DTYPES, Row};

/// A call of a program.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The number by which later steps refer to this step.
    pub(crate) id: usize,
    pub(crate) row: usize,
    /// Arguments: the step and the index of its result.
    pub(crate) tensors: Vec<(usize, usize)>,
    pub(crate) numbers: Vec<i64>,
    /// 0 for the current stream. Otherwise the number of the step's stream, counted from 1, among the
    /// streams of either device.
    pub(crate) stream: usize,
    /// Whether the step runs in its own thread.
    pub(crate) thread: bool,
    /// Whether the step runs at the same time as the previous step. Ignored if it depends on one of
    /// the steps with which it would run, or if these are four already.
    pub(crate) beside: bool,
}

/// Draws the arguments of one call.
pub(crate) struct Draw<'a> {
    pub(crate) random: &'a mut Random,
    pub(crate) model: &'a mut Model,
    steps: &'a mut Vec<Step>,
    next: &'a mut usize,
    /// The arguments drawn so far.
    pub(crate) tensors: Vec<(usize, usize)>,
    pub(crate) numbers: Vec<i64>,
    /// Whether only exact values may be passed, and no rounded values.
    sharp: bool,
}

impl Draw<'_> {
    /// Returns argument `k`.
    pub(crate) fn arg(&self, k: usize) -> Value {
        self.model.values[&self.tensors[k]].clone()
    }

    /// Passes a live tensor for which `fits` is true. If there is none, and in a few other calls,
    /// passes a new tensor of one of the dtypes.
    pub(crate) fn tensor(&mut self, dtypes: &[DType], fits: impl Fn(&Value) -> bool) {
        let blur_fits = |v: &Value| !self.sharp || self.model.blur(v) == Blur::Exact;
        let live: Vec<(usize, usize)> = self
            .model
            .values
            .iter()
            .filter(|(_, v)| dtypes.contains(&v.dtype) && blur_fits(v) && fits(v))
            .map(|(at, _)| *at)
            .collect();
        if live.is_empty() || self.random.percent(15) {
            for _ in 0..16 {
                let sizes = self.sizes();
                let dtype = self.random.pick(dtypes);
                let place = self.place();
                let like = Value {
                    identity: 0,
                    storage: 0,
                    dtype,
                    place,
                    strides: crate::model::dense_strides(&sizes),
                    sizes,
                    offset: 0,
                    track: crate::model::Track::No,
                    of_leaf: false,
                };
                if fits(&like) {
                    return self.fresh(dtype, place, 0, &like.sizes);
                }
            }
        }
        match live.is_empty() {
            true => self.fresh(dtypes[0], 0, 0, &[2, 3]),
            false => {
                let at = self.random.pick(&live);
                self.tensors.push(at);
            }
        }
    }

    /// Passes any tensor.
    pub(crate) fn any(&mut self) {
        self.tensor(&DTYPES, |_| true);
    }

    /// Passes any tensor of floats.
    pub(crate) fn float(&mut self) {
        self.tensor(&FLOATS, |_| true);
    }

    /// Passes a tensor that broadcasts with argument 0, on the same device.
    pub(crate) fn broadcasts(&mut self) {
        let with = self.arg(0);
        let dtype = if self.random.percent(60) { with.dtype } else { self.random.pick(&DTYPES) };
        let fits = |v: &Value| {
            v.place == with.place
                && crate::model::broadcast(&v.sizes, &with.sizes)
                    .is_ok_and(|sizes| sizes.iter().product::<usize>() <= 512)
        };
        let live = self.model.values.values().any(|v| fits(v) && v.identity != with.identity);
        if live && self.random.percent(70) {
            return self.tensor(&DTYPES, fits);
        }
        let mut sizes = with.sizes.clone();
        sizes.iter_mut().for_each(|n| {
            if self.random.percent(25) {
                *n = 1
            }
        });
        sizes.drain(..if sizes.is_empty() || self.random.percent(70) { 0 } else { 1 });
        self.fresh(dtype, with.place, 0, &sizes);
    }

    /// Passes a tensor with the sizes, dtype and device of argument 0.
    pub(crate) fn same(&mut self) {
        let with = self.arg(0);
        let fits = |v: &Value| v.place == with.place && v.sizes == with.sizes;
        let live = self.model.values.values().any(|v| fits(v) && v.dtype == with.dtype);
        if live && self.random.percent(60) {
            return self.tensor(&[with.dtype], fits);
        }
        self.fresh(with.dtype, with.place, 0, &with.sizes);
    }

    /// Passes a new tensor. If `modulus` is not 0, the elements are less than `modulus`.
    pub(crate) fn fresh(&mut self, dtype: DType, place: usize, modulus: usize, sizes: &[usize]) {
        let mut numbers =
            vec![dtype as i64, place as i64, self.random.below(11) as i64, modulus as i64];
        numbers.extend(sizes.iter().map(|&n| n as i64));
        let at = self.call(FROM_VEC, vec![], numbers);
        self.tensors.push(at);
    }

    /// Passes a leaf that requires a gradient.
    pub(crate) fn leaf(&mut self) {
        let leaf = |v: &Value| v.track == Track::Leaf;
        if self.model.values.values().any(leaf) {
            return self.tensor(&FLOATS, leaf);
        }
        let (sizes, place) = (self.sizes(), self.place());
        self.fresh(DType::F32, place, 0, &sizes);
        let tensor = self.tensors.pop().expect("a tensor was made");
        let at = self.call(ops::requires_grad(), vec![tensor], vec![]);
        self.tensors.push(at);
    }

    /// Adds a step that makes a tensor.
    fn call(
        &mut self,
        row: usize,
        tensors: Vec<(usize, usize)>,
        numbers: Vec<i64>,
    ) -> (usize, usize) {
        let id = *self.next;
        *self.next += 1;
        let step = Step {
            id,
            row,
            tensors,
            numbers,
            stream: if self.random.percent(60) { 0 } else { self.random.below(3) },
            thread: self.random.percent(5),
            beside: false,
        };
        let expect = self.model.apply(&step);
        assert!(matches!(expect, Some(Expect::Ok(_))), "{step:?} makes a tensor");
        self.steps.push(step);
        (id, 0)
    }

    /// Passes a number.
    pub(crate) fn number(&mut self, number: i64) {
        self.numbers.push(number);
    }

    /// Passes a number from `low` to `high`, both included.
    pub(crate) fn int(&mut self, low: i64, high: i64) -> i64 {
        let number = low + self.random.below((high - low + 1) as usize) as i64;
        self.numbers.push(number);
        number
    }

    /// Passes 0, or in a fifth of the calls the number of a mistake, from 1 to `count`.
    pub(crate) fn mistake(&mut self, count: usize) {
        let mistake = if self.random.percent(20) { 1 + self.random.below(count) } else { 0 };
        self.number(mistake as i64);
    }

    /// Passes a dimension of argument 0, which may be negative. Returns it counted from the front.
    pub(crate) fn dim(&mut self) -> usize {
        let count = self.arg(0).ndim().max(1) as i64;
        self.int(-count, count - 1).rem_euclid(count) as usize
    }

    /// Passes a dtype.
    pub(crate) fn dtype(&mut self) -> DType {
        let dtype = self.random.pick(&DTYPES);
        self.number(dtype as i64);
        dtype
    }

    pub(crate) fn place(&mut self) -> usize {
        self.random.pick(&[0, 0, 0, 0, 0, 1, 2])
    }

    /// Returns small sizes.
    pub(crate) fn sizes(&mut self) -> Vec<usize> {
        let ndim = self.random.pick(&[0, 1, 1, 2, 2, 2, 3, 3, 4]);
        (0..ndim).map(|_| self.random.pick(&[0, 1, 1, 2, 2, 3, 3, 4, 5])).collect()
    }
}

pub(crate) const FLOATS: [DType; 7] =
    [DType::F32, DType::F32, DType::F32, DType::F64, DType::F64, DType::F16, DType::BF16];

/// Numbers that replace valid arguments in wrong calls.
const EXTREMES: [i64; 14] = [
    -1,
    0,
    1,
    2,
    5,
    -7,
    i64::MIN,
    i64::MIN + 1,
    i64::MAX,
    1 << 31,
    (1 << 31) - 1,
    1 << 32,
    (1 << 32) + 1,
    1 << 62,
];

/// Percentage of calls for which a wrong argument is tried. Not every function can be called
/// wrongly.
const WRONG: usize = 35;
/// Number of calls that are drawn for a program, without calls that make arguments for other calls
/// and calls that drop tensors because there are too many. Calls that the model cannot predict are
/// left out of the program.
const CALLS: usize = 24;
/// Number of live tensors above which the program drops tensors.
const LIVE: usize = 14;

/// Generates the program of a seed.
pub(crate) fn program(seed: u64) -> Vec<Step> {
    let rows = ops::table();
    let mut random = Random::new(seed);
    let (mut model, mut steps, mut next) = (Model::default(), Vec::new(), 0);
    // About a third of a program's calls are of eight rows, so that these rows are often combined.
    let focus: Vec<usize> = (0..8).map(|_| weighted(&mut random, rows)).collect();
    let mut calls = 0;
    while calls < CALLS {
        let full = model.values.len() > LIVE;
        calls += usize::from(!full);
        let row = if full {
            ops::DROP
        } else if random.percent(35) {
            random.pick(&focus)
        } else {
            weighted(&mut random, rows)
        };
        let mut draw = Draw {
            random: &mut random,
            model: &mut model,
            steps: &mut steps,
            next: &mut next,
            tensors: vec![],
            numbers: vec![],
            sharp: rows[row].sharp,
        };
        (rows[row].draw)(&mut draw);
        if !full && draw.random.percent(WRONG) {
            corrupt(&mut draw, &rows[row]);
        }
        let (tensors, numbers) = (draw.tensors, draw.numbers);
        let thread = random.percent(12);
        let step = Step {
            id: next,
            row,
            tensors,
            numbers,
            stream: if random.percent(50) { 0 } else { random.below(3) },
            thread,
            beside: thread && random.percent(70),
        };
        if model.apply(&step).is_some() {
            next += 1;
            steps.push(step);
        }
    }
    steps
}

fn weighted(random: &mut Random, rows: &[Row]) -> usize {
    let total: u32 = rows.iter().map(|row| row.weight).sum();
    let mut at = random.below(total as usize) as u32;
    for (k, row) in rows.iter().enumerate() {
        match at.checked_sub(row.weight) {
            None => return k,
            Some(rest) => at = rest,
        }
    }
    0
}

/// Replaces one argument by a wrong one, if a few attempts find a wrong argument.
fn corrupt(draw: &mut Draw<'_>, row: &Row) {
    let valid = (draw.tensors.clone(), draw.numbers.clone());
    for _ in 0..12 {
        replace_one(draw);
        let args: Vec<Value> = (0..draw.tensors.len()).map(|k| draw.arg(k)).collect();
        if (row.predict)(&args, &draw.numbers).is_err_and(|kinds| kinds != UNKNOWN) {
            return;
        }
        (draw.tensors, draw.numbers) = valid.clone();
    }
    // Otherwise replace an argument all the same, so that valid calls have unusual arguments, too.
    replace_one(draw);
}

/// Replaces one argument by another number or tensor.
fn replace_one(draw: &mut Draw<'_>) {
    let (tensors, numbers) = (draw.tensors.len(), draw.numbers.len());
    if tensors + numbers == 0 {
        return;
    }
    let k = draw.random.below(tensors + numbers);
    if k >= tensors {
        let number = &mut draw.numbers[k - tensors];
        *number = match draw.random.below(3) {
            0 => number.wrapping_add(1),
            1 => number.wrapping_sub(1),
            _ => draw.random.pick(&EXTREMES),
        };
        return;
    }
    let value = draw.arg(k);
    let live: Vec<(usize, usize)> = draw.model.values.keys().copied().collect();
    if draw.random.percent(92) {
        draw.tensors[k] = draw.random.pick(&live);
        return;
    }
    let (dtype, place) = match draw.random.below(2) {
        0 => (draw.random.pick(&DType::ALL), value.place),
        _ => (value.dtype, draw.place()),
    };
    draw.fresh(dtype, place, 0, &value.sizes);
    draw.tensors[k] = draw.tensors.pop().expect("a tensor was made");
}
