//! Sequences of modules.

use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Index, IndexMut};

use warpline::{CallScope, Error, Result, Tensor};

#[cfg(doc)]
use warpline::ErrorKind;

use super::dict::check_name;
use crate::{Forward, Hooked, Module, Visitor, VisitorMut};

/// A module that maps a tensor to a tensor, as an element of [`Sequential`]. Implemented for every such module that is
/// `Clone`, `Send` and `Sync`.
pub trait Layer: Module + Send + Sync {
    /// Returns a clone that shares parameters and buffers.
    fn boxed_clone(&self) -> Box<dyn Layer>;

    /// Calls [`Forward::forward`] without the caller's location, which the inherent `forward` restores.
    #[doc(hidden)]
    fn forward_boxed(&self, x: Tensor) -> Result<Tensor>;
}

impl<M> Layer for M
where
    M: Module + Forward<Tensor, Output = Tensor> + Clone + Send + Sync + 'static,
{
    fn boxed_clone(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }

    fn forward_boxed(&self, x: Tensor) -> Result<Tensor> {
        self.forward(x)
    }
}

impl dyn Layer {
    /// Computes the output. The method belongs to the trait object and not to the trait, so that an error names the
    /// caller's line.
    ///
    /// # Errors
    /// The errors of [`Forward::forward`] of the layer.
    #[track_caller]
    pub fn forward(&self, x: impl Borrow<Tensor>) -> Result<Tensor> {
        let _call = CallScope::trait_object(file!());
        self.forward_boxed(x.borrow().clone())
    }

    /// Returns `true` if the type of the layer, or of the layer that it wraps (in a `Box` or a `Hooked`), is `M`
    /// (`isinstance`).
    #[must_use]
    pub fn is<M: Module>(&self) -> bool {
        (self as &dyn Module).is::<M>()
    }

    /// Returns the layer, or the layer that it wraps (in a `Box` or a `Hooked`), if its type is `M`.
    #[must_use]
    pub fn downcast_ref<M: Module>(&self) -> Option<&M> {
        (self as &dyn Module).downcast_ref()
    }

    /// Returns the layer, or the layer that it wraps (in a `Box` or a `Hooked`), if its type is `M`.
    #[must_use]
    pub fn downcast_mut<M: Module>(&mut self) -> Option<&mut M> {
        (self as &mut dyn Module).downcast_mut()
    }
}

impl Clone for Box<dyn Layer> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

/// A boxed layer is a layer, so that a program can choose layers while it runs.
impl Forward<Tensor> for Box<dyn Layer> {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        (**self).forward(x)
    }
}

/// A sequence of modules: the output of each module is the input of the next (`torch.nn.Sequential`).
///
/// ```
/// use warpline_nn::{Linear, ReLU, Sequential};
///
/// let net = Sequential::new().with(Linear::new(4, 8, ())?).with(ReLU).with(Linear::new(8, 2, ())?);
/// assert_eq!(net.forward(&warpline::ones([3, 4], ())?)?.size(), [3, 2]);
///
/// // Elements are found by their index, and their types are tested as by `isinstance`.
/// let first: &Linear = net[0].downcast_ref().expect("a linear map");
/// assert_eq!(first.weight.size(), [8, 4]);
/// assert_eq!(net.iter().filter(|layer| layer.is::<Linear>()).count(), 2);
///
/// let tree = "\
/// Sequential(
///   (0): Linear(in_features=4, out_features=8, bias=True)
///   (1): ReLU()
///   (2): Linear(in_features=8, out_features=2, bias=True)
/// )";
/// assert_eq!(net.to_string(), tree);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// Elements can have names instead of their indices (the `OrderedDict` argument):
///
/// ```
/// use warpline_nn::{Linear, Module, ReLU, Sequential};
///
/// let net = Sequential::new().with_named("fc", Linear::new(4, 8, ())?)?.with_named("act", ReLU)?;
/// assert_eq!(net.state_dict().keys().collect::<Vec<_>>(), ["fc.weight", "fc.bias"]);
/// assert!(net["fc"].is::<Linear>() && net[0].is::<Linear>());
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// Each element is [`Hooked`]: `net[1].register_forward_hook(…)` calls a function with each output of that element.
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<Hooked<Box<dyn Layer>>>,
    /// Names by index. An element without an entry has its index as its name.
    names: BTreeMap<usize, String>,
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
        self.layers.push(Hooked::new(Box::new(layer)));
    }

    /// Appends a module with a name, and returns the sequence.
    ///
    /// # Errors
    /// The same as [`Sequential::push_named`].
    #[track_caller]
    pub fn with_named(mut self, name: &str, layer: impl Layer + 'static) -> Result<Self> {
        self.push_named(name, layer)?;
        Ok(self)
    }

    /// Appends a module with a name (`add_module`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the name is empty, contains a dot, is a number (numbers are reserved for
    /// elements without a name), or is the name of another element.
    #[track_caller]
    pub fn push_named(&mut self, name: &str, layer: impl Layer + 'static) -> Result<()> {
        check_name("Sequential", name)?;
        if name.parse::<usize>().is_ok() {
            let reason = format!(
                "the name `{name}` is a number; numbers are reserved for elements without a name"
            );
            return Err(Error::invalid("Sequential", reason));
        }
        if self.get_named(name).is_some() {
            let reason = format!("another element has the name `{name}`");
            return Err(Error::invalid("Sequential", reason));
        }
        self.names.insert(self.len(), name.to_owned());
        self.push(layer);
        Ok(())
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

    /// Returns the module at an index. `None` if there are fewer modules.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Hooked<Box<dyn Layer>>> {
        self.layers.get(index)
    }

    /// Returns the module that was added with a name.
    #[must_use]
    pub fn get_named(&self, name: &str) -> Option<&Hooked<Box<dyn Layer>>> {
        self.get(self.index_of(name)?)
    }

    /// Returns the index of the module that was added with a name.
    fn index_of(&self, name: &str) -> Option<usize> {
        self.names.iter().find(|(_, other)| *other == name).map(|(index, _)| *index)
    }

    /// Iterates over the modules.
    pub fn iter(&self) -> std::slice::Iter<'_, Hooked<Box<dyn Layer>>> {
        self.layers.iter()
    }

    /// Iterates over the modules, by mutable reference.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Hooked<Box<dyn Layer>>> {
        self.layers.iter_mut()
    }

    /// Applies the modules in order.
    ///
    /// # Errors
    /// The errors of [`Forward::forward`] of the first module that fails.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(x)?;
        }
        Ok(x)
    }
}

