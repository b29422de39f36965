//! CPU implementations, in `f32`, of rows that are first converted.

use warpline_runtime::host::{self, HostElement, HostLaunch, Shared};

use super::{Attention, ROWS, Steps};

impl Attention {
    fn batches(&self) -> usize {
        (self.outer * self.inner) as usize
    }

    fn start(&self, steps: Steps, batch: usize) -> isize {
        let (outer, inner) = (batch as i64 / self.inner as i64, batch as i64 % self.inner as i64);
        (outer * steps.outer + inner * steps.inner) as isize
    }

    /// Keys that a query sees.
    fn seen(&self, query: usize) -> usize {
        let keys = self.keys as usize;
        if self.causal != 0 { keys.min(query + 1) } else { keys }
    }

    /// Calls `f` with each batch and some of its `rows`.
    fn each(&self, parallel: bool, rows: u64, f: impl Fn(usize, std::ops::Range<usize>) + Sync) {
        let (rows, blocks) = (rows as usize, (rows as usize).div_ceil(ROWS));
        host::parallel_for(parallel, self.batches() * blocks, 1, |pieces| {
            for piece in pieces {
                let first = piece % blocks * ROWS;
                f(piece / blocks, first..rows.min(first + ROWS));
            }
        });
    }
}

/// Rows of an operand's batch as floats, one after the other.
fn floats<T: HostElement<Compute = f32>>(
    of: Shared<T>,
    (p, steps, batch): (&Attention, Steps, usize),
    rows: std::ops::Range<usize>,
) -> Vec<f32> {
    let start = p.start(steps, batch);
    let row = |row: usize| {
        let at = start + row as isize * steps.row as isize;
        // SAFETY: an element of the operand, which is only read.
        (0..p.width as isize).map(move |i| unsafe { of.read(at + i) }.get())
    };
    rows.flat_map(row).collect()
}

