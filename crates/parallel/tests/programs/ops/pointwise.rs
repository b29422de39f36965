//! Rows of elementwise functions.

use warpline::{DType, where_cond};

use crate::generate::Draw;
use crate::model::{
    Out, Predict, UNKNOWN, Value, broadcast, float_of, is_int, new, result_type, takes, writable,
};
use crate::row::{DTYPES, Row, row};

/// The dtype rule of a function: maps the dtype of the operands to that of the result, or to `None`
/// if the function does not support it.
type Rule = fn(DType) -> Option<DType>;

fn any(dtype: DType) -> Option<DType> {
    Some(dtype)
}

fn no_bools(dtype: DType) -> Option<DType> {
    (dtype != DType::Bool).then_some(dtype)
}

fn to_float(dtype: DType) -> Option<DType> {
    Some(float_of(dtype))
}

fn floats(dtype: DType) -> Option<DType> {
    dtype.is_float().then_some(dtype)
}

fn singles(dtype: DType) -> Option<DType> {
    matches!(dtype, DType::F32 | DType::F64).then_some(dtype)
}

fn integers(dtype: DType) -> Option<DType> {
    is_int(dtype).then_some(dtype)
}

fn bits(dtype: DType) -> Option<DType> {
    (!dtype.is_float()).then_some(dtype)
}

fn to_bool(_: DType) -> Option<DType> {
    Some(DType::Bool)
}

fn ruled(rule: Rule, dtype: DType) -> Result<DType, crate::model::Kinds> {
    rule(dtype).ok_or(&["UnsupportedDType"])
}

fn unary(rule: Rule, t: &[Value]) -> Predict {
    new(&t[0], ruled(rule, t[0].dtype)?, &t[0].sizes)
}

fn unary_in_place(rule: Rule, t: &[Value]) -> Predict {
    let result = ruled(rule, t[0].dtype)?;
    if result.category() > t[0].dtype.category() {
        return Err(&["CannotCast"]);
    }
    writable(&t[0])?;
    Ok(vec![])
}

/// Fails if two operands are on different devices. A host tensor without dimensions counts as a
/// number.
fn near(a: &Value, b: &Value) -> Result<usize, crate::model::Kinds> {
    let number = |v: &Value| v.ndim() == 0 && v.place == 2;
    match (a.place, b.place) {
        (a, b) if a == b => Ok(a),
        (_, place) if number(a) => Ok(place),
        (place, _) if number(b) => Ok(place),
        _ => Err(&["DeviceMismatch"]),
    }
}

fn binary(rule: Rule, t: &[Value]) -> Predict {
    // The error of a call with two mistakes may name either mistake.
    let (place, sizes) = (near(&t[0], &t[1]), broadcast(&t[0].sizes, &t[1].sizes));
    if place.is_err() && sizes.is_err() {
        return Err(UNKNOWN);
    }
    let dtype = ruled(rule, result_type(&t[0], &t[1]))?;
    if rule(DType::Bool).is_none() && t.iter().any(|v| v.dtype == DType::Bool) {
        // Only `sub` refuses a bool operand and a number.
        return Err(UNKNOWN);
    }
    let (place, sizes) = (place?, sizes?);
    crate::model::count(&sizes)?;
    Ok(vec![Out::New { dtype, place, sizes }])
}

fn binary_in_place(rule: Rule, t: &[Value]) -> Predict {
    let (a, b) = (&t[0], &t[1]);
    if rule(DType::Bool).is_none() && t.iter().any(|v| v.dtype == DType::Bool) {
        return Err(UNKNOWN);
    }
    let mut wrong: Vec<crate::model::Kinds> = Vec::new();
    match rule(result_type(a, b)) {
        None => wrong.push(&["UnsupportedDType"]),
        Some(result) if result.category() > a.dtype.category() => wrong.push(&["CannotCast"]),
        Some(_) => {}
    }
    wrong.extend(writable(a).err());
    match broadcast(&a.sizes, &b.sizes) {
        Err(kinds) => wrong.push(kinds),
        Ok(sizes) if sizes != a.sizes => wrong.push(&["ShapeMismatch"]),
        Ok(_) => {}
    }
    let number = b.ndim() == 0 && b.place == 2;
    if a.place != b.place && !number {
        wrong.push(&["DeviceMismatch"]);
    }
    match wrong[..] {
        [] => Ok(vec![]),
        [kinds] => Err(kinds),
        _ => Err(UNKNOWN),
    }
}

