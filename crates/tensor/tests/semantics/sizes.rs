//! Tests of the types of dimensions, sizes and indices, and of reads into nested vectors.

use warpline::{Ellipsis, ErrorKind, Tensor, TensorIndex, arange, ones, tensor, zeros};

fn grid() -> Tensor {
    arange(24, ()).unwrap().reshape((2, 3, -1)).unwrap()
}

#[test]
fn dimensions_are_integers_of_four_types() {
    let t = grid();
    for same in [t.transpose(0i32, -1i64), t.transpose(0usize, t.dim() - 1)] {
        assert_eq!(same.unwrap().size(), [4, 3, 2]);
    }
    assert_eq!(t.sum(1usize).unwrap().size(), [2, 4]);
    assert_eq!(t.sum((0i64, 2usize)).unwrap().size(), [3]);
    assert_eq!(t.sum([0i32, 2]).unwrap().size(), [3]);
    assert_eq!(t.argmax(2i64).unwrap().size(), [2, 3]);
    assert_eq!(t.squeeze(None).unwrap().permute((2, 0, 1usize)).unwrap().size(), [4, 2, 3]);
}

#[test]
fn narrow_select_and_slice_take_unsigned_and_signed_numbers() {
    let t = grid();
    let (dim, start, length) = (1usize, 1i64, 2i32);
    assert_eq!(t.narrow(dim, start, length).unwrap().size(), [2, 2, 4]);
    assert_eq!(
        t.select(2i64, 3usize).unwrap().select(-1, -1).unwrap().to_vec::<i64>().unwrap(),
        [11, 23]
    );
    assert_eq!(t.slice(2usize, ..3usize, 2i32).unwrap().size(), [2, 3, 2]);
    for error in [t.narrow(0, 0, -1).unwrap_err(), t.slice(0, .., -2i64).unwrap_err()] {
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    }
}

#[test]
fn sizes_mix_types_in_a_tuple() {
    let t = grid();
    let (rows, columns) = (t.size()[0], 6i32);
    assert_eq!(t.view((rows, -1)).unwrap().size(), [2, 12]);
    assert_eq!(t.reshape((rows, 2i64, columns)).unwrap().size(), [2, 2, 6]);
    assert_eq!(t.expand((5usize, -1, 3, 4)).unwrap().size(), [5, 2, 3, 4]);
    assert_eq!(zeros((rows, 3), ()).unwrap().size(), [2, 3]);
}

#[test]
fn dims_are_an_array_of_the_expected_length() {
    let [a, b, c] = grid().dims().unwrap();
    assert_eq!((a, b, c), (2, 3, 4));
    let line = line!() + 1;
    let error = grid().dims::<2>().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }));
    assert_eq!((error.op(), error.location().unwrap().line()), ("dims", line));
}

#[test]
fn nested_vectors_have_the_tensors_shape() {
    let t = grid();
    let nested = t.to_vec3::<i64>().unwrap();
    assert_eq!((nested.len(), nested[1].len(), &nested[1][2]), (2, 3, &vec![20, 21, 22, 23]));
    assert_eq!(t.i(0).unwrap().t().unwrap().to_vec2::<i64>().unwrap()[3], [3, 7, 11]);
    assert_eq!(zeros((2, 0), ()).unwrap().to_vec2::<f32>().unwrap(), [[0f32; 0]; 2]);
    assert_eq!(zeros((0, 2), ()).unwrap().to_vec2::<f32>().unwrap(), Vec::<Vec<f32>>::new());
    assert!(zeros((1 << 60, 0), ()).unwrap().to_vec2::<f32>().is_err());
    assert!(zeros((1 << 30, 1 << 30, 0), ()).unwrap().to_vec3::<f32>().is_err());
    let error = t.to_vec2::<i64>().unwrap_err();
    assert_eq!(error.op(), "to_vec2");
}

