//! Autograd methods of tensors, and backward passes.

use std::panic::Location;

use super::engine::{self, PassOptions};
use super::meta::AutogradMeta;
use super::moved::check_not_moved;
use super::node::Edge;
#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called;
use crate::{Error, IntoOptionalTensor, IntoOptions, Result, Tensor};

impl Tensor {
    /// Sets whether gradients of this leaf are computed, and returns the tensor (`Tensor.requires_grad_`). The
    /// setting applies to all clones.
    ///
    /// ```
    /// use warpline::{randn, tensor};
    ///
    /// let weight = randn([3, 2], ())?.requires_grad_(true)?;
    /// let x = tensor([[1f32, 2.0, 3.0]], ())?;
    /// x.matmul(&weight)?.sum(())?.backward()?;
    /// assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if `requires_grad` is true and the dtype is not floating point or the tensor was made
    /// in inference mode, or if `requires_grad` is false and the tensor was computed from tensors that require a
    /// gradient (use [`Tensor::detach`]). [`ErrorKind::Moved`] if `requires_grad` is true and the tensor is a parameter
    /// whose module was moved.
    #[track_caller]
    pub fn requires_grad_(&self, requires_grad: bool) -> Result<Self> {
        let op = "requires_grad_";
        if requires_grad && !self.dtype().is_float() {
            let reason = format!(
                "only floating-point tensors can require gradients, but the dtype is {}",
                self.dtype()
            );
            return Err(Error::gradient(op, reason));
        }
        if requires_grad && self.is_inference() {
            let reason =
                "a tensor created in inference mode cannot require a gradient; use a copy of it";
            return Err(Error::gradient(op, reason));
        }
        if !self.is_leaf() {
            if requires_grad {
                return Ok(self.clone());
            }
            let reason = "the tensor was computed from tensors that require a gradient; use the result of `detach`";
            return Err(Error::gradient(op, reason));
        }
        if requires_grad {
            check_not_moved(op, self)?;
        }
        if requires_grad != self.requires_grad() {
            AutogradMeta::of(self).set_leaf(requires_grad);
        }
        Ok(self.clone())
    }

    /// Returns the gradient of this tensor (`Tensor.grad`): the gradient that [`Tensor::set_grad`] last set, plus the
    /// gradients that later backward passes have computed. `None` if there is no gradient. Backward passes store the
    /// gradients of leaves, and after [`Tensor::retain_grad`] also of other tensors.
    #[must_use]
    pub fn grad(&self) -> Option<Tensor> {
        // Does not allocate autograd state for a tensor without a gradient.
        if !self.requires_grad() && self.is_leaf() && !self.has_meta() {
            return None;
        }
        AutogradMeta::of(self).grad()
    }

