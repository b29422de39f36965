//! Tests of indexing by tensors, scattering, masks and sorting, for cases that the golden files
//! lack: edge cases, in-place forms, and gradients compared with finite differences.

use warpline::autograd::{GradcheckOptions, gradcheck, gradgradcheck};
use warpline::{
    BincountOptions, DType, Device, ErrorKind, Result, ResultExt, ScatterReduce, SortOptions,
    Tensor, TopkOptions, UniqueOptions, arange, functional, searchsorted, tensor, zeros,
};
use warpline_runtime::IndexCheck;

use crate::common;

/// Runs `body` on the CPU and on a simulated device.
fn everywhere(body: impl Fn(Device) -> Result<()>) {
    common::cpu(|_| body(Device::Cpu));
    common::worlds(1, |world| body(Device::cuda(world.devices - 1)));
}

fn ints(values: &[i64], device: Device) -> Result<Tensor> {
    tensor(values, device)
}

/// Returns a tensor of 0, 1, 2, … with the given sizes.
fn numbers(sizes: &[isize], device: Device) -> Result<Tensor> {
    arange(sizes.iter().product::<isize>() as i64, device)?.reshape(sizes)
}

#[test]
fn dimensions_of_indices_replace_the_indexed_ones_or_come_first() {
    everywhere(|device| {
        let t = numbers(&[2, 3, 4], device)?;
        let (a, b) = (ints(&[1, 0], device)?, ints(&[-1, 0], device)?);
        let middle = t.index(&[None, Some(&a)])?;
        assert_eq!(middle.size(), [2, 2, 4]);
        assert_eq!(middle.to_vec::<i64>()?[..8], [4, 5, 6, 7, 0, 1, 2, 3]);
        let beside = t.index(&[None, Some(&a), Some(&b)])?;
        assert_eq!(beside.size(), [2, 2]);
        assert_eq!(beside.to_vec::<i64>()?, [7, 0, 19, 12]);
        let apart = t.index(&[Some(&a), None, Some(&b)])?;
        assert_eq!(apart.size(), [2, 3]);
        assert_eq!(apart.to_vec::<i64>()?, [15, 19, 23, 0, 4, 8]);
        let table = t.index(&[Some(&a.unsqueeze(1)?), Some(&b)])?;
        assert_eq!(table.size(), [2, 2, 4]);
        assert_eq!(table.select(2, 0)?.to_vec::<i64>()?, [20, 12, 8, 0]);
        assert!(!t.index(&[None])?.is_same(&t), "a copy");
        Ok(())
    });
}

#[test]
fn masks_select_their_true_elements() {
    everywhere(|device| {
        let t = numbers(&[2, 3], device)?;
        assert_eq!(t.index(&[Some(&t.gt(2)?)])?.to_vec::<i64>()?, [3, 4, 5]);
        let columns = tensor([true, false, true], device)?;
        let some = t.index(&[None, Some(&columns)])?;
        assert_eq!((some.size(), some.to_vec::<i64>()?), (&[2, 2][..], vec![0, 2, 3, 5]));
        let none = t.index(&[Some(&t.gt(9)?)])?;
        assert_eq!(none.size(), [0]);
        assert_eq!(t.gt(9)?.nonzero()?.size(), [0, 2]);
        assert_eq!(zeros([0, 3], device)?.nonzero()?.size(), [0, 2]);
        assert_eq!(tensor(5i64, device)?.nonzero()?.size(), [1, 0]);
        assert_eq!(
            t.masked_select(&tensor([[true], [false]], device)?)?.to_vec::<i64>()?,
            [0, 1, 2]
        );
        let short = t.masked_scatter(&t.gt(3)?, &ints(&[9], device)?);
        assert!(read(short).is_err());
        let wrong = t.index(&[Some(&columns)]);
        assert!(
            wrong.as_ref().is_err_and(|e| matches!(
                (e.op(), e.kind()),
                ("index", ErrorKind::ShapeMismatch { .. })
            )),
            "{wrong:?}"
        );
        Ok(())
    });
}

/// Reads the result. On a device, a failed index check is reported here.
fn read(result: Result<Tensor>) -> Result<Vec<i64>> {
    result?.to_vec::<i64>()
}

