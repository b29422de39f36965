//! Modules: parameters that move together (`torch.nn`).

mod activation;
mod linear;
mod rnn;
mod sequential;

use std::panic::Location;

pub use activation::ReLU;
pub use linear::Linear;
pub use rnn::RnnCell;
pub use sequential::{Layer, Sequential};

use crate::called::Called as _;
use crate::{Error, Result, Tensor, TensorOptions};

/// Something with parameters (`torch.nn.Module`).
pub trait Module {
    /// Visits every parameter with its name, in a fixed order.
    ///
    /// # Errors
    /// The first that `visit` returns.
    fn visit_parameters(
        &mut self,
        visit: &mut dyn FnMut(&str, &mut Tensor) -> Result<()>,
    ) -> Result<()>;

    /// Visits every buffer with its name, in a fixed order: tensors that belong to the module but
    /// are not learned, such as a running mean. By default there are none.
    ///
    /// # Errors
    /// The first that `visit` returns.
    #[track_caller]
    fn visit_buffers(
        &mut self,
        visit: &mut dyn FnMut(&str, &mut Tensor) -> Result<()>,
    ) -> Result<()> {
        let _ = visit;
        Ok(())
    }

    /// Moves every parameter and buffer to a device; floats to a dtype, and those of as many dimensions to
    /// a memory format (`Module.to`). What is as asked for stays. When one cannot be moved, none is.
    ///
    /// # Errors
    /// As [`Tensor::to`].
    #[track_caller]
    fn to(&mut self, options: impl Into<TensorOptions>) -> Result<()>
    where
        Self: Sized,
    {
        let options = options.into();
        if let Some(dtype) = options.requested_dtype()
            && !dtype.is_float()
        {
            let reason = format!("a module's dtype is that of a float, not {dtype}");
            return Err(Error::invalid("Module::to", reason));
        }
        options.requested_device().of("Module::to")?;
        let location = Location::caller();
        let mut moved = Vec::new();
        let mut moves = |_: &str, tensor: &mut Tensor| {
            let new = tensor.to(options.for_tensor(tensor));
            moved.push(new.map_err(|e| e.of("Module::to").at(location))?);
            Ok(())
        };
        self.visit_parameters(&mut moves)?;
        self.visit_buffers(&mut moves)?;
        let mut moved = moved.into_iter();
        let mut puts = |_: &str, tensor: &mut Tensor| {
            if let Some(new) = moved.next() {
                *tensor = new;
            }
            Ok(())
        };
        self.visit_parameters(&mut puts)?;
        self.visit_buffers(&mut puts)
    }

    /// Puts every parameter into memory that other processes can have, and which
    /// `warpline::multiprocessing` carries to them. When one cannot be, none is.
    ///
    /// # Errors
    /// As [`Tensor::share_memory`]; [`Error::CannotShare`] of a module on the host, which could not be
    /// used any more.
    #[track_caller]
    fn share_memory(&mut self) -> Result<()> {
        let mut shared = Vec::new();
        self.visit_parameters(&mut |_, parameter| {
            if !parameter.is_cuda() {
                let reason = "a parameter is on the host, where ops on shared memory are refused; \
                              move the module to a GPU first, or share tensors one by one";
                return Err(Error::CannotShare {
                    location: Location::caller(),
                    op: "share_memory",
                    reason: reason.into(),
                });
            }
            shared.push(parameter.share_memory()?);
            Ok(())
        })?;
        let mut shared = shared.into_iter();
        self.visit_parameters(&mut |_, parameter| {
            if let Some(new) = shared.next() {
                *parameter = new;
            }
            Ok(())
        })
    }

    /// Every parameter, in the order of [`Module::visit_parameters`].
    fn parameters(&mut self) -> Vec<Tensor> {
        let mut all = Vec::new();
        // Collecting cannot fail.
        let _ = self.visit_parameters(&mut |_, parameter| {
            all.push(parameter.clone());
            Ok(())
        });
        all
    }

    /// Every buffer, in the order of [`Module::visit_buffers`].
    fn buffers(&mut self) -> Vec<Tensor> {
        let mut all = Vec::new();
        // Collecting cannot fail.
        let _ = self.visit_buffers(&mut |_, buffer| {
            all.push(buffer.clone());
            Ok(())
        });
        all
    }
}

/// What a module computes, where others are to call it: `DataParallel`, [`Sequential`]. Several
/// inputs are a tuple.
pub trait Forward<Input> {
    /// What comes out.
    type Output;

    /// Computes the output. It takes `&self`: a buffer is updated in place.
    ///
    /// # Errors
    /// Whatever the module's ops fail with.
    fn forward(&self, input: Input) -> Result<Self::Output>;
}