/// Makes a sequence of elements of other sequences, which it shares (`nn.Sequential(*list(net.children())[:-1])`). Their
/// names are the new indices.
///
/// ```
/// use warpline_nn::{Linear, ReLU, Sequential};
///
/// let net = Sequential::new().with(Linear::new(4, 8, ())?).with(ReLU).with(Linear::new(8, 2, ())?);
/// let features: Sequential = net.iter().take(2).cloned().collect();
/// assert_eq!(features.forward(&warpline::ones([3, 4], ())?)?.size(), [3, 8]);
/// # Ok::<(), warpline::Error>(())
/// ```
impl FromIterator<Hooked<Box<dyn Layer>>> for Sequential {
    fn from_iter<I: IntoIterator<Item = Hooked<Box<dyn Layer>>>>(layers: I) -> Self {
        Self { layers: layers.into_iter().collect(), names: BTreeMap::new() }
    }
}

/// Makes a sequence of boxed layers, whose types may differ.
impl FromIterator<Box<dyn Layer>> for Sequential {
    fn from_iter<I: IntoIterator<Item = Box<dyn Layer>>>(layers: I) -> Self {
        layers.into_iter().map(Hooked::new).collect()
    }
}

/// # Panics
/// If there are fewer modules. [`Sequential::get`] returns `None` instead.
impl Index<usize> for Sequential {
    type Output = Hooked<Box<dyn Layer>>;

    #[track_caller]
    fn index(&self, index: usize) -> &Self::Output {
        &self.layers[index]
    }
}

/// # Panics
/// If no module was added with the name. [`Sequential::get_named`] returns `None` instead.
impl Index<&str> for Sequential {
    type Output = Hooked<Box<dyn Layer>>;

    #[track_caller]
    fn index(&self, name: &str) -> &Self::Output {
        // A panic in a closure would name this file instead of the caller's line.
        let Some(layer) = self.get_named(name) else { panic!("no element has the name `{name}`") };
        layer
    }
}

/// # Panics
/// If no module was added with the name.
impl IndexMut<&str> for Sequential {
    #[track_caller]
    fn index_mut(&mut self, name: &str) -> &mut Self::Output {
        let Some(index) = self.index_of(name) else { panic!("no element has the name `{name}`") };
        &mut self.layers[index]
    }
}

/// # Panics
/// If there are fewer modules.
impl IndexMut<usize> for Sequential {
    #[track_caller]
    fn index_mut(&mut self, index: usize) -> &mut Self::Output {
        &mut self.layers[index]
    }
}

impl<'a> IntoIterator for &'a Sequential {
    type Item = &'a Hooked<Box<dyn Layer>>;
    type IntoIter = std::slice::Iter<'a, Hooked<Box<dyn Layer>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Sequential {
    type Item = &'a mut Hooked<Box<dyn Layer>>;
    type IntoIter = std::slice::IterMut<'a, Hooked<Box<dyn Layer>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

/// The name of a member is its name in the sequence, or its index.
impl Module for Sequential {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        for (i, layer) in self.layers.iter().enumerate() {
            visitor.member(&member_name(&self.names, i), layer);
        }
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            visitor.member(&member_name(&self.names, i), layer);
        }
    }
}

/// Returns the name of element `index`.
fn member_name(names: &BTreeMap<usize, String>, index: usize) -> Cow<'_, str> {
    match names.get(&index) {
        Some(name) => name.into(),
        None => index.to_string().into(),
    }
}

impl Forward<Tensor> for Sequential {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.forward(&x)
    }
}

/// Writes the tree of modules.
impl fmt::Display for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module: &dyn Module = self;
        fmt::Display::fmt(module, f)
    }
}

/// Writes the tree of modules.
impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
