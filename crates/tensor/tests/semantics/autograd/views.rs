//! Gradients through views.

use warpline::{DType, Result, Tensor, arange};

use crate::common;

/// The gradient of the sum of squares of a view of 0, 1, … in 3 × 4, twice what the view shows.
fn through(view: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<f64>> {
    let x = arange(12, DType::F64)?.view([3, 4])?.requires_grad_(true)?;
    view(&x)?.square()?.sum(())?.backward()?;
    x.grad().unwrap().to_vec()
}

#[test]
fn each_element_that_is_shown_has_its_gradient() {
    common::cpu(|_| {
        let all: Vec<f64> = (0..12).map(|v| f64::from(2 * v)).collect();
        let at = |shown: &[usize]| -> Vec<f64> {
            (0..12).map(|i| if shown.contains(&i) { all[i] } else { 0.0 }).collect()
        };
        assert_eq!(through(|x| x.transpose(0, 1))?, all);
        assert_eq!(through(|x| x.t()?.unsqueeze(0)?.permute([2, 0, 1]))?, all);
        assert_eq!(through(|x| x.t()?.reshape([6, 2]))?, all);
        assert_eq!(through(|x| x.view([2, -1])?.flatten(0, 1))?, all);
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