fn two(d: &mut Draw<'_>) {
    d.any();
    d.broadcasts();
}

macro_rules! unary {
    ($($rule:ident: $($name:ident)*;)*) => {
        vec![$($(
            row!(concat!("Tensor::", stringify!($name)), |d| d.any(), |t, _| unary($rule, t),
                |t, _| t[0].$name()?).weight(2)
        ),*),*]
    };
}

macro_rules! unary_in_place {
    ($($rule:ident: $($name:ident)*;)*) => {
        vec![$($(
            row!(concat!("Tensor::", stringify!($name)), |d| d.float(), |t, _| unary_in_place($rule, t),
                |t, _| t[0].$name()?).writes().weight(2)
        ),*),*]
    };
}

macro_rules! binary {
    ($($rule:ident: $($name:ident)*;)*) => {
        vec![$($(
            row!(concat!("Tensor::", stringify!($name)), two, |t, _| binary($rule, t),
                |t, _| t[0].$name(&t[1])?).weight(2)
        ),*),*]
    };
}

macro_rules! binary_in_place {
    ($($rule:ident: $($name:ident)*;)*) => {
        vec![$($(
            row!(concat!("Tensor::", stringify!($name)), two, |t, _| binary_in_place($rule, t),
                |t, _| t[0].$name(&t[1])?).writes().weight(6)
        ),*),*]
    };
}

fn masked(t: &[Value]) -> Predict {
    let (a, mask) = (&t[0], &t[1]);
    let mut wrong: Vec<crate::model::Kinds> = Vec::new();
    if mask.dtype != DType::Bool {
        wrong.push(&["DTypeMismatch", "InvalidArgument"]);
    }
    wrong.extend(broadcast(&a.sizes, &mask.sizes).err());
    if a.place != mask.place {
        if a.ndim() == 0 || mask.ndim() == 0 {
            return Err(UNKNOWN);
        }
        wrong.push(&["DeviceMismatch"]);
    }
    match wrong[..] {
        [] => new(a, a.dtype, &broadcast(&a.sizes, &mask.sizes)?),
        [kinds] => Err(kinds),
        _ => Err(UNKNOWN),
    }
}

fn mask(d: &mut Draw<'_>) {
    let (sizes, place) = (d.arg(0).sizes, d.arg(0).place);
    let fits = |v: &Value| v.place == place && v.sizes == sizes;
    if d.model.values.values().any(|v| v.dtype == DType::Bool && fits(v)) {
        d.tensor(&[DType::Bool], fits);
    } else {
        d.fresh(DType::Bool, place, 0, &sizes);
    }
}

/// Functions whose results on a GPU may differ from those of the CPU in the last bits.
const APPROXIMATE: &str = "exp expm1 log log1p rsqrt sin cos tanh erf sigmoid exp2 log2 log10 tan asin acos atan sinh \
    cosh asinh acosh atanh deg2rad rad2deg erfc erfinv lgamma digamma sinc silu gelu gelu_tanh selu hardsigmoid \
    hardswish mish logsigmoid softsign tanhshrink exp_ sin_ cos_ tanh_ sigmoid_ atan2 xlogy hypot logaddexp \
    logaddexp2 pow(number)";

pub(crate) fn rows() -> Vec<Row> {
    let rows = all().into_iter();
    let is_approximate = |row: &Row| {
        let name = row.name.trim_start_matches("Tensor::");
        APPROXIMATE.split_whitespace().any(|approximate| approximate == name)
    };
    rows.map(|row| if is_approximate(&row) { row.rounded() } else { row }).collect()
}