    /// Sets the gradient to a handle of `grad`, or removes it if `grad` is `None` (`Tensor.grad = …`).
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if `grad` differs from this tensor in its sizes, dtype or device.
    /// [`ErrorKind::Moved`] if `grad` is a tensor and this tensor is a parameter whose module was moved.
    #[track_caller]
    pub fn set_grad<'a>(&self, grad: impl IntoOptionalTensor<'a>) -> Result<()> {
        let grad = grad.into_optional().cloned();
        if let Some(grad) = &grad
            && (grad.size() != self.size()
                || grad.dtype() != self.dtype()
                || grad.device() != self.device())
        {
            let reason = format!(
                "a gradient of shape {:?}, {} on {} does not fit a tensor of shape {:?}, {} on {}",
                grad.size(),
                grad.dtype(),
                grad.device(),
                self.size(),
                self.dtype(),
                self.device()
            );
            return Err(Error::gradient("set_grad", reason));
        }
        if grad.is_some() {
            check_not_moved("set_grad", self)?;
        }
        drop(AutogradMeta::of(self).replace_grad(grad));
        Ok(())
    }

    /// Returns a tensor on the same memory that requires no gradient and passes none on (`Tensor.detach`).
    #[must_use]
    pub fn detach(&self) -> Tensor {
        self.alias()
    }

    /// Returns the name of the node that made the tensor, such as `MulBackward0` (`Tensor.grad_fn`). `None` for
    /// a leaf.
    #[must_use]
    pub fn grad_fn(&self) -> Option<String> {
        if self.is_leaf() { None } else { self.edge().map(|edge| edge.node.title()) }
    }

    /// Computes the gradients of this tensor, which has one element, for all leaves that it was computed from
    /// and that require a gradient (`Tensor.backward`). The gradients are added to [`Tensor::grad`] of the
    /// leaves. The saved tensors of the graph are freed.
    ///
    /// The gradient of each op is computed on the stream of the op. The pass is enqueued like any op: the host
    /// does not wait, unless a gradient is copied to or from pageable memory. Later work on the thread's current
    /// streams runs after the gradients of the leaves on each stream's device.
    ///
    /// The gradients of a graph that one thread recorded are computed in the reverse order of its ops, whichever thread
    /// calls this function. If several threads recorded the graph, they are computed in the order in which they become
    /// ready. Each order is the same in every pass, but sums may be rounded differently in the two orders.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if the tensor does not have exactly one element or requires no gradient, if a former
    /// pass has freed the graph, or if a saved tensor was changed in place. [`ErrorKind::Moved`] if a leaf is a
    /// parameter whose module was moved. Errors of the gradients' ops, with the location of the forward op, and errors
    /// of hooks.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        self.backward_with(())
    }

    /// Computes gradients as [`Tensor::backward`] does. `options` is the gradient of this tensor, or
    /// [`BackwardOptions`]. With a gradient, this tensor may have several elements.
    ///
    /// ```
    /// use warpline::autograd::BackwardOptions;
    /// use warpline::tensor;
    ///
    /// let x = tensor([1f64, 2.0], ())?.requires_grad_(true)?;
    /// let y = x.square()?;
    /// y.backward_with(BackwardOptions::new().gradient(&tensor([1f64, 0.0], ())?).retain_graph(true))?;
    /// y.backward_with(&tensor([0f64, 1.0], ())?)?;
    /// assert_eq!(x.grad().unwrap().to_vec::<f64>()?, [2.0, 4.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if the tensor does not have exactly one element and no gradient is given, if the
    /// gradient has different sizes than this tensor, is not floating-point, or has dimensions and is on another
    /// device, if the tensor requires no gradient, if a former pass has freed the graph, or if a saved tensor was
    /// changed in place. [`ErrorKind::Moved`] if a leaf is a parameter whose module was moved. Errors of the gradients'
    /// ops, with the location of the forward op, and errors of hooks.
    #[track_caller]
    pub fn backward_with<'a>(&self, options: impl IntoOptions<BackwardOptions<'a>>) -> Result<()> {
        let options = options.into_options();
        let root = root("backward", self, options.gradient)?;
        engine::run("backward", Location::caller(), vec![root], None, options.pass()).map(drop)
    }
}

crate::__options! {
    /// Options of [`Tensor::backward_with`]. A reference to a tensor converts into options with that tensor as the
    /// gradient.
    #[derive(Clone, Copy, Debug)]
    BackwardOptions ['a] ['a] {
        /// Sets the gradient of the tensor itself, which has the tensor's sizes. Default: ones, which is allowed only
        /// for a tensor of one element.
        gradient: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets whether another pass can traverse the graph. Default: `false`.
        retain_graph: bool = false, bool;
        /// Sets whether the pass itself is recorded, so that gradients have gradients. Also keeps the graph. Default:
        /// `false`.
        create_graph: bool = false, bool;
    }
}

impl<'a> From<&'a Tensor> for BackwardOptions<'a> {
    fn from(gradient: &'a Tensor) -> Self {
        Self::new().gradient(gradient)
    }
}

impl BackwardOptions<'_> {
    pub(super) fn pass(&self) -> PassOptions {
        PassOptions::new(self.retain_graph, self.create_graph)
    }
}

