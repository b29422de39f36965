//! Tests of views, repeats and triangles: shared memory, edge cases and errors.

use warpline::{
    DType, DiagonalOptions, MeshIndexing, Result, Tensor, arange, block_diag, einsum, hstack,
    meshgrid, tensor, tril_indices, triu_indices, zeros,
};

use crate::common;

#[test]
fn views_share_memory_and_repeats_do_not() {
    common::worlds(1, |world| {
        for place in world.places() {
            let t = zeros([3, 4], place)?;
            t.diagonal(1)?.fill_(1)?;
            t.unfold(1, 2, 2)?.select(1, 1)?.select(-1, 1)?.fill_(2)?;
            t.movedim(0, 1)?.select(0, 0)?.fill_(3)?;
            t.tensor_split(2, 0)?[1].fill_(4)?;
            let expected = [3.0, 1.0, 0.0, 2.0, 3.0, 0.0, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0];
            assert_eq!(t.to_vec::<f32>()?, expected);
            for copy in [
                t.repeat([1, 1])?,
                t.repeat([2, 1, 1])?,
                t.tile(1)?,
                t.repeat_interleave(1, 0)?,
                t.diag(0)?,
                t.rot90(0)?,
                t.narrow(0, 0, 1)?.repeat([3, 1])?,
            ] {
                copy.fill_(9)?;
            }
            assert_eq!(t.to_vec::<f32>()?, expected);
        }
        Ok(())
    });
}

#[test]
fn triangles_beyond_the_matrix_are_all_or_nothing() {
    common::cpu(|_| {
        let t = arange(6, ())?.add(1)?.reshape([2, 3])?;
        let all: Vec<i64> = (1..7).collect();
        for far in [isize::MAX, 5, 3] {
            assert_eq!(t.tril(far)?.to_vec::<i64>()?, all);
            assert_eq!(t.triu(-far)?.to_vec::<i64>()?, all);
            assert_eq!(t.triu(far)?.to_vec::<i64>()?, [0; 6]);
            assert_eq!(t.tril(-far)?.to_vec::<i64>()?, [0; 6]);
        }
        t.triu_(1)?;
        assert_eq!(t.to_vec::<i64>()?, [0, 2, 3, 0, 0, 6]);
        let bools = tensor([[true, true], [true, true]], ())?;
        assert_eq!(bools.tril(-1)?.to_vec::<bool>()?, [false, false, true, false]);
        let inf = tensor([[f32::INFINITY, f32::NAN]; 2], ())?;
        assert_eq!(inf.tril(-2)?.to_vec::<f32>()?, [0.0; 4]);
        for (offset, lower, upper) in [(0, 3, 5), (1, 5, 3), (-9, 0, 6), (isize::MAX, 6, 0)] {
            assert_eq!(tril_indices(2, 3, offset, ())?.size(), [2, lower], "{offset}");
            assert_eq!(triu_indices(2, 3, offset, ())?.size(), [2, upper], "{offset}");
        }
        assert_eq!(triu_indices(2, 2, 1, DType::I32)?.to_vec::<i32>()?, [0, 1]);
        Ok(())
    });
}

