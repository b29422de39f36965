//! Views, and in-place ops on them.
//!
//! If a view is changed in place, its base gets a new node, `CopySlices`, which passes on the gradient of the
//! elements outside the view. The base also increments its *history*. A view that was made before has an older
//! history. When it is used next, it gets a new node, made from the base's.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use warpline_runtime::{Layout, Sizes, Strides};

use super::backward::{Backward, Incoming, Inputs, Rule, linear};
use super::meta::Meta;
use super::node::{Edge, Gradients, Like, Next, Node};
use super::record::{record, record_all, wanted};
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
        saved: impl Backward,
    ) -> Result<Tensor> {
        let view = self.view_with(layout);
        if wanted(&[self]) { record(name, view, &[self], saved) } else { Ok(view) }
    }

    /// [`Tensor::viewed`] of all elements in their order, in another shape.
    #[track_caller]
    pub(crate) fn viewed_reshaped(&self, name: &'static str, layout: Layout) -> Result<Tensor> {
        self.viewed(name, layout, linear(reshape_back))
    }

    /// [`Tensor::viewed`] of some elements, each at most once. `part` makes the same view of another tensor.
    #[track_caller]
    pub(crate) fn viewed_part(
        &self,
        name: &'static str,
        layout: Layout,
        part: impl Fn(&Tensor) -> Result<Tensor> + Copy + Send + Sync + 'static,
    ) -> Result<Tensor> {
        self.viewed(name, layout, linear(move |grad, inputs| embed(grad, inputs.sizes(0), part)))
    }

    /// Returns views that partition the elements, recorded as one op if a gradient is wanted. `whole` computes
    /// this tensor's gradient from those of all views.
    #[track_caller]
    pub(crate) fn viewed_shares(
        &self,
        name: &'static str,
        layouts: Vec<Layout>,
        whole: impl Fn(&[Tensor]) -> Result<Tensor> + Copy + Send + Sync + 'static,
    ) -> Result<Vec<Tensor>> {
        let mut views = list(name, layouts.len())?;
        views.extend(layouts.into_iter().map(|layout| self.view_with(layout)));
        if views.is_empty() || !wanted(&[self]) {
            return Ok(views);
        }
        let sizes: Vec<Sizes> = views.iter().map(|view| view.size().into()).collect();
        record_all(name, &views.iter().collect::<Vec<_>>(), &[self], Shares { sizes, whole })?;
        Ok(views)
    }

    /// [`Tensor::viewed`] of any elements of the memory. `from` is the layout of this tensor, and `as_if` that
    /// of the view, as the gradient sees them.
    #[track_caller]
    pub(crate) fn viewed_strided(
        &self,
        name: &'static str,
        layout: Layout,
        from: Layout,
        as_if: Layout,
    ) -> Result<Tensor> {
        self.viewed(name, layout, Strided { geometry: Geometry { base: from, view: as_if } })
    }
}

/// The gradient of a view of all elements in their order.
pub(crate) fn reshape_back(grad: &Tensor, inputs: &Inputs<'_>) -> Result<Tensor> {
    grad.reshape(&signed(inputs.sizes(0))[..])
}

/// The sizes of views that partition a tensor, and the inverse of the partition.
#[derive(Clone)]
struct Shares<F> {
    sizes: Vec<Sizes>,
    whole: F,
}

impl<F: Copy + Send + Sync + 'static> Saved for Shares<F> {}

