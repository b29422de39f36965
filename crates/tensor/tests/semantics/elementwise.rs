//! Tests of elementwise methods: operators, dtypes, broadcasting, in-place results, edge cases,
//! refusals.

use warpline::functional::HardtanhOptions;
use warpline::{
    AddmmOptions, DType, Error, ErrorKind, IsCloseOptions, NanToNumOptions, Result, ResultExt,
    RoundingMode, Tensor, TensorOrScalar, arange, cuda, full, ones, tensor, where_cond,
};

use crate::common::World;

fn ints(values: &[i64], world: &World) -> Result<Tensor> {
    tensor(values, ())?.to(world.places()[world.devices])
}

fn floats(values: &[f32], world: &World) -> Result<Tensor> {
    tensor(values, ())?.to(world.places()[world.devices])
}

rows! {
    worlds(1) s32_operators_of_integers_and_bools gpu_s32_operators_of_integers_and_bools => |world| {
        let a = ints(&[6, -7, 12], world)?;
        assert_eq!((&a % 4)?.to_vec::<i64>()?, [2, 1, 0]);
        assert_eq!((20 % &a)?.to_vec::<i64>()?, [2, -1, 8]);
        assert_eq!((&a & 4)?.to_vec::<i64>()?, [4, 0, 4]);
        assert_eq!((&a | 1)?.to_vec::<i64>()?, [7, -7, 13]);
        assert_eq!((&a ^ &a)?.to_vec::<i64>()?, [0, 0, 0]);
        assert_eq!((&a << 1)?.to_vec::<i64>()?, [12, -14, 24]);
        assert_eq!((&a >> 1)?.to_vec::<i64>()?, [3, -4, 6]);
        assert_eq!((1 << &ints(&[3, 64], world)?)?.to_vec::<i64>()?, [8, 0]);
        assert_eq!((!&a)?.to_vec::<i64>()?, [-7, 6, -13]);
        let positive = a.gt(0)?;
        assert_eq!((!positive)?.to_vec::<bool>()?, [false, true, false]);
        assert!(matches!((&floats(&[1.0], world)? & 1).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        Ok(())
    };

    worlds(1) s32_integers_divided_by_zero gpu_s32_integers_divided_by_zero => |world| {
        let (a, b) = (ints(&[7, -7, 7], world)?, ints(&[0, 0, 2], world)?);
        assert_eq!(a.floor_divide(&b)?.to_vec::<i64>()?, [-1, -1, 3]);
        assert_eq!((&a % &b)?.to_vec::<i64>()?, [7, -7, 1]);
        let bytes = a.abs()?.to(DType::U8)?.floor_divide(&b.to(DType::U8)?)?;
        assert_eq!(bytes.to_vec::<u8>()?, [255, 255, 3]);
        assert_eq!((&a / &b)?.to_vec::<f32>()?, [f32::INFINITY, f32::NEG_INFINITY, 3.5]);
        assert!(matches!(a.floor_divide(0).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!((&a % 0).kind(), Some(ErrorKind::InvalidArgument { .. })));
        Ok(())
    };

    worlds(1) s32_in_place_of_other_dtypes_and_views gpu_s32_in_place_of_other_dtypes_and_views => |world| {
        let values = |t: &Tensor| t.to(DType::F64)?.to_vec::<f64>();
        let counted = ints(&[0, 1, 2, 3, 4, 5, 6, 7, 8], world)?;
        // Operands are computed in their common dtype, and the result wraps in the dtype of the
        // destination.
        let bytes = counted.to(DType::U8)?;
        bytes.add_(&ints(&[250; 9], world)?)?;
        assert_eq!(values(&bytes)?, [250.0, 251.0, 252.0, 253.0, 254.0, 255.0, 0.0, 1.0, 2.0]);
        let halves = counted.to(DType::F16)?;
        halves.mul_(&full([9], 0.1, DType::F64)?.to(halves.device())?)?.mul_(10)?;
        assert_eq!(halves.dtype(), DType::F16);
        assert!(matches!(counted.add_(&halves).kind(), Some(ErrorKind::CannotCast { .. })));
        assert!(matches!(counted.gt(1)?.add_(&counted).kind(), Some(ErrorKind::CannotCast { .. })));
        // Overlapping views of one storage, shifted against each other.
        let square = || counted.to(DType::F32)?.reshape([3, 3]);
        let sum = [0.0, 4.0, 8.0, 4.0, 8.0, 12.0, 8.0, 12.0, 16.0];
        let a = square()?;
        a.add_(&a.t()?)?;
        assert_eq!(values(&a)?, sum);
        let a = square()?;
        a.t()?.add_(&a)?;
        assert_eq!(values(&a)?, sum);
        let a = square()?.reshape([9])?;
        a.narrow(0, 1, 8)?.add_(&a.narrow(0, 0, 8)?)?;
        assert_eq!(values(&a)?, [0.0, 1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0]);
        let a = square()?;
        a.clamp_(&a.t()?, 7)?;
        assert_eq!(values(&a)?, [0.0, 3.0, 6.0, 3.0, 4.0, 7.0, 6.0, 7.0, 7.0]);
        let a = square()?;
        a.add_(&a.select(0, 1)?)?;
        assert_eq!(values(&a)?, [3.0, 5.0, 7.0, 6.0, 8.0, 10.0, 9.0, 11.0, 13.0]);
        let a = square()?;
        a.add_(&a.gt(&a.t()?)?)?;
        assert_eq!(values(&a)?, [0.0, 1.0, 2.0, 4.0, 4.0, 5.0, 7.0, 8.0, 8.0]);
        // Operands without dimensions, operands without elements, and operands with one element
        // that broadcasts.
        let one = full([], 1, DType::F16)?.to(a.device())?;
        one.add_(&full([], 2, DType::F64)?.to(a.device())?)?.add_(&full([], 4, DType::F64)?)?;
        assert_eq!((one.dtype(), values(&one)?), (DType::F16, vec![7.0]));
        assert!(one.add_(&a).is_err() && one.add_(&a.reshape([9])?.narrow(0, 0, 1)?).is_err());
        let none = counted.narrow(0, 4, 0)?.reshape([0, 1])?;
        assert_eq!((&none + &a.select(0, 0)?)?.size(), [0, 3]);
        none.add_(&none.to(DType::U8)?)?;
        assert!(matches!(one.expand([3])?.add_(&one).kind(), Some(ErrorKind::OverlappingWrite)));
        assert_eq!(a.narrow(0, 0, 0)?.t()?.narrow(0, 1, 2)?.contiguous()?.size(), [2, 0]);
        Ok(())
    };

    worlds(1) s32_ops_of_three_operands_promote gpu_s32_ops_of_three_operands_promote => |world| {
        let a = ints(&[-2, 0, 3], world)?;
        let clamped = a.clamp(-0.5, 2)?;
        assert_eq!((clamped.dtype(), clamped.to_vec::<f32>()?), (DType::F32, vec![-0.5, 0.0, 2.0]));
        assert_eq!(a.clamp(-1, 1)?.to_vec::<i64>()?, [-1, 0, 1]);
        assert_eq!(a.clamp_min(0)?.to_vec::<i64>()?, [0, 0, 3]);
        let low = ints(&[-1], world)?.expand([2, 1])?;
        assert_eq!(a.clamp(&low, 1)?.size(), [2, 3]);
        // A number or a tensor without dimensions affects the dtype of the result only if its
        // category is higher.
        let condition = a.gt(0)?;
        let half = full([3], 1, DType::F16)?.to(a.device())?;
        let one = full([], 1, DType::F64)?.to(a.device())?;
        assert_eq!(where_cond(&condition, &half, &one)?.dtype(), DType::F16);
        assert_eq!(where_cond(&condition, &half, 0.5)?.dtype(), DType::F16);
        assert_eq!(where_cond(&condition, 1, 0.5)?.dtype(), DType::F32);
        assert_eq!(where_cond(&condition, 1, 0)?.to_vec::<i64>()?, [0, 0, 1]);
        assert_eq!(half.where_cond(&condition, 0)?.dtype(), DType::F16);
        // A CPU tensor without dimensions counts as a number.
        let cpu = full([], 7, DType::I64)?;
        assert_eq!(where_cond(&condition, &a, &cpu)?.to_vec::<i64>()?, [7, 7, 3]);
        assert!(where_cond(&a, 1, 0).as_ref().is_err_and(|e| matches!((e.op(), e.kind()), ("where", ErrorKind::DTypeMismatch { .. }))));
        assert!(matches!(condition.clamp_min(true).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        assert!(matches!(a.lerp(&a, 0.5).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        assert!(matches!(a.addcmul(&a, &a, 0.5).kind(), Some(ErrorKind::CannotCast { .. })));
        Ok(())
    };

    worlds(1) s32_results_in_place gpu_s32_results_in_place => |world| {
        let a = floats(&[4.0, 9.0, -1.0], world)?;
        a.clamp_(0, 8)?.sqrt_()?.pow_(2)?;
        let rounded: Vec<f32> = a.round()?.to_vec()?;
        assert_eq!(rounded, [4.0, 8.0, 0.0]);
        a.logical_not_()?;
        assert_eq!(a.to_vec::<f32>()?, [0.0, 0.0, 1.0]);
        a.logical_or_(&floats(&[2.0, 0.0, 0.0], world)?)?;
        assert_eq!(a.to_vec::<f32>()?, [1.0, 0.0, 1.0]);
        a.masked_fill_(&a.eq(1)?, -3)?;
        assert_eq!(a.to_vec::<f32>()?, [-3.0, 0.0, -3.0]);
        let b = ints(&[5, 6], world)?;
        b.remainder_(4)?.bitwise_left_shift_(&ints(&[1, 2], world)?)?;
        assert_eq!(b.to_vec::<i64>()?, [2, 8]);
        assert_eq!(b.masked_fill(&b.eq(2)?, 1.9)?.to_vec::<i64>()?, [1, 8]);
        let mean = floats(&[1.0, 2.0, 3.0], world)?;
        mean.lerp_(&floats(&[3.0, 2.0, 1.0], world)?, 0.25)?;
        assert_eq!(mean.to_vec::<f32>()?, [1.5, 2.0, 2.5]);
        mean.addcmul_(&mean, &floats(&[2.0], world)?, 0.5)?;
        assert_eq!(mean.to_vec::<f32>()?, [3.0, 4.0, 5.0]);
        mean.addcdiv_(&mean, &floats(&[2.0], world)?, -1)?;
        assert_eq!(mean.to_vec::<f32>()?, [1.5, 2.0, 2.5]);
        mean.clamp_min_(2)?.clamp_max_(&floats(&[9.0, 9.0, 2.25], world)?)?;
        assert_eq!(mean.to_vec::<f32>()?, [2.0, 2.0, 2.25]);
        mean.gt_(2.0)?;
        assert_eq!(mean.to_vec::<f32>()?, [0.0, 0.0, 1.0]);
        mean.div_(0.0)?.nan_to_num_(NanToNumOptions::new().nan(7.0).posinf(8.0))?;
        assert_eq!(mean.to_vec::<f32>()?, [7.0, 7.0, 8.0]);
        mean.clamp_min_(f64::NAN)?;
        assert!(mean.to_vec::<f32>()?.into_iter().all(f32::is_nan));
        assert_eq!(b.clamp_max_(7)?.clamp_min_(3)?.to_vec::<i64>()?, [3, 7]);
        assert_eq!(b.le(3)?.eq_(false)?.to_vec::<bool>()?, [false, true]);
        assert!(matches!(b.clamp_min_(0.5).kind(), Some(ErrorKind::CannotCast { .. })));
        assert_eq!(b.sub_(&ints(&[1, -1], world)?)?.nan_to_num_(())?.to_vec::<i64>()?, [2, 8]);
        let (matrix, vector) = (ints(&[1, 2, 3, 4], world)?.view([2, 2])?, ints(&[1, -1], world)?);
        vector.addmv_(&matrix, &b, AddmmOptions::new().beta(2).alpha(3))?;
        assert_eq!(vector.to_vec::<i64>()?, [56, 112]);
        matrix.addmm_(&matrix, &matrix, AddmmOptions::new().beta(0))?;
        assert_eq!(matrix.view([4])?.to_vec::<i64>()?, [7, 10, 15, 22]);
        let (one, batch) = (matrix.unsqueeze(0)?, matrix.add(0)?.unsqueeze(0)?);
        one.baddbmm_(&batch, &batch, AddmmOptions::new().alpha(0))?;
        assert_eq!(matrix.view([4])?.to_vec::<i64>()?, [7, 10, 15, 22]);
        assert!(matches!(vector.addmm_(&matrix, &matrix, ()).kind(), Some(ErrorKind::ShapeMismatch { .. })));
        assert!(matches!(matrix.addmm_(&matrix, &matrix, AddmmOptions::new().alpha(0.5)).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(b.lerp_(&b, 0.5).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        assert!(matches!(b.addcmul_(&mean, &mean, 1).kind(), Some(ErrorKind::CannotCast { .. })));
        // An operand that overlaps the result at other positions is read before the result is
        // written.
        let c = arange(6, a.device())?;
        c.narrow(0, 1, 5)?.clamp_(&c.narrow(0, 0, 5)?, &c.narrow(0, 0, 5)?)?;
        assert_eq!(c.to_vec::<i64>()?, [0, 0, 1, 2, 3, 4]);
        assert!(matches!(b.exp_().kind(), Some(ErrorKind::CannotCast { .. })));
        assert!(matches!(b.clamp_(0.5, 1).kind(), Some(ErrorKind::CannotCast { .. })));
        assert!(b.clamp_(&ones([2, 1], a.device())?, 9).is_err());
        let one = ints(&[1], world)?.expand([2])?;
        assert!(matches!(one.bitwise_not_().kind(), Some(ErrorKind::OverlappingWrite)));
        Ok(())
    };

    worlds(1) s32_powers_and_quotients_of_integers gpu_s32_powers_and_quotients_of_integers => |world| {
        let a = ints(&[7, -7], world)?;
        assert_eq!(a.pow(2)?.to_vec::<i64>()?, [49, 49]);
        assert_eq!(a.pow(2.0)?.dtype(), DType::F32);
        assert_eq!(a.gt(0)?.pow(2)?.to_vec::<i64>()?, [1, 0]);
        assert_eq!(a.div_rounded(2, RoundingMode::Floor)?.to_vec::<i64>()?, [3, -4]);
        assert_eq!(a.div_rounded(2, RoundingMode::Trunc)?.to_vec::<i64>()?, [3, -3]);
        let zero = ints(&[0, 0], world)?;
        assert_eq!(a.floor_divide(&zero)?.to_vec::<i64>()?, [-1, -1]);
        assert_eq!(a.fmod(&zero)?.to_vec::<i64>()?, [7, -7]);
        assert!(matches!(a.pow(-1).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(a.pow_(-1).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(a.remainder(0).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(a.bitwise_and(0.5).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        // PyTorch computes `pow(0.5)` as a square root, which is NaN for -inf.
        let root = floats(&[f32::NEG_INFINITY, 4.0], world)?.pow(0.5)?.to_vec::<f32>()?;
        assert!(root[0].is_nan() && root[1] == 2.0);
        Ok(())
    };

    worlds(1) s32_shrinks_and_thresholds gpu_s32_shrinks_and_thresholds => |world| {
        let x = floats(&[f32::NAN, -1.0, -0.5, 0.25, 0.75], world)?;
        let soft: Vec<f32> = x.softshrink(0.5)?.to_vec()?;
        assert!(soft[0].is_nan() && soft[1..] == [-0.5, 0.0, 0.0, 0.25], "{soft:?}");
        let hard: Vec<f32> = x.hardshrink(0.5)?.to_vec()?;
        assert!(hard[0].is_nan() && hard[1..] == [-1.0, 0.0, 0.0, 0.75], "{hard:?}");
        let above: Vec<f32> = x.threshold(0.25, -7)?.to_vec()?;
        assert!(above[0].is_nan() && above[1..] == [-7.0, -7.0, -7.0, 0.75], "{above:?}");
        // The threshold is rounded like the elements, so a `float16` element 0.3 does not exceed
        // the threshold 0.3.
        let half = full([2], 0.3, DType::F16)?.to(x.device())?;
        assert_eq!(half.threshold(0.3, 1)?.to_scalars()?, half.full_like(1, ())?.to_scalars()?);
        assert_eq!(half.hardshrink(0.3)?.to_scalars()?, half.zeros_like(())?.to_scalars()?);
        let a = ints(&[-3, 0, 5], world)?;
        assert_eq!(a.threshold(1.9, 8.9)?.to_vec::<i64>()?, [8, 8, 5]);
        assert!(matches!(x.softshrink(-0.5).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(x.softshrink(f64::NAN).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(half.threshold(1e6, 0).kind(), Some(ErrorKind::InvalidArgument { .. })));
        assert!(matches!(a.hardshrink(0.5).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        assert!(matches!(a.gt(0)?.threshold(0, 0).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        Ok(())
    };

    worlds(1) s32_rounding_to_decimals_follows_pytorch gpu_s32_rounding_to_decimals_follows_pytorch => |world| {
        let x = floats(&[1.25, -1.35, 1234.5678, f32::INFINITY], world)?;
        let one: Vec<f32> = x.round_decimals(1)?.to_vec()?;
        assert!(one[..3] == [1.2, -1.4, 1234.6] && one[3] == f32::INFINITY, "{one:?}");
        let hundreds: Vec<f32> = x.round_decimals(-2)?.to_vec()?;
        assert_eq!(hundreds, [0.0, 0.0, 1200.0, f32::INFINITY]);
        assert_eq!(x.round_decimals(0)?.to_vec::<f32>()?, x.round()?.to_vec::<f32>()?);
        // As in PyTorch, 10³⁹ overflows to infinity, so the result is NaN.
        assert!(x.round_decimals(39)?.to_vec::<f32>()?.iter().all(|v| v.is_nan()));
        x.round_decimals_(1)?;
        assert_eq!(x.to_vec::<f32>()?, one);
        x.round_decimals_(0)?;
        assert_eq!(x.to_vec::<f32>()?, [1.0, -1.0, 1235.0, f32::INFINITY]);
        for decimals in [0, 1, -1] {
            let refused = ints(&[15], world)?.round_decimals(decimals);
            assert!(matches!(refused.kind(), Some(ErrorKind::UnsupportedDType { .. })));
        }
        Ok(())
    };

    worlds(1) s32_activations_in_place gpu_s32_activations_in_place => |world| {
        type InPlace = fn(&Tensor) -> Result<&Tensor>;
        type New = fn(&Tensor) -> Result<Tensor>;
        let pairs: &[(&str, InPlace, New)] = &[
            ("relu", Tensor::relu_, Tensor::relu),
            ("relu6", Tensor::relu6_, Tensor::relu6),
            ("sigmoid", Tensor::sigmoid_, Tensor::sigmoid),
            ("tanh", Tensor::tanh_, Tensor::tanh),
            ("silu", Tensor::silu_, Tensor::silu),
            ("gelu", Tensor::gelu_, Tensor::gelu),
            ("gelu_tanh", Tensor::gelu_tanh_, Tensor::gelu_tanh),
            ("selu", Tensor::selu_, Tensor::selu),
            ("hardsigmoid", Tensor::hardsigmoid_, Tensor::hardsigmoid),
            ("hardswish", Tensor::hardswish_, Tensor::hardswish),
            ("mish", Tensor::mish_, Tensor::mish),
            ("sgn", Tensor::sgn_, Tensor::sgn),
            ("elu", |x| x.elu_(0.5), |x| x.elu(0.5)),
            ("celu", |x| x.celu_(0.5), |x| x.celu(0.5)),
            ("leaky_relu", |x| x.leaky_relu_(0.1), |x| x.leaky_relu(0.1)),
            ("hardtanh", |x| x.hardtanh_(HardtanhOptions::new().max_val(0.5)), |x| x.hardtanh(HardtanhOptions::new().max_val(0.5))),
            ("logit", |x| x.logit_(0.1), |x| x.logit(0.1)),
            ("threshold", |x| x.threshold_(0.5, -1), |x| x.threshold(0.5, -1)),
        ];
        for (name, in_place, new) in pairs {
            let x = floats(&[-2.0, -0.25, 0.0, 0.5, 8.0], world)?;
            let expected: Vec<f32> = new(&x)?.to_vec()?;
            assert_eq!(in_place(&x)?.to_vec::<f32>()?, expected, "{name}");
            let one = floats(&[1.0], world)?.expand([2])?;
            let refused = in_place(&one);
            assert!(matches!(refused.kind(), Some(ErrorKind::OverlappingWrite)), "{name}");
        }
        let a = ints(&[-3, 9], world)?;
        assert_eq!(a.relu6_()?.to_vec::<i64>()?, [0, 6]);
        assert!(matches!(a.elu_(1.0).kind(), Some(ErrorKind::UnsupportedDType { .. })));
        assert!(matches!(a.logit_(()).kind(), Some(ErrorKind::CannotCast { .. })));
        let bytes = a.to(DType::U8)?;
        assert!(matches!(bytes.hardtanh(()).kind(), Some(ErrorKind::InvalidArgument { .. })));
        Ok(())
    };

    worlds(1) s32_operands_of_other_dtypes_need_no_copies gpu_s32_operands_of_other_dtypes_need_no_copies => |world| {
        let a = ones([1024], world.places()[world.devices])?;
        let (half, number) = (a.to(DType::F16)?, a.to(DType::I64)?);
        let device = a.device();
        let most_beside = |f: &dyn Fn() -> Result<()>| {
            cuda::reset_peak_memory_stats(device)?;
            let before = cuda::memory_allocated(device)?;
            f()?;
            Ok::<_, Error>(cuda::max_memory_allocated(device)? - before)
        };
        let result = 4 * 1024;
        assert_eq!(most_beside(&|| (&half + &a).map(drop))?, result);
        assert_eq!(most_beside(&|| number.sqrt().map(drop))?, result);
        assert_eq!(most_beside(&|| (&number * 0.5).map(drop))?, result);
        assert_eq!(most_beside(&|| where_cond(&a.gt(0)?, &number, &a).map(drop))?, result + 1024);
        assert_eq!(most_beside(&|| half.add_(&a).map(drop))?, 0);
        assert_eq!(most_beside(&|| half.sigmoid_().map(drop))?, 0);
        assert_eq!(half.to_vec::<half::f16>()?[7], half::f16::from_f32(0.880_797));
        Ok(())
    };

    worlds(1) s32_results_of_three_lie_as_their_operands gpu_s32_results_of_three_lie_as_their_operands => |world| {
        let a = ones([3, 4], world.places()[world.devices])?.t()?;
        assert_eq!(where_cond(&a.gt(0)?, &a, &a)?.stride(), [1, 4]);
        assert_eq!(a.lerp(&a, 0.5)?.stride(), [1, 4]);
        assert_eq!(a.clamp(0, 1)?.stride(), [1, 4]);
        Ok(())
    };

    worlds(1) s32_questions_about_integers_are_settled gpu_s32_questions_about_integers_are_settled => |world| {
        let a = ints(&[-1, 2], world)?;
        assert_eq!(a.isnan()?.to_vec::<bool>()?, [false, false]);
        assert_eq!(a.isfinite()?.to_vec::<bool>()?, [true, true]);
        assert_eq!(a.signbit()?.to_vec::<bool>()?, [true, false]);
        assert_eq!(a.gt(0)?.signbit()?.to_vec::<bool>()?, [false, false]);
        assert_eq!(a.nan_to_num(())?.to_vec::<i64>()?, [-1, 2]);
        let b = floats(&[f32::INFINITY, f32::NAN], world)?;
        assert_eq!(b.nan_to_num(())?.to_vec::<f32>()?, [f32::MAX, 0.0]);
        assert_eq!(b.isclose(&b, ())?.to_vec::<bool>()?, [true, false]);
        assert_eq!(b.isclose(&b, IsCloseOptions::new().equal_nan(true))?.to_vec::<bool>()?, [true, true]);
        assert!(matches!(b.isclose(&a, IsCloseOptions::new().equal_nan(true)).kind(), Some(ErrorKind::DTypeMismatch { .. })));
        Ok(())
    };
}

#[test]
fn s32_methods_are_found_by_name() {
    let square = |x: &Tensor| crate::by_name::unary("square").expect("a method")(x);
    crate::common::cpu(|_| {
        let a = tensor([3i64], ())?;
        assert_eq!(square(&a)?.to_vec::<i64>()?, [9]);
        let add = crate::by_name::binary("add").expect("a method");
        assert_eq!(add(&a, TensorOrScalar::from(2))?.to_vec::<i64>()?, [5]);
        assert!(crate::by_name::unary("no such op").is_none());
        Ok(())
    });
}