/// Writes a row.
fn write<T: HostElement<Compute = f32>>(
    to: Shared<T>,
    (p, steps, batch): (&Attention, Steps, usize),
    row: usize,
    values: impl Iterator<Item = f32>,
) {
    let at = p.start(steps, batch) + row as isize * steps.row as isize;
    for (i, value) in (0..p.width as isize).zip(values) {
        // SAFETY: an element of the result, in a row that is this thread's.
        unsafe { to.write(at + i, T::put(value)) };
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Widths are multiples of eight.
    let mut sums = [0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum()
}

fn add(to: &mut [f32], by: f32, row: &[f32]) {
    to.iter_mut().zip(row).for_each(|(to, x)| *to += by * x);
}

/// # Safety
/// As [`HostKernel`](host::HostKernel): queries, keys, values, the result of `T`, a logarithm for each query, and
/// [`Attention`].
pub(super) unsafe fn forward<T: HostElement<Compute = f32>>(launch: &HostLaunch<'_>) {
    let p: Attention = host::params(launch);
    let [q, k, v, out] = [0, 1, 2, 3].map(|i| Shared::<T>::operand(launch, i));
    let (lse, width) = (Shared::<f32>::operand(launch, 4), p.width as usize);
    p.each(launch.parallel, p.queries, |batch, queries| {
        let seen = 0..p.seen(queries.end - 1);
        let keys = floats(k, (&p, p.k, batch), seen.clone());
        let values = floats(v, (&p, p.v, batch), seen);
        let own = floats(q, (&p, p.q, batch), queries.clone());
        for (query, own) in queries.zip(own.chunks(width)) {
            let keys = keys.chunks(width).take(p.seen(query));
            let mut weights: Vec<f32> = keys.map(|key| dot(own, key) * p.scale_log2).collect();
            let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let base = if most == f32::NEG_INFINITY { 0.0 } else { most };
            weights.iter_mut().for_each(|w| *w = (*w - base).exp2());
            let total: f32 = weights.iter().sum();
            let mut sums = vec![0.0; width];
            for (&weight, value) in weights.iter().zip(values.chunks(width)) {
                add(&mut sums, weight, value);
            }
            write(out, (&p, p.out, batch), query, sums.into_iter().map(|sum| sum / total));
            // SAFETY: the query's own number.
            unsafe {
                lse.write((batch * p.queries as usize + query) as isize, most + total.log2())
            };
        }
    });
}

/// # Safety
/// As [`HostKernel`](host::HostKernel): queries, keys, values, the result and its gradient, logarithms, what the query's
/// result and gradient have in common, the gradient of queries, and [`Attention`].
pub(super) unsafe fn backward_queries<T: HostElement<Compute = f32>>(launch: &HostLaunch<'_>) {
    let p: Attention = host::params(launch);
    let [q, k, v, out, grad, dq] = [0, 1, 2, 3, 4, 7].map(|i| Shared::<T>::operand(launch, i));
    let [lse, delta] = [5, 6].map(|i| Shared::<f32>::operand(launch, i));
    let width = p.width as usize;
    p.each(launch.parallel, p.queries, |batch, queries| {
        let seen = 0..p.seen(queries.end - 1);
        let keys = floats(k, (&p, p.k, batch), seen.clone());
        let values = floats(v, (&p, p.v, batch), seen);
        let of = |of, steps| floats(of, (&p, steps, batch), queries.clone());
        let (own, outs, grads) = (of(q, p.q), of(out, p.out), of(grad, p.grad));
        for (i, query) in queries.clone().enumerate() {
            let [own, out, grad] = [&own, &outs, &grads].map(|rows| &rows[i * width..][..width]);
            let common = dot(out, grad);
            let at = (batch * p.queries as usize + query) as isize;
            // SAFETY: the query's own numbers.
            let log = unsafe {
                delta.write(at, common);
                lse.read(at)
            };
            let mut sums = vec![0.0; width];
            let pairs = keys.chunks(width).zip(values.chunks(width));
            for (key, value) in pairs.take(p.seen(query)) {
                let weight = (dot(own, key) * p.scale_log2 - log).exp2();
                add(&mut sums, weight * (dot(grad, value) - common), key);
            }
            let slopes = sums.into_iter().map(|sum| sum * p.scale);
            write(dq, (&p, p.dq, batch), query, slopes);
        }
    });
}

/// # Safety
/// As [`HostKernel`](host::HostKernel): queries, keys, values, the result's gradient, the two numbers of each query, the
/// gradients of keys and values, and [`Attention`].
pub(super) unsafe fn backward_keys<T: HostElement<Compute = f32>>(launch: &HostLaunch<'_>) {
    let p: Attention = host::params(launch);
    let [q, k, v, grad, dk, dv] = [0, 1, 2, 3, 6, 7].map(|i| Shared::<T>::operand(launch, i));
    let [lse, delta] = [4, 5].map(|i| Shared::<f32>::operand(launch, i));
    let (width, queries) = (p.width as usize, p.queries as usize);
    p.each(launch.parallel, p.keys, |batch, keys| {
        // Queries before them see none of these keys.
        let first = if p.causal != 0 { keys.start.min(queries) } else { 0 };
        let own = floats(q, (&p, p.q, batch), first..queries);
        let grads = floats(grad, (&p, p.grad, batch), first..queries);
        let of = |of, steps| floats(of, (&p, steps, batch), keys.clone());
        let (of_keys, of_values) = (of(k, p.k), of(v, p.v));
        let rows = of_keys.chunks(width).zip(of_values.chunks(width));
        for (key, (row, value)) in keys.clone().zip(rows) {
            let [mut by_key, mut by_value] = [(); 2].map(|()| vec![0.0; width]);
            for query in (first..queries).filter(|&query| key < p.seen(query)) {
                let at = (batch * queries + query) as isize;
                // SAFETY: the query's numbers, which are only read.
                let (log, common) = unsafe { (lse.read(at), delta.read(at)) };
                let [own, grad] = [&own, &grads].map(|r| &r[(query - first) * width..][..width]);
                let weight = (dot(own, row) * p.scale_log2 - log).exp2();
                add(&mut by_value, weight, grad);
                add(&mut by_key, weight * (dot(grad, value) - common), own);
            }
            write(dk, (&p, p.dk, batch), key, by_key.into_iter().map(|sum| sum * p.scale));
            write(dv, (&p, p.dv, batch), key, by_value.into_iter());
        }
    });
}