fn all() -> Vec<Row> {
    let mut rows = unary! {
        no_bools: neg abs floor ceil round trunc relu;
        any: sign square sgn;
        to_float: exp expm1 log log1p sqrt rsqrt reciprocal sin cos tanh erf sigmoid exp2 log2 log10 tan asin acos
            atan sinh cosh asinh acosh atanh deg2rad rad2deg erfc erfinv lgamma digamma sinc;
        floats: silu gelu gelu_tanh frac selu hardsigmoid hardswish mish logsigmoid softsign tanhshrink;
        to_bool: logical_not isnan isinf isfinite isposinf isneginf signbit;
        bits: bitwise_not;
    };
    rows.extend(unary_in_place! {
        no_bools: neg_ abs_ floor_ round_ relu_;
        to_float: exp_ sqrt_ sin_ cos_ tanh_ sigmoid_ reciprocal_;
        any: zero_;
    });
    rows.extend(binary! {
        any: add mul maximum minimum heaviside;
        no_bools: sub remainder fmod floor_divide;
        to_float: div atan2 copysign xlogy;
        floats: hypot logaddexp logaddexp2;
        to_bool: eq ne lt le gt ge logical_and logical_or logical_xor;
        bits: bitwise_and bitwise_or bitwise_xor;
        integers: bitwise_left_shift bitwise_right_shift gcd lcm;
    });
    rows.push(row!(
        "Tensor::nextafter",
        two,
        |t, _| {
            let out = binary(singles, t)?;
            // `nextafter` has no gradient.
            if t.iter().any(Value::tracked) { Err(&["Gradient"]) } else { Ok(out) }
        },
        |t, _| t[0].nextafter(&t[1])?
    ));
    rows.extend(binary_in_place! {
        any: add_ mul_;
        no_bools: sub_;
        to_float: div_;
    });
    rows.extend([
        row!(
            "Tensor::add(number)",
            |d| {
                d.any();
                d.int(-3, 3);
            },
            |t, n| number(t, n),
            |t, n| t[0].add(n[0])?
        ),
        row!(
            "Tensor::mul_(number)",
            |d| {
                d.float();
                d.int(-3, 3);
            },
            |t, n| {
                number(t, n)?;
                writable(&t[0])?;
                Ok(vec![])
            },
            |t, n| t[0].mul_(n[0])?
        )
        .writes()
        .weight(8),
        row!(
            "Tensor::pow(number)",
            |d| {
                d.float();
                d.int(0, 3);
            },
            |t, n| {
                number(t, n)?;
                takes(t[0].is_float()).map_err(|_| UNKNOWN)?;
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, n| t[0].pow(n[0])?
        ),
        row!(
            "Tensor::fill_",
            |d| {
                d.any();
                d.int(0, 1);
            },
            |t, n| {
                if !(0..=1).contains(&n[0]) {
                    return Err(UNKNOWN);
                }
                writable(&t[0])?;
                Ok(vec![])
            },
            |t, n| t[0].fill_(n[0])?
        )
        .writes()
        .weight(6),
        row!(
            "Tensor::copy_",
            |d| {
                d.any();
                d.broadcasts();
                d.int(0, 1);
            },
            |t, _| {
                let fits =
                    broadcast(&t[0].sizes, &t[1].sizes).is_ok_and(|sizes| sizes == t[0].sizes);
                match (fits, writable(&t[0])) {
                    (true, Ok(())) if t[1].is_float() && !t[0].is_float() => Err(UNKNOWN),
                    (true, Ok(())) => Ok(vec![]),
                    (true, Err(kinds)) => Err(kinds),
                    (false, Ok(())) => Err(&["ExpandMismatch"]),
                    _ => Err(UNKNOWN),
                }
            },
            |t, n| t[0].copy_(&t[1], n[0] == 1)?
        )
        .writes()
        .weight(14),
        row!(
            "Tensor::masked_fill",
            |d| {
                d.any();
                mask(d);
            },
            |t, _| masked(t),
            |t, _| t[0].masked_fill(&t[1], 1)?
        ),
        row!(
            "Tensor::masked_fill_",
            |d| {
                d.any();
                mask(d);
            },
            |t, _| {
                if t[0].place != t[1].place {
                    return Err(UNKNOWN);
                }
                let sizes = match &masked(t)?[0] {
                    Out::New { sizes, .. } => sizes.clone(),
                    _ => return Err(UNKNOWN),
                };
                writable(&t[0])?;
                if sizes == t[0].sizes { Ok(vec![]) } else { Err(UNKNOWN) }
            },
            |t, _| t[0].masked_fill_(&t[1], 1)?
        )
        .writes(),
        row!(
            "where_cond",
            |d| {
                d.any();
                mask(d);
                d.same();
            },
            |t, _| {
                masked(&t[..2])?;
                if t[2].sizes != t[0].sizes
                    || t[2].dtype != t[0].dtype
                    || t[2].place != t[0].place
                    || t[1].sizes != t[0].sizes
                {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| where_cond(&t[1], &t[0], &t[2])?
        ),
        row!(
            "Tensor::clamp(numbers)",
            |d| {
                d.any();
                d.int(-3, 0);
                d.int(0, 3);
            },
            |t, n| {
                if t[0].dtype == DType::Bool || n.iter().any(|n| !(-3..=3).contains(n)) {
                    return Err(UNKNOWN);
                }
                if t[0].dtype == DType::U8 {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, n| t[0].clamp(n[0], n[1])?
        ),
        row!(
            "Tensor::addcmul",
            |d| {
                d.float();
                d.same();
                d.same();
            },
            |t, _| {
                if t[1..].iter().any(|v| {
                    v.sizes != t[0].sizes || v.dtype != t[0].dtype || v.place != t[0].place
                }) || !t[0].is_float()
                {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| t[0].addcmul(&t[1], &t[2], 2)?
        )
        .rounded(),
        row!(
            "Tensor::lerp",
            |d| {
                d.float();
                d.same();
            },
            |t, _| {
                if t[1].sizes != t[0].sizes
                    || t[1].dtype != t[0].dtype
                    || t[1].place != t[0].place
                    || !t[0].is_float()
                {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| t[0].lerp(&t[1], 0.25)?
        )
        .rounded(),
        row!(
            "Tensor::normal_",
            |d| d.float(),
            |t, _| {
                takes(t[0].is_float())?;
                writable(&t[0])?;
                Ok(vec![])
            },
            |t, _| t[0].normal_(())?
        )
        .writes()
        .random()
        .weight(2),
        row!(
            "Tensor::uniform_",
            |d| d.float(),
            |t, _| {
                takes(t[0].is_float())?;
                writable(&t[0])?;
                Ok(vec![])
            },
            |t, _| t[0].uniform_((-1.0, 1.0))?
        )
        .writes()
        .random()
        .weight(2),
        row!(
            "Tensor::cumsum",
            |d| {
                d.tensor(&DTYPES, |v| v.dtype != DType::Bool);
                d.dim();
            },
            |t, n| {
                crate::model::dim(&t[0], n[0])?;
                if t[0].dtype == DType::Bool {
                    return Err(UNKNOWN);
                }
                let dtype = if t[0].is_float() { t[0].dtype } else { DType::I64 };
                new(&t[0], dtype, &t[0].sizes)
            },
            |t, n| t[0].cumsum(n[0])?
        )
        .rounded(),
        row!(
            "Tensor::flip",
            |d| {
                d.any();
                d.dim();
            },
            |t, n| {
                crate::model::dim(&t[0], n[0])?;
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, n| t[0].flip(n[0])?
        ),
        row!(
            "Tensor::roll",
            |d| {
                d.any();
                d.int(-9, 9);
                d.dim();
            },
            |t, n| {
                if t[0].ndim() == 0 {
                    return Err(UNKNOWN);
                }
                crate::model::dim(&t[0], n[1])?;
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, n| t[0].roll(n[0] as isize, n[1] as isize)?
        ),
        row!(
            "Tensor::tril",
            |d| {
                d.tensor(&DTYPES, |v| v.ndim() >= 2);
                d.int(-4, 4);
            },
            |t, _| {
                if t[0].ndim() < 2 {
                    return Err(&["ShapeMismatch"]);
                }
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, n| t[0].tril(n[0])?
        ),
    ]);
    rows
}

/// Predicts the result of a tensor and the small number in `n[0]`, such as their sum.
fn number(t: &[Value], n: &[i64]) -> Predict {
    let dtype = t[0].dtype;
    if dtype == DType::Bool || !(-3..=3).contains(&n[0]) || n[0] < 0 && dtype == DType::U8 {
        return Err(UNKNOWN);
    }
    new(&t[0], dtype, &t[0].sizes)
}
