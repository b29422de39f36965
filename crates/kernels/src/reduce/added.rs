//! Two reductions that one declaration each adds. `docs/add-an-op.md` shows the second.

use warpline_runtime::module::Program;
use warpline_runtime::testing::{Tensor, assert_close};
use warpline_runtime::{DType, Target};

use super::declaration::reductions;
use super::run;

reductions! {
    SQUARES = "squares", "Squares", r#"
template <class T, class A = typename Wide<value_t<T>>::type> struct Squares : Plain<T, A> {
    typedef typename Pick<is_float<A>::value, T, i64>::type Result;
    enum { ZERO_IS_NEUTRAL = 1 };
    static __device__ __forceinline__ A identity() { return 0; }
    static __device__ __forceinline__ void add(A& a, value_t<T> v, u32) { a += (A)v * v; }
    static __device__ __forceinline__ A merge(A a, A b) { return a + b; }
    static __device__ __forceinline__ void put(Result* to, A a, const Plan&) { store(*to, a); }
};"#, all {
        /// The sum of squares; of integers and bool as `int64`.
        Squares = "squares" => Wide, {
            T::Wide: Number::from_number(0i64), |x| x.wide().mul(x.wide()), |a, b| a.add(b)
        };
    }
}

/// The example of `docs/add-an-op.md`, word for word, without the second reduction of its group.
pub mod example {
    use warpline_runtime::module::Program;

    use crate::reduce::declaration::reductions;

    reductions! {
    EXTREME = "extreme", "Extreme", r#"
// The largest value. A NaN is larger than all numbers.
template <class T> struct Extreme : Plain<T, value_t<T>> {
    typedef value_t<T> V;
    typedef T Result;
    enum { CHAINS = 1, AT_A_TIME = 1 };
    static __device__ __forceinline__ V take(V v, u32 flip) { return flipped(v, flip); }
    static __device__ __forceinline__ V identity() { return lowest(V()); }
    static __device__ __forceinline__ V merge(V a, V b) { return a >= b || a != a ? a : b; }
    static __device__ __forceinline__ void add(V& a, V v, u32) { a = merge(a, v); }
    static __device__ __forceinline__ void put(T* to, V v, const Plan& p) {
        store(*to, (compute_t<T>)flipped(v, p.flip));
    }
};"#, all {
        /// `torch.amax`. NaN if an element is NaN.
        Max = "amax" => Same, { T::Own: Number::LOWEST, |x| x.own(), |a, b| a.maximum(b) },
            needs_elements;
    }
    }
}

/// # Panics
/// If a largest value is wrong.
pub fn largest(target: Target<'_>) {
    for dtype in [DType::F32, DType::BF16, DType::I32] {
        let a = Tensor::new(target, dtype, &[2, 3], &[1.0, -2.0, 3.0, 0.0, -4.0, -1.0]);
        for (dims, expected) in [(&[1][..], &[3.0, 0.0][..]), (&[0], &[1.0, -2.0, 3.0])] {
            for op in example::ReduceOp::ALL {
                let out = Tensor::garbage(target, dtype, &[expected.len()]);
                run(target, op.declaration(), a.view(), dims, out.view()).unwrap();
                assert_close(dtype, &out.floats(target), expected, "the example");
            }
        }
    }
}

/// # Panics
/// If a sum of squares is wrong.
pub fn squares(target: Target<'_>) {
    let values = [1.0, -2.0, 3.0, 0.0, 4.0, 1.0];
    for (dtype, result) in
        [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::I32, DType::I64)]
    {
        let a = Tensor::new(target, dtype, &[2, 3], &values);
        for (dims, expected) in
            [(&[1][..], &[14.0, 17.0][..]), (&[0], &[1.0, 20.0, 10.0]), (&[0, 1], &[31.0])]
        {
            for op in ReduceOp::ALL {
                let declaration = op.declaration();
                assert_eq!(declaration.result_dtype(dtype).unwrap(), result);
                let sizes = if dims.len() > 1 { vec![] } else { vec![expected.len()] };
                let out = Tensor::garbage(target, result, &sizes);
                run(target, declaration, a.view(), dims, out.view()).unwrap();
                assert_close(result, &out.floats(target), expected, declaration.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use warpline_runtime::testing::on_every_target;

    use super::*;
    use crate::programs::CheckSources;
    use crate::reduce::halves;

    #[test]
    fn reductions_take_the_struct_that_their_source_defines() {
        for op in crate::reduce::ReduceOp::ALL {
            op.declaration().kernels.check_sources();
        }
    }

    #[test]
    fn a_declaration_is_a_reduction() {
        on_every_target(squares);
        on_every_target(largest);
    }

    /// Calls `halves` directly, which `run` needs only for more results than kernels count.
    #[test]
    fn the_halves_of_a_split_reduction_cover_all_elements() {
        on_every_target(|target| {
            let values: Vec<f64> = (0..60).map(|i| f64::from(i % 9 - 4) / 4.0).collect();
            let a = Tensor::new(target, DType::F32, &[5, 3, 4], &values);
            let a = a.with(|l| l.permute(&[2, 0, 1]));
            let declaration = ReduceOp::Squares.declaration();
            for (dims, kept, dropped) in [
                (&[1][..], &[4, 1, 3][..], &[4, 3][..]),
                (&[2], &[4, 5, 1], &[4, 5]),
                (&[0, 2], &[1, 5, 1], &[5]),
            ] {
                for sizes in [kept, dropped] {
                    let whole = Tensor::garbage(target, DType::F32, sizes);
                    let halved = Tensor::garbage(target, DType::F32, sizes);
                    run(target, declaration, a.view(), dims, whole.view()).unwrap();
                    halves(target, declaration, a.view(), dims, halved.view()).unwrap();
                    let expected = whole.floats(target);
                    assert_close(DType::F32, &halved.floats(target), &expected, "halves");
                }
            }
        });
    }
}