impl<F> Backward<[Option<Tensor>]> for Shares<F>
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Copy + Send + Sync + 'static,
{
    fn backward(&self, grads: &[Option<Tensor>], _: &Inputs<'_>) -> Result<Gradients> {
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
    /// A view of any elements of the memory.
    struct Strided { geometry: Geometry }
}

impl Backward for Strided {
    fn backward(&self, grad: &Tensor, _: &Inputs<'_>) -> Result<Gradients> {
        let geometry = &self.geometry;
        let whole = scattered(geometry, grad)?;
        if overlapping(&geometry.base).is_empty() {
            return Ok(smallvec![Some(whole)]);
        }
        // Elements that share memory share its gradient.
        let itself = Geometry { base: geometry.base.clone(), view: geometry.base.clone() };
        let shares = scattered(&itself, &grad.new_ones(geometry.base.sizes(), ())?)?;
        Ok(smallvec![Some(whole.div(&shares)?)])
    }
}

/// Returns zeros of these sizes, with `grad` in the view that `part` makes.
#[track_caller]
pub(crate) fn embed(
    grad: &Tensor,
    sizes: &[usize],
    part: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let whole = grad.new_zeros(sizes, ())?;
    part(&whole)?.copy_(grad, false)?;
    Ok(whole)
}

saved! {
    /// The layouts of a base and of a view of it.
    struct Geometry { base: Layout, view: Layout }
}

impl Geometry {
    fn new(base: &Tensor, view: &Tensor) -> Self {
        Self { base: base.layout().clone(), view: view.layout().clone() }
    }

    /// Returns zeros with the layout of the base, and the view of them. Both are views of one tensor,
    /// so a write to one appears in the gradient of the other.
    fn windows(&self, like: &Tensor) -> Result<(Tensor, Tensor)> {
        let start = self.base.offset().min(self.view.offset());
        let end = [&self.base, &self.view].into_iter().map(end).max().unwrap_or(start);
        let flat = like.new_zeros([end - start.min(end)], ())?;
        let shifted = |layout: &Layout| {
            let (sizes, strides): (Sizes, Strides) =
                (layout.sizes().into(), layout.strides().into());
            flat.view_with(Layout::from_parts(sizes, strides, layout.offset() - start))
        };
        Ok((shifted(&self.base), shifted(&self.view)))
    }
}

/// Returns the position after the last element of a layout.
fn end(layout: &Layout) -> usize {
    if layout.numel() == 0 {
        return layout.offset();
    }
    let reach = |(&n, &stride): (&usize, &isize)| (n - 1) * stride.unsigned_abs();
    layout.offset() + 1 + layout.sizes().iter().zip(layout.strides()).map(reach).sum::<usize>()
}

/// Gives a view whose base was changed in place a new node, made from the base's.
pub(super) fn renew(view: &Tensor, base: &Tensor) {
    let history = base.base_history();
    let Some(edge) = base.edge() else { return };
    let rule = Arc::new(Renewed(Geometry::new(base, view)));
    let (location, stream) = (edge.node.location, edge.node.stream.clone());
    let next = smallvec![Next { edge: Some(edge), like: Like::of(base) }];
    let node = Node::new("as_strided", location, stream, next, 1, rule);
    let meta = Meta::of(view);
    meta.set_edge(Edge { node: Arc::new(node), output: 0 });
    meta.set_history(history);
}

/// The rule of a view whose base was changed in place.
struct Renewed(Geometry);

impl Rule for Renewed {
    fn run(&self, grads: &[Option<Tensor>], _: &Inputs<'_>) -> Result<Gradients> {
        let Some(grad) = Tensor::of(grads) else { return Ok(Gradients::new()) };
        Ok(smallvec![Some(scattered(&self.0, grad)?)])
    }
}

/// Computes the base's gradient from a view's. Sums over elements that the view shows several times.
fn scattered(geometry: &Geometry, grad: &Tensor) -> Result<Tensor> {
    let repeated: SmallVec<[isize; 6]> = (0..geometry.view.ndim())
        .filter(|&d| geometry.view.strides()[d] == 0 && geometry.view.sizes()[d] > 1)
        .map(|d| d as isize)
        .collect();
    let once = if repeated.is_empty() { grad.clone() } else { grad.sum_keepdim(&repeated[..])? };
    let mut single = geometry.clone();
    let sizes: Sizes = once.size().into();
    single.view = Layout::from_parts(sizes, geometry.view.strides().into(), geometry.view.offset());
    let (whole, part) = single.windows(&once)?;
    let dims = overlapping(&single.view);
    if dims.is_empty() {
        part.copy_(&once, false)?;
        return Ok(whole);
    }
    // Selects one index of these dimensions at a time, so that the elements of each write do not overlap.
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

/// Returns dimensions without which no two elements of a layout share memory, in ascending order.
fn overlapping(layout: &Layout) -> SmallVec<[usize; 6]> {
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

/// Records an in-place op on a view. The base gets a new node, which passes the gradient of elements outside
/// the view on unchanged, and that of elements in the view through `op`, the op's own node.
pub(super) fn rebase(view: &Tensor, base: &Tensor, op: Arc<Node>) -> Result<()> {
    let mut next: SmallVec<[Next; 2]> = smallvec![Next { edge: base.edge(), like: Like::of(base) }];
    let others = op.next.iter().skip(1);
    next.extend(others.map(|next| Next { edge: next.edge.clone(), like: next.like.clone() }));
    let (location, stream) = (op.location, op.stream.clone());
    let rule = Arc::new(CopySlices { geometry: Geometry::new(base, view), op });
    let node = Node::new("CopySlices", location, stream, next, 1, rule);
    let meta = Meta::of(base);
    let history = meta.next_history();
    meta.set_edge(Edge { node: Arc::new(node), output: 0 });
    // The view gets its new node when it is used next.
    Meta::of(view).set_history(history.wrapping_sub(1));
    Ok(())
}

/// The rule of a base whose view was changed in place.
struct CopySlices {
    geometry: Geometry,
    /// The node of the in-place op.
    op: Arc<Node>,
}

impl Rule for CopySlices {
    fn run(&self, grads: &[Option<Tensor>], inputs: &Inputs<'_>) -> Result<Gradients> {
        let Some(grad) = Tensor::of(grads) else { return Ok(Gradients::new()) };
        let (whole, part) = self.geometry.windows(grad)?;
        whole.copy_(grad, false)?;
        let mut through = self.op.run(&[Some(part.copy()?)], inputs.partial)?;
        match through.first_mut().and_then(Option::take) {
            Some(own) => part.copy_(&own, false)?,
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
}
