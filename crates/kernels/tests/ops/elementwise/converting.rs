//! Operands of other dtypes give the same result as copies that are converted to the op's dtype.

use warpline_kernels::copy::copy;
use warpline_kernels::elementwise::*;
use warpline_runtime::testing::{Shape, Tensor, on_every_target, on_gpu, samples, shapes};
use warpline_runtime::{DType, ErrorKind, ResultExt as _, Scalar, Target};

const OPS: [&Op; 5] = [&ADD, &DIV, &MAXIMUM, &EQ, &LOGICAL_AND];

fn made(target: Target<'_>, dtype: DType, shape: &Shape, k: usize) -> Tensor {
    let n = shape.memory[k].iter().product();
    Tensor::new(target, dtype, shape.memory[k], &samples(dtype, n, 5 + k as u64))
        .with(shape.views[k])
}

fn copied(target: Target<'_>, from: &Tensor, dtype: DType) -> Tensor {
    let to = Tensor::garbage(target, dtype, from.view().sizes());
    copy(target, from.view(), to.view()).unwrap();
    to
}

/// Formats the values, so that NaN equals NaN.
fn text(target: Target<'_>, tensor: &Tensor) -> Vec<String> {
    tensor.values(target).iter().map(|value| format!("{value:?}")).collect()
}

fn pair(target: Target<'_>, op: &'static Op, [a, b]: [DType; 2], shape: &Shape) {
    let common = a.promote(b);
    let Ok((compute, result)) = op.dtypes(common) else { return };
    let operands = [made(target, a, shape, 0), made(target, b, shape, 1)];
    let copies = [0, 1].map(|k| copied(target, &operands[k], compute));
    let plain = Tensor::garbage(target, result, copies[0].view().sizes());
    let args = [0, 1].map(|k| Arg::Tensor(copies[k].view()));
    apply(target, op, compute, &args, plain.view()).unwrap();
    let args = [0, 1].map(|k| Arg::Tensor(operands[k].view()));
    let compare = |out: &Tensor, what: &str| {
        let to = out.view().dtype;
        let expected = text(target, &copied(target, &plain, to));
        apply(target, op, common, &args, out.view()).unwrap();
        let context = format!("{} of {a} and {b} to {to}, {}{what}", op.name(), shape.name);
        assert_eq!(text(target, out), expected, "{context}");
    };
    let holds = |to: &DType| to.category() >= result.category();
    for dtype in DType::ALL.into_iter().filter(holds) {
        compare(&Tensor::garbage(target, dtype, shape.memory[2]).with(shape.views[2]), "");
    }
    if holds(&a) && operands[0].view().check_writable("test").is_ok() {
        compare(&operands[0], ", in place");
    }
}

fn with_numbers_and_conditions(target: Target<'_>, shape: &Shape) {
    let run = |op, common, args: &[Arg<'_>], dtype| {
        let out = Tensor::garbage(target, dtype, shape.memory[2]).with(shape.views[2]);
        apply(target, op, common, args, out.view()).unwrap();
        text(target, &out)
    };
    for dtype in [DType::U8, DType::I64, DType::F16, DType::BF16] {
        let a = made(target, dtype, shape, 0);
        let copy = copied(target, &a, DType::F32);
        let number = Scalar::Float(0.3);
        let [mixed, plain] = [&a, &copy]
            .map(|a| run(&MUL, DType::F32, &[a.view().into(), number.into()], DType::F32));
        assert_eq!(mixed, plain, "{dtype} by a number, {}", shape.name);
        let condition = made(target, DType::Bool, shape, 1);
        let [mixed, plain] = [&a, &copy].map(|a| {
            let args = [condition.view().into(), a.view().into(), number.into()];
            run(&WHERE, DType::F32, &args, DType::F64)
        });
        assert_eq!(mixed, plain, "where of {dtype}, {}", shape.name);
    }
}

fn all(target: Target<'_>) {
    for shape in shapes().iter().filter(|s| s.memory[2].iter().product::<usize>() < 1000) {
        for op in OPS {
            for a in DType::ALL {
                DType::ALL.into_iter().for_each(|b| pair(target, op, [a, b], shape));
            }
        }
        with_numbers_and_conditions(target, shape);
    }
}

#[test]
fn are_as_copies_of_the_dtype_that_is_computed_in() {
    on_every_target(all);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_are_as_copies_of_the_dtype_that_is_computed_in() {
    on_gpu(all);
}

#[test]
fn conditions_of_other_dtypes_are_refused() {
    on_every_target(|target| {
        let shape = &shapes()[0];
        let tensors = [DType::U8, DType::F32, DType::F16].map(|d| made(target, d, shape, 0));
        let out = Tensor::garbage(target, DType::F32, shape.memory[0]).with(shape.views[0]);
        let args = [0, 1, 2].map(|k| Arg::Tensor(tensors[k].view()));
        let refused = apply(target, &WHERE, DType::F32, &args, out.view());
        assert!(matches!(refused.kind(), Some(ErrorKind::DTypeMismatch { actual: DType::U8, .. })));
    });
}