#[test]
fn splits_and_grids_have_pytorchs_sizes() {
    common::cpu(|_| {
        let t = arange(5, ())?;
        let parts = |parts: Vec<Tensor>| parts.iter().map(Tensor::numel).collect::<Vec<_>>();
        assert_eq!(parts(t.tensor_split(7, 0)?), [1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(parts(t.tensor_split_at([1, -1, 9], 0)?), [1, 3, 1, 0]);
        assert_eq!(parts(t.tensor_split_at([4, 2], 0)?), [4, 0, 3]);
        assert_eq!(parts(t.split_with_sizes(&[0, 5], -1)?), [0, 5]);
        assert!(t.split_with_sizes(&[2, 2], 0).is_err() && t.tensor_split(0, 0).is_err());
        assert!(tensor(1f32, ())?.unbind(0).is_err());
        let grids = meshgrid(&[t.narrow(0, 0, 2)?, t], MeshIndexing::Xy)?;
        assert_eq!(grids[0].size(), [5, 2]);
        assert!(meshgrid::<Tensor>(&[], MeshIndexing::Ij).is_err());
        assert_eq!(hstack(&[tensor(1i64, ())?, tensor(2i64, ())?])?.to_vec::<i64>()?, [1, 2]);
        assert_eq!(block_diag(&[zeros([0, 2], ())?, zeros([1, 1], ())?])?.size(), [1, 3]);
        Ok(())
    });
}

#[test]
fn strides_that_leave_the_storage_are_refused() {
    common::cpu(|_| {
        let t = arange(6, ())?;
        assert_eq!(t.as_strided([2], [5], 0)?.to_vec::<i64>()?, [0, 5]);
        assert_eq!(t.narrow(0, 2, 2)?.as_strided([2], [1], None)?.to_vec::<i64>()?, [2, 3]);
        assert_eq!(t.as_strided([0, 9], [1, 1], 100)?.numel(), 0);
        for (size, stride, offset) in [(2, 6, 0), (1, 1, 6), (7, 1, 0), (2, -1, 1)] {
            assert!(t.as_strided([size], [stride], offset).is_err(), "{size} {stride} {offset}");
        }
        assert!(t.as_strided([usize::MAX / 8, 2], [isize::MAX, 1], 0).is_err());
        assert!(t.as_strided([1, 1], [1], 0).is_err());
        assert!(t.unfold(0, 7, 1).is_err() && t.unfold(0, 1, 0).is_err());
        assert_eq!(t.unfold(0, 0, 4)?.size(), [2, 0]);
        assert_eq!(tensor(3i64, ())?.unfold(0, 1, 1)?.to_vec::<i64>()?, [3]);
        assert!(t.unflatten(0, [4, -1]).is_err() && t.unflatten(0, [-1, -1]).is_err());
        assert!(
            t.diagonal(DiagonalOptions::new().dim2(0)).is_err()
                && t.movedim([0, 0], [0, 0]).is_err()
        );
        assert_eq!(t.reshape([2, 3])?.diagonal(7)?.numel(), 0);
        Ok(())
    });
}

#[test]
fn invalid_equations_are_refused_with_the_reason() {
    common::cpu(|_| {
        let t = zeros([2, 3], ())?;
        let says = |equation: &str, operands: &[&Tensor], words: &str| -> Result<()> {
            let text = einsum(equation, operands).expect_err(equation).to_string();
            assert!(text.contains(words), "{equation}: {text}");
            Ok(())
        };
        says("ij,jk->ik", &[&t], "has 2 operands, but 1 were given")?;
        says("ijk->i", &[&t], "has 3 letters")?;
        says("i->i", &[&t], "has 1 letters")?;
        says("ij->ik", &[&t], "no operand has it")?;
        says("ij->ii", &[&t], "twice")?;
        says("i1->i", &[&t], "'1' is neither a letter")?;
        says("i.j->i", &[&t], "letter")?;
        says("ii->i", &[&t], "sizes 2 and 3")?;
        says("ij,kj->ik", &[&t, &t.t()?.contiguous()?], "sizes 3 and 2")?;
        // Sizes of 1 broadcast, and a letter is summed over after its last operand.
        let one = tensor([[2f32], [3.0]], ())?;
        let ones = t.add(1)?;
        assert_eq!(einsum("ij,ij->i", &[&one, &ones])?.to_vec::<f32>()?, [6.0, 9.0]);
        assert_eq!(einsum(" ba ", &[&arange(2, ())?.reshape([1, 2])?])?.size(), [2, 1]);
        assert_eq!(einsum("ij,kl->", &[&ones, &ones])?.item::<f32>()?, 36.0);
        Ok(())
    });
}
