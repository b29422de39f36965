//! Tests of autocast regions in captures and around captures.

use warpline::amp::autocast;
use warpline::autograd::no_grad;
use warpline::cuda::{self, Stream};
use warpline::{DType, Result, Tensor, full, ones, zeros};

use crate::autocast::{on_gpu, weight};

#[test]
fn a_captured_conversion_reads_the_parameter_at_each_replay() {
    on_gpu(|| {
        let (weight, x) = (weight([2, 2], "cuda")?, ones([1, 2], "cuda")?);
        let product = || autocast("cuda", (), || x.matmul(&weight)?.to(DType::F32));
        assert_eq!(product()?.to_vec::<f32>()?, [2.0; 2], "this product fills the cache");
        let (graph, out) = cuda::graph(product)?;
        no_grad(|| weight.fill_(3).map(drop))?;
        graph.replay()?;
        assert_eq!(out.to_vec::<f32>()?, [6.0; 2]);
        assert_eq!(product()?.to_vec::<f32>()?, [6.0; 2]);
        Ok(())
    });
}

/// In a capture too, both products share one conversion, so their gradients are added in `float16`.
#[test]
fn a_captured_region_records_a_conversion_once() {
    on_gpu(|| {
        let (weight, large) = (weight([1, 1], "cuda")?, full([1, 1], 2048.0, "cuda")?);
        let one = ones([1, 1], "cuda")?;
        let step = || {
            let sum = || large.matmul(&weight)?.add(&one.matmul(&weight)?)?.sum(());
            autocast("cuda", (), sum)?.backward()
        };
        step()?;
        assert_eq!(weight.grad().expect("a gradient").item::<f32>()?, 2048.0);
        weight.set_grad(None)?;
        let (graph, ()) = cuda::graph(step)?;
        graph.replay()?;
        assert_eq!(weight.grad().expect("a gradient").item::<f32>()?, 2048.0);
        Ok(())
    });
}

/// Conversions in a capture end with the capture, and follow changes of the parameter.
#[test]
fn conversions_of_a_capture_are_its_own() {
    on_gpu(|| {
        let (weight, x) = (weight([2, 2], "cuda")?, ones([1, 2], "cuda")?);
        let left = ones([1], (DType::I64, "cuda"))?;
        let product = || x.matmul(&weight)?.to(DType::F32);
        autocast("cuda", (), || {
            let grows = || no_grad(|| weight.add_(1).map(drop));
            let first = product()?;
            let before = cuda::memory_allocated(0)?;
            let (graph, sums) = cuda::graph(|| {
                let sums = [product()?, zeros([1, 2], "cuda")?];
                cuda::graph_while(&left, || {
                    no_grad(|| sums[1].add_(&product()?).map(drop))?;
                    grows()?;
                    no_grad(|| sums[1].add_(&product()?).map(drop))?;
                    left.sub_(1).map(drop)
                })?;
                let [start, in_body] = sums;
                Ok([start, in_body, product()?].map(|sum| sum.detach()))
            })?;
            let values =
                || sums.iter().map(|sum| Ok(sum.to_vec::<f32>()?[0])).collect::<Result<Vec<_>>>();
            left.fill_(2)?;
            graph.replay()?;
            assert_eq!(values()?, [2.0, 2.0 + 4.0 + 4.0 + 6.0, 6.0]);
            assert_eq!(product()?.to_vec::<f32>()?, [6.0; 2], "outside of the capture");
            let (other, y) = cuda::graph(product)?;
            grows()?;
            other.replay()?;
            assert_eq!(y.to_vec::<f32>()?, [8.0; 2], "in another capture");
            drop((graph, sums, other, y, first));
            cuda::synchronize(0)?;
            assert!(cuda::memory_allocated(0)? <= before, "no conversion keeps a pool");
            Ok(())
        })
    });
}

/// A live result of an earlier step, or a conversion of the region, keeps accumulators of other streams.
#[test]
fn a_step_is_captured_beside_results_of_earlier_steps() {
    on_gpu(|| {
        let (weight, x) = (weight([2, 2], "cuda")?, ones([1, 2], "cuda")?);
        let step = || -> Result<Tensor> {
            let loss = x.matmul(&weight)?.to(DType::F32)?.sum(())?;
            weight.set_grad(None)?;
            loss.backward()?;
            Ok(loss)
        };
        let captured = || {
            let kept = cuda::with_stream(&Stream::new(0)?, step)?;
            weight.set_grad(None)?;
            let (graph, _) = cuda::graph(step)?;
            graph.replay()?;
            assert_eq!(weight.grad().expect("a gradient").to_vec::<f32>()?, [1.0; 4]);
            drop(kept);
            weight.set_grad(None)
        };
        captured()?;
        autocast("cuda", (), captured)
    });
}

/// A replay may also change a parameter.
#[test]
fn a_parameter_that_a_replay_changes_is_converted_again() {
    on_gpu(|| {
        let (weight, x) = (weight([2, 2], "cuda")?, ones([1, 2], "cuda")?);
        let (graph, ()) = cuda::graph(|| no_grad(|| weight.add_(1).map(drop)))?;
        for step in 1..4 {
            let product = autocast("cuda", (), || x.matmul(&weight)?.to(DType::F32))?;
            assert_eq!(product.to_vec::<f32>()?, [2.0 * f32::from(step as u8); 2]);
            graph.replay()?;
        }
        Ok(())
    });
}
