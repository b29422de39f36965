//! Sequences of modules.

use std::fmt;

use warpline::{Result, Tensor};

use crate::{Forward, Module, Visitor, VisitorMut};

/// A module that maps a tensor to a tensor, as an element of [`Sequential`]. Implemented for every such module that is
/// `Clone`, `Send` and `Sync`.
pub trait Layer: Module + Forward<Tensor, Output = Tensor> + Send + Sync {
    /// Returns a clone that shares parameters and buffers.
    fn boxed_clone(&self) -> Box<dyn Layer>;
}

impl<M> Layer for M
where
    M: Module + Forward<Tensor, Output = Tensor> + Clone + Send + Sync + 'static,
{
    fn boxed_clone(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Layer> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

/// A sequence of modules: the output of each module is the input of the next (`torch.nn.Sequential`).
///
/// ```
/// use warpline_nn::{Linear, ReLU, Sequential};
///
/// let net = Sequential::new().with(Linear::new(4, 8, ())?).with(ReLU).with(Linear::new(8, 2, ())?);
/// assert_eq!(net.forward(&warpline::ones([3, 4], ())?)?.size(), [3, 2]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

impl Sequential {
    /// Creates an empty sequence, which returns its input.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a module and returns the sequence.
    #[must_use]
    pub fn with(mut self, layer: impl Layer + 'static) -> Self {
        self.push(layer);
        self
    }

    /// Appends a module (`append`).
    pub fn push(&mut self, layer: impl Layer + 'static) {
        self.layers.push(Box::new(layer));
    }

    /// Returns the number of modules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Returns `true` if there are no modules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Applies the modules in order.
    ///
    /// # Errors
    /// The error of the first module that fails.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(x)?;
        }
        Ok(x)
    }
}

/// The name of a member is its index.
impl Module for Sequential {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        self.layers.visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.layers.visit_mut(visitor);
    }
}

impl Forward<Tensor> for Sequential {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.forward(&x)
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Writes the tree of modules.
impl fmt::Display for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module: &dyn Module = self;
        fmt::Display::fmt(module, f)
    }
}
