//! Tests that errors of composed functions, of gradients and of failed index checks name the
//! function that the program called, and the line of the call.

use warpline::autograd::{self, Context, Function, GradOptions, Gradients, ToSave, no_grad};
use warpline::functional::{
    self, ConvOptions, CrossEntropyLossOptions, MaxPoolOptions, NLLLossOptions, Reduction,
};
use warpline::{
    DType, ErrorKind, Result, Tensor, cuda, ones, simulated, tensor, with_runtime, zeros,
};

use crate::common::bad_calls::{everywhere, on_gpu, refused};

/// Reads a result. On a GPU, an index out of range is reported here as an error of the original
/// call.
fn read(result: Result<Tensor>) -> Result<Vec<f64>> {
    result?.to(DType::F64)?.to_vec::<f64>()
}

#[test]
fn indices_out_of_range_name_the_function_that_was_called() -> Result<()> {
    everywhere(|at| {
        let t = ones([2, 3], at)?;
        let far = tensor([7i64, 0], at)?;
        let wide = tensor([[7i64, 0, 0]], at)?;
        let rows = ones([2, 3], at)?;
        refused("index_select", read(t.index_select(0, &far)));
        refused("gather", read(t.gather(0, &wide)));
        refused("take", read(t.take(&far)));
        refused("take_along_dim", read(t.take_along_dim(&wide, 0)));
        refused("take_along_dim", read(t.take_along_dim(&wide, ())));
        refused("index_add", read(t.index_add(0, &far, &rows)));
        refused("index_add_", read(t.copy()?.index_add_(0, &far, &rows).cloned()));
        refused("index_add_scaled", read(t.index_add_scaled(0, &far, &rows, 2)));
        refused("index_copy", read(t.index_copy(0, &far, &rows)));
        refused("index_copy_", read(t.copy()?.index_copy_(0, &far, &rows).cloned()));
        refused("index_fill", read(t.index_fill(0, &far, 2)));
        refused("index_fill_", read(t.copy()?.index_fill_(0, &far, 2).cloned()));
        refused("index_put", read(t.index_put(&[Some(&far)], &rows, ())));
        refused("index_put", read(t.index_put(&[Some(&far)], &rows, true)));
        refused("index", read(t.index(&[Some(&far)])));
        refused("scatter", read(t.scatter(0, &wide, 1)));
        refused("scatter_", read(t.copy()?.scatter_(0, &wide, 1).cloned()));
        refused("scatter_add", read(t.scatter_add(0, &wide, &rows)));
        let sum = warpline::ScatterReduce::Sum;
        refused("scatter_reduce", read(t.scatter_reduce(0, &wide, &rows, sum, true)));
        refused("one_hot", read(functional::one_hot(&far, 3)));
        refused("embedding", read(functional::embedding(&far, &t, ())));
        let nll = NLLLossOptions::default();
        refused("nll_loss", read(functional::nll_loss(&t, &far, nll)));
        let weights = ones([3], at)?;
        let weighted = nll.weight(&weights);
        refused("nll_loss", read(functional::nll_loss(&t, &far, weighted)));
        let plain = CrossEntropyLossOptions::default();
        refused("cross_entropy", read(functional::cross_entropy(&t, &far, plain)));
        let smooth = plain.label_smoothing(0.1);
        refused("cross_entropy", read(functional::cross_entropy(&t, &far, smooth)));
        Ok(())
    })
}

#[test]
fn functions_that_consist_of_others_fail_under_their_own_names() -> Result<()> {
    everywhere(|at| {
        let (t, ints) = (ones([2, 3], at)?, ones([2, 3], (DType::I64, at))?);
        let (image, kernel) = (ones([1, 2, 4, 4], at)?, ones([2, 2, 3, 3], at)?);
        refused("multinomial", ints.multinomial(1, true));
        refused("multinomial", t.multinomial(0, true));
        refused("multinomial", t.multinomial(4, ()));
        refused("multinomial", ones([2, 2, 2], at)?.multinomial(1, true));
        let plain = ConvOptions::default();
        let (wide, deep) = (kernel.to(DType::F64)?, ones([2, 3, 3, 3], at)?);
        let (image_ints, kernel_ints) = (image.to(DType::I64)?, kernel.to(DType::I64)?);
        refused("conv2d", functional::conv2d(&image, &wide, None, plain));
        refused("conv2d", functional::conv2d(&image_ints, &kernel_ints, None, plain));
        refused("conv2d", functional::conv2d(&image, &deep, None, plain));
        let pool = MaxPoolOptions::default();
        refused("max_pool2d", functional::max_pool2d(&image, [9, 9], pool));
        refused("mse_loss", functional::mse_loss(&t, &ones([4], at)?, Reduction::Mean));
        refused("mse_loss", functional::mse_loss(&t, &t, Reduction::BatchMean));
        refused("kl_div", functional::kl_div(&t, &ones([4], at)?, Reduction::Sum));
        refused("linear", functional::linear(&t, &ones([2, 4], at)?, None));
        let weight = ones([2, 3], at)?;
        for bias in [ones([2], (DType::F64, at))?, ones([3], at)?, ones([3, 2, 2], at)?] {
            refused("linear", functional::linear(&t, &weight, &bias));
        }
        let out = functional::linear(&t, &weight, &ones([1], at)?)?;
        assert_eq!(out.to_vec::<f32>()?, [4.0; 4]);
        refused("one_hot", functional::one_hot(&t, 2));
        Ok(())
    })
}

