//! Views, and in-place ops on them.
//!
//! An in-place op on a view gives the base a new node, `CopySlices`, and increments the base's *history*, the
//! number of its in-place ops. All views of the base then have an older history. On its next use, such a view
//! gets a new node whose input is the base.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use warpline_runtime::{Layout, Sizes, Strides};

use super::meta::AutogradMeta;
use super::node::{Edge, GradNode, Gradients, NodeInput, TensorSpec};
use super::op_backward::{GradFn, IncomingGrad, NodeInputs, OpBackward, linear};
use super::record::{record, record_all, should_record};
use super::saved::{Saved, saved};
use crate::methods::composite::signed;
use crate::methods::list;
use crate::{Result, Tensor};

impl Tensor {
    /// Returns a view with this layout, recorded if a gradient is wanted.
    #[inline]
    #[track_caller]
    pub(crate) fn viewed(
        &self,
        name: &'static str,
        layout: Layout,
        saved: impl OpBackward,
    ) -> Result<Tensor> {
        let view = self.view_with(layout);
        if should_record(&[self]) { record(name, view, &[self], saved) } else { Ok(view) }
    }

    /// Returns a view of all elements in their order, in another shape, like [`Tensor::viewed`].
    #[track_caller]
    pub(crate) fn viewed_reshaped(&self, name: &'static str, layout: Layout) -> Result<Tensor> {
        self.viewed(name, layout, linear(reshape_back))
    }

    /// Returns a view of some elements, each at most once, like [`Tensor::viewed`]. `part` creates the same
    /// view of another tensor.
    #[track_caller]
    pub(crate) fn viewed_part(
        &self,
        name: &'static str,
        layout: Layout,
        part: impl Fn(&Tensor) -> Result<Tensor> + Copy + Send + Sync + 'static,
    ) -> Result<Tensor> {
        self.viewed(name, layout, linear(move |grad, inputs| embed(grad, inputs.sizes(0), part)))
    }

    /// Returns views that partition the elements, recorded as one op if a gradient is wanted. `whole`
    /// computes this tensor's gradient from the gradients of all views.
    #[track_caller]
    pub(crate) fn viewed_partition(
        &self,
        name: &'static str,
        layouts: Vec<Layout>,
        whole: impl Fn(&[Tensor]) -> Result<Tensor> + Copy + Send + Sync + 'static,
    ) -> Result<Vec<Tensor>> {
        let mut views = list(name, layouts.len())?;
        views.extend(layouts.into_iter().map(|layout| self.view_with(layout)));
        if views.is_empty() || !should_record(&[self]) {
            return Ok(views);
        }
        let sizes: Vec<Sizes> = views.iter().map(|view| view.size().into()).collect();
        record_all(
            name,
            &views.iter().collect::<Vec<_>>(),
            &[self],
            ViewPartition { sizes, whole },
        )?;
        Ok(views)
    }

    /// Returns a view of any elements of the storage, like [`Tensor::viewed`]. The gradient uses `from` as
    /// the layout of this tensor, and `as_if` as the layout of the view.
    #[track_caller]
    pub(crate) fn viewed_strided(
        &self,
        name: &'static str,
        layout: Layout,
        from: Layout,
        as_if: Layout,
    ) -> Result<Tensor> {
        self.viewed(
            name,
            layout,
            StridedView { geometry: ViewGeometry { base: from, view: as_if } },
        )
    }
}