#[test]
fn an_index_out_of_range_names_dimension_and_index() {
    everywhere(|device| {
        let t = numbers(&[2, 3], device)?;
        let (zero, bad) = (ints(&[0], device)?, ints(&[-4], device)?);
        let error = read(t.index(&[Some(&zero), Some(&bad)])).unwrap_err();
        let failed = IndexCheck::of(&error).unwrap_or_else(|| panic!("{error}"));
        assert_eq!((failed.op, failed.index, failed.dim, failed.size), ("index", -4, 1, 3));
        let many = t.index(&[Some(&zero), Some(&zero), Some(&zero)]);
        assert!(matches!(many.kind(), Some(ErrorKind::InvalidArgument { .. })), "{many:?}");
        let error = read(t.take(&ints(&[6], device)?)).unwrap_err();
        assert!(IndexCheck::of(&error).is_some_and(|f| f.op == "take" && f.size == 6), "{error}");
        let calls: [fn(&Tensor, &Tensor) -> Result<Tensor>; 3] = [
            |t, bad| t.scatter(1, &bad.unsqueeze(0)?, 1),
            |t, bad| t.index_add(0, bad, &t.narrow(0, 0, 1)?.add(1)?),
            |t, bad| t.index_fill(1, bad, 0),
        ];
        let bad = ints(&[3], device)?;
        for call in calls {
            let error = read(call(&t, &bad)).unwrap_err();
            assert!(IndexCheck::of(&error).is_some_and(|f| f.index == 3), "{error}");
        }
        Ok(())
    });
}

#[test]
fn in_place_forms_write_to_the_tensor_itself() {
    everywhere(|device| {
        let t = zeros([2, 3], (DType::I64, device))?;
        let (rows, columns) = (ints(&[0, 1, 0], device)?, ints(&[2, 0, 2], device)?);
        let both = [Some(&rows), Some(&columns)];
        t.index_put_(&both, &tensor(1i64, device)?, true)?;
        assert_eq!(t.to_vec::<i64>()?, [0, 0, 2, 1, 0, 0]);
        // In-place ops on a transposed view, and on a view that is not contiguous, write to the
        // memory of the base.
        t.t()?.index_put_(&[Some(&ints(&[1], device)?)], &ints(&[7, 8], device)?, ())?;
        assert_eq!(t.to_vec::<i64>()?, [0, 7, 2, 1, 8, 0]);
        let part = zeros([2, 4], (DType::I64, device))?;
        part.narrow(1, 0, 3)?.index_put_(&both, &tensor(5i64, device)?, ())?;
        assert_eq!(part.to_vec::<i64>()?, [0, 0, 5, 0, 5, 0, 0, 0]);
        t.index_copy_(1, &ints(&[0], device)?, &numbers(&[2, 1], device)?)?;
        t.index_fill_(1, &ints(&[2], device)?, 4)?;
        t.masked_scatter_(&t.gt(6)?, &ints(&[-1, -2], device)?)?;
        assert_eq!(t.to_vec::<i64>()?, [0, -1, 4, 1, -2, 4]);
        t.cumsum_(1)?;
        assert_eq!(t.to_vec::<i64>()?, [0, -1, 3, 1, -1, 3]);
        let small = tensor([1i8, 2, 3], device)?;
        assert_eq!(small.cumprod_(0)?.dtype(), DType::I8);
        let index = ints(&[0, 0, 2], device)?;
        small.scatter_add_(0, &index, &tensor([1i8, 1, 1], device)?)?;
        assert_eq!(small.to_vec::<i8>()?, [3, 2, 7]);
        small.scatter_reduce_(
            0,
            &index,
            &tensor([9i8, 8, 1], device)?,
            ScatterReduce::Mean,
            false,
        )?;
        assert_eq!(small.to_vec::<i8>()?, [8, 2, 1]);
        let apart = small.scatter_(0, &index, &small);
        assert!(
            apart.as_ref().is_err_and(|e| matches!(
                (e.op(), e.kind()),
                ("scatter_", ErrorKind::OverlappingOperands)
            )),
            "{apart:?}"
        );
        Ok(())
    });
}

