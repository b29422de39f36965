//! Rows of views, whose exact strides and offsets are predicted.

use crate::generate::Draw;
use crate::model::{Out, Predict, UNKNOWN, Value, count, dense_strides, dim, size};
use crate::row::{DTYPES, Row, row};
use warpline::DiagonalOptions;

fn view(sizes: Vec<usize>, strides: Vec<isize>, offset: usize) -> Predict {
    count(&sizes)?;
    Ok(vec![Out::View { of: 0, sizes, strides, offset }])
}

fn with_dims(d: &mut Draw<'_>) {
    d.tensor(&DTYPES, |v| v.ndim() > 0);
}

fn narrow(t: &[Value], n: &[i64]) -> Predict {
    let v = &t[0];
    if v.ndim() == 0 {
        return Err(&["ShapeMismatch"]);
    }
    if n[2] < 0 {
        return Err(&["InvalidArgument"]);
    }
    let d = dim(v, n[0])?;
    let (own, length) = (v.sizes[d] as i128, n[2] as i128);
    let start = if n[1] < 0 { n[1] as i128 + own } else { n[1] as i128 };
    if start < 0 || start > own || start + length > own {
        return Err(&["IndexOutOfRange"]);
    }
    let mut sizes = v.sizes.clone();
    sizes[d] = n[2] as usize;
    part(v, sizes, v.strides.clone(), start as isize * v.strides[d])
}

/// Predicts a view of a part of a tensor. The offset of an empty part is not compared.
fn part(v: &Value, sizes: Vec<usize>, strides: Vec<isize>, by: isize) -> Predict {
    view(sizes, strides, (v.offset as isize + by) as usize)
}

fn select(t: &[Value], n: &[i64]) -> Predict {
    let v = &t[0];
    if v.ndim() == 0 {
        return Err(&["ShapeMismatch"]);
    }
    let d = dim(v, n[0])?;
    let own = v.sizes[d] as i64;
    if !(-own..own).contains(&n[1]) {
        return Err(&["IndexOutOfRange"]);
    }
    let (mut sizes, mut strides) = (v.sizes.clone(), v.strides.clone());
    sizes.remove(d);
    let stride = strides.remove(d);
    part(v, sizes, strides, n[1].rem_euclid(own) as isize * stride)
}

fn slice(t: &[Value], n: &[i64]) -> Predict {
    let v = &t[0];
    if v.ndim() == 0 {
        return Err(&["ShapeMismatch"]);
    }
    if n[3] <= 0 {
        return if dim(v, n[0]).is_ok() { Err(&["InvalidArgument"]) } else { Err(UNKNOWN) };
    }
    let d = dim(v, n[0])?;
    let own = v.sizes[d] as i128;
    let bound = |n: i64| if n < 0 { (n as i128 + own).max(0) } else { (n as i128).min(own) };
    let (start, end) = (bound(n[1]), bound(n[2]));
    let length = (end - start).max(0);
    let (mut sizes, mut strides) = (v.sizes.clone(), v.strides.clone());
    let step = n[3] as i128;
    sizes[d] = ((length + step - 1) / step) as usize;
    if step > 1 << 20 {
        // A huge step has no effect if only one element remains, and the stride of that dimension
        // is not predicted.
        return Err(UNKNOWN);
    }
    strides[d] *= step as isize;
    part(v, sizes, strides, start as isize * v.strides[d])
}

fn transpose(t: &[Value], n: &[i64]) -> Predict {
    let (a, b) = (dim(&t[0], n[0])?, dim(&t[0], n[1])?);
    if t[0].ndim() == 0 {
        return Ok(vec![Out::Same(0)]);
    }
    let (mut sizes, mut strides) = (t[0].sizes.clone(), t[0].strides.clone());
    sizes.swap(a, b);
    strides.swap(a, b);
    part(&t[0], sizes, strides, 0)
}

