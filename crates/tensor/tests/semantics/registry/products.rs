//! Entries for products of matrices and vectors, and for sums of products.

use warpline::functional::{bilinear, linear, linear_silu_mul};
use warpline::{AddmmOptions, Result, Tensor, einsum};
use warpline_kernels::autocast::Policy;

use super::entry::{
    Category, Entry, F32, KEEP, LOW, LOW_ON_GPU, WIDEST_ON_GPU, every, floats, numbers,
};
use super::in_place::on_copy;
use super::sample::{Arg, each, x};

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = matrices();
    entries.extend(added());
    entries.extend(contracted());
    entries
}

fn two(
    name: &'static str,
    category: Category,
    sizes: &[[&[usize]; 2]],
    call: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Entry {
    let samples: Vec<Vec<Arg>> = sizes.iter().map(|[a, b]| vec![x(a), x(b)]).collect();
    Entry::new(name, category, numbers, samples, move |x: &[Tensor]| call(&x[0], &x[1]))
}

fn matrices() -> Vec<Entry> {
    let any: [[&[usize]; 2]; 6] = [
        [&[2, 3], &[3, 2]],
        [&[2, 1, 2, 3], &[4, 3, 2]],
        [&[2, 3], &[3]],
        [&[3], &[4, 3, 2]],
        [&[3], &[3]],
        [&[2, 0], &[0, 3]],
    ];
    let large: [[&[usize]; 2]; 1] = [[&[33, 20], &[20, 17]]];
    vec![
        two("Tensor::matmul", LOW, &any, |a, b| a.matmul(b)),
        two("Tensor::matmul", LOW, &large, |a, b| a.matmul(b)).with("larger").slack(4.0),
        two("Tensor::mm", LOW, &[[&[2, 3], &[3, 2]], [&[1, 1], &[1, 1]]], |a, b| a.mm(b)),
        two("Tensor::bmm", LOW, &[[&[2, 2, 3], &[2, 3, 2]], [&[0, 2, 3], &[0, 3, 2]]], |a, b| {
            a.bmm(b)
        }),
        two("Tensor::mv", LOW_ON_GPU, &[[&[2, 3], &[3]]], |a, b| a.mv(b)),
        two("Tensor::dot", WIDEST_ON_GPU, &[[&[3], &[3]]], |a, b| a.dot(b)),
        two("Tensor::outer", KEEP, &[[&[2], &[3]], [&[0], &[3]]], |a, b| a.outer(b)).of(every),
        two("Tensor::kron", KEEP, &[[&[2, 2], &[2, 1]], [&[2, 2], &[3]]], |a, b| a.kron(b))
            .of(every),
        Entry::new("Tensor::trace", F32, every, each(&[&[2, 3], &[3, 3]]), |x| x[0].trace()),
    ]
}

fn added() -> Vec<Entry> {
    let three = |sizes: &[[&[usize]; 3]]| -> Vec<Vec<Arg>> {
        sizes.iter().map(|[a, b, c]| vec![x(a), x(b), x(c)]).collect()
    };
    let mm =
        || three(&[[&[2], &[3, 4], &[4, 2]], [&[3, 2], &[3, 4], &[4, 2]], [&[], &[2, 3], &[3, 1]]]);
    let bmm = || three(&[[&[2, 3, 2], &[2, 3, 4], &[2, 4, 2]]]);
    let mv = || three(&[[&[3], &[3, 4], &[4]]]);
    let whole = || three(&[[&[3, 2], &[3, 4], &[4, 2]]]);
    let layers =
        || three(&[[&[2, 2, 3], &[2, 3], &[2]], [&[3], &[2, 3], &[2]], [&[0, 3], &[2, 3], &[2]]]);
    vec![
        Entry::new("Tensor::addmm", LOW, floats, mm(), |x| {
            x[0].addmm(&x[1], &x[2], AddmmOptions::new().beta(0.5).alpha(2.0))
        }),
        Entry::new("Tensor::baddbmm", LOW, floats, bmm(), |x| {
            x[0].baddbmm(&x[1], &x[2], AddmmOptions::new().beta(0.5).alpha(2.0))
        }),
        Entry::new("Tensor::addmv", LOW_ON_GPU, floats, mv(), |x| {
            x[0].addmv(&x[1], &x[2], AddmmOptions::new().beta(0.5).alpha(2.0))
        }),
        Entry::new("Tensor::addmm", LOW, numbers, mm(), |x| {
            x[0].addmm(&x[1], &x[2], AddmmOptions::new().beta(2).alpha(3))
        })
        .with("integers"),
        Entry::new("Tensor::addmm_", KEEP, floats, whole(), |x| {
            on_copy(x, |t| t.addmm_(&x[1], &x[2], AddmmOptions::new().beta(0.5).alpha(2.0)))
        }),
        Entry::new("Tensor::baddbmm_", KEEP, floats, bmm(), |x| {
            on_copy(x, |t| t.baddbmm_(&x[1], &x[2], AddmmOptions::new().beta(0.5).alpha(2.0)))
        }),
        Entry::new("Tensor::addmv_", KEEP, floats, mv(), |x| {
            on_copy(x, |t| t.addmv_(&x[1], &x[2], AddmmOptions::new().beta(0.5).alpha(2.0)))
        }),
        Entry::new("functional::linear", LOW, numbers, layers(), |x| linear(&x[0], &x[1], &x[2])),
        Entry::new("functional::linear", LOW, numbers, [vec![x(&[2, 3]), x(&[4, 3])]], |x| {
            linear(&x[0], &x[1], None)
        })
        .with("without bias"),
        Entry::new(
            "functional::linear_silu_mul",
            LOW,
            floats,
            [vec![x(&[2, 3]), x(&[4, 3])], vec![x(&[3]), x(&[2, 3])], vec![x(&[0, 3]), x(&[4, 3])]],
            |x| linear_silu_mul(&x[0], &x[1]),
        ),
        Entry::new(
            "functional::bilinear",
            WIDEST_ON_GPU,
            numbers,
            [vec![x(&[3, 2]), x(&[3, 4]), x(&[2, 2, 4]), x(&[2])]],
            |x| bilinear(&x[0], &x[1], &x[2], &x[3]),
        ),
    ]
}

fn contracted() -> Vec<Entry> {
    let sum = |equation: &'static str, category, sizes: &[&[usize]]| {
        let sample: Vec<Arg> = sizes.iter().map(|sizes| x(sizes)).collect();
        Entry::new("einsum", category, numbers, [sample], move |x: &[Tensor]| einsum(equation, x))
            .with(equation)
    };
    // On the CPU, PyTorch's list has the inner matrix product, but not `tensordot`.
    let contraction = [Policy::Widest, Policy::Low];
    vec![
        sum("ij,jk,k->ik", LOW_ON_GPU, &[&[2, 3], &[3, 2], &[2]]),
        sum("ii->i", LOW_ON_GPU, &[&[3, 3]]).of(every),
        sum("bii,ij,b->jb", LOW_ON_GPU, &[&[2, 3, 3], &[3, 4], &[2]]),
        sum("...ij,ij", LOW, &[&[2, 3, 4], &[3, 4]]),
        two("Tensor::tensordot", contraction, &[[&[2, 3], &[3, 2]]], |a, b| a.tensordot(b, 1)),
        two("Tensor::tensordot", contraction, &[[&[2, 3], &[4, 3]]], |a, b| a.tensordot(b, (1, 1)))
            .with("a dimension of each"),
    ]
}