/// Computes the gradient of a view of all elements in their order.
pub(crate) fn reshape_back(grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Tensor> {
    grad.reshape(&signed(inputs.sizes(0))[..])
}

/// The sizes of views that partition a tensor, and the inverse of the partition.
#[derive(Clone)]
struct ViewPartition<F> {
    sizes: Vec<Sizes>,
    whole: F,
}

impl<F: Copy + Send + Sync + 'static> Saved for ViewPartition<F> {}

impl<F> OpBackward<[Option<Tensor>]> for ViewPartition<F>
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Copy + Send + Sync + 'static,
{
    fn backward(&self, grads: &[Option<Tensor>], _: &NodeInputs<'_>) -> Result<Gradients> {
        let Some(like) = grads.iter().flatten().next() else { return Ok(Gradients::new()) };
        let share = |(grad, sizes): (&Option<Tensor>, &Sizes)| match grad {
            Some(grad) => Ok(grad.clone()),
            None => like.new_zeros(&sizes[..], ()),
        };
        let shares = grads.iter().zip(&self.sizes).map(share).collect::<Result<Vec<_>>>()?;
        Ok(smallvec![Some((self.whole)(&shares)?)])
    }
}

saved! {
    /// A view of any elements of the storage.
    struct StridedView { geometry: ViewGeometry }
}

impl OpBackward for StridedView {
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        let geometry = &self.geometry;
        let whole = scatter_to_base(geometry, grad)?;
        if overlapping_dims(&geometry.base).is_empty() {
            return Ok(smallvec![Some(whole)]);
        }
        // Elements of the base that share memory get equal shares of the gradient of that memory.
        let itself = ViewGeometry { base: geometry.base.clone(), view: geometry.base.clone() };
        let shares = scatter_to_base(&itself, &grad.new_ones(geometry.base.sizes(), ())?)?;
        Ok(smallvec![Some(whole.div(&shares)?)])
    }
}

/// Returns zeros of these sizes, with `grad` copied to the view that `part` selects.
#[track_caller]
pub(crate) fn embed(
    grad: &Tensor,
    sizes: &[usize],
    part: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let whole = grad.new_zeros(sizes, ())?;
    part(&whole)?.copy_(grad, ())?;
    Ok(whole)
}

saved! {
    /// The layouts of a base and of one of its views.
    struct ViewGeometry { base: Layout, view: Layout }
}

impl ViewGeometry {
    fn new(base: &Tensor, view: &Tensor) -> Self {
        Self { base: base.layout().clone(), view: view.layout().clone() }
    }

    /// Returns zeros with the layout of the base, and the view of these zeros. Both are autograd views of one
    /// new tensor, so a recorded write to one of them becomes part of the graph of the other.
    fn base_and_view(&self, like: &Tensor) -> Result<(Tensor, Tensor)> {
        let start = self.base.offset().min(self.view.offset());
        let end = [&self.base, &self.view].into_iter().map(end_offset).max().unwrap_or(start);
        let flat = like.new_zeros([end - start.min(end)], ())?;
        let shifted = |layout: &Layout| {
            let (sizes, strides): (Sizes, Strides) =
                (layout.sizes().into(), layout.strides().into());
            flat.view_with(Layout::from_parts(sizes, strides, layout.offset() - start))
        };
        Ok((shifted(&self.base), shifted(&self.view)))
    }
}

/// Returns the offset after the last element of a layout.
fn end_offset(layout: &Layout) -> usize {
    if layout.numel() == 0 {
        return layout.offset();
    }
    let reach = |(&n, &stride): (&usize, &isize)| (n - 1) * stride.unsigned_abs();
    layout.offset() + 1 + layout.sizes().iter().zip(layout.strides()).map(reach).sum::<usize>()
}

/// Gives a view a new node whose input is the base, because the base was changed in place.
pub(super) fn regenerate(view: &Tensor, base: &Tensor) {
    let history = base.base_history();
    let Some(edge) = base.edge() else { return };
    let grad_fn = Arc::new(RegeneratedView(ViewGeometry::new(base, view)));
    let (call, stream) = (edge.node.call, edge.node.stream.clone());
    let inputs = smallvec![NodeInput { edge: Some(edge), spec: TensorSpec::of(base) }];
    let node = GradNode::new("as_strided", call, stream, inputs, 1, grad_fn);
    let meta = AutogradMeta::of(view);
    meta.set_edge(Edge { node: Arc::new(node), output: 0 });
    meta.set_history(history);
}

/// The gradient function of a view whose base was changed in place.
struct RegeneratedView(ViewGeometry);

impl GradFn for RegeneratedView {
    fn run(&self, grads: &[Option<Tensor>], _: &NodeInputs<'_>) -> Result<Gradients> {
        let Some(grad) = Tensor::of(grads) else { return Ok(Gradients::new()) };
        Ok(smallvec![Some(scatter_to_base(&self.0, grad)?)])
    }
}