fn unsqueeze(t: &[Value], n: &[i64]) -> Predict {
    let v = &t[0];
    let most = v.ndim() as i64 + 1;
    if !(-most..most).contains(&n[0]) {
        return Err(&["DimOutOfRange"]);
    }
    if v.ndim() > 5 {
        return Err(UNKNOWN);
    }
    let d = n[0].rem_euclid(most) as usize;
    let (mut sizes, mut strides) = (v.sizes.clone(), v.strides.clone());
    let stride = if d < v.ndim() { v.sizes[d] as isize * v.strides[d] } else { 1 };
    sizes.insert(d, 1);
    strides.insert(d, stride);
    part(v, sizes, strides, 0)
}

fn squeeze(t: &[Value], n: &[i64]) -> Predict {
    let (v, d) = (&t[0], dim(&t[0], n[0])?);
    let (mut sizes, mut strides) = (v.sizes.clone(), v.strides.clone());
    if size(v, d) == 1 && v.ndim() > 0 {
        sizes.remove(d);
        strides.remove(d);
    }
    part(v, sizes, strides, 0)
}

fn expand(t: &[Value], n: &[i64]) -> Predict {
    let v = &t[0];
    if n.len() < v.ndim() {
        return Err(if n.iter().any(|n| *n < 0) { UNKNOWN } else { &["ExpandMismatch"] });
    }
    let added = n.len() - v.ndim();
    let (mut sizes, mut strides, mut wrong) = (vec![], vec![], false);
    for (d, &n) in n.iter().enumerate() {
        let own = d.checked_sub(added).map(|d| (v.sizes[d], v.strides[d]));
        if n < -1 || n == -1 && own.is_none() {
            return Err(&["InvalidArgument"]);
        }
        let (size, stride) = match own {
            Some((size, stride)) if n == -1 || n as usize == size => (size, stride),
            Some((1, _)) | None => (n as usize, 0),
            Some(_) => {
                wrong = true;
                (n as usize, 0)
            }
        };
        sizes.push(size);
        strides.push(stride);
    }
    if wrong {
        count(&sizes)?;
        return Err(&["ExpandMismatch"]);
    }
    part(v, sizes, strides, 0)
}

fn reshape(t: &[Value], n: &[i64]) -> Predict {
    let v = &t[0];
    if n.iter().filter(|n| **n == -1).count() > 1 {
        return Err(if n.iter().all(|n| *n >= -1) { &["InvalidArgument"] } else { UNKNOWN });
    }
    if n.iter().any(|n| *n < -1) {
        return Err(&["InvalidReshape"]);
    }
    let known = n.iter().filter(|n| **n >= 0).try_fold(1i64, |all, &n| all.checked_mul(n));
    let Some(known) = known else { return Err(UNKNOWN) };
    let numel = v.numel() as i64;
    let open = n.contains(&-1);
    if open && (known == 0 || numel % known != 0) || !open && known != numel {
        return Err(&["InvalidReshape"]);
    }
    let sizes: Vec<usize> =
        n.iter().map(|&n| if n == -1 { (numel / known) as usize } else { n as usize }).collect();
    if !v.contiguous() {
        return Err(UNKNOWN);
    }
    let strides = dense_strides(&sizes);
    part(v, sizes, strides, 0)
}

/// Draws a contiguous tensor, and sizes for all its elements. The last size is -1, so it is
/// inferred, except for an empty tensor.
fn contiguous_and_sizes(d: &mut Draw<'_>) {
    d.tensor(&DTYPES, |v| v.contiguous());
    let numel = d.arg(0).numel() as i64;
    let first = d.random.pick(&[1, 2, 3]);
    if numel > 0 && numel % first == 0 {
        d.number(first);
    }
    d.number(if numel > 0 { -1 } else { 0 });
}

fn diagonal(t: &[Value], n: &[i64]) -> Predict {
    let v = &t[0];
    let (a, b) = (dim(v, n[1])?, dim(v, n[2])?);
    if a == b {
        return Err(&["InvalidArgument"]);
    }
    let (down, right) = ((-(n[0] as i128)).max(0), (n[0] as i128).max(0));
    let length = (v.sizes[a] as i128 - down).min(v.sizes[b] as i128 - right).max(0) as usize;
    let kept = |d: &usize| *d != a && *d != b;
    let mut sizes: Vec<usize> = (0..v.ndim()).filter(kept).map(|d| v.sizes[d]).collect();
    let mut strides: Vec<isize> = (0..v.ndim()).filter(kept).map(|d| v.strides[d]).collect();
    sizes.push(length);
    strides.push(v.strides[a] + v.strides[b]);
    let by =
        if length == 0 { 0 } else { down as isize * v.strides[a] + right as isize * v.strides[b] };
    part(v, sizes, strides, by)
}