#[test]
fn a_tensor_converts_to_numbers_and_vectors() {
    let t = tensor![[1, 2], [3, 4]].unwrap();
    assert_eq!(u8::try_from(&t.i((1, 1)).unwrap()).unwrap(), 4);
    assert_eq!(f64::try_from(&t.sum(()).unwrap()).unwrap(), 10.0);
    assert_eq!(Vec::<i64>::try_from(&t).unwrap(), [1, 2, 3, 4]);
    let rows: Vec<Vec<i64>> = (&t).try_into().unwrap();
    assert_eq!(rows, [[1, 2], [3, 4]]);
    let error = f32::try_from(&t).unwrap_err();
    assert_eq!((error.op(), error.location().unwrap().file()), ("item", file!()));
    let (seven, negative) = (tensor(7u8, ()).unwrap(), tensor(-1i64, ()).unwrap());
    assert_eq!(usize::try_from(&seven).unwrap() + 1, 8);
    assert_eq!((u32::try_from(&seven).unwrap(), u64::try_from(&seven).unwrap()), (7, 7));
    for error in [usize::try_from(&negative).unwrap_err(), u32::try_from(&negative).unwrap_err()] {
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().starts_with("item: the value -1 does not fit u"), "{error}");
        assert_eq!(error.location().unwrap().file(), file!());
    }
}

#[test]
fn rows_are_views() {
    let t = grid();
    let mut rows = t.iter().unwrap();
    assert_eq!(rows.len(), 2);
    rows.nth(1).unwrap().zero_().unwrap();
    assert_eq!(t.i(1).unwrap().sum(()).unwrap().item::<i64>().unwrap(), 0);
    assert_eq!(tensor(1i64, ()).unwrap().iter().unwrap_err().op(), "iter");
}

#[test]
fn an_index_is_also_none_a_tensor_or_a_mask() {
    let t = grid();
    assert_eq!(t.i((None, 1, .., None)).unwrap().size(), [1, 3, 1, 4]);
    assert_eq!(t.i(None).unwrap().size(), [1, 2, 3, 4]);
    let (rows, columns) = (tensor![1, 0].unwrap(), tensor![-1, 0].unwrap());
    let values = |t: Tensor| t.to_vec::<i64>().unwrap();
    assert_eq!(values(t.i((&rows, 2, &columns)).unwrap()), [23, 8]);
    assert_eq!(values(t.i((0, .., &columns)).unwrap()), [3, 0, 7, 4, 11, 8]);
    assert_eq!(t.i((&rows, .., &columns)).unwrap().size(), [2, 3]);
    assert_eq!(t.i((&rows, None, 1..)).unwrap().size(), [2, 1, 2, 4]);
    // A mask of two dimensions indexes two dimensions of the tensor.
    let mask = t.select(2, 0).unwrap().ge(16).unwrap();
    assert_eq!(values(t.i((&mask, 1..2)).unwrap()), [17, 21]);
    assert_eq!(values(t.i((1, &mask.i(1).unwrap(), 0)).unwrap()), [16, 20]);
    for error in [t.i((&mask, 0, 0)).unwrap_err(), t.i((0, 0, 0, &rows)).unwrap_err()] {
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    }
}

#[test]
fn an_ellipsis_is_all_other_dimensions() {
    let t = grid();
    let values = |t: Tensor| t.to_vec::<i64>().unwrap();
    assert_eq!(values(t.i((Ellipsis, -1)).unwrap()), values(t.select(2, 3).unwrap()));
    assert_eq!(values(t.i((1, Ellipsis, ..1)).unwrap()), [12, 16, 20]);
    assert_eq!(t.i(Ellipsis).unwrap().size(), t.size());
    assert_eq!(t.i((Ellipsis, None)).unwrap().size(), [2, 3, 4, 1]);
    // It may be no dimension at all.
    assert_eq!(values(t.i((0, 1, Ellipsis, 2)).unwrap()), [6]);
    assert_eq!(values(t.i((Ellipsis, 0, &tensor![3, 0].unwrap())).unwrap()), [3, 0, 15, 12]);
    // The mask indexes the last two dimensions.
    let mask = t.i(1).unwrap().eq(17).unwrap();
    assert_eq!(values(t.i((Ellipsis, &mask)).unwrap()), [5, 17]);
    let twice = [TensorIndex::from(Ellipsis), Ellipsis.into()];
    for error in [t.i(&twice[..]).unwrap_err(), t.i((Ellipsis, 0, 0, 0, 0)).unwrap_err()] {
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    }
}

#[test]
fn gradients_pass_through_new_dimensions_and_tensors_of_indices() {
    let x = ones((2, 3), ()).unwrap().requires_grad_(true).unwrap();
    let rows = tensor![1, 1].unwrap();
    let picked = x.i((None, &rows, 1..)).unwrap();
    assert_eq!(picked.size(), [1, 2, 2]);
    picked.sum(()).unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec2::<f32>().unwrap(), [[0.0; 3], [0.0, 2.0, 2.0]]);
}