/// A function whose backward pass multiplies by a matrix of a wrong size.
struct Misfit;

impl Function for Misfit {
    const NAME: &'static str = "misfit";

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![inputs[0].mul(1)?])
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let grad = grads[0].clone().expect("a gradient");
        Ok([Some(grad.matmul(&grad.narrow(0, 0, 1)?)?)].into_iter().collect())
    }
}

#[test]
fn a_gradient_fails_under_the_name_and_at_the_line_of_its_op() -> Result<()> {
    everywhere(|at| {
        let x = ones([2, 2], at)?.requires_grad_(true)?;
        let y = Misfit.apply(&[&x])?.remove(0).sum(())?;
        let error = y.backward().expect_err("it does not fit");
        let text = error.to_string();
        assert!(text.starts_with("misfit: its gradient failed: matmul: "), "{text}");
        let at = error.location().expect("a line");
        assert!(at.file().ends_with("messages_composites.rs"), "{text}");
        Ok(())
    })
}

/// There is no memory for the gradient of `exp`.
#[test]
fn a_gradient_without_memory_names_its_op_and_no_line_of_ours() -> Result<()> {
    let runtime = warpline::open("sim:1,memory=64MiB", &warpline::RuntimeConfig::default())?;
    with_runtime(&runtime, || {
        let x = ones([1 << 20, 1], "cuda")?.requires_grad_(true)?;
        let y = x.expand([1isize << 20, 8])?.exp()?;
        let error = y.sum(())?.backward().err();
        let Some(error) = error else { panic!("there is memory for the gradient") };
        let text = error.to_string();
        let at = error.location().expect("a line");
        assert!(at.file().ends_with("messages_composites.rs"), "{text}");
        Ok(())
    })
}

#[test]
fn passes_fail_under_their_own_names() -> Result<()> {
    everywhere(|at| {
        let x = ones([2], at)?.requires_grad_(true)?;
        refused("backward", x.mul(2)?.backward());
        refused("backward", ones([], at)?.backward());
        let (y, options) = (x.sum(())?, GradOptions::default());
        refused("grad", autograd::grad(&[&y], &[&ones([2], at)?], options));
        let other = ones([2], at)?.requires_grad_(true)?;
        refused("grad", autograd::grad(&[&x.sum(())?], &[&other], options));
        refused("requires_grad_", ones([2], (DType::I64, at))?.requires_grad_(true));
        refused("set_grad", x.set_grad(&ones([3], at)?));
        refused("register_hook", ones([2], at)?.register_hook(|_| Ok(None)));
        let hook = x.register_hook(|grad| grad.unsqueeze(0).map(Some))?;
        let text = refused("backward", x.sum(())?.backward());
        assert!(text.contains("a hook returned"), "{text}");
        hook.remove();
        refused("add_", x.add_(1));
        no_grad(|| x.add_(1).map(drop))
    })
}

#[test]
fn a_moved_leaf_within_a_checkpoint_is_refused_at_the_line_of_the_checkpoint() -> Result<()> {
    everywhere(|at| {
        let x = ones([2], at)?.requires_grad_(true)?;
        let weight = ones([2], at)?.requires_grad_(true)?;
        let own = weight.clone();
        let call = move |x: &[Tensor]| Ok(vec![x[0].mul(&own)?]);
        let (y, line) = (autograd::checkpoint(call, &[&x])?.remove(0).sum(())?, line!());
        let new = zeros([2], at)?.requires_grad_(true)?;
        autograd::mark_moved(&weight, &new, "layers.0.weight");
        let error = y.backward().expect_err("the weight was moved");
        assert!(
            matches!(error.kind(), ErrorKind::Moved { name, .. } if &**name == "layers.0.weight")
        );
        let at = error.location().expect("a line");
        assert!(at.file().ends_with("messages_composites.rs"), "{error}");
        assert_eq!(at.line(), line, "{error}");
        Ok(())
    })
}

/// On a GPU, the backward pass runs before the failure of the forward pass is reported, and its
/// kernels check the same index.
#[test]
fn an_index_out_of_range_names_the_forward_call_after_a_pass() -> Result<()> {
    with_runtime(&simulated(1)?, index_failures_after_a_pass)
}

