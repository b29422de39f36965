//! Entries for views, and for functions that join, repeat and split tensors.

use warpline::{
    DiagEmbedOptions, MemoryFormat, MeshIndexing, Result, Tensor, block_diag, cat, dstack, hstack,
    meshgrid, stack, vstack, zeros,
};

use super::entry::{Entry, KEEP, Results, every};
use super::in_place::on_copy;
use super::sample::{each, x};

fn of<R: Results>(name: &'static str, sizes: &[&[usize]], call: fn(&Tensor) -> Result<R>) -> Entry {
    Entry::new(name, KEEP, every, each(sizes), move |x: &[Tensor]| call(&x[0]))
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = views();
    entries.extend(strided());
    entries.extend(parts());
    entries.extend(joined());
    entries.extend(repeated());
    entries
}

fn views() -> Vec<Entry> {
    vec![
        of("Tensor::reshape", &[&[2, 3], &[3, 2, 1]], |x| x.reshape([3, -1])),
        // `view` refuses layouts whose strides do not allow the view, so make the operand
        // contiguous.
        of("Tensor::view", &[&[2, 3], &[0, 3]], |x| x.contiguous()?.view([-1, 3])),
        of("Tensor::view_as", &[&[2, 3]], |x| x.contiguous()?.view_as(&zeros([3, 2], ())?)),
        of("Tensor::m_t", &[&[2, 3, 4], &[2, 3]], |x| x.m_t()),
        of("Tensor::transpose", &[&[2, 3], &[2, 3, 2]], |x| x.transpose(0, 1)),
        of("Tensor::t", &[&[2, 3], &[3], &[]], |x| x.t()),
        of("Tensor::permute", &[&[2, 3, 4]], |x| x.permute([2, 0, 1])),
        of("Tensor::expand", &[&[1, 3], &[3]], |x| x.expand([4, 3])),
        of("Tensor::expand_as", &[&[1, 3], &[3]], |x| x.expand_as(&zeros([4, 3], ())?)),
        of("Tensor::broadcast_to", &[&[1, 3], &[3]], |x| x.broadcast_to([4, 3])),
        of("Tensor::narrow", &[&[4, 3]], |x| x.narrow(0, 1, 2)),
        of("Tensor::select", &[&[4, 3], &[3]], |x| x.select(0, 1)),
        of("Tensor::slice", &[&[5, 3], &[0, 3]], |x| x.slice(0, 1.., 2)),
        of("Tensor::i", &[&[5, 3]], |x| x.i((1..4, -1))),
        of("Tensor::squeeze", &[&[2, 1, 3], &[1]], |x| x.squeeze(())),
        of("Tensor::unsqueeze", &[&[2, 3], &[]], |x| x.unsqueeze(-1)),
        of("Tensor::flatten", &[&[2, 3, 2], &[]], |x| x.flatten(())),
        of("Tensor::unflatten", &[&[2, 6]], |x| x.unflatten(1, [2, 3])),
        of("Tensor::movedim", &[&[2, 3, 4]], |x| x.movedim(0, 2)),
        of("autograd::Tensor::detach", &[&[2, 3]], |x| Ok(x.detach()))
            .constant("that is its purpose"),
    ]
}

fn strided() -> Vec<Entry> {
    vec![
        of("Tensor::diagonal", &[&[3, 4, 2], &[2, 2, 0]], |x| x.diagonal(1)),
        of("Tensor::as_strided", &[&[10]], |x| x.mul(true)?.as_strided([3, 2, 3], [2, 1, 1], 1)),
        of("Tensor::unfold", &[&[5], &[2, 5]], |x| x.unfold(-1, 3, 1)),
        of("Tensor::contiguous", &[&[2, 3], &[], &[0, 3]], |x| x.contiguous()),
        of("Tensor::contiguous_in", &[&[2, 3, 2, 2]], |x| {
            x.contiguous_in(MemoryFormat::ChannelsLast)
        }),
        of("Tensor::diag", &[&[3, 3], &[3]], |x| x.diag(1)),
        of("Tensor::diag_embed", &[&[2, 3]], |x| {
            x.diag_embed(DiagEmbedOptions::new().offset(-1).dim1(0).dim2(2))
        }),
        of("Tensor::tril", &[&[3, 3], &[2, 3, 4]], |x| x.tril(0)),
        of("Tensor::triu", &[&[3, 3], &[2, 3, 4]], |x| x.triu(1)),
        Entry::new("Tensor::tril_", KEEP, every, each(&[&[3, 3]]), |x| on_copy(x, |t| t.tril_(0))),
        Entry::new("Tensor::triu_", KEEP, every, each(&[&[3, 3]]), |x| on_copy(x, |t| t.triu_(1))),
    ]
}

fn parts() -> Vec<Entry> {
    vec![
        of("Tensor::split", &[&[2, 3], &[2, 0]], |x| x.split(2, 1)),
        of("Tensor::chunk", &[&[2, 5]], |x| x.chunk(2, 1)),
        of("Tensor::split_with_sizes", &[&[2, 5]], |x| x.split_with_sizes(&[2, 3], 1)),
        of("Tensor::tensor_split", &[&[2, 5]], |x| x.tensor_split(3, 1)),
        of("Tensor::tensor_split_at", &[&[2, 5]], |x| x.tensor_split_at([1, 3], 1)),
        of("Tensor::unbind", &[&[2, 3], &[3]], |x| x.unbind(0)),
    ]
}

fn joined() -> Vec<Entry> {
    let two = |a: &[usize], b: &[usize]| [vec![x(a), x(b)]];
    vec![
        Entry::new("cat", KEEP, every, two(&[2, 3], &[2, 1]), |x: &[Tensor]| {
            cat(&[&x[0], &x[1], &x[0]], 1)
        }),
        Entry::new("Tensor::cat", KEEP, every, two(&[2, 3], &[0, 3]), |x| Tensor::cat(x, 0)),
        Entry::new("stack", KEEP, every, two(&[2, 3], &[2, 3]), |x| stack(x, 1)),
        Entry::new("Tensor::stack", KEEP, every, two(&[], &[]), |x| Tensor::stack(x, 0)),
        Entry::new("hstack", KEEP, every, two(&[2, 3], &[2, 1]), |x| hstack(x)),
        Entry::new("vstack", KEEP, every, two(&[2, 3], &[3]), |x| vstack(x)),
        Entry::new("dstack", KEEP, every, two(&[2, 3], &[2, 3]), |x| dstack(x)),
        Entry::new("block_diag", KEEP, every, two(&[2, 3], &[1, 2]), |x| block_diag(x)),
        Entry::new("meshgrid", KEEP, every, two(&[2], &[3]), |x| meshgrid(x, MeshIndexing::Ij)),
        Entry::new("meshgrid", KEEP, every, two(&[2], &[3]), |x| meshgrid(x, MeshIndexing::Xy))
            .with("xy"),
    ]
}

fn repeated() -> Vec<Entry> {
    vec![
        of("Tensor::repeat", &[&[2, 3], &[3]], |x| x.repeat([2, 1, 2])),
        of("Tensor::tile", &[&[2, 3]], |x| x.tile([2, 1, 2])),
        of("Tensor::repeat_interleave", &[&[2, 3]], |x| x.repeat_interleave(2, 1)),
        of("Tensor::repeat_interleave", &[&[2, 3]], |x| x.repeat_interleave(2, ())).with("of all"),
    ]
}