/// Draws `[rows, columns, row stride, column stride, offset]` of a view.
fn strided(d: &mut Draw<'_>) {
    d.any();
    d.int(0, 3);
    d.int(0, 3);
    d.int(0, 4);
    d.int(0, 2);
    d.int(0, 4);
}

fn as_strided(t: &[Value], n: &[i64]) -> Predict {
    if n[2] < 0 || n[3] < 0 {
        return Err(&["InvalidArgument"]);
    }
    if n[0] < 0 || n[1] < 0 || n[4] < 0 || n[..2].iter().any(|n| *n > 1 << 20) {
        return Err(UNKNOWN);
    }
    let last = (n[0] - 1).max(0) as i128 * n[2] as i128 + (n[1] - 1).max(0) as i128 * n[3] as i128;
    let (sizes, strides) = (vec![n[0] as usize, n[1] as usize], vec![n[2] as isize, n[3] as isize]);
    if sizes.contains(&0) {
        return if n[2..].iter().all(|n| *n < 100) {
            view(sizes, strides, 0)
        } else {
            Err(UNKNOWN)
        };
    }
    // The model does not know the size of every storage, but the storage of a contiguous tensor at
    // offset 0 has at least as many elements as the tensor.
    if t[0].contiguous() && n[4] as i128 + last < t[0].numel() as i128 && t[0].offset == 0 {
        return view(sizes, strides, n[4] as usize);
    }
    if n[4] as i128 + last >= 1 << 20 { Err(&["InvalidArgument"]) } else { Err(UNKNOWN) }
}

fn unfold(t: &[Value], n: &[i64]) -> Predict {
    let v = &t[0];
    let d = dim(v, n[0])?;
    if v.ndim() == 0 || v.ndim() > 4 || n[2] > 1 << 20 || n[2] < 0 {
        return Err(UNKNOWN);
    }
    if n[1] < 0 || n[1] as usize > v.sizes[d] || n[2] == 0 {
        return Err(&["InvalidArgument"]);
    }
    let (mut sizes, mut strides) = (v.sizes.clone(), v.strides.clone());
    sizes.push(n[1] as usize);
    strides.push(v.strides[d]);
    sizes[d] = (v.sizes[d] - n[1] as usize) / n[2] as usize + 1;
    strides[d] *= n[2] as isize;
    part(v, sizes, strides, 0)
}

fn split(t: &[Value], n: &[i64]) -> Predict {
    let v = &t[0];
    if v.ndim() == 0 {
        return Err(UNKNOWN);
    }
    let d = dim(v, n[1])?;
    if n[0] <= 0 {
        return Err(UNKNOWN);
    }
    let (own, step) = (v.sizes[d], n[0] as usize);
    if own == 0 {
        return Err(UNKNOWN);
    }
    let mut outs = Vec::new();
    let mut at = 0;
    while at < own {
        let length = step.min(own - at);
        let mut sizes = v.sizes.clone();
        sizes[d] = length;
        outs.extend(part(v, sizes, v.strides.clone(), at as isize * v.strides[d])?);
        at += length;
    }
    Ok(outs)
}

