//! Results that do not fit: integers wrap, means are truncated, floats are rounded. Two ranks
//! suffice, and the order of their sum does not matter.

use half::{bf16, f16};
use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::*;

use super::kit::*;
use super::numbers::show;

/// Combines one element of each rank, and records the result.
macro_rules! combine {
    ($rank:ident, $t:ident, $ty:ident $op:ident $first:expr, $second:expr) => {{
        let own = if $rank.me().0 == 0 { $first } else { $second };
        let (recv, dtype, op) = ($rank.at(0), NcclType::$ty, ReduceOp::$op);
        $rank.put(0, &own.to_ne_bytes())?;
        $rank.enqueue(&[Collective::AllReduce { send: recv, recv, count: 1, dtype, op }])?;
        let got = show(dtype, &$rank.get(0, dtype.size())?);
        $t.lines.push(format!("{dtype:?} {op:?}: {got}"));
    }};
}

fn h(value: f32) -> f16 {
    f16::from_f32(value)
}

fn b(value: f32) -> bf16 {
    bf16::from_f32(value)
}

programs! {
    integers_wrap([2], rank, t) {
        combine!(rank, t, I8 Sum 100i8, 100i8);
        combine!(rank, t, U8 Sum 200u8, 100u8);
        combine!(rank, t, I8 Product -128i8, -1i8);
        combine!(rank, t, U8 Product 16u8, 17u8);
        combine!(rank, t, I32 Sum i32::MAX, 1i32);
        combine!(rank, t, U32 Sum u32::MAX, 2u32);
        combine!(rank, t, I32 Product 65_536i32, 65_537i32);
        combine!(rank, t, I64 Sum i64::MIN, -1i64);
        combine!(rank, t, I64 Product i64::MAX, i64::MAX);
        combine!(rank, t, U64 Sum u64::MAX, 2u64);
    } => [
        "I8 Sum: -56",
        "U8 Sum: 44",
        "I8 Product: -128",
        "U8 Product: 16",
        "I32 Sum: -2147483648",
        "U32 Sum: 1",
        "I32 Product: 65536",
        "I64 Sum: 9223372036854775807",
        "I64 Product: 1",
        "U64 Sum: 1",
    ]

    largest_and_smallest_know_signs([2], rank, t) {
        combine!(rank, t, I8 Max -1i8, 1i8);
        combine!(rank, t, U8 Max 255u8, 1u8);
        combine!(rank, t, I32 Min i32::MIN, 1i32);
        combine!(rank, t, U32 Min u32::MAX, 1u32);
        combine!(rank, t, I64 Max i64::MIN, -2i64);
        combine!(rank, t, U64 Max 1u64 << 63, 1u64);
        combine!(rank, t, F16 Min h(-0.5), h(0.25));
        combine!(rank, t, BF16 Max b(-0.5), b(-4.0));
        combine!(rank, t, F32 Max f32::NEG_INFINITY, -1.5f32);
        combine!(rank, t, F64 Min f64::INFINITY, -1.5f64);
    } => [
        "I8 Max: 1",
        "U8 Max: 255",
        "I32 Min: -2147483648",
        "U32 Min: 1",
        "I64 Max: -2",
        "U64 Max: 9223372036854775808",
        "F16 Min: -0.5",
        "BF16 Max: -0.5",
        "F32 Max: -1.5",
        "F64 Min: -1.5",
    ]

    means_of_integers_are_truncated([2], rank, t) {
        combine!(rank, t, I8 Avg 3i8, 4i8);
        combine!(rank, t, U8 Avg 3u8, 4u8);
        combine!(rank, t, I32 Avg 3i32, 4i32);
        combine!(rank, t, I32 Avg -3i32, -4i32);
        combine!(rank, t, U32 Avg 1u32, 2u32);
        combine!(rank, t, I64 Avg -3i64, 0i64);
        combine!(rank, t, U64 Avg 1u64 << 40, 1u64);
    } => [
        "I8 Avg: 3",
        "U8 Avg: 3",
        "I32 Avg: 3",
        "I32 Avg: -3",
        "U32 Avg: 1",
        "I64 Avg: -1",
        "U64 Avg: 549755813888",
    ]

    floats_are_rounded_to_even([2], rank, t) {
        combine!(rank, t, F16 Sum h(2048.0), h(1.0));
        combine!(rank, t, F16 Sum h(2048.0), h(3.0));
        combine!(rank, t, F16 Sum h(65504.0), h(65504.0));
        combine!(rank, t, F16 Product h(3.0), h(1365.0));
        combine!(rank, t, F16 Avg h(1.0), h(2.0));
        combine!(rank, t, BF16 Sum b(256.0), b(1.0));
        combine!(rank, t, BF16 Sum b(256.0), b(3.0));
        combine!(rank, t, BF16 Avg b(1.0), b(2.0));
        combine!(rank, t, F32 Sum 16_777_216f32, 1f32);
        combine!(rank, t, F32 Sum 16_777_216f32, 3f32);
        combine!(rank, t, F32 Avg 1f32, 2f32);
        combine!(rank, t, F64 Sum 9_007_199_254_740_992f64, 1f64);
        combine!(rank, t, F64 Avg 1f64, 2f64);
    } => [
        "F16 Sum: 2048",
        "F16 Sum: 2052",
        "F16 Sum: inf",
        "F16 Product: 4096",
        "F16 Avg: 1.5",
        "BF16 Sum: 256",
        "BF16 Sum: 260",
        "BF16 Avg: 1.5",
        "F32 Sum: 16777216",
        "F32 Sum: 16777220",
        "F32 Avg: 1.5",
        "F64 Sum: 9007199254740992",
        "F64 Avg: 1.5",
    ]
}