/// Returns the edge and the gradient with which a pass begins at `tensor`.
#[track_caller]
fn root(op: &'static str, tensor: &Tensor, gradient: Option<&Tensor>) -> Result<(Edge, Tensor)> {
    let Some(edge) = tensor.edge() else {
        let reason =
            "the tensor does not require a gradient, and was not computed from a tensor that does";
        return Err(Error::gradient(op, reason));
    };
    let gradient = match gradient {
        Some(gradient) if gradient.size() == tensor.size() => start(op, tensor, gradient)?,
        Some(gradient) => {
            let (own, sizes) = (tensor.size(), gradient.size());
            let reason =
                format!("a gradient of shape {sizes:?} does not fit a tensor of shape {own:?}");
            return Err(Error::gradient(op, reason));
        }
        None if tensor.numel() == 1 => tensor.ones_like(()).of(op)?,
        None => {
            let reason = format!(
                "the gradient can be left out only for a tensor of one element, but the shape is {:?}; pass a gradient, or start from the sum",
                tensor.size()
            );
            return Err(Error::gradient(op, reason));
        }
    };
    Ok((edge, gradient))
}

/// Converts a given gradient to the dtype and the device of `tensor`.
#[track_caller]
fn start(op: &'static str, tensor: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let (dtype, device) = (gradient.dtype(), gradient.device());
    if !dtype.is_float() {
        let own = tensor.dtype();
        let reason = format!(
            "a gradient of dtype {dtype} was given for a tensor of {own}; convert it first"
        );
        return Err(Error::gradient(op, reason));
    }
    // PyTorch moves a gradient without dimensions.
    if device != tensor.device() && gradient.dim() > 0 {
        let own = tensor.device();
        let reason =
            format!("a gradient on {device} was given for a tensor on {own}; move it first");
        return Err(Error::gradient(op, reason));
    }
    gradient.to((tensor.dtype(), tensor.device())).of(op)
}

/// Returns the edges and the gradients with which a pass begins at `tensors`.
#[track_caller]
fn roots(
    op: &'static str,
    tensors: &[&Tensor],
    gradients: &[Option<&Tensor>],
) -> Result<Vec<(Edge, Tensor)>> {
    if !gradients.is_empty() && gradients.len() != tensors.len() {
        let (given, own) = (gradients.len(), tensors.len());
        let reason = format!(
            "{given} gradients were given for {own} tensors; give one for each, or none at all"
        );
        return Err(Error::gradient(op, reason));
    }
    let mut roots = Vec::with_capacity(tensors.len());
    for (i, tensor) in tensors.iter().enumerate() {
        roots.push(root(op, tensor, gradients.get(i).copied().flatten())?);
    }
    Ok(roots)
}

crate::__options! {
    /// Options of [`grad`].
    #[derive(Clone, Copy, Debug)]
    GradOptions ['a] ['a] {
        /// Sets the gradients of the outputs: one for each output, or none at all. `None` means ones, which is allowed
        /// only for an output of one element. Default: none.
        grad_outputs: &'a [Option<&'a Tensor>] = &[], &'a [Option<&'a Tensor>];
        /// Sets whether the graph is kept for another pass. Default: `false`.
        retain_graph: bool = false, bool;
        /// Sets whether the pass itself is recorded, so that its results have gradients. Also keeps the graph. Default:
        /// `false`.
        create_graph: bool = false, bool;
        /// Sets whether an input that the outputs do not depend on gives `None` instead of an error. Default: `false`.
        allow_unused: bool = false, bool;
    }
}

crate::__options! {
    /// Options of [`backward`].
    #[derive(Clone, Copy, Debug)]
    BackwardTensorsOptions ['a] ['a] {
        /// Sets the gradients of the tensors: one for each tensor, or none at all. `None` means ones, which is allowed
        /// only for a tensor of one element. Default: none.
        grad_tensors: &'a [Option<&'a Tensor>] = &[], &'a [Option<&'a Tensor>];
        /// Sets whether another pass can traverse the graph. Default: `false`.
        retain_graph: bool = false, bool;
        /// Sets whether the pass itself is recorded, so that gradients have gradients. Also keeps the graph. Default:
        /// `false`.
        create_graph: bool = false, bool;
    }
}

