//! Entries for functions that make constants and sequences. The argument of a sample gives only the
//! dtype and the device, and has no gradient.

use warpline::{
    DType, Device, Result, Tensor, arange, arange_start, arange_start_step, empty, eye, full,
    linspace, logspace, ones, tensor, tril_indices, triu_indices, zeros,
};

use super::entry::{Entry, KEEP, every, numbers};
use super::sample::x;

const CONSTANT: &str = "the result does not depend on elements";
const EMPTY: &str = "memory is not initialised";

fn of(
    name: &'static str,
    takes: fn(DType) -> bool,
    call: fn(&Tensor, (DType, Device)) -> Result<Tensor>,
) -> Entry {
    let call = move |x: &[Tensor]| call(&x[0], (x[0].dtype(), x[0].device()));
    Entry::new(name, KEEP, takes, [vec![x(&[2, 3])], vec![x(&[0, 3])]], call).constant(CONSTANT)
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = free();
    entries.extend(like());
    entries
}

fn free() -> Vec<Entry> {
    vec![
        of("empty", every, |_, at| empty([2, 3], at)).differs(EMPTY),
        of("zeros", every, |_, at| zeros([2, 3], at)),
        of("ones", every, |_, at| ones([2, 3], at)),
        of("full", every, |_, at| full([2, 3], 1, at)),
        of("tensor", every, |_, at| tensor([0i64, 1, 5], at)),
        of("Tensor::from_vec", every, |_, at| Tensor::from_vec(vec![0i64, 1, 5], [3, 1], at)),
        of("arange", numbers, |_, at| arange(6, at)),
        of("arange_start", numbers, |_, at| arange_start(2, 6, at)),
        of("arange_start_step", numbers, |_, at| arange_start_step(2, 9, 3, at)),
        of("linspace", numbers, |_, at| linspace(0, 6, 4, at)),
        of("logspace", every, |_, at| logspace(0, 2, 3, 10.0, at)),
        of("eye", every, |_, at| eye((3, 4), at)),
        of("tril_indices", every, |_, at| tril_indices(3, 4, 0, at)),
        of("triu_indices", every, |_, at| triu_indices(3, 4, 0, at)),
    ]
}

fn like() -> Vec<Entry> {
    vec![
        of("Tensor::new_empty", every, |x, _| x.new_empty([2, 2], ())).differs(EMPTY),
        of("Tensor::new_full", every, |x, _| x.new_full([2, 2], 1, ())),
        of("Tensor::new_zeros", every, |x, _| x.new_zeros([2, 2], ())),
        of("Tensor::new_ones", every, |x, _| x.new_ones([2, 2], ())),
        of("Tensor::new_tensor", every, |x, _| x.new_tensor([0i64, 1, 5], ())),
        of("Tensor::empty_like", every, |x, _| x.empty_like(())).differs(EMPTY),
        of("Tensor::full_like", every, |x, _| x.full_like(1, ())),
        of("Tensor::zeros_like", every, |x, _| x.zeros_like(())),
        of("Tensor::ones_like", every, |x, _| x.ones_like(())),
    ]
}
