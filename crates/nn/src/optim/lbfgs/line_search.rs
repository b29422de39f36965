//! Line search for a point that satisfies the strong Wolfe conditions.
//!
//! The first phase extends the step until an interval contains such a point. The second phase shrinks the interval by
//! cubic interpolation. Both are those of PyTorch, down to the constants.

use warpline::{Result, Tensor};

use super::{LBFGS, dot, largest};

/// A step must achieve at least this fraction of the decrease that the initial slope predicts (Armijo condition).
const C1: f64 = 1e-4;
/// The slope after a step may have at most this fraction of the initial slope's magnitude (curvature condition).
const C2: f64 = 0.9;
/// Size of the interval below which the search ends, as the largest change of a parameter across the interval.
const TOLERANCE_CHANGE: f64 = 1e-9;

/// A point on the line.
#[derive(Clone, Debug)]
pub(super) struct SearchPoint {
    /// Distance from the origin, in units of the direction.
    pub(super) t: f64,
    pub(super) loss: f64,
    pub(super) grad: Tensor,
    /// Derivative of the loss along the direction.
    pub(super) slope: f64,
}

/// The parameters as a function of the distance along a direction.
pub(super) struct SearchLine<'a, F> {
    optimizer: &'a LBFGS,
    closure: &'a mut F,
    /// Parameters at the origin.
    start: Vec<Tensor>,
    d: &'a Tensor,
}

impl<'a, F: FnMut(&LBFGS) -> Result<Tensor>> SearchLine<'a, F> {
    /// Creates a line from the current parameters along `d`.
    #[track_caller]
    pub(super) fn new(optimizer: &'a LBFGS, closure: &'a mut F, d: &'a Tensor) -> Result<Self> {
        let start = optimizer.group.params().iter().map(|param| param.detach().copy());
        let start = start.collect::<Result<_>>()?;
        Ok(Self { optimizer, closure, start, d })
    }

    /// Evaluates the closure at distance `t`, then moves the parameters back to the origin.
    #[track_caller]
    fn evaluate(&mut self, t: f64) -> Result<SearchPoint> {
        self.optimizer.move_along(self.d, t)?;
        let loss = self.optimizer.call(self.closure);
        for (param, start) in self.optimizer.group.params().iter().zip(&self.start) {
            param.copy_(start, ())?;
        }
        let loss = loss?.item::<f64>()?;
        let grad = self.optimizer.gather_flat_grad()?;
        let slope = dot(&grad, self.d)?;
        Ok(SearchPoint { t, loss, grad, slope })
    }
}

/// Returns the best point found within `max_ls` evaluations after the first, and the number of evaluations.
#[track_caller]
pub(super) fn strong_wolfe(
    mut line: SearchLine<'_, impl FnMut(&LBFGS) -> Result<Tensor>>,
    origin: SearchPoint,
    t: f64,
    max_ls: usize,
) -> Result<(SearchPoint, usize)> {
    let d_norm = largest(line.d)?;
    let (limit, slope) = (origin.loss, origin.slope);
    let too_high = |point: &SearchPoint| point.loss > limit + C1 * point.t * slope;
    let is_flat = |point: &SearchPoint| point.slope.abs() <= -C2 * slope;

    let mut new = line.evaluate(t)?;
    let mut extensions = 0;
    let mut prev = origin.clone();
    let mut bracket = loop {
        if extensions >= max_ls {
            break [origin, new];
        }
        if too_high(&new) || extensions > 1 && new.loss >= prev.loss {
            break [prev, new];
        }
        if is_flat(&new) {
            return Ok((new, extensions + 1));
        }
        if new.slope >= 0.0 {
            break [prev, new];
        }
        let bounds = (new.t + 0.01 * (new.t - prev.t), new.t * 10.0);
        let t = cubic_interpolate(&prev, &new, bounds);
        prev = new;
        new = line.evaluate(t)?;
        extensions += 1;
    };

    let mut steps = extensions;
    let mut insufficient_progress = false;
    let mut low = lower(&bracket);
    while steps < max_ls {
        let (min, max) = ordered(bracket[0].t, bracket[1].t);
        if (max - min) * d_norm < TOLERANCE_CHANGE {
            break;
        }
        let mut t = cubic_interpolate(&bracket[0], &bracket[1], (min, max));
        // If two trials in a row are close to a boundary, or a trial is not between the boundaries, place
        // the trial a tenth of the bracket inside the nearer boundary.
        let margin = 0.1 * (max - min);
        let is_close = (max - t).min(t - min) < margin;
        if is_close && (insufficient_progress || t >= max || t <= min) {
            t = if (t - max).abs() < (t - min).abs() { max - margin } else { min + margin };
            insufficient_progress = false;
        } else {
            insufficient_progress = is_close;
        }

        let new = line.evaluate(t)?;
        steps += 1;
        if too_high(&new) || new.loss >= bracket[low].loss {
            bracket[1 - low] = new;
            low = lower(&bracket);
            continue;
        }
        let done = is_flat(&new);
        if !done && new.slope * (bracket[1 - low].t - bracket[low].t) >= 0.0 {
            bracket[1 - low] = bracket[low].clone();
        }
        bracket[low] = new;
        if done {
            break;
        }
    }
    let [first, second] = bracket;
    Ok((if low == 0 { first } else { second }, steps + 1))
}

/// Returns the index of the point with the lower loss.
fn lower(bracket: &[SearchPoint; 2]) -> usize {
    usize::from(bracket[0].loss > bracket[1].loss)
}

fn ordered(a: f64, b: f64) -> (f64, f64) {
    if a <= b { (a, b) } else { (b, a) }
}

/// Returns the minimum within `bounds` of the cubic polynomial with the losses and slopes of two points. The middle of
/// the bounds if the polynomial has no minimum.
fn cubic_interpolate(a: &SearchPoint, b: &SearchPoint, bounds: (f64, f64)) -> f64 {
    let (x1, f1, g1) = (a.t, a.loss, a.slope);
    let (x2, f2, g2) = (b.t, b.loss, b.slope);
    let d1 = g1 + g2 - 3.0 * (f1 - f2) / (x1 - x2);
    let square = d1 * d1 - g1 * g2;
    if square.is_nan() || square < 0.0 {
        return (bounds.0 + bounds.1) / 2.0;
    }
    let d2 = square.sqrt();
    let minimum = if x1 <= x2 {
        x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2.0 * d2))
    } else {
        x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2.0 * d2))
    };
    minimum.max(bounds.0).min(bounds.1)
}
