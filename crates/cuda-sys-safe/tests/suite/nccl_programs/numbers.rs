//! Elements of all types, and the results of NCCL's reductions, computed with wide integers.

use half::{bf16, f16};
use warpline_cuda_sys_safe::nccl::{NcclType, ReduceOp};

/// Encodes integers as elements. Integer types wrap.
pub(crate) fn encode(dtype: NcclType, values: &[i128]) -> Vec<u8> {
    let one = |&value: &i128| -> Vec<u8> {
        match dtype {
            NcclType::I8 | NcclType::U8 => (value as u8).to_ne_bytes().into(),
            NcclType::I32 | NcclType::U32 => (value as u32).to_ne_bytes().into(),
            NcclType::I64 | NcclType::U64 => (value as u64).to_ne_bytes().into(),
            NcclType::F16 => f16::from_f64(value as f64).to_ne_bytes().into(),
            NcclType::BF16 => bf16::from_f64(value as f64).to_ne_bytes().into(),
            NcclType::F32 => (value as f32).to_ne_bytes().into(),
            NcclType::F64 => (value as f64).to_ne_bytes().into(),
        }
    };
    values.iter().flat_map(one).collect()
}

/// Formats elements for transcripts.
pub(crate) fn show(dtype: NcclType, bytes: &[u8]) -> String {
    macro_rules! show {
        ($($case:ident: $ty:ty),*) => {
            match dtype {
                $(NcclType::$case => {
                    let one = |b: &[u8]| <$ty>::from_ne_bytes(b.try_into().unwrap()).to_string();
                    bytes.chunks(dtype.size()).map(one).collect::<Vec<_>>().join(" ")
                })*
            }
        };
    }
    show!(I8: i8, U8: u8, I32: i32, U32: u32, I64: i64, U64: u64, F16: f16, F32: f32, F64: f64,
          BF16: bf16)
}

/// Returns the `count` input elements of a rank. Every step of every reduction is exact in every
/// float type.
pub(crate) fn given(
    dtype: NcclType,
    op: ReduceOp,
    ranks: usize,
    rank: usize,
    count: usize,
) -> Vec<i128> {
    let signed = !matches!(dtype, NcclType::U8 | NcclType::U32 | NcclType::U64);
    let one = |i: usize| match op {
        ReduceOp::Product => 1 + ((rank + i) % 2) as i128,
        // The mean must be an integer, and the sum must fit `i8`.
        ReduceOp::Avg => (i % 4 + ranks * ((rank + i) % 2)) as i128,
        _ if signed && (rank + i) % 3 == 1 => -(((rank * 3 + i * 5) % 8) as i128),
        _ => ((rank * 3 + i * 5) % 8 + 1) as i128,
    };
    (0..count).map(one).collect()
}

/// Returns the reduction of all ranks' inputs.
pub(crate) fn combined(op: ReduceOp, inputs: &[Vec<i128>]) -> Vec<i128> {
    let column = |i: usize| inputs.iter().map(move |input| input[i]);
    let one = |i: usize| match op {
        ReduceOp::Sum => column(i).sum(),
        ReduceOp::Product => column(i).product(),
        ReduceOp::Max => column(i).max().unwrap_or(0),
        ReduceOp::Min => column(i).min().unwrap_or(0),
        ReduceOp::Avg => column(i).sum::<i128>() / inputs.len() as i128,
    };
    (0..inputs[0].len()).map(one).collect()
}