fn index_failures_after_a_pass() -> Result<()> {
    let far = tensor([7i64, 0], "cuda")?;
    let table = ones([2, 3], "cuda")?.requires_grad_(true)?;
    let grad = |result: Tensor| -> Result<Vec<f64>> {
        result.sum(())?.backward()?;
        read(Ok(table.grad().expect("a gradient")))
    };
    let plain = CrossEntropyLossOptions::default();
    refused("embedding", grad(functional::embedding(&far, &table, ())?));
    table.set_grad(None)?;
    refused("index_select", grad(table.index_select(0, &far)?));
    table.set_grad(None)?;
    refused("take", grad(table.take(&far)?));
    table.set_grad(None)?;
    refused("cross_entropy", grad(functional::cross_entropy(&table, &far, plain)?));
    table.set_grad(None)?;
    let nll = NLLLossOptions::default();
    refused("nll_loss", grad(functional::nll_loss(&table, &far, nll)?));
    table.set_grad(None)?;
    let wide = tensor([[7i64, 0, 0]], "cuda")?;
    refused("take_along_dim", grad(table.take_along_dim(&wide, 0)?));
    table.set_grad(None)?;
    let next = table.add(1)?;
    // The calls' results were never read, so `synchronize` reports a failure: the first one.
    // All others then count as reported.
    let error = cuda::synchronize(()).expect_err("failures that were not reported").to_string();
    assert!(error.starts_with("embedding: "), "{error}");
    cuda::synchronize(())?;
    assert_eq!(read(Ok(next))?, [2.0; 6]);
    Ok(())
}

/// A function whose backward pass selects rows.
struct Rows;

impl Function for Rows {
    const NAME: &'static str = "rows";

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![inputs[0].copy()?])
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let grad = grads[0].as_ref().expect("a gradient");
        let far = tensor([7i64], grad.device())?;
        refused("index_select", read(grad.index_select(0, &far)));
        Ok([Some(grad.clone())].into_iter().collect())
    }
}

#[test]
fn ops_of_the_program_in_a_gradient_name_their_own_calls() -> Result<()> {
    everywhere(|at| {
        let x = ones([2], at)?.requires_grad_(true)?;
        Rows.apply(&[&x])?.remove(0).sum(())?.backward()?;
        let far = tensor([7i64, 0], at)?;
        let table = ones([2, 3], at)?.requires_grad_(true)?;
        let again = autograd::checkpoint(
            move |x: &[Tensor]| {
                refused("embedding", read(functional::embedding(&far, &x[0], ())));
                Ok(vec![x[0].mul(2)?])
            },
            &[&table],
        )?;
        again[0].sum(())?.backward()
    })
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_composed_functions_and_gradients_fail_under_their_own_names() {
    on_gpu(&[
        // First, because it expects that no earlier failure is left for `synchronize`.
        index_failures_after_a_pass,
        indices_out_of_range_name_the_function_that_was_called,
        functions_that_consist_of_others_fail_under_their_own_names,
        a_gradient_fails_under_the_name_and_at_the_line_of_its_op,
        passes_fail_under_their_own_names,
        a_moved_leaf_within_a_checkpoint_is_refused_at_the_line_of_the_checkpoint,
        ops_of_the_program_in_a_gradient_name_their_own_calls,
    ]);
}

#[test]
fn errors_of_arguments_name_the_limits_and_the_right_call() -> Result<()> {
    everywhere(|at| {
        let says = |text: String, said: &str| assert!(text.contains(said), "{text}");
        let image = ones([1, 3, 4, 4], at)?;
        let text = refused("t", image.t());
        says(text, "`m_t()` transposes the last two, and `transpose(a, b)` any two");
        let (reflect, circular) = (functional::PadMode::Reflect, functional::PadMode::Circular);
        let text = refused("pad", functional::pad(&image, (4, 0), reflect));
        says(text, "of size 4 cannot be padded by 4 and 0; a reflected pad must be smaller");
        let text = refused("pad", functional::pad(&image, (0, 5), circular));
        says(text, "cannot be padded by 0 and 5; a circular pad can be at most the size");
        let (w, groups) = (ones([4, 1, 1, 1], at)?, ConvOptions::new().groups(3));
        let text = refused("conv2d", functional::conv2d(&image, &w, None, groups));
        says(text, "3 groups do not divide the 4 outputs of a weight of [4, 1, 1, 1]");
        let w = ones([6, 2, 1, 1], at)?;
        let text = refused("conv2d", functional::conv2d(&image, &w, None, groups));
        says(text, "expects 6 channels, but the input of [1, 3, 4, 4] has 3");
        let (floats, w) = (ones([2], at)?, ones([3, 2], at)?);
        let text = refused("embedding", functional::embedding(&floats, &w, ()));
        says(text, "torch.int64");
        Ok(())
    })
}

#[test]
fn images_are_scaled_by_integers() -> Result<()> {
    let image = ones([1, 1, 2, 2], ())?;
    let size = |options| {
        Ok::<_, warpline::Error>(functional::interpolate(&image, options)?.size().to_vec())
    };
    let options = functional::InterpolateOptions::new;
    assert_eq!(size(options().scale_factor(2))?, [1, 1, 4, 4]);
    assert_eq!(size(options().scale_factor(3usize))?, [1, 1, 6, 6]);
    assert_eq!(size(options().scale_factor([1, 2]))?, [1, 1, 2, 4]);
    assert_eq!(size(options().scale_factor(1.5))?, [1, 1, 3, 3]);
    let negative = options().scale_factor(-1);
    let text = refused("interpolate", functional::interpolate(&image, negative));
    assert!(text.contains("must be positive"), "{text}");
    Ok(())
}