/// Computes the base's gradient from the view's gradient. Sums the gradients of view elements that share memory.
fn scatter_to_base(geometry: &ViewGeometry, grad: &Tensor) -> Result<Tensor> {
    let repeated: SmallVec<[isize; 6]> = (0..geometry.view.ndim())
        .filter(|&d| geometry.view.strides()[d] == 0 && geometry.view.sizes()[d] > 1)
        .map(|d| d as isize)
        .collect();
    let once = if repeated.is_empty() { grad.clone() } else { grad.sum_keepdim(&repeated[..])? };
    let mut single = geometry.clone();
    let sizes: Sizes = once.size().into();
    single.view = Layout::from_parts(sizes, geometry.view.strides().into(), geometry.view.offset());
    let (whole, part) = single.base_and_view(&once)?;
    let dims = overlapping_dims(&single.view);
    if dims.is_empty() {
        part.copy_(&once, ())?;
        return Ok(whole);
    }
    // Writes one index of these dimensions at a time, so that the elements of each write do not overlap.
    let mut slices = vec![(part, once)];
    for &d in dims.iter().rev() {
        let mut finer = Vec::new();
        for (part, once) in &slices {
            for i in 0..part.size()[d] as isize {
                finer.push((part.select(d as isize, i)?, once.select(d as isize, i)?));
            }
        }
        slices = finer;
    }
    for (part, once) in &slices {
        part.add_(once)?;
    }
    Ok(whole)
}

/// Returns dimensions, in ascending order, such that elements with the same indices in them do not share
/// memory.
fn overlapping_dims(layout: &Layout) -> SmallVec<[usize; 6]> {
    let stride = |d: usize| layout.strides()[d].unsigned_abs();
    let mut dims: SmallVec<[usize; 6]> =
        (0..layout.ndim()).filter(|&d| layout.sizes()[d] > 1).collect();
    dims.sort_by_key(|&d| stride(d));
    let mut reach = 0;
    dims.retain(|d| {
        let apart = stride(*d) > reach;
        if apart {
            reach += (layout.sizes()[*d] - 1) * stride(*d);
        }
        !apart
    });
    dims.sort_unstable();
    dims
}

/// Records an in-place op on a view in a new node of the base. The node passes on the gradient of elements
/// outside the view unchanged, and computes the gradient of elements inside the view with `op`, the op's own
/// node.
pub(super) fn rebase(view: &Tensor, base: &Tensor, op: Arc<GradNode>) -> Result<()> {
    let mut inputs: SmallVec<[NodeInput; 2]> =
        smallvec![NodeInput { edge: base.edge(), spec: TensorSpec::of(base) }];
    let others = op.inputs.iter().skip(1);
    inputs.extend(
        others.map(|input| NodeInput { edge: input.edge.clone(), spec: input.spec.clone() }),
    );
    let (call, stream) = (op.call, op.stream.clone());
    let grad_fn = Arc::new(CopySlices { geometry: ViewGeometry::new(base, view), op });
    let node = GradNode::new("CopySlices", call, stream, inputs, 1, grad_fn);
    let meta = AutogradMeta::of(base);
    let history = meta.next_history();
    meta.set_edge(Edge { node: Arc::new(node), output: 0 });
    // An outdated history gives the view a new node on its next use.
    AutogradMeta::of(view).set_history(history.wrapping_sub(1));
    Ok(())
}

/// The gradient function of a base whose view was changed in place.
struct CopySlices {
    geometry: ViewGeometry,
    /// The node of the in-place op.
    op: Arc<GradNode>,
}

impl GradFn for CopySlices {
    fn run(&self, grads: &[Option<Tensor>], inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let Some(grad) = Tensor::of(grads) else { return Ok(Gradients::new()) };
        let (whole, part) = self.geometry.base_and_view(grad)?;
        whole.copy_(grad, ())?;
        let mut through = self.op.run(&[Some(part.copy()?)], inputs.partial)?;
        match through.first_mut().and_then(Option::take) {
            Some(own) => part.copy_(&own, ())?,
            None => part.zero_()?,
        };
        match through.first_mut() {
            Some(first) => *first = Some(whole),
            None => through.push(Some(whole)),
        }
        Ok(through)
    }

    fn release(&self) -> bool {
        self.op.release();
        false
    }

    fn for_each_saved(&self, f: &mut dyn FnMut(&Tensor)) {
        self.op.for_each_saved(f);
    }
}