fn unbind(t: &[Value], n: &[i64]) -> Predict {
    if t[0].ndim() == 0 {
        return Err(UNKNOWN);
    }
    let d = dim(&t[0], n[0])?;
    let mut outs = Vec::new();
    for i in 0..t[0].sizes[d] as i64 {
        outs.extend(select(t, &[d as i64, i])?);
    }
    Ok(outs)
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!(
            "Tensor::narrow",
            |d| {
                with_dims(d);
                let own = {
                    let at = d.dim();
                    size(&d.arg(0), at) as i64
                };
                let start = d.int(0, own);
                d.int(0, own - start);
            },
            narrow,
            |t, n| t[0].narrow(n[0], n[1], n[2])?
        )
        .weight(10),
        row!(
            "Tensor::select",
            |d| {
                d.tensor(&DTYPES, |v| v.ndim() > 0 && !v.sizes.contains(&0));
                let own = {
                    let at = d.dim();
                    size(&d.arg(0), at).max(1) as i64
                };
                d.int(-own, own - 1);
            },
            select,
            |t, n| t[0].select(n[0], n[1])?
        )
        .weight(10),
        row!(
            "Tensor::slice",
            |d| {
                with_dims(d);
                d.dim();
                d.int(-6, 6);
                d.int(-6, 6);
                d.int(1, 3);
            },
            slice,
            |t, n| t[0].slice(n[0], n[1] as isize..n[2] as isize, n[3])?
        )
        .weight(10),
        row!(
            "Tensor::transpose",
            |d| {
                d.any();
                d.dim();
                d.dim();
            },
            transpose,
            |t, n| t[0].transpose(n[0], n[1])?
        )
        .weight(10),
        row!(
            "Tensor::t",
            |d| d.tensor(&DTYPES, |v| v.ndim() <= 2),
            |t, _| match t[0].ndim() {
                0 | 1 => Ok(vec![Out::Same(0)]),
                2 => transpose(t, &[0, 1]),
                _ => Err(&["ShapeMismatch"]),
            },
            |t, _| t[0].t()?
        ),
        row!(
            "Tensor::unsqueeze",
            |d| {
                d.any();
                let n = d.arg(0).ndim() as i64;
                d.int(-n - 1, n);
            },
            unsqueeze,
            |t, n| t[0].unsqueeze(n[0])?
        ),
        row!(
            "Tensor::squeeze",
            |d| {
                d.any();
                d.dim();
            },
            squeeze,
            |t, n| t[0].squeeze(n[0] as isize)?
        ),
        row!(
            "Tensor::expand",
            |d| {
                d.tensor(&DTYPES, |v| v.ndim() < 4);
                let sizes = d.arg(0).sizes;
                if d.random.percent(50) {
                    d.int(0, 3);
                }
                for n in sizes {
                    if n == 1 {
                        d.int(0, 4);
                    } else {
                        d.number(n as i64);
                    }
                }
            },
            expand,
            |t, n| t[0].expand(n)?
        )
        .weight(8),
        row!("Tensor::reshape", contiguous_and_sizes, reshape, |t, n| t[0].reshape(n)?).weight(8),
        row!("Tensor::view", contiguous_and_sizes, reshape, |t, n| t[0].view(n)?).weight(8),
        row!(
            "Tensor::diagonal",
            |d| {
                d.tensor(&DTYPES, |v| v.ndim() >= 2);
                d.int(-4, 4);
                d.number(0);
                d.number(-1);
            },
            diagonal,
            |t, n| t[0].diagonal(DiagonalOptions::new().offset(n[0]).dim1(n[1]).dim2(n[2]))?
        ),
        row!("Tensor::as_strided", strided, as_strided, |t, n| t[0].as_strided(
            [n[0] as usize, n[1] as usize],
            [n[2], n[3]],
            Some(n[4] as usize)
        )?)
        .weight(10),
        row!(
            "Tensor::unfold",
            |d| {
                with_dims(d);
                let own = {
                    let at = d.dim();
                    size(&d.arg(0), at) as i64
                };
                d.int(0, own);
                d.int(1, 3);
            },
            unfold,
            |t, n| t[0].unfold(n[0], n[1] as usize, n[2] as usize)?
        ),
        row!(
            "Tensor::split",
            |d| {
                with_dims(d);
                d.int(1, 3);
                d.dim();
            },
            split,
            |t, n| t[0].split(n[0] as usize, n[1])?
        ),
        row!(
            "Tensor::unbind",
            |d| {
                with_dims(d);
                d.dim();
            },
            unbind,
            |t, n| t[0].unbind(n[0])?
        ),
        row!("Tensor::detach", |d| d.any(), |_, _| Ok(vec![Out::Detached(0)]), |t, _| t[0]
            .detach()),
    ]
}