#[test]
fn order_ops_handle_edge_cases() {
    everywhere(|device| {
        let nan = f32::NAN;
        let t = tensor([[2f32, nan, 1.0], [3.0, 1.0, 2.0]], device)?;
        let (values, indices) = t.median(1)?;
        let values = values.to_vec::<f32>()?;
        assert!(values[0].is_nan() && values[1] == 2.0, "{values:?}");
        assert_eq!(indices.to_vec::<i64>()?, [1, 2]);
        assert_eq!(t.topk(0, 1)?.0.size(), [2, 0]);
        assert!(t.topk(4, 1).is_err() && t.kthvalue(0, 1).is_err());
        let scalar = tensor(5f32, device)?;
        assert_eq!(scalar.sort(SortOptions::new().dim(0).descending(true))?.1.item::<i64>()?, 0);
        assert_eq!(scalar.median_all()?.item::<f32>()?, 5.0);
        assert_eq!(scalar.topk(1, ())?.0.item::<f32>()?, 5.0);
        let long = arange(5000i64, device)?.mul(37)?.remainder(1009)?;
        let (sorted, _) = long.sort(SortOptions::new().dim(0).descending(true))?;
        assert_eq!(sorted.narrow(0, 0, 6)?.to_vec::<i64>()?, [1008, 1008, 1008, 1008, 1008, 1007]);
        let (values, inverse, counts) =
            long.unique(UniqueOptions::new().return_inverse(true).return_counts(true))?;
        assert_eq!(values.to_vec::<i64>()?, (0..1009).collect::<Vec<_>>());
        let back = values.index_select(0, &inverse.unwrap())?;
        assert_eq!(back.to_vec::<i64>()?, long.to_vec::<i64>()?);
        assert_eq!(counts.unwrap().sum(())?.item::<i64>()?, 5000);
        let (none, inverse, counts) = zeros(0, device)?
            .unique(UniqueOptions::new().return_inverse(true).return_counts(true))?;
        assert_eq!((none.numel(), inverse.unwrap().numel(), counts.unwrap().numel()), (0, 0, 0));
        let t = numbers(&[2, 3], device)?;
        assert_eq!(t.roll(1, ())?.to_vec::<i64>()?, [5, 0, 1, 2, 3, 4]);
        assert_eq!(t.roll([-1, 4], [0, 1])?.to_vec::<i64>()?, [5, 3, 4, 2, 0, 1]);
        assert_eq!(t.t()?.flip([0, -1])?.to_vec::<i64>()?, [5, 2, 4, 1, 3, 0]);
        assert!(t.flip([0, -2]).is_err());
        let sorted = ints(&[1, 3], device)?;
        assert_eq!(searchsorted(&sorted, &t, true)?.to_vec::<i64>()?, [0, 1, 1, 2, 2, 2]);
        assert_eq!(
            tensor([3i32, 3], device)?
                .bincount(BincountOptions::new().minlength(6))?
                .to_vec::<i64>()?,
            [0, 0, 0, 2, 0, 0]
        );
        assert_eq!(functional::one_hot(&ints(&[], device)?, 3)?.size(), [0, 3]);
        if !device.is_cuda() {
            // On a GPU, a later call would report the failure.
            assert!(functional::one_hot(&ints(&[-1], device)?, ()).is_err());
        }
        assert!(functional::one_hot(&ints(&[i64::MAX], device)?, ()).is_err());
        Ok(())
    });
}

/// Returns elements for finite differences: they are all different, and none is zero.
fn apart(sizes: &[isize], device: Device) -> Result<Tensor> {
    let t = numbers(sizes, device)?.mul(7)?.remainder(11)?.to(DType::F64)?;
    t.add(&numbers(sizes, device)?.mul(0.01)?)?.sub(4.3)
}