/// Returns the gradients of `outputs` for `inputs`, without adding them to the gradients of the tensors
/// (`torch.autograd.grad`).
///
/// ```
/// use warpline::autograd::{GradOptions, grad};
/// use warpline::tensor;
///
/// let x = tensor(3f64, ())?.requires_grad_(true)?;
/// let options = GradOptions::new().create_graph(true);
/// let slope = grad(&[&x.pow(3)?], &[&x], options)?.remove(0).unwrap();
/// let curvature = grad(&[&slope], &[&x], ())?.remove(0).unwrap();
/// assert_eq!((slope.item::<f64>()?, curvature.item::<f64>()?), (27.0, 18.0));
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Gradient`] if an output does not have exactly one element and no gradient is given for it, if an output
/// or an input requires no gradient, if the outputs do not depend on an input and `allow_unused` is not set, if a given
/// gradient has different sizes, is not floating-point, or has dimensions and is on another device, if the lists differ
/// in length, if a former pass has freed the graph, or if a saved tensor was changed in place. Errors of the gradients'
/// ops, with the location of the forward op, and errors of hooks.
#[track_caller]
pub fn grad<'a>(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    options: impl IntoOptions<GradOptions<'a>>,
) -> Result<Vec<Option<Tensor>>> {
    let options = options.into_options();
    let pass = PassOptions::new(options.retain_graph, options.create_graph);
    grad_at(Location::caller(), outputs, inputs, options, pass)
}

/// Computes [`grad`] without the hooks of leaves, for a caller that passes the gradients to the leaves. Does not keep the
/// graph.
#[track_caller]
pub(crate) fn grad_before_leaf_hooks(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    options: GradOptions<'_>,
) -> Result<Vec<Option<Tensor>>> {
    let pass = PassOptions { skips_leaf_hooks: true, ..PassOptions::default() };
    grad_at(Location::caller(), outputs, inputs, options, pass)
}

/// Computes [`grad`] with errors that name `location`.
pub(super) fn grad_at(
    location: &'static Location<'static>,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    options: GradOptions<'_>,
    pass: PassOptions,
) -> Result<Vec<Option<Tensor>>> {
    let roots = roots("grad", outputs, options.grad_outputs).map_err(|error| error.at(location))?;
    let mut edges = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        let Some(edge) = input.edge() else {
            let reason = format!(
                "input {i} does not require a gradient; call requires_grad_(true) on it first"
            );
            return Err(Error::gradient("grad", reason).at(location));
        };
        edges.push(edge);
    }
    let grads = engine::run("grad", location, roots, Some(&edges), pass)?;
    if let Some(unused) = grads.iter().position(Option::is_none)
        && !options.allow_unused
    {
        let reason = format!(
            "the outputs do not depend on input {unused}; set `allow_unused` to get `None` for this input"
        );
        return Err(Error::gradient("grad", reason).at(location));
    }
    Ok(grads)
}

/// Runs [`Tensor::backward`] for several tensors in one pass (`torch.autograd.backward`).
///
/// # Errors
/// [`ErrorKind::Gradient`] if a tensor does not have exactly one element and no gradient is given for it, if a tensor
/// requires no gradient, if a given gradient has different sizes, is not floating-point, or has dimensions and is on
/// another device, if the lists differ in length, if a former pass has freed the graph, or if a saved tensor was
/// changed in place. [`ErrorKind::Moved`] if a leaf is a parameter whose module was moved. Errors of the gradients'
/// ops, with the location of the forward op, and errors of hooks.
#[track_caller]
pub fn backward<'a>(
    tensors: &[&Tensor],
    options: impl IntoOptions<BackwardTensorsOptions<'a>>,
) -> Result<()> {
    let BackwardTensorsOptions { grad_tensors, retain_graph, create_graph } =
        options.into_options();
    let options = PassOptions::new(retain_graph, create_graph);
    backward_at(Location::caller(), tensors, grad_tensors, options)
}

/// Runs [`backward`] with errors that name `location`.
pub(super) fn backward_at(
    location: &'static Location<'static>,
    tensors: &[&Tensor],
    gradients: &[Option<&Tensor>],
    options: PassOptions,
) -> Result<()> {
    let roots = roots("backward", tensors, gradients).map_err(|error| error.at(location))?;
    engine::run("backward", location, roots, None, options).map(drop)
}
