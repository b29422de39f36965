//! Modules one after the other.

use std::fmt;

use warpline::{Result, Tensor};

use crate::{Forward, Module, Visitor, VisitorMut};

/// A module from a tensor to a tensor, as [`Sequential`] holds it. Every such module that can be
/// cloned and sent to another thread is one.
pub trait Layer: Module + Forward<Tensor, Output = Tensor> + Send + Sync {
    /// A clone, which shares parameters and buffers.
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

/// Modules of which each has the output of the one before as its input (`torch.nn.Sequential`).
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
    /// Without modules: its output is its input.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more module at the end.
    #[must_use]
    pub fn with(mut self, layer: impl Layer + 'static) -> Self {
        self.push(layer);
        self
    }

    /// Adds a module at the end (`append`).
    pub fn push(&mut self, layer: impl Layer + 'static) {
        self.layers.push(Box::new(layer));
    }

    /// How many modules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Calls one after the other.
    ///
    /// # Errors
    /// The first that a module fails with.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(x)?;
        }
        Ok(x)
    }
}

/// Members are named by their index.
impl Module for Sequential {
    fn visit(&self, visitor: &mut Visitor<'_>) {
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
        f.debug_struct("Sequential").field("layers", &self.layers.len()).finish()
    }
}