type Checked = (&'static str, fn(&[Tensor]) -> Result<Tensor>);

/// Functions whose gradients are compared with finite differences. Their inputs are 3 × 4 numbers,
/// 2 × 4 numbers, and 2 × 4 indices of three rows.
const FUNCTIONS: &[Checked] = &[
    ("gather", |x| x[0].gather(0, &x[2])),
    ("index_select", |x| x[0].index_select(1, &x[2].select(0, 0)?)),
    ("scatter", |x| x[0].scatter(0, &x[2].narrow(0, 0, 1)?, &x[1])),
    ("scatter_add", |x| x[0].scatter_add(0, &x[2].narrow(1, 0, 3)?, &x[1])),
    ("index_add", |x| x[0].index_add_scaled(0, &x[2].select(1, 0)?, &x[1], 3)),
    ("index_copy", |x| x[0].index_copy(0, &x[2].select(1, 1)?, &x[1])),
    ("index", |x| x[0].index(&[Some(&x[2]), Some(&x[2].select(0, 0)?)])),
    ("index_put", |x| x[0].index_put(&[None, Some(&x[2].select(0, 0)?)], &x[1].i(0)?, true)),
    ("take_along_dim", |x| x[0].take_along_dim(&x[2], 0)),
    ("masked_select", |x| x[0].masked_select(&x[0].gt(0)?)),
    ("masked_scatter", |x| x[0].masked_scatter(&x[0].gt(2)?, &x[1])),
    ("embedding", |x| functional::embedding(&x[2], &x[0], ())),
    ("cumsum", |x| x[0].square()?.cumsum(1)),
    ("cumprod", |x| x[0].cumprod(1)),
    ("cummax", |x| Ok(x[0].square()?.cummax(1)?.0)),
    ("sort", |x| Ok(x[0].square()?.sort(SortOptions::new().dim(1).descending(true))?.0)),
    ("topk", |x| Ok(x[0].square()?.topk(2, TopkOptions::new().dim(0).largest(false))?.0)),
    ("median", |x| Ok(x[0].square()?.median(1)?.0)),
    ("flip", |x| x[0].square()?.flip([0, 1])),
    ("roll", |x| x[0].square()?.roll([1, 2], [0, 1])),
    ("scatter_reduce, sum", |x| reduced(x, ScatterReduce::Sum, false)),
    ("scatter_reduce, mean", |x| reduced(x, ScatterReduce::Mean, false)),
    ("scatter_reduce, prod", |x| reduced(x, ScatterReduce::Prod, false)),
    ("scatter_reduce, amax", |x| reduced(x, ScatterReduce::Amax, true)),
    ("scatter_reduce, amin", |x| reduced(x, ScatterReduce::Amin, false)),
    // In-place ops on tensors that are not leaves, and on views of them.
    ("scatter_", |x| x[0].square()?.scatter_(0, &x[2].narrow(0, 0, 1)?, &x[1]).cloned()),
    ("index_add_", |x| {
        let t = x[0].square()?;
        t.narrow(1, 0, 2)?.index_add_(0, &x[2].select(1, 0)?, &x[1].narrow(1, 1, 2)?)?;
        Ok(t)
    }),
    ("index_put_", |x| {
        let t = x[0].square()?;
        t.t()?.index_put_(&[None, Some(&x[2].select(1, 0)?)], &x[1].t()?, ())?;
        Ok(t)
    }),
    ("scatter_reduce_", |x| {
        let t = x[0].square()?;
        t.scatter_reduce_(0, &x[2], &x[1], ScatterReduce::Prod, true)?;
        t.cumsum_(0)?;
        Ok(t)
    }),
];

fn reduced(x: &[Tensor], reduce: ScatterReduce, include_self: bool) -> Result<Tensor> {
    x[0].scatter_reduce(0, &x[2], &x[1], reduce, include_self)
}

#[test]
fn gradients_of_indexing_agree_with_differences() {
    everywhere(|device| {
        let index = tensor([[0i64, 2, 1, 1], [2, 0, 1, 0]], device)?;
        for (name, f) in FUNCTIONS {
            let x = apart(&[3, 4], device)?.requires_grad_(true)?;
            let y = apart(&[2, 4], device)?.mul(1.1)?.requires_grad_(true)?;
            let inputs = [x, y, index.clone()];
            let f = |x: &[Tensor]| Ok(vec![f(x)?]);
            let options = GradcheckOptions::default();
            gradcheck(f, &inputs, options).unwrap_or_else(|e| panic!("{name}: {e}"));
            // Only on the CPU, because this check takes long and the formulas do not depend on the
            // device.
            if device == Device::Cpu {
                gradgradcheck(f, &inputs, options).unwrap_or_else(|e| panic!("{name}, twice: {e}"));
            }
        }
        Ok(())
    });
}

#[test]
fn products_with_zeros_have_gradients() {
    common::cpu(|_| {
        let options = GradcheckOptions::default();
        for values in [[2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, 4.0], [0.0, 0.0, 1.0, 2.0]] {
            let x = tensor(values, ())?.requires_grad_(true)?;
            let products = |x: &[Tensor]| Ok(vec![x[0].cumprod(0)?]);
            gradcheck(products, std::slice::from_ref(&x), options)?;
            gradgradcheck(products, std::slice::from_ref(&x), options)?;
            let index = tensor([0i64, 0, 1, 1], ())?;
            let one = tensor([1f64, 2.0, 3.0, 4.0], ())?.requires_grad_(true)?;
            let product = |x: &[Tensor]| {
                Ok(vec![x[1].scatter_reduce(0, &index, &x[0], ScatterReduce::Prod, true)?])
            };
            gradcheck(product, &[x, one], options)?;
        }
        Ok(())
    });
}

#[test]
fn ops_without_gradient_fail_or_return_tensors_without_one() {
    common::cpu(|_| {
        let x = tensor([1f64, 2.0], ())?.requires_grad_(true)?;
        let error = x.unique(()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Gradient { .. }), "{error}");
        assert!(!x.argsort(0)?.requires_grad() && !x.nonzero()?.requires_grad());
        let values = x.sort(0)?;
        assert!(values.0.requires_grad() && !values.1.requires_grad());
        let leaf = x.scatter_add_(0, &tensor([0i64], ())?, &tensor([1f64], ())?);
        assert!(matches!(leaf.kind(), Some(ErrorKind::Gradient { .. })), "{leaf:?}");
        Ok(())
    });
}
