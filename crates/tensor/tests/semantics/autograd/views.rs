//! Tests of gradients through views.

use warpline::autograd::{BackwardOptions, GradcheckOptions, gradcheck, gradgradcheck};
use warpline::{DType, Result, Tensor, arange};

use crate::common;

/// Applies `view` to a 3 × 4 matrix of 0, 1, …, and returns the gradient of the sum of squares of
/// the result. The gradient of a viewed element is twice the element.
fn through(view: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<f64>> {
    let x = arange(12, DType::F64)?.view([3, 4])?.requires_grad_(true)?;
    view(&x)?.square()?.sum(())?.backward()?;
    x.grad().unwrap().to_vec()
}

#[test]
fn each_viewed_element_has_its_gradient() {
    common::cpu(|_| {
        let all: Vec<f64> = (0..12).map(|v| f64::from(2 * v)).collect();
        let at = |shown: &[usize]| -> Vec<f64> {
            (0..12).map(|i| if shown.contains(&i) { all[i] } else { 0.0 }).collect()
        };
        assert_eq!(through(|x| x.transpose(0, 1))?, all);
        assert_eq!(through(|x| x.t()?.unsqueeze(0)?.permute([2, 0, 1]))?, all);
        assert_eq!(through(|x| x.t()?.reshape([6, 2]))?, all);
        assert_eq!(through(|x| x.view([2, -1])?.flatten((0, 1)))?, all);
        assert_eq!(through(|x| x.unsqueeze(1)?.squeeze(1))?, all);
        assert_eq!(through(|x| x.narrow(1, 1, 2))?, at(&[1, 2, 5, 6, 9, 10]));
        assert_eq!(through(|x| x.select(0, -1))?, at(&[8, 9, 10, 11]));
        assert_eq!(through(|x| x.slice(1, .., 3))?, at(&[0, 3, 4, 7, 8, 11]));
        assert_eq!(through(|x| x.i((1.., 2)))?, at(&[6, 10]));
        let tripled: Vec<f64> = all.iter().map(|v| 3.0 * v).collect();
        assert_eq!(through(|x| x.unsqueeze(0)?.expand([3, 3, 4]))?, tripled);
        Ok(())
    });
}

/// Returns the gradient of the sum of squares of the parts `used` of a 3 × 4 matrix of 0, 1, …, and
/// the text of the first part. The gradient of an element in one of these parts is twice the element.
fn of_parts(
    parts: impl Fn(&Tensor) -> Result<Vec<Tensor>>,
    used: &[usize],
) -> Result<(Vec<f64>, String)> {
    let x = arange(12, DType::F64)?.view([3, 4])?.requires_grad_(true)?;
    let parts = parts(&x)?;
    for &i in used {
        parts[i].square()?.sum(())?.backward_with(BackwardOptions::new().retain_graph(true))?;
    }
    let printed = format!("{}", parts[0]);
    Ok((x.grad().unwrap().to_vec()?, printed))
}

#[test]
fn parts_of_a_split_share_its_gradient() {
    common::cpu(|_| {
        let at = |shown: &[usize]| -> Vec<f64> {
            (0..12).map(|i| if shown.contains(&i) { 2.0 * i as f64 } else { 0.0 }).collect()
        };
        let (grads, printed) = of_parts(|x| x.split(3, 1), &[1])?;
        assert_eq!(grads, at(&[3, 7, 11]));
        assert!(printed.contains("grad_fn=<SplitBackward0>"), "{printed}");
        let (grads, _) = of_parts(|x| x.chunk(2, 0), &[0, 1])?;
        assert_eq!(grads, at(&(0..12).collect::<Vec<_>>()));
        let (grads, _) = of_parts(|x| x.split_with_sizes(&[1, 0, 3], 1), &[0, 1])?;
        assert_eq!(grads, at(&[0, 4, 8]));
        let (grads, printed) = of_parts(|x| x.unbind(1), &[2])?;
        assert_eq!(grads, at(&[2, 6, 10]));
        assert!(printed.contains("grad_fn=<UnbindBackward0>"), "{printed}");
        let (grads, _) = of_parts(|x| x.tensor_split_at([1, 3], 1), &[0, 2])?;
        assert_eq!(grads, at(&[0, 3, 4, 7, 8, 11]));
        // Overlapping parts: columns 0 to 2, no columns, and columns 1 to 3.
        let (grads, _) = of_parts(|x| x.tensor_split_at([3, 1], 1), &[0, 2])?;
        let twice: Vec<f64> =
            (0..12).map(|i| if i % 4 == 1 || i % 4 == 2 { 2.0 } else { 1.0 }).collect();
        assert_eq!(grads, (0..12).map(|i| 2.0 * i as f64 * twice[i]).collect::<Vec<_>>());
        // Gradients of gradients of products of different parts.
        let x = arange(12, DType::F64)?.view([3, 4])?.requires_grad_(true)?;
        let cross = |x: &[Tensor]| {
            let rows = x[0].unbind(0)?;
            let columns = x[0].split(2, 1)?;
            Ok(vec![rows[0].mul(&rows[2])?, columns[0].mul(&columns[1])?])
        };
        let inputs = std::slice::from_ref(&x);
        gradcheck(cross, inputs, GradcheckOptions::default())?;
        gradgradcheck(cross, inputs, GradcheckOptions::default())?;
        // Changing one part in place changes the gradient of its own elements only.
        let y = x.mul(1)?;
        let parts = y.split(2, 1)?;
        parts[0].mul_(3)?;
        x.set_grad(None)?;
        y.sum(())?.backward()?;
        let thrice: Vec<f64> = (0..12).map(|i| if i % 4 < 2 { 3.0 } else { 1.0 }).collect();
        assert_eq!(x.grad().unwrap().to_vec::<f64>()?, thrice);
        Ok(())
    });
}
