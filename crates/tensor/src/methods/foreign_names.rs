//! Names that users of other libraries try. Calls do not compile, and the compiler's message names the right call.

use crate::{Result, Tensor};

macro_rules! foreign_names {
    ($($hint:ident $name:literal $call:literal;)*) => {$(
        #[doc(hidden)]
        #[diagnostic::on_unimplemented(
            message = $name,
            label = $call
        )]
        pub trait $hint {}
    )*};
}

foreign_names! {
    FunctionZeros "there is no `Tensor::zeros`" "call the function `warpline::zeros(sizes, options)`";
    FunctionOnes "there is no `Tensor::ones`" "call the function `warpline::ones(sizes, options)`";
    FunctionTensor "there is no `Tensor::new`" "call the function `warpline::tensor(data, options)`";
    ToDType "tensors have no `to_dtype`" "call `to(dtype)`";
    ToDevice "tensors have no `to_device`" "call `to(device)`";
}

#[doc(hidden)]
impl Tensor {
    pub fn zeros<S: FunctionZeros, O>(_sizes: S, _options: O) -> Result<Self> {
        unreachable!("no type implements the bound")
    }

    pub fn ones<S: FunctionOnes, O>(_sizes: S, _options: O) -> Result<Self> {
        unreachable!("no type implements the bound")
    }

    pub fn new<D: FunctionTensor, O>(_data: D, _options: O) -> Result<Self> {
        unreachable!("no type implements the bound")
    }

    pub fn to_dtype<D: ToDType>(&self, _dtype: D) -> Result<Self> {
        unreachable!("no type implements the bound")
    }

    pub fn to_device<D: ToDevice>(&self, _device: D) -> Result<Self> {
        unreachable!("no type implements the bound")
    }
}
