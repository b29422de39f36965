//! Access to the arguments of a case, by position and by name.

use serde_json::Value;
use warpline::{DType, IntoDims, Result, Tensor, TensorOrScalar};

use crate::goldens_suite::cases::{Input, bad, int};

/// The arguments of one call of an op.
pub(crate) struct Args<'a> {
    pub(crate) inputs: &'a [Input],
    pub(crate) attrs: &'a Value,
}

impl<'a> Args<'a> {
    pub(crate) fn tensor(&self, i: usize) -> Result<&'a Tensor> {
        match self.inputs.get(i) {
            Some(Input::Tensor(tensor)) => Ok(tensor),
            other => Err(bad(format!("input {i} is {other:?}, not a tensor"))),
        }
    }

    pub(crate) fn operand(&self, i: usize) -> Result<TensorOrScalar<'a>> {
        match self.inputs.get(i) {
            Some(Input::Tensor(tensor)) => Ok(tensor.into()),
            Some(Input::Scalar(scalar)) => Ok((*scalar).into()),
            other => Err(bad(format!("input {i} is {other:?}"))),
        }
    }

    pub(crate) fn list(&self, i: usize) -> Result<&'a [Tensor]> {
        match self.inputs.get(i) {
            Some(Input::List(list)) => Ok(list),
            other => Err(bad(format!("input {i} is {other:?}, not a list"))),
        }
    }

    pub(crate) fn int(&self, name: &str) -> Result<isize> {
        int(&self.attrs[name]).ok_or_else(|| bad(format!("no integer `{name}`")))
    }

    pub(crate) fn ints(&self, name: &str) -> Vec<isize> {
        self.attrs[name].as_array().into_iter().flatten().filter_map(int).collect()
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.attrs[name].as_bool().unwrap_or(false)
    }

    pub(crate) fn dtype(&self) -> Result<DType> {
        let name = self.attrs["dtype"].as_str().unwrap_or_default();
        DType::from_name(name).ok_or_else(|| bad(format!("no dtype `{name}`")))
    }

    pub(crate) fn dim(&self) -> Option<isize> {
        int(&self.attrs["dim"])
    }

    /// Returns `dim`, which may be absent, one number, or several.
    pub(crate) fn dims(&self) -> impl IntoDims + use<> {
        struct Dims(Vec<isize>);
        impl IntoDims for Dims {
            fn into_dims(self) -> smallvec::SmallVec<[isize; 6]> {
                self.0.into()
            }
        }
        match int(&self.attrs["dim"]) {
            Some(dim) => Dims(vec![dim]),
            None => Dims(self.ints("dim")),
        }
    }
}
